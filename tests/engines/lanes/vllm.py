"""vLLM's server with its plug-in and middleware: our figures beside its ``/metrics`` and its own request spans."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_lifecycle.integrations import _vllm_adapter
from tests.engines import engine_metrics
from tests.engines.figures import MINIMUM_PREEMPTIONS, Figure, Outcome, worst
from tests.engines.lanes import shared
from tests.engines.load import Target, mix
from tests.engines.ours import Exported, wait_until_exported
from tests.engines.restored import restored
from tests.engines.serving import EngineServer, engine_environ, free_port
from tests.support.otlp_receiver import HttpReceiver, OtlpReceiver
from tests.support.plain import Span

ENGINE_SPAN: Final = "llm_request"
REQUESTS: Final = 224
MINIMUM_JOINED: Final = 100
# 9 blocks of 128 tokens cannot hold four of the longer requests: the scheduler has to evict.
OPTIONS: Final = (
    "--dtype float32 --max-model-len 1024 --max-num-seqs 4 --enforce-eager --no-enable-prefix-caching "
    "--block-size 128 --num-gpu-blocks-override 9 --served-model-name tiny"
)
TELLS_STEPS_SINCE: Final = (0, 32)
"""Versions whose engine core tells the frontend how long an iteration took."""
# One line for each iteration, by vLLM itself.
ITERATION: Final = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, \d+ context tokens, (\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: ([\d.]+) ms"
)
LOGGED_TO: Final = 5e-6
"""Seconds by which the log rounds the time of an iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """How the server is started: further arguments, and whether our middleware is in front."""

    python: Path
    model: Path
    scratch: Path
    arguments: Sequence[str] = ()
    middleware: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)

    def start(self, receiver: OtlpReceiver) -> EngineServer:
        """Return the server, not yet entered."""
        port = free_port()
        program = self.python.parent / "vllm"
        command = [
            str(program),
            "serve",
            str(self.model),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            *OPTIONS.split(" "),
        ]
        if self.middleware:
            command += ["--middleware", "otel_lifecycle.integrations.vllm.Middleware"]
        command += ["--otlp-traces-endpoint", f"{receiver.endpoint}/v1/traces", *self.arguments]
        environ = {
            **engine_environ(self.python, receiver, self.scratch),
            "OTEL_LIFECYCLE_VLLM": "on",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            **self.environ,
        }
        return EngineServer(command, port=port, ready="/health", environ=environ, log=self.scratch / "server.log")


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run the lane; EngineFailed if the server does not start."""
    model = scratch / "model"
    make_model(python, model)
    steps = tells_steps(version)
    arguments = ("--enable-logging-iteration-details",) if steps else ()
    with HttpReceiver() as receiver:
        server = VllmServer(python=python, model=model, scratch=scratch, arguments=arguments).start(receiver)
        with server:
            before = engine_metrics.scrape(server.base)
            target = Target(base=server.base, model="tiny", extra={"temperature": 0.0})
            load = shared.run_load(server, target, mix(REQUESTS), scratch)
            after = engine_metrics.scrape(server.base)
        wait_until_exported(receiver, lambda: REQUESTS)
        ours = Exported(receiver)
        outcome = _outcome(version, load, ours, receiver.spans(ENGINE_SPAN), before, after)
    if steps:
        outcome.figures += _steps(scratch / "server.log", ours)
    else:
        outcome.notes.append("this version tells nobody how long an iteration took")
    restored(outcome, python, "vllm", "vllm.v1.engine.output_processor", *_vllm_adapter.FRONTENDS)
    return outcome


def tells_steps(version: str) -> bool:
    """Whether a version has figures of its iterations."""
    return tuple(map(int, version.split(".")[:2])) >= TELLS_STEPS_SINCE


def make_model(python: Path, folder: Path) -> None:
    """Write the tiny model, in the engine's environment."""
    script = Path(__file__).parents[1] / "models" / "tiny_hf.py"
    subprocess.run([str(python), str(script), str(folder)], check=True, capture_output=True)


