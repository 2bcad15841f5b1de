"""What trackers are told: the numbers of metrics.jsonl, once each, also in a training that was interrupted."""

from __future__ import annotations

import json
import math
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankfall._config import ConfigError
from rankfall.training import trackers as track
from rankfall.training.config.load_config import merge, validate_any
from rankfall.training.run_directory import EnvironmentFailure, Step, Stopped
from rankfall.training.trackers import Trackers
from support.command_line import run as command
from support.interrupted import TIMES, cascade_content, ranker_content, train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlflow import MlflowClient

Curves = dict[str, list[tuple[int, float]]]  # by name: after how many batches, and what


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of MLflow for several runs: to make one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'store.db'}"


@pytest.fixture(autouse=True)
def _by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What MLflow leaves in the current directory or finds in the environment, and how busy the machine is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(track, "EVERY", math.inf)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def expected(run: Path, batches: int) -> Curves:
    """The curves that metrics.jsonl has, found without the code that is tested."""
    curves: Curves = {}
    for number, line in enumerate(lines_of(run), 1):
        for key, value in line.items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            for name, one in inner:
                parts = enumerate(one) if isinstance(one, list) else [("", one)]
                for place, leaf in parts:
                    full = "/".join(str(part) for part in (key, name, place) if part != "")
                    curves.setdefault(full, []).append((number * batches, leaf))
    return curves


def tensorboard_curves(run: Path) -> Curves:
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def client_of(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def mlflow_run(run: Path) -> tuple[MlflowClient, str]:
    known = json.loads((run / "mlflow" / "run.json").read_text())
    return client_of(known["uri"]), known["run"]


def mlflow_curves(run: Path) -> Curves:
    client, number = mlflow_run(run)
    names = client.get_run(number).data.metrics
    return {name: [(one.step, one.value) for one in client.get_metric_history(number, name)] for name in names}


def assert_same(found: Curves, wanted: Curves, *, rel: float = 1e-12, but: tuple[str, ...] = ()) -> None:
    assert set(found) == set(wanted)
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        if name not in but:
            assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=rel), name


# --- the numbers of a training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tensorboard_and_mlflow_hear_what_metrics_jsonl_has(log: Path, store: str, tmp_path: Path) -> None:
    tracked = {"epochs": 2, "track": ["tensorboard", "mlflow"], "mlflow": {"uri": store, "experiment": "a b"}}
    out = tmp_path / "run"
    train(cascade_content(log, training=tracked), out)
    wanted = expected(out, batches=4)  # 2 days of 32 impressions in batches of 16
    assert {"loss", "validation/joint_recall", "validation/ranking/alone/recall", "impressions_per_second"} <= set(
        wanted
    )
    assert any(name.startswith("parts/") for name in wanted)
    assert any(name.startswith("trained/") for name in wanted)
    assert_same(tensorboard_curves(out), wanted, rel=1e-6)  # which has single precision
    assert_same(mlflow_curves(out), wanted)
    client, number = mlflow_run(out)
    stored = client.get_run(number)
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "run"
    assert stored.data.params["objective.topk.tau.start"] == "10"
    assert stored.data.params["stages.1.model.kind"] == "din"
    assert client.get_experiment(stored.info.experiment_id).name == "a b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]  # nothing beside it


