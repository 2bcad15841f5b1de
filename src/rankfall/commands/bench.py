"""``rankfall bench``: the cost of operators, losses, loading, training steps and the service."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from annotated_types import Ge, Le
from rich.table import Column, Table
from rich.text import Text

from rankfall.commands.terminal import print_json, print_message, print_result, progress, requires_extra, table
from rankfall.commands.verb import command, group
from rankfall.option_types import LARGEST_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rankfall.benchmarks.timing import Row

MIN_SIZE = 20


@command()
def ops(sizes: str | None = None, quick: bool = False, as_json: bool = False) -> None:
    """Measure forward + backward of every operator.

    All operators run in turns with the floors torch.sigmoid, torch.topk and torch.sort. Times are medians: CPU time on
    one thread, and wall time on all threads. Memory is the peak of a fresh process. A batch has 128 lists of n items;
    batches of long lists have fewer lists.

    Options:
        sizes: List lengths, separated by commas. Default: 50 to 100,000.
        quick: Run a reduced version: little data, k = 10, one thread, no memory.

    Examples:
        rankfall bench ops --quick
        rankfall bench ops --json > bench.json
    """
    _functions("ops", sizes, quick, as_json)


@command()
def losses(sizes: str | None = None, quick: bool = False, as_json: bool = False) -> None:
    """Measure forward + backward of every loss, with the same method as `rankfall bench ops`.

    Options:
        sizes: List lengths, separated by commas. Default: 50 to 100,000.
        quick: Run a reduced version: little data, k = 10, one thread, no memory.

    Examples:
        rankfall bench losses --sizes 100,1000,10000
    """
    _functions("losses", sizes, quick, as_json)


def _functions(kind: Literal["ops", "losses"], sizes: str | None, quick: bool, as_json: bool) -> None:
    from rankfall.benchmarks import operators
    from rankfall.benchmarks.timing import growth

    chosen = _parse_sizes(sizes) or (operators.QUICK_SIZES if quick else operators.SIZES)
    with _measuring(f"{kind}, forward + backward", len(operators.shapes(chosen, quick=quick))) as report:
        rows = operators.sweep(kind, chosen, 0.02 if quick else 0.3, quick=quick, report=report)
    if as_json:
        _print_json(kind, rows=rows, growth=growth(rows))
    else:
        _show_cases(rows)


@command()
def loader(quick: bool = False, as_json: bool = False) -> None:
    """Measure how fast impressions are loaded, beside a plain copy of the same file, on one thread.

    Options:
        quick: Run a reduced version: little data, k = 10, one thread, no memory.

    Examples:
        rankfall bench loader --quick
    """
    from rankfall.benchmarks import loader

    with _measuring(f"the loader: {loader.SETTING}", 2) as report:
        rows = loader.sweep(0.02 if quick else 1.0, quick=quick, report=report)
    if as_json:
        _print_json("loader", rows=rows)
    else:
        print_result(_table(rows))


@command()
def step(sizes: str | None = None, quick: bool = False, as_json: bool = False) -> None:
    """Measure a training step.

    The step trains two stages with LCRON and each operator, in turns with binary cross entropy. The objective is
    measured alone first, then together with a two-tower model and a DIN. A batch has 128 lists of n items; batches
    of long lists have fewer lists where the cost grows with the square of n.

    Options:
        sizes: List lengths, separated by commas. Default: 40 to 5,000.
        quick: Run a reduced version: little data, k = 10, one thread, no memory.

    Examples:
        rankfall bench step --sizes 40,200
    """
    from rankfall.benchmarks import step

    chosen, seconds = _parse_sizes(sizes) or (step.QUICK_SIZES if quick else step.SIZES), 0.02 if quick else 0.5
    total = sum(len(step.shapes(n)) for n in chosen) + len(step.model_sizes(chosen))
    with _measuring("a training step of LCRON, forward + backward", total) as report:
        rows = step.sweep(chosen, seconds, quick=quick, report=report)
        whole = step.sweep_models(chosen, seconds, quick=quick, report=report)
    if as_json:
        _print_json("step", rows=rows, whole=whole)
        return
    print_result("the objective alone")
    _show_cases(rows)
    if whole:
        print_result("\nwith a two-tower model and a DIN")
        print_result(_table(whole))


@command(bundle={"argument": "BUNDLE"})
def serve(
    bundle: Path | None = None,
    items: Annotated[int, Ge(1000), Le(LARGEST_COUNT)] = 1_000_000,
    seconds: Annotated[float, Ge(0.1), Le(1e9)] = 3.0,
    keep: Path | None = None,
    as_json: bool = False,
) -> None:
    """Measure a service, and its overhead over the same calls of the bundle in one process.

    `rankfall serve` runs in one process, clients in another: 1, 8 and 32 clients that wait for their answers, with 1 or
    32 requests per call. Turns of the service alternate with calls of the bundle. The service runs with one compute
    thread, as the bundle does, and with its default. The simulated bundle has two stages, which keep 200 and 20 items,
    and sequences of up to 50 events; creating it takes a minute.

    Options:
        bundle: A bundle. Default: a simulated one.
        items: Number of items of a simulated bundle.
        seconds: Duration of each turn in seconds.
        keep: Directory that keeps simulated bundles for reuse. Default: temporary.

    Examples:
        rankfall bench serve --keep bundles
        rankfall bench serve bundle --seconds 5 --json
    """
    with requires_extra("bench serve", "serve"):
        from rankfall.benchmarks import serve as serving
    with tempfile.TemporaryDirectory() as scratch:
        if bundle is None:
            print_message("simulating a bundle")
            bundle = serving.simulated_bundle(keep or Path(scratch), items, seed=0)
        with _measuring(f"a service with {bundle}", serving.steps()) as report:
            rows = serving.measure(bundle, seconds=seconds, report=report)
    if as_json:
        _print_json("serve", bundle=bundle.name, seconds=seconds, rows=rows)
        return
    print_result(_table(rows))


app = group(
    "bench",
    "Measure the cost of operators, losses, loading, training steps and the service.",
    ["rankfall bench ops --quick", "rankfall bench serve --keep bundles", "rankfall bench ops --json > bench.json"],
    ops,
    losses,
    loader,
    step,
    serve,
    no_args_is_help=False,
)


# --- options and output -------------------------------------------------------------------------------------------


def _parse_sizes(text: str | None) -> list[int] | None:
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


@contextmanager
def _measuring(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show the progress of a measurement; yield a function to call with a description after each of `total` parts."""
    print_message(f"measuring {what}")
    with progress() as bar:
        task = bar.add_task("starting", total=total)
        yield lambda done: bar.update(task, advance=1, description=done)


