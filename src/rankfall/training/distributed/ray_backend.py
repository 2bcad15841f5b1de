"""Training by processes that Ray Train starts, on one machine or many, and starts again if one of them dies.

Each process runs the training that torchrun's would: the loop, its checkpoints and its files are the same. The
directory of the run and the data must be seen by all machines.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import traceback
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from rankfall._ray import ATTEMPTS, enter
from rankfall.training.distributed.group import ElsewhereError, Group, LostError, Processes
from rankfall.training.distributed.ray_channel import Ear
from rankfall.training.methods import method_of
from rankfall.training.run_directory import (
    Step,
    Stopped,
    SurroundingsError,
    TrainResult,
    ask_to_replace,
    forget_to_replace,
)
from rankfall.training.train import train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall._ray import Ray
    from rankfall.training.config.load_config import TrainConfig

_INTERVAL = 0.5  # seconds between what is heard of a training, and between what it is asked


def train_by_ray(
    config: TrainConfig,
    out: Path,
    engine: Ray,
    *,
    workers: int | None = None,
    force: bool = False,
    resume: bool = False,
    timeout: float = 600.0,
    progress: Callable[[Step], None] = lambda step: None,
    on_notice: Callable[[str], None] = lambda text: None,
    stop: Callable[[], int] = lambda: False,
) -> TrainResult:
    """Train in so many processes, by default one for each processor, and leave a run directory.

    Each takes a share of every batch and waits up to `timeout` seconds for the others. If one dies, all are started
    again and go on from the last checkpoint. `progress` hears now and then how far it is, and `stop` is asked whether
    to end early.
    """
    workers = workers or engine.workers
    if workers > engine.workers:
        raise ValueError(f"workers: found {workers}, expected at most {engine.workers}, as many as Ray has processors")
    ray = engine.ray
    ear = ray.remote(num_cpus=0)(Ear).remote()
    task = {
        "directory": os.getcwd(),
        "config": config,
        "out": out,
        "force": force,
        "resume": resume,
        "timeout": timeout,
        "ear": ear,
        "gpu": _use_gpu(config, workers, engine),
    }
    fit = _Fit(_trainer(task, workers, engine))
    if force:
        ask_to_replace(out)
    try:
        heard = _follow(fit, ear, engine, progress, on_notice, stop)
    finally:
        if force:
            forget_to_replace(out)
    return _result(fit, heard)


def _follow(
    fit: _Fit,
    ear: Any,
    engine: Ray,
    progress: Callable[[Step], None],
    on_notice: Callable[[str], None],
    stop: Callable[[], int],
) -> _Heard:
    """Train to the end, and pass on what is said in both directions."""
    heard = _Heard(progress, on_notice)
    fit.start()
    while fit.is_alive():
        fit.join(_INTERVAL)
        if stop():
            engine.ray.get(ear.end.remote())
        heard.take(engine.ray.get(ear.said.remote()))
    heard.take(engine.ray.get(ear.said.remote()))  # what was said between the last look and the end
    return heard


def _result(fit: _Fit, heard: _Heard) -> TrainResult:
    if fit.error is not None and type(fit.error).__module__.partition(".")[0] != "ray":
        raise fit.error  # a mistake of ours; what Ray says is that processes died
    if heard.mistake:
        raise RuntimeError(f"in a process of the training: {heard.mistake}")
    if heard.result is not None:  # whatever was said by those that were started before
        return heard.result
    if heard.stopped:
        raise Stopped(heard.stopped)
    if heard.errors:
        raise ValueError(min(heard.errors)[1])  # who refuses it himself knows best
    # Ray Train does not try again if a process dies in the moment in which it is started.
    times = "while they were started" if hasattr(fit.error, "controller_failure") else f"{ATTEMPTS} times"
    raise SurroundingsError(
        f"processes of the training died {times}, by lack of memory or from outside; --resume continues it"
    ) from fit.error


def _use_gpu(config: TrainConfig, workers: int, engine: Ray) -> bool:
    """Whether there is a GPU for each process, and work for it: others stay on the CPU under torchrun as well."""
    gpus: float = engine.ray.cluster_resources().get("GPU", 0)
    return method_of(config).trains_on_gpu and workers > 1 and gpus >= workers


class _Fit(threading.Thread):
    """A training that goes on in a thread, since in the main one Ray Train would take Ctrl-C for itself."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self._trainer = trainer

    def run(self) -> None:
        """Train to the end."""
        try:
            self._trainer.fit()
        except Exception as error:
            self.error = error


