"""Results as JUnit XML, which every CI server shows: a test case for each thing that was judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from otel_lifecycle._cli.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._cli.text import printable
from otel_lifecycle._cli.violations import Violated

if TYPE_CHECKING:
    # A comparison loads scipy, which a report does not need.
    from otel_lifecycle._cli.comparison.document import Result
    from otel_lifecycle._cli.comparison.sweep import SweepRun


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCase:
    """One test case: what failed it or could not be judged, if anything, and what else there is to say."""

    name: str
    failure: str = ""
    error: str = ""
    told: str = ""


def xml(suite: str, cases: Sequence[JudgedCase], passed: int = 0) -> str:
    """Return a test suite; ``passed``: further cases that passed and are only counted."""
    failures, errors = sum(bool(one.failure) for one in cases), sum(bool(one.error) for one in cases)
    head = f"name={_attribute(suite)} tests={_attribute(str(len(cases) + passed))}"
    counts = f"failures={_attribute(str(failures))} errors={_attribute(str(errors))}"
    body = "\n".join(_case(suite, one) for one in cases)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite {head} {counts}>\n{body}\n</testsuite>'


def _case(suite: str, one: JudgedCase) -> str:
    ends = (("failure", one.failure), ("error", one.error))
    inner = "".join(f"<{tag} message={_attribute(words)}/>" for tag, words in ends if words)
    if one.told:
        inner += f"<system-out>{escape(printable(one.told))}</system-out>"
    return f"  <testcase classname={_attribute(suite)} name={_attribute(one.name)}>{inner}</testcase>"


def _attribute(text: str) -> str:
    # XML 1.0 forbids most control characters, even escaped.
    return quoteattr(printable(text))


def of_violations(found: Sequence[Violated], requests: int, illegal: int) -> str:
    """Return a case for each violation; the legal requests are counted as passed."""
    cases = [
        JudgedCase(
            name=f"{one.request or one.trace_id}: {one.kind}",
            failure=f"{one.event} in {one.state}: {one.rule}",
            told=f"trace {one.trace_id} span {one.span_id}",
        )
        for one in found
    ]
    return xml("otel-lifecycle check", cases, passed=requests - illegal)


def of_comparison(result: Result) -> str:
    """Return a case for each gate, which fails as the exit code says, and one for each figure, which never does."""
    gates = [
        JudgedCase(
            name=f"gate {one.gate.text}",
            failure=f"changed by {one.change:+.3g}" if one.failed else "",
            error="" if one.judged else one.reason,
            told=one.reason,
        )
        for one in result.rulings
    ]
    figures = [
        JudgedCase(name=one.metric, told=f"{one.baseline} to {one.candidate}: {one.verdict} {one.reason}".strip())
        for one in result.figures
    ]
    return xml("otel-lifecycle compare", [*gates, *figures])


def of_sweep(runs: Sequence[SweepRun]) -> str:
    """Return a case for each run, with its figures; a sweep tests nothing, so none fails."""
    cases = [
        JudgedCase(name=one.source, told=", ".join(f"{key} {value}" for key, value in asdict(one).items()))
        for one in runs
    ]
    return xml("otel-lifecycle compare", cases)


def of_report(diagnosis: Diagnosis) -> str:
    """Return a case for each finding: strong evidence fails it."""
    cases = [
        JudgedCase(
            name=one.cause,
            failure=f"{one.symptom}; look at {one.look_at}" if one.confidence == "strong" else "",
            told="\n".join(one.evidence),
        )
        for one in diagnosis.findings
    ]
    return xml("otel-lifecycle report", cases or [JudgedCase(name=diagnosis.headline)])
