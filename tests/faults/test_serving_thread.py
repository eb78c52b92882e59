"""What the serving thread sees of an exporter's fault: no more than with plain spans and a BatchSpanProcessor.

The longest times that are printed are not the requests' own: the exporter's thread has the interpreter while it encodes
(5 ms at a time), other processes have the processor, and now and then garbage is collected.  Medians leave that out;
that nothing else hides there is what the turns ``alone`` show, in which the thread would wait for a lock or a socket
only.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.faults.holding import ILL, UP, Fault, Turns, contest
from tests.faults.matrix import Matrix

pytestmark = pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="counts of one thread: Linux only")

FAULTS = {
    "down": Fault(inflict=lambda receiver: receiver.stop()),
    "refuses": Fault(inflict=lambda receiver: receiver.refuse()),
    "rejects": Fault(inflict=lambda receiver: receiver.reject()),
    "hangs": Fault(inflict=lambda receiver: receiver.hang()),
    "hangs for metrics too": Fault(inflict=lambda receiver: receiver.hang(), all_signals=True),
    "slow": Fault(inflict=lambda receiver: receiver.slow(0.05)),
    "queue overflow": Fault(
        inflict=lambda receiver: receiver.slow(0.05),
        settings={"OTEL_BSP_MAX_QUEUE_SIZE": 32, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 16},
    ),
}
QUICK = "hangs"

WORSE_AT_MOST = 1.1
"""How much more a fault makes of ours than of plain spans; what is above 1 is left to noise."""
BY_FAULT_AT_MOST = 1.5
"""Ours with the fault against ours without; the SDK's warning for each span that finds the queue full is 0.2 of it."""
OVER_PLAIN_AT_MOST = 5
"""CPU at the end of a request, judged and counted, against nothing but its spans."""
WAITED_AT_MOST = 0.01
"""Share of the requests in turns alone whose thread waited: of ours 0, and 1 of those that export on it."""


def is_worse(turns: Turns) -> bool:
    """Whether the fault holds the thread longer than it does with plain spans, and not by noise."""
    return any(turns.beside_plain(figure).low > WORSE_AT_MOST for figure in ("end_wall", "whole_wall"))


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in FAULTS]
)
def test_c78_fault_holds_the_serving_thread_no_longer_than_with_plain_spans(
    fault: str, matrix: Matrix, tmp_path: Path
) -> None:
    """Requests one after another, with exports and collections in between."""
    with contest(FAULTS[fault], tmp_path) as contenders:
        turns = contenders.rounds(12, 60)
        alone = contenders.rounds(3, 60, "alone")
    matrix.hold(f"collector {fault}", turns, alone)
    assert not is_worse(turns)
    assert turns.by_fault("ours", "end_wall").low <= BY_FAULT_AT_MOST
    assert turns.over_plain("end_cpu").low <= OVER_PLAIN_AT_MOST
    assert [alone.waited("ours", state) <= WAITED_AT_MOST for state in (UP, ILL)] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "slow"])
def test_c69_thousands_that_end_at_once_hold_it_no_longer(fault: str, matrix: Matrix, tmp_path: Path) -> None:
    """All of them open, then all ended in a row: more spans at once than the queue takes, with a fault and without."""
    with contest(FAULTS[fault], tmp_path) as contenders:
        turns = contenders.rounds(6, 2000, "together")
        alone = contenders.rounds(1, 2000, "together", "alone")
    matrix.hold(f"collector {fault}, 2000 end at once", turns, alone)
    assert not is_worse(turns)
    assert [alone.waited("ours", state) <= WAITED_AT_MOST for state in (UP, ILL)] == [True, True]


def test_export_on_the_serving_thread_is_found_out(matrix: Matrix, tmp_path: Path) -> None:
    """A processor that exports where the span ends: the same measuring calls it worse, and sees every request wait."""
    slow = Fault(inflict=lambda receiver: receiver.slow(0.04))
    with contest(slow, tmp_path, ours="simple", warm_up=2) as contenders:
        turns = contenders.rounds(8, 2)
        alone = contenders.rounds(1, 2, "alone")
    matrix.hold("collector slow, SimpleSpanProcessor instead", turns, alone)
    assert is_worse(turns)
    assert alone.waited("ours", ILL) == 1
