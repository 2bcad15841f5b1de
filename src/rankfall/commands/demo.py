"""``rankfall demo``: the first thing a new user runs."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated, Any

import typer
from rich.table import Table

from rankfall._files import write_file
from rankfall.commands.terminal import examples, progress, say, show, show_json

EXAMPLES = examples("rankfall demo", "rankfall demo --out demo --seed 1", "rankfall demo --quick --json")


def demo(
    out: Annotated[Path | None, typer.Option(help="Directory for comparison.json, made if missing.")] = None,
    seed: Annotated[int, typer.Option(help="Of the data and of the first run.", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and a few steps: seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Train one small scorer with several losses on a planted ranking and compare them.

    The lists have a known ideal order, a nonlinear utility, of which the scorer sees noisy grades 0 to 4.
    Every loss gets the same network, data and learning rate, so the table shows the library at work; it does
    not rank the losses.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    result = _run(seed, quick)
    if out is not None:
        path = out / "comparison.json"
        write_file(path, json.dumps(result, indent=2) + "\n")
        say(f"wrote {path}")
    if as_json:
        show_json(result)
    else:
        show(_table(result))


def _run(seed: int, quick: bool) -> dict[str, Any]:
    say("loading torch")
    import torch

    from rankfall.commands import _planted

    torch.set_num_threads(1)  # batches are small: threads that wait for each other cost more than they bring
    seeds, steps, train_lists = (1, 20, 64) if quick else (3, 200, 500)
    say(f"training {len(_planted.LOSSES)} losses x {seeds} seed{'s' * (seeds > 1)} on {train_lists} lists")
    with progress() as bar:
        task = bar.add_task("training", total=len(_planted.LOSSES) * seeds)
        outcome = _planted.run(
            seed=seed,
            seeds=seeds,
            steps=steps,
            train_lists=train_lists,
            report=lambda done: bar.update(task, advance=1, description=done),
        )
    return _planted.comparison(outcome)


def _table(result: dict[str, Any]) -> Table:
    methods, metrics = result["methods"], list(result["oracle"])
    table = Table(
        title="held-out lists, mean ± standard deviation over seeds",
        title_justify="left",
        caption="[bold]< best[/]   * not significantly worse (one-sided paired t-test over lists, Holm, 5 %)",
        caption_justify="left",
    )
    table.add_column("loss", style="cyan", no_wrap=True)
    for metric in metrics:
        table.add_column(metric, no_wrap=True)
    marks = {(test["metric"], test["method"]): test for test in result["tests"]}
    for method in methods:
        cells = [_cell(method["metrics"][metric], marks[metric, method["name"]]) for metric in metrics]
        table.add_row(method["name"], *cells)
    table.add_section()
    chance = methods[0]["metrics"]
    table.add_row("chance", *(f"{chance[metric]['chance']:.3f}" for metric in metrics), style="dim")
    table.add_row("oracle", *(f"{result['oracle'][metric]:.3f}" for metric in metrics), style="dim")
    return table


def _cell(summary: dict[str, Any], test: dict[str, Any]) -> str:
    number = f"{summary['mean']:.3f} ± {summary['std']:.3f}"
    if test["method"] == test["best"]:
        return f"[bold]{number} <[/]"
    return number if test["significantly_worse"] else f"{number} *"
