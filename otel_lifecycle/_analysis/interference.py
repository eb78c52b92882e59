"""Delays of requests beyond their own work: waits, stalls and company, summed over the live requests."""

from __future__ import annotations

from typing import Any, Final

from otel_lifecycle._table.store import RequestTable

QUEUE: Final = ("preprocessing", "prefill", "decode", "idle")
STALLS: Final = ("prefill", "preemption", "unexplained")
COMPANY: Final = ("prefill", "decode")
# A table for people; all links are in the spans.
SHOWN: Final = 5
"""Requests that delayed others, shown one by one."""

# The processor writes all parts of a split or none, so one of them shows that there is a split.
_SPLIT: Final = "queue_idle IS NOT NULL AND queue_wait IS NOT NULL"
# A stall count of 0 is evidence: the request was watched and had no stall.
_SUMS: Final = f"""
SELECT count(*) FILTER ({_SPLIT}) AS split, sum(queue_wait) FILTER (WHERE {_SPLIT}) AS wait,
  {", ".join(f"sum(queue_{one}) FILTER (WHERE {_SPLIT}) AS queue_{one}" for one in QUEUE)},
  count(stall_count) AS watched, count(*) FILTER (stall_count > 0) AS stalled, sum(stall_count)::BIGINT AS stalls,
  sum(decode_time) FILTER (WHERE stall_count IS NOT NULL) AS decode_time,
  {", ".join(f"sum(stall_{one}) FILTER (WHERE stall_count IS NOT NULL) AS stall_{one}" for one in ("time", *STALLS))},
  max(stall_max) AS longest,
  {", ".join(f"count(company_{one}) AS company_{one}, avg(company_{one}) AS mean_{one}" for one in COMPANY)},
  count(*) FILTER (interference_complete = false) AS incomplete
FROM live_rows
"""
_CAUSES: Final = """
SELECT coalesce(bottleneck, '-') || ': ' || bottleneck_cause AS cause, count(*) AS n FROM live_rows
WHERE bottleneck_cause IS NOT NULL GROUP BY cause ORDER BY n DESC, cause
"""
# Links of other libraries have no time; they blame nobody.
_CULPRITS: Final = f"""
SELECT link.trace_id AS trace_id, link.span_id AS span_id, nullif(any_value(link.request_id), '') AS request,
  sum(link.time) AS time, count(*) AS requests
FROM (SELECT unnest(links) AS link FROM live_rows WHERE links IS NOT NULL) WHERE link.time IS NOT NULL
GROUP BY link.trace_id, link.span_id ORDER BY time DESC, trace_id, span_id LIMIT {SHOWN}
"""


def interference(table: RequestTable) -> dict[str, Any]:
    """Return the sums as plain data: seconds, and the number of requests behind each of them."""
    told = table.rows(_SUMS)[0]
    decode = told["decode_time"]
    return {
        "queue": {
            "count": told["split"],
            "wait": told["wait"] or 0.0,
            **{name: told[f"queue_{name}"] or 0.0 for name in QUEUE},
        },
        "stalls": {
            "count": told["watched"],
            "stalled_requests": told["stalled"],
            "stalls": told["stalls"] or 0,
            **{name: told[f"stall_{name}"] or 0.0 for name in ("time", *STALLS)},
            "decode_time": decode or 0.0,
            "longest": told["longest"] if told["stalled"] else None,
            "prefill_share_of_decode": (told["stall_prefill"] or 0.0) / decode if decode else None,
        },
        "company": {name: {"count": told[f"company_{name}"], "mean": told[f"mean_{name}"]} for name in COMPANY},
        "causes": dict(table.connection.execute(_CAUSES).fetchall()),
        "incomplete": told["incomplete"],
        "culprits": table.rows(_CULPRITS),
    }
