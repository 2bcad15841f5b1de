"""The page of a stream: the curve of each method, all days, day by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting import html as page
from rankfall.reporting.comparison_table import caption, short
from rankfall.reporting.html import Cell
from rankfall.reporting.stream_table import curves, day_rows

if TYPE_CHECKING:
    from rankfall.reporting.comparison_table import Cell as Figures

STREAM, STREAM_CONFIG = "stream.json", "stream.yaml"
SHOWN = 14  # days, the last ones; others are folded


def stream_sections(result: dict[str, Any]) -> list[str]:
    """The parts of a page that streams have and comparisons do not."""
    return [
        page.section(f"{result['metric']} day by day", _curves(result)),
        page.section("Day by day", *_days(result)),
        page.section("Bundles that were refused", _refused(result)),
    ]


def learned(result: dict[str, Any]) -> str:
    """What was done, in a sentence."""
    days = result["learned"]
    if len(days) == 1:
        return f"One day, {days[0]}, which was learned from; those that follow will be measured before that."
    return (
        f"{len(days)} days, {days[0]} to {days[-1]}: each was measured by what was learned from the days before it, "
        "then learned from, once."
    )


def _curves(result: dict[str, Any]) -> str:
    found = curves(result)
    if not found:
        return page.paragraph("No day has been measured yet.", soft=True)
    ends = ", ".join(f"{name} from {short(points[0][1])} to {short(points[-1][1])}" for name, points in found.items())
    label = f"{result['metric']} of each day by what was learned before it: {ends}"
    first = result["learned"][0]
    return page.curves(found, label=label, caption=f"By the number of the day; the first, {first}, is not measured.")


def _days(result: dict[str, Any]) -> list[str]:
    """The last days; those before them are folded."""
    names = list(curves(result))
    body: list[list[str | Cell]] = [
        [day, *(_cell(cells.get(name)) for name in names), chance] for day, cells, chance in day_rows(result)
    ]
    if not body:
        return []
    head = ["day", *names, "chance"]
    below = f"{result['metric']}, mean over impressions. Bold: best. {caption({'unit': 'impressions'})}"
    earlier = body[:-SHOWN]
    count = f"{len(earlier)} earlier day{'s' * (len(earlier) > 1)}"
    folded = [page.folded(count, page.table(head, earlier))] if earlier else []
    return [page.table(head, body[-SHOWN:], caption=below), *folded]


def _refused(result: dict[str, Any]) -> str:
    """What could not be done with the weights."""
    body = [[one["method"], Cell(f"{one['run']}: {one['message']}", "words")] for one in result.get("refused", [])]
    return page.table(["method", "run"], body) if body else ""


def _cell(found: Figures | None) -> str | Cell:
    """Nothing is known of a method that failed before, or has not come to the day."""
    return "none" if found is None else page.mean(found)
