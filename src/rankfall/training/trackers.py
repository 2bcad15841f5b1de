"""The numbers of a training for those who watch it elsewhere: TensorBoard and MLflow.

What is told is every number of a line of ``metrics.jsonl`` by its place there, ``validation/joint_recall``, and between
those lines now and then how the epoch is going, ``batch/loss``. All of them are told with the number of batches so far,
so that both can be looked at on one axis. ``metrics.jsonl`` remains what counts: a training goes on if nobody can
be told.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from rankfall._files import write_file
from rankfall._settings import leaves
from rankfall.training.run_directory import MLFLOW, TENSORBOARD, SurroundingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from mlflow import MlflowClient
    from mlflow.entities import Param
    from torch.utils.tensorboard import SummaryWriter

    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.config.sections import MLflowConfig, TrackerName
    from rankfall.training.run_directory import Step

INSTALL = "pip install 'rankfall[track]'"
EVERY = 5.0  # seconds between what is told of batches, as much as people can look at
_NEEDED = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
_ENVIRONMENT = {  # of MLflow, unless it is set
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Tracker(Protocol):
    """Somebody who hears the numbers of a training."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Hear what is known after so many batches."""

    def close(self, *, finished: bool) -> None:
        """Hear no more."""


class Trackers:
    """All that a configuration names; refuses those that are not installed, before anything is trained."""

    def __init__(self, config: TrainConfig, out: Path) -> None:
        self._config, self._out = config, out
        self._trackers: dict[TrackerName, Tracker] = {}
        self._on_notice: Callable[[str], None] = warnings.warn
        self._told = 0.0
        for name in config.training.track:
            missing = [module for module in _NEEDED[name] if find_spec(module) is None]
            if missing:
                raise SurroundingsError(f"training.track: {name} needs {', '.join(missing)}; {INSTALL} brings that")

    @contextmanager
    def opened(self, step: int, on_notice: Callable[[str], None]) -> Generator[None]:
        """Tell what happens in here, in a training that goes on after so many batches.

        Those who cannot be reached now are an error; `on_notice` hears of those who cannot be reached later.
        """
        self._on_notice = on_notice
        finished = False
        try:
            for name in dict.fromkeys(self._config.training.track):
                self._trackers[name] = self._open(name, step)
            self._told = time.perf_counter()
            yield
            finished = True
        finally:
            self._tell(lambda tracker: tracker.close(finished=finished))
            self._trackers = {}

    def reach(self) -> None:
        """Refuse those who cannot be reached, before anything is written for them."""
        config = self._config.training
        uri = config.mlflow.uri or os.environ.get("MLFLOW_TRACKING_URI")
        if "mlflow" not in config.track or uri is None:
            return
        try:
            with _quiet():
                from mlflow import MlflowClient

                MlflowClient(tracking_uri=uri).get_experiment_by_name(config.mlflow.experiment)
        except Exception as error:
            raise _unreachable("mlflow", error) from None

    def log(self, line: Mapping[str, Any], step: int) -> None:
        """Tell a line of ``metrics.jsonl``."""
        numbers = flatten(line)
        self._tell(lambda tracker: tracker.log(numbers, step))

    def batch(self, report: Step, step: int) -> None:
        """Tell how an epoch is going, if that was not done a moment ago."""
        if not self._trackers or time.perf_counter() - self._told < EVERY:
            return
        numbers = flatten({"loss": sum(report.parts.values()), "parts": report.parts, "per_second": report.per_second})
        self._tell(lambda tracker: tracker.log({f"batch/{name}": value for name, value in numbers.items()}, step))
        self._told = time.perf_counter()

    def _open(self, name: TrackerName, step: int) -> Tracker:
        try:
            return _TensorBoard(self._out, step) if name == "tensorboard" else _MLflow(self._config, self._out)
        except Exception as error:
            raise _unreachable(name, error) from None

    def _tell(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tell(tracker)
            except Exception as error:
                del self._trackers[name]
                self._on_notice(
                    f"{name} could not be told: {_first_line(error)}. Training goes on without; "
                    f"all numbers are in {self._out}/metrics.jsonl"
                )


def flatten(line: Mapping[str, Any]) -> dict[str, float]:
    """Every number by its place.

    >>> flatten({"epoch": 1, "validation": {"joint_recall": 0.8}, "trained": {"weight": [1.0, 0.5]}})
    {'epoch': 1.0, 'validation/joint_recall': 0.8, 'trained/weight/0': 1.0, 'trained/weight/1': 0.5}
    """
    numbers = leaves(line, separator="/").items()
    return {name: float(value) for name, value in numbers if not isinstance(value, str)}


def _unreachable(name: TrackerName, error: Exception) -> SurroundingsError:
    return SurroundingsError(f"training.track: {name} cannot be told anything: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class _TensorBoard:
    """Event files in the directory of the run."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What was told of batches that come again is no longer shown.
        self._writer: SummaryWriter = SummaryWriter(str(out / TENSORBOARD), purge_step=step + 1 if step else None)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()


class _MLflow:
    """A run of MLflow, by its own name for it in ``mlflow/run.json``; one that is continued remains the same."""

    def __init__(self, config: TrainConfig, out: Path) -> None:
        with _quiet():
            self._client, uri = _client(config.training.mlflow, out)
            file = out / MLFLOW / "run.json"
            known = json.loads(file.read_text()) if file.is_file() else {}
            if known.get("uri") == uri:
                self._run: str = known["run"]
                self._client.update_run(self._run, status="RUNNING")
            else:
                self._run = self._begin(config, out)
                write_file(file, json.dumps({"uri": uri, "run": self._run}) + "\n")
            # It cannot take back what it was told of batches that come again, so they are not told twice.
            self._last = dict.fromkeys(self._client.get_run(self._run).data.metrics, 0)
            for name in self._last:
                self._last[name] = max(one.step for one in self._client.get_metric_history(self._run, name))

    def _begin(self, config: TrainConfig, out: Path) -> str:
        name = config.training.mlflow.experiment
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(number, run_name=out.name, tags={"rankfall.run": str(out.absolute())})
        identifier: str = run.info.run_id
        params = _params(config)
        for first in range(0, len(params), 100):  # as many as it takes at once
            self._client.log_batch(identifier, params=params[first : first + 100])
        return identifier

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        allowed = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in numbers.items()}
        new = {name: value for name, value in allowed.items() if step > self._last.get(name, -1)}
        if new:
            self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in new.items()])

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def _client(config: MLflowConfig, out: Path) -> tuple[MlflowClient, str]:
    """What talks to MLflow, and to which."""
    from mlflow import MlflowClient

    own = out.absolute() / MLFLOW
    own.mkdir(exist_ok=True)
    uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{own / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri), uri


def _params(config: TrainConfig) -> list[Param]:
    from mlflow.entities import Param

    return [Param(name, str(value)) for name, value in leaves(config.model_dump(mode="json")).items()]


@contextmanager
def _quiet() -> Generator[None]:
    """MLflow without its own messages, reports to its makers, and minutes of waiting for a server that is not there."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logger = logging.getLogger("mlflow")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow  # noqa: F401 (which sets the level of its messages)

        logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(before)
