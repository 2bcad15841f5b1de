"""Ray Train's processes train what one process trains, also if one of them is killed."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cascades import content, liked_log
from command_line import run
from rankfall.training import cascade
from rankfall.training.by_ray import train_by_ray
from rankfall.training.cascade_config import CascadeConfig
from rankfall.training.config import validate_any
from ray_session import small_ray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankfall._ray import Ray
    from rankfall.training.run import Step

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'rankfall[ray]')", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*")  # it warns itself, when it is imported


@pytest.fixture(scope="module")
def engine() -> Iterator[Ray]:
    with small_ray() as opened:
        yield opened


def processes(name: str) -> list[int]:
    """Those of this process's own Ray that have the name."""
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if name in (path / "cmdline").read_text():
                found.append(int(path.name))
        except OSError:
            continue  # it has ended
    return [one for one in found if parents.get(parents.get(one, 0), 0) == os.getpid()]  # raylets start workers


def validations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{"loss": line["loss"], **line["validation"]} for line in lines]


def test_two_processes_train_as_one_though_one_is_killed(engine: Ray, tmp_path: Path) -> None:
    log = liked_log(tmp_path / "log")
    config = validate_any(content(log, training={"epochs": 5, "checkpoint_every": 0}))
    assert isinstance(config, CascadeConfig)
    alone = cascade.train(config, tmp_path / "alone")
    steps: list[Step] = []
    killed: list[int] = []

    def kill(step: Step) -> None:
        steps.append(step)
        if step.epoch > 1 and not killed:
            killed.append(processes("RayTrainWorker")[-1])
            os.kill(killed[0], signal.SIGKILL)

    spread = train_by_ray(config, tmp_path / "ray", engine, workers=2, progress=kill)
    assert killed
    assert steps[-1].epoch > 2  # it went on
    assert (spread.best_epoch, spread.epochs) == (alone.best_epoch, alone.epochs)
    ours, theirs = validations(tmp_path / "ray"), validations(tmp_path / "alone")
    assert [sorted(one) for one in ours] == [sorted(one) for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
    files = [
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("ray", "alone")
    ]
    assert files[0] == files[1]


def test_there_are_no_more_processes_than_processors(engine: Ray, tmp_path: Path) -> None:
    config = validate_any(content(tmp_path))
    assert isinstance(config, CascadeConfig)
    with pytest.raises(ValueError, match="workers: found 3, expected at most 2"):
        train_by_ray(config, tmp_path / "run", engine, workers=3)


@pytest.mark.parametrize("options", [("--workers", "2"), ("--engine", "ray")])
def test_processes_are_started_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as under torchrun
    assert run("train", "config.yaml", "--out", str(tmp_path / "run"), *options) == 2
    assert options[0] in capsys.readouterr().err
