"""The provenance of a log that was prepared from rows, as it is stored in the manifest."""

from __future__ import annotations

from contextlib import closing
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall._files import about_file
from rankfall.data.impressions.spec import Categorical, column_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.counts import Counts
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.sources.problems import Findings
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.request_order import RequestOrder
    from rankfall.data.sources.rows.row_files import RowFile


def provenance(
    raw: RawLog,
    requests: RequestOrder,
    encoding: Encoding,
    counts: Counts,
    unknown: Mapping[Origin, int],
    *,
    seed: int,
    fit_days: Sequence[str],
    on_file: Report,
    engine: Engine,
) -> dict[str, Any]:
    """Describe the sources of a log, the settings and fitted values of its preparation, and what became of the rows.

    Args:
        raw: The raw log.
        requests: The order of its requests.
        encoding: The fitted encoding.
        counts: The counts of all portions.
        unknown: For each table the number of keys of the log that it does not have.
        seed: The seed of the sampler.
        fit_days: The days that the encoding was fitted to.
        on_file: Receives 1 for each file whose checksum was computed.
        engine: Runs the work on the files.
    """
    with closing(engine.map(_about_file, (file for files in raw.files.values() for file in files), on_file)) as found:
        files = {origin: [next(found) for _ in files] for origin, files in raw.files.items()}
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
        "hashed": _hashed_types(raw),
        "counts": counts.to_json(),
        "dropped": {"beyond the sample": {name: counts.logged[name] - counts.kept[name] for name in counts.logged}},
        "unseen_shares": {name: unseen / counts.values[name] for name, unseen in counts.unseen.items() if unseen},
        "unknown": {**unknown, **({"requests": requests.unknown} if "requests" in raw.files else {})},
        "unused_requests": requests.unused,
        "empty_days": [] if raw.spec.day is not None else _gaps(requests.days),
    }


def skipped_json(found: Findings, limit: int) -> dict[str, Any]:
    """Describe the bad rows that were dropped.

    Args:
        found: The bad rows and their problems.
        limit: The number of rows that might have been dropped.
    """
    return {
        "limit": limit,
        "rows": found.bad_rows,
        "requests": found.requests,
        "problems": [problem.to_json() for problem in found.problems() if problem.dropped is not None],
    }


def _hashed_types(raw: RawLog) -> dict[str, str]:
    """Return whether hashes were computed from text or numbers; 7 and "7" have different ones, also when serving."""
    found = {}
    for group, name, feature in raw.spec.features:
        if isinstance(feature, Categorical) and feature.hash_bucket_size is not None:
            column = column_of(raw.spec, name, feature)
            is_text = raw.types[raw.origins[column], column] == pl.String()
            found[f"{group}.{name}"] = "text" if is_text else "numbers"
    return found


def _about_file(file: RowFile, report: Report) -> dict[str, Any]:
    about = about_file(file.path)
    report(1)
    return about


def _gaps(days: Sequence[str]) -> list[str]:
    """Return the dates between the first and the last day that have no rows."""
    dates = [date.fromisoformat(day) for day in days]
    return [str(one + timedelta(n)) for one, other in pairwise(dates) for n in range(1, (other - one).days)]
