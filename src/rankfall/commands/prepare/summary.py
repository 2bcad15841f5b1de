"""The summary that commands print after writing an impression log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.commands.prepare.problems import skipped_lines
from rankfall.commands.terminal import print_json, print_message, print_result

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.data.impressions.log import ImpressionLog


def report(log: ImpressionLog, *, as_json: bool) -> None:
    """Print a summary of the log, or its manifest as JSON, and then warnings."""
    if as_json:
        print_json(log.manifest)
    else:
        _show_summary(log)
    _warn(log)


def _show_summary(log: ImpressionLog) -> None:
    """Print tables of the rows that were read, kept and dropped."""
    about = log.manifest["about"]
    print_result(_stages(log))
    if about["counts"]["values"]:
        print_result(_ids(about["counts"]))
    if any(about["counts"].get("missing_numbers", {}).values()):
        print_result(_numbers(about["counts"]))


def _warn(log: ImpressionLog) -> None:
    """Print warnings to standard error, one line each."""
    from rankfall.data.impressions.compatibility import log_warnings

    about = log.manifest["about"]
    for message in log_warnings(about):
        print_message(f"warning: {message}")
    if skipped := about.get("skipped"):
        for message in skipped_lines(skipped):
            print_message(message)


def _stages(log: ImpressionLog) -> Table:
    from rich.table import Table

    from rankfall.data.impressions.requests import stage_counts

    counts, items = log.manifest["about"]["counts"], log.manifest["items"]["count"]
    title = f"{log.path}: {counts['requests']:,} impressions of {len(log.days)} days, {items:,} items"
    table = Table(title=title, title_justify="left", show_footer=True)
    stages = stage_counts(log)
    table.add_column("stage", "all")
    table.add_column("rows logged", f"{stages['logged'].sum():,}", justify="right")
    table.add_column("per request", justify="right")
    table.add_column("sample", justify="right")
    table.add_column("rows kept", f"{stages['kept'].sum():,}", justify="right")
    table.add_column("dropped: beyond the sample", f"{stages['dropped'].sum():,}", justify="right")
    table.add_column("requests with fewer", justify="right")
    for stage in stages.iter_rows(named=True):
        table.add_row(
            stage["stage"],
            f"{stage['logged']:,}",
            f"{stage['logged_per_request']:.1f}",
            "all" if stage["sample"] is None else str(stage["sample"]),
            f"{stage['kept']:,}",
            f"{stage['dropped']:,}",
            f"{stage['short']:,}",
        )
    if counts["negatives"]:
        table.add_row("random negatives", "", "", "", f"{counts['negatives']:,}", "", "")
    return table


def _ids(counts: dict[str, Any]) -> Table:
    from rich.table import Table

    from rankfall.data.impressions.compatibility import share

    table = Table(title="ids of features", title_justify="left")
    table.add_column("feature")
    for heading in ("values", "missing", "never seen"):
        table.add_column(heading, justify="right")
    for name, values in counts["values"].items():
        missing, unseen = (counts[what].get(name, 0) for what in ("missing", "unseen"))
        table.add_row(name, f"{values:,}", share(missing, values), share(unseen, values))
    return table


def _numbers(counts: dict[str, Any]) -> Table:
    from rich.table import Table

    from rankfall.data.impressions.compatibility import share

    table = Table(title="numbers of features", title_justify="left")
    table.add_column("feature")
    for heading in ("values", "missing"):
        table.add_column(heading, justify="right")
    for name, values in counts["numbers"].items():
        table.add_row(name, f"{values:,}", share(counts["missing_numbers"].get(name, 0), values))
    return table
