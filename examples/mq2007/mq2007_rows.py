"""Rows of MQ2007, for the spec ``spec.yaml``: documents with ranks of 21 systems, 46 features and a judgement.

Two published files describe the same documents. MQ2007-agg (``systems21_S1.txt``) has the rank that each of 21
retrieval systems gave a document, which is known before the document is read. LETOR 4.0 (``features46_S1.txt``) has 46
features of its text and links. A first stage on the ranks and a second one on the features are a real cascade.
"""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

LAST_RANK = 1000  # the length of the lists of the systems
KEY = ["qid", "docid"]


def read(directory: str, missing_at_random: bool = False) -> Iterator[pl.DataFrame]:
    """Yield the documents of one partition after another; documents that one of the files lacks are left out.

    Args:
        directory: Directory of the files, plain or as ``.txt.gz``.
        missing_at_random: Leave out the documents in ``rows_from_models.tsv``. Their features were found in published
            models, and they are relevant more often than others.
    """
    source = Path(os.path.expandvars(directory))
    parts = sorted({path.name.split("_")[1].split(".")[0] for path in source.glob("systems21_*.txt*")})
    if not parts:
        raise ValueError(f"{source}: found neither systems21_S1.txt nor systems21_S1.txt.gz")
    for part in parts:
        ranks = read_file(find(source, f"systems21_{part}"), 21, may_miss=True)
        features = read_file(find(source, f"features46_{part}"), 46)
        rows = ranks.join(features, on=KEY, suffix="_of_features", maintain_order="left")
        if len(differ := rows.filter(pl.col("label") != pl.col("label_of_features"))):
            qid, docid = differ.row(0)[:2]
            raise ValueError(f"part {part}: document {docid} of query {qid} has another label among the features")
        if missing_at_random:
            listed = pl.read_csv(
                source / "rows_from_models.tsv", separator="\t", columns=KEY, schema_overrides={"docid": pl.String}
            )
            rows = rows.join(listed, on=KEY, how="anti", maintain_order="left")
        yield columns(rows).with_columns(part=pl.lit(part))


def columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of the description: a rank r becomes 1 - log(1 + r) / log(1001), and 0 if it is missing."""
    ranks = rows["values"].to_numpy()
    returned = ~np.isnan(ranks)
    found = np.where(returned, ranks, LAST_RANK)
    if ((found < 1) | (found > LAST_RANK)).any():
        raise ValueError(f"found a rank outside 1 to {LAST_RANK}")
    return rows.select(
        "qid",
        "label",
        id=pl.format("{}/{}", "qid", "docid"),
        rank=2 - pl.col("label"),
        systems=pl.Series(np.where(returned, 1 - np.log1p(found) / np.log1p(LAST_RANK), 0)),
        returned=pl.Series(returned.astype(np.float32)),
        features="values_of_features",
    )


def read_file(path: Path, size: int, *, may_miss: bool = False) -> pl.DataFrame:
    """Read query, document, label and `size` values of lines such as ``2 qid:10 1:107 2:NULL #docid = GX000-24``."""
    lines = pl.DataFrame({"text": read_text(path).splitlines()}).with_row_index("line", offset=1)
    if len(lines) == 0:
        raise ValueError(f"{path}: found no lines")
    fields = pl.col("text").str.split("#").list.first().str.strip_chars().str.split(" ")
    found = lines.select(
        "line",
        label=fields.list.get(0, null_on_oob=True).str.extract(r"^([0-2])$").cast(pl.Int64),
        qid=fields.list.get(1, null_on_oob=True).str.extract(r"^qid:(\d+)$").cast(pl.Int64),
        docid=pl.col("text").str.extract(r"#docid = (\S+)"),
        numbers=fields.list.slice(2).list.eval(pl.element().str.extract(r"^(\d+):")).list.join(" "),
        values=fields.list.slice(2).list.eval(pl.element().str.extract(r":(.*)$")),
    )
    check(path, found, pl.col("label").is_not_null(), "expected a label of 0, 1 or 2")
    check(path, found, pl.col("qid").is_not_null(), "expected qid:NUMBER after the label")
    check(path, found, pl.col("docid").is_not_null(), "expected '#docid = ...' after the values")
    expected = " ".join(str(number) for number in range(1, size + 1))
    check(path, found, pl.col("numbers") == expected, f"expected values numbered 1 to {size}")
    missing = pl.element() == "NULL" if may_miss else pl.lit(False)
    numbers = pl.col("values").list.eval(
        pl.when(missing).then(float("nan")).otherwise(pl.element().cast(float, strict=False))
    )
    check(path, found, numbers.list.eval(pl.element().is_not_null()).list.all(), "found a value that is not a number")
    check(path, found, pl.struct(KEY).is_first_distinct(), "found the document of the query a second time")
    return found.select("qid", "docid", "label", values=numbers.list.to_array(size))


def check(path: Path, lines: pl.DataFrame, right: pl.Expr, message: str) -> None:
    """Raise an error that names the first line for which an expression is not true."""
    wrong = lines.filter(~right.fill_null(False))
    if len(wrong):
        raise ValueError(f"{path}:{wrong['line'][0]}: {message}")


def find(source: Path, name: str) -> Path:
    """Return the path of a file, plain or compressed."""
    found = [path for path in (source / f"{name}.txt", source / f"{name}.txt.gz") if path.is_file()]
    if len(found) != 1:
        raise ValueError(f"{source}: found {len(found)} of {name}.txt and {name}.txt.gz, expected one of them")
    return found[0]


def read_text(path: Path) -> str:
    """Return the content of a file, plain or compressed."""
    try:
        return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    except EOFError:
        raise ValueError(f"{path}: the file is truncated") from None
