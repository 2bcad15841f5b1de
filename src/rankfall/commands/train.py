"""``rankfall train``: train a cascade, or one ranker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.terminal import examples, progress, say, show, show_json

if TYPE_CHECKING:
    from rich.table import Table

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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Train a cascade on a log, or one ranker on prepared lists, and keep the best and the last weights.

    A configuration with stages is one of a cascade. After each epoch the validation data are ranked; training
    stops when that has not become better for a while.
    The same configuration and data give the same weights.
    """
    say("loading torch")
    from rankfall.training import cascade, ranker
    from rankfall.training.cascade_config import CascadeConfig
    from rankfall.training.config import load_config

    changes = [*(overrides or []), *([] if seed is None else [f"training.seed={seed}"])]
    settings = load_config(config, changes)
    metric = settings.training.metric
    with progress() as bar:
        task = bar.add_task("training", total=None)

        def report(step: Step) -> None:
            bar.update(
                task,
                total=step.epochs * step.batches,
                completed=(step.epoch - 1) * step.batches + step.batch,
                description=_status(step, metric),
            )

        if isinstance(settings, CascadeConfig):
            result = cascade.train(settings, out, force=force, progress=report)
        else:
            result = ranker.train(settings, out, force=force, progress=report)
    if as_json:
        from dataclasses import asdict

        show_json({**asdict(result), "metric": metric, "run": str(out)})
    else:
        show(_table(result, metric, out))


def _status(step: Step, metric: str) -> str:
    parts = "  ".join(f"{name} {value:.4f}" for name, value in step.parts.items())
    reached = f"  {metric} {step.validation[metric]:.4f}" if step.validation else ""
    return f"epoch {step.epoch}/{step.epochs}  {parts}{reached}  {step.per_second:,.0f}/s"


def _table(result: TrainResult, metric: str, out: Path) -> Table:
    from rich.table import Table

    table = Table(show_header=False, title=f"{out}", title_justify="left")
    table.add_row(f"validation {metric}", f"{result.best_metric:.4f}")
    table.add_row("best epoch", f"{result.best_epoch} of {result.epochs}")
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row("seconds", f"{result.seconds:.1f}")
    table.add_section()
    table.add_row("next", f"rankfall evaluate {out}")
    return table
