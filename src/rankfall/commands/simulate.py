"""``rankfall simulate``: write the full-stage log of a simulated platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall import api
from rankfall.commands.options import AsJson
from rankfall.commands.terminal import print_json, print_result
from rankfall.commands.verb import Call, verb

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.api import SimulatedLog


@verb(
    api.simulate,
    "rankfall simulate log --preset tiny",
    "rankfall simulate log --preset recflow-like --days 22 --requests-per-day 3000 --seed 1",
    "rankfall simulate log --preset recflow-like-3 --truth",
    "rankfall simulate clicks --preset recflow-like --relevant effective_view",
    "rankfall simulate RecFlow --preset recflow-like --layout recflow",
    "rankfall simulate ads --preset industry-hard",
    "rankfall simulate log --preset tiny --days 5 --append",
    out={"argument": "OUT"},
    layout={"help": "An impression log for training, or RecFlow's files for 'rankfall prepare recflow'."},
    relevant={"metavar": "FEEDBACK"},
)
def simulate(call: Call, as_json: AsJson = False) -> None:
    """Simulate a platform and write the full-stage log of its cascade.

    Interests of users drift, items are uploaded and expire, and an imperfect cascade serves requests day by day. The
    memory used does not grow with requests; it grows with days only by the data of items. A longer log begins with the
    same days as a shorter one.
    """
    log: SimulatedLog = call()
    summary = log.to_json()
    if as_json:
        print_json(summary)
        return
    print_result(
        f"{call['out']}: {log.preset}, {log.days} days, {log.impressions:,} impressions, {log.rows:,} rows, "
        f"{summary['megabytes']:,} MB, {summary['seconds']} s"
    )
    print_result(_stages(summary))


def _stages(summary: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("stage")
    table.add_column("rows logged", justify="right")
    table.add_column("per request", justify="right")
    if any("kept" in counts for counts in summary["stages"].values()):
        table.add_column("kept in impressions", justify="right")
        table.add_column("per request", justify="right")
    for name, counts in summary["stages"].items():
        cells = [text for count in counts.values() for text in (f"{count:,}", f"{count / summary['impressions']:.1f}")]
        table.add_row(name, *cells)
    return table
