"""Pages of `report`, `compare` and `view` in a real browser: hover, keyboard, dark, a telephone, and no network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, expect

from otel_lifecycle._cli.main import run
from otel_lifecycle._draw.theme import COLOURS
from tests.cli.generator import Load, write
from tests.support.browsers import launched, needs_browser, opened

pytestmark = [pytest.mark.slow, needs_browser]

PAGES = ("report", "compare", "sweep", "view")
TELEPHONE = 420


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with launched() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, of three runs of a hundred and fifty requests."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [str(folder / f"{slots}.json") for slots in (1, 2, 4)]
    for slots, path in zip((1, 2, 4), runs, strict=True):
        with Path(path).open("wb") as out:
            write(Load(requests=150, slots=slots, seed=slots), out)
    commands = {
        "report": ("report", runs[2]),
        "compare": ("compare", *runs[1:], "--force"),
        "sweep": ("compare", *runs),
        "view": ("view", "r7", runs[2]),
    }
    for name, arguments in commands.items():
        assert run([*arguments, "--html", str(folder / f"{name}.html")]) == 0
    return folder


def shown(
    browser: Browser, folder: Path, name: str, width: int = 1100, scheme: str = "light"
) -> AbstractContextManager[Page]:
    """Open one of the pages."""
    return opened(browser, (folder / f"{name}.html").as_uri(), width, scheme)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_telephone_in_either_theme(browser: Browser, folder: Path, name: str, scheme: str) -> None:
    """Nothing sticks out to the right, and the paper has the colour of the theme."""
    with shown(browser, folder, name, TELEPHONE, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == TELEPHONE
        paper = COLOURS["paper"][scheme == "dark"].removeprefix("#")
        colour = "rgb({}, {}, {})".format(*bytes.fromhex(paper))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_but_itself(browser: Browser, folder: Path, name: str) -> None:
    """One request, that for the page, also when every chart has been used."""
    asked: list[str] = []
    with shown(browser, folder, name) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        for chart in page.locator(".chart > svg:visible").all():
            chart.focus()
            page.keyboard.press("ArrowRight")
        assert asked == [page.url]


def test_every_stage_is_visible_on_a_telephone(browser: Browser, folder: Path) -> None:
    """Prefill and decode have a width on the screen, over time and in each of the slowest requests."""
    with shown(browser, folder, "report", TELEPHONE) as page:
        for stage in ("queue", "prefill", "decode"):
            boxes = [mark.bounding_box() for mark in page.locator(f"svg:visible > rect.s-{stage}").all()]
            places = [(box["x"], box["x"] + box["width"]) for box in boxes if box is not None and box["width"] > 0]
            assert len(places) > 10
            assert min(left for left, _ in places) >= 0
            assert max(right for _, right in places) <= TELEPHONE


def test_the_pointer_explains_a_mark(browser: Browser, folder: Path) -> None:
    """A column over time names every stage; beside the marks nothing is explained."""
    with shown(browser, folder, "report") as page:
        tip = page.locator(".tip")
        expect(tip).to_be_hidden()
        page.locator(".target[data-tip]").nth(20).hover()
        expect(tip).to_contain_text("queue")
        assert [line.split()[0] for line in tip.inner_text().splitlines()[1:]] == [
            "queue",
            "preprocessing",
            "prefill",
            "decode",
        ]
        page.locator("h1").hover()
        expect(tip).to_be_hidden()


@pytest.mark.parametrize("name", PAGES)
def test_the_arrow_keys_reach_every_mark(browser: Browser, folder: Path, name: str) -> None:
    """Each chart is one stop; the arrows go round its marks, and Escape ends the explanation."""
    with shown(browser, folder, name) as page:
        chart = page.locator(".chart > svg:visible").filter(has=page.locator("[data-tip]")).first
        marks = [mark.get_attribute("data-tip") for mark in chart.locator("[data-tip]").all()]
        tip = page.locator(".tip")
        chart.focus()
        for told in (*marks, marks[0]):
            page.keyboard.press("ArrowRight")
            assert tip.evaluate("tip => tip.textContent") == told
        page.keyboard.press("ArrowLeft")
        assert tip.evaluate("tip => tip.textContent") == marks[-1]
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


def test_the_keyboard_reaches_the_waterfall_of_a_slow_request(browser: Browser, folder: Path) -> None:
    """Its name is a link, which opens the folded drawing."""
    with shown(browser, folder, "report") as page:
        links = page.locator('a[href^="#request-"]')
        assert links.count() == 10
        target = page.locator(f"details{links.first.get_attribute('href')}")
        expect(target.locator("svg").first).to_be_hidden()
        links.first.focus()
        page.keyboard.press("Enter")
        expect(target.locator("svg").first).to_be_visible()
        expect(target.locator("svg").first).to_be_in_viewport()


def test_the_contents_lead_to_each_section(browser: Browser, folder: Path) -> None:
    """In the order of the page, under the titles that stand there; a short page has none."""
    with shown(browser, folder, "report") as page:
        entries = page.get_by_role("navigation", name="Contents").get_by_role("link")
        assert entries.all_inner_texts() == page.locator("h2").all_inner_texts()
        entries.last.click()
        expect(page.locator("h2").last).to_be_in_viewport()
    with shown(browser, folder, "sweep") as page:
        assert page.get_by_role("navigation").count() == 0
