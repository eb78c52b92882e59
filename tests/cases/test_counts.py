"""Cases of how many tokens there were: chunks of unknown size, and figures that come with the last frame."""

from __future__ import annotations

from typing import Any

from tests.support.telemetry import Telemetry

from .live import EPOCH, near
from .notation import NS, to_ns


def at(seconds: str) -> dict[str, int]:
    """Return the time as an argument of a mark."""
    return {"at_ns": EPOCH + to_ns(seconds)}


def prefilled(telemetry: Telemetry) -> Any:
    """Return a request that is in prefill since 0."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.admit(**at("0"))
    request.input_ready(**at("0"))
    return request


def figures(telemetry: Telemetry) -> dict[str, Any]:
    """Return what the span says of tokens and their pace."""
    attributes = telemetry.span("chat tiny")["attributes"]
    names = ("inference.streamed_tokens", "gen_ai.usage.output_tokens", "inference.tpot", "inference.itl.max")
    return {name: attributes[name] for name in names if name in attributes}


def itl_samples(telemetry: Telemetry) -> int:
    """Return how many gaps the inter-token histogram holds."""
    return sum(point["count"] or 0 for point in telemetry.points("inference.inter_token_latency"))


def test_c11_chunk_of_unknown_size(telemetry: Telemetry) -> None:
    """It leaves count and TPOT absent, and is beside no inter-token gap; TTFT stands."""
    request = prefilled(telemetry)
    request.first_token(**at("1.0"))
    request.token(None, **at("1.3"))
    request.token(**at("1.6"))
    request.complete(**at("1.6"))
    assert (figures(telemetry), itl_samples(telemetry)) == ({}, 0)
    assert telemetry.point("inference.time_to_first_token")["sum"] == 1.0
    assert telemetry.points("inference.time_per_output_token") == []
    assert telemetry.points("inference.tokens") == []


def test_c11_usage_figure_gives_the_count(telemetry: Telemetry) -> None:
    """TPOT is then over the tokens of the usage figure; not one gap of such a request is a sample."""
    request = prefilled(telemetry)
    request.first_token(**at("1.0"))
    request.token(None, **at("1.3"))
    request.token(**at("1.6"))
    request.token(**at("1.8"))
    request.usage(output_tokens=9)
    request.complete(**at("1.8"))
    assert figures(telemetry) == {
        "inference.streamed_tokens": 9,
        "gen_ai.usage.output_tokens": 9,
        "inference.tpot": near(0.1),
    }
    assert itl_samples(telemetry) == 0


def test_c11_usage_figure_over_several_choices(telemetry: Telemetry) -> None:
    """Two choices have one gap less than one choice of as many tokens: n less the number of choices."""
    request = prefilled(telemetry)
    request.first_token(None, 0, **at("1.0"))
    request.token(None, 1, **at("1.0"))
    request.token(None, 0, **at("1.6"))
    request.token(None, 1, **at("1.8"))
    request.usage(output_tokens=16)
    request.complete(**at("1.8"))
    assert figures(telemetry)["inference.tpot"] == near((0.6 + 0.8) / 14)


def test_c12_usage_figure_that_disagrees_with_the_marks(telemetry: Telemetry) -> None:
    """Where every size was known each keeps its own, and the marks' count is TPOT's n."""
    request = prefilled(telemetry)
    request.first_token(4, **at("0.5"))
    request.token(4, **at("0.8"))
    request.usage(output_tokens=9)
    request.complete(**at("0.8"))
    assert figures(telemetry) == {
        "inference.streamed_tokens": 8,
        "gen_ai.usage.output_tokens": 9,
        "inference.tpot": near(0.3 / 7),
    }


def test_c01_frame_without_a_token_is_nothing_in_any_state(telemetry: Telemetry) -> None:
    """Role-only, keep-alive, usage and closing frames: no token, no violation, no move, even after the end."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.token(0, **at("0"))
    request.admit(**at("0"))
    request.token(0, **at("0.1"))
    request.input_ready(**at("0.2"))
    request.token(0, **at("0.3"))
    request.token(**at("0.5"))
    request.token(0, **at("0.6"))
    request.complete(**at("0.7"))
    request.token(0, **at("0.8"))
    attributes = telemetry.span("chat tiny")["attributes"]
    assert {name: attributes[f"inference.{name}"] for name in ("ttft", "streamed_tokens", "e2e", "legal")} == {
        "ttft": 0.5,
        "streamed_tokens": 1,
        "e2e": 0.7,
        "legal": True,
    }
    assert telemetry.points("inference.transition.violations") == []


def test_c63_endless_stream_loses_no_gap(telemetry: Telemetry) -> None:
    """Thirty thousand tokens with collections in between, as of a stream that does not end: every gap is one sample."""
    request = prefilled(telemetry)
    request.first_token(**at("1"))
    count, pause = 30_000, 5 * NS
    for token in range(1, count):
        request.token(at_ns=EPOCH + NS + token * NS // 100 + (pause if token > 100 else 0))
        if token % 10_000 == 0:
            telemetry.points()
    request.complete(at_ns=EPOCH + NS + (count - 1) * NS // 100 + pause)
    point = telemetry.point("inference.inter_token_latency")
    assert point["buckets"] is not None
    filled = [place for place, number in enumerate(point["buckets"]) if number]
    assert (point["count"], point["sum"], point["max"], len(filled)) == (count - 1, near(304.99), 5.01, 2)
    assert figures(telemetry) == {
        "inference.streamed_tokens": count,
        "gen_ai.usage.output_tokens": count,
        "inference.tpot": near(304.99 / (count - 1)),
        "inference.itl.max": 5.01,
    }


def test_c43_many_preemptions(telemetry: Telemetry) -> None:
    """Of forty interruptions 32 spans and 64 events are kept, what is beyond is counted, and the totals are exact."""
    request = prefilled(telemetry)
    request.first_token(**at("1"))
    for interruption in range(40):
        request.preempt(at_ns=EPOCH + (2 + interruption) * NS)
        request.resume(at_ns=EPOCH + (2 + interruption) * NS + NS // 10)
    request.complete(**at("50"))
    attributes = telemetry.span("chat tiny")["attributes"]
    names = ("preempted", "preemptions", "events.dropped", "decode_time", "share.decode")
    assert {name: attributes[f"inference.{name}"] for name in names} == {
        "preempted": near(4.0),
        "preemptions": 40,
        "events.dropped": 16,
        "decode_time": 49.0,
        "share.decode": near(45 / 46),
    }
    kept = [event["name"] for event in telemetry.span("chat tiny")["events"]]
    assert (len(telemetry.spans("preempted")), kept.count("preempt") + kept.count("resume")) == (32, 64)
    assert [name for name in kept if name not in ("preempt", "resume")] == [
        "arrive",
        "admit",
        "input_ready",
        "first_token",
        "complete",
    ]
    (preemptions,) = telemetry.points("inference.preemptions")
    assert (preemptions["attributes"]["inference.stage"], preemptions["value"]) == ("decode", 40)
