"""Chromium for tests of pages, which are skipped without it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PROGRAM = next((found for name in _NAMES if (found := shutil.which(name))), None)
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
_FLAGS += ["--disable-background-networking", "--disable-component-update"]
needed = pytest.mark.skipif(_PROGRAM is None, reason=f"needs one of {', '.join(_NAMES)} (make browser)")


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a browser and close it afterwards."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_PROGRAM, args=_FLAGS)
        yield browser
        browser.close()