def _outcome(
    version: str,
    load: shared.Run,
    ours: Exported,
    spans: Sequence[Span],
    before: dict[str, float],
    after: dict[str, float],
) -> Outcome:
    outcome = Outcome(engine="vLLM", version=version)

    def grown(name: str) -> float | None:
        return engine_metrics.grown(after, before, name)

    itl = "inference.inter_token_latency"
    outcome.figures += [
        Figure(
            name="output tokens",
            engine=grown("vllm:generation_tokens_total"),
            ours=ours.total("inference.tokens", {"inference.token.direction": "output"}),
        ),
        Figure(name="input tokens", engine=grown("vllm:prompt_tokens_total"), ours=_prefilled(ours)),
        Figure(name="ITL, samples", engine=grown("vllm:inter_token_latency_seconds_count"), ours=ours.total(itl)),
        Figure(
            name="ITL, sum",
            engine=grown("vllm:inter_token_latency_seconds_sum"),
            ours=ours.seconds(itl),
            within=1e-3,
            unit="s",
        ),
        Figure(name="preemptions", engine=grown("vllm:num_preemptions_total"), ours=_preemptions(ours)),
    ]
    outcome.figures += _per_request(outcome, spans, ours)
    shared.soundness(outcome, ours, load.told)
    shared.clients(outcome, load.told, ours.by_trace())
    shared.loads(outcome, load.told)
    outcome.floor("preemptions", int(grown("vllm:num_preemptions_total") or 0), MINIMUM_PREEMPTIONS)
    shared.cost(outcome, load)
    return outcome


def _steps(log: Path, ours: Exported) -> list[Figure]:
    """Compare the histograms of steps with the line that vLLM logs for each iteration."""
    told = [(int(a) + int(b), float(ms) / 1e3) for a, b, ms in ITERATION.findall(log.read_text(errors="replace"))]
    duration, requests = "inference.step.duration", "inference.step.requests"
    return [
        Figure(name="iterations of the engine, steps", engine=len(told) or None, ours=ours.total(duration)),
        Figure(
            name="time of all iterations",
            engine=sum(seconds for _, seconds in told),
            ours=ours.seconds(duration),
            within=LOGGED_TO * len(told),
            unit="s",
        ),
        Figure(name="requests in all iterations", engine=sum(count for count, _ in told), ours=ours.seconds(requests)),
    ]


def _prefilled(ours: Exported) -> float:
    """The input tokens of the requests that reached their first token, once for each choice as vLLM counts them."""
    total = 0.0
    for span in ours.requests:
        attributes = span["attributes"]
        if "inference.ttft" in attributes:
            choices = len(attributes.get("gen_ai.response.finish_reasons", ())) or 1
            total += float(attributes.get("gen_ai.usage.input_tokens", 0)) * choices
    return total


def _preemptions(ours: Exported) -> float:
    choices = sum(event["name"] == "choice_preempted" for span in ours.requests for event in span["events"])
    return ours.total("inference.preemptions") + choices


def _per_request(outcome: Outcome, spans: Sequence[Span], ours: Exported) -> list[Figure]:
    """Compare each request that vLLM gives a span of its own: single choices that completed."""
    known = ours.by_id()
    names = {
        "prefill": ("gen_ai.latency.time_in_model_prefill", "inference.prefill"),
        "decode, first to last token": ("gen_ai.latency.time_in_model_decode", "inference.token_span"),
    }
    joined = [
        (span["attributes"], known[name]["attributes"])
        for span in spans
        if (name := str(span["attributes"]["gen_ai.request.id"])) in known
        and len(known[name]["attributes"].get("gen_ai.response.finish_reasons", ())) == 1
    ]
    outcome.floor("requests joined by id", len(joined), MINIMUM_JOINED)
    figures = []
    for label, (theirs, mine) in names.items():
        pairs = [(float(a[theirs]), float(b[mine])) for a, b in joined if theirs in a and mine in b]
        figures.append(_worst(f"{label}, worst request", pairs))
    pairs = [
        (float(a["gen_ai.latency.time_in_model_decode"]) / (n - 1), float(b["inference.tpot"]))
        for a, b in joined
        if (n := int(a["gen_ai.usage.completion_tokens"])) > 1 and "inference.tpot" in b
    ]
    figures.append(_worst("TPOT, worst request", pairs))
    return figures


def _worst(name: str, pairs: list[tuple[float, float]]) -> Figure:
    engine, ours = worst(pairs) or (None, None)
    return Figure(name=name, engine=engine, ours=ours, within=1e-4, unit="s", samples=len(pairs))
