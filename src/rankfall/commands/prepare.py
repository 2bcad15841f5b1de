"""``rankfall prepare``: convert raw files to training data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.table import Column, Table

from rankfall.api import preparing
from rankfall.commands import terminal
from rankfall.commands.verb import Call, group, verb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.api import PreparedData
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.sources.problems import DataCheck, Problem

_PACKED = {".gz", ".xz", ".zst"}
_TEXT = {".txt", ".svm", ".svmlight", ".libsvm", ".letor", ".dat"}


def existing_source(text: str) -> str:
    """Refuse a path that does not exist; what a URL names is looked up when it is read."""
    from rankfall.data.sources.object_storage import is_url

    if not is_url(text) and not Path(text).exists():
        raise typer.BadParameter(f"Path {text!r} does not exist.")
    return text


TABLE = {"metavar": "PATH", "parser": existing_source, "kind": str}  # one that is joined to the rows of a log


@verb(
    preparing.letor,
    source={"argument": "SRC...", "kind": list[str]},
    groups={"kind": list[Path]},
    standardise={"metavar": "SPLIT"},
    skip_bad={"metavar": "N"},
    features={"max": 99_999_999},
    first_id={"max": 1},
    threads={"max": 1024},
)
def letor(call: Call, as_json: bool = False) -> None:
    """Prepare ranking files: LETOR, MSLR-WEB, Istella, Yahoo, SVMlight, LightGBM.

    Writes memory-mapped columns, and a manifest with the sources and the options, which --json prints. The memory used
    does not grow with the files. --check lists every problem of the files instead.

    Options:
        groups: File of group sizes for files without qid; once per SRC, in the same order. Default: FILE.query or
            FILE.group beside FILE.

    Examples:
        rankfall prepare letor Fold1/*.txt --out mslr --log1p --standardise train
        rankfall prepare letor S1=S1.txt.gz S2=S2.txt.gz S3=S3.txt.gz S4=S4.txt.gz S5=S5.txt.gz --out mq2007
        rankfall prepare letor train=rank.train --groups rank.train.query --out example
        rankfall prepare letor Fold1/*.txt --check
        rankfall prepare letor data.txt --out arf --min-list 41 --max-list 200 --keep-positives 15 --log1p
    """
    sources: list[str] = call["source"]
    call.given["source"] = _splits(sources)
    if groups := call["groups"]:
        if len(groups) != len(sources):
            raise typer.BadParameter(f"--groups is given {len(groups)} times for {len(sources)} files")
        call.given["groups"] = {_source(text)[1]: file for text, file in zip(sources, groups, strict=True)}
    prepared = _prepare(call, as_json=as_json)
    if as_json:
        terminal.print_json(prepared.manifest)
    else:
        terminal.print_result(lists_table(prepared.manifest, prepared.directory))
    for about in prepared.manifest["splits"].values():
        for source in about["sources"]:
            for bad in source["bad_lines_shown"]:
                terminal.print_message(f"skipped {source['path']}:{bad['line']}: {bad['reason']}")
            if (more := source["bad_lines"] - len(source["bad_lines_shown"])) > 0:
                terminal.print_message(f"skipped {more:,} more lines of {source['path']}")
    terminal.print_warnings(prepared.warnings)


@verb(
    preparing.rows,
    source={"argument": "SRC", "parser": existing_source, "kind": list[str]},
    items=TABLE,
    users=TABLE,
    requests=TABLE,
    append={"metavar": "LOG"},
    skip_bad={"metavar": "N"},
)
def rows(call: Call, as_json: bool = False) -> None:
    """Prepare your own full-stage log: one row per request and item, in CSV, JSON, Parquet or Arrow files.

    The memory used does not grow with the number of rows, and the result does not depend on the files of the log or the
    order of its rows. The first error in a log is reported with the file, row or request; --check lists all of them.
    --append LOG adds new days to a prepared log; the result is the same as if all days had been prepared at once.
    With --grow, new values of vocabularies get ids behind the known ones, whose ids never change.
    --json prints the manifest, or the problems.

    Examples:
        rankfall prepare rows log/ --spec spec.yaml --out impressions
        rankfall prepare rows 2024-01-*.parquet --items videos.csv --users users.csv --spec spec.yaml --out impressions
        rankfall prepare rows log.csv.gz --requests requests.parquet --fit-days 20 --spec spec.yaml --out impressions
        rankfall prepare rows log/ --spec spec.yaml --check
        rankfall prepare rows log/ --spec spec.yaml --skip-bad 100 --out impressions
        rankfall prepare rows --spec spec_with_a_source.yaml --out impressions
        rankfall prepare rows log/ --spec spec.yaml --engine ray --out impressions
        rankfall prepare rows s3://bucket/log/ --items s3://bucket/videos.parquet --spec spec.yaml --out impressions
        rankfall prepare rows 2024-02-01.parquet --append impressions
        rankfall prepare rows 2024-02-01-late.parquet --append impressions --reopen
        rankfall prepare rows 2024-02-02.parquet --append impressions --grow
    """
    _report(_prepare(call, as_json=as_json), as_json=as_json)


@verb(
    preparing.recflow,
    source={"argument": "SRC", "exists": True, "file_okay": False, "kind": Path},
    stages={"kind": Literal["2", "3"]},
    days={"metavar": "FIRST..LAST"},
    append={"metavar": "LOG"},
    skip_bad={"metavar": "N"},
)
def recflow(call: Call, as_json: bool = False) -> None:
    """Prepare RecFlow, the public full-stage log of a video platform, or a log simulated in its layout.

    Times are in Asia/Shanghai. The memory used does not grow with the number of days. --append LOG adds new days to a
    prepared log; the result is the same as if all days had been prepared at once. --json prints the manifest of the
    log.

    Examples:
        rankfall prepare recflow RecFlow --out impressions
        rankfall prepare recflow RecFlow --check
        rankfall prepare recflow RecFlow --days 2024-01-13..2024-02-04 --stages 3 --out impressions
        rankfall prepare recflow RecFlow --append impressions
    """
    if call["stages"] is not None:
        call.given["stages"] = int(call["stages"])
    _report(_prepare(call, as_json=as_json), as_json=as_json)


app = group(
    "prepare",
    "Convert raw files to data for training.",
    [
        "rankfall prepare letor Fold1/*.txt --out mslr --log1p --standardise train",
        "rankfall prepare rows log/ --spec spec.yaml --out impressions",
    ],
    letor,
    rows,
    recflow,
)


def _prepare(call: Call, *, as_json: bool) -> PreparedData:
    """Prepare data; print the problems of a check, or those that are more than ``--skip-bad`` allows, and exit."""
    from rankfall.data.sources.problems import DataCheck, TooManyBadError

    try:
        found: PreparedData | DataCheck = call()
    except TooManyBadError as error:
        for problem in error.check.errors:
            terminal.print_message(problem_line(problem))
        raise
    if not isinstance(found, DataCheck):
        return found
    report_check(found, as_json=as_json)
    raise typer.Exit(1 if found.errors else 0)


# --- problems of raw data -------------------------------------------------------------------------------------------


def report_check(check: DataCheck, *, as_json: bool) -> None:
    """Print the problems of raw data."""
    if as_json:
        terminal.print_json(check.to_json())
    elif check.problems:
        terminal.print_result(problems_table(check.problems, f"{check.rows:,} rows"))
    else:
        terminal.print_result(f"{check.rows:,} rows, no problem found")
    if not as_json:
        terminal.print_message(f"errors: {len(check.errors)}, warnings: {len(check.warnings)}; nothing was written")
        if columns := ", ".join(check.without_numbers):
            terminal.print_message(f"missing: indicator for {columns} in the spec keeps rows without these numbers")
        if check.can_be_skipped:
            otherwise = "otherwise, " if columns else ""
            terminal.print_message(
                f"{otherwise}--skip-bad {check.bad_rows} drops {check.bad_rows:,} bad rows and prepares the others"
            )


def problems_table(problems: Sequence[Problem], title: str) -> Table:
    """Return a table of problems, one row each."""
    dropped = {"row": "the row", "request": "the whole request", "line": "the line", None: "nothing"}
    rows = [
        (
            problem.level,
            problem.column or "",
            problem.problem,
            problem.number,
            "\n".join(map(str, problem.places)),
            "" if problem.level == "warning" else dropped[problem.dropped],
        )
        for problem in problems
    ]
    columns: list[str | Column] = [
        "level",
        Column("column", overflow="fold"),
        Column("problem", ratio=2),
        ">number",
        Column("first places", ratio=2, overflow="fold"),
        "--skip-bad drops",
    ]
    return terminal.table(columns, rows, title=title, show_lines=True)


def problem_line(problem: Problem) -> str:
    """Return a problem as one line."""
    where = "" if problem.column is None else f"column {problem.column!r}: "
    first = f" ({'; '.join(map(str, problem.places))})" if problem.places else ""
    return f"{where}{problem.problem}: {problem.number}{first}"


def skipped_lines(skipped: dict[str, Any]) -> Iterator[str]:
    """Yield what was dropped while a log was prepared, from its manifest: the sum first, then each problem."""
    from rankfall.data.sources.problems import Problem

    requests = f", {skipped['requests']:,} requests among them as a whole" if skipped["requests"] else ""
    yield f"skipped: {skipped['rows']:,} bad rows{requests}"
    for content in skipped["problems"]:
        yield f"skipped: {problem_line(Problem.from_json(content))}"


# --- summaries ------------------------------------------------------------------------------------------------------


def _report(prepared: PreparedData, *, as_json: bool) -> None:
    """Print a summary of a log, or its manifest as JSON, and then warnings."""
    from rankfall.data.impressions.log import ImpressionLog

    log, about = ImpressionLog.load(prepared.directory), prepared.manifest["about"]
    if as_json:
        terminal.print_json(log.manifest)
    else:
        terminal.print_result(_stages(log))
        for what, count in about.get("left_out", {}).items():
            if count:
                terminal.print_result(f"left out: {count:,} {what}")
        if about["counts"]["values"]:
            terminal.print_result(_ids(about["counts"]))
        if any(about["counts"].get("missing_numbers", {}).values()):
            terminal.print_result(_numbers(about["counts"]))
    terminal.print_warnings(prepared.warnings)
    for text in skipped_lines(about["skipped"]) if about.get("skipped") else ():
        terminal.print_message(text)


def _stages(log: ImpressionLog) -> Table:
    from rankfall.data.impressions.requests import stage_counts

    counts, items = log.manifest["about"]["counts"], log.manifest["items"]["count"]
    stages = stage_counts(log)
    rows = [
        [
            stage["stage"],
            f"{stage['logged']:,}",
            f"{stage['logged_per_request']:.1f}",
            "all" if stage["sample"] is None else str(stage["sample"]),
            f"{stage['kept']:,}",
            f"{stage['dropped']:,}",
            f"{stage['short']:,}",
        ]
        for stage in stages.iter_rows(named=True)
    ]
    if counts["negatives"]:
        rows.append(["random negatives", "", "", "", f"{counts['negatives']:,}", "", ""])
    columns: list[str | Column] = [
        Column("stage", "all"),
        Column("rows logged", f"{stages['logged'].sum():,}", justify="right"),
        ">per request",
        ">sample",
        Column("rows kept", f"{stages['kept'].sum():,}", justify="right"),
        Column("dropped: beyond the sample", f"{stages['dropped'].sum():,}", justify="right"),
        ">requests with fewer",
    ]
    title = f"{log.path}: {counts['requests']:,} impressions of {len(log.days)} days, {items:,} items"
    return terminal.table(columns, rows, title=title, show_footer=True)


def _ids(counts: dict[str, Any]) -> Table:
    from rankfall.data.impressions.compatibility import share

    rows = [
        (name, f"{values:,}", *(share(counts[what].get(name, 0), values) for what in ("missing", "unseen")))
        for name, values in counts["values"].items()
    ]
    return terminal.table(["feature", ">values", ">missing", ">never seen"], rows, title="ids of features")


def _numbers(counts: dict[str, Any]) -> Table:
    from rankfall.data.impressions.compatibility import share

    rows = [
        (name, f"{values:,}", share(counts["missing_numbers"].get(name, 0), values))
        for name, values in counts["numbers"].items()
    ]
    return terminal.table(["feature", ">values", ">missing"], rows, title="numbers of features")


def lists_table(manifest: dict[str, Any], out: Path) -> Table:
    """Return a table of the splits of prepared ranking data."""
    rows = [
        (
            name,
            f"{about['lists']:,}",
            f"{about['rows']:,}",
            "{min} to {max}, median {median:g}".format(**about["list_length"]),
            f"{about['lists_without_positive']:,}",
            "\n".join(f"{label}: {count:,}" for label, count in about["labels"].items()),
            "\n".join(_left_out(about, manifest["recipe"])) or "nothing",
        )
        for name, about in manifest["splits"].items()
    ]
    return terminal.table(
        ["split", ">lists", ">rows", ">documents per list", ">none relevant", "labels", "left out"],
        rows,
        title=f"{out}: {manifest['features']['columns']} features",
        caption="none relevant: lists without a relevant document",
        caption_justify="left",
    )


def _left_out(about: dict[str, Any], recipe: dict[str, Any]) -> list[str]:
    short, cut = about["short_lists"], about["cut_lists"]
    bad = sum(source["bad_lines"] for source in about["sources"])
    reasons = []
    if short["lists"]:
        reasons.append(f"{short['lists']:,} lists below {recipe['min_list']} documents ({short['rows']:,} rows)")
    if cut["lists"]:
        reasons.append(f"{cut['rows']:,} rows of {cut['lists']:,} lists above {recipe['max_list']} documents")
    if bad:
        reasons.append(f"{bad:,} invalid lines")
    return reasons


# --- splits of ranking text -----------------------------------------------------------------------------------------


def _source(text: str) -> tuple[str | None, Path]:
    """Return the split, if it is named, and the file of ``FILE`` or ``SPLIT=FILE``."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return None, Path(text)
    return name, Path(path)


def _splits(sources: list[str]) -> dict[str, list[Path]]:
    named = [_source(text) for text in sources]
    for _, path in named:
        if not path.is_file():
            found = "is a directory" if path.is_dir() else "does not exist"
            raise typer.BadParameter(f"{path} {found}, expected a file")
    derived = Counter(_split_name(path) for name, path in named if name is None)
    splits: dict[str, list[Path]] = {}
    for name, path in named:
        split = name if name is not None else _split_name(path)
        if name is None and (derived[split] > 1 or split in splits):
            raise typer.BadParameter(f"{path} has the same split name {split!r} as another file; write {split}={path}")
        splits.setdefault(split, []).append(path)
    return splits


def _split_name(path: Path) -> str:
    if path.suffix in _PACKED:
        path = path.with_suffix("")
    return path.stem if path.suffix in _TEXT else path.name
