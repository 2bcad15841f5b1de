"""Training in processes that Ray Train starts, on one machine or many, and restarts if one of them dies.

The processes run the same loop as under torchrun, with the same checkpoints and files. All machines must have access to
the run directory and the data.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from rankfall._config import ConfigError
from rankfall._engine import ATTEMPTS, enter
from rankfall._errors import BugError, RankfallError, is_expected, located, traceback_text
from rankfall.storage.disk import make_directory
from rankfall.storage.files import scratch_directory
from rankfall.storage.manifests import verification, verifies
from rankfall.training import run_directory as runs
from rankfall.training.distributed.group import Group, LostError, PeerError, Processes
from rankfall.training.methods import train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall._engine import Ray
    from rankfall.training.config.load_config import TrainConfig


class ProgressActor:
    """Queue of messages from the training processes to the command, and the command's request to stop."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, Any]] = []
        self._starts = 0
        self._failed = self._stop_requested = False

    def start(self) -> int | None:
        """Count a start of the processes.

        Returns:
            The number of earlier starts. None if an earlier one ended with an error, which would come up again.
        """
        self._starts += 1
        return None if self._failed else self._starts - 1

    def send(self, kind: str, content: object) -> None:
        """Add a message to the queue."""
        self._failed = self._failed or kind in ("error", "bug")
        self._messages.append((kind, content))

    def receive(self) -> list[tuple[str, Any]]:
        """Return and remove all messages of the queue."""
        messages, self._messages = self._messages, []
        return messages

    def request_stop(self) -> None:
        """Ask the training processes to stop early."""
        self._stop_requested = True

    def stop_requested(self) -> bool:
        """Return whether the processes were asked to stop."""
        return self._stop_requested


_INTERVAL = 0.5  # seconds between progress messages, and between checks for a request to stop


def train_by_ray(
    config: TrainConfig,
    out: Path,
    engine: Ray,
    *,
    workers: int | None = None,
    force: bool = False,
    resume: bool = False,
    timeout: float = 600.0,
    progress: Callable[[runs.Step], None] = lambda step: None,
    on_notice: Callable[[str], None] = lambda text: None,
    stop: Callable[[], int] = lambda: False,
) -> runs.TrainResult:
    """Train in several processes and write a run directory.

    If a process dies, all of them are restarted and continue from the last checkpoint.

    Args:
        config: Configuration of a ranker or a cascade.
        out: Run directory.
        engine: Ray, which is running.
        workers: Number of processes, each of which takes a share of every batch. Default: one per processor.
        force: Replace a run that exists in `out`.
        resume: Continue a run that exists in `out`.
        timeout: Seconds that a process waits for the others.
        progress: Called about twice a second.
        on_notice: Called with warnings, such as damaged checkpoints.
        stop: Called about twice a second; a true value ends the run early.

    Raises:
        ValueError: If there are fewer processors than `workers`, or a process refuses the configuration or data.
        Stopped: If the run ended early because of `stop`.
        EnvironmentFailure: If processes died too often.
    """
    workers = workers or engine.workers
    if workers > engine.workers:
        raise RankfallError(
            f"workers: found {workers}, expected at most {engine.workers}, as many as Ray has processors"
        )
    ray = engine.ray
    actor = ray.remote(num_cpus=0)(ProgressActor).remote()
    task = {
        "directory": os.getcwd(),
        "config": config,
        "out": out,
        "force": force,
        "resume": resume,
        "timeout": timeout,
        "actor": actor,
        "gpu": _use_gpu(config, workers, engine),
        "verify": verifies(),
    }
    fit = _Fit(_trainer(task, workers, engine))
    if force:
        runs.mark_for_replacement(out)
    found: dict[str, list[Any]] = defaultdict(list)  # messages of the processes by kind
    try:
        fit.start()
        alive = True
        while alive:
            fit.join(_INTERVAL)
            alive = fit.is_alive()
            if stop():
                ray.get(actor.request_stop.remote())
            for kind, content in ray.get(actor.receive.remote()):
                if kind == "step":
                    progress(runs.Step(**content))
                elif kind == "notice":
                    on_notice(content)
                else:
                    found[kind].append(content)
    finally:
        if force:
            runs.unmark_for_replacement(out)
    if fit.error is not None and type(fit.error).__module__.partition(".")[0] != "ray":
        raise fit.error  # a bug of ours; Ray's own errors mean that processes died
    if found["bug"]:
        message, details = found["bug"][-1]
        raise BugError(f"in a training process: {message}", details)
    if found["result"]:  # processes of earlier starts may have sent errors
        return runs.TrainResult(**found["result"][-1])
    if found["stopped"]:
        raise runs.Stopped(found["stopped"][-1])
    if found["error"]:  # prefers the process that failed to those that report a peer's error
        raise RankfallError(min(found["error"])[1])
    # Ray Train does not try again if a process dies in the moment in which it is started.
    times = "while they were started" if hasattr(fit.error, "controller_failure") else f"{ATTEMPTS} times"
    raise runs.EnvironmentFailure(
        f"training processes died {times}, for lack of memory or killed from outside; --resume continues the run"
    ) from fit.error


