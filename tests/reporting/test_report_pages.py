"""Reports in a real browser: nothing is cut off, in a window or on a telephone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rankfall.reporting.comparison_page import comparison_page
from rankfall.reporting.stream_page import stream_page
from support import chromium
from support.results import METHODS, compared, streamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    chromium.needed,
    pytest.mark.xdist_group("report_pages"),  # one browser
]

HOSTILE = [*METHODS, "x" * 90, "<b>a name of many words, of which each is short, " * 3]
TOO_FAR = """wide => [...document.querySelectorAll("main *")].filter(one => {
    const {left, right} = one.getBoundingClientRect();
    return !one.closest("table") && (left < -1 || right > wide + 1);
}).map(one => one.outerHTML)"""
SCROLLED = """[...document.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.innerText)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    found = browser.new_page()
    yield found
    found.close()


def show(page: Page, html: str, wide: int) -> None:
    page.set_viewport_size({"width": wide, "height": 900})
    page.set_content(html)
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true })")


def comparison(methods: list[str]) -> str:
    return comparison_page(compared(methods=methods), title="Three stages", config="a: b\n", command="rankfall " * 30)


def stream(methods: list[str]) -> str:
    return stream_page(streamed(methods=methods), title="A stream")


@pytest.mark.parametrize("make", [comparison, stream])
@pytest.mark.parametrize("wide", [320, 390, 1100, 1280])
def test_nothing_is_wider_than_the_page(page: Page, make: Callable[[list[str]], str], wide: int) -> None:
    show(page, make(HOSTILE), wide)
    assert page.evaluate("document.documentElement.scrollWidth") == wide
    assert page.evaluate(TOO_FAR, wide) == []


@pytest.mark.parametrize("make", [comparison, stream])
def test_a_window_has_room_for_every_table(page: Page, make: Callable[[list[str]], str]) -> None:
    show(page, make(list(METHODS)), 1100)
    assert page.evaluate(SCROLLED) == []


def test_names_stay_where_a_telephone_scrolls_a_table(page: Page) -> None:
    show(page, comparison(list(METHODS)), 390)
    box = page.locator(".scroll").first
    box.evaluate("one => { one.scrollLeft = one.scrollWidth }")
    assert box.evaluate("one => one.scrollLeft") > 0
    name = box.get_by_role("rowheader", name="LCRON, DFTopK").bounding_box()
    cell = box.get_by_role("row", name="LCRON, DFTopK").locator("td").last.bounding_box()
    assert name is not None
    assert cell is not None
    assert name["x"] == pytest.approx(16, abs=1)  # the margin of the page
    assert name["x"] + name["width"] <= cell["x"]
    assert cell["x"] + cell["width"] <= 390
