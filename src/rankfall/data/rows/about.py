"""What the manifest of a prepared log says about where it came from, and how it is summed up."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall._files import about_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.data.counts import Counts
    from rankfall.data.encoding import Encoding
    from rankfall.data.log import ImpressionLog
    from rankfall.data.rows.portions import Portions
    from rankfall.data.rows.source import Source


def about_rows(
    portions: Portions,
    encoding: Encoding,
    counts: Counts,
    *,
    seed: int,
    fit_days: Sequence[str],
    on_file: Callable[[int], None],
) -> dict[str, Any]:
    """How a log was made of rows, what came in and what became of it. `on_file` hears of each file that was read."""
    raw, requests = portions.raw, portions.requests
    files = {place: [_file(source, on_file) for source in sources] for place, sources in raw.sources.items()}
    logs = files.pop("log")
    return {
        "command": "prepare rows",
        "sources": [about | {"rows": rows} for about, rows in zip(logs, requests.rows_by_file, strict=True)],
        "tables": files,
        "seed": seed,
        "fit_days": list(fit_days),
        "scalings": {
            key: {"mean": list(mean), "deviation": list(deviation)}
            for key, (mean, deviation) in encoding.scalings.items()
        },
        "edges": dict(encoding.edges),
        "counts": counts.to_json(),
        "dropped": {"beyond the sample": {name: counts.logged[name] - counts.kept[name] for name in counts.logged}},
        "unseen_shares": {name: unseen / counts.values[name] for name, unseen in counts.unseen.items() if unseen},
        "unknown": {place: len(keys.result()) for place, keys in portions.unknown.items()}
        | ({"requests": requests.unknown} if "requests" in raw.sources else {}),
        "unused_requests": requests.unused,
        "empty_days": [] if raw.spec.day is not None else _gaps(requests.days),
    }


def _file(source: Source, on_file: Callable[[int], None]) -> dict[str, Any]:
    about = about_file(source.path)
    on_file(1)
    return about


def _gaps(days: Sequence[str]) -> list[str]:
    """Dates between the first and the last day on which nothing was logged."""
    dates = [date.fromisoformat(day) for day in days]
    return [str(one + timedelta(n)) for one, other in pairwise(dates) for n in range(1, (other - one).days)]


def stage_counts(log: ImpressionLog) -> pl.DataFrame:
    """What the sampler did: for each stage the rows that were logged, those kept, and both for each request.

    `short` is the number of requests that had fewer items of the stage than were asked for.
    """
    counts = log.manifest["about"]["counts"]
    names = log.spec.stage_names
    frame = pl.DataFrame(
        {
            "stage": names,
            "sample": [stage.sample for stage in log.spec.stages],
            **{what: [counts[what].get(name, 0) for name in names] for what in ("logged", "kept", "short")},
        },
        schema={"stage": pl.String, "sample": pl.Int64, "logged": pl.Int64, "kept": pl.Int64, "short": pl.Int64},
    )
    requests = max(counts["requests"], 1)
    return frame.with_columns(
        dropped=pl.col("logged") - pl.col("kept"),
        logged_per_request=pl.col("logged") / requests,
        kept_per_request=pl.col("kept") / requests,
    )
