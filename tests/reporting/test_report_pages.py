"""Reports in a real browser: nothing is cut off, in a window or on a telephone."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Literal

import pytest
import yaml
from playwright.sync_api import FloatRect

from rankfall.reporting.comparison_page import comparison_page
from rankfall.reporting.files import figures_of
from rankfall.reporting.stream_page import stream_page
from support import chromium
from support.cascades import content, liked_log
from support.command_line import run
from support.results import METHODS, compared, streamed
from support.trials import trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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

PIXEL = """async image => {
    const drawn = await createImageBitmap(await (await fetch("data:image/png;base64," + image)).blob());
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.drawImage(drawn, 0, 0);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    found = browser.new_page()
    found.set_default_timeout(90_000)  # on a busy machine
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
@pytest.mark.parametrize("wide", [trial(320), 390, trial(1100), trial(1280)])
def test_nothing_is_wider_than_the_page(page: Page, make: Callable[[list[str]], str], wide: int) -> None:
    show(page, make(HOSTILE), wide)
    assert page.evaluate("document.documentElement.scrollWidth") == wide
    assert page.evaluate(TOO_FAR, wide) == []


@pytest.mark.parametrize("make", [comparison, stream])
def test_a_window_has_room_for_every_table(page: Page, make: Callable[[list[str]], str]) -> None:
    show(page, make(list(METHODS)), 1100)
    assert page.evaluate(SCROLLED) == []


def test_a_table_that_scrolls_has_a_shade_at_its_edge(page: Page) -> None:
    """The pixels at the right edge differ while there is more to see, and do not at the end."""
    show(page, comparison(list(METHODS)), 390)
    box = page.locator(".scroll").first

    def edge() -> tuple[int, int, int]:
        place = box.bounding_box()
        assert place is not None
        x, y = place["x"] + place["width"] - 2, place["y"] + place["height"] - 5
        image = page.screenshot(full_page=True, clip=FloatRect(x=x, y=y, width=1, height=1))
        return page.evaluate(PIXEL, base64.b64encode(image).decode())  # type: ignore[no-any-return]

    assert max(edge()) < 240
    box.evaluate("one => { one.scrollLeft = one.scrollWidth }")
    assert min(edge()) > 250


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [comparison, stream])
def test_pages_ask_for_nothing_and_have_no_errors(
    browser: Browser, make: Callable[[list[str]], str], scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url))
    page.on("console", lambda message: found.append(message.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    show(page, make(list(METHODS)), 1280)
    page.wait_for_load_state("networkidle")
    assert found == []
    page.emulate_media(media="print", color_scheme=scheme)
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(28, 36, 48)"  # paper is white, whatever the scheme of the screen
    context.close()


@pytest.mark.parametrize("make", [comparison, stream])
def test_charts_are_as_wide_as_the_page(page: Page, make: Callable[[list[str]], str]) -> None:
    show(page, make(list(METHODS)), 1280)
    wide = page.evaluate("document.querySelector('main').clientWidth") - 32
    assert page.locator("figure.chart").evaluate_all("all => all.map(one => one.clientWidth)") == pytest.approx(
        [wide] * page.locator("figure.chart").count(), abs=1
    )


def test_the_page_of_a_run_with_everything(page: Page, tmp_path: Path) -> None:
    log = liked_log(tmp_path / "log")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content(log, training={"epochs": 2})))
    out = str(tmp_path / "run")
    assert run("train", str(tmp_path / "config.yaml"), "--out", out) == 0
    assert run("evaluate", out, "--diagnose") == 0
    assert run("plan", out) == 0
    html = (tmp_path / "run" / "report.html").read_text()
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url))
    page.on("console", lambda message: found.append(message.text))
    for wide in (320, 390, 1280):
        show(page, html, wide)
        assert page.evaluate("document.documentElement.scrollWidth") == wide
        assert page.evaluate(TOO_FAR, wide) == []
    assert found == []
    heads = page.locator("h2").all_inner_texts()
    assert heads[:5] == ["Funnel", "Headline", "What to do next", "Diagnosis", "Plan"]
    (warning,) = page.locator("section", has_text="Funnel").first.locator(".warning").all_inner_texts()
    assert warning.startswith("Recall is measured on lists of 11 items, but the log has 40 items")
    assert page.get_by_text(warning).count() == 1  # the plan does not repeat it
    names = set(figures_of(tmp_path / "run"))
    assert {"funnel", "joint-recall-with-perfect-stages", "quotas-by-cost"} <= names


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
