"""C110: what ``compat="vllm"`` writes is what vLLM writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.telemetry import Telemetry

START_NS = 10**18
SECOND_NS = 10**9


def test_c110_values_are_those_of_vllm(make_telemetry: Callable[..., Telemetry]) -> None:
    """Prefill from scheduled to first token, decode and inference to the last token, and the id under its name."""
    telemetry = make_telemetry(compat="vllm")
    request = telemetry.request(request_id="cmpl-1", arrived_at_ns=START_NS)
    request.admit(at_ns=START_NS + 1 * SECOND_NS)
    request.input_ready(at_ns=START_NS + 2 * SECOND_NS)
    request.first_token(at_ns=START_NS + 5 * SECOND_NS)
    request.token(at_ns=START_NS + 7 * SECOND_NS)
    request.complete(at_ns=START_NS + 9 * SECOND_NS)
    (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    written = {key: value for key, value in span["attributes"].items() if key.startswith("gen_ai.latency.")}
    assert written == {
        "gen_ai.latency.time_in_queue": pytest.approx(1.0),
        "gen_ai.latency.time_to_first_token": pytest.approx(5.0),
        "gen_ai.latency.e2e": pytest.approx(9.0),
        "gen_ai.latency.time_in_model_prefill": pytest.approx(4.0),
        "gen_ai.latency.time_in_model_decode": pytest.approx(2.0),
        "gen_ai.latency.time_in_model_inference": pytest.approx(6.0),
    }
    assert span["attributes"]["gen_ai.request.id"] == "cmpl-1"
