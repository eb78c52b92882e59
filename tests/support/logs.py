"""What was logged in a test."""

from __future__ import annotations

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of the test, without those of exporters.

    A thread that another test's exporter left behind still logs its retries, whatever runs then.
    """
    return [record for record in caplog.records if not record.name.startswith("opentelemetry.exporter.")]
