"""The choice of the device, bfloat16, compilation and pinned memory."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall import objectives
from rankfall._config import ConfigError
from rankfall._engine import WORKER
from rankfall._tensor_file import read_checkpoint
from rankfall.studies.evaluate import evaluate_run
from rankfall.studies.workers import run_tasks
from rankfall.training import device as device_module
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.ranker_config import validate
from rankfall.training.device import CPU, Placement, device_of, resolve
from rankfall.training.distributed import ray_backend
from rankfall.training.distributed.group import Group
from rankfall.training.learner import Learner
from rankfall.training.run_directory import Stopped, TrainingError
from rankfall.training.train_ranker import load_run
from support import native_code
from support.cascades import content, liked_log
from support.command_line import run as command
from support.interrupted import train
from support.planted import config_for
from support.standin_training import on_standin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor


@pytest.fixture(scope="module")
def liked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("liked") / "log"
    return liked_log(path)


# --- which device -------------------------------------------------------------------------------------------------


def pretend(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, mps: bool = False) -> None:
    """Pretend that this machine has GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def processes(world: int, local_rank: int) -> Group:
    group = Group()
    group.world, group.local_rank = world, local_rank
    return group


@pytest.mark.parametrize(
    ("name", "gpus", "mps", "device"),
    [
        ("auto", 0, False, "cpu"),
        ("auto", 2, False, "cuda:0"),
        ("auto", 0, True, "cpu"),  # never chosen by itself
        ("cpu", 2, True, "cpu"),
        ("cuda", 2, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps"),
    ],
)
def test_the_device_of_one_process(
    name: str, gpus: int, mps: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, gpus=gpus, mps=mps)
    assert resolve(name) == torch.device(device)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        (
            "cuda",
            0,
            r"found cuda, but torch \S+ (was built without CUDA|finds no GPU); expected auto or cpu$",
        ),
        (
            "mps",
            0,
            r"found mps, but torch \S+ (was built without MPS|finds no Apple GPU); expected auto or cpu$",
        ),
        (
            "cuda:1",
            1,
            r"found cuda:1, but torch \S+ finds 1 GPU; expected auto, cpu, cuda or cuda:0$",
        ),
        ("cuda:2", 2, r"found cuda:2, but torch \S+ finds 2 GPUs; expected .*, cuda:0 or cuda:1$"),
    ],
)
def test_a_device_that_is_missing(name: str, gpus: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpus=gpus)
    with pytest.raises(ConfigError, match=r"training\.device: " + message):
        resolve(name)


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpus=2)
    for name in ("auto", "cuda"):
        assert [resolve(name, processes(2, rank)).index for rank in range(2)] == [0, 1]
        with pytest.raises(ConfigError, match=r"found process 2 of this machine, which has 2 GPUs.*; start 2 per"):
            resolve(name, processes(3, 2))
    assert resolve("cpu", processes(3, 2)) == torch.device("cpu")
    for name in ("cuda:1", "mps"):
        with pytest.raises(ConfigError, match=f"found {name} with 2 processes, expected cuda .* or cpu"):
            resolve(name, processes(2, 0))
    given = Group()
    given.device = torch.device("cuda", 7)  # by Ray
    assert resolve("auto", given) == given.device


def test_jobs_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpus=2)
    for number, expected in enumerate([0, 1, 0]):
        monkeypatch.setenv(WORKER, str(number))
        assert resolve("auto") == torch.device("cuda", expected)
        assert resolve("cuda:1") == torch.device("cuda", 1)


def test_jobs_have_numbers() -> None:
    assert {value for _, value in run_tasks(os.getenv, [WORKER] * 3, jobs=2)} <= {"0", "1"}


@pytest.mark.parametrize("check", [validate, validate_cascade])
@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:01", "cpu:0", "CUDA"])
def test_other_names_are_refused(check: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"training.device: found '{name}'.*expected auto, cpu, cuda, cuda:N or mps"):
        check({"training": {"device": name}})


