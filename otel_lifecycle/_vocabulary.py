"""The closed sets that names on the wire draw on, and the bucket edges of the histograms.

They are part of :mod:`otel_lifecycle.semconv`, which hands all of them on; they stand apart because of their length.
"""

from __future__ import annotations

from typing import Final, Literal

Outcome = Literal["completed", "cancelled", "timed_out", "failed", "incomplete"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("completed", "cancelled", "timed_out", "failed", "incomplete")

REASONS: Final = frozenset(
    {
        "queue_full",
        "queue_timeout",
        "rate_limited",
        "input_too_long",
        "bad_input",
        "out_of_memory",
        "engine_error",
        "deadline",
        "client_disconnected",
        "shutdown",
        "abandoned",
    }
)

ViolationKind = Literal[
    "illegal_transition",
    "non_monotonic_time",
    "event_after_terminal",
    "duplicate_terminal",
    "missing_terminal",
    "terminated_before_arrival",
    "invalid_timestamp",
    "invalid_value",
    "foreign_clock",
    "truncated",
]
VIOLATION_KINDS: Final[tuple[ViolationKind, ...]] = (
    "illegal_transition",
    "non_monotonic_time",
    "event_after_terminal",
    "duplicate_terminal",
    "missing_terminal",
    "terminated_before_arrival",
    "invalid_timestamp",
    "invalid_value",
    "foreign_clock",
    "truncated",
)

ROLES: Final = ("whole", "prefill", "decode", "part")

WIRE_STAGE: Final = {
    "queued": "queue",
    "preprocessing": "preprocessing",
    "prefill": "prefill",
    "decode": "decode",
    "preempted": "preempted",
}
"""The state a request is in -> the stage it is called on the wire."""

UNKNOWN_STAGE: Final = "unknown"
"""The stage of an active request whose server marks no boundaries, until its first mark."""

TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKEN_GAP_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28,
    2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
)  # fmt: skip
BATCH_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
GEN_AI_DURATION_BUCKETS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
GEN_AI_TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
GEN_AI_TPOT_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
