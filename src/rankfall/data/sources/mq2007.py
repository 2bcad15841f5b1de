"""MQ2007 as a funnel: a query is a request, its judged documents are the items.

Two published files describe the same documents. MQ2007-agg has the rank that each of 21 retrieval systems gave a
document, which is known before the document is read; LETOR 4.0 has 46 features of its text and links. A first stage
with ``item.systems`` and ``item.returned`` and a second one with ``item.features`` therefore make a real cascade. Its
documents were judged by people: ``relevance`` is their grade, 0 to 2, and ``grade`` follows it.

A rank r becomes 1 - log(1 + r) / log(1001): 0.9 for the first of a list, near 0 for the last of a thousand, and 0, with
a 0 in ``returned``, for a document that a system did not return. Documents that one of the files lacks are left out and
counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.compute as pc

from rankfall._files import fresh_directory
from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.items import item_table
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.letor.parse import Rules, parse_block
from rankfall.data.sources.letor.text_files import TextFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec

SYSTEMS, FEATURES = 21, 46
LAST_RANK = 1000  # the length of the lists of the systems
STAGE = "judged"
MODEL_ROWS = "rows_from_models.tsv"
WITHOUT_FEATURES, WITHOUT_RANKS = "documents without features", "documents without ranks"
FROM_MODELS = "documents whose features come from models"

_KEY = ["qid", "docid"]


def mq2007_spec() -> Spec:
    """Return the description of the joined files."""
    return validate_spec(
        {
            "request": "qid",
            "item": "id",
            "day": "part",
            "rank": "rank",
            "stages": [{"name": STAGE}],
            "relevant": {"column": "label"},
            "features": {
                "item": {
                    "systems": {"kind": "dense", "size": SYSTEMS},
                    "returned": {"kind": "dense", "size": SYSTEMS},
                    "features": {"kind": "dense", "size": FEATURES},
                }
            },
        }
    )


def prepare_mq2007(
    source: Path,
    out: Path,
    *,
    missing_at_random: bool = False,
    force: bool = False,
    on_read: Callable[[int], None] = lambda n: None,
) -> ImpressionLog:
    """Join ``systems21_S?.txt`` and ``features46_S?.txt`` of a directory into a log whose days are the partitions.

    Args:
        source: The directory of the files.
        out: The directory to write.
        missing_at_random: Leave out the rows listed in ``rows_from_models.tsv``, whose features were found in published
            models and which are relevant more often than others.
        force: Replace an existing impression log.
        on_read: Receives the number of bytes read.

    Raises:
        ValueError: If a file is missing or has an invalid line, or if the files contradict each other.
    """
    encoding = Encoding(mq2007_spec())
    with fresh_directory(out, is_log, force=force) as directory:
        left_out = _rows_from_models(source / MODEL_ROWS) if missing_at_random else None
        sources: list[dict[str, Any]] = []
        counts: Counter[str] = Counter()
        parts = []
        for name in _parts_of(source):
            ranks = _read(_file(source, "systems21", name), SYSTEMS, Rules(missing=True), on_read, sources)
            features = _read(_file(source, "features46", name), FEATURES, Rules(), on_read, sources)
            parts.append(_join(name, ranks, features, left_out, counts))
        rows = _columns(pl.concat(parts))
        items = item_table(rows, encoding)
        assembled = assemble(rows, encoding, items=items)
        writer = LogWriter(directory, encoding.spec, encoding.features, assembled.days[0][1].schema)
        for day, impressions in assembled.days:
            writer.write(day, impressions)
        about = {
            "command": "prepare mq2007",
            "sources": sources,
            "item_features": "per request",  # an item is a document of one query and cannot be drawn for another
            "counts": assembled.counts.to_json(),
            "left_out": dict(counts),
        }
        writer.finish(items, {}, about)
    return ImpressionLog.load(out)


def source_files(source: Path) -> list[Path]:
    """Return the ranking files of a directory that are read."""
    return [_file(source, kind, part) for part in _parts_of(source) for kind in ("systems21", "features46")]


def _parts_of(source: Path) -> list[str]:
    names = {path.name.removesuffix(".gz").removesuffix(".txt") for path in source.glob("*_S*.txt*")}
    parts = sorted({name.partition("_")[2] for name in names if name.startswith(("systems21_", "features46_"))})
    if not parts:
        raise ValueError(f"{source}: found neither systems21_S1.txt (or .txt.gz) nor other parts of MQ2007-agg")
    return parts


def _file(source: Path, kind: str, part: str) -> Path:
    names = [f"{kind}_{part}.txt", f"{kind}_{part}.txt.gz"]
    found = [source / name for name in names if (source / name).is_file()]
    if len(found) != 1:
        raise ValueError(
            f"{source}: found {'both' if found else 'neither'} {' and '.join(names)}, expected one of them"
        )
    return found[0]


# --- reading ----------------------------------------------------------------------------------------------------


def _read(
    path: Path, size: int, rules: Rules, on_read: Callable[[int], None], sources: list[dict[str, Any]]
) -> pl.DataFrame:
    """Read query, document, label and `size` values of every line of a ranking file, and add the file to `sources`."""
    tables, line, source = [], 1, TextFile(path, on_read)
    for text in source.blocks():
        block = parse_block(text, rules)
        if block.bad:
            raise ValueError(f"{path}:{line + block.bad[0].line}: {block.bad[0].reason}")
        _check_lines(path, line + block.lines, block.counts, block.ids, size, block.docids)
        tables.append(
            pl.DataFrame(
                {
                    "qid": pl.Series(block.qids),
                    "docid": pl.Series(block.docids),
                    "label": block.labels,
                    "line": line + block.lines,
                    "values": block.values.reshape(-1, size),
                }
            )
        )
        line += text.count(b"\n")
    rows = sum(map(len, tables))
    if not rows:
        raise ValueError(f"{path}: found no lines")
    sources.append({"path": str(path), "bytes": source.bytes, "sha256": source.sha256, "rows": rows})
    return _checked(path, pl.concat(tables))


def _check_lines(
    path: Path,
    lines: NDArray[np.int64],
    counts: NDArray[np.int64],
    ids: NDArray[np.int32],
    size: int,
    docids: Any,
) -> None:
    """Check that every line has the ids 1 to `size` and a document."""
    # ids increase along a line, so `size` ids are 1 to `size` if the first and the last are
    ends = np.cumsum(counts)
    wrong = counts != size
    if not wrong.any():
        wrong = (ids[ends - 1] != size) | (ids[ends - size] != 1)
    if wrong.any():
        number = int(lines[np.flatnonzero(wrong)[0]])
        raise ValueError(f"{path}:{number}: found other values than those numbered 1 to {size}")
    absent = np.ones(len(lines), np.bool_) if docids is None else pc.equal(docids, "").to_numpy(zero_copy_only=False)
    if absent.any():
        number = int(lines[np.flatnonzero(absent)[0]])
        raise ValueError(f"{path}:{number}: found no document, expected '# docid = ...' after the values")


def _checked(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    try:
        rows = rows.with_columns(pl.col("qid").cast(pl.Int64))
    except pl.exceptions.PolarsError:
        bad = rows.filter(pl.col("qid").cast(pl.Int64, strict=False).is_null())
        raise ValueError(f"{path}:{bad['line'][0]}: found qid:{bad['qid'][0]}, expected a whole number") from None
    grades = rows.filter((pl.col("label") < 0) | (pl.col("label") != pl.col("label").floor()))
    if len(grades):
        raise ValueError(
            f"{path}:{grades['line'][0]}: found the label {grades['label'][0]:g}, expected a whole number from 0"
        )
    again = rows.filter(pl.struct(_KEY).is_duplicated())
    if len(again):
        first = again.filter(pl.struct(_KEY) == pl.struct(_KEY).first())["line"]
        raise ValueError(f"{path}:{first[1]}: document {again['docid'][0]} of query {again['qid'][0]} occurs twice")
    return rows


def _rows_from_models(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; it lists the rows that --missing-at-random leaves out")
    try:
        return pl.read_csv(path, separator="\t", columns=_KEY, schema_overrides={"qid": pl.Int64, "docid": pl.String})
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: expected the columns qid and docid, separated by tabs ({error})") from None


# --- joining ----------------------------------------------------------------------------------------------------


def _join(
    part: str, ranks: pl.DataFrame, features: pl.DataFrame, left_out: pl.DataFrame | None, counts: Counter[str]
) -> pl.DataFrame:
    """Return the documents of a partition that both files have; `counts` receives the number of others."""
    counts[WITHOUT_FEATURES] += len(ranks.join(features, on=_KEY, how="anti"))
    counts[WITHOUT_RANKS] += len(features.join(ranks, on=_KEY, how="anti"))
    rows = ranks.join(features, on=_KEY, suffix="_of_features", maintain_order="left")
    differ = rows.filter(pl.col("label") != pl.col("label_of_features"))
    if len(differ):
        raise ValueError(
            f"part {part}: document {differ['docid'][0]} of query {differ['qid'][0]} has the label "
            f"{differ['label'][0]:g} among the ranks and {differ['label_of_features'][0]:g} among the features"
        )
    if left_out is not None:
        counts[FROM_MODELS] += len(rows.join(left_out, on=_KEY, how="semi"))
        rows = rows.join(left_out, on=_KEY, how="anti", maintain_order="left")
    return rows.with_columns(part=pl.lit(part))


def _columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that the description names."""
    if len(rows) == 0:
        raise ValueError("found no document with both ranks and features")
    parts = rows.group_by("qid").agg(pl.col("part").unique()).filter(pl.col("part").list.len() > 1).sort("qid")
    if len(parts):
        raise ValueError(f"query {parts['qid'][0]} occurs in {' and in '.join(sorted(parts['part'][0]))}")
    ranks = rows["values"].to_numpy().astype(np.float64)
    returned = ~np.isnan(ranks)
    found = np.where(returned, ranks, LAST_RANK)
    if (bad := np.flatnonzero(((found < 1) | (found > LAST_RANK)).any(axis=1))).size:
        row = rows.row(int(bad[0]), named=True)
        raise ValueError(
            f"part {row['part']}: document {row['docid']} of query {row['qid']} has a rank outside 1 to {LAST_RANK}"
        )
    return rows.select(
        "qid",
        "part",
        "label",
        id=pl.format("{}/{}", "qid", "docid"),
        rank=(pl.col("label").max() - pl.col("label")).cast(pl.Int64),  # a better label gets a higher grade
        systems=pl.Series(np.where(returned, 1 - np.log1p(found) / np.log1p(LAST_RANK), 0)),
        returned=pl.Series(returned.astype(np.float32)),
        features="values_of_features",
    )
