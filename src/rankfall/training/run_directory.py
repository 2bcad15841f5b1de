"""Run directories: their files, errors of training, and checks before a run is written or resumed.

================================  ====================================================================================
``config.yaml``                   the configuration with all defaults
``metrics.jsonl``                 one line per epoch: training loss, validation metric, speed
``checkpoints/best.safetensors``  the weights with the best validation metric
``checkpoints/last.safetensors``  the last weights
``checkpoints/step-*``            checkpoints of an unfinished run
``result.json``                   the result, written last: a run that has it is finished
``manifest.json``                 the other files with their checksums, see :mod:`rankfall.training.run_directory`
``data.json``                     checksums of the training data
``components.json``               files and hashes of components that are not built in, if there are any
``log.json``                      of a cascade: the meaning of the ids and numbers of its log
``days/``                         of a stream: values of every impression, and weights, per day
================================  ====================================================================================
"""

from __future__ import annotations

import hashlib
import json
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rankfall import __version__, registry
from rankfall._config import ConfigError, leaves, read_yaml, shown
from rankfall._errors import RankfallError
from rankfall.registry import references
from rankfall.registry.references import changed
from rankfall.storage import manifests
from rankfall.storage.disk import delete, delete_tree, make_directory, open_new
from rankfall.storage.files import TEMPORARY, is_temporary, parse_json, read_json_file, sweep
from rankfall.storage.trust import remember, stored_code
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import validate_any
from rankfall.training.config.ranker_config import RankerConfig

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from rankfall.register import Kind
    from rankfall.training.config.load_config import TrainConfig

    Named: TypeAlias = tuple[Kind, str]
    """Kind and name of a component."""

FORMAT = "rankfall run"
VERSION = 1
REMEDY = "train the run again, or restore the file from a copy; --no-verify reads it as it is"


