"""gunicorn's configuration for an app with providers of its own: they are set up after the fork, in each worker."""

from __future__ import annotations

from tests.faults.programs.fork import set_up_own_providers


def post_fork(server: object, worker: object) -> None:
    """Set the worker's providers up; gunicorn calls this in each worker before it serves."""
    set_up_own_providers()
