"""``rankfall train``: train a cascade or a ranker."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.options import (
    AsJson,
    Config,
    EngineName,
    EngineOption,
    Force,
    Out,
    Overrides,
    Resume,
    opened_engine,
    seed_option,
)
from rankfall.commands.terminal import (
    examples,
    interruptible,
    print_error,
    print_json,
    print_message,
    print_note,
    print_result,
    progress,
    stoppable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.progress import Progress
    from rich.table import Table

    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.distributed.group import Group
    from rankfall.training.run_directory import Step, TrainResult

EXAMPLES = examples(
    "rankfall train config.yaml --out runs/first",
    "rankfall train config.yaml loss.name=lambda_loss loss.k=5 training.seed=1 --out runs/lambda",
    "rankfall train config.yaml 'data.train=[S2, S3, S4]' data.valid=S5 data.test=S1 --out runs/fold2",
    "torchrun --nproc-per-node 2 -m rankfall train config.yaml --out runs/first",
    "rankfall train config.yaml --engine ray --workers 8 --out runs/first",
)
TIMEOUT = 600.0  # seconds; longer than the first process takes to write a checkpoint


def train(
    config: Config,
    overrides: Overrides = None,
    *,
    out: Out,
    seed: Annotated[int | None, seed_option(help="Short for training.seed=N.", show_default="that of CONFIG")] = None,
    force: Force = False,
    resume: Resume = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that processes wait for each other under torchrun or Ray.")
    ] = TIMEOUT,
    engine: EngineOption = EngineName.LOCAL,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that Ray starts.", show_default="one per processor")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a cascade on a log, or a ranker on prepared lists.

    A configuration with stages trains a cascade. The validation metric is computed after each epoch; training stops
    early when it has not improved for training.patience epochs. The best and the last weights are kept. The same
    configuration and data give the same weights, even after an interruption.

    Under torchrun several processes train together; each takes a share of every batch. If torchrun restarts them, they
    continue the run. With --engine ray, Ray starts and restarts the processes.
    """
    if force and resume:
        raise typer.BadParameter("a run is either replaced or continued", param_hint="--force, --resume")
    if workers is not None and engine is not EngineName.RAY:
        raise typer.BadParameter("needs --engine ray", param_hint="--workers")
    if engine is EngineName.RAY and "WORLD_SIZE" in os.environ:
        raise typer.BadParameter("processes are started either by torchrun or by Ray", param_hint="--engine")
    if os.environ.get("RANK", "0") == "0":
        print_message("loading torch")
    from rankfall.training.config.load_config import load_config

    changes = [*(overrides or []), *([] if seed is None else [f"training.seed={seed}"])]
    existing = {"force": force, "resume": resume}
    if engine is EngineName.RAY:
        settings = load_config(config, changes)
        result = _train_by_ray(settings, out, workers=workers, timeout=timeout, **existing)
        _show(result, settings, out, as_json=as_json)
    else:
        _train_here(config, changes, out, timeout, as_json=as_json, **existing)


def _train_here(
    config: Path, changes: list[str], out: Path, timeout: float, *, as_json: bool, force: bool, resume: bool
) -> None:
    from rankfall.training.config.load_config import load_config
    from rankfall.training.distributed.group import is_first_start, joined
    from rankfall.training.run_directory import mark_for_replacement
    from rankfall.training.train import train

    if force and is_first_start():
        mark_for_replacement(out)
    with joined(timeout) as group, _watched(out, group) as (bar, stop):
        with group.together():
            settings = load_config(config, changes)
        work = partial(train, settings, out, group=group, force=force, resume=resume)
        result = _train(work, settings, bar, stop, group)
    if group.first:
        _show(result, settings, out, as_json=as_json)


def _train_by_ray(settings: TrainConfig, out: Path, **options: Any) -> TrainResult:
    from rankfall._ray import Ray
    from rankfall.training.distributed.group import ALONE
    from rankfall.training.distributed.ray_backend import train_by_ray

    with opened_engine(EngineName.RAY) as ray, _watched(out, ALONE) as (bar, stop):
        assert isinstance(ray, Ray)
        return _train(partial(train_by_ray, settings, out, ray, **options), settings, bar, stop, ALONE)


