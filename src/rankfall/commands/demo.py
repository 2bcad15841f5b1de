"""``rankfall demo``: the first thing a new user runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall._files import write_file
from rankfall.commands.terminal import examples, json_text, progress, say, show, show_json

if TYPE_CHECKING:
    from rankfall.training.config import RankerConfig

EXAMPLES = examples("rankfall demo", "rankfall demo --out demo --seed 1", "rankfall demo --quick --json")


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for data, runs, config.yaml and comparison.json.", show_default="not kept"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of the trainings.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and two epochs: seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Train one small ranker with several losses on a planted ranking and compare them.

    The lists have a known ideal order, a nonlinear utility, of which the ranker sees noisy grades 0 to 4. Every loss
    gets the same network, data and learning rate, so the table shows the library at work; it does not rank the losses.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="rankfall-demo-") as directory:
            result, _ = _run(Path(directory), seed, quick)
    else:
        out.mkdir(parents=True, exist_ok=True)
        result, config = _run(out, seed, quick)
        _keep(out, result, config)
    if as_json:
        show_json(result)
    else:
        from rankfall.evaluation.table import terminal_table

        show(terminal_table(result))
    if out is not None:
        say(f"next: rankfall train {out / 'config.yaml'} loss.name=softmax_loss --out {out / 'softmax'}")


def _run(out: Path, seed: int, quick: bool) -> tuple[dict[str, Any], RankerConfig]:
    say("loading torch")
    from rankfall.experiments import demo
    from rankfall.experiments.datasets import GENERATED, find
    from rankfall.experiments.task import Task

    size = demo.QUICK if quick else demo.FULL
    say(f"training {len(demo.METHODS)} losses x {size.seeds} seed{'s' * (size.seeds > 1)} on generated lists")
    with progress() as bar:
        line = bar.add_task("preparing", total=None)
        return demo.run(
            Task(
                out=out,
                origin=find(GENERATED),
                size=size,
                seed=seed,
                progress=lambda what, done, total: bar.update(line, description=what, completed=done, total=total),
            )
        )


def _keep(out: Path, result: dict[str, Any], config: RankerConfig) -> None:
    from rankfall._settings import dump

    write_file(out / "comparison.json", json_text(result) + "\n")
    write_file(out / "config.yaml", dump(config))
