"""A mixed load for the demo: short and long inputs, more clients than slots, and four clients with bad luck.

The clients are plain ``httpx`` over HTTP.  Nothing here waits to make a stage longer: where a request spends its time
is up to its input, its answer and who else is there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Any, Final

import httpx

from otel_lifecycle.openai import read_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one client asks for, and what it does: after ``leaves_after`` tokens it hangs up."""

    label: str
    prompt: str
    max_tokens: int
    timeout: float | None = None
    leaves_after: int | None = None
    grammar: str | None = None
    ignore_eos: bool = True

    def body(self) -> dict[str, Any]:
        """Return the request as it is sent."""
        options = {"timeout": self.timeout, "grammar": self.grammar, "ignore_eos": self.ignore_eos}
        return {
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            **{name: value for name, value in options.items() if value is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client saw: the tokens that reached it, how it ended, and llama.cpp's own ``timings`` (milliseconds)."""

    request_id: str
    ask: Ask
    tokens: int
    end: str
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Requests sent together, or one after the other."""

    title: str
    asks: tuple[Ask, ...]
    together: bool = True


def chapter(topic: str, characters: int) -> str:
    """Take a text of some length that every Python has at hand: its own language reference."""
    return f"Say in one sentence what this text is about:\n\n{topics[topic][:characters]}"


def acts() -> tuple[Act, ...]:
    """Return the demo's load."""
    long_text = chapter("with", 3200)
    return (
        Act(
            title="Calm: one request at a time",
            together=False,
            asks=(
                Ask(label="short question", prompt="Name three colours of the rainbow.", max_tokens=64),
                Ask(label="long text", prompt=long_text, max_tokens=12),
                Ask(label="same text again", prompt=long_text, max_tokens=12),
                Ask(label="long text, answer", prompt=chapter("lambda", 2000), max_tokens=96),
            ),
        ),
        Act(
            title="Rush: eight requests at once for two slots",
            asks=(
                *(
                    Ask(label="short question", prompt=f"What is {number} plus {number}?", max_tokens=40)
                    for number in (12, 34, 56, 78, 90)
                ),
                Ask(label="long text", prompt=chapter("try", 2000), max_tokens=12),
                Ask(label="long text", prompt=chapter("import", 2000), max_tokens=12),
                Ask(label="one word", prompt="Is water wet? Yes or no.", max_tokens=1),
            ),
        ),
        Act(
            title="Trouble: four of six have bad luck",
            asks=(
                Ask(label="client leaves", prompt="Tell me a long story.", max_tokens=400, leaves_after=16),
                Ask(label="deadline of 2 s", prompt="Count to a thousand.", max_tokens=1500, timeout=2.0),
                Ask(label="input too long", prompt=chapter("specialnames", 12_000), max_tokens=16),
                Ask(label="broken grammar", prompt="Say yes or no.", max_tokens=8, grammar='answer ::= "yes" | "no"'),
                Ask(label="short question", prompt="What is the capital of France?", max_tokens=32),
                Ask(label="long text", prompt=chapter("class", 2000), max_tokens=12),
            ),
        ),
    )


LEFT: Final = "left"
DONE: Final = "done"


async def send(
    client: httpx.AsyncClient, ask: Ask, request_id: str, counted: Callable[[int], None] = lambda _: None
) -> Answer:
    """Ask once, and read the answer as far as this client cares; ``counted`` is told the tokens so far."""
    tokens = 0
    end = "connection lost"
    timings: dict[str, float] = {}
    async with client.stream(
        "POST", "/v1/chat/completions", json=ask.body(), headers={"x-request-id": request_id}
    ) as response:
        response.raise_for_status()
        if ask.leaves_after == 0:
            return Answer(request_id=request_id, ask=ask, tokens=0, end=LEFT)
        async for line in response.aiter_lines():
            frame = read_frame(line)
            tokens += frame.count or 0
            counted(tokens)
            if frame.error is not None:
                end = frame.error
            elif frame.done:
                end = DONE if end == "connection lost" else end
            # llama.cpp's own field, in its last frame.  read_frame() takes only the token counts from it.
            elif '"timings"' in line:
                timings = json.loads(line.removeprefix("data:"))["timings"]
            if ask.leaves_after is not None and tokens >= ask.leaves_after:
                # Leaving the block closes the connection, which is how a real client hangs up.
                end = LEFT
                break
    return Answer(request_id=request_id, ask=ask, tokens=tokens, end=end, timings=timings)


async def play(
    base_url: str, acts: Sequence[Act], answered: Callable[[Answer], None] = lambda _: None
) -> list[list[Answer]]:
    """Send all acts, one after the other, and return the answers in the order they were asked for."""
    # No limit: a client that waits for a connection would be a queue that the server cannot see.
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base_url, timeout=None, limits=limits, trust_env=False) as client:
        return [await _play(client, number, act, answered) for number, act in enumerate(acts, start=1)]


async def _play(client: httpx.AsyncClient, number: int, act: Act, answered: Callable[[Answer], None]) -> list[Answer]:
    async def one(place: int, ask: Ask) -> Answer:
        answer = await send(client, ask, f"demo-{number}-{place}")
        answered(answer)
        return answer

    if act.together:
        return list(await asyncio.gather(*(one(place, ask) for place, ask in enumerate(act.asks, start=1))))
    return [await one(place, ask) for place, ask in enumerate(act.asks, start=1)]
