"""``rankfall examination``: estimate how often users examine each position."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rankfall.commands.options import MAX_NUMBER, AsJson, Force, NoVerify, Seed, noting
from rankfall.commands.terminal import examples, print_json, print_message, print_result, progress

EXAMPLES = examples(
    "rankfall examination log --feedback effective_view --out curve.json",
    "rankfall examination log --feedback effective_view --method em --days 2024-01-13..2024-01-19",
    "rankfall examination log --feedback click --given item --given user.segment --json",
)


class MethodName(StrEnum):
    """The estimators."""

    PAIRS = "pairs"
    EM = "em"
    NAIVE = "naive"


def examination(
    path: Annotated[Path, typer.Argument(metavar="LOG", help="An impression log with positions.", show_default=False)],
    feedback: Annotated[
        str, typer.Option(help="Feedback that counts as a click where it is above 0.", show_default=False)
    ],
    method: Annotated[
        MethodName,
        typer.Option(
            help="pairs compares equal items at different positions; em fits a logistic regression of relevance; naive "
            "is the click rate of each position."
        ),
    ] = MethodName.PAIRS,
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What describes the relevance of an item (repeatable): rank, item, or a feature such as user.age.",
            show_default="rank; for em also all features with few values",
        ),
    ] = None,
    days: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DAY or FIRST..LAST", help="Only these days of the log (repeatable).", show_default="all days"
        ),
    ] = None,
    positions: Annotated[int, typer.Option(min=1, max=MAX_NUMBER, help="Largest number of positions.")] = 30,
    resamples: Annotated[int, typer.Option(min=2, max=MAX_NUMBER, help="Number of bootstrap samples.")] = 100,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File of the curve, for 'weight:' in configurations."),
    ] = None,
    force: Force = False,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Estimate how often users examine each position, relative to the first one.

    Users click only what they examine. A curve turns clicks into weights for training: clicks at positions that are
    seldom examined count more. The page 'Click bias' of the documentation says which method to use when, and what no
    method can correct.
    """
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.examination import estimate_examination
    from rankfall.reporting.inspection import examination_blocks
    from rankfall.reporting.terminal import show

    if out is not None and out.exists() and not force:
        raise ValueError(f"out: {out} exists already; --force replaces it")
    with noting(verify=not no_verify), progress() as bar:
        log = ImpressionLog.load(path)
        tasks = {step: bar.add_task(step, total=None) for step in ("reading days", "estimating")}
        curve = estimate_examination(
            log,
            feedback,
            method=method.value,
            given=given,
            days=days,
            positions=positions,
            resamples=resamples,
            seed=seed,
            on_progress=lambda step, done, total: bar.update(tasks[step], completed=done, total=total),
        )
    if out is not None:
        curve.save(out)
    if as_json:
        print_json(curve.to_json())
        return
    print_result(show(examination_blocks(curve)))
    if out is not None:
        print_message(f"wrote {out}")
