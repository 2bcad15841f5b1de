"""Methods of a user beside those of a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rankfall._config import ConfigError
from rankfall.reproductions.catalogue import find_reproduction, load_methods, reproductions, run
from rankfall.reproductions.data import find_lists as find
from rankfall.reproductions.task import Size, Task
from support.own_parts import write_parts
from support.reproductions import check_report, points_of

if TYPE_CHECKING:
    from pathlib import Path

TINY = Size(test_lists=1, generated_lists=12, epochs=1, patience=1, seeds=1, tune=False, points=2)


def test_methods_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "methods.yaml"
    file.write_text("mine: {loss: {name: softmax_loss}, tune: {optimizer.lr: [0.1, 0.2]}}\n")
    (method,) = load_methods(file)
    assert (method.name, method.config, method.tune) == (
        "mine",
        {"loss": {"name": "softmax_loss"}},
        {"optimizer.lr": [0.1, 0.2]},
    )
    with pytest.raises(ConfigError, match=r"methods: mine: found 'softmax_loss', expected keys and values"):
        load_methods({"mine": "softmax_loss"})
    with pytest.raises(ConfigError, match=r"methods: mine: tune.*"):
        load_methods({"mine": {"tune": {"optimizer.lr": [0.1]}}})


def test_methods_need_a_table_of_methods_and_new_names() -> None:
    own = load_methods({"mine": {"loss": {"name": "softmax_loss"}}})
    with pytest.raises(ConfigError, match="compares no methods"):
        find_reproduction("dftopk-figure2").with_methods(own)
    table = find_reproduction("pirank-table1")
    assert table.with_methods([]) is table
    known = load_methods({table.methods[0].name: {}})  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"methods: found .* 2 times"):
        table.with_methods(known)


def test_methods_use_the_setting_that_a_sweep_varies() -> None:
    own = load_methods({"mine": {"loss": {"name": "softmax_loss"}}})
    with pytest.raises(ConfigError, match=r"arf-table6: methods.mine: found no variable, expected \$tau"):
        find_reproduction("arf-table6").with_methods(own)
    find_reproduction("lambdaloss-figure1").with_methods(own)  # varies the learning rate, which every method has


def test_every_reproduction_with_methods_takes_methods_of_users() -> None:
    for one in reproductions().values():
        methods = getattr(one, "methods", [])
        if methods:
            mine = methods[0].model_copy(update={"name": "mine"})
            assert one.with_methods([mine]).methods == [*methods, mine]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_methods_of_users_are_run_beside_those_of_the_paper(tmp_path: Path) -> None:
    name, parts = "lambdaloss-figure1", write_parts(tmp_path / "code")
    methods = load_methods({"mine": {"loss": {"name": f"{parts}:squared", "margin": 0.1}}})
    task = Task(out=tmp_path / "out", source=find("generated"), size=TINY, jobs=1, methods=methods)
    report = run(find_reproduction(name), task)
    check_report(report, name)
    comparison = report.results["comparison"]
    assert comparison["failed"] == []
    assert [one["name"].startswith("mine, ") for one in comparison["methods"]].count(True) == TINY.points
    (sheet,) = report.sheets
    assert "mine, here" in [row[0] for row in sheet.rows]
    assert points_of(report, name, "mine") == TINY.points


@pytest.mark.slow
def test_a_published_sweep_is_shown_beside_methods_of_users(tmp_path: Path) -> None:
    table = find_reproduction("arf-table6")
    (paper,) = table.methods  # type: ignore[attr-defined]
    methods = [paper.model_copy(update={"name": "mine"})]
    task = Task(out=tmp_path / "out", source=find("generated"), size=TINY, jobs=1, methods=methods)
    report = run(table, task)
    for sheet in report.sheets:
        rows = {row[0]: row[1:] for row in sheet.rows if row}
        ours, mine = (rows[f"{name}, here"] for name in ("ARF", "mine"))
        assert {"ARF, published, MSLR-WEB30K", "ARF, published, Istella"} <= rows.keys()
        assert sum(cell != "" for cell in ours) == TINY.points
        assert ours == mine  # the same loss, data and seed
    assert points_of(report, table.id, "mine") == TINY.points
