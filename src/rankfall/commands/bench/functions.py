"""``rankfall bench ops`` and ``rankfall bench losses``: forward and backward passes of single functions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from rankfall.commands.bench.bench_options import Quick, Sizes, parse_sizes
from rankfall.commands.bench.bench_tables import claims_table, column_table, format_megabytes, format_number
from rankfall.commands.options import AsJson
from rankfall.commands.terminal import print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.benchmarks.claims import Claim
    from rankfall.benchmarks.operator_sweep import Row, Settings


def ops(sizes: Sizes = None, quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure forward + backward of every operator.

    Each operator runs in turns with its textbook implementation and with the floors torch.sigmoid, torch.topk and
    torch.sort. Times are medians: CPU time on one thread, and wall time on all threads. Memory is the peak of a
    fresh process. A batch has 128 lists of n items; batches of long lists have fewer lists.
    """
    _bench_functions("ops", parse_sizes(sizes), quick, as_json)


def losses(sizes: Sizes = None, quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure forward + backward of every loss, with the same method as `rankfall bench ops`."""
    _bench_functions("losses", parse_sizes(sizes), quick, as_json)


def _bench_functions(kind: Literal["ops", "losses"], sizes: Sequence[int] | None, quick: bool, as_json: bool) -> None:
    print_message(f"measuring {kind}, forward + backward")
    with progress() as bar:
        settings, measured, claims = _measure(kind, sizes, quick, bar)
    if as_json:
        print_json(_as_json(kind, settings, measured, claims))
        return
    _show_tables(measured)
    if claims:
        print_result(claims_table(claims, "(128, 1000), k = 10, one thread, unless stated otherwise"))


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
        print_result(Text.assemble("\n", (name, "bold"), _growth_text(exponents[name])))
        print_result(column_table([row for row in rows if row.name == name], COLUMNS))


def _ratio_to(floor: str) -> Callable[[Row], str]:
    return lambda row: format_number((row.ratios or {}).get(floor))


COLUMNS: dict[str, Callable[[Row], str]] = {
    "lists x n": lambda row: f"{row.lists} x {row.n}",
    "k": lambda row: f"{row.k}",
    "CPU ms": lambda row: row.left_out or format_number(row.cpu_ms),
    "all threads": lambda row: format_number(row.wall_ms),
    "/sigmoid": _ratio_to("torch.sigmoid"),
    "/topk": _ratio_to("torch.topk"),
    "/sort": _ratio_to("torch.sort"),
    "textbook ms": lambda row: row.textbook_left_out or format_number(row.textbook_ms),
    "faster": lambda row: format_number(row.textbook_faster, "x"),
    "MB": lambda row: format_megabytes(row.peak_mb),
    "textbook MB": lambda row: format_megabytes(row.textbook_peak_mb),
}


def _growth_text(exponents: dict[str, float]) -> str:
    terms = [f"n^{value:.2f} for {k}" for k, value in exponents.items()]
    return f"   time per list grows like {', '.join(terms)}" if terms else ""
