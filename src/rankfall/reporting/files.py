"""Files that show a result: tables, figures and pages, written beside its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall._files import write_file
from rankfall.reporting.comparison_page import comparison_page
from rankfall.reporting.comparison_table import csv_table, markdown_table
from rankfall.reporting.page import GENERATOR
from rankfall.reporting.run_page import run_page
from rankfall.reporting.stream_page import stream_page
from rankfall.reporting.stream_table import markdown_tables
from rankfall.studies.compare import COMPARISON, COMPARISON_CONFIG
from rankfall.studies.results import ComparisonResult, StreamResult
from rankfall.studies.stream.run_stream import STREAM, STREAM_CONFIG, TABLES
from rankfall.training.run_directory import CONFIG, REPORT

if TYPE_CHECKING:
    from pathlib import Path


def write_comparison(result: ComparisonResult, out: Path) -> None:
    """Write ``comparison.csv``, ``comparison.md`` and ``report.html`` of a comparison to its directory."""
    write_file(out / "comparison.csv", csv_table(result))
    write_file(out / "comparison.md", markdown_table(result))
    _write_page(_comparison_page(result, out), out / REPORT)


def write_stream(result: StreamResult, out: Path) -> None:
    """Write ``stream.md`` and ``report.html`` of a stream to its directory."""
    write_file(out / TABLES, markdown_tables(result))
    _write_page(_stream_page(result, out), out / REPORT)


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write the page of a run, a comparison or a stream from its directory, and return the file.

    Args:
        path: directory of a run, a comparison or a stream.
        out: file to write, by default ``report.html`` in the directory.
    """
    out = out or path / REPORT
    _check_replaceable(out)
    _write_page(page_of(path), out)
    return out


def page_of(path: Path) -> str:
    """Return the page of a directory of a run, a comparison or a stream as HTML."""
    if (path / COMPARISON).is_file():
        return _comparison_page(ComparisonResult.load(path / COMPARISON), path)
    if (path / STREAM).is_file():
        return _stream_page(StreamResult.load(path / STREAM), path)
    if (path / CONFIG).is_file():
        return run_page(path)
    raise ValueError(
        f"{path} is neither a run nor a comparison nor a stream: it has no {CONFIG} (from 'rankfall train'), no "
        f"{COMPARISON} (from 'rankfall compare') and no {STREAM} (from 'rankfall stream')"
    )


def _comparison_page(result: ComparisonResult, path: Path) -> str:
    command = f"rankfall compare {path / COMPARISON_CONFIG} --out {path}"
    title = f"Comparison {path.name}"
    if (path / COMPARISON_CONFIG).is_file():
        return comparison_page(result, title=title, command=command, config=_text(path / COMPARISON_CONFIG))
    return comparison_page(result, title=title, config=_text(path / CONFIG))  # of a demo


def _stream_page(result: StreamResult, path: Path) -> str:
    command = f"rankfall stream {path / STREAM_CONFIG} --out {path} --force"
    config = _text(path / STREAM_CONFIG)
    return stream_page(result, title=f"Stream {path.name}", command=command if config else "", config=config)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write_page(content: str, out: Path) -> None:
    _check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, content)


def _check_replaceable(out: Path) -> None:
    if out.is_file() and GENERATOR not in out.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"out: {out} exists and is not a report; name another file")
