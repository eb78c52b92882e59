"""What is measured around llama.cpp, held against what llama.cpp says of the same request.

How far they may differ, and why.  llama.cpp's ``prompt_ms`` begins when a slot takes the request up and ends when the
first token is sampled.  Our prefill lies around it: before it is the hand-over to the engine, after it the token's way
back to the event loop.  So prefill is never shorter.  For a request that is alone it is longer by two hand-overs, some
milliseconds on a machine with time to spare: the bound is a tenth of prefills of about a second.  A request that comes
while others run waits, inside its slot, for the step of the engine that is under way: at most ``BATCH`` tokens
of other inputs, so the bound is that share of its own input.

``predicted_ms`` runs from the first token to the last, as our token span does.  Both ends take the same way back, so
the difference is only how evenly, and may have either sign: a tenth.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

import pytest

from examples import load, model
from examples.engine import BATCH
from otel_lifecycle import semconv

if TYPE_CHECKING:
    from tests.support.telemetry import Telemetry

pytestmark = pytest.mark.demo

SPAN = f"chat {model.NAME}"
MILLISECOND = 0.001
ROUNDING = 0.5 * MILLISECOND
"""Two clocks and three digits: no more."""


def asks() -> tuple[load.Ask, ...]:
    """Inputs of some hundred tokens and answers of some tens, all different, so that no cache shortens a prefill."""
    chapters = ("lambda", "try", "import", "class", "with", "for")
    return tuple(load.Ask(label=name, prompt=load.chapter(name, 1200), max_tokens=48) for name in chapters)


@pytest.mark.parametrize("together", [False, True], ids=["one at a time", "two slots, six clients"])
def test_prefill_and_decode_agree_with_llama_cpp(address: str, telemetry: Telemetry, together: bool) -> None:
    """Alone, and when prefills and decodes of several requests run in one batch."""
    (answers,) = asyncio.run(load.play(address, [load.Act(title="", asks=asks(), together=together)]))
    spans = {span["attributes"].get(semconv.REQUEST_ID): span["attributes"] for span in telemetry.spans(SPAN)}
    pairs = [(spans[answer.request_id], answer.timings) for answer in answers]
    prefill = [(span[semconv.PREFILL], timings["prompt_ms"] * MILLISECOND) for span, timings in pairs]
    decode = [(span[semconv.TOKEN_SPAN], timings["predicted_ms"] * MILLISECOND) for span, timings in pairs]
    step = BATCH / statistics.mean(timings["prompt_n"] for _, timings in pairs) if together else 0.0
    assert all(ours > theirs - ROUNDING for ours, theirs in prefill)
    assert ratio(prefill) < 1.1 + step
    assert ratio(decode) == pytest.approx(1, rel=0.1)


def test_token_counts_agree_with_llama_cpp(address: str, telemetry: Telemetry) -> None:
    """Every token of input and output is counted once, and what came from the cache is said."""
    ask = load.Ask(label="twice", prompt="Name three colours of the rainbow.", max_tokens=24)
    (answers,) = asyncio.run(load.play(address, [load.Act(title="", asks=(ask, ask), together=False)]))
    spans = [span["attributes"] for span in telemetry.spans(SPAN)]
    found = [
        (
            span[semconv.GEN_AI_USAGE_INPUT_TOKENS],
            span[semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS],
            span[semconv.GEN_AI_USAGE_OUTPUT_TOKENS],
            span[semconv.STREAMED_TOKENS],
            span[semconv.GEN_AI_RESPONSE_FINISH_REASONS],
        )
        for span in spans
    ]
    told = [answer.timings for answer in answers]
    assert found == [
        (each["prompt_n"] + each["cache_n"], each["cache_n"], 24, answer.tokens, ["length"])
        for each, answer in zip(told, answers, strict=True)
    ]
    assert (told[0]["cache_n"], told[1]["cache_n"] > 0) == (0, True)


def ratio(pairs: list[tuple[float, float]]) -> float:
    """Return what was measured over what llama.cpp says, all requests together."""
    return sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)