def _use_gpu(config: TrainConfig, workers: int, engine: Ray) -> bool:
    """Return whether each process gets a GPU from Ray."""
    name = config.training.device
    if name == "cpu":
        return False
    gpus: float = engine.ray.cluster_resources().get("GPU", 0)
    if name == "auto":
        return gpus >= workers
    if name != "cuda":
        raise ConfigError(
            f"training.device: found {name} with Ray, which gives a GPU to each process, expected auto, cpu or cuda"
        )
    if gpus < workers:
        raise ConfigError(
            f"training.device: found cuda with {workers} processes, but Ray has {gpus:g} GPUs; expected auto, cpu, or "
            "fewer workers"
        )
    return True


class _Fit(threading.Thread):
    """Thread in which Ray Train runs. In the main thread it would handle Ctrl-C itself."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self._trainer = trainer

    def run(self) -> None:
        """Run the trainer, and keep its error."""
        try:
            self._trainer.fit()
        except Exception as error:
            self.error = error


def _trainer(task: dict[str, Any], workers: int, engine: Ray) -> Any:
    # After a failure of one process, the others need not shut down their group in an orderly way.
    os.environ.setdefault("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "5")
    train: Any = import_module("ray.train")
    train_torch: Any = import_module("ray.train.torch")
    out: Path = task["out"]
    make_directory(out.parent)
    # files of Ray itself
    notes = engine.cleanup.enter_context(scratch_directory(f"{out.name}.ray", out.parent.resolve()))
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


# --- in a training process ----------------------------------------------------------------------------------------


def _work(task: dict[str, Any]) -> None:
    actor, group = task["actor"], None
    try:
        enter(task["directory"])
        group = _group(task)
        _train(task, group)
    except LostError:
        raise  # so that Ray restarts all processes
    except Exception as error:
        if not is_expected(error):
            _send(actor, "bug", (located(error), traceback_text(error)))
            raise
        _send(actor, "error", (isinstance(error, PeerError), str(error)))
        if group is None or not group.all_informed:
            raise  # so that Ray ends the processes that wait for this one


def _group(task: dict[str, Any]) -> Group:
    """Return the group of processes that Ray has connected, on their devices."""
    device = torch.device("cpu")
    if task["gpu"]:
        train_torch: Any = import_module("ray.train.torch")
        device = train_torch.get_device()
        torch.cuda.set_device(device)
    if int(os.environ["WORLD_SIZE"]) > 1:
        return Processes(device, task["timeout"])
    alone = Group()
    alone.device = device
    return alone


def _train(task: dict[str, Any], group: Group) -> None:
    import ray

    actor = task["actor"]
    earlier_starts = group.gather(ray.get(actor.start.remote()) if group.first else None)[0]
    if earlier_starts is None:
        return
    group.restarted = earlier_starts > 0
    callbacks: dict[str, Any] = {"on_notice": lambda text: None}  # other processes send errors only
    if group.first:
        reporter = ProgressReporter(actor)
        callbacks = {"progress": reporter.report, "on_notice": reporter.notice, "stop": reporter.stop_requested}
    options = {name: task[name] for name in ("force", "resume")}
    try:
        with verification(task["verify"], callbacks["on_notice"]):
            result = train(task["config"], task["out"], group=group, **options, **callbacks)
    except runs.Stopped as stopped:
        if group.first:
            _send(actor, "stopped", str(stopped))
    else:
        if group.first:
            _send(actor, "result", asdict(result))


class ProgressReporter:
    """Callbacks of the first process: they send progress to the actor and check for a request to stop."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._last_report = self._last_check = 0.0

    def report(self, step: runs.Step) -> None:
        if time.monotonic() - self._last_report >= _INTERVAL:
            self._last_report = time.monotonic()
            self._actor.send.remote("step", asdict(step))

    def notice(self, text: str) -> None:
        _send(self._actor, "notice", text)

    def stop_requested(self) -> bool:
        if time.monotonic() - self._last_check < _INTERVAL:
            return False
        import ray

        self._last_check = time.monotonic()
        requested: bool = ray.get(self._actor.stop_requested.remote())
        return requested


def _send(actor: Any, kind: str, content: object) -> None:
    """Send a message and wait until it has arrived."""
    import ray

    ray.get(actor.send.remote(kind, content))
