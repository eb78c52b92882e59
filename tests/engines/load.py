"""A load of mixed requests on an OpenAI-compatible server, and what its clients measured.

The mix is fixed by a seed: streams and whole answers, prompts and outputs of many lengths, two choices (n = 2), stop
strings, prompts that are refused, and clients that close their connection in the middle of a stream or while they wait.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

Kind = Literal["stream", "whole", "choices", "stop", "refused", "left", "left_waiting"]

TEXT: Final = "the quick brown fox jumps over a lazy dog while requests wait in the queue"
WORDS: Final = TEXT.split(" ")
SPECIAL: Final[tuple[Kind, ...]] = (
    "left",
    "choices",
    "stop",
    "refused",
    "left_waiting",
    "choices",
    "left",
    "whole",
)
CROWD: Final = 20
CROWD_TOKENS: Final = 300
_LEAVES_AFTER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to send.

    ``words``: length of the prompt.  ``path``: the route, below the server's base URL.  ``streamable``: False for an
    answer that the server gives as a whole only.  ``id_in_body``: the request's name also goes into the body, as
    ``rid``.
    """

    number: int
    kind: Kind
    words: int
    tokens: int
    path: str = "/v1/completions"
    streamable: bool = True
    id_in_body: bool = False

    @property
    def name(self) -> str:
        """What the client calls the request, in a header and in its trace."""
        return f"load-{self.number}"

    @property
    def streams(self) -> bool:
        """Whether the answer is streamed."""
        streamed = self.kind in ("stream", "left", "left_waiting") or (self.kind == "choices" and self.number % 2 == 0)
        return streamed and self.streamable

    @property
    def trace_id(self) -> str:
        """The trace the client sends, by which spans of the server are joined to it."""
        return f"{0xC0FFEE:016x}{self.number + 1:016x}"


@dataclass(slots=True, kw_only=True)
class Told:
    """What a client saw of one request; times in seconds after it began to send."""

    ask: Ask
    status: int = 0
    ttft: float | None = None
    e2e: float | None = None
    left: bool = False
    tokens: int | None = None
    id: str | None = None
    finish_reasons: list[str] = field(default_factory=list)


def mix(
    count: int,
    *,
    seed: int = 7,
    prompts: tuple[int, int] = (8, 120),
    tokens: tuple[int, int] = (4, 40),
    leave: int = 400,
) -> list[Ask]:
    """Return a load of ``count`` requests: of each 48 at least 3 leave, 1 is refused and 2 ask for two choices.

    ``prompts``, ``tokens``: the least and the most.  ``leave``: the tokens of those whose clients leave, so many that
    the engine cannot be done before it notices.  In the middle there is a crowd of long answers, which no small cache
    can hold at once.
    """
    draw = random.Random(seed)
    special: dict[int, Kind] = {}
    every: Iterator[Kind] = itertools.cycle(SPECIAL)
    for number in range(5, count, 6):
        special[number] = next(every)
    asks = []
    for number in range(count):
        kind = special.get(number) or ("whole" if number % 3 == 0 else "stream")
        words, limit = draw.randint(*prompts), leave if kind.startswith("left") else draw.randint(*tokens)
        if kind == "stream" and count // 2 <= number < count // 2 + CROWD:
            words, limit = prompts[1], CROWD_TOKENS
        path = "/v1/chat/completions" if number % 4 == 1 else "/v1/completions"
        asks.append(Ask(number=number, kind=kind, words=words, tokens=limit, path=path))
    return asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server.  ``refused_words``: a prompt so long that it is refused.  ``extra``: sent in every body."""

    base: str
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    refused_words: int = 5000
    stop: Sequence[str] = ("e",)

    def body(self, ask: Ask) -> dict[str, Any]:
        """Return the body of a request."""
        words = self.refused_words if ask.kind == "refused" else ask.words
        prompt = " ".join(WORDS[(ask.number + i) % len(WORDS)] for i in range(words))
        body: dict[str, Any] = {"model": self.model, "max_tokens": ask.tokens, "stream": ask.streams, **self.extra}
        if ask.path.endswith("chat/completions"):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if ask.streams:
            body["stream_options"] = {"include_usage": True}
        if ask.kind == "choices":
            # Engines refuse several choices of a greedy answer.
            body |= {"n": 2, "temperature": 1.0}
        elif ask.id_in_body:
            # One id cannot name two choices.
            body["rid"] = ask.name
        if ask.kind == "stop":
            body["stop"] = list(self.stop)
        return body


async def drive(target: Target, asks: Sequence[Ask], *, at_once: int = 12) -> list[Told]:
    """Send the requests, at most ``at_once`` at a time, and return what their clients saw, in the same order."""
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once + 4, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=target.base, timeout=300, limits=limits) as client:

        async def one(ask: Ask) -> Told:
            async with gate:
                return await _send(client, target, ask)

        return list(await asyncio.gather(*(one(ask) for ask in asks)))


async def _send(client: httpx.AsyncClient, target: Target, ask: Ask) -> Told:
    told = Told(ask=ask)
    headers = {"x-request-id": ask.name, "traceparent": f"00-{ask.trace_id}-{ask.number + 1:016x}-01"}
    started = time.perf_counter()
    if ask.kind == "left_waiting":
        await _leave_waiting(client, target.body(ask), headers, told)
        return told
    async with client.stream("POST", ask.path, json=target.body(ask), headers=headers) as response:
        told.status = response.status_code
        if ask.streams and response.is_success:
            await _read_stream(response, told, started)
        else:
            answer = json.loads(await response.aread())
            if response.is_success:
                _note(answer, told)
    told.e2e = None if told.left else time.perf_counter() - started
    return told


async def _leave_waiting(client: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str], told: Told) -> None:
    """Close the connection before the answer begins: the request is in the queue, or in its prefill."""

    async def wait() -> None:
        async with client.stream("POST", told.ask.path, json=body, headers=headers) as response:
            await response.aread()

    try:
        await asyncio.wait_for(wait(), 0.25)
    except asyncio.TimeoutError:
        told.left = True


async def _read_stream(response: httpx.Response, told: Told, started: float) -> None:
    frames = 0
    async for line in response.aiter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        frame = json.loads(line[6:])
        if _has_text(frame):
            frames += 1
            told.ttft = told.ttft if told.ttft is not None else time.perf_counter() - started
        _note(frame, told)
        if told.ask.kind == "left" and frames >= _LEAVES_AFTER:
            told.left = True
            return


def _has_text(frame: Mapping[str, Any]) -> bool:
    return any(
        choice.get("text") or (choice.get("delta") or {}).get("content") for choice in frame.get("choices") or ()
    )


def _note(answer: Mapping[str, Any], told: Told) -> None:
    told.id = answer.get("id") or told.id
    usage = answer.get("usage")
    if usage:
        told.tokens = usage.get("completion_tokens")
    told.finish_reasons += [c["finish_reason"] for c in answer.get("choices") or () if c.get("finish_reason")]
