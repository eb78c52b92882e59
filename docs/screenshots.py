"""Makes the pictures of the documentation from real runs of the demo: ``make screenshots``.

The demo serves its model under ``otel-lifecycle run``; a headless Chromium looks at the live page while it works, at a
request whose decode another one stalled, and at the report.  The demo then runs again in front of a real Collector and
a real Prometheus, and the dashboard's own queries are drawn (:mod:`docs.panels`).
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, Final

from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from docs import panels
from otel_lifecycle._cli.main import run as otel_lifecycle

PICTURES: Final = Path(__file__).parent / "pictures"
COLUMNS: Final = 124
"""Width of the terminal in characters."""
PATH: Final = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PATIENCE_MS: Final = 600_000
STALLED: Final = "stalled its decode"
"""What the page says of a neighbour in whose prefill tokens came late."""
WIDTH: Final = 1200


class Demo:
    """The demo under ``otel-lifecycle run``; its page stays after its end."""

    def __init__(self, save: Path) -> None:
        options = ("--no-auto", "--stay", "--save", str(save))
        command = [sys.executable, "-m", "otel_lifecycle._cli.main", "run", *options, "--"]
        self._process = subprocess.Popen(
            [*command, "python", "-m", "examples.demo"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Found by its name, because the page shows the command and not everybody has this path.
            env={**os.environ, "PATH": PATH, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)},
        )
        self.output: list[str] = []
        self.ended = threading.Event()
        self._address: list[str] = []
        self._known = threading.Event()
        for read, stream in ((self._printed, self._process.stdout), (self._told, self._process.stderr)):
            threading.Thread(target=read, args=(stream,), daemon=True).start()

    def _printed(self, stream: IO[str]) -> None:
        self.output.extend(stream)

    def _told(self, stream: IO[str]) -> None:
        # "live page at URL" comes first, "the page stays at URL" when the command has ended.
        for line in stream:
            found = re.search(r"http://\S+", line)
            if found is not None and not self._address:
                self._address.append(found[0])
                self._known.set()
            if "the page stays" in line:
                self.ended.set()

    @property
    def address(self) -> str:
        """Where the live page is."""
        self._known.wait(60)
        return self._address[0]

    def stop(self) -> None:
        """End it as Ctrl-C does, and wait for the report."""
        if not self.ended.is_set():
            # The demo is still running, so the run has failed.
            self._process.terminate()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(300)


@contextmanager
def opened(browser: Browser, address: str, height: int = 900, width: int = WIDTH) -> Iterator[Page]:
    """Open a page in a window of that size."""
    # The live page's policy forbids eval(), which waiting for an expression needs.
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light", bypass_csp=True)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    yield page
    page.close()


def picture(page: Page, name: str, selector: str | None = None) -> None:
    """Take a picture of a page's window, or of one element."""
    path = PICTURES / f"{name}.png"
    if selector is None:
        page.screenshot(path=path, animations="disabled")
    else:
        page.locator(selector).screenshot(path=path, animations="disabled")
    sys.stdout.write(f"{path.relative_to(Path.cwd())}: {path.stat().st_size // 1024} KiB\n")


def live(browser: Browser, demo: Demo) -> None:
    """Take the page while requests run, and the request whose decode a neighbour stalled."""
    with opened(browser, demo.address) as page:
        # Eight requests for two slots: some wait, some run, and the calm ones have ended.
        page.wait_for_function("Number(document.querySelector('#total').textContent) >= 5 && list.rows.size >= 5")
        picture(page, "live")
        demo.ended.wait(PATIENCE_MS / 1000)
        page.set_viewport_size({"width": WIDTH, "height": 1750})
        page.wait_for_function("list.rows.size >= 18")
        for row in page.locator(".row:visible").all():
            row.click()
            page.locator("dialog h2").wait_for()
            page.wait_for_timeout(500)
            if STALLED in page.locator("dialog").inner_text():
                picture(page, "waterfall", "dialog")
                return
            page.keyboard.press("Escape")
    raise SystemExit("no request of this run stalled beside another one; run it again")


def terminal(browser: Browser, folder: Path, output: list[str]) -> None:
    """Take what the demo printed, from its rush to its last line."""
    start = next(number for number, line in enumerate(output) if "Rush" in line)
    console = Console(record=True, width=COLUMNS, file=(folder / "unused").open("w"), force_terminal=True)
    console.print(Text.from_ansi("".join(output[start:]).rstrip()))
    style = "body{margin:0;width:max-content;padding:14px 18px}pre{margin:0;font-size:13px;line-height:1.25}"
    page = console.export_html(theme=DIMMED_MONOKAI, inline_styles=True)
    (folder / "terminal.html").write_text(page.replace("</style>", f"{style}</style>"), encoding="utf-8")
    with opened(browser, (folder / "terminal.html").as_uri()) as shown:
        picture(shown, "terminal", "body")


def report(browser: Browser, folder: Path, saved: Path) -> None:
    """Take the top of the report's page."""
    html = folder / "report.html"
    with chdir(folder), redirect_stdout(io.StringIO()):
        otel_lifecycle(["report", saved.name, "--html", str(html)])
    with opened(browser, html.as_uri(), height=1300) as page:
        picture(page, "report")


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    """Work in a folder, so that the report names its source without a path."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> None:
    """Make every picture."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        demo = Demo(folder / "run.jsonl.zst")
        try:
            live(browser, demo)
        finally:
            demo.stop()
        # `run` prints its own report after what the demo printed; that is another picture.
        own = next((at for at, line in enumerate(demo.output) if " completed, from " in line), len(demo.output))
        terminal(browser, folder, demo.output[:own])
        report(browser, folder, folder / "run.jsonl.zst")
        drawn = panels.dashboard(folder)
        with opened(browser, drawn.as_uri()) as page:
            picture(page, "dashboard", "main")


if __name__ == "__main__":
    main()
