"""A run that starts from the weights of another run, on a log that may have grown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall._config import ConfigError
from rankfall.cascade import Cascade
from rankfall.data import ImpressionLog
from rankfall.studies.stream.run_stream import stream_methods
from rankfall.studies.stream.stream_config import StreamConfig
from rankfall.training.build import with_depths
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.load_config import merge
from rankfall.training.distributed.group import ALONE
from rankfall.training.run_directory import Stopped, read_config
from rankfall.training.start_weights import rows_of
from rankfall.training.train_cascade import CascadeLearner
from support.growing_logs import NAMES, append_day, growing_log
from support.interrupted import cascade_content, outcome, train
from support.streams import run_outcome, stream_content

if TYPE_CHECKING:
    from pathlib import Path


def content_of(log: Path, train: str, valid: str, **changes: Any) -> dict[str, Any]:
    base = cascade_content(log, data={"train": [train], "valid": [valid], "negatives": 0}, training={"epochs": 1})
    return merge(base, changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the first days of a log, which has grown by a day since."""
    folder: Path = tmp_path_factory.mktemp("start")
    log = growing_log(folder / "log", 2).path
    train(content_of(log, NAMES[0], NAMES[1]), folder / "run")
    append_day(log, 2)
    return folder


def started(folder: Path, **changes: Any) -> dict[str, Any]:
    start = {"training": {"start_from": str(folder / "run"), "seed": 5, "epochs": 2}}
    return merge(content_of(folder / "log", NAMES[1], NAMES[2]), merge(start, changes))


def test_the_first_weights_are_those_of_the_other_run(folder: Path) -> None:
    log = ImpressionLog.load(folder / "log")
    learner = CascadeLearner(with_depths(validate_cascade(started(folder)), log.spec.stage_names), folder, log, ALONE)
    fresh = {name: weight.clone() for name, weight in learner.cascade.state_dict().items()}
    learner.begin()
    other = Cascade.load(folder / "run/checkpoints/best.safetensors").state_dict()
    found = learner.cascade.state_dict()
    assert found.keys() == other.keys()
    grown = [name for name in found if len(found[name]) > len(other[name])]
    assert len(grown) == 6  # user, video and author of both stages
    for name, expected in other.items():
        assert torch.equal(found[name][: len(expected)], expected)
        assert not torch.equal(found[name], fresh[name])
    for name in grown:
        assert (found[name][len(other[name]) :] == other[name][1]).all()
    assert rows_of(learner.cascade) == log.features.tables


def test_an_interrupted_run_ends_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    train(started(folder), tmp_path / "whole")
    batches = iter(range(100))
    with pytest.raises(Stopped):
        train(started(folder), tmp_path / "run", stop=lambda: next(batches) == 2)
    config = read_config(tmp_path / "run")
    assert config.training.start_from == str(folder / "run")  # type: ignore[union-attr]
    train(started(folder), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    train(started(folder, training={"start_from": None}), tmp_path / "other")
    assert outcome(tmp_path / "other")["weights"] != outcome(tmp_path / "whole")["weights"]


def test_a_stream_starts_from_a_run(folder: Path, tmp_path: Path) -> None:
    def stream(out: Path, days: list[str], **options: Any) -> None:
        content = stream_content(
            folder / "log", data={"days": days, "negatives": 0}, training={"start_from": str(folder / "run")}
        )
        content.pop("methods")
        stream_methods(StreamConfig.model_validate(content), out, **options)

    stream(tmp_path / "whole", NAMES[1:3])
    batches = iter(range(100))
    with pytest.raises(Stopped):
        stream(tmp_path / "out", NAMES[1:3], stop=lambda: next(batches) == 4)
    stream(tmp_path / "out", NAMES[1:3], resume=True)
    ours, expected = (run_outcome(tmp_path / name / "runs/lcron-0") for name in ("out", "whole"))
    assert ours == expected
    # the run has rows for values of the second day, which the first day of this stream does not have
    stream(tmp_path / "earlier", NAMES[:2])
    run = Cascade.load(tmp_path / "earlier/runs/lcron-0/checkpoints/last.safetensors")
    assert rows_of(run) == rows_of(Cascade.load(folder / "run/checkpoints/best.safetensors"))


def test_all_differences_are_listed(folder: Path, tmp_path: Path) -> None:
    stages = [
        {"name": "retrieval", "quota": 6, "model": {"kind": "two_tower", "dim": 8, "hidden": [8], "sparse": 40}},
        {"name": "last", "quota": 3, "model": {"kind": "mlp", "only": ["item.author"]}},
    ]
    with pytest.raises(ConfigError) as error:
        train(started(folder) | {"stages": stages, "share": []}, tmp_path / "run")
    text = str(error.value)
    for expected in (
        f"training.start_from: the weights of {folder / 'run'} do not fit this configuration:",
        "- stages: it has retrieval, ranking, expected retrieval, last",
        "- share: it has ['video'], expected []",
        "- the model of retrieval: it has dim 4, expected 8",
    ):
        assert expected in text
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"training.start_from: .*nowhere is not the directory of a run"):
        train(started(folder, training={"start_from": str(tmp_path / "nowhere")}), tmp_path / "run")
    other = growing_log(tmp_path / "log", 2, grow=False)
    append_day(other.path, 2)  # gives new values other ids than the log of the run
    with pytest.raises(ConfigError, match=r"the vocabulary of .* assigns other ids"):
        train(started(folder, data={"path": str(other.path)}), tmp_path / "run")
