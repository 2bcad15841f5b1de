"""``rankfall prepare recflow``: prepare impressions from RecFlow's published layout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankfall._progress import steps
from rankfall.commands.options import AsJson, EngineName, EngineOption, Force, SampleSeed, opened_engine
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
    "rankfall prepare recflow RecFlow --out impressions",
    "rankfall prepare recflow RecFlow --check",
    "rankfall prepare recflow RecFlow --days 2024-01-13..2024-02-04 --stages 3 --out impressions",
    "rankfall prepare recflow RecFlow --append impressions",
)


class Cascade(StrEnum):
    """The number of stages of the cascade."""

    TWO = "2"
    THREE = "3"


class Origin(StrEnum):
    """The origin of behaviour sequences."""

    PICKLE = "pickle"
    LOG = "log"
    NONE = "none"


def recflow(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            exists=True,
            file_okay=False,
            help="Directory with all_stage/, and optionally seq_effective_50_dict/ and others/id_cnt.pkl.",
            show_default=False,
        ),
    ],
    out: OutUnlessChecked = None,
    stages: Annotated[
        Cascade | None,
        typer.Option(
            help="Cascade of two stages (ten items each of prerank_neg, coarse_neg, rank_neg, rank_pos) or of three "
            "(rerank_neg and rerank_pos instead of rank_pos).",
            show_default="2",
        ),
    ] = None,
    days: Annotated[
        str | None,
        typer.Option(metavar="FIRST..LAST", help="Only these days; also DAY, FIRST.. or ..LAST.", show_default="all"),
    ] = None,
    sequences: Annotated[
        Origin | None,
        typer.Option(
            help="Origin of behaviour sequences: the published pickles, which are read without running code, or the "
            "views in the log itself; none writes no sequences.",
            show_default="pickle if they exist, otherwise log",
        ),
    ] = None,
    seed: SampleSeed = 0,
    append: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Append days to this log, with its stages and sequences; by default all days after its newest day.",
            show_default=False,
        ),
    ] = None,
    check: Check = False,
    skip_bad: SkipBad = None,
    engine: EngineOption = EngineName.LOCAL,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Prepare RecFlow, the public full-stage log of a video platform, or a log simulated in its layout.

    Times are in Asia/Shanghai. The memory used does not grow with the number of days. --append LOG adds new days to a
    prepared log; the result is the same as if all days had been prepared at once. --json prints the manifest of the
    log.
    """
    from rankfall.data.sources.recflow import append_recflow, check_recflow, prepare_recflow

    if append is not None:
        _check_append(
            {"--out": out, "--stages": stages, "--sequences": sequences, "--seed": seed, "--force": force}
            | {"--check": check}
        )
        with showing_problems(), opened_engine(engine) as opened, steps() as on_progress:
            log = append_recflow(source, append, days=days, skip_bad=skip_bad, engine=opened, on_progress=on_progress)
        report(log, as_json=as_json)
        return

    count: Literal[2, 3] = 3 if stages is Cascade.THREE else 2
    origin: Any = None if sequences is None else sequences.value
    if check:
        with opened_engine(engine) as opened, steps() as on_progress:
            found = check_recflow(
                source, stages=count, days=days, sequences=origin, engine=opened, on_progress=on_progress
            )
        report_check(found, as_json=as_json)
        return
    directory = required_out(out)
    with showing_problems(), opened_engine(engine) as opened, steps() as on_progress:
        log = prepare_recflow(
            source,
            directory,
            stages=count,
            days=days,
            sequences=origin,
            seed=seed,
            force=force,
            skip_bad=skip_bad,
            engine=opened,
            on_progress=on_progress,
        )
    report(log, as_json=as_json)


def _check_append(of_new_logs: dict[str, Any]) -> None:
    """Check that no option of new logs is given with --append."""
    for name, value in of_new_logs.items():
        if value:
            raise typer.BadParameter("has no effect with --append, which keeps what the log has", param_hint=name)
