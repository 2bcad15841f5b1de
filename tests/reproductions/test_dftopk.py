"""DFTopK's tables and figures: the methods that produced them, their settings, and tables with missing columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.reproductions.catalogue import papers, reproductions
from rankfall.reproductions.costs import cost_figure, published_costs
from rankfall.reproductions.data import LogData
from rankfall.reproductions.paper_schema import ObjectiveComparison, ObjectiveRuntime, ObjectiveStream, ObjectiveSweep
from rankfall.reproductions.protocols import CASCADE_RATES, cascade_config, method_sections, stream_config
from support.reproductions import load

TABLE = load(ObjectiveComparison, "dftopk-table1")
ROWS = ["NeuralSort", "SoftSort", "DiffSort", "LapSum", "Sparse Top-K", "DFTopK"]
LOG = LogData("log", Path("log"), ("d1", "d2"), "d3", "d4", 3200, 800, 40, 4, True)


def test_every_table_and_figure_is_listed() -> None:
    found = [name for name in reproductions() if name.startswith("dftopk-")]
    tables = [f"dftopk-table{number}" for number in range(1, 7)]
    figures = [f"dftopk-figure{number}" for number in (2, 3, 4, 5)]  # figure 1 is a drawing of a cascade
    assert sorted(found) == sorted([*tables, *figures, "dftopk-appendixE"])


@pytest.mark.parametrize("name", ["dftopk-table1", "dftopk-table6"])
def test_printed_rows_are_run_by_default_and_our_versions_on_request(name: str) -> None:
    table = reproductions()[name]
    assert isinstance(table, ObjectiveComparison | ObjectiveSweep)
    assert [method.name for method in table.with_variants(improved=False).methods] == ROWS
    improved = [method for method in table.methods if method.variant == "sound"]
    assert {method.row for method in improved} == set(ROWS)  # each row has a better version


def test_published_methods_keep_the_printed_rate_and_try_the_printed_temperature() -> None:
    sections = method_sections(TABLE.methods, CASCADE_RATES, tune=True, keep_rate=TABLE.protocol.keep_rate)
    for name in ROWS:
        assert "optimizer.lr" not in sections[name]["tune"]
    assert 500.0 in sections["DFTopK"]["tune"]["objective.topk.tau"]
    assert sections["DFTopK"]["objective"]["topk"] == {"name": "dftopk", "tau": 500.0}  # without tuning
    assert sections["DFTopK, low tau"]["tune"]["optimizer.lr"] == CASCADE_RATES.combined
    config = cascade_config(TABLE.protocol, LOG, sections, seeds=[0], lists=TABLE.lists)
    assert config.optimizer == {"lr": 0.01}
    assert (config.data["length"], config.data["length_from"], config.data["labels"]) == (200, "batch", "published")


def test_rows_with_known_defects_have_them() -> None:
    by_name = {method.name: method.config["objective"]["topk"] for method in TABLE.methods}
    for row in ("DiffSort", "Sparse Top-K"):
        assert by_name[row]["variant"] == "published"
        assert "variant" not in by_name[f"{row}, sound"]


def test_the_stream_is_tested_on_long_lists() -> None:
    stream = load(ObjectiveStream, "dftopk-figure5")
    sections = method_sections(stream.methods, CASCADE_RATES, tune=False)
    config = stream_config(stream.protocol, LOG, sections, seeds=[0], lists=stream.lists)
    assert config.data == {
        "path": "log",
        "days": "d1..d4",
        "labels": "published",
        "length": 200,
        "length_from": "batch",
    }


def test_costs_beside_a_table_without_memory() -> None:
    table = load(ObjectiveRuntime, "dftopk-appendixE")
    sheet = published_costs(table)
    assert sheet.rows == [["NeuralSort", "150", "1.00", "-", "-"], ["DFTopK", "127", "0.85", "-", "-"]]
    costs = {name: {"s": 1.0, "MiB": 1.0} for name in ("NeuralSort", "DFTopK")}
    figure = cost_figure(table, LOG.name, ("s", "MiB"), costs)
    (printed,) = [panel for panel in figure.panels if panel.name.startswith("published")]
    assert printed.name.endswith(": time (lower is better)")
    assert [strip.name for strip in printed.strips] == ["NeuralSort", "DFTopK", ""]


def test_statements_are_short_and_explain_differences() -> None:
    (paper,) = (paper for paper in papers() if paper.name == "DFTopK")
    assert {one.kind for one in paper.statements} == {"equation", "protocol", "claim"}
    for one in paper.statements:
        assert len(one.what) <= 120
        assert one.note or one.state == "done"
