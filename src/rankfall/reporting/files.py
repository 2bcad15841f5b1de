"""Files that show a result: tables, figures and pages, written beside its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rankfall._errors import RankfallError
from rankfall._tables import Tables, draws
from rankfall.reporting.blocks import figures_in
from rankfall.reporting.comparison import (
    comparison_page_blocks,
    csv_table,
    curves_chart,
    intervals_chart,
    main_metric,
    markdown_table,
    markdown_tables,
    stream_page_blocks,
)
from rankfall.reporting.diagnosis import front_chart
from rankfall.reporting.funnel import funnel_of_summary
from rankfall.reporting.html import GENERATOR, page
from rankfall.reporting.inspection import search_chart
from rankfall.reporting.run import run_page_blocks
from rankfall.storage.disk import make_directory
from rankfall.storage.files import standard_output, write_file
from rankfall.storage.trust import stored_code
from rankfall.studies.compare import COMPARISON, COMPARISON_CONFIG
from rankfall.studies.evaluate import evaluation_files
from rankfall.studies.plan.plan_result import PlanResult
from rankfall.studies.results import ComparisonResult, EvaluationSummary, SearchResult, SplitEvaluation, StreamResult
from rankfall.studies.stream.run_stream import STREAM, STREAM_CONFIG, TABLES
from rankfall.training.run_directory import CONFIG, REPORT

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.reporting.blocks import Block
    from rankfall.reporting.charts import Chart


_NO_RESULT = (
    f"{{path}} is neither a run nor a comparison nor a stream: it has no {CONFIG} (from 'rankfall train'), no "
    f"{COMPARISON} (from 'rankfall compare') and no {STREAM} (from 'rankfall stream')"
)


def write_comparison(result: ComparisonResult, out: Path) -> None:
    """Write ``comparison.csv``, ``comparison.md`` and ``report.html`` of a comparison to its directory."""
    write_file(out / "comparison.csv", csv_table(result))
    write_file(out / "comparison.md", markdown_table(result))
    _write_page(page(*_comparison_page(result, out)), out / REPORT)


def write_stream(result: StreamResult, out: Path) -> None:
    """Write ``stream.md`` and ``report.html`` of a stream to its directory."""
    write_file(out / TABLES, markdown_tables(result))
    _write_page(page(*_stream_page(result, out)), out / REPORT)


def write_report(path: Path, out: Path | None = None, *, trust: bool = False) -> Path:
    """Write the page of a run, a comparison or a stream from its directory, and return the file.

    Args:
        path: directory of a run, a comparison or a stream.
        out: file to write, by default ``report.html`` in the directory.
        trust: import the code that the configuration of a run names; see :mod:`rankfall.storage.trust`.
    """
    out = out or path / REPORT
    _check_replaceable(out)
    with stored_code(path, trust=trust):
        _write_page(page(*blocks_of(path)), out)
    return out


def write_evaluation_report(run: Path, measured: Path, *, trust: bool = False) -> Path:
    """Write the page of another evaluation of a run to the directory of its result, and return the file.

    Args:
        run: Run directory.
        measured: Directory with the evaluation, and its diagnosis if there is one.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall.storage.trust`.
    """
    out = measured / REPORT
    with stored_code(run, trust=trust):
        _write_page(page(*run_page_blocks(run, measured)), out)
    return out


def figures_of(path: Path, *, trust: bool = False) -> dict[str, Chart]:
    """Return all figures of the page of a run, a comparison or a stream, by the names of their files.

    Args:
        path: directory of a run, a comparison or a stream.
        trust: import the code that the configuration of a run names; see :mod:`rankfall.storage.trust`.
    """
    with stored_code(path, trust=trust):
        return figures_in(blocks_of(path)[1])


def blocks_of(path: Path) -> tuple[str, list[Block]]:
    """Return the title and the blocks of the page of a directory of a run, a comparison or a stream."""
    if (path / COMPARISON).is_file():
        return _comparison_page(ComparisonResult.load(path / COMPARISON), path)
    if (path / STREAM).is_file():
        return _stream_page(StreamResult.load(path / STREAM), path)
    if (path / CONFIG).is_file():
        return run_page_blocks(path)
    raise RankfallError(_NO_RESULT.format(path=path))


def _comparison_page(result: ComparisonResult, path: Path) -> tuple[str, list[Block]]:
    own = _text(path / COMPARISON_CONFIG)
    command = f"rankfall compare {path / COMPARISON_CONFIG} --out {path}" if own else ""
    config = own or _text(path / CONFIG)  # of a demo
    measured = first_evaluations(result, path)
    return f"Comparison {path.name}", comparison_page_blocks(result, command=command, config=config, measured=measured)


def first_evaluations(result: ComparisonResult, path: Path) -> dict[str, SplitEvaluation]:
    """Return the first evaluation of each method that is still there."""
    found: dict[str, SplitEvaluation] = {}
    for method in result.methods:
        files = (evaluation_files(path / run.directory)[0] for run in method.runs or ())
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            found[method.name] = SplitEvaluation.load(file)
    return found


def _stream_page(result: StreamResult, path: Path) -> tuple[str, list[Block]]:
    config = _text(path / STREAM_CONFIG)
    command = f"rankfall stream {path / STREAM_CONFIG} --out {path} --force" if config else ""
    return f"Stream {path.name}", stream_page_blocks(result, command=command, config=config)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write_page(content: str, out: Path) -> None:
    _check_replaceable(out)
    make_directory(out.parent)
    write_file(out, content)


def _check_replaceable(out: Path) -> None:
    if (
        standard_output(out) is None
        and out.is_file()
        and GENERATOR not in out.read_text(encoding="utf-8", errors="replace")
    ):
        raise RankfallError(f"out: {out} exists and is not a report; name another file")


AnyTables = TypeVar("AnyTables", bound=Tables)


def shown_in(result: AnyTables, directory: Path | None) -> AnyTables:
    """Return a result that knows the directory of its files, and that notebooks show with its figure."""
    return result.stored_in(directory)


@draws(EvaluationSummary)
def _funnel(result: EvaluationSummary) -> str | None:
    return funnel_of_summary(result).svg() if result.funnel else None


@draws(ComparisonResult)
def _intervals(result: ComparisonResult) -> str | None:
    chart = intervals_chart(result, main_metric(result))
    return chart.svg() if chart else None


@draws(StreamResult)
def _curves(result: StreamResult) -> str | None:
    chart = curves_chart(result)
    return chart.svg() if chart else None


@draws(SearchResult)
def _history(result: SearchResult) -> str | None:
    chart = search_chart(result, result.directory.name if result.directory else result.metric)
    return chart.svg() if chart else None


@draws(PlanResult)
def _front(result: PlanResult) -> str | None:
    return front_chart(result).svg() if result.front else None
