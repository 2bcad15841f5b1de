"""The picture of a funnel against its figures, on paper and by a loop."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from rankfall.reporting.blocks import Columns, Details, Section, Text, figures_in
from rankfall.reporting.funnel import Step, funnel_chart, funnel_panels, steps_from_means, steps_of
from rankfall.training.cascade_metrics import Estimate, StageFigures

if TYPE_CHECKING:
    from rankfall.reporting.blocks import Block
    from rankfall.reporting.charts import Chart


def around(value: float, width: float = 0.02) -> Estimate:
    return Estimate(value, value - width, value + width)


def figures(stage: str, quota: int, entered: float, before: float, left: float, all_lost: float) -> StageFigures:
    """Figures of a stage; a random stage keeps quota / entered of what arrives."""
    lost = before - left
    share = around(lost / all_lost if all_lost else math.nan)
    return StageFigures(
        stage, quota, entered, around(left), around(left / before), quota / entered, around(lost), share
    )


def funnel() -> list[StageFigures]:
    """Of 1,000 items three stages keep 100, 40 and 10: .9, .6 and .45 of the ground truth are left."""
    return [
        figures("retrieval", 100, 1000, 1.0, 0.9, 0.55),
        figures("preranking", 40, 100, 0.9, 0.6, 0.55),
        figures("ranking", 10, 40, 0.6, 0.45, 0.55),
    ]


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart.__html__()))


def bars(tree: ElementTree.Element) -> list[list[float]]:
    found = [float(one.attrib["width"].rstrip("%")) for one in tree.iter() if one.tag.endswith("rect")]
    return [found[place : place + 3] for place in range(0, len(found), 3)]


def marks(tree: ElementTree.Element) -> list[float]:
    return [float(one.attrib["x"].rstrip("%")) for one in tree.iter() if one.tag.endswith("svg") and "x" in one.attrib]


def numbers(tree: ElementTree.Element) -> list[str]:
    """The numbers in the bars, from left to right."""
    return [one.text or "" for one in tree.iter() if one.tag.endswith("text") and one.get("class")]


def test_parts_of_bars_marks_and_numbers() -> None:
    tree = drawn(funnel_chart(steps_of(funnel())))
    assert bars(tree) == [pytest.approx(row) for row in ([90, 10, 0], [60, 30, 10], [45, 15, 40])]
    # a random stage would leave a tenth of all, .4 of the .9 that arrive, and a quarter of the .6 that arrive
    assert marks(tree) == pytest.approx([10, 36, 15])
    assert numbers(tree) == [".900", "−.100", ".600", "−.300", ".450", "−.150"]  # noqa: RUF001
    words = " ".join("".join(tree.itertext()).split())
    assert "retrieval keeps 100 of 1,000" in words
    assert "kept .667 [.647, .687], chance .400" in words
    assert "lost .300 [.280, .320], 55 % of all losses" in words


def test_intervals_are_where_the_figures_say() -> None:
    tree = drawn(funnel_chart(steps_of(funnel())))
    ink = [one for one in tree.iter() if one.tag.endswith("line") and one.get("stroke") == "var(--ink)"]
    level = [one for one in ink if one.get("y1") == one.get("y2")]
    ends = [(float(one.attrib["x1"].rstrip("%")), float(one.attrib["x2"].rstrip("%"))) for one in level]
    assert ends == [pytest.approx(pair) for pair in ((88, 92), (58, 62), (43, 47))]


def test_production_is_below_the_bars() -> None:
    chart = funnel_chart(steps_of(funnel()), steps_of(funnel()[::1]))
    tree = drawn(chart)
    found = [float(one.attrib["width"].rstrip("%")) for one in tree.iter() if one.tag.endswith("rect")]
    assert found[3::4] == pytest.approx([90, 60, 45])
    assert "left by production" in "".join(tree.itertext())
    assert "Production: retrieval keeps 100" in chart.label


@pytest.mark.parametrize("lengths", [[11], [40, 60, 100]])
def test_means_give_the_steps_of_single_lists(lengths: list[int]) -> None:
    """Chance given what arrived is the ratio of the quotas, however long the lists are, if no list is shorter."""
    quotas, left = {"first": 8, "second": 2}, [1.0, 0.7, 0.35]
    chance = {
        "first/lost": sum(1 - 8 / n for n in lengths) / len(lengths),
        "second/lost": sum(8 / n - 2 / n for n in lengths) / len(lengths),
    }
    means = {"joint_recall": 0.35, "first/lost": 0.3, "second/lost": 0.35}
    first, second = steps_from_means(means, chance, quotas)
    assert (first.before, first.left, second.before, second.left) == pytest.approx((1.0, *left[1:2], *left[1:]))
    assert first.chance == pytest.approx(sum(8 / n for n in lengths) / len(lengths))
    assert second.chance == pytest.approx(0.7 * 2 / 8)
    assert second.name == "second keeps 2"


@pytest.mark.parametrize("left", [0.0, 0.02, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("before", [0.05, 0.5, 1.0])
def test_numbers_stay_inside_and_apart(before: float, left: float) -> None:
    """Numbers of the widest letters in a bar of 358 pixels, as on a telephone."""
    step = Step("only", before, min(left, before), 0.3 * before)
    tree = drawn(funnel_chart([step]))
    places = []
    for one in tree.iter():
        if one.tag.endswith("text") and one.get("class"):
            wide = 100 * 7.4 * len(one.text or "") / 358
            x = float(one.attrib["x"].rstrip("%"))
            places.append((x - wide, x) if one.get("text-anchor") == "end" else (x, x + wide))
    assert all(low >= 0 and high <= 100 for low, high in places)
    assert all(first[1] <= second[0] for first, second in pairwise(places))
    assert bars(tree) == [pytest.approx([100 * step.left, 100 * step.lost, 100 - 100 * before], abs=0.01)]


def test_nothing_left_is_no_error() -> None:
    means = {"joint_recall": 0.0, "first/lost": 1.0, "second/lost": 0.0}
    steps = steps_from_means(means, {"first/lost": 0.5, "second/lost": 0.2})
    tree = drawn(funnel_panels({"method": steps}, {}))
    assert bars(tree) == [[0, 100, 0], [0, 0, 100]]
    assert marks(tree) == [50.0, 0.0]


def test_a_chart_is_a_file_with_the_same_numbers() -> None:
    chart = funnel_chart(steps_of(funnel()), title="The funnel")
    (name,) = figures_in([chart])
    assert name == "the-funnel"
    text = chart.svg()
    assert "var(--" not in text
    tree = ElementTree.fromstring(text)
    shares = [float(one.attrib["width"].rstrip("%")) for one in tree.iter() if one.get("width", "").endswith("%")]
    assert [share for share in shares if share != 100] == pytest.approx([90, 10, 0, 60, 30, 10, 45, 15, 40])
    words = "".join(tree.itertext())
    assert all(one in words for one in ("The funnel", "preranking keeps 40 of 100", "chance .250", "lost before"))


def test_files_have_different_names() -> None:
    chart = funnel_chart(steps_of(funnel()))
    blocks: list[Block] = [chart, Section("b", [Columns([[Text("text")], [chart]]), Details("c", [chart])])]
    assert list(figures_in(blocks)) == ["funnel", "funnel-2", "funnel-3"]


def test_panels_have_the_names_of_methods() -> None:
    steps = steps_of(funnel())
    chart = funnel_panels({"LCRON, <DFTopK>": steps, "BCE": steps}, {"BCE": "joint_recall .450"})
    tree = drawn(chart)
    assert [one.text for one in tree.iter("b")] == ["LCRON, <DFTopK>", "BCE"]
    assert len(bars(tree)) == 6
    assert re.findall(r"joint_recall \.450", "".join(tree.itertext()))
    assert chart.label.count("retrieval keeps 100") == 2
