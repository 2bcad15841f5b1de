"""Components of users in comparisons, searches and streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rankfall._config import ConfigError, to_yaml
from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import load_comparison
from rankfall.studies.search_space import load_search
from rankfall.studies.stream.run_stream import stream_methods
from rankfall.studies.stream.stream_config import load_stream
from rankfall.studies.tune import tune
from support.cascades import content
from support.own_parts import PARTS, cascade, write_parts
from support.planted import config_for

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.studies.results import ComparisonResult


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of components in the current directory."""
    monkeypatch.chdir(tmp_path)
    return write_parts(tmp_path)


def written(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(to_yaml(content))
    return path


def compared(path: Path, out: Path, **options: Any) -> ComparisonResult:
    return compare_methods(load_comparison(path), out, **options)


def test_a_comparison_trains_again_what_has_changed(parts: Path, log: Path, tmp_path: Path) -> None:
    content = cascade(log, parts) | {"methods": {"own": {}, "lcron": {"objective": {"name": "lcron"}}}, "seeds": [0]}
    content["objective"]["name"] = "./parts.py:Mine"  # of the current directory
    path, out = written(tmp_path / "compare.yaml", content), tmp_path / "out"
    assert compared(path, out).failed == []
    runs = {run.name: (run / "result.json").stat().st_mtime_ns for run in (out / "runs").iterdir()}
    assert sorted(name.partition("-")[0] for name in runs) == ["Mine", "lcron"]
    assert str(parts) in (out / "comparison.yaml").read_text()  # can be run from anywhere
    compared(path, out)
    assert {run.name: (run / "result.json").stat().st_mtime_ns for run in (out / "runs").iterdir()} == runs
    write_parts(tmp_path, PARTS.replace("A linear model", "A model"))
    compared(path, out)
    assert len(list((out / "runs").iterdir())) == 4


def test_metrics_with_dots_in_their_names_in_comparisons_and_streams(parts: Path, log: Path, tmp_path: Path) -> None:
    """Values of metrics are columns of a file; the name of a file and a decimal cutoff have dots."""
    with parts.open("a") as file:
        file.write("\n\ndef share(scores, labels, *, mask=None, p: float):\n    return p * labels.float().mean(-1)\n")
    names = ["./parts.py:first@2", "./parts.py:share@0.5"]
    content = cascade(log, parts, stage_metrics=names)
    comparison = written(tmp_path / "compare.yaml", content | {"methods": {"own": {}}, "seeds": [0]})
    (method,) = compared(comparison, tmp_path / "out").methods
    assert sum("first@2" in name or "share@0.5" in name for name in method.metrics) == 4, list(method.metrics)
    content["data"] = {"path": str(log)}
    result = stream_methods(load_stream(written(tmp_path / "stream.yaml", content)), tmp_path / "stream")
    assert result.failed == []


def test_an_own_metric_of_baselines_and_rankers_has_one_name(parts: Path, data: Path, tmp_path: Path) -> None:
    content = config_for(data, training={"epochs": 1})
    content |= {"metrics": ["ndcg@10", "./parts.py:first@2"], "methods": {"net": {}, "ridge": {"kind": "ridge"}}}
    result = compared(written(tmp_path / "compare.yaml", content | {"seeds": [0]}), tmp_path / "out")
    assert result.failed == []
    names = {name for method in result.methods for name in method.metrics}
    assert names == {"ndcg@10", f"{parts}:first@2"}


def test_a_comparison_measures_by_metrics_of_the_current_directory(
    parts: Path, log: Path, data: Path, tmp_path: Path
) -> None:
    ranker = config_for(data, training={"epochs": 1}) | {"metrics": ["mrr", "./parts.py:first@1"]}
    stages = content(log, training={"epochs": 1}) | {"stage_metrics": ["./parts.py:first@1"]}
    for name, one in {"ranker": ranker, "cascade": stages}.items():
        path = written(tmp_path / f"{name}.yaml", one | {"methods": {"only": {}}})
        result = compared(path, tmp_path / name)
        assert result.failed == []
        (method,) = result.methods
        measured = {key: value.mean for key, value in method.metrics.items() if "first" in key}
        assert list(measured) == [
            f"{stage}{parts}:first@1"
            for stage in ([""] if name == "ranker" else ["retrieval/alone/", "ranking/alone/"])
        ]
        assert all(0 <= value <= 3 for value in measured.values())


def test_a_comparison_goes_on_if_one_method_raises(parts: Path, log: Path, tmp_path: Path) -> None:
    # only in training, after all checks
    write_parts(
        tmp_path, PARTS.replace("truth = batch.truth", "assert not batch.scores[0].requires_grad; truth = batch.truth")
    )
    content = cascade(log, parts) | {"methods": {"own": {}, "lcron": {"objective": {"name": "lcron"}}}, "seeds": [0]}
    result = compared(written(tmp_path / "compare.yaml", content), tmp_path / "out")
    (failure,) = result.failed
    line = PARTS.splitlines().index("        truth = batch.truth(self.relevant)") + 1
    assert failure.method == "own"
    assert failure.message == f"Mine: AssertionError ({parts}, line {line}, in Mine.terms)"
    assert [method.name for method in result.methods] == ["lcron"]


@pytest.mark.slow
def test_processes_of_a_comparison_find_modules_of_the_current_directory(
    parts: Path, log: Path, tmp_path: Path
) -> None:
    parts.rename(tmp_path / "own_module.py")
    content = cascade(log, tmp_path / "own_module.py") | {"methods": {"own": {}}, "seeds": [0], "jobs": 2}
    text = to_yaml(content).replace(f"{tmp_path}/own_module.py:", "own_module:")
    (tmp_path / "compare.yaml").write_text(text)
    result = compared(tmp_path / "compare.yaml", tmp_path / "out")
    assert result.failed == []
    (run,) = (tmp_path / "out" / "runs").iterdir()
    (model, *_) = json.loads((run / "components.json").read_text())
    assert (model["name"], model["file"]) == ("own_module:Tower", str(tmp_path / "own_module.py"))


def test_a_search_over_options_of_components(parts: Path, log: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {
        "objective.keep.tau": {"low": 0.5, "high": 5.0},
        "stages.1.model.width": {"low": 2, "high": 6, "step": 2},
        "stages.1.model.kind": [f"{parts}:Tower", f"{parts}:Tower2"],
    }
    write_parts(tmp_path, PARTS + "\n\nclass Tower2(Tower):\n    pass\n")
    content = cascade(log, parts) | {"search": space, "trials": 2}
    search = load_search(written(tmp_path / "tune.yaml", content))
    result = tune(search, tmp_path / "out")
    assert [trial.state for trial in result.trials] == ["complete", "complete"]
    wrong = content | {"search": {"stages.1.model.width": [2, "wide"]}}
    with pytest.raises(ConfigError, match=r"search.stages.1.model.width.*found 'wide', expected a valid integer"):
        load_search(written(tmp_path / "wrong.yaml", wrong))


def test_a_stream_refuses_changed_code(parts: Path, log: Path, tmp_path: Path) -> None:
    content = cascade(log, parts)
    content["data"] = {"path": str(log)}
    path, out = written(tmp_path / "stream.yaml", content), tmp_path / "out"
    result = stream_methods(load_stream(path), out)
    assert [method.name for method in result.methods] == ["Mine"]
    assert (out / "runs" / "mine-0" / "components.json").is_file()
    stream_methods(load_stream(path), out, resume=True)
    write_parts(tmp_path, PARTS.replace("A linear model", "A model"))
    with pytest.raises(ConfigError, match=rf"was started with other code: {parts} had"):
        stream_methods(load_stream(path), out, resume=True)