def _print_json(what: str, **measured: Any) -> None:
    import torch

    content = {name: list(map(asdict, value)) if isinstance(value, list) else value for name, value in measured.items()}
    print_json({"what": what, "torch": torch.__version__, "threads": torch.get_num_threads(), **content})


def _show_cases(rows: Sequence[Row]) -> None:
    """Print a table for each function, with the growth of its time."""
    from rankfall.benchmarks.timing import growth

    exponents = growth(rows)
    for name in dict.fromkeys(row.name for row in rows):
        terms = ", ".join(f"n^{value:.2f} for {k}" for k, value in exponents[name].items())
        print_result(Text.assemble("\n", (name, "bold"), f"   time per list grows like {terms}" if terms else ""))
        print_result(_table([row for row in rows if row.name == name], hidden=["name"]))


def _table(rows: Sequence[Any], hidden: Sequence[str] = ()) -> Table:
    """Return a table of dataclasses with a column per field, without those that are empty."""
    cells = [dict(_cells(asdict(row))) for row in rows]
    shown = [name for name in dict.fromkeys(name for row in cells for name in row) if name not in hidden]
    shown = [name for name in shown if any(row.get(name) for row in cells)]
    columns = [
        Column(name.replace("_", " "), justify="left" if name == "name" else "right", no_wrap=True, header_style="dim")
        for name in shown
    ]
    return table(columns, [[row.get(name, "") for name in shown] for row in cells], box=None, padding=(0, 2, 0, 0))


def _cells(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield headings and values; numbers have three digits and no exponent."""
    for name, value in fields.items():
        if isinstance(value, dict):  # ratios
            yield from ((f"/{key.removeprefix('torch.')}", cell) for key, cell in _cells(value))
        elif not isinstance(value, float):
            yield name, "" if value is None else str(value)
        else:
            size = abs(value)
            yield name, f"{value:,.0f}" if size >= 99.95 else f"{value:.2f}" if size >= 0.995 else f"{value:.3f}"
