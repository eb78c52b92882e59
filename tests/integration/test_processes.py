"""C71: forks. A child counts for itself, inherits nothing, and says so where it cannot."""

from __future__ import annotations

import signal

import pytest

from tests.faults.programs.fork import CHILDREN
from tests.faults.running import by_instance, run, total
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver, OtlpReceiver

ADVICE = "Set the providers up after the fork"


def request_spans(receiver: OtlpReceiver, model: str) -> list[str]:
    """Return the ids of the request spans of a model that arrived."""
    return [span["span_id"] for span in receiver.spans(f"chat {model}")]


@pytest.mark.parametrize(
    ("transport", "how"),
    [
        ("http", "configure"),
        ("http", "multiprocessing"),
        ("grpc", "configure"),
        pytest.param("grpc", "multiprocessing", marks=pytest.mark.slow),
    ],
)
def test_c71_child_of_a_configured_process_counts_from_zero(
    request: pytest.FixtureRequest, transport: str, how: str
) -> None:
    """Five requests in the parent, one in each of two children: seven in all, under three instance ids."""
    otlp: OtlpReceiver = request.getfixturevalue(f"otlp_{transport}")
    done = run(otlp, "fork", how)
    # grpcio notes, at some forks, that it leaves its own threads alone.
    complaints = [line for line in done.stderr.splitlines() if line.strip() and "fork_posix.cc" not in line]
    assert (done.returncode, done.stdout, complaints) == (0, "done\n", [])
    assert total(otlp, gen_ai__request__model="tiny") == 5 + CHILDREN
    # The parent's sixth is the one that was open across the forks.
    assert sorted(by_instance(otlp).values()) == [1, 1, 6]
    assert len(set(request_spans(otlp, "tiny"))) == len(request_spans(otlp, "tiny")) == 5 + CHILDREN


def test_c71_request_open_across_the_fork_is_the_parents(otlp_http: OtlpReceiver) -> None:
    """It is exported once and counted once, whatever the children do to their copy of the handle; none stays active."""
    run(otlp_http, "fork", "configure")
    (span,) = otlp_http.spans("chat across")
    assert (span["attributes"]["inference.outcome"], span["attributes"]["inference.legal"]) == ("completed", True)
    assert total(otlp_http, gen_ai__request__model="across") == 1
    assert set(by_instance(otlp_http, "inference.active_requests").values()) <= {0}


def test_c71_own_providers_are_warned_about_in_each_child(otlp_http: OtlpReceiver) -> None:
    """An app that sets its own providers up before the fork is told, once in each child, to do it afterwards."""
    done = run(otlp_http, "fork", "own")
    assert (done.returncode, done.stderr.count(ADVICE)) == (0, CHILDREN)
    assert len(request_spans(otlp_http, "across")) == 1


def test_c71_child_that_serves_nothing_says_nothing(otlp_http: OtlpReceiver) -> None:
    """A fork for another purpose is not a reason to warn, and exports nothing."""
    done = run(otlp_http, "fork", "unused")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert list(by_instance(otlp_http).values()) == [6]


def test_fork_from_a_busy_parent(otlp_http: HttpReceiver) -> None:
    """Ten forks while four threads serve: no child finds a lock held by nobody, and each one's request arrives."""
    done = run(otlp_http, "fork_busy", 10)
    assert (done.returncode, done.stdout.split()) == (0, ["0"] * 10)
    assert total(otlp_http, gen_ai__request__model="child") == 10


@pytest.mark.slow
def test_fork_from_a_busy_parent_over_grpc(otlp_grpc: GrpcReceiver) -> None:
    """A child of a process that was exporting may get no answer from grpcio, or be aborted by it; none is stuck."""
    done = run(otlp_grpc, "fork_busy", 10, OTEL_LIFECYCLE_SHUTDOWN_TIMEOUT=3)
    endings = done.stdout.split()
    assert (done.returncode, len(endings), set(endings) - {"0", str(-signal.SIGABRT)}) == (0, 10, set())
    assert total(otlp_grpc, gen_ai__request__model="child") <= 10


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_process_pool_add_up(otlp_http: HttpReceiver, method: str) -> None:
    """Workers that leave when the pool is closed send what they have; nothing of the parent's is sent again."""
    done = run(otlp_http, "pool", method, 30, OTEL_METRIC_EXPORT_INTERVAL=60_000, OTEL_BSP_SCHEDULE_DELAY=60_000)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (0, "served 30\n", "")
    assert total(otlp_http, gen_ai__request__model="pooled") == 30
    assert total(otlp_http, gen_ai__request__model="before") == 1
    assert len(request_spans(otlp_http, "pooled")) == 30
