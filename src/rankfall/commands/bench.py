"""``rankfall bench``: what the library costs, against textbook code and against the floor."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from rankfall.commands.terminal import examples, progress, say, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.benchmarks import loader
    from rankfall.benchmarks.claims import Claim
    from rankfall.benchmarks.run import Row, Settings

EXAMPLES = examples(
    "rankfall bench ops",
    "rankfall bench ops --quick",
    "rankfall bench losses --sizes 100,1000,10000",
    "rankfall bench loader",
    "rankfall bench ops --json > bench.json",
)
MIN_SIZE = 20


class What(StrEnum):
    """What to measure."""

    OPS = "ops"
    LOSSES = "losses"
    LOADER = "loader"


def bench(
    what: Annotated[What, typer.Argument(help="Operators, losses or the loader of impressions.")],
    sizes: Annotated[
        str | None, typer.Option(help="List lengths, separated by commas.", show_default="50 to 100,000")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Little data, k = 10, one thread, no memory, no promises: seconds."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Measure forward + backward of every operator or loss, or the loading of impressions.

    Each function runs in turns with its textbook form and with the floors torch.sigmoid, torch.topk and
    torch.sort. Times are medians of CPU time on one thread, and of wall time on all threads; memory is the
    peak of a fresh process. Lists come in batches of (128, n), longer ones in fewer.

    The loader runs in turns with a loop over requests, which is how published code loads, and with a plain
    copy of the same file, all on one thread.
    """
    chosen = None if sizes is None else _parse_sizes(sizes)
    if what is What.LOADER:
        if chosen is not None:
            raise typer.BadParameter("belongs to operators and losses, not to the loader", param_hint="--sizes")
        _bench_loader(quick, as_json)
        return
    kind: Literal["ops", "losses"] = "ops" if what is What.OPS else "losses"
    say(f"measuring {kind}, forward + backward")
    with progress() as bar:
        settings, rows, claims = _measure(kind, chosen, quick, bar)
    if as_json:
        show_json(_as_json(kind, settings, rows, claims))
        return
    _show_tables(rows)
    if claims:
        show(_claims_table(claims, "(128, 1000), k = 10, one thread, unless said otherwise"))


def _parse_sizes(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise typer.BadParameter(f"expected integers separated by commas, got {text!r}", param_hint="--sizes") from None
    if found[0] < MIN_SIZE:
        raise typer.BadParameter(f"a list has at least {MIN_SIZE} items, got {found[0]}", param_hint="--sizes")
    return found


def _measure(
    kind: Literal["ops", "losses"], sizes: Sequence[int] | None, quick: bool, bar: Any
) -> tuple[Settings, list[Row], list[Claim]]:
    from rankfall.benchmarks import claims, run

    chosen = sizes or (run.QUICK_SIZES if quick else run.SIZES)
    settings = run.Settings(chosen, seconds=0.02 if quick else 0.3, quick=quick)
    promised = 0 if quick else len(claims.CHECKS[kind])
    task = bar.add_task("starting", total=len(settings.shapes) + promised)

    def report(done: str) -> None:
        bar.update(task, advance=1, description=done)

    rows = run.sweep(kind, settings, report)
    return settings, rows, [] if quick else claims.check_claims(kind, settings.seconds, report)


def _as_json(kind: str, settings: Settings, rows: list[Row], claims: list[Claim]) -> dict[str, Any]:
    import torch

    from rankfall.benchmarks.run import growth

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
    from rankfall.benchmarks.run import growth

    exponents = growth(rows)
    for name in dict.fromkeys(row.name for row in rows):
        of_name = [row for row in rows if row.name == name]
        show(Text.assemble("\n", (name, "bold"), _growth_text(exponents[name])))
        table = Table(box=None, padding=(0, 2, 0, 0))
        columns = {heading: [cell(row) for row in of_name] for heading, cell in COLUMNS.items()}
        shown = {heading: cells for heading, cells in columns.items() if any(cells)}
        for heading in shown:
            table.add_column(heading, justify="right", no_wrap=True, header_style="dim")
        for cells in zip(*shown.values(), strict=True):
            table.add_row(*cells)
        show(table)


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
    """Three digits, never an exponent."""
    if value is None:
        return ""
    digits = f"{value:,.0f}" if value >= 99.95 else f"{value:.2f}" if value >= 0.995 else f"{value:.3f}"
    return digits + unit


def _megabytes(value: float | None) -> str:
    """Less than one is within what the allocator had at hand."""
    return "<1" if value is not None and value < 1 else _number(value)


def _growth_text(exponents: dict[str, float]) -> str:
    known = [f"n^{value:.2f} for {k}" for k, value in exponents.items()]
    return f"   time of a list grows like {', '.join(known)}" if known else ""


def _claims_table(claims: list[Claim], setting: str) -> Table:
    table = Table(title=f"\npromises: {setting}", title_justify="left")
    for column in ("promise", "target", "measured", ""):
        table.add_column(column)
    for claim in claims:
        table.add_row(claim.claim, claim.target, claim.measured, "[green]met[/]" if claim.met else "[red]not met[/]")
    return table


# --- the loader -------------------------------------------------------------------------------------------------


def _bench_loader(quick: bool, as_json: bool) -> None:
    import torch

    from rankfall.benchmarks import loader

    say(f"measuring the loader: {loader.SETTING}")
    seconds = 0.02 if quick else 1.0
    with progress() as bar:
        task = bar.add_task("writing a log", total=2)
        rows = loader.sweep(seconds, quick=quick, report=lambda done: bar.update(task, advance=1, description=done))
    claims = [] if quick else loader.check_claims(rows)
    if as_json:
        kept = {"what": "loader", "torch": torch.__version__, "threads": 1, "seconds_a_step": seconds}
        show_json(kept | {"rows": [asdict(row) for row in rows], "must_show": [asdict(claim) for claim in claims]})
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
