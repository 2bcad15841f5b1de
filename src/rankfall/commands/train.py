"""``rankfall train``: train a cascade, or one ranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.terminal import (
    examples,
    interruptible,
    progress,
    say,
    show,
    show_json,
    stoppable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from rankfall.training.cascade_config import CascadeConfig
    from rankfall.training.config import RankerConfig
    from rankfall.training.run import Step, TrainResult

EXAMPLES = examples(
    "rankfall train config.yaml --out runs/first",
    "rankfall train config.yaml loss.name=lambda_loss loss.k=5 training.seed=1 --out runs/lambda",
    "rankfall train config.yaml 'data.train=[S2, S3, S4]' data.valid=S5 data.test=S1 --out runs/fold2",
)

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="What replaces the file's: loss.tau=0.5", show_default=False),
]


def train(
    config: Config,
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory of the run.", show_default=False)],
    seed: Annotated[
        int | None, typer.Option(min=0, help="Short for training.seed=N.", show_default="the file's")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that exists.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Train a cascade on a log, or one ranker on prepared lists, and keep the best and the last weights.

    A configuration with stages is one of a cascade. After each epoch the validation data are ranked; training
    stops when that has not become better for a while. The same configuration and data give the same weights, also
    if training was interrupted and continued.
    """
    if force and resume:
        raise typer.BadParameter("a run is either replaced or continued", param_hint="--force, --resume")
    say("loading torch")
    from rankfall.training.config import load_config

    changes = [*(overrides or []), *([] if seed is None else [f"training.seed={seed}"])]
    settings = load_config(config, changes)
    result = _train(settings, out, force=force, resume=resume)
    metric = settings.training.metric
    if as_json:
        from dataclasses import asdict

        show_json({**asdict(result), "metric": metric, "run": str(out)})
    else:
        show(_table(result, metric, out))


def _train(settings: RankerConfig | CascadeConfig, out: Path, *, force: bool, resume: bool) -> TrainResult:
    from rankfall.training import cascade, ranker
    from rankfall.training.cascade_config import CascadeConfig
    from rankfall.training.run import Stopped

    metric = settings.training.metric
    unit = "impressions" if isinstance(settings, CascadeConfig) else "lists"
    with interruptible(lambda: _kept(out)), progress() as bar:
        task = bar.add_task("opening the data", total=None)

        def report(step: Step) -> None:
            doing = "validating" if step.batch == step.batches else f"{step.per_second:,.0f} {unit}/s"
            bar.update(
                task,
                total=step.epochs * step.batches,
                completed=(step.epoch - 1) * step.batches + step.batch,
                description=f"epoch {step.epoch}/{step.epochs}, {doing}",
                status=_status(step, metric),
            )

        def notice(text: str) -> None:
            bar.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

        with stoppable(lambda: notice("stopping after this batch; Ctrl-C again does not wait")) as stop:
            try:
                if isinstance(settings, CascadeConfig):
                    return cascade.train(
                        settings, out, force=force, resume=resume, progress=report, on_notice=notice, stop=stop
                    )
                return ranker.train(
                    settings, out, force=force, resume=resume, progress=report, on_notice=notice, stop=stop
                )
            except Stopped as stopped:
                notice(str(stopped))
                raise typer.Exit(128 + stop()) from None  # as shells have it


def _status(step: Step, metric: str) -> str:
    """The loss and its terms, and what the last validation measured."""
    parts = " + ".join(f"{name} {value:.4f}" for name, value in step.parts.items())
    if len(step.parts) > 1:
        parts = f"loss {sum(step.parts.values()):.4f} = {parts}"
    if not step.validation:
        return parts
    return f"{parts}\nvalidation: {', '.join(_validation(step.validation, metric))}"


def _validation(values: Mapping[str, float], metric: str) -> list[str]:
    """What training looks at, and the recall of every stage."""
    shown = [metric, *(name for name in values if name.endswith("/recall") and name != metric)]
    return [f"{name} {values[name]:.4f}" for name in shown]


def _kept(out: Path) -> str:
    """What is left if nobody waited for a checkpoint."""
    from rankfall.training.run import CONFIG

    if not (out / CONFIG).is_file():
        return "nothing was written"
    return f"the same command with --resume continues {out} from its last checkpoint, if there is one"


def _table(result: TrainResult, metric: str, out: Path) -> Table:
    from rich.table import Table

    table = Table(show_header=False, title=f"{out}", title_justify="left")
    for line in _validation(_best_validation(result, metric, out), metric):
        name, value = line.split()
        table.add_row(f"validation {name}", value)
    table.add_row("best epoch", f"{result.best_epoch} of {result.epochs}")
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row("seconds", f"{result.seconds:.1f}")
    table.add_section()
    table.add_row("next", f"rankfall evaluate {out}")
    return table


def _best_validation(result: TrainResult, metric: str, out: Path) -> dict[str, float]:
    """All that the best validation measured, where the run has it."""
    from rankfall.training.run import METRICS

    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    best: dict[str, Any] = next((line for line in lines if line["epoch"] == result.best_epoch), {})
    return {**best.get("validation", {}), metric: result.best_metric}
