"""A presentation as JUnit XML, which every CI server shows: a test case for each thing that was judged."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from otel_lifecycle._cli.render.sections import JudgedCase, Presentation
from otel_lifecycle._table.text import printable


def xml(found: Presentation) -> str:
    """Return a test suite; cases that passed without more to say are only counted."""
    suite, cases = f"otel-lifecycle {found.command}", found.cases
    failures, errors = sum(bool(one.failure) for one in cases), sum(bool(one.error) for one in cases)
    head = f"name={_attribute(suite)} tests={_attribute(str(len(cases) + found.passed))}"
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
