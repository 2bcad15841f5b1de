"""The provenance of a log that was prepared from rows, as it is stored in the manifest."""

from __future__ import annotations

from contextlib import closing
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall._files import about_file
from rankfall.data.impressions.log import PER_REQUEST
from rankfall.data.impressions.log_warnings import depends_on_request
from rankfall.data.impressions.spec import Categorical, column_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import Findings
    from rankfall.data.sources.rows.log_state import LogState
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.request_order import RequestOrder
    from rankfall.data.sources.rows.row_files import RowFile


def provenance(
    raw: RawLog,
    requests: RequestOrder,
    state: LogState,
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
        state: The state after the last day, with its encoding and counts.
        seed: The seed of the sampler.
        fit_days: The days that the encoding was fitted to.
        on_file: Receives 1 for each file whose checksum was computed.
        engine: Runs the work on the files.
    """
    given = {origin: [file for file in files if not file.typed] for origin, files in raw.files.items()}
    with closing(engine.map(_about_file, (file for files in given.values() for file in files), on_file)) as found:
        files = {origin: [next(found) for _ in files] for origin, files in given.items()}
    rows_by_file = [rows for file, rows in zip(raw.files["log"], requests.rows_by_file, strict=True) if not file.typed]
    logs, encoding, counts = files.pop("log"), state.encoding, state.counts
    unknown = {origin: len(keys) for origin, keys in state.unknown.items()}
    features = state.repeats.per_request()
    if raw.spec.negatives and features:
        raise ValueError(
            f"negatives: {depends_on_request(features)}, so no items can be added to lists; expected 0, or item "
            "features that an item has for all requests of a day"
        )
    return {
        "command": "prepare rows",
        "sources": [about | {"rows": rows} for about, rows in zip(logs, rows_by_file, strict=True)],
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
        "dropped": {
            "beyond the sample": {name: counts.logged[name] - counts.kept[name] for name in sorted(counts.logged)}
        },
        "unseen_shares": {
            name: unseen / counts.values[name] for name, unseen in sorted(counts.unseen.items()) if unseen
        },
        "unknown": {**unknown, **({"requests": state.unknown_requests} if "requests" in raw.files else {})},
        "unused_requests": requests.unused,
        "empty_days": [] if raw.spec.day is not None else _gaps(requests.days),
        **({PER_REQUEST: features} if features else {}),
    }


def appended_provenance(
    before: Mapping[str, Any], made: Mapping[str, Any], days: Sequence[str], spec: Spec
) -> dict[str, Any]:
    """Return the provenance of a log after days were appended.

    Args:
        before: The provenance before.
        made: The provenance of the new days, with the counts of all days.
        days: All days of the log, in order.
        spec: The description of the log.
    """
    tables = {origin: list(files) for origin, files in before["tables"].items()}
    for origin, files in made["tables"].items():
        known = tables.setdefault(origin, [])
        known += [file for file in files if file not in known]
    combined = {
        **{key: value for key, value in before.items() if key != PER_REQUEST},  # decided anew on all days
        **made,
        "command": before["command"],
        "sources": before["sources"] + made["sources"],
        "tables": tables,
        "unused_requests": before["unused_requests"] + made["unused_requests"],
        "empty_days": [] if spec.day is not None else _gaps(days),
    }
    if "skipped" in before and "skipped" in made:
        both = (before["skipped"], made["skipped"])
        combined["skipped"] = {key: both[0][key] + both[1][key] for key in both[0]}
    return combined


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
    return {**about, "path": str(file)}


def _gaps(days: Sequence[str]) -> list[str]:
    """Return the dates between the first and the last day that have no rows."""
    dates = [date.fromisoformat(day) for day in days]
    return [str(one + timedelta(n)) for one, other in pairwise(dates) for n in range(1, (other - one).days)]
