"""A script that configures telemetry and then runs uvicorn itself: ``run_uvicorn.py FD``."""

from __future__ import annotations

import sys

import uvicorn

from tests.faults.programs.web import asgi

if __name__ == "__main__":
    uvicorn.run(asgi, fd=int(sys.argv[1]), log_level="warning")
