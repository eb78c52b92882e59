"""Requests served in the workers of a process pool: ``pool.py METHOD COUNT``; METHOD is fork or spawn.

Forked workers inherit ``configure()``; spawned ones start from nothing and call it themselves.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import otel_lifecycle as lifecycle
from tests.faults.programs.serving import say, serve_one

WORKERS = 3


def work(number: int) -> int:
    """Serve one request in whichever worker."""
    serve_one(model="pooled")
    return number


def main(method: str, count: int) -> None:
    """Run."""
    lifecycle.configure()
    serve_one(model="before")
    context = multiprocessing.get_context(method)
    initializer = lifecycle.configure if method == "spawn" else None
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=initializer) as pool:
        served = len(list(pool.map(work, range(count))))
    say("served", served)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
