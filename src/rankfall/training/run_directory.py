"""Run directories: their files, errors of training, and checks before a run is written or resumed.

================================  ====================================================================================
``config.yaml``                   the configuration with all defaults
``metrics.jsonl``                 one line per epoch: training loss, validation metric, speed
``checkpoints/best.safetensors``  the weights with the best validation metric
``checkpoints/last.safetensors``  the last weights
``checkpoints/step-*``            checkpoints of an unfinished run
``result.json``                   the result, written last: a run that has it is finished
``manifest.json``                 the other files with their checksums, see :mod:`rankfall.training.run_manifest`
``data.json``                     checksums of the training data
``components.json``               files and hashes of components that are not built in, if there are any
``log.json``                      of a cascade: the meaning of the ids and numbers of its log
``days/``                         of a stream: values of every impression, and weights, per day
================================  ====================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall._disk import delete, delete_tree, make_directory, open_new
from rankfall._files import is_temporary
from rankfall._json_reader import parse_json, read_json_file
from rankfall._leftovers import TEMPORARY, sweep
from rankfall._manifest import MANIFEST
from rankfall._trust import stored_code
from rankfall._yaml_config import ConfigError, leaves, read_yaml, shown
from rankfall.registry.stored_sources import changed, check_present
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import validate_any
from rankfall.training.config.ranker_config import RankerConfig
from rankfall.training.own_parts import CODE, COMPONENTS, stored_sources
from rankfall.training.run_manifest import remove_manifest, verify_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankfall.training.config.load_config import TrainConfig

Config = TypeVar("Config", RankerConfig, CascadeConfig)

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.yaml", "metrics.jsonl", "result.json", "checkpoints"
LOG, DATA, REPORT, DAYS = "log.json", "data.json", "report.html", "days"
TENSORBOARD, MLFLOW = "tensorboard", "mlflow"  # directories of trackers
_REPLACE = f".replace{TEMPORARY}"  # marks a run that is to be replaced, until it is
RESUME_MUTABLE_KEYS = (
    "data.path",
    "metrics",
    "stage_metrics",
    "feedback",
    "training.keep",
    "training.checkpoint_every",
    "training.track",
    "training.mlflow",
    "training.device",
    "training.compile",
)
"""Keys of a configuration that may change between the start and the resumption of a run."""


class TrainingError(ValueError):
    """Training cannot continue."""


class EnvironmentFailure(TrainingError):  # noqa: N818 (public name)
    """A disk, server or process failed. The same training run may succeed later."""


class Stopped(Exception):  # noqa: N818 (not an error)
    """A training run was stopped by its `stop` callback or a signal. It can be resumed."""


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a training run.

    Attributes:
        epoch: Current epoch; the first is 1.
        epochs: Number of epochs.
        batch: Batches trained in this epoch.
        batches: Batches per epoch.
        parts: The loss, or its terms: means over the epoch so far.
        validation: Metrics of the last validation.
        per_second: Lists or impressions per second.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int
    parts: dict[str, float]
    validation: dict[str, float]
    per_second: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training run.

    Attributes:
        best_metric: Best value of the validation metric.
        best_epoch: Epoch of that value.
        epochs: Number of epochs trained.
        seconds: Working time.
        parameters: Number of trained weights.
        device: Device that computed the last epochs, such as ``"cpu"`` or ``"cuda:0"``.
    """

    best_metric: float
    best_epoch: int
    epochs: int
    seconds: float
    parameters: int
    device: str = "cpu"


def read_config(directory: Path, *, trust: bool = False) -> TrainConfig:
    """Load the configuration of a run.

    Args:
        directory: Run directory.
        trust: Import the code that the configuration names, also that of other users; see :mod:`rankfall._trust`.

    Raises:
        ValueError: If the directory has no run, its files have changed, or its configuration names code that is
            missing or not trusted.
    """
    if not (directory / CONFIG).is_file():
        raise ValueError(f"{directory} is not the directory of a run: it has no {CONFIG} (see 'rankfall train --help')")
    verify_run(directory, CONFIG, COMPONENTS)
    sources = stored_sources(directory)
    check_present(sources, directory)
    try:
        with stored_code(directory, trust=trust):
            return validate_any(read_yaml(directory / CONFIG), where=str(directory / CONFIG))
    except ConfigError as error:
        notes = [f"note: {text}" for text in changed(sources)]  # why a user's own file may not be trusted any more
        raise ConfigError("\n".join([str(error), *notes])) from None


def read_config_as(kind: type[Config], directory: Path, *, trust: bool = False) -> Config:
    """Load the configuration of a run, and refuse a run of another kind.

    Args:
        kind: ``RankerConfig`` or ``CascadeConfig``.
        directory: Run directory.
        trust: As of :func:`read_config`.
    """
    config = read_config(directory, trust=trust)
    if not isinstance(config, kind):
        found, expected = ("cascade", "ranker") if kind is RankerConfig else ("ranker", "cascade")
        raise ValueError(f"{directory} is the run of a {found}, expected the run of a {expected}")
    return config


