"""Without an SDK, or with nobody to tell, every call is a no-op that costs nothing and changes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError

SCRIPT = """
import asyncio, sys
import otel_lifecycle as lifecycle

request = lifecycle.request(model="m", max_tokens=-1)
assert request is lifecycle.current() is lifecycle.request()
with request, request.stage("queue"):
    request.admit(); request.token(); request.complete(); request.fail("x"); request.record(5)
assert list(request.stream([1, 2])) == [1, 2]
assert request.report is None
assert request.carrier() == {}

@lifecycle.traced(model="m")
async def items():
    for item in (1, 2):
        yield item

@lifecycle.traced
@lifecycle.stage("queue")
def plain():
    return 7

async def main():
    async with lifecycle.request():
        return [item async for item in items()]

assert asyncio.run(main()) == [1, 2]
assert plain() == 7
lifecycle.step([request, request])
with lifecycle.startup("load_model"):
    pass
lifecycle.shutdown()
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""


@pytest.mark.process
def test_every_call_without_an_sdk() -> None:
    """In a process that never loads the SDK, every call works and loads none."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_handle_has_every_method_of_the_live_one() -> None:
    """The no-op handle overrides every public method, so none can reach for a record it does not have."""
    from otel_lifecycle._request.handle import Request
    from otel_lifecycle._request.no_request import NoRequest

    public = {name for name in vars(Request) if not name.startswith("_")}
    assert public - set(vars(NoRequest)) == set()


def test_nonsense_is_refused_even_then() -> None:
    """A shape, role or condition that does not exist is refused in development, where there may be no SDK."""
    for nonsense in (
        lambda: lifecycle.request(shape="round"),
        lambda: lifecycle.request(role="half"),
        lambda: lifecycle.traced(modell="m"),
        lambda: lifecycle.traced(shape="round"),
    ):
        with pytest.raises(ConfigurationError):
            nonsense()


def test_exceptions_pass() -> None:
    """The no-op handle swallows nothing."""
    with pytest.raises(KeyError), lifecycle.current():
        raise KeyError

    async def fails() -> Any:
        async with lifecycle.current():
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(fails())
