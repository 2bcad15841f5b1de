"""Options that the benchmarks share."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.options import MAX_NUMBER, MAX_SECONDS, finite, quick_option
from rankfall.commands.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_SIZE = 20


def sizes_option(default: str) -> Any:
    """Return the option ``--sizes``; `default` describes the lengths that are measured without it."""
    return typer.Option("--sizes", help="List lengths, separated by commas.", show_default=default)


Sizes = Annotated[str | None, sizes_option("50 to 100,000")]
StepSizes = Annotated[str | None, sizes_option("40 to 5,000")]
Quick = Annotated[bool, quick_option("little data, k = 10, one thread, no memory, no claims")]


def parse_sizes(text: str | None) -> list[int] | None:
    """Return the sorted list lengths of ``--sizes``."""
    if text is None:
        return None
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise typer.BadParameter(
            f"found {text!r}, expected integers separated by commas", param_hint="--sizes"
        ) from None
    if sizes[0] < MIN_SIZE:
        raise typer.BadParameter(
            f"found {sizes[0]}, expected list lengths of at least {MIN_SIZE}", param_hint="--sizes"
        )
    return sizes


# --- bundles of a service -----------------------------------------------------------------------------------------

ITEMS = 1_000_000
Items = Annotated[int, typer.Option(min=1000, max=MAX_NUMBER, help="Number of items of a simulated bundle.")]
KeepBundles = Annotated[
    Path | None,
    typer.Option(help="Directory that keeps simulated bundles for reuse.", show_default="temporary"),
]
BundlePath = Annotated[Path | None, typer.Argument(metavar="BUNDLE", help="A bundle.", show_default="a simulated one")]
Minutes = Annotated[
    float, typer.Option(min=0.01, max=MAX_SECONDS, callback=finite, help="Duration of the load in minutes.")
]
Rate = Annotated[float, typer.Option(min=0.01, max=1.0, help="Requests per second, as a share of the largest rate.")]


def need_serving() -> None:
    """Refuse to continue if the packages of a service are not installed."""
    try:
        import rankfall.serving  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from None


@contextmanager
def serving_bundles(given: list[Path | None], items: int, keep: Path | None) -> Iterator[list[Path]]:
    """Yield the given bundles, or as many simulated ones, which are removed afterwards unless `keep` is set."""
    if all(path is not None for path in given):
        yield [path for path in given if path is not None]
        return
    from rankfall.benchmarks.serving.bench_bundles import simulated_bundle

    with tempfile.TemporaryDirectory() as scratch:
        with progress() as bar:
            task = bar.add_task("simulating", total=None)

            def on_step(step: str, done: int, total: int | None) -> None:
                bar.update(task, description=step, completed=done, total=total)

            directory = keep or Path(scratch)
            made = [simulated_bundle(directory, items, seed=seed, on_step=on_step) for seed in range(len(given))]
        yield made
