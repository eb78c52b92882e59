"""What every program serves: short requests with all their boundaries."""

from __future__ import annotations

import time

import otel_lifecycle as lifecycle


def serve_one(tokens: int = 3, gap: float = 0.0, model: str = "tiny") -> None:
    """Serve one request from arrival to completion; ``gap``: seconds between two tokens."""
    with lifecycle.request(model=model) as request:
        request.admit()
        request.input_ready()
        request.first_token()
        for _ in range(tokens - 1):
            if gap:
                time.sleep(gap)
            request.token()


def say(*words: object) -> None:
    """Print one line at once: whoever started the program reads it."""
    print(*words, flush=True)  # noqa: T201  # the program's way to talk to its test