def test_a_missing_device_ends_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (tmp_path / "config.yaml").write_text(json.dumps(config_for(data)))
    assert command("train", tmp_path / "config.yaml", "training.device=cuda", "--out", tmp_path / "run") == 1
    assert "training.device: found cuda, but torch" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert command("train", tmp_path / "config.yaml", "training.device=cpu", "--out", tmp_path / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"
    assert command("evaluate", tmp_path / "run", "training.device=cuda") == 1
    assert "training.device: found cuda, but torch" in capsys.readouterr().err
    assert command("evaluate", tmp_path / "run", "training.device=cpu") == 0


@pytest.mark.parametrize(
    ("name", "gpus", "expected"), [("auto", 0, False), ("auto", 1, False), ("auto", 2, True), ("cuda", 4, True)]
)
def test_ray_gives_a_gpu_to_each_process(name: str, gpus: int, expected: bool, data: Path) -> None:
    config = validate(config_for(data, training={"device": name}))
    engine: Any = SimpleNamespace(ray=SimpleNamespace(cluster_resources=lambda: {"GPU": gpus}))
    assert ray_backend._use_gpu(config, 2, engine) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "found cuda with 2 processes, but Ray has 1 GPUs"),
        ("cuda:0", "found cuda:0 with Ray, which gives a GPU"),
    ],
)
def test_ray_refuses_what_it_cannot_give(name: str, message: str, data: Path) -> None:
    config = validate(config_for(data, training={"device": name}))
    engine: Any = SimpleNamespace(ray=SimpleNamespace(cluster_resources=lambda: {"GPU": 1}))
    with pytest.raises(ConfigError, match=message):
        ray_backend._use_gpu(config, 2, engine)


def test_too_little_memory_is_an_error_of_the_batch_size(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    monkeypatch.setattr(Learner, "launch", fail)
    # the stand-in device wraps `launch`
    with on_standin(synchronises=True):
        monkeypatch.setattr(Learner, "launch", fail)
        with pytest.raises(
            TrainingError, match=r"training\.batch: 16 lists do not fit into the memory of lazy:0 \(CUDA"
        ):
            train(config_for(data), tmp_path / "run")


def test_the_device_of_a_module() -> None:
    assert device_of(torch.nn.Identity()) == torch.device("cpu")
    assert device_of(torch.nn.BatchNorm1d(2, affine=False).to("meta")) == torch.device("meta")
    assert device_of(torch.nn.Linear(1, 1, device="meta")) == torch.device("meta")


# --- bfloat16 -----------------------------------------------------------------------------------------------------


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_bfloat16_is_for_models_alone(liked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    parts = objectives.LCRON.parts

    def watched(self: objectives.LCRON, scores: list[Tensor], *args: Any, **options: Any) -> Any:
        seen.extend(scores)
        assert not torch.is_autocast_enabled("cpu")
        return parts(self, scores, *args, **options)

    model = {"kind": "mlp", "hidden": [16], "dim": 4, "batch_norm": True}
    stages = [*content(liked)["stages"][:1], {"name": "ranking", "quota": 3, "model": model}]
    train(content(liked, stages=stages), tmp_path / "wide")
    monkeypatch.setattr(objectives.LCRON, "parts", watched)
    train(content(liked, stages=stages, training={"precision": "bfloat16"}), tmp_path / "narrow")
    assert {stage.dtype for stage in seen} == {torch.float32}
    in_training = [stage.detach() for stage in seen if stage.requires_grad]
    assert all(torch.equal(stage, stage.bfloat16().float()) for stage in in_training)  # models did compute in it
    wide, narrow = losses(tmp_path / "wide"), losses(tmp_path / "narrow")
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.05)
    tensors, _ = read_checkpoint(tmp_path / "narrow" / "checkpoints" / "best.safetensors")
    assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float32}
    # validation is in float32, as an evaluation is
    lines = map(json.loads, (tmp_path / "narrow" / "metrics.jsonl").read_text().splitlines())
    best = max(line["validation"]["joint_recall"] for line in lines)
    summary = evaluate_run(tmp_path / "narrow", "valid").summary()
    assert summary.metrics["joint_recall"] == pytest.approx(best, abs=1e-6)


