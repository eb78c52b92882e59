"""The live page in a real browser, fed by a real server under ``otel-lifecycle run``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, expect

from tests.support.browsers import launched, needs_browser, opened

pytestmark = [pytest.mark.slow, needs_browser]

SERVER = """
import sys
import otel_lifecycle as lifecycle
lifecycle.configure(service_name="s")
requests = {}
for line in sys.stdin:
    name, act, *rest = line.split()
    if act == "arrive":
        requests[name] = lifecycle.request(model=rest[0], request_id=name, input_tokens=5)
    elif act == "decode":
        requests[name].admit(); requests[name].input_ready(); requests[name].token(); requests[name].token()
    else:
        getattr(requests[name], act)()
"""


class Server:
    """A server whose requests do what the test says."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "otel_lifecycle._cli.main", "run", "--no-auto", "--", sys.executable, "-c"]
        self._process = subprocess.Popen(
            [*command, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        found = re.search(r"http://\S+", self._process.stderr.readline())
        assert found is not None
        self.url = found[0]

    def do(self, *lines: str) -> None:
        """Tell the server what its requests do next."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def end(self) -> str:
        """End the server and return the report."""
        return self._process.communicate(timeout=100)[0]

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that is ended with the test."""
    made = Server()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with launched() as made:
        yield made


def some_requests(server: Server) -> None:
    """Let five requests end: completed ones of two models, a failed, a cancelled and an illegal one."""
    for name, model, end in (("a", "m", "complete"), ("b", "n", "complete"), ("c", "m", "fail"), ("z", "m", "cancel")):
        server.do(f"{name} arrive {model}", f"{name} decode", f"{name} {end}")
    server.do("e arrive m", "e decode", "e resume", "e complete")


def test_one_request_is_followed_from_queue_to_waterfall(server: Server, browser: Browser) -> None:
    """It is counted in its stage while it runs, becomes a row when it ends, and opens as a waterfall."""
    with opened(browser, server.url) as page:
        in_stage = page.locator("#stages li")
        server.do("followed arrive m")
        expect(in_stage.filter(has_text="queue").locator("b")).to_have_text("1")
        expect(page.locator("#total")).to_have_text("1")
        expect(page.locator("#oldest")).to_have_text(re.compile(r"oldest [\d.]+ m?s"))
        server.do("followed decode")
        expect(in_stage.filter(has_text="decode").locator("b")).to_have_text("1")
        expect(in_stage.filter(has_text="queue").locator("b")).to_have_text("0")
        server.do("followed complete")
        row = page.get_by_role("row", name=re.compile("completed request followed"))
        expect(row).to_be_visible()
        expect(page.locator("#total")).to_have_text("0")
        row.click()
        detail = page.get_by_role("dialog", name="chat m: completed")
        expect(detail.get_by_role("group", name=re.compile("waterfall of 5 spans"))).to_be_visible()
        for stage in ("queue", "preprocessing", "prefill", "decode"):
            expect(detail.locator("text.name", has_text=stage)).to_be_visible()
        expect(detail.get_by_role("group", name="2 tokens over time")).to_be_visible()
        page.keyboard.press("Escape")
        expect(detail).to_be_hidden()
    assert "\n1 request, 100.0 % completed" in f"\n{server.end()}"


def test_rows_are_filtered_and_figures_narrowed(server: Server, browser: Browser) -> None:
    """By what is wrong, by model, by id, and by time; the illegal request is named with its rule."""
    some_requests(server)
    with opened(browser, server.url) as page:
        expect(page.locator("#shown")).to_have_text("5 requests")
        rows = page.locator(".row:visible .request")
        for choice, names in (("failed", ["c  m"]), ("not completed", ["z  m", "c  m"]), ("illegal", ["e  m"])):
            page.get_by_label("show").select_option(choice)
            expect(rows).to_have_text(names)
        page.get_by_label("show").select_option("all requests")
        page.get_by_label("model").select_option("n")
        expect(rows).to_have_text(["b  n"])
        page.get_by_label("model").select_option("")
        # Not a hex digit: a search also finds trace and span ids that begin with the text.
        page.get_by_label("id", exact=True).fill("z")
        expect(rows).to_have_text(["z  m"])
        page.get_by_label("id", exact=True).fill("")
        expect(page.locator("#wrong li.bad")).to_contain_text("'resume' while decode")
        page.locator("#wrong").get_by_role("button", name="show the newest").click()
        expect(page.get_by_role("dialog")).to_contain_text("request e")
        page.get_by_role("button", name="Close the request").click()
        expect(page.locator("#ended")).to_have_text("5 ended")
        page.get_by_label("ended in").select_option("custom")
        page.get_by_label("until").fill("2020-01-01T00:00:00")
        expect(page.locator("#ended")).to_have_text("0 ended")
        expect(page.locator("#shown")).to_have_text("0 requests")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_it_fits_the_screen_and_the_theme(server: Server, browser: Browser, width: int, scheme: str) -> None:
    """Nothing is wider than the screen, every stage of the bars lies on it, and text contrasts with its ground."""
    some_requests(server)
    with opened(browser, server.url, width, scheme) as page:
        expect(page.locator("#shown")).to_have_text("5 requests")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(21, 26, 34)" if scheme == "dark" else "rgb(255, 255, 255)")
        page.get_by_role("row", name=re.compile("completed request a")).click()
        for stage in ("prefill", "decode"):
            box = page.locator(f"dialog rect.s-{stage}").first.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["width"] >= 1


def test_it_is_used_with_the_keyboard(server: Server, browser: Browser) -> None:
    """Tab reaches the list, arrows move in it, Enter opens, arrows explain the marks of a chart, Escape closes."""
    some_requests(server)
    with opened(browser, server.url) as page:
        expect(page.locator("#shown")).to_have_text("5 requests")
        page.get_by_label("id", exact=True).focus()
        page.keyboard.press("Tab")
        expect(page.locator(".row:focus")).to_have_attribute("aria-label", re.compile("request e,"))
        page.keyboard.press("End")
        expect(page.locator(".row:focus")).to_have_attribute("aria-label", re.compile("request a,"))
        page.keyboard.press("ArrowUp")
        expect(page.locator(".row:focus")).to_have_attribute("aria-label", re.compile("request b,"))
        page.keyboard.press("Enter")
        waterfall = page.get_by_role("dialog").get_by_role("group", name=re.compile("waterfall"))
        waterfall.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_contain_text("chat n")
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_contain_text("queue")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_everything_that_can_be_used_has_a_name(server: Server, browser: Browser) -> None:
    """What a screen reader says of each control, and of the list, is not empty."""
    some_requests(server)
    with opened(browser, server.url) as page:
        expect(page.locator("#shown")).to_have_text("5 requests")
        expect(page.locator("#chart svg")).to_be_visible()
        tree = page.locator("body").aria_snapshot()
        assert 'grid "Requests"' in tree
        controls = re.findall(r"- (combobox|button|searchbox|textbox|row|grid|group|dialog)\b(.*)", tree)
        assert {kind for kind, _ in controls} >= {"combobox", "searchbox", "row", "grid", "group"}
        assert [kind for kind, name in controls if not re.match(r' "\S', name)] == []