def _show(result: TrainResult, settings: TrainConfig, out: Path, *, as_json: bool) -> None:
    from rankfall.training.methods import method_of

    metric = settings.training.metric
    with progress() as bar:
        bar.add_task("counting the items of the log", total=None)
        warning = method_of(settings).list_warning()
    if as_json:
        from dataclasses import asdict

        print_json({**asdict(result), "metric": metric, "run": str(out), "warnings": [warning] if warning else []})
    else:
        print_result(_table(result, metric, out))
    if warning:
        print_message(f"warning: {warning}")


@contextmanager
def _watched(out: Path, group: Group) -> Iterator[tuple[Progress, Callable[[], int]]]:
    """Context with a progress bar and a function that returns a received signal. Errors are printed after the bar."""
    bar = progress()
    bar.disable = bar.disable or not group.first

    def on_signal() -> None:
        if group.world == 1:
            print_note(bar, "stopping after this batch; press Ctrl-C again to stop at once")

    # torchrun terminates a process as soon as another one has ended, and does not wait long itself
    patient = group.world > 1
    with interruptible(lambda: _kept(out)), stoppable(on_signal, patient=patient) as stop, _reported(group), bar:
        yield bar, stop


@contextmanager
def _reported(group: Group) -> Iterator[None]:
    """Print an error in the process that raised it, and in no other."""
    from rankfall.training.distributed.group import LostError, PeerError

    try:
        yield
    except (ValueError, OSError) as error:
        if group.world == 1:
            raise
        # two processes report a lost one, since that may be the first
        silent = group.rank > 1 if isinstance(error, LostError) else isinstance(error, PeerError)
        if group.first or not silent:
            print_error(str(error))
        raise typer.Exit(1) from None


def _train(
    work: Callable[..., TrainResult],
    settings: TrainConfig,
    bar: Progress,
    stop: Callable[[], int],
    group: Group,
) -> TrainResult:
    """Run `work` with a progress bar, and exit with the code of the signal if it stopped early."""
    from rankfall.training.methods import method_of
    from rankfall.training.run_directory import Stopped

    metric = settings.training.metric
    stages = [stage.name for stage in getattr(settings, "stages", [])]
    unit = method_of(settings).unit
    task = bar.add_task("opening the data", total=None)

    def report(step: Step) -> None:
        doing = "validating" if step.batch == step.batches else f"{step.per_second:,.0f} {unit}/s"
        bar.update(
            task,
            total=step.epochs * step.batches,
            completed=(step.epoch - 1) * step.batches + step.batch,
            description=f"epoch {step.epoch}/{step.epochs}, {doing}",
            status=_status(step, metric, stages),
        )

    try:
        return work(progress=report, on_notice=partial(print_note, bar), stop=stop)
    except Stopped as stopped:
        if group.first:
            print_note(bar, str(stopped))
        raise typer.Exit(128 + (stop() or signal.SIGTERM)) from None  # the convention of shells


def _status(step: Step, metric: str, stages: Sequence[str] = ()) -> str:
    """Return the loss and its terms, with the names of the stages, and the metrics of the last validation."""
    names = {f"stage{number}": name for number, name in enumerate(stages, 1)}
    terms = {name: name.partition("/") for name in step.parts}
    parts = " + ".join(
        f"{names.get(stage, stage)}{slash}{term} {step.parts[name]:.4f}" for name, (stage, slash, term) in terms.items()
    )
    if len(step.parts) > 1:
        parts = f"loss {sum(step.parts.values()):.4f} = {parts}"
    if not step.validation:
        return parts
    return f"{parts}\nvalidation: {', '.join(_validation(step.validation, metric))}"


def _validation(values: Mapping[str, float], metric: str) -> list[str]:
    """Return the validation metric and the recall of every stage."""
    from rankfall.training.config.cascade_metric_names import shown_name

    shown = [metric, *(name for name in values if name.endswith("/recall") and name != metric)]
    return [f"{shown_name(name)} {values[name]:.4f}" for name in shown]


def _kept(out: Path) -> str:
    """Return a hint about what is left if the run was interrupted without a checkpoint."""
    from rankfall.training.run_directory import CONFIG

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
    table.add_row("device", result.device)
    table.add_section()
    table.add_row("next", f"rankfall evaluate {out}")
    return table


def _best_validation(result: TrainResult, metric: str, out: Path) -> dict[str, float]:
    """Return all metrics of the best validation that the run has."""
    from rankfall.training.run_directory import read_lines

    best: dict[str, Any] = next((line for line in read_lines(out) if line["epoch"] == result.best_epoch), {})
    return {**best.get("validation", {}), metric: result.best_metric}