def test_bfloat16_of_a_ranker(data: Path, tmp_path: Path) -> None:
    model = {"kind": "mlp", "hidden": [8]}
    train(config_for(data, model=model), tmp_path / "wide")
    with pytest.raises(Stopped):
        train(config_for(data, model=model, training={"precision": "bfloat16"}), tmp_path / "narrow", stop=lambda: 1)
    with pytest.raises(ConfigError, match=r"training\.precision was 'bfloat16' and is 'float32'"):
        train(config_for(data, model=model), tmp_path / "narrow", resume=True)
    train(config_for(data, model=model, training={"precision": "bfloat16"}), tmp_path / "narrow", resume=True)
    assert losses(tmp_path / "narrow") != losses(tmp_path / "wide")
    assert losses(tmp_path / "narrow") == pytest.approx(losses(tmp_path / "wide"), rel=0.05)


def test_bfloat16_on_a_device(liked: Path, tmp_path: Path) -> None:
    wanted = content(liked, training={"precision": "bfloat16", "epochs": 1})
    train(wanted, tmp_path / "cpu")
    with on_standin():
        train(wanted, tmp_path / "device")
    # the stand-in lowers matrix products alone, the CPU also some other operations
    assert losses(tmp_path / "device") == pytest.approx(losses(tmp_path / "cpu"), rel=0.02)


# --- compilation --------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    with native_code.compiled_quickly():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_compiled_ranker(data: Path, tmp_path: Path) -> None:
    wanted = config_for(data, training={"compile": True})
    train(config_for(data), tmp_path / "eager")
    with pytest.raises(Stopped):
        train(wanted, tmp_path / "compiled-run", stop=lambda: 1)
    notices: list[str] = []
    train(wanted, tmp_path / "compiled-run", resume=True, on_notice=notices.append)
    assert notices == []
    assert losses(tmp_path / "compiled-run") == pytest.approx(losses(tmp_path / "eager"), rel=1e-5)
    stored = read_checkpoint(tmp_path / "compiled-run" / "checkpoints" / "best.safetensors")[0]
    assert stored.keys() == read_checkpoint(tmp_path / "eager" / "checkpoints" / "best.safetensors")[0].keys()
    model, eager = (load_run(tmp_path / name)[1] for name in ("compiled-run", "eager"))
    features = torch.randn(5, 4)
    found, wanted_scores = (one.score(features) - one.score(features[:1]) for one in (model, eager))
    torch.testing.assert_close(found, wanted_scores, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_compiled_cascade(liked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "BACKEND", "eager")  # the graphs, without minutes of a C++ compiler
    train(content(liked, training={"epochs": 1}), tmp_path / "eager")
    train(content(liked, training={"compile": True, "epochs": 1}), tmp_path / "compiled-run")
    assert losses(tmp_path / "compiled-run") == pytest.approx(losses(tmp_path / "eager"), rel=1e-4)
    counted = torch._dynamo.utils.counters
    assert counted["stats"]["unique_graphs"] == 2  # whole batches, and the smaller ones at the ends of days
    assert not counted["graph_break"]


def test_a_run_may_be_resumed_without_compilation(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "BACKEND", "eager")
    with pytest.raises(Stopped):
        train(config_for(data, training={"compile": True}), tmp_path / "run", stop=lambda: 1)
    notices: list[str] = []
    train(config_for(data), tmp_path / "run", resume=True, on_notice=notices.append)
    assert any("was started with compile true, now false: last digits may differ" in text for text in notices)


# --- pinned memory ------------------------------------------------------------------------------------------------


def test_batches_are_pinned_for_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [Placement(torch.device(kind)).pins for kind in ("cpu", "cuda", "mps")] == [False, True, False]
    assert CPU.is_cpu


def test_a_batch_of_lists_is_moved_and_pinned(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankfall.data import RankingData
    from rankfall.data.lists.list_loader import ListLoader, Lists

    batch = next(iter(ListLoader(Lists([RankingData.load(data)["S1"]]), batch=4, seed=0)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.to("meta"))  # there may be no GPU
    for moved in (batch.pin_memory(), batch.to(torch.device("meta"))):
        assert {moved.labels.device.type, moved.mask.device.type, moved.slots.device.type} == {"meta"}
        assert (moved.rows is batch.rows, moved.lists is batch.lists) == (True, True)
