"""Ollama with the proxy in front: our figures beside the last line of each answer, and what clients measured.

The load goes to Ollama's own routes and to its OpenAI route, some of it through its Python client with the drop-in on.
Ollama takes a prompt of any length and answers with one choice, so a model that is not there is what it refuses.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from examples.model import fetch
from tests.engines.figures import MINIMUM_DISCONNECTS, MINIMUM_REQUESTS, Figure, Outcome, worst
from tests.engines.ollama_build import VERSION, ensure_ollama
from tests.engines.ours import Exported, wait_until_exported
from tests.engines.serving import EngineServer, engine_environ, free_port
from tests.support.otlp_receiver import HttpReceiver, OtlpReceiver
from tests.support.plain import Span

REQUESTS: Final = 208
BY_CLIENT: Final = 12
AT_ONCE: Final = 6
ROUTES: Final = ("/api/chat", "/api/generate", "/v1/chat/completions")
LEAVES_AFTER: Final = 2
TOKENS: Final = 8
MOST_DELAY_S: Final = 0.5
"""How much later than Ollama says a prefill may begin, seen through the proxy."""


@dataclass(slots=True)
class Answer:
    """What a client saw; ``last``: Ollama's last line.  Times in seconds from the moment it began to send."""

    number: int
    route: str
    status: int = 0
    left: bool = False
    ttft: float | None = None
    e2e: float | None = None
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def trace_id(self) -> str:
        """The trace the client sends."""
        return f"{0x011A3A:016x}{self.number + 1:016x}"


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run the lane; EngineFailed if a server does not start.  ``version``: of the Python client."""
    program, port = ensure_ollama(), free_port()
    with HttpReceiver() as receiver:
        environ = _environ(scratch, port)
        server = EngineServer(
            [str(program), "serve"], port=port, ready="/api/version", environ=environ, log=scratch / "ollama.log"
        )
        with server:
            _create(program, {**os.environ, **environ}, scratch)
            with _proxy(python, receiver, scratch, server.base) as proxy:
                answers = asyncio.run(_drive(proxy.base))
                wait_until_exported(receiver, lambda: REQUESTS)
            by_client = _client(python, receiver, scratch, server.base)
        wait_until_exported(receiver, lambda: REQUESTS + BY_CLIENT)
        outcome = Outcome(engine="Ollama", version=f"{VERSION}, client {version}")
        _compare(outcome, answers, Exported(receiver))
        _compare_client(outcome, by_client, Exported(receiver))
    return outcome


def _environ(scratch: Path, port: int) -> dict[str, str]:
    return {
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(scratch / "models"),
        # Two slots for six clients: there has to be a queue.
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_CONTEXT_LENGTH": "1024",
        "HOME": str(scratch),
    }


def _create(program: Path, environ: dict[str, str], scratch: Path) -> None:
    recipe = scratch / "Modelfile"
    # One thread: threads that wait for each other take ten times as long where the cores are busy.
    recipe.write_text(f"FROM {fetch()}\nPARAMETER num_thread 1\n")
    command = [str(program), "create", "tiny", "-f", str(recipe)]
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=300)


def _proxy(python: Path, receiver: OtlpReceiver, scratch: Path, upstream: str) -> EngineServer:
    port = free_port()
    command = [str(python), "-m", "otel_lifecycle._cli.main", "proxy", "--to", upstream, "--port", str(port)]
    environ = engine_environ(python, receiver, scratch)
    log = scratch / "proxy.log"
    return EngineServer([*command, "--provider", "ollama"], port=port, ready="/api/version", environ=environ, log=log)


def _client(python: Path, receiver: OtlpReceiver, scratch: Path, base: str) -> dict[str, Any]:
    out = scratch / "client.json"
    command = [str(python), "-m", "tests.engines.ollama_client", base, str(BY_CLIENT), str(out)]
    environ = {**os.environ, **engine_environ(python, receiver, scratch)}
    subprocess.run(command, env=environ, check=True, timeout=600)
    return dict(json.loads(out.read_text()))


async def _drive(base: str) -> list[Answer]:
    gate = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=base, timeout=600) as client:

        async def one(number: int) -> Answer:
            async with gate:
                answer = Answer(number, ROUTES[number % len(ROUTES)])
                await _ask(client, answer)
                return answer

        return list(await asyncio.gather(*map(one, range(REQUESTS))))


def _body(answer: Answer) -> dict[str, Any]:
    model = "nobody" if answer.number % 40 == 7 else "tiny"
    stream = answer.number % 4 != 3
    limit = 400 if _leaves(answer) else 2 + answer.number % TOKENS
    prompt = "the quick brown fox jumps over a lazy dog " * (1 + answer.number % 3)
    messages = [{"role": "user", "content": prompt}]
    if answer.route.startswith("/v1"):
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return {"model": model, "messages": messages, "stream": stream, "max_tokens": limit, **options}
    content = {"messages": messages} if answer.route == "/api/chat" else {"prompt": prompt}
    return {"model": model, "stream": stream, "options": {"num_predict": limit, "temperature": 0}, **content}


def _leaves(answer: Answer) -> bool:
    return answer.number % 20 == 4


async def _ask(client: httpx.AsyncClient, answer: Answer) -> None:
    headers = {"traceparent": f"00-{answer.trace_id}-{answer.number + 1:016x}-01"}
    started = time.perf_counter()
    async with client.stream("POST", answer.route, json=_body(answer), headers=headers) as response:
        answer.status = response.status_code
        lines = 0
        async for line in response.aiter_lines():
            text = line.removeprefix("data: ")
            if not text.startswith("{"):
                continue
            lines += 1
            if answer.ttft is None:
                answer.ttft = time.perf_counter() - started
            answer.last = {**answer.last, **json.loads(text)}
            if _leaves(answer) and lines >= LEAVES_AFTER:
                answer.left = True
                return
    answer.e2e = time.perf_counter() - started


def _compare(outcome: Outcome, answers: list[Answer], ours: Exported) -> None:
    spans = ours.by_trace()
    native = [one for one in answers if one.route.startswith("/api") and one.e2e is not None and one.status == 200]
    pairs = [(one.last, spans[one.trace_id]["attributes"]) for one in native if one.trace_id in spans]
    outcome.figures += [
        Figure(name="requests", engine=len(answers), ours=sum(one.trace_id in spans for one in answers)),
        Figure(
            name="output tokens, native routes",
            engine=sum(last["eval_count"] for last, _ in pairs),
            ours=sum(float(mine["gen_ai.usage.output_tokens"]) for _, mine in pairs),
        ),
        Figure(
            name="input tokens, native routes",
            engine=sum(last.get("prompt_eval_count", 0) for last, _ in pairs),
            ours=sum(float(mine.get("gen_ai.usage.input_tokens", 0)) for _, mine in pairs),
        ),
        _stage("load, worst request", pairs, "load_duration", "inference.preprocessing"),
        _stage("prefill, worst request", pairs, "prompt_eval_duration", "inference.prefill"),
        _queue(pairs),
        Figure(name="violations", engine=0, ours=ours.sum_of("inference.violations")),
        *_times(answers, spans),
    ]
    left = [one for one in answers if one.left]
    ended = [spans[one.trace_id]["attributes"]["inference.outcome"] for one in left if one.trace_id in spans]
    outcome.figures.append(
        Figure(name="disconnects that are cancelled requests", engine=len(left), ours=ended.count("cancelled"))
    )
    outcome.floor("requests", len(answers), MINIMUM_REQUESTS)
    outcome.floor("disconnects", len(left), MINIMUM_DISCONNECTS)
    outcome.floor("refused requests", sum(400 <= one.status < 500 for one in answers), 1)
    outcome.floor("requests with stages", sum("inference.queue_wait" in mine for _, mine in pairs), len(pairs) - 1)
    outcome.notes.append("Ollama reports no queue, makes one choice, and never evicts a request")


def _stage(name: str, pairs: list[tuple[dict[str, Any], Any]], theirs: str, mine: str) -> Figure:
    known = [(last[theirs] / 1e9, float(found[mine])) for last, found in pairs if theirs in last and mine in found]
    engine, ours = worst(known) or (None, None)
    return Figure(name=name, engine=engine, ours=ours, within=1e-4, unit="s", samples=len(known))


def _queue(pairs: list[tuple[dict[str, Any], Any]]) -> Figure:
    """What Ollama's total leaves over is the queue, and what it does between stages; ours has the way through too."""
    parts = ("load_duration", "prompt_eval_duration", "eval_duration")
    known = [
        ((last["total_duration"] - sum(last.get(part, 0) for part in parts)) / 1e9, float(mine["inference.queue_wait"]))
        for last, mine in pairs
        if "inference.queue_wait" in mine
    ]
    engine, ours = worst(known) or (None, None)
    name = "queue, total less the other three, worst request"
    return Figure(name=name, engine=engine, ours=ours, within=MOST_DELAY_S, unit="s", samples=len(known))