def _trainer(task: dict[str, Any], workers: int, engine: Ray) -> Any:
    # Processes of which one has failed need not part in peace.
    os.environ.setdefault("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "5")
    train: Any = import_module("ray.train")
    train_torch: Any = import_module("ray.train.torch")
    out: Path = task["out"]
    out.parent.mkdir(parents=True, exist_ok=True)
    notes = tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".ray", dir=out.parent.resolve())  # Ray's own
    engine.cleanup.callback(shutil.rmtree, notes, ignore_errors=True)
    return train_torch.TorchTrainer(
        _work,
        train_loop_config=task,
        torch_config=train_torch.TorchConfig(
            backend="cpu:gloo,cuda:nccl" if task["gpu"] else "gloo", timeout_s=int(task["timeout"])
        ),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=task["gpu"]),
        run_config=train.RunConfig(
            storage_path=notes,
            failure_config=train.FailureConfig(max_failures=ATTEMPTS - 1),
            logging_config=train.LoggingConfig(log_level="CRITICAL"),
        ),
    )


# --- a process of the training ------------------------------------------------------------------------------------


def _work(task: dict[str, Any]) -> None:
    ear, group = task["ear"], None
    try:
        enter(task["directory"])
        group = _group(task)
        _train(task, group)
    except LostError:
        raise  # so that Ray starts all of them again
    except (ValueError, OSError) as error:
        _tell(ear, "error", (isinstance(error, ElsewhereError), str(error)))
        if group is None or not group.all_know:
            raise  # so that Ray ends those that wait for this one
    except Exception:
        _tell(ear, "mistake", traceback.format_exc())
        raise


def _group(task: dict[str, Any]) -> Group:
    """The processes that Ray has joined, on the devices for which it has."""
    if int(os.environ["WORLD_SIZE"]) == 1:
        return Group()
    if not task["gpu"]:
        return Processes(torch.device("cpu"), task["timeout"])
    train_torch: Any = import_module("ray.train.torch")
    device: torch.device = train_torch.get_device()
    torch.cuda.set_device(device)
    return Processes(device, task["timeout"])


def _train(task: dict[str, Any], group: Group) -> None:
    import ray

    ear = task["ear"]
    before = group.gather(ray.get(ear.begin.remote()) if group.first else None)[0]
    if before is None:
        return
    group.restarted = before > 0
    mouth = _Mouth(ear) if group.first else None
    try:
        result = train(
            task["config"],
            task["out"],
            force=task["force"],
            resume=task["resume"],
            group=group,
            progress=mouth.report if mouth else _silent,
            on_notice=mouth.notice if mouth else _silent,
            stop=mouth.is_asked_to_end if mouth else lambda: False,
        )
    except Stopped as stopped:
        if mouth:
            _tell(ear, "stopped", str(stopped))
    else:
        if mouth:
            _tell(ear, "result", asdict(result))


class _Mouth:
    """What the first process says of the training, and asks, as often as is worth it."""

    def __init__(self, ear: Any) -> None:
        self._ear = ear
        self._reported = self._asked = 0.0

    def report(self, step: Step) -> None:
        if time.monotonic() - self._reported >= _INTERVAL:
            self._reported = time.monotonic()
            self._ear.hear.remote("step", asdict(step))

    def notice(self, text: str) -> None:
        _tell(self._ear, "notice", text)

    def is_asked_to_end(self) -> bool:
        if time.monotonic() - self._asked < _INTERVAL:
            return False
        import ray

        self._asked = time.monotonic()
        asked: bool = ray.get(self._ear.is_asked_to_end.remote())
        return asked


def _silent(found: object) -> None:
    """Others speak only if something is wrong."""


def _tell(ear: Any, kind: str, content: object) -> None:
    """Say something that must be heard."""
    import ray

    ray.get(ear.hear.remote(kind, content))


# --- what is heard of them ----------------------------------------------------------------------------------------


class _Heard:
    """What came of a training."""

    def __init__(self, progress: Callable[[Step], None], on_notice: Callable[[str], None]) -> None:
        self._progress, self._on_notice = progress, on_notice
        self.result: TrainResult | None = None
        self.stopped = ""  # where, if it was
        self.mistake = ""  # of ours, to be traced back
        self.errors: list[tuple[bool, str]] = []  # and whether another process knows better

    def take(self, said: list[tuple[str, Any]]) -> None:
        """Pass on what processes have said, or keep it."""
        for kind, content in said:
            if kind == "step":
                self._progress(Step(**content))
            elif kind == "notice":
                self._on_notice(content)
            elif kind == "error":
                self.errors.append(content)
            elif kind == "stopped":
                self.stopped = content
            elif kind == "mistake":
                self.mistake = content
            else:
                self.result = TrainResult(**content)
