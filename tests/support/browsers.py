"""A real browser for the pages: the Debian package chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 60_000

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="the Debian package chromium is not installed"
)


@contextmanager
def launched() -> Iterator[Browser]:
    """Give one browser; starting it takes a second, so a file shares it."""
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1400, scheme: str = "light") -> Iterator[Page]:
    """Open the page; an error in its script fails the test."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page.goto(url)
    yield page
    assert errors == []
    context.close()
