"""The picture of a stream: a curve for each method, and how far it is ahead of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Lines
from rankfall.reporting.html import whole_ticks

if TYPE_CHECKING:
    from rankfall.reporting.figures import Record


def stream_plot(result: dict[str, Any]) -> Lines:
    """The stream's metric on each day, with a band of a standard deviation over seeds, from ``stream.json``."""
    metric, seeds, days = result["metric"], len(result["seeds"]), result["learned"]
    first = result["methods"][0]["name"] if len(result["methods"]) > 1 else None
    rows: list[Record] = []
    for entry in result["days"]:
        number = days.index(entry["day"]) + 1
        rows += _points(entry, number, metric, seeds)
        rows += _leads(entry, number, metric, first) if first else []
    band = f", bands of a standard deviation over {seeds} seeds" if seeds > 1 else ""
    return Lines(
        rows=sorted(rows, key=lambda row: row["panel"] != metric),
        title=f"{metric} of each day by what was learned before it",
        subtitle=f"{len(days)} days from {days[0]} on{band}",
        x="day",
        y=metric,
        series="method",
        ticks=whole_ticks([row["x"] for row in rows]),
    )


def _points(entry: dict[str, Any], number: int, metric: str, seeds: int) -> list[Record]:
    points: list[Record] = []
    for method in entry["methods"]:
        mean, std = (method["metrics"][metric][key] for key in ("mean", "std"))
        point = {"series": method["name"], "x": number, "y": mean, "panel": metric}
        points.append(point | ({"low": mean - std, "high": mean + std} if seeds > 1 else {}))
    return points


def _leads(entry: dict[str, Any], number: int, metric: str, first: str) -> list[Record]:
    """How far methods are ahead of the first on a day."""
    means = {method["name"]: method["metrics"][metric]["mean"] for method in entry["methods"]}
    if first not in means:
        return []
    panel = f"ahead of {first}"
    return [{"series": name, "x": number, "y": mean - means[first], "panel": panel} for name, mean in means.items()]
