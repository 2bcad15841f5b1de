"""Ray Train's processes train what one process trains, also if one of them is killed or all of them are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.training.checkpoint import Checkpoints
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import merge, validate_any
from rankfall.training.distributed import ray_backend
from rankfall.training.distributed.ray_backend import train_by_ray
from rankfall.training.methods import train
from rankfall.training.run_directory import EnvironmentFailure, Stopped, is_marked_for_replacement
from support import failing_work, own_parts
from support.cascades import content, liked_log
from support.command_line import run
from support.interrupted import outcome
from support.ray_session import small_ray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankfall._engine import Ray
    from rankfall.training.run_directory import Step

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'rankfall[ray]')", allow_module_level=True)
pytestmark = [
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),  # it warns itself, when it is imported
]


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


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def curve(run: Path) -> list[dict[str, float]]:
    return [{"loss": line["loss"], **line["validation"]} for line in lines(run)]


def cascade_config(log: Path, **training: Any) -> CascadeConfig:
    config = validate_any(content(log, training=training))
    assert isinstance(config, CascadeConfig)
    return config


@pytest.mark.trial
def test_two_processes_train_as_one_though_one_is_killed_and_one_meets_an_error(
    engine: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with components of a user, which the processes import
    own = own_parts.cascade(liked_log(tmp_path / "log"), own_parts.write_parts(tmp_path / "code"))
    config = validate_any(merge(own, {"training": {"epochs": 4, "checkpoint_every": 1e9}}))
    assert isinstance(config, CascadeConfig)
    alone, spread = tmp_path / "alone", tmp_path / "ray"
    train(config, alone)
    error = ValueError("data.path: found an id that nobody else has")
    monkeypatch.setattr(ray_backend, "_work", failing_work.until_the_second_raises(tmp_path / "notes", error))
    before: list[dict[str, Any]] = []

    def kill(step: Step) -> None:
        if step.epoch == 2 and not before:
            before.extend(lines(spread))
            os.kill(processes("RayTrainWorker")[-1], signal.SIGKILL)

    with pytest.raises(ValueError, match=rf"^{error}$"):
        train_by_ray(config, spread, engine, workers=2, timeout=120, progress=kill)
    assert (tmp_path / "notes").read_text() == "raised\n"  # nobody waited, and nothing was tried again
    assert [line["epoch"] for line in lines(spread)] == [1, 2]
    assert lines(spread)[:1] == before  # no epoch is trained twice, by the seconds that it took

    steps: list[Step] = []
    train(config, spread, resume=True, progress=steps.append, on_notice=lambda text: None)
    assert (steps[0].epoch, steps[0].batch) == (3, 1)
    for one, other in zip(curve(spread), curve(alone), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
    assert outcome(spread)["files"] == outcome(alone)["files"]


class Here:
    """Trains in this process, and does not need Ray Train's many."""

    def __init__(self, task: dict[str, Any], workers: int, engine: Ray) -> None:
        self.task = task

    def fit(self) -> None:
        ray_backend._work(self.task)


@pytest.mark.trial
def test_stopped_ray_run_writes_checkpoint(engine: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = cascade_config(liked_log(tmp_path / "log"), epochs=100_000, patience=None, checkpoint_every=1e9)
    monkeypatch.setattr(ray_backend, "_trainer", Here)
    monkeypatch.setenv("WORLD_SIZE", "1")
    steps: list[Step] = []
    message = r"stopped after batch (\d+) of 10 in epoch (\d+); the same command with --resume continues"
    with pytest.raises(Stopped, match=message) as stopped:
        train_by_ray(config, tmp_path / "run", engine, progress=steps.append, stop=lambda: len(steps) > 1)
    batch, epoch = map(int, re.findall(message, str(stopped.value))[0])
    newest = Checkpoints(tmp_path / "run" / "checkpoints", 2).load(pytest.fail)
    assert newest is not None
    assert newest["position"]["step"] == (epoch - 1) * 10 + batch


@pytest.mark.trial
def test_messages_sent_at_the_end_arrive(engine: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    class Late(Here):
        def fit(self) -> None:
            send = self.task["actor"].send.remote
            engine.ray.get(send("notice", "nearly done"))
            looked.wait(60)
            engine.ray.get(send("stopped", "the last message"))

    def wait_for_the_end(text: str) -> None:
        looked.set()
        for thread in threading.enumerate():
            if isinstance(thread, ray_backend._Fit):
                thread.join(60)

    monkeypatch.setattr(ray_backend, "_trainer", Late)
    with pytest.raises(Stopped, match="the last message"):
        train_by_ray(cascade_config(tmp_path), tmp_path / "run", engine, on_notice=wait_for_the_end)


@pytest.mark.trial
def test_a_run_is_to_be_replaced_until_it_is(engine: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").touch()
    seen: list[bool] = []

    class Dead(Here):
        def fit(self) -> None:
            seen.append(is_marked_for_replacement(tmp_path))

    monkeypatch.setattr(ray_backend, "_trainer", Dead)
    with pytest.raises(EnvironmentFailure, match="training processes died 4 times"):
        train_by_ray(cascade_config(tmp_path), tmp_path, engine, force=True)
    assert seen == [True]  # which processes that are started again look at
    assert not is_marked_for_replacement(tmp_path)


@pytest.mark.trial
def test_there_are_no_more_processes_than_processors(engine: Ray, tmp_path: Path) -> None:
    config = cascade_config(tmp_path)
    with pytest.raises(ValueError, match="workers: found 3, expected at most 2"):
        train_by_ray(config, tmp_path / "run", engine, workers=3)


@pytest.mark.parametrize("options", [("--workers", "2"), ("--engine", "ray")])
def test_processes_are_started_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as under torchrun
    assert run("train", "config.yaml", "--out", str(tmp_path / "run"), *options) == 2
    assert options[0] in capsys.readouterr().err
