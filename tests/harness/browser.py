"""A real Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, sync_playwright

# where pages are drawn for the documents and for people who look at them; unset: nowhere
SCREENSHOTS = os.environ.get("METASCHED_SCREENSHOTS")


def missing() -> str | None:
    """Return why there is no browser; None if there is one."""
    return None if shutil.which("chromium") else "chromium not found; apt-get install chromium"


@contextmanager
def chromium(program: Path | None = None) -> Iterator[Browser]:
    """Run a browser. It shows the pages of tests alone, so it needs no sandbox of its own.

    `program` starts it, as one that enters a network namespace before.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program or shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()


def barriers(page: Page) -> list[str]:
    """Return what the rules of axe find on a page: the rule, and the first element."""
    violations: list[dict[str, Any]] = []
    for tries_left in reversed(range(3)):
        try:
            violations = Axe().run(page).response["violations"]
            break
        except Error as error:  # a live page has replaced what axe was looking at
            if not tries_left or "documentElement" not in str(error):
                raise
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in violations]


def draw(page: Page, name: str) -> None:
    """Store a picture of a page, if a folder is named."""
    if SCREENSHOTS:
        folder = Path(SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / f"{name}.png")
