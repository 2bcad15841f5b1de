"""What the manifest of a prepared log says about where it came from, and how it is summed up."""

from __future__ import annotations

from contextlib import closing
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from rankfall._files import about_file
from rankfall.data.impressions.assemble import column_of
from rankfall.data.impressions.spec import Categorical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.counts import Counts
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.sources.rows.columns import Place
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.request_order import Requests
    from rankfall.data.sources.rows.row_files import Source


class Written(NamedTuple):
    """What became of the rows, and of each table the number of keys of the log that it does not have."""

    counts: Counts
    unknown: dict[Place, int]


def about_rows(
    raw: RawLog,
    requests: Requests,
    encoding: Encoding,
    written: Written,
    *,
    seed: int,
    fit_days: Sequence[str],
    on_file: Report,
    engine: Engine,
) -> dict[str, Any]:
    """How a log was made of rows, what came in and what became of it. `on_file` hears of each file that was read."""
    with closing(engine.map(_file, (source for some in raw.sources.values() for source in some), on_file)) as found:
        files = {place: [next(found) for _ in sources] for place, sources in raw.sources.items()}
    logs, counts = files.pop("log"), written.counts
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
        "hashed": _hashed(raw),
        "counts": counts.to_json(),
        "dropped": {"beyond the sample": {name: counts.logged[name] - counts.kept[name] for name in counts.logged}},
        "unseen_shares": {name: unseen / counts.values[name] for name, unseen in counts.unseen.items() if unseen},
        "unknown": written.unknown | ({"requests": requests.unknown} if "requests" in raw.sources else {}),
        "unused_requests": requests.unused,
        "empty_days": [] if raw.spec.day is not None else _gaps(requests.days),
    }


def _hashed(raw: RawLog) -> dict[str, str]:
    """What hashes were made of: 7 and "7" have different ones, so whoever makes more of them has to know."""
    found = {}
    for group, name, feature in raw.spec.features:
        if isinstance(feature, Categorical) and feature.hash_bucket_size is not None:
            column = column_of(raw.spec, name, feature)
            is_text = raw.types[raw.places[column], column] == pl.String()
            found[f"{group}.{name}"] = "text" if is_text else "numbers"
    return found


def _file(source: Source, report: Report) -> dict[str, Any]:
    about = about_file(source.path)
    report(1)
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