def _times(answers: list[Answer], spans: dict[str, Span]) -> list[Figure]:
    figures = []
    for name in ("ttft", "e2e"):
        seen = [
            (float(getattr(one, name)), float(spans[one.trace_id]["attributes"][f"inference.{name}"]))
            for one in answers
            if getattr(one, name) is not None
            and one.trace_id in spans
            and f"inference.{name}" in spans[one.trace_id]["attributes"]
        ]
        engine, ours = min(seen, key=lambda pair: pair[0] - pair[1], default=(None, None))
        label = f"{name.upper()} of clients, the closest"
        figures.append(Figure(name=label, engine=engine, ours=ours, at_least=True, unit="s", samples=len(seen)))
    return figures


def _compare_client(outcome: Outcome, told: dict[str, Any], ours: Exported) -> None:
    spans = [
        span for span in ours.requests if span["trace_id"] not in {Answer(i, "").trace_id for i in range(REQUESTS)}
    ]
    outcome.figures += [
        Figure(name="Python client: requests", engine=told["requests"], ours=len(spans)),
        Figure(
            name="Python client: output tokens",
            engine=told["tokens"],
            ours=ours.sum_of("gen_ai.usage.output_tokens", spans),
        ),
        Figure(
            name="Python client: prefill, sum",
            engine=told["prefill"],
            ours=ours.sum_of("inference.prefill", spans),
            within=1e-3,
            unit="s",
        ),
    ]
