"""``rankfall bench``: the cost of the library, compared with textbook code and with lower bounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from rankfall.commands import bench_serve
from rankfall.commands.options import AsJson, quick_option
from rankfall.commands.terminal import examples, progress, say, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.benchmarks import loader_bench as loader
    from rankfall.benchmarks import prepare_bench as prepare
    from rankfall.benchmarks import scaling_bench as scaling
    from rankfall.benchmarks import step_bench as step
    from rankfall.benchmarks.claims import Claim
    from rankfall.benchmarks.operator_sweep import Row, Settings

EXAMPLES = examples(
    "rankfall bench ops",
    "rankfall bench ops --quick",
    "rankfall bench losses --sizes 100,1000,10000",
    "rankfall bench loader",
    "rankfall bench step --sizes 40,200",
    "rankfall bench prepare --rows 10000000",
    "rankfall bench scaling",
    "rankfall bench serve --keep bundles",
    "rankfall bench soak --minutes 10 --keep bundles",
    "rankfall bench ops --json > bench.json",
)
MIN_SIZE = 20
T = TypeVar("T")


app = typer.Typer(name="bench", epilog=EXAMPLES)

Sizes = Annotated[
    str | None,
    typer.Option(help="List lengths, separated by commas.", show_default="50 to 100,000; for step 40 to 5,000"),
]
Quick = Annotated[bool, quick_option("little data, k = 10, one thread, no memory, no claims")]


@app.callback()
def bench() -> None:
    """Measure the cost of operators, losses, loading, training steps, sample building, scaling and serving."""


@app.command("ops")
def ops(sizes: Sizes = None, quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure forward + backward of every operator.

    Each operator runs in turns with its textbook implementation and with the floors torch.sigmoid, torch.topk and
    torch.sort. Times are medians: CPU time on one thread, and wall time on all threads. Memory is the peak of a
    fresh process. A batch has 128 lists of n items; batches of long lists have fewer lists.
    """
    _bench_functions("ops", _parse_sizes(sizes), quick, as_json)


