"""Pages are whole in themselves: one script of ours, no network, nothing from a trace that is not escaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cli.generator import Load, write
from tests.cli.running import Ran

EVIL = '<script>alert("x")</script>'
LOAD = Load(requests=200, attributes=(("gen_ai.request.model", EVIL), ("inference.end.reason", EVIL)))


class Page(HTMLParser):
    """What a page consists of: its elements, everything they point to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.pointers: list[str] = []
        self.labels: list[str] = []
        self.texts: list[str] = []
        self.charts = 0
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element in."""
        self.elements.append(tag)
        for name, value in attrs:
            if name in {"href", "src", "xlink:href", "action", "data", "srcset"} and value:
                self.pointers.append(value)
            if name == "aria-label" and value and tag == "svg":
                self.labels.append(value)
            if name == "aria-roledescription":
                self.charts += 1
            if name == "id" and value:
                self.ids.add(value)

    def handle_data(self, data: str) -> None:
        """Take a text in."""
        if data.strip():
            self.texts.append(data.strip())


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """Pages that were drawn already: several tests read the same one."""
    return {}


@pytest.fixture
def page(request: pytest.FixtureRequest, cli: Callable[..., Ran], tmp_path: Path, drawn: dict[str, str]) -> Page:
    """The page of a command, over a run whose model is called what an attacker would call it."""
    if request.param not in drawn:
        drawn[request.param] = draw(request.param, cli, tmp_path)
    return Page(drawn[request.param])


def draw(command: str, cli: Callable[..., Ran], tmp_path: Path) -> str:
    """Return the page that a command writes."""
    for name, load in (("run", LOAD), ("other", replace(LOAD, seed=2))):
        with (tmp_path / f"{name}.json").open("wb") as out:
            write(load, out)
    arguments = {
        "report": ("report", "run.json", "--group-by", "model"),
        "compare": ("compare", "run.json", "other.json"),
        "view": ("view", "r7", "run.json"),
    }[command]
    ran = cli(*arguments, "--html", "page.html")
    assert (ran.code, ran.err) == (0, "wrote page.html\n")
    # The page comes beside what is printed; that of one request instead of it.
    assert bool(ran.out) == (command != "view")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


EVERY = pytest.mark.parametrize("page", ["report", "compare", "view"], indirect=True)


@pytest.mark.long
@EVERY
def test_a_page_needs_nothing_but_itself(page: Page) -> None:
    """It points to nothing outside, its links lead somewhere, and it runs the script of the charts alone."""
    assert not {"link", "iframe", "img", "object"} & set(page.elements)
    assert page.elements.count("script") == 1
    assert {pointer.removeprefix("#") for pointer in page.pointers} <= page.ids
    assert not any("fetch(" in text or "XMLHttpRequest" in text for text in page.texts)
    style = " ".join(text for text in page.texts if "--ink" in text)
    assert "url(http" not in style
    assert "@import" not in style


@pytest.mark.long
@EVERY
def test_a_page_shows_its_plots_in_both_themes(page: Page) -> None:
    """Each plot has a label to be read aloud, and no colour but the theme's."""
    assert page.charts == len(page.labels) >= 1
    assert any("prefers-color-scheme: dark" in text for text in page.texts)


@pytest.mark.parametrize("page", ["report", "view"], indirect=True)
def test_what_a_trace_says_is_text(page: Page) -> None:
    """The model's name is shown as it is, and is not an element."""
    assert any(EVIL in text for text in page.texts)
    assert page.elements.count("script") == 1


@pytest.fixture
def plots(cli: Callable[..., Ran], tmp_path: Path, drawn: dict[str, str]) -> str:
    """The page of a report of a hundred requests."""
    if "plots" not in drawn:
        with (tmp_path / "run.json").open("wb") as out:
            write(Load(requests=100), out)
        cli("report", "run.json", "--html", "page.html")
        drawn["plots"] = (tmp_path / "page.html").read_text(encoding="utf-8")
    return drawn["plots"]


@pytest.mark.long
def test_plots_have_only_colours_of_the_theme(plots: str) -> None:
    """A hard colour would be invisible in one of the two."""
    text = plots
    body = text[text.index("<body>") :]
    assert set(re.findall(r"(?:fill|stroke)[:=]\W*(#[0-9a-f]{3,6}|[a-z]+\()", body)) == set()
    assert 'class="s-queue"' in body


def test_plots_take_the_width_of_the_screen(plots: str) -> None:
    """Every mark lies within it, in percent of it, so that the last stage is on a telephone too."""
    text = plots
    marks = re.findall(r'<rect x="([^"]+)" width="([^"]+)"', text)
    assert len(marks) > 100
    ends = [float(x.removesuffix("%")) + float(width.removesuffix("%")) for x, width in marks]
    assert max(ends) <= 100.5
    assert 'width="100%"' in text
    assert "min-width: 720px" not in text


def test_the_slowest_requests_link_to_their_waterfalls(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Each is named in the chart, and its link opens the stages of that request."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=100), out)
    cli("report", "run.json", "--html", "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    links = re.findall(r'<a href="#(request-[0-9a-f]{16})">', text)
    assert len(links) == len(set(links)) == 10
    for link in links:
        waterfall = text[text.index(f'<details id="{link}">') :].partition("</details>")[0]
        assert [f'class="s-{stage}"' in waterfall for stage in ("queue", "prefill", "decode")] == [True] * 3


def test_a_page_says_what_must_be_known_first(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """No request has the key to group by; and E2E is that of the completed."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=100, failed=0.2), out)
    cli("report", "run.json", "--group-by", "modle", "--html", "page.html")
    texts = Page((tmp_path / "page.html").read_text(encoding="utf-8")).texts
    assert any(text.startswith("no request has 'modle'") for text in texts)
    assert any(re.fullmatch(r"E2E p95, of \d+ completed", text) for text in texts)


@pytest.mark.long
@pytest.mark.parametrize(("requests", "most"), [(1000, 330_000), pytest.param(3000, 1_000_000, marks=pytest.mark.slow)])
def test_a_page_stays_small(cli: Callable[..., Ran], tmp_path: Path, requests: int, most: int) -> None:
    """Whatever the number of requests: below a megabyte."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=requests), out)
    cli("report", "run.json", "--html", "page.html")
    assert (tmp_path / "page.html").stat().st_size < most


def test_a_workload_of_nothing_has_a_page(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """It says so."""
    (tmp_path / "empty.json").touch()
    assert cli("report", "empty.json", "--html", "page.html").code == 2
    assert "No request to judge" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_code_2(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With the reason."""
    (tmp_path / "empty.json").touch()
    ran = cli("report", "empty.json", "--html", "nowhere/page.html")
    assert (ran.code, ran.err) == (2, "otel-lifecycle: nowhere/page.html: No such file or directory\n")
