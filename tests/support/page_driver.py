"""Actions on the funnel explorer in a browser, and readers of its content."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rankfall.encoding import Lookup
from rankfall.serving import Bundle
from rankfall.serving.export.simulated_source import simulated_source
from rankfall.serving.export.write_bundle import write_bundle
from rankfall.storage.manifests import about_files, seal
from support.bundles import platform_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from rankfall.serving.bundle import Ranking, StageTrace
    from support.services import Running

DIGITS = 5e-5  # scores are shown with four


def narrow_bundle(out: Path) -> Path:
    """Write a bundle with the platform's models and a smaller quota in the first stage, so that answers differ."""
    shutil.copytree(platform_bundle(), out)
    (out / "examples.json").write_text("[]")  # computed with the larger quota
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").unlink()
    manifest["stages"][0]["quota"] = 12
    manifest["files"] = about_files(out)
    (out / "manifest.json").write_text(json.dumps(manifest | {"sha256": seal(manifest)}))
    return out


ATTACKS = (
    '<script>hacked = 1</script><img src="x" onerror="hacked = 1">&lt;',
    '"><svg onload="hacked = 1"></svg>',
    "</script></pre></style></title><script>hacked = 1</script>",
    "javascript:hacked=1//",
    "' onfocus='hacked = 1' autofocus='",
    "${hacked = 1}{{hacked = 1}}<!--",
)


def hostile_bundle(out: Path) -> Bundle:
    """Write a bundle with markup as item ids and attributes, and an index that misses some of the best items."""
    source = simulated_source(2000, users=50, quotas=(200, 20), requests=256)
    texts = [f"{ATTACKS[number % len(ATTACKS)]}{number}" for number in range(2000)]
    ids = pa.array(texts, pa.large_string())
    display = {"title": pa.array(texts[::-1], pa.large_string())}
    table = replace(source.items, lookup=Lookup.of(ids, name="items"), display=display)
    write_bundle(replace(source, items=table), out, recall=0.8, exact_below=1000)
    return Bundle.load(out)


def foreign_elements(page: Page) -> int:
    """Return the number of elements that only markup in data could have created."""
    count: int = page.evaluate(
        """() => document.querySelectorAll(
            "img, script:not([src]), svg[onload], [onfocus], [onerror], [href^='javascript:'], [src^='javascript:']"
        ).length + Number(typeof hacked !== "undefined")"""
    )
    return count


def address_of(service: Running) -> str:
    return f"http://127.0.0.1:{service.port}"


def show(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_selector(".card")


def rank_again(page: Page, act: Callable[[], object]) -> None:
    """Do something that ranks a request, and wait until the new funnel has replaced the old one."""
    page.evaluate("for (const one of document.querySelectorAll('.card')) one.dataset.old = ''")
    act()
    page.wait_for_selector(".card:not([data-old])")


def card(page: Page, stage: str, title: str = "") -> Locator:
    return page.get_by_label(f"{title} {stage}".strip(), exact=True).and_(page.locator("section"))


def rows(card: Locator) -> list[dict[str, Any]]:
    """Return the displayed items of a stage."""
    found: list[dict[str, Any]] = card.locator("[role=option]").evaluate_all(
        """found => found.map(row => ({
            rank: Number(row.querySelector(".rank").textContent.replace(",", "")),
            id: row.querySelector(".id").textContent,
            score: Number(row.querySelector(".score").textContent),
            kept: row.classList.contains("kept"),
            only: row.querySelector(".only") !== null,
            moved: row.querySelector(".moved")?.textContent ?? null,
        }))"""
    )
    return found


def funnel(bundle: Bundle, place: int = 0, **options: Any) -> tuple[Ranking, list[StageTrace]]:
    ranking = bundle.rank(bundle.examples()[place]["request"], explain=True, **options)
    assert ranking.stages is not None
    return ranking, ranking.stages


def assert_shows(page: Page, stages: list[StageTrace]) -> None:
    """Check that every displayed list equals that of the bundle."""
    for stage in stages:
        shown = rows(card(page, stage.name))
        assert [row["id"] for row in shown] == [str(one) for one in stage.ids]
        assert [row["rank"] for row in shown] == list(range(1, len(stage.ids) + 1))
        assert [row["score"] for row in shown] == pytest.approx(stage.scores, abs=DIGITS)
        assert [row["kept"] for row in shown] == [place < stage.kept for place in range(len(stage.ids))]


def explain(page: Page, item: str) -> None:
    page.get_by_label("Find an item").fill(item)
    page.get_by_role("button", name="Explain").click()
    is_shown = "item => document.querySelector('.path .id')?.textContent === item"
    page.wait_for_function(f"{is_shown} || document.getElementById('item-error').textContent", arg=item)


def step(page: Page, stage: str) -> tuple[str | None, str]:
    """Return the verdict and the sentence about a stage."""
    found = page.locator(f".step[data-stage={stage}]")
    return found.get_attribute("data-state"), found.inner_text()


def in_window(found: Locator) -> bool:
    """Return whether an element is in the window, uncovered at its center and not clipped."""
    inside: bool = found.evaluate(
        """one => {
            const { left, right, top, bottom } = one.getBoundingClientRect();
            const there = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
            return top >= 0 && bottom <= innerHeight && (one.contains(there) || there.contains(one));
        }"""
    )
    return inside


def in_its_list(row: Locator) -> bool:
    """Return whether a row is in the visible part of its list, below the headings."""
    inside: bool = row.evaluate(
        """row => {
            const list = row.closest(".items"), at = row.getBoundingClientRect();
            const top = list.querySelector(".heads").getBoundingClientRect().bottom;
            return at.top >= top - 1 && at.bottom <= list.getBoundingClientRect().bottom + 1;
        }"""
    )
    return inside


def assert_has_numbers(text: str, *numbers: float) -> None:
    shown = [float(one) for one in re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", text)]
    for number in numbers:
        assert any(abs(number - one) <= DIGITS for one in shown), (number, text)


def tab_to(page: Page, selector: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never reaches {selector}")


def focused(page: Page, what: str) -> str:
    found: str = page.evaluate(f"document.activeElement.{what}")
    return found
