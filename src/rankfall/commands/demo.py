"""``rankfall demo``: simulate, train two methods, compare and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rankfall._disk import make_directory
from rankfall._files import scratch_directory
from rankfall._manifest import MANIFEST
from rankfall.commands.options import AsJson, Force, Seed, out_option, quick_option
from rankfall.commands.terminal import examples, print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from rankfall.studies.results import ComparisonResult

EXAMPLES = examples("rankfall demo", "rankfall demo --out demo --seed 1", "rankfall demo --quick --json")


def demo(
    out: Annotated[Path | None, out_option(show_default="not kept")] = None,
    seed: Seed = 0,
    force: Force = False,
    quick: Annotated[bool, quick_option("a few hundred impressions, in seconds")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a platform, train two methods on its log, and compare them.

    BCE trains the cascade stage by stage, LCRON as one network, with three seeds each. The platform logs which items
    each stage of its production cascade kept. Three stages learn from that log; the table shows how many of the
    relevant items survive them, of all items, and where the others are lost. The page report.html ends with what to do
    next, from a diagnosis and a plan of the first run of LCRON. With --out, the log, the runs, config.yaml,
    comparison.json and report.html are kept.
    """
    if out is None:
        with scratch_directory("rankfall-demo") as directory:
            result = _run(directory, seed, quick)
    else:
        if out.exists() and any(out.iterdir()) and not force:
            raise ValueError(f"out: {out} is not empty; name another directory, or overwrite it with --force")
        _check_demo(out)
        make_directory(out)
        result = _run(out, seed, quick)
    if as_json:
        print_json(result.to_json())
    else:
        from rankfall.reporting.comparison_table import terminal_table

        print_result(terminal_table(result))
    if out is not None:
        print_message(
            f"wrote {out / 'report.html'} and {out / 'lcron' / 'report.html'}; next: rankfall evaluate {out / 'lcron'} "
            "--diagnose"
        )


def _check_demo(out: Path) -> None:
    """Raise an error for a directory with other files; an earlier demo wrote its log first."""
    names = sorted(path.name for path in out.glob("[!.]*"))
    if names and not (out / "log" / MANIFEST).is_file():
        raise ValueError(
            f"out: {out} contains {names[0]} but no log, so it was not written by a demo; name another directory"
        )


def _run(out: Path, seed: int, quick: bool) -> ComparisonResult:
    print_message("loading torch")
    from rankfall import demo

    size = demo.QUICK if quick else demo.FULL
    impressions = size.days * size.requests_per_day
    print_message(f"simulating {impressions:,} requests, training {' and '.join(demo.OBJECTIVES)}")
    with progress() as bar:
        line = bar.add_task("preparing", total=None)
        return demo.run(
            out,
            size=size,
            seed=seed,
            progress=lambda step, done, total: bar.update(line, description=step, completed=done, total=total),
        )
