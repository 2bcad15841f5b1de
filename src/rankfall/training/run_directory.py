"""The directory of a run, and what every training agrees on.

================================  ====================================================================================
``config.yaml``                   what was asked for, every default written out
``metrics.jsonl``                 one line a validation: training loss, validation metric, speed
``checkpoints/best.safetensors``  the weights with the best validation metric
``checkpoints/last.safetensors``  the last weights
``checkpoints/step-*``            what an interrupted training continues from
``result.json``                   written last: a run that has it is finished
``data.json``                     the checksums of what it was trained on
``log.json``                      of a cascade: what the ids and numbers of its log mean
``days/``                         of a stream: values of every impression, and weights, day by day
================================  ====================================================================================
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rankfall._files import TEMPORARY, is_temporary
from rankfall._settings import ConfigError, leaves, read_yaml, shown
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import validate_any
from rankfall.training.config.ranker_config import RankerConfig

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from rankfall.training.config.load_config import TrainConfig

Config = TypeVar("Config", RankerConfig, CascadeConfig)

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.yaml", "metrics.jsonl", "result.json", "checkpoints"
LOG, DATA, REPORT, DAYS = "log.json", "data.json", "report.html", "days"
TENSORBOARD, MLFLOW = "tensorboard", "mlflow"  # directories of trackers
_REPLACE = f".replace{TEMPORARY}"  # in a run that is to be replaced, until it is
# A training may go on with others.
HARMLESS = ("data.path", "metrics", "training.keep", "training.checkpoint_every", "training.track", "training.mlflow")


class TrainingError(ValueError):
    """A training that cannot go on."""


class SurroundingsError(TrainingError):
    """What is around a training fails it, a disk or a server; the same training may do well later."""


class Stopped(Exception):  # noqa: N818 (nothing is wrong)
    """A training that was asked to end early, and can be continued."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a training has come."""

    epoch: int  # the first is 1
    epochs: int
    batch: int
    batches: int  # of an epoch
    parts: dict[str, float]  # the loss, or its terms: means over the epoch so far
    validation: dict[str, float]  # the last one's, by metric
    per_second: float  # lists or impressions


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came of a training."""

    best_metric: float
    best_epoch: int
    epochs: int
    seconds: float
    parameters: int


@contextmanager
def repeatable(seed: int, threads: int) -> Generator[None]:
    """A generator and a number of threads of one's own; the caller's are given back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def read_config(directory: Path) -> TrainConfig:
    """Load the configuration of a run."""
    if not (directory / CONFIG).is_file():
        raise ValueError(f"{directory} is not the directory of a run: it has no {CONFIG} (see 'rankfall train --help')")
    return validate_any(read_yaml(directory / CONFIG), where=str(directory / CONFIG))


def read_config_as(kind: type[Config], directory: Path) -> Config:
    """Load the configuration of a run, and refuse a run of another kind.

    Args:
        kind: ``RankerConfig`` or ``CascadeConfig``.
        directory: Run directory.
    """
    config = read_config(directory)
    if not isinstance(config, kind):
        found, expected = ("cascade", "ranker") if kind is RankerConfig else ("ranker", "cascade")
        raise ValueError(f"{directory} is the run of a {found}, expected the run of a {expected}")
    return config


def is_finished(directory: Path) -> bool:
    """Whether a training ended in this directory."""
    return (directory / RESULT).is_file()


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file that was written by us."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} is damaged: it is no JSON") from None
    return content


def read_result(directory: Path) -> TrainResult:
    """What came of a finished training."""
    try:
        return TrainResult(**read_json(directory / RESULT))
    except TypeError:
        raise ValueError(f"{directory / RESULT} is damaged: it is not what a training writes") from None


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """What is known after each epoch of a run."""
    path = directory / METRICS
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path} line {number} is damaged: it is no JSON") from None
    return found