def test_a_ranker_is_tracked_the_same_way(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(ranker_content(data, training={"epochs": 2, "track": "tensorboard"}), out)
    wanted = expected(out, batches=5)  # 80 lists in batches of 16
    assert {"metric", "lists_per_second", "trained/alpha"} <= set(wanted)
    assert_same(tensorboard_curves(out), wanted, rel=1e-6)
    assert not (out / "mlflow").exists()


@pytest.mark.slow
def test_mlflow_without_a_server_is_a_database_in_the_run(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(ranker_content(data, training={"epochs": 1, "track": "mlflow"}), out)
    assert (out / "mlflow" / "mlflow.db").is_file()
    assert_same(mlflow_curves(out), expected(out, batches=5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.slow
def test_an_interrupted_training_is_tracked_once(data: Path, store: str, tmp_path: Path) -> None:
    """Stopped in the third epoch and continued from the second, which is told again."""
    settings = {"epochs": 4, "patience": None, "keep": 20}
    content = ranker_content(data, training={**settings, "track": ["tensorboard", "mlflow"], "mlflow": {"uri": store}})
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        train(content, out, stop=_after(12))  # of 20
    assert mlflow_status(out) == "KILLED"
    first = mlflow_run(out)[1]
    for number in range(8, 13):
        (out / "checkpoints" / f"step-{number:09}.safetensors").unlink()
    train(content, out, resume=True, on_notice=lambda text: None)
    wanted = expected(out, batches=5)
    assert_same(tensorboard_curves(out), wanted, rel=1e-6)
    assert_same(mlflow_curves(out), wanted, but=TIMES)  # MLflow keeps what it heard first
    assert mlflow_run(out)[1] == first
    assert mlflow_status(out) == "FINISHED"


def _after(batches: int) -> Callable[[], bool]:
    calls = iter(range(1, 10**6))
    return lambda: next(calls) >= batches


def mlflow_status(run: Path) -> str:
    client, number = mlflow_run(run)
    status: str = client.get_run(number).info.status
    return status


def test_a_run_that_is_replaced_leaves_nothing_to_trackers(data: Path, tmp_path: Path) -> None:
    content = ranker_content(data, training={"epochs": 1, "track": "tensorboard"})
    train(content, tmp_path / "run")
    train(content, tmp_path / "run", force=True)
    assert_same(tensorboard_curves(tmp_path / "run"), expected(tmp_path / "run", batches=5), rel=1e-6)
    train(merge(content, {"training": {"track": []}}), tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_tracking_changes_nothing_of_the_training(data: Path, tmp_path: Path) -> None:
    content = ranker_content(data, training={"epochs": 2})
    train(content, tmp_path / "plain")
    train(merge(content, {"training": {"track": "tensorboard"}}), tmp_path / "tracked")
    names = [f"checkpoints/{name}.safetensors" for name in ("best", "last")]
    for name in names:
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "tracked" / name).read_bytes()


# --- between epochs -----------------------------------------------------------------------------------------------


def trackers(data: Path, out: Path, **training: Any) -> Trackers:
    out.mkdir(exist_ok=True)
    return Trackers(validate_any(ranker_content(data, training=training)), out)


def step(batch: int, **parts: float) -> Step:
    return Step(1, 1, batch, 10, parts, {}, 100.0)


def test_batches_are_tracked_at_most_every_few_seconds(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(track, "EVERY", 5.0)
    monkeypatch.setattr("rankfall.training.trackers.time.perf_counter", lambda: now)
    told = trackers(data, tmp_path / "run", track="tensorboard")
    with told.opened(0, pytest.fail):
        for batch in range(1, 11):
            now = 1.5 * batch  # 5 seconds have passed at batch 4, 8
            told.batch(step(batch, e2e=1.0 / batch, single=2.0), batch)
    curves = tensorboard_curves(tmp_path / "run")
    assert_same(
        curves,
        {
            "batch/loss": [(4, 2.25), (8, 2.125)],
            "batch/parts/e2e": [(4, 0.25), (8, 0.125)],
            "batch/parts/single": [(4, 2.0), (8, 2.0)],
            "batch/per_second": [(4, 100.0), (8, 100.0)],
        },
        rel=1e-6,
    )


# --- what can go wrong --------------------------------------------------------------------------------------------


class Deaf:
    """A tracker that can be told nothing after the first time."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def log(self, numbers: dict[str, float], step: int) -> None:
        if self.heard:
            raise ConnectionError("the server is gone\nand this is how it looked inside")
        self.heard.append(step)

    def close(self, *, finished: bool) -> None:
        raise AssertionError


def test_a_tracker_that_fails_does_not_end_a_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = Deaf()
    notices: list[str] = []
    real = Trackers._open
    monkeypatch.setattr(
        Trackers, "_open", lambda self, name, step: deaf if name == "mlflow" else real(self, name, step)
    )
    told = trackers(data, tmp_path / "run", track=["mlflow", "tensorboard"])
    with told.opened(0, notices.append):
        for number in (1, 2, 3):
            told.log({"loss": float(number)}, number)
    assert deaf.heard == [1]
    assert notices == [
        "mlflow failed: the server is gone. Training continues without it; all numbers are in "
        f"{tmp_path / 'run'}/metrics.jsonl"
    ]
    assert tensorboard_curves(tmp_path / "run") == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_a_server_that_is_not_there_is_said_at_the_start(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = trackers(data, tmp_path / "run", track="mlflow", mlflow={"uri": f"http://127.0.0.1:{port}"})
    with pytest.raises(EnvironmentFailure, match=f"training.track: mlflow cannot be reached: .*{port}"):  # noqa: SIM117
        with told.opened(0, pytest.fail):
            pytest.fail("opened")


def test_unreachable_server_keeps_older_run(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(ranker_content(data, training={"epochs": 1}), run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    told = {"track": "mlflow", "mlflow": {"uri": "http://127.0.0.1:1"}}
    with pytest.raises(EnvironmentFailure, match="mlflow cannot be reached"):
        train(ranker_content(data, training={"epochs": 1, **told}), run, force=True)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_what_is_not_installed_is_said_before_anything_is_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setattr(track, "find_spec", lambda wanted: None if wanted == module else find_spec(wanted))
    with pytest.raises(EnvironmentFailure, match=rf"{name} needs {module}; pip install 'rankfall\[track\]'"):
        train(ranker_content(data, training={"track": name}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"track": "tensorbord"}, "training.track.0: found 'tensorbord', did you mean 'tensorboard'"),
        ({"track": ["mlflow", 3]}, "training.track.1: found 3"),
        ({"mlflow": {"url": "x"}}, "unknown key 'url', did you mean 'uri'"),
        ({"mlflow": {"experiment": ""}}, "training.mlflow.experiment: found ''"),
    ],
)
def test_wrong_settings_say_what_is_allowed(data: Path, training: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_any(ranker_content(data, training=training))
    assert message in str(refused.value)


def test_numbers_keep_their_names() -> None:
    line = {"epoch": 3, "validation": {"a/b": 0.5}, "trained": {"w": [1, 2.5]}, "loss": math.inf}
    assert track.flatten(line) == {
        "epoch": 3.0,
        "validation/a/b": 0.5,
        "trained/w/0": 1.0,
        "trained/w/1": 2.5,
        "loss": math.inf,
    }
    assert track.flatten({"trained": {}}) == {}


def test_the_command_line_takes_it_as_any_other_setting(data: Path, tmp_path: Path) -> None:
    import yaml

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(ranker_content(data)))
    out = tmp_path / "run"
    assert command("train", "config.yaml", "training.epochs=1", "training.track=tensorboard", "--out", str(out)) == 0
    assert_same(tensorboard_curves(out), expected(out, batches=5), rel=1e-6)
