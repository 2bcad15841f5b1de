"""Methods of a user beside those of a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rankfall._yaml_config import ConfigError
from rankfall.reproductions.catalogue import find_reproduction, load_methods, run
from rankfall.reproductions.list_data import find
from rankfall.reproductions.task import Size, Task
from support.own_parts import write_parts
from support.reproductions import check_report

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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lambdaloss-figure1"])
def test_methods_of_users_are_run_beside_those_of_the_paper(name: str, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "code")
    methods = load_methods({"mine": {"loss": {"name": f"{parts}:squared", "margin": 0.1}}})
    task = Task(out=tmp_path / "out", source=find("generated"), size=TINY, jobs=1, methods=methods)
    report = run(find_reproduction(name), task)
    check_report(report, name)
    for _, comparison in report.comparisons:
        assert comparison.failed == []
        assert any(method.name.startswith("mine") for method in comparison.methods)