def check_free(out: Path, *, force: bool, resume: bool) -> None:
    """Refuse to write over other files, and over a run unless that is to be replaced or continued."""
    if force and resume:
        raise ValueError("force: found with resume; a run is either replaced or continued")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, expected a directory for the run")
    if not out.exists() or not any(_content(out)):
        return
    if not (out / CONFIG).is_file():
        raise ValueError(f"{out} holds other files and no run; name another directory")
    if not (force or resume):
        go_on = "" if is_finished(out) else "continue it with --resume, "
        raise ValueError(f"{out} holds a run already; name another directory, {go_on}or replace it with --force")


def _content(out: Path) -> Iterator[Path]:
    """What stands in a directory, but for what is left of a training that was killed before it had begun."""
    return (path for path in out.rglob("*") if not is_temporary(path) and path != out / CHECKPOINTS)


def check_same(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a training with another configuration than the one it was begun with."""
    old, new = leaves(dict(before)), leaves(dict(now))
    differences = [f"{key} was {shown(old.get(key))} and is {shown(new.get(key))}" for key in _different(old, new)]
    if differences:
        raise ConfigError(
            f"{out} was begun with another configuration: {', '.join(differences)}. Continue it as it was, name "
            "another directory, or start over with --force"
        )


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Keys that decide what is trained, of which configurations have different values."""
    return [key for key in {**one, **other} if not _is_harmless(key) and one.get(key) != other.get(key)]


def check_alike(told: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> None:
    """Refuse to train by processes of which one was told another configuration, or has other data, than the first."""
    config, data = leaves(dict(told[0][0])), told[0][1]
    for process, (own_config, own_data) in enumerate(told):
        own = leaves(dict(own_config))
        for key in _different(config, own):
            raise ConfigError(
                f"{key}: found {shown(config.get(key))} in process 0 and {shown(own.get(key))} in process {process}"
            )
        for name in {**data, **own_data}:
            if data.get(name) != own_data.get(name):
                raise ConfigError(f"data.path: {name} of process {process} is not the one of process 0")


def check_same_data(out: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to continue a training on other data than those it was begun with, by the checksums of their parts."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if changed:
        raise ConfigError(
            f"data.path: {out} was begun with other data, different are {', '.join(changed)}. Continue it with the old "
            "data, name another directory, or start over with --force"
        )


def _is_harmless(key: str) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in HARMLESS)


def ask_to_replace(out: Path) -> None:
    """Leave word that a run is to be replaced, for processes that are started again before they came to that."""
    if (out / CONFIG).is_file():
        (out / _REPLACE).touch()


def is_to_be_replaced(out: Path) -> bool:
    """Whether there is a run that was to be replaced, and has not been yet."""
    return (out / _REPLACE).exists()


def forget_to_replace(out: Path) -> None:
    """Leave a run as it is."""
    (out / _REPLACE).unlink(missing_ok=True)


def clear(out: Path) -> None:
    """Make the directory, and take away what a run before left in it."""
    (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    for told in (TENSORBOARD, MLFLOW):
        if (out / told).exists():
            shutil.rmtree(out / told)
    measured = [RESULT, METRICS, REPORT, "evaluation*.json", "values*.parquet", f"{DAYS}/*"]
    # What a training would continue from goes before what it would then miss.
    trained = [f"{CHECKPOINTS}/step-*.safetensors", f"{CHECKPOINTS}/*.safetensors", LOG, DATA]
    for pattern in (*measured, *trained, CONFIG):  # which is last, as it tells a run from other files
        for path in out.glob(pattern):
            path.unlink()
    clear_temporary(out)  # at the end, as one of them says that all of this is to be done


def clear_temporary(out: Path) -> None:
    """Take away what was half written when a training was killed."""
    for directory in filter(Path.is_dir, (out, out / CHECKPOINTS, out / DAYS)):
        for path in filter(is_temporary, directory.iterdir()):
            path.unlink()
