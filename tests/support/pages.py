"""Pages in a real Chromium, without a display."""

import contextlib
import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP = (390, 844), (1280, 800)
"""Width and height of a screen, in CSS pixels."""


@contextlib.contextmanager
def browser():
    """A browser; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


def open_page(opened, address, size):
    """A page of a browser at a size."""
    page = opened.new_page(viewport=dict(zip(("width", "height"), size, strict=True)))
    page.goto(address)
    return page
