"""Files of published numbers: they load quickly, errors name the place, and every table has all its cells."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from rankfall._config import ConfigError
from rankfall.reproductions.catalogue import DIRECTORY, FILES, load_paper, papers, reproductions
from rankfall.reproductions.paper_schema import (
    ListStatistics,
    Measured,
    ObjectiveSweep,
    PublishedSweep,
    PublishedTable,
    Reproduction,
    StageLossComparison,
    TableOfMethods,
    TrainingCost,
    fill,
    mean_of,
    variables_in,
)

if TYPE_CHECKING:
    from pathlib import Path

# numbers, and cells in which the paper prints none; tables without values are not listed
CELLS = {
    "arf-table1": (4 * 6, 0),  # data sets; two sizes and two ranges
    "arf-table2": (9 * 3 * 2, 0),  # methods, metrics, data sets
    "arf-table3": (9 * 3 * 2, 0),
    "arf-table4": (2 * 2, 0),  # metrics, methods
    "arf-table5": (3 * 3 * 2, 0),
    "arf-table6": (9 * 3 * 2, 0),  # temperatures, metrics, data sets
    "arf-table7": (9 * 3 * 2, 0),
    "arf-table8": (9 * 3 * 2, 0),
    "arf-table9": (9 * 2, 0),  # methods, columns of numbers
    "lambdaloss-table1": (6 * 3 * 3, 0),  # losses, data sets, metrics
    "lambdaloss-table2": (7 * 3 * 1, 0),
    "pirank-table1": (6 * 2 * 8, 0),
    "lcron-table1": (4 * 5, 0),
    "lcron-table2": (8 * 5, 0),
    "lcron-table3": (3 * 5, 0),
    "lcron-table4": (8 * 5, 0),
    "lcron-table5": (3 + 2 * 2, 2),  # the baseline has no gain over itself
    "lcron-table6": (8 * 7, 0),
    "lcron-table7": (4 * 5 + 1, 4),  # one figure of appendix E.1
    "lcron-table8": (6 * 5, 0),
    "lcron-table9": (8 * 5, 0),
    "lcron-table10": (8 * 5, 0),
    "lcron-table11": (8 * 5, 0),
    "lcron-table12": (8 * 5, 0),
    "lcron-appendixB": (3, 0),
    "lcron-appendixD": (8 * 2, 0),
    "dftopk-table1": (6 * 3, 0),
    "dftopk-table2": (6 * 6, 0),
    "dftopk-table3": (2 * 2 + 3 + 1, 4),  # the baseline has no gain over itself, one time is also printed in percent
    "dftopk-table4": (6 * 6, 0),
    "dftopk-table5": (9 * 3, 0),
    "dftopk-table6": (6 * 6 * 3, 0),
    "dftopk-figure4": (4 * 6, 0),  # as in table 6
    "dftopk-appendixE": (2, 2),  # times of table 3, without memory
}


def published(reproduction: Reproduction) -> PublishedTable | PublishedSweep | None:
    found = getattr(reproduction, "published", None)
    assert found is None or isinstance(found, PublishedTable | PublishedSweep)
    return found


def test_every_file_is_loaded() -> None:
    assert sorted(FILES) == sorted(path.name for path in DIRECTORY.glob("*.yaml"))
    names = [one.id for paper in papers() for one in paper.reproductions]
    assert len(names) == len(set(names)) == len(reproductions())


def test_tables_have_as_many_cells_as_were_transcribed() -> None:
    found = {}
    for name, reproduction in reproductions().items():
        table = published(reproduction)
        cells = [] if table is None else [mean_of(cell.printed) for cell in table.cells()]
        if cells:
            unknown = cells.count(None)
            found[name] = (len(cells) - unknown, unknown)
    assert found == CELLS


def test_loading_does_not_import_torch() -> None:
    code = (
        "import sys; from rankfall.reproductions.catalogue import reproductions; reproductions(); "
        "assert 'torch' not in sys.modules and 'polars' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"driver": "objective_swep"}, "lcron-table8: driver: found 'objective_swep', did you mean 'objective_sweep'"),
        ({"protocol": "two_stage"}, "lcron-table8: protocol: found 'two_stage', did you mean 'two_stages'"),
        ({"methods": ["LCRON"]}, "lcron-table8: methods.0: found 'LCRON'.*; defined are BCE"),
        ({"variable": "weight"}, r"found the variables \$tau, expected \$weight"),
        ({"digits": 3}, "lcron-table8: unknown key 'digits'"),
        (
            {"published": {"along": "tau", "points": [1, 2], "values": {"RecFlow": {"m": {"joint_recall": [0.5]}}}}},
            "lcron-table8: published: values.RecFlow.m.joint_recall: found 1 values, expected 2",
        ),
        ({"published": {"along": "tau", "points": ["high"]}}, "lcron-table8: published.points.0"),
    ],
)
def test_errors_name_file_reproduction_and_key(change: dict[str, object], message: str, tmp_path: Path) -> None:
    content = yaml.safe_load((DIRECTORY / "lcron.yaml").read_text())
    (sweep,) = (one for one in content["reproductions"] if one["id"] == "lcron-table8")
    content["reproductions"] = [{**sweep, **change}]
    file = tmp_path / "lcron.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=message) as caught:
        load_paper(file)
    assert str(caught.value).startswith(str(file))


def test_rows_of_a_table_have_one_value_per_column() -> None:
    with pytest.raises(ValueError, match=r"values.data.m: found 2 values, expected 1, one for each of the columns"):
        PublishedTable.model_validate({"columns": ["ndcg"], "values": {"data": {"m": [0.5, 0.6]}}})


def test_columns_have_their_own_unit_and_cells_a_deviation() -> None:
    content = {
        "columns": ["ndcg", {"name": "seconds", "unit": 1}],
        "unit": 100,
        "values": {"data": {"a": [50, {"value": 3.5, "std": 0.1}], "b": [None, 4]}},
    }
    table = PublishedTable.model_validate(content)
    assert table.figures("data") == {"a": {"ndcg": 0.5, "seconds": 3.5}, "b": {"seconds": 4}}
    assert table.values["data"]["a"][1] == Measured(value=3.5, std=0.1)


def test_all_points_of_a_sweep_are_used() -> None:
    for reproduction in reproductions().values():
        if isinstance(reproduction, ObjectiveSweep):
            sections = [method.config for method in reproduction.methods]
            filled = fill([reproduction.lists, *sections], {reproduction.variable: reproduction.published.points[0]})
            assert not variables_in(filled)


def test_entries_are_consistent() -> None:
    for one in reproductions().values():
        rows = one.published.rows() if isinstance(one, TableOfMethods) else set()
        if isinstance(one, TableOfMethods):
            assert {method.row for method in one.methods} - {None} <= rows, one.id
        if isinstance(one, TrainingCost):
            assert not one.complexity or one.complexity.keys() == rows, one.id
        if isinstance(one, ListStatistics):
            assert len(one.published.columns) == 6, one.id
        if isinstance(one, StageLossComparison):
            assert one.protocols.keys() == one.published.values.keys(), one.id
    for paper in papers():
        for statement in paper.statements:
            assert statement.where if statement.state == "done" else statement.note, statement.place