def seal_run(out: Path, files: Iterable[Path], later: Mapping[str, str] | None = None) -> None:
    """Write the manifest of a run.

    Args:
        out: Run directory.
        files: Files of the run.
        later: Names and contents of files that are written after the manifest.
    """
    entries = {file.relative_to(out).as_posix(): manifests.about_file(file) for file in files}
    for name, text in (later or {}).items():
        content = text.encode()
        entries[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    about = {"format": FORMAT, "version": VERSION, "rankfall": __version__}
    manifests.write_manifest(out / manifests.MANIFEST, about | {"files": dict(sorted(entries.items()))})


def verify_run(directory: Path, *names: str) -> None:
    """Compare files of a run with their checksums. Files that the manifest does not list are not compared.

    Args:
        directory: Run directory. One without a manifest is noted.
        names: Files that are about to be read.

    Raises:
        ValueError: If a file is missing or has changed, or the manifest is damaged.
    """
    if not manifests.verifies():
        return
    files = _listed(directory)
    for name in names:
        if name in files:
            manifests.check_file(directory / name, files[name]["sha256"], remedy=REMEDY)


def _listed(directory: Path) -> dict[str, Any]:
    if not (directory / manifests.MANIFEST).exists():
        manifests.note(f"{directory} has no {manifests.MANIFEST}: its files cannot be verified")
        return {}
    kind = f"the manifest of a run; {REMEDY}"
    manifest = manifests.read_manifest(
        directory, FORMAT, VERSION, kind=kind, remedy="train the run again", keys=("files",)
    )
    manifests.check_seal(directory / manifests.MANIFEST, manifest, remedy=REMEDY)
    files: dict[str, Any] = manifest["files"]
    return files


COMPONENTS = "components.json"
CODE = "the code "  # before the name of a file among the checksums that all processes must share


class OwnCodeError(RankfallError):
    """The code of a user's component raised an error."""


# --- what a configuration names -----------------------------------------------------------------------------------


def sources_of(config: BaseModel) -> list[references.Source]:
    """Return the code of all components of a configuration that are not built in. Nothing is imported.

    Args:
        config: A validated configuration: of a ranker, of a cascade, or of a baseline.
    """
    content = config.model_dump(mode="json")
    found = (
        references.source_of(kind, name)
        for kind, name in dict.fromkeys(_named(content, isinstance(config, CascadeConfig)))
    )
    return [source for source in found if source is not None]


def _named(content: Mapping[str, Any], is_cascade: bool) -> list[Named]:
    """Return the kind and name of every component of a configuration."""
    if is_cascade:
        models = [stage["model"]["kind"] for stage in content["stages"]]
        objective = content["objective"]
        metrics = content["stage_metrics"]
        return [
            *(("model", kind) for kind in models),
            ("objective", objective["name"]),
            *_in_options("objective", objective),
            *_own_metrics(metrics),
        ]
    if "loss" not in content:  # a baseline
        return _own_metrics(content.get("metrics", ()))
    own_models = [kind for kind in [content["model"]["kind"]] if kind not in ("mlp", "linear")]
    return [
        *(("model", kind) for kind in own_models),
        ("loss", content["loss"]["name"]),
        *_in_options("loss", content["loss"]),
        *_own_metrics([*content["metrics"], content["training"]["metric"]]),
    ]


def _own_metrics(names: Iterable[str]) -> list[Named]:
    """Return the metrics that are not built in; those of cascades have names of their own."""
    return [("metric", name) for name in names if registry.is_own("metric", references.split_cutoffs(name)[0])]


def _in_options(kind: Kind, section: Mapping[str, Any]) -> list[Named]:
    """Return the operators and losses that the options of a loss or an objective name."""
    found: list[Named] = []
    for name, option in registry.options(kind, section["name"]).items():
        value = section.get(name)
        given = {"name": value} if isinstance(value, str) else value
        if option.part is not None and isinstance(given, dict) and isinstance(given.get("name"), str):
            found.append(("loss" if option.part == "loss" else "operator", given["name"]))
            found += _in_options("loss", given) if option.part == "loss" else []
    return found


def identity(config: BaseModel, content: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what identifies a run besides its data: its configuration without paths, and the hashes of its code.

    Args:
        config: The configuration.
        content: Its content as JSON values, or a part of it.
    """
    sources = sources_of(config)
    names = {one.name: references.short_name(one.name) for one in sources}
    return _renamed(content, names), [f"{one.kind} {references.short_name(one.name)} {one.sha256}" for one in sources]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


# --- files of a run -----------------------------------------------------------------------------------------------


def component_files(config: BaseModel) -> dict[str, str]:
    """Return the content of ``components.json``; nothing if all components are built in."""
    sources = sources_of(config)
    return {COMPONENTS: json.dumps([asdict(one) for one in sources], indent=1) + "\n"} if sources else {}


def stored_sources(directory: Path) -> list[references.Source]:
    """Return the code that a run was trained with."""
    try:
        found = [references.Source(**one) for one in read_json_file(directory / COMPONENTS)]
        if all(
            one.kind in registry.KINDS and all(isinstance(text, str) for text in asdict(one).values()) for one in found
        ):
            return found
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        pass
    raise RankfallError(f"{directory / COMPONENTS} is damaged: it is not a list of components")


def check_same_code(out: Path, config: BaseModel) -> None:
    """Check that a run is resumed with the code that it was started with."""
    before = {(one.kind, one.name): one for one in stored_sources(out)}
    differences = [
        f"{now.file or now.name} had sha256 {old.sha256[:12]} and has {now.sha256[:12]}"
        for now in sources_of(config)
        if (old := before.get((now.kind, now.name))) is not None and old.sha256 != now.sha256
    ]
    if differences:
        raise ConfigError(
            f"{out} was started with other code: {', '.join(dict.fromkeys(differences))}. Resume with the old code, "
            "name another directory, or start over with --force"
        )


# --- errors of users' code ----------------------------------------------------------------------------------------


@contextmanager
def own_code(config: BaseModel, *, trains: bool = False) -> Generator[None]:
    """Context for running the components of a configuration: errors of users' code name the component and the line.

    Args:
        config: The configuration.
        trains: Whether the user has passed the configuration, so that its code is trusted from now on.

    Raises:
        OwnCodeError: If code of a user raises an error.
    """
    sources = sources_of(config)
    if trains and sources:
        try:
            remember(dict.fromkeys(file for one in sources for file in references.imported_files(one)))
        except OSError as error:
            warnings.warn(f"later commands will ask for --trust, because {error}", stacklevel=3)
    try:
        yield
    except (Exception, SystemExit) as error:
        if not sources or any(isinstance(one, OwnCodeError) for one in _chain(error)):
            raise
        if (place := _place(error, sources)) is not None:
            component, text = place
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise OwnCodeError(f"{component}: {said} {text}") from error
        # an error of ours about one that users' code raised
        for cause in _chain(error):
            if (place := _place(cause, sources)) is not None:
                error.args = (f"{error} {place[1]}", *error.args[1:])
                break
        raise


def _chain(error: BaseException) -> Generator[BaseException]:
    """Yield an error and those that led to it."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _place(error: BaseException, sources: Iterable[references.Source]) -> tuple[str, str] | None:
    """Return the component whose file an error passed through, and the innermost line there."""
    by_file: dict[str, list[references.Source]] = {}
    for source in sources:
        by_file.setdefault(source.file, []).append(source)
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if names := [references.short_name(one.name) for one in by_file.get(code.co_filename, ())]:
            outer = code.co_qualname.partition(".")[0]
            component = outer if outer in names else names[0]
            found = component, f"({code.co_filename}, line {line}, in {code.co_qualname})"
    return found


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
"""Keys of a configuration that do not change weights: a run may be resumed with others, and its name has none."""


class TrainingError(RankfallError):
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
        trust: Import the code that the configuration names, also that of other users; see
            :mod:`rankfall.storage.trust`.

    Raises:
        ValueError: If the directory has no run, its files have changed, or its configuration names code that is
            missing or not trusted.
    """
    if not (directory / CONFIG).is_file():
        raise RankfallError(
            f"{directory} is not the directory of a run: it has no {CONFIG} (see 'rankfall train --help')"
        )
    verify_run(directory, CONFIG, COMPONENTS)
    sources = stored_sources(directory)
    references.check_present(sources, directory)
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
        raise RankfallError(f"{directory} is the run of a {found}, expected the run of a {expected}")
    return config


def is_finished(directory: Path) -> bool:
    """Return whether the run in a directory is finished."""
    return (directory / RESULT).is_file()


def read_json(path: Path) -> dict[str, Any]:
    """Load a JSON file of a run."""
    try:
        content = read_json_file(path)
    except ValueError:
        raise RankfallError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(content, dict):
        raise RankfallError(f"{path} is damaged: it has no keys")
    return content


def read_result(directory: Path) -> TrainResult:
    """Load the result of a finished run."""
    verify_run(directory, RESULT)
    try:
        return TrainResult(**read_json(directory / RESULT))
    except TypeError:
        raise RankfallError(f"{directory / RESULT} is damaged: it is not the result of a training run") from None


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """Load ``metrics.jsonl``: one mapping per epoch."""
    path = directory / METRICS
    if path.is_file() or (directory / manifests.MANIFEST).is_file():
        verify_run(directory, METRICS)
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(parse_json(line))
        except ValueError:
            raise RankfallError(f"{path} line {number} is damaged: it is not JSON") from None
    return found


def lasting_files(out: Path) -> list[Path]:
    """Return the files of a run that later commands read, except its result and the weights after single days."""
    weights = [f"{CHECKPOINTS}/{name}.safetensors" for name in ("best", "last")]
    files = (out / name for name in (CONFIG, DATA, LOG, COMPONENTS, METRICS, *weights))
    return [*filter(Path.is_file, files), *sorted(out.glob(f"{DAYS}/*.parquet"))]


def check_free(out: Path, *, force: bool, resume: bool) -> None:
    """Check that a directory is free for a run, or holds one that is to be replaced or resumed."""
    if force and resume:
        raise RankfallError("force: found with resume; a run is either replaced or continued")
    if out.exists() and not out.is_dir():
        raise RankfallError(f"{out} is a file, expected a directory for the run")
    # files of a run that was killed while it started do not count
    if not out.exists() or all(is_temporary(path) or path == out / CHECKPOINTS for path in out.rglob("*")):
        return
    if not (out / CONFIG).is_file():
        raise RankfallError(f"{out} holds other files and no run; name another directory")
    if not (force or resume):
        go_on = "" if is_finished(out) else "continue it with --resume, "
        raise RankfallError(f"{out} holds a run already; name another directory, {go_on}or replace it with --force")


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
    mutable = tuple(f"{key}." for key in RESUME_MUTABLE_KEYS)
    return [key for key in {**one, **other} if one.get(key) != other.get(key) and not f"{key}.".startswith(mutable)]


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
    delete(out / manifests.MANIFEST, missing_ok=True)  # before files that it lists
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
