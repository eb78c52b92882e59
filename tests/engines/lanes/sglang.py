"""SGLang's server with its plug-in: our figures beside its ``/metrics``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.engines import engine_metrics
from tests.engines.figures import MINIMUM_PREEMPTIONS, Figure, Outcome
from tests.engines.lanes import shared
from tests.engines.lanes.vllm import make_model
from tests.engines.load import Ask, Target, mix
from tests.engines.ours import Exported, wait_until_exported
from tests.engines.restored import restored
from tests.engines.serving import EngineServer, engine_environ, free_port
from tests.support.otlp_receiver import HttpReceiver
from tests.support.plain import Span

REQUESTS: Final = 224
# 1,024 tokens of cache for four requests: the scheduler has to retract some.
OPTIONS: Final = (
    "--device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-cuda-graph --disable-overlap-schedule --disable-radix-cache --max-running-requests 4 "
    "--max-total-tokens 1024 --context-length 1024 --skip-server-warmup --enable-metrics --served-model-name tiny"
)
SAMPLES: Final = (
    "SGLang goes on with samples of ITL after an abort, and takes one across a retraction, whose time it does not "
    "tell: so the tokens after an abort are added, and as many samples as retractions may differ"
)
STAMPS: Final = (
    "SGLang stamps a token when it comes to the request, we when the scheduler's output arrives: sums drift apart "
    "with the number of requests, so means are compared"
)


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run the lane; EngineFailed if the server does not start."""
    model = scratch / "model"
    make_model(python, model)
    port = free_port()
    command = [str(python), "-m", "sglang.launch_server", "--model-path", str(model), *OPTIONS.split(" ")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with HttpReceiver() as receiver:
        environ = {**engine_environ(python, receiver, scratch), "OTEL_LIFECYCLE_SGLANG": "on"}
        server = EngineServer(command, port=port, ready="/model_info", environ=environ, log=scratch / "server.log")
        with server:
            target = Target(base=server.base, model="tiny")
            before = engine_metrics.scrape(server.base)
            load = shared.run_load(server, target, asks(single=True), scratch)
            between = engine_metrics.scrape(server.base)
            several = shared.run_load(server, target, asks(single=False), scratch)
            after = engine_metrics.scrape(server.base)
        wait_until_exported(receiver, lambda: REQUESTS)
        ttft = engine_metrics.grown(between, before, "sglang:time_to_first_token_seconds_sum")
        outcome = _outcome(version, load.and_then(several), Exported(receiver), before, after, ttft)
    restored(outcome, python, "sglang", "sglang.srt.managers.tokenizer_manager")
    return outcome


def asks(*, single: bool) -> list[Ask]:
    """Return the load: of one choice each, or of two.  Whole answers are short, so that each comes in one piece."""
    return [replace(ask, id_in_body=single) for ask in mix(REQUESTS, leave=600) if (ask.kind != "choices") is single]


def _outcome(
    version: str,
    load: shared.Run,
    ours: Exported,
    before: dict[str, float],
    after: dict[str, float],
    ttft: float | None,
) -> Outcome:
    outcome = Outcome(engine="SGLang", version=version)

    def grown(name: str) -> float | None:
        return engine_metrics.grown(after, before, f"sglang:{name}")

    itl, direction = "inference.inter_token_latency", "inference.token.direction"
    tokens = sum(ours.total("inference.tokens", {direction: kind}) for kind in ("output", "wasted"))
    outcome.figures += [
        Figure(name="output tokens, with those after an abort", engine=grown("generation_tokens_total"), ours=tokens),
        # SGLang goes on with its samples after an abort, and across a retraction, whose time nobody knows.
        Figure(
            name="ITL, samples, with those after an abort",
            engine=grown("inter_token_latency_seconds_count"),
            ours=ours.total(itl) + ours.total("inference.tokens", {direction: "wasted"}),
            within=_preemptions(ours),
        ),
        # Both stamp at receipt: we when an output arrives, SGLang when it comes to the request, so sums drift apart.
        Figure(
            name="ITL, mean",
            engine=_mean(grown("inter_token_latency_seconds_sum"), grown("inter_token_latency_seconds_count")),
            ours=_mean(ours.seconds(itl), ours.total(itl)),
            within=1e-3,
            unit="s",
        ),
        Figure(
            # Of two choices SGLang takes three TTFT: one each, and one of the request that fills the cache for them.
            name="TTFT of single choices, mean",
            engine=_mean(ttft, len(_first_tokens(load, ours))),
            ours=_mean(sum(_first_tokens(load, ours)), len(_first_tokens(load, ours))),
            within=1e-3,
            unit="s",
        ),
        Figure(name="retractions", engine=grown("num_retracted_requests_total"), ours=_preemptions(ours)),
    ]
    outcome.notes += [SAMPLES, STAMPS]
    shared.soundness(outcome, ours, load.told)
    shared.clients(outcome, load.told, _by_trace(load, ours))
    shared.loads(outcome, load.told)
    outcome.floor("retractions", int(grown("num_retracted_requests_total") or 0), MINIMUM_PREEMPTIONS)
    shared.cost(outcome, load)
    return outcome


def _mean(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


def _first_tokens(load: shared.Run, ours: Exported) -> list[float]:
    """Our TTFT of each request with one choice."""
    spans = _by_trace(load, ours).values()
    return [float(span["attributes"]["inference.ttft"]) for span in spans if "inference.ttft" in span["attributes"]]


def _preemptions(ours: Exported) -> float:
    choices = sum(event["name"] == "choice_preempted" for span in ours.requests for event in span["events"])
    return ours.total("inference.preemptions") + choices


def _by_trace(load: shared.Run, ours: Exported) -> dict[str, Span]:
    """Join by the request id that the client sent in the body."""
    known = ours.by_id()
    return {one.ask.trace_id: known[one.ask.name] for one in load.told if one.ask.name in known}