def is_finished(directory: Path) -> bool:
    """Return whether the run in a directory is finished."""
    return (directory / RESULT).is_file()


def read_json(path: Path) -> dict[str, Any]:
    """Load a JSON file of a run."""
    try:
        content = read_json_file(path)
    except ValueError:
        raise ValueError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it has no keys")
    return content


def read_result(directory: Path) -> TrainResult:
    """Load the result of a finished run."""
    verify_run(directory, RESULT)
    try:
        return TrainResult(**read_json(directory / RESULT))
    except TypeError:
        raise ValueError(f"{directory / RESULT} is damaged: it is not the result of a training run") from None


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """Load ``metrics.jsonl``: one mapping per epoch."""
    path = directory / METRICS
    if path.is_file() or (directory / MANIFEST).is_file():
        verify_run(directory, METRICS)
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(parse_json(line))
        except ValueError:
            raise ValueError(f"{path} line {number} is damaged: it is not JSON") from None
    return found


def lasting_files(out: Path) -> list[Path]:
    """Return the files of a run that later commands read, except its result and the weights after single days."""
    weights = [f"{CHECKPOINTS}/{name}.safetensors" for name in ("best", "last")]
    files = (out / name for name in (CONFIG, DATA, LOG, COMPONENTS, METRICS, *weights))
    return [*filter(Path.is_file, files), *sorted(out.glob(f"{DAYS}/*.parquet"))]


def check_free(out: Path, *, force: bool, resume: bool) -> None:
    """Check that a directory is free for a run, or holds one that is to be replaced or resumed."""
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
    """Return the files of a directory, except those of a run that was killed while it started."""
    return (path for path in out.rglob("*") if not is_temporary(path) and path != out / CHECKPOINTS)


def check_same(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a run is resumed with the configuration it was started with."""
    old, new = leaves(dict(before)), leaves(dict(now))
    differences = [f"{key} was {shown(old.get(key))} and is {shown(new.get(key))}" for key in _different(old, new)]
    if differences:
        raise ConfigError(
            f"{out} was started with a different configuration: {', '.join(differences)}. Resume with that one, name "
            "another directory, or start over with --force"
        )


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys that decide what is trained and have different values."""
    return [key for key in {**one, **other} if not _is_mutable(key) and one.get(key) != other.get(key)]


def check_same_on_all_processes(processes: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> None:
    """Check that all processes have the same configuration and data.

    Args:
        processes: Configuration and checksums of the data of each process.
    """
    config, data = leaves(dict(processes[0][0])), processes[0][1]
    for process, (own_config, own_data) in enumerate(processes):
        own = leaves(dict(own_config))
        for key in _different(config, own):
            raise ConfigError(
                f"{key}: found {shown(config.get(key))} in process 0 and {shown(own.get(key))} in process {process}"
            )
        for name in {**data, **own_data}:
            if data.get(name) != own_data.get(name):
                key = "" if name.startswith(CODE) else "data.path: "
                raise ConfigError(f"{key}{name} of process {process} differs from that of process 0")


def check_same_data(out: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that a run is resumed with the data it was started with, by the checksums of their parts."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if changed:
        raise ConfigError(
            f"data.path: {out} was started with other data; {', '.join(changed)} differ. Resume with the old data, "
            "name another directory, or start over with --force"
        )


def _is_mutable(key: str) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in RESUME_MUTABLE_KEYS)


def mark_for_replacement(out: Path) -> None:
    """Mark a run as to be replaced, for processes that are restarted before they have replaced it."""
    if (out / CONFIG).is_file():
        open_new(out / _REPLACE).close()


def is_marked_for_replacement(out: Path) -> bool:
    """Return whether a run is marked as to be replaced."""
    return (out / _REPLACE).exists()


def unmark_for_replacement(out: Path) -> None:
    """Remove the mark of a run that is to be replaced."""
    delete(out / _REPLACE, missing_ok=True)


def clear(out: Path) -> None:
    """Create the directory, and delete the files of an earlier run."""
    remove_manifest(out)
    make_directory(out / CHECKPOINTS)
    for tracker in (TENSORBOARD, MLFLOW):
        delete_tree(out / tracker, missing_ok=True)
    measured = [RESULT, METRICS, REPORT, "evaluation*.json", "values*.parquet", f"{DAYS}/*"]
    # checkpoints first: a run with checkpoints but without its other files could not be resumed
    trained = [f"{CHECKPOINTS}/step-*.safetensors", f"{CHECKPOINTS}/*.safetensors", LOG, DATA, COMPONENTS]
    for pattern in (*measured, *trained, CONFIG):  # last, since it marks the directory as a run
        for path in out.glob(pattern):
            delete(path)
    clear_temporary(out)  # at the end, since they include the mark that the run is to be replaced


def clear_temporary(out: Path) -> None:
    """Delete files that were half written when a run was killed, and the mark that the run is to be replaced."""
    for directory in filter(Path.is_dir, (out, out / CHECKPOINTS, out / DAYS)):
        sweep(directory)
    unmark_for_replacement(out)
