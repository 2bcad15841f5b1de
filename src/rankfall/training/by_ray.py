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
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankfall._ray import DEATHS, enter
from rankfall.training import cascade, ranker
from rankfall.training.cascade_config import CascadeConfig
from rankfall.training.distributed import ElsewhereError, LostError, joined
from rankfall.training.run import SurroundingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall._ray import Ray
    from rankfall.training.config import RankerConfig
    from rankfall.training.distributed import Group
    from rankfall.training.run import Step, TrainResult

_INTERVAL = 0.5  # seconds between what is heard of a training


def train_by_ray(
    config: RankerConfig | CascadeConfig,
    out: Path,
    engine: Ray,
    *,
    workers: int | None = None,
    force: bool = False,
    resume: bool = False,
    timeout: float = 600.0,
    progress: Callable[[Step], None] = lambda step: None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Train in so many processes, by default one for each processor, and leave a run directory.

    Each takes a share of every batch and waits up to `timeout` seconds for the others. If one dies, all are started
    again and go on from the last checkpoint. `progress` hears now and then how far it is.
    """
    workers = workers or engine.workers
    if workers > engine.workers:
        raise ValueError(f"workers: found {workers}, expected at most {engine.workers}, as many as Ray has processors")
    ray = engine.ray
    ear = ray.remote(num_cpus=0)(_Ear).remote()
    task = {
        "directory": os.getcwd(),
        "config": config,
        "out": out,
        "force": force,
        "resume": resume,
        "timeout": timeout,
        "ear": ear,
    }
    heard = _Heard(progress, on_notice)
    fit = _Fit(_trainer(task, workers, engine))
    fit.start()
    while fit.is_alive():
        fit.join(_INTERVAL)
        heard.take(ray.get(ear.said.remote()))
    if fit.error is not None and type(fit.error).__module__.partition(".")[0] != "ray":
        raise fit.error  # a mistake of ours; what Ray says is that processes died
    if heard.result is not None:  # whatever was said by those that were started before
        return heard.result
    if heard.errors:
        raise ValueError(min(heard.errors)[1])  # who refuses it himself knows best
    raise SurroundingsError(
        f"processes of the training died {DEATHS} times, by lack of memory or from outside; --resume continues it"
    ) from fit.error


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
    train: Any = import_module("ray.train")
    train_torch: Any = import_module("ray.train.torch")
    out: Path = task["out"]
    out.parent.mkdir(parents=True, exist_ok=True)
    notes = tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".ray", dir=out.parent.resolve())  # Ray's own
    engine.later.callback(shutil.rmtree, notes, ignore_errors=True)
    use_gpu = engine.ray.cluster_resources().get("GPU", 0) >= workers
    return train_torch.TorchTrainer(
        _work,
        train_loop_config=task,
        torch_config=train_torch.TorchConfig(
            backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=int(task["timeout"])
        ),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=train.RunConfig(
            storage_path=notes,
            failure_config=train.FailureConfig(max_failures=DEATHS - 1),
            logging_config=train.LoggingConfig(log_level="CRITICAL"),
        ),
    )


# --- a process of the training ------------------------------------------------------------------------------------


def _work(task: dict[str, Any]) -> None:
    ear = task["ear"]
    enter(task["directory"])
    try:
        with joined(task["timeout"]) as group:
            _train(task, group)
    except LostError:
        raise  # so that Ray starts all of them again
    except (ValueError, OSError) as error:
        _tell(ear, "error", (isinstance(error, ElsewhereError), str(error)))


def _train(task: dict[str, Any], group: Group) -> None:
    import ray

    ear, config = task["ear"], task["config"]
    before = max(group.gather(ray.get(ear.begin.remote()) if group.first else 0))
    last = 0.0

    def report(step: Step) -> None:
        nonlocal last
        if group.first and time.monotonic() - last >= _INTERVAL:
            last = time.monotonic()
            ear.hear.remote("step", step)

    def notice(text: str) -> None:
        if group.first:
            _tell(ear, "notice", text)

    options: dict[str, Any] = {
        "force": task["force"] and not before,
        "resume": task["resume"] or before > 0,
        "progress": report,
        "on_notice": notice,
        "group": group,
    }
    if isinstance(config, CascadeConfig):
        result = cascade.train(config, task["out"], **options)
    else:
        result = ranker.train(config, task["out"], **options)
    if group.first:
        _tell(ear, "result", result)


def _tell(ear: Any, kind: str, content: object) -> None:
    """Say something that must be heard."""
    import ray

    ray.get(ear.hear.remote(kind, content))


# --- what is heard of them ----------------------------------------------------------------------------------------


class _Ear:
    """Keeps what processes say until somebody asks, in a process of its own."""

    def __init__(self) -> None:
        self._said: list[tuple[str, Any]] = []
        self._begun = 0

    def begin(self) -> int:
        """How often a training was begun before."""
        self._begun += 1
        return self._begun - 1

    def hear(self, kind: str, content: object) -> None:
        self._said.append((kind, content))

    def said(self) -> list[tuple[str, Any]]:
        said, self._said = self._said, []
        return said


class _Heard:
    """What came of a training."""

    def __init__(self, progress: Callable[[Step], None], on_notice: Callable[[str], None]) -> None:
        self._progress, self._on_notice = progress, on_notice
        self.result: TrainResult | None = None
        self.errors: list[tuple[bool, str]] = []  # and whether another process knows better

    def take(self, said: list[tuple[str, Any]]) -> None:
        """Pass on what processes have said, or keep it."""
        for kind, content in said:
            if kind == "step":
                self._progress(content)
            elif kind == "notice":
                self._on_notice(content)
            elif kind == "error":
                self.errors.append(content)
            else:
                self.result = content