@app.command("losses")
def losses(sizes: Sizes = None, quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure forward + backward of every loss, with the same method as `rankfall bench ops`."""
    _bench_functions("losses", _parse_sizes(sizes), quick, as_json)


def _bench_functions(kind: Literal["ops", "losses"], sizes: Sequence[int] | None, quick: bool, as_json: bool) -> None:
    say(f"measuring {kind}, forward + backward")
    with progress() as bar:
        settings, measured, claims = _measure(kind, sizes, quick, bar)
    if as_json:
        show_json(_as_json(kind, settings, measured, claims))
        return
    _show_tables(measured)
    if claims:
        show(_claims_table(claims, "(128, 1000), k = 10, one thread, unless stated otherwise"))


def _parse_sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise typer.BadParameter(
            f"found {text!r}, expected integers separated by commas", param_hint="--sizes"
        ) from None
    if found[0] < MIN_SIZE:
        raise typer.BadParameter(
            f"found {found[0]}, expected list lengths of at least {MIN_SIZE}", param_hint="--sizes"
        )
    return found


def _measure(
    kind: Literal["ops", "losses"], sizes: Sequence[int] | None, quick: bool, bar: Any
) -> tuple[Settings, list[Row], list[Claim]]:
    from rankfall.benchmarks import claims
    from rankfall.benchmarks import operator_sweep as operators

    chosen = sizes or (operators.QUICK_SIZES if quick else operators.SIZES)
    settings = operators.Settings(chosen, seconds=0.02 if quick else 0.3, quick=quick)
    claim_groups = 0 if quick else len(claims.CHECKS[kind])
    task = bar.add_task("starting", total=len(settings.shapes) + claim_groups)

    def report(done: str) -> None:
        bar.update(task, advance=1, description=done)

    rows = operators.sweep(kind, settings, report)
    return settings, rows, [] if quick else claims.check_claims(kind, settings.seconds, report)


def _as_json(kind: str, settings: Settings, rows: list[Row], claims: list[Claim]) -> dict[str, Any]:
    import torch

    from rankfall.benchmarks.operator_sweep import growth

    return {
        "what": kind,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seconds_a_step": settings.seconds,
        "rows": [asdict(row) for row in rows],
        "growth": growth(rows),
        "must_show": [asdict(claim) for claim in claims],
    }


def _show_tables(rows: list[Row]) -> None:
    from rankfall.benchmarks.operator_sweep import growth

    exponents = growth(rows)
    for name in dict.fromkeys(row.name for row in rows):
        show(Text.assemble("\n", (name, "bold"), _growth_text(exponents[name])))
        show(_columns([row for row in rows if row.name == name], COLUMNS))


def _columns(rows: Sequence[T], columns: dict[str, Callable[[T], str]]) -> Table:
    """Return a table of the rows, without columns that are empty."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    cells = {heading: [cell(row) for row in rows] for heading, cell in columns.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True, header_style="dim")
    for line in zip(*shown.values(), strict=True):
        table.add_row(*line)
    return table


def _ratio_to(floor: str) -> Callable[[Row], str]:
    return lambda row: _number((row.ratios or {}).get(floor))


COLUMNS: dict[str, Callable[[Row], str]] = {
    "lists x n": lambda row: f"{row.lists} x {row.n}",
    "k": lambda row: f"{row.k}",
    "CPU ms": lambda row: row.left_out or _number(row.cpu_ms),
    "all threads": lambda row: _number(row.wall_ms),
    "/sigmoid": _ratio_to("torch.sigmoid"),
    "/topk": _ratio_to("torch.topk"),
    "/sort": _ratio_to("torch.sort"),
    "textbook ms": lambda row: row.textbook_left_out or _number(row.textbook_ms),
    "faster": lambda row: _number(row.textbook_faster, "x"),
    "MB": lambda row: _megabytes(row.peak_mb),
    "textbook MB": lambda row: _megabytes(row.textbook_peak_mb),
}


def _number(value: float | None, unit: str = "") -> str:
    """Format with three digits and without an exponent."""
    if value is None:
        return ""
    digits = f"{value:,.0f}" if value >= 99.95 else f"{value:.2f}" if value >= 0.995 else f"{value:.3f}"
    return digits + unit


def _megabytes(value: float | None) -> str:
    """Format megabytes; less than one is below the resolution of the measurement."""
    return "<1" if value is not None and value < 1 else _number(value)


def _growth_text(exponents: dict[str, float]) -> str:
    terms = [f"n^{value:.2f} for {k}" for k, value in exponents.items()]
    return f"   time per list grows like {', '.join(terms)}" if terms else ""


def _claims_table(claims: list[Claim], setting: str) -> Table:
    table = Table(title=f"\nclaims: {setting}", title_justify="left")
    for column in ("claim", "target", "measured", ""):
        table.add_column(column)
    for claim in claims:
        table.add_row(claim.claim, claim.target, claim.measured, "[green]met[/]" if claim.met else "[red]not met[/]")
    return table


# --- the loader -------------------------------------------------------------------------------------------------


@app.command("loader")
def bench_loader(quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure how fast impressions are loaded.

    The loader runs in turns with a loop over requests, as in published code, and with a plain copy of the same
    file. All of them run on one thread.
    """
    import torch

    from rankfall.benchmarks import loader_bench as loader

    say(f"measuring the loader: {loader.SETTING}")
    seconds = 0.02 if quick else 1.0
    with progress() as bar:
        task = bar.add_task("writing a log", total=2)
        rows = loader.sweep(seconds, quick=quick, report=lambda done: bar.update(task, advance=1, description=done))
    claims = [] if quick else loader.check_claims(rows)
    if as_json:
        header = {"what": "loader", "torch": torch.__version__, "threads": 1, "seconds_a_step": seconds}
        show_json(header | {"rows": [asdict(row) for row in rows], "must_show": [asdict(claim) for claim in claims]})
        return
    show(_loader_table(rows))
    if claims:
        show(_claims_table(claims, "one thread, CPU time"))


def _loader_table(rows: list[loader.Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "impressions/s", "MB/s", "faster"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True, header_style="dim")
    for row in rows:
        numbers = f"{row.impressions_per_second:,.0f}", f"{row.megabytes_per_second:,.0f}", _number(row.faster, "x")
        table.add_row(row.name, *numbers)
    return table


# --- the step ---------------------------------------------------------------------------------------------------


@app.command("step")
def bench_step(sizes: Sizes = None, quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure a training step.

    The step trains two stages with LCRON and each operator, in turns with binary cross entropy. The objective is
    measured alone first, then together with a two-tower model and a DIN. A batch has 128 lists of n items; batches
    of long lists have fewer lists where the cost grows with the square of n.
    """
    import torch

    from rankfall.benchmarks import step_bench as step

    chosen = _parse_sizes(sizes) or (step.QUICK_SIZES if quick else step.SIZES)
    seconds = 0.02 if quick else 0.5
    say("measuring a training step of LCRON, forward + backward")
    with progress() as bar:
        batches = sum(len(step.shapes(n)) for n in chosen)
        task = bar.add_task("starting", total=batches + len(step.model_sizes(chosen)))

        def report(done: str) -> None:
            bar.update(task, advance=1, description=done)

        rows = step.sweep(chosen, seconds, quick=quick, report=report)
        whole = step.sweep_models(chosen, seconds, quick=quick, report=report)
    if as_json:
        header = {"what": "step", "torch": torch.__version__, "threads": torch.get_num_threads()}
        measured = {"rows": [asdict(row) for row in rows], "whole": [asdict(row) for row in whole]}
        show_json(header | {"seconds_a_step": seconds} | measured)
        return
    for n in chosen:
        show(f"\nthe objective alone, n = {n}")
        show(_columns([row for row in rows if row.n == n], STEP_COLUMNS))
    if whole:
        show("\nwith a two-tower model and a DIN")
        show(_columns(whole, WHOLE_COLUMNS))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


STEP_COLUMNS: dict[str, Callable[[step.Row], str]] = {
    "objective": lambda row: row.name,
    "lists x n": lambda row: f"{row.lists} x {row.n}",
    "CPU ms": lambda row: row.left_out or _number(row.cpu_ms),
    "+-": lambda row: _share(row.spread),
    "all threads": lambda row: _number(row.wall_ms),
    "ns/item": lambda row: _number(row.ns_per_item),
    "/bce": lambda row: _number(row.to_baseline),
    "growth": lambda row: "" if row.growth is None else f"n^{row.growth:.2f}",
    "MB": lambda row: _megabytes(row.peak_mb),
}

WHOLE_COLUMNS: dict[str, Callable[[step.WholeRow], str]] = {
    "objective": lambda row: row.name,
    "lists x n": lambda row: f"{row.lists} x {row.n}",
    "CPU ms": lambda row: _number(row.cpu_ms),
    "+-": lambda row: _share(row.spread),
    "/bce": lambda row: _number(row.to_baseline),
    "objective ms": lambda row: _number(row.objective_ms),
    "share": lambda row: _share(row.share),
}


# --- sample building --------------------------------------------------------------------------------------------


@app.command("prepare")
def bench_prepare(
    rows: Annotated[
        int | None, typer.Option(min=1, help="Number of rows of the raw log.", show_default="10 million")
    ] = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Measure sample building.

    Runs `rankfall prepare rows` on a generated raw log with each installed engine, and reports wall time, CPU time
    and peak memory of all processes.
    """
    from importlib.util import find_spec

    from rankfall.benchmarks import prepare_bench as prepare

    count = rows or (prepare.QUICK_ROWS if quick else prepare.ROWS)
    engines = ["local", *(["ray"] if find_spec("ray") is not None else [])]
    say(f"measuring sample building: {count:,} rows, {prepare.SETTING}")
    with progress() as bar:
        task = bar.add_task("writing a log", total=1 + len(engines))
        measured = prepare.measure(
            engines, count, lambda done: bar.update(task, advance=1, description=f"{done}, measured")
        )
    if as_json:
        show_json({"what": "prepare", "rows": [asdict(row) for row in measured]})
        return
    show(_columns(measured, PREPARE_COLUMNS))


PREPARE_COLUMNS: dict[str, Callable[[prepare.Row], str]] = {
    "engine": lambda row: row.engine,
    "seconds": lambda row: _number(row.seconds),
    "CPU seconds": lambda row: _number(row.cpu_seconds),
    "rows/s": lambda row: f"{row.rows / row.seconds:,.0f}",
    "peak MB": lambda row: _number(row.peak_mb),
    "processes": lambda row: "" if row.processes is None else str(row.processes),
    "same files": lambda row: "yes" if row.same else "NO",
}


# --- scaling ----------------------------------------------------------------------------------------------------


@app.command("scaling")
def bench_scaling(quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure training with one and with two processes.

    Every process has a batch of the same size. Times are wall times, so two idle cores are needed.
    """
    from rankfall.benchmarks import scaling_bench as scaling

    say(f"measuring training with {' and '.join(map(str, scaling.PROCESSES))} processes: {scaling.SETTING}")
    with progress() as bar:
        task = bar.add_task("writing logs", total=scaling.launches(quick=quick))
        rows = scaling.sweep(quick=quick, report=lambda done: bar.update(task, advance=1, description=done))
    if as_json:
        show_json({"what": "scaling", "rows": [asdict(row) for row in rows]})
        return
    show(_columns(rows, SCALING_COLUMNS))


SCALING_COLUMNS: dict[str, Callable[[scaling.Row], str]] = {
    "tables": lambda row: f"{row.rows:,} {row.gradients}",
    "batch": lambda row: f"{row.processes} x {row.batch}",
    "step ms": lambda row: _number(row.step_ms),
    "apart ms": lambda row: _number(row.apart_ms),
    "impressions/s": lambda row: f"{row.impressions_per_second:,.0f}",
    "efficiency": lambda row: f"{row.efficiency:.0%}",
    "communication": lambda row: f"{row.communication:.0%}" if row.processes > 1 else "",
    "dense MB": lambda row: _number(row.dense_mb),
    "sparse MB": lambda row: _number(row.sparse_mb) if row.sparse_mb else "",
    "CPU": lambda row: f"{row.cpu:.0%}",
}


# --- the service ------------------------------------------------------------------------------------------------

app.command("serve", epilog=bench_serve.SERVE_EXAMPLES)(bench_serve.serve)
app.command("soak", epilog=bench_serve.SOAK_EXAMPLES)(bench_serve.soak)
