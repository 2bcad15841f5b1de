"""Experiment trackers: TensorBoard and MLflow.

A tracker receives every number of each line of ``metrics.jsonl``, such as ``validation/joint_recall``, and every few
seconds the progress of the epoch, such as ``batch/loss``. The step of all numbers is the number of batches so far. If a
tracker fails, training continues without it; ``metrics.jsonl`` is always complete.
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
from typing import TYPE_CHECKING, Any

from rankfall._config import leaves
from rankfall.storage.disk import make_directory
from rankfall.storage.files import parse_json, write_file
from rankfall.training.run_directory import MLFLOW, TENSORBOARD, EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.config.sections import MLflowConfig, TrackerName
    from rankfall.training.run_directory import Step

INSTALL = "pip install 'rankfall[track]'"
EVERY = 5.0  # seconds between numbers about batches
_NEEDED = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
_ENVIRONMENT = {  # variables of MLflow, unless they are set
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Trackers:
    """All trackers that a configuration names.

    Raises:
        EnvironmentFailure: If the packages of a tracker are not installed.
    """

    def __init__(self, config: TrainConfig, out: Path) -> None:
        self._config, self._out = config, out
        self._trackers: dict[TrackerName, _TensorBoard | _MLflow] = {}
        self._on_notice: Callable[[str], None] = warnings.warn
        self._last_batch = 0.0
        for name in config.training.track:
            missing = [module for module in _NEEDED[name] if find_spec(module) is None]
            if missing:
                raise EnvironmentFailure(f"training.track: {name} needs {', '.join(missing)}; {INSTALL}")

    @contextmanager
    def opened(self, step: int, on_notice: Callable[[str], None]) -> Generator[None]:
        """Context in which the trackers are connected.

        Args:
            step: Batches trained before this session.
            on_notice: Called if a tracker fails later.

        Raises:
            EnvironmentFailure: If a tracker cannot be reached.
        """
        self._on_notice = on_notice
        finished = False
        try:
            for name in dict.fromkeys(self._config.training.track):
                self._trackers[name] = self._open(name, step)
            self._last_batch = time.perf_counter()
            yield
            finished = True
        finally:
            self._for_each(lambda tracker: tracker.close(finished=finished))
            self._trackers = {}

    def reach(self) -> None:
        """Check that the MLflow server can be reached, before anything is written."""
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
        """Send a line of ``metrics.jsonl``."""
        numbers = flatten(line)
        self._for_each(lambda tracker: tracker.log(numbers, step))

    def batch(self, report: Step, step: int) -> None:
        """Send the progress of the epoch, at most every few seconds."""
        if not self._trackers or time.perf_counter() - self._last_batch < EVERY:
            return
        numbers = flatten({"loss": sum(report.parts.values()), "parts": report.parts, "per_second": report.per_second})
        self._for_each(lambda tracker: tracker.log({f"batch/{name}": value for name, value in numbers.items()}, step))
        self._last_batch = time.perf_counter()

    def _open(self, name: TrackerName, step: int) -> _TensorBoard | _MLflow:
        try:
            return _TensorBoard(self._out, step) if name == "tensorboard" else _MLflow(self._config, self._out)
        except Exception as error:
            raise _unreachable(name, error) from None

    def _for_each(self, call: Callable[[_TensorBoard | _MLflow], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._trackers[name]
                self._on_notice(
                    f"{name} failed: {_first_line(error)}. Training continues without it; "
                    f"all numbers are in {self._out}/metrics.jsonl"
                )


def flatten(line: Mapping[str, Any]) -> dict[str, float]:
    """Return every number by its path.

    >>> flatten({"epoch": 1, "validation": {"joint_recall": 0.8}, "trained": {"weight": [1.0, 0.5]}})
    {'epoch': 1.0, 'validation/joint_recall': 0.8, 'trained/weight/0': 1.0, 'trained/weight/1': 0.5}
    """
    numbers = leaves(line, separator="/").items()
    return {name: float(value) for name, value in numbers if not isinstance(value, str)}


def _unreachable(name: TrackerName, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(f"training.track: {name} cannot be reached: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class _TensorBoard:
    """TensorBoard event files in the run directory."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # numbers of batches that are trained again are no longer shown
        self._writer: SummaryWriter = SummaryWriter(str(out / TENSORBOARD), purge_step=step + 1 if step else None)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()


class _MLflow:
    """An MLflow run. Its id is in ``mlflow/run.json``, so that a resumed training run uses the same one."""

    def __init__(self, config: TrainConfig, out: Path) -> None:
        with _quiet():
            self._client, uri = _client(config.training.mlflow, out)
            file = out / MLFLOW / "run.json"
            known = parse_json(file.read_text()) if file.is_file() else {}
            if known.get("uri") == uri:
                self._run: str = known["run"]
                self._client.update_run(self._run, status="RUNNING")
            else:
                self._run = self._create(config, out)
                write_file(file, json.dumps({"uri": uri, "run": self._run}) + "\n")
            # MLflow cannot delete numbers of batches that are trained again, so they are not sent twice
            self._last = dict.fromkeys(self._client.get_run(self._run).data.metrics, 0)
            for name in self._last:
                self._last[name] = max(one.step for one in self._client.get_metric_history(self._run, name))

    def _create(self, config: TrainConfig, out: Path) -> str:
        from mlflow.entities import Param

        name = config.training.mlflow.experiment
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(number, run_name=out.name, tags={"rankfall.run": str(out.absolute())})
        identifier: str = run.info.run_id
        params = [Param(key, str(value)) for key, value in leaves(config.model_dump(mode="json")).items()]
        for first in range(0, len(params), 100):  # the limit of one request
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
    """Return the MLflow client and its address."""
    from mlflow import MlflowClient

    own = out.absolute() / MLFLOW
    make_directory(own)
    uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{own / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri), uri


@contextmanager
def _quiet() -> Generator[None]:
    """Context without MLflow's log messages, telemetry and long retries."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logger = logging.getLogger("mlflow")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow  # noqa: F401 (sets its log level)

        logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(before)
