"""``rankfall prepare letor``: prepare ranking data from ranking text."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.options import MAX_NUMBER, AsJson, Force, Seed
from rankfall.commands.prepare.problems import Check, OutUnlessChecked, report_check, required_out
from rankfall.commands.terminal import examples, print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

EXAMPLES = examples(
    "rankfall prepare letor Fold1/*.txt --out mslr --log1p --standardise train",
    "rankfall prepare letor S1=S1.txt.gz S2=S2.txt.gz S3=S3.txt.gz S4=S4.txt.gz S5=S5.txt.gz --out mq2007",
    "rankfall prepare letor train=rank.train --groups rank.train.query --out example",
    "rankfall prepare letor Fold1/*.txt --check",
    "rankfall prepare letor data.txt --out arf --min-list 41 --max-list 200 --keep-positives 15 --log1p",
)
SkipBadLines = Annotated[
    int | None,
    typer.Option(
        "--skip-bad",
        min=0,
        max=MAX_NUMBER,
        metavar="N",
        help="Skip and report invalid lines, at most N. With more of them nothing is written.",
        show_default="an invalid line is an error",
    ),
]
_PACKED = {".gz", ".xz", ".zst"}
_TEXT = {".txt", ".svm", ".svmlight", ".libsvm", ".letor", ".dat"}


def letor(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC...",
            help="Ranking files (LETOR/SVMlight text, plain, gzip, xz or zstd), each FILE or SPLIT=FILE. "
            "Without a name the split has the name of the file; files of the same split are read in turn.",
            show_default=False,
        ),
    ],
    out: OutUnlessChecked = None,
    groups: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of group sizes for files without qid; once per SRC, in the same order. "
            "Default: FILE.query or FILE.group beside FILE.",
            show_default=False,
        ),
    ] = None,
    min_list: Annotated[int, typer.Option(min=1, max=MAX_NUMBER, help="Drop lists with fewer documents.")] = 1,
    max_list: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_NUMBER, help="Cut longer lists to a sample of this size.", show_default="any length"
        ),
    ] = None,
    keep_positives: Annotated[
        int,
        typer.Option(min=0, max=MAX_NUMBER, help="Smallest number of documents with a label above 0 in such a sample."),
    ] = 15,
    replacement: Annotated[
        bool,
        typer.Option(
            "--replacement", help="Draw such a sample with replacement; too few positives are repeated (ARF, B.2)."
        ),
    ] = False,
    log1p: Annotated[bool, typer.Option("--log1p", help="Transform features to sign(v) log(1 + |v|).")] = False,
    standardise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT",
            help="Scale features to mean 0 and variance 1, fitted on this split only (repeatable). With "
            "cross-validation, standardise in training instead.",
            show_default=False,
        ),
    ] = None,
    missing_value: Annotated[
        float | None,
        typer.Option(
            help="Replacement for NULL, NaN, infinite and empty values (after --log1p, before --standardise).",
            show_default="they are errors",
        ),
    ] = None,
    missing_indicator: Annotated[
        bool,
        typer.Option(
            "--missing-indicator",
            help="Add a column for each feature with missing values, which is 1 where they are missing.",
        ),
    ] = False,
    regroup: Annotated[
        bool, typer.Option("--regroup", help="Join the lines of queries that are not consecutive.")
    ] = False,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Skip and report invalid lines instead of stopping.")
    ] = False,
    check: Check = False,
    skip_bad: SkipBadLines = None,
    features: Annotated[
        int | None,
        typer.Option(min=1, max=99_999_999, help="Number of features.", show_default="the largest id that occurs"),
    ] = None,
    first_id: Annotated[
        int | None,
        typer.Option(min=0, max=1, help="Smallest feature id.", show_default="0 if it occurs, else 1"),
    ] = None,
    seed: Seed = 0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Number of parsing threads.", show_default="all cores, at most 8"),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Prepare ranking files: LETOR, MSLR-WEB, Istella, Yahoo, SVMlight, LightGBM.

    Writes memory-mapped columns, and a manifest with the sources and the options, which --json prints. The memory used
    does not grow with the files. --check lists every problem of the files instead.
    """
    from rankfall.data import Recipe, prepare_letor

    splits = _splits(sources)
    _check_options(splits, min_list, max_list, standardise or [], missing_value, missing_indicator=missing_indicator)
    recipe = Recipe(
        min_list=min_list,
        max_list=max_list,
        keep_positives=keep_positives,
        replacement=replacement,
        log1p=log1p,
        missing_value=missing_value,
        missing_indicator=missing_indicator,
        standardise=tuple(standardise or ()),
        regroup=regroup,
        skip_bad_lines=skip_bad_lines,
        features=features,
        first_id=first_id,
        seed=seed,
    )
    given = _groups(sources, groups)
    used = threads or min(8, len(os.sched_getaffinity(0)))
    if check:
        from rankfall.data.sources.letor.split_reader import check_letor

        with _reading(splits) as on_read:
            found = check_letor(splits, recipe, groups=given, threads=used, on_read=on_read)
        report_check(found, as_json=as_json)
        return
    directory = required_out(out)
    with _reading(splits) as on_read:
        data = prepare_letor(
            splits,
            directory,
            recipe,
            groups=given,
            threads=used,
            force=force,
            skip_bad=skip_bad,
            on_read=on_read,
        )
    if as_json:
        print_json(data.manifest)
    else:
        print_result(summary(data.manifest, directory))
    _warn(data.manifest)


