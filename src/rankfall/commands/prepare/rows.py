"""``rankfall prepare rows``: prepare impressions from logs with one row per request and item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall._progress import steps
from rankfall.commands.options import (
    MAX_NUMBER,
    AsJson,
    EngineName,
    EngineOption,
    Force,
    SampleSeed,
    existing_source,
    opened_engine,
    table_option,
)
from rankfall.commands.prepare.problems import (
    Check,
    OutUnlessChecked,
    SkipBad,
    report_check,
    required_out,
    showing_problems,
)
from rankfall.commands.prepare.summary import report
from rankfall.commands.terminal import examples

EXAMPLES = examples(
    "rankfall prepare rows log/ --spec spec.yaml --out impressions",
    "rankfall prepare rows 2024-01-*.parquet --items videos.csv --users users.csv --spec spec.yaml --out impressions",
    "rankfall prepare rows log.csv.gz --requests requests.parquet --fit-days 20 --spec spec.yaml --out impressions",
    "rankfall prepare rows log/ --spec spec.yaml --check",
    "rankfall prepare rows log/ --spec spec.yaml --skip-bad 100 --out impressions",
    "rankfall prepare rows --spec spec_with_a_source.yaml --out impressions",
    "rankfall prepare rows log/ --spec spec.yaml --engine ray --out impressions",
    "rankfall prepare rows s3://bucket/log/ --items s3://bucket/videos.parquet --spec spec.yaml --out impressions",
    "rankfall prepare rows 2024-02-01.parquet --append impressions",
    "rankfall prepare rows 2024-02-01-late.parquet --append impressions --reopen",
    "rankfall prepare rows 2024-02-02.parquet --append impressions --grow",
)


def rows(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SRC",
            parser=existing_source,
            help="Files (.csv, .jsonl, .ndjson, these also with .gz, .parquet, .feather, .arrow, .ipc), directories of "
            "them or Delta tables, with one row per request and item; also s3://, gs:// and file:// URLs. The result "
            "does not depend on how the log is split into files.",
            show_default="the source of the spec",
        ),
    ] = None,
    *,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="Description of columns, stages and features, a YAML file.",
            show_default="that of --append",
        ),
    ] = None,
    out: OutUnlessChecked = None,
    items: Annotated[str | None, table_option("A table with features of items.")] = None,
    users: Annotated[str | None, table_option("A table with features of users.")] = None,
    requests: Annotated[
        str | None, table_option("A table with times, users, context and sequences of requests.")
    ] = None,
    seed: SampleSeed = 0,
    fit_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_NUMBER,
            help="Number of first days that vocabularies, scalings and buckets are fitted to.",
            show_default="all but the last two, at least one",
        ),
    ] = None,
    append: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Append new days to this log, with its description, vocabularies, scalings and buckets.",
            show_default=False,
        ),
    ] = None,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="With --append: the rows may be late rows of the newest day.")
    ] = False,
    grow: Annotated[
        bool,
        typer.Option(
            "--grow", help="Add new values of appended days, or of days after --fit-days, to the vocabularies."
        ),
    ] = False,
    check: Check = False,
    skip_bad: SkipBad = None,
    engine: EngineOption = EngineName.LOCAL,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Prepare your own full-stage log: one row per request and item, in CSV, JSON, Parquet or Arrow files.

    The memory used does not grow with the number of rows, and the result does not depend on the files of the log or the
    order of its rows. The first error in a log is reported with the file, row or request; --check lists all of them.
    --append LOG adds new days to a prepared log; the result is the same as if all days had been prepared at once.
    With --grow, new values of vocabularies get ids behind the known ones, whose ids never change.
    --json prints the manifest, or the problems.
    """
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import load_spec
    from rankfall.data.sources.rows.prepare_rows import append_rows, check_rows, check_tables, prepare_rows

    _check_options(spec, append, reopen, {"--out": out, "--fit-days": fit_days, "--seed": seed, "--force": force})
    if spec is not None:
        description = load_spec(spec)
    else:
        assert append is not None  # by _check_options
        description = ImpressionLog.load(append).spec
    if not sources and description.source is None:
        raise typer.BadParameter("Missing argument 'SRC...', and the spec names no source")
    tables: dict[Any, Any] = {"items": items, "users": users, "requests": requests}
    if check:
        if append is not None:
            check_tables(ImpressionLog.load(append), tables)
        with opened_engine(engine) as opened, steps() as on_progress:
            found = check_rows(sources or [], description, **tables, engine=opened, on_progress=on_progress)
        report_check(found, as_json=as_json)
        return
    if append is not None:
        with showing_problems(), opened_engine(engine) as opened, steps() as on_progress:
            log = append_rows(
                sources or [],
                append,
                spec=None if spec is None else description,
                **tables,
                reopen=reopen,
                grow=grow,
                skip_bad=skip_bad,
                engine=opened,
                on_progress=on_progress,
            )
        report(log, as_json=as_json)
        return
    directory = required_out(out)
    with showing_problems(), opened_engine(engine) as opened, steps() as on_progress:
        log = prepare_rows(
            sources or [],
            directory,
            description,
            **tables,
            seed=seed,
            fit_days=fit_days,
            grow=grow,
            force=force,
            skip_bad=skip_bad,
            engine=opened,
            on_progress=on_progress,
        )
    report(log, as_json=as_json)


def _check_options(spec: Path | None, append: Path | None, reopen: bool, of_new_logs: dict[str, Any]) -> None:
    """Check that the options of new logs and those of logs to append to are not mixed."""
    if append is None:
        if spec is None:
            raise typer.BadParameter("Missing option '--spec', or '--append' for a log that has one")
        if reopen:
            raise typer.BadParameter("needs --append LOG", param_hint="--reopen")
        return
    for name, value in of_new_logs.items():
        if value:
            raise typer.BadParameter("has no effect with --append, which keeps what the log has", param_hint=name)
