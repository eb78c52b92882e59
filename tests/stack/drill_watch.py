"""What an operator is told while the drill runs, and how that compares with what should have been said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.error import URLError

from tests.stack.backends import get
from tests.stack.overlay import SHORTER

HEAD: Final = ("service", "alert", "expected", "fired after", "resolved after", "false resolves")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One alert of one service: the marks after which it fires and resolves.

    It must neither resolve before the mark ``until`` nor stay for ever after it.
    """

    job: str
    alert: str
    after: str
    until: str

    @property
    def key(self) -> tuple[str, str]:
        """What the watch files it under."""
        return self.job, self.alert


@dataclass(slots=True, kw_only=True)
class Seen:
    """When one alert began and stopped firing, in seconds of this machine."""

    spans: list[list[float | None]] = field(default_factory=list)

    @property
    def fires(self) -> bool:
        """Whether it fires now."""
        return bool(self.spans) and self.spans[-1][1] is None

    def note(self, firing: bool, at: float) -> None:
        """Take one look at it."""
        if firing and not self.fires:
            self.spans.append([at, None])
        elif self.fires and not firing:
            self.spans[-1][1] = at


class Watch:
    """Asks Alertmanager for its alerts again and again.

    Alertmanager and not Prometheus: a Prometheus that restarts has its alerts pending anew, which nobody is told. An
    alert that is inhibited has not resolved, so it counts as one that fires.
    """

    def __init__(self, base: str) -> None:
        self.seen: dict[tuple[str, str], Seen] = {}
        self._base = base
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.3):
            try:
                alerts = get(f"{self._base}/api/v2/alerts")
            except (URLError, OSError):
                continue
            now = time.monotonic()
            firing = {(alert["labels"].get("job", ""), alert["labels"]["alertname"]) for alert in alerts}
            for key in firing | set(self.seen):
                self.seen.setdefault(key, Seen()).note(key in firing, now)

    def of(self, key: tuple[str, str]) -> Seen:
        """Return what was seen of an alert of a service."""
        return self.seen.get(key, Seen())

    def wait(self, key: tuple[str, str], firing: bool, timeout: float) -> None:
        """Wait until the alert fires, or no longer does; what never comes is told by the table."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.of(key).fires is not firing:
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()


def field_time(seconds: float) -> str:
    """Return a duration of this machine as that of the field, in minutes and seconds."""
    whole = round(seconds * SHORTER)
    return f"{whole // 60} min {whole % 60:02d} s"


def judge(
    expected: Iterable[Expected], seen: Mapping[tuple[str, str], Seen], marks: Mapping[str, float]
) -> tuple[list[Sequence[str]], list[str]]:
    """Return the rows of the table and what was wrong."""
    rows: list[Sequence[str]] = []
    wrong: list[str] = []
    known = set()
    for row in expected:
        known.add(row.key)
        spans = seen.get(row.key, Seen()).spans
        rows.append(_row(row, spans, marks))
        wrong += _wrong(row, spans, marks)
    wrong += [f"{job} {alert}: false alarm" for job, alert in sorted(seen) if (job, alert) not in known]
    return rows, wrong


def _early(row: Expected, spans: Sequence[Sequence[float | None]], marks: Mapping[str, float]) -> list[float]:
    return [end for _, end in spans if end is not None and end < marks[row.until]]


def _row(row: Expected, spans: Sequence[Sequence[float | None]], marks: Mapping[str, float]) -> Sequence[str]:
    fired, last = (spans[0][0], spans[-1][1]) if spans else (None, None)
    return (
        row.job,
        row.alert,
        f"after “{row.after}”, until “{row.until}”",
        "never" if fired is None else field_time(fired - marks[row.after]),
        "never" if last is None else field_time(last - marks[row.until]),
        str(len(_early(row, spans, marks))),
    )


def _wrong(row: Expected, spans: Sequence[Sequence[float | None]], marks: Mapping[str, float]) -> list[str]:
    name = f"{row.job} {row.alert}"
    fired = spans[0][0] if spans else None
    wrong = [] if fired is not None and fired >= marks[row.after] else [f"{name} did not fire after {row.after}"]
    # An instant like "12 min after faults", to find it in the logs of the programs.
    for end in _early(row, spans, marks):
        mark, at = max(((name, at) for name, at in marks.items() if at <= end), key=lambda pair: pair[1])
        wrong.append(f"{name} resolved too early, {field_time(end - at)} after {mark}")
    if spans and spans[-1][1] is None:
        wrong.append(f"{name} did not resolve after {row.until}")
    return wrong


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table in Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (HEAD, ["---"] * len(HEAD), *rows))