def _check_options(
    splits: dict[str, list[Path]],
    min_list: int,
    max_list: int | None,
    standardise: list[str],
    missing_value: float | None,
    *,
    missing_indicator: bool,
) -> None:
    """Refuse options that do not fit each other."""
    if missing_indicator and missing_value is None:
        raise typer.BadParameter("--missing-indicator needs --missing-value")
    if max_list is not None and max_list < min_list:
        raise typer.BadParameter(f"--max-list {max_list} is below --min-list {min_list}")
    for name in standardise:
        if name not in splits:
            raise typer.BadParameter(f"--standardise: found {name}, expected one of the splits {', '.join(splits)}")


@contextmanager
def _reading(splits: dict[str, list[Path]]) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how much of the files has been read."""
    files = [path for paths in splits.values() for path in paths]
    with progress() as bar:
        task = bar.add_task("reading (kB)", total=sum(path.stat().st_size for path in files) // 1000)
        yield lambda count: bar.advance(task, count / 1000)


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


def _groups(sources: list[str], groups: list[Path] | None) -> dict[Path, Path]:
    if not groups:
        return {}
    if len(groups) != len(sources):
        raise typer.BadParameter(f"--groups is given {len(groups)} times for {len(sources)} files")
    return {_source(text)[1]: file for text, file in zip(sources, groups, strict=True)}


def summary(manifest: dict[str, Any], out: Path) -> Table:
    """Return a table of the splits of prepared ranking data."""
    from rich.table import Table

    columns = manifest["features"]["columns"]
    table = Table(title=f"{out}: {columns} features", title_justify="left")
    table.add_column("split")
    for heading in ("lists", "rows", "documents per list", "none relevant"):
        table.add_column(heading, justify="right")
    table.caption = "none relevant: lists without a relevant document"
    table.caption_justify = "left"
    table.add_column("labels")
    table.add_column("left out")
    for name, about in manifest["splits"].items():
        length = about["list_length"]
        table.add_row(
            name,
            f"{about['lists']:,}",
            f"{about['rows']:,}",
            f"{length['min']} to {length['max']}, median {length['median']:g}",
            f"{about['lists_without_positive']:,}",
            "\n".join(f"{label}: {count:,}" for label, count in about["labels"].items()),
            "\n".join(_left_out(about, manifest["recipe"])) or "nothing",
        )
    return table


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


def _warn(manifest: dict[str, Any]) -> None:
    for about in manifest["splits"].values():
        for source in about["sources"]:
            for bad in source["bad_lines_shown"]:
                print_message(f"skipped {source['path']}:{bad['line']}: {bad['reason']}")
            if (more := source["bad_lines"] - len(source["bad_lines_shown"])) > 0:
                print_message(f"skipped {more:,} more lines of {source['path']}")
    for pair, count in manifest["shared_queries"].items():
        print_message(f"warning: splits {pair} share {count:,} queries; a test on one uses training data of the other")
