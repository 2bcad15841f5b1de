"""The log of a cascade's configuration: its days, its loaders and its checksums."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from rankfall._config import ConfigError
from rankfall._errors import did_you_mean
from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.data.impressions.log import is_log
from rankfall.data.lists.ranking_data import RankingData, is_prepared
from rankfall.storage.manifests import verification
from rankfall.training.build import check_quotas
from rankfall.training.config.sections import Role, as_names
from rankfall.training.distributed.group import ALONE
from rankfall.training.item_weights import curve_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankfall.data.impressions.loader import ItemFirstSeen
    from rankfall.training.config.cascade_config import CascadeConfig, LogConfig
    from rankfall.training.distributed.group import Group


def load_log(config: LogConfig) -> ImpressionLog:
    """Open the log of a configuration."""
    try:
        return ImpressionLog.load(config.path)
    except ValueError as error:
        raise ConfigError(f"data.{error}") from None


def check_days(log: ImpressionLog, config: LogConfig) -> None:
    """Refuse days that do not exist or have two uses."""
    used: dict[str, str] = {}
    for role in get_args(Role):
        try:
            days = log.choose(config.days(role))
        except ValueError as error:
            raise ConfigError(f"data.{role}: {str(error).removeprefix('days: ')}") from None
        for day in days:
            if used.setdefault(day.name, role) != role:
                raise ConfigError(f"data: {day.name} is in {used[day.name]} and in {role}; a day has one use")


def check_feedback(config: CascadeConfig, log: ImpressionLog) -> None:
    """Refuse feedback that a log does not have."""
    known = log.spec.feedback
    unknown = [name for name in config.feedback if name not in known]
    if unknown:
        found = ", ".join(f"{name!r}{did_you_mean(name, known)}" for name in unknown)
        raise ConfigError(f"feedback: found {found}; the feedback of {log.path} is {', '.join(known) or 'empty'}")


def make_loader(
    log: ImpressionLog, config: CascadeConfig, role: Role, group: Group = ALONE, *, pin_memory: bool = False
) -> ImpressionLoader:
    """Return the loader of the days for one use: shuffled for training, else in the order of time.

    Args:
        log: The log.
        config: Configuration of the cascade.
        role: ``"train"``, ``"valid"`` or ``"test"``.
        group: For training, each process loads its share of every batch.
        pin_memory: For training, load batches into pinned memory.
    """
    days = config.data.days(role)
    if not days:
        raise ConfigError(f"data.{role}: found no day, expected some of {', '.join(log.days)}")
    if role == "train":
        return training_loader(log, config, days, group, pin_memory=pin_memory)
    loader = measuring_loader(log, config, days)
    check_quotas(config, loader)
    return loader


def training_loader(
    log: ImpressionLog,
    config: CascadeConfig,
    days: Sequence[str],
    group: Group = ALONE,
    first_days: ItemFirstSeen | None = None,
    *,
    pin_memory: bool = False,
) -> ImpressionLoader:
    """Return a loader that shuffles days by the seed of the configuration, with its negatives and labels."""
    settings, data = config.training, config.data
    return ImpressionLoader(
        log,
        days,
        batch=settings.batch,
        seed=settings.seed,
        window=max(settings.window, settings.batch),
        negatives=data.negatives,
        negatives_from=data.negatives_from,
        reads=features_read(config, training=True),
        first_days=first_days,
        labels=data.labels,
        rank=group.rank,
        world=group.world,
        pin_memory=pin_memory,
    )


def measuring_loader(
    log: ImpressionLog, config: CascadeConfig, days: Sequence[str], first_days: ItemFirstSeen | None = None
) -> ImpressionLoader:
    """Return a loader of days in the order of time, with lists of the length that is measured.

    Its grades are always the full-stage grades of the log, so that runs with different `data.labels` are comparable.
    """
    settings = config.training
    check_feedback(config, log)
    return ImpressionLoader(
        log,
        days,
        batch=settings.batch,
        window=max(settings.window, settings.batch),
        shuffle=False,
        length=config.data.length,
        negatives_from=config.data.length_from,
        reads=features_read(config),
        first_days=first_days,
    )


def features_read(config: CascadeConfig, *, training: bool = False) -> set[str] | None:
    """Return the features that the models of a configuration read, in training also its weights; None for all."""
    named = [stage.model.get("only") for stage in config.stages]
    named += [[f"item.{config.weight.of}"]] if training and config.weight is not None else []
    return None if None in named else {name for names in named for name in names or ()}


def checksums(log: ImpressionLog, config: CascadeConfig) -> dict[str, str]:
    """Return the checksums of everything that a training run reads."""
    data, weight = config.data, config.weight
    days = log.choose([*data.train, *data.valid])
    found = {f"day {day.name}": day.manifest["sha256"] for day in days}
    features = log.features.to_json() if log.limits else log.manifest["features"]
    found["features"] = hashlib.sha256(json.dumps(features, sort_keys=True).encode()).hexdigest()
    if data.negatives or data.length is not None:
        found["items"] = log.manifest["items"]["sha256"]
    versions = log.manifest["items"].get("versions", {}).get("sha256")  # or only announced
    if versions and (data.negatives or data.length or log.spec.negatives):
        found["item versions"] = versions
    if weight is not None and weight.examination is not None:
        found["examination"] = curve_checksum(weight.examination)
    return found


_USES = (*get_args(Role), "days")  # keys of `data` that name days or splits


class DataProblem(NamedTuple):
    """Something that a configuration names and that does not exist.

    `is_error` is False for files and directories that do not exist, perhaps not yet: a configuration may be written
    before its data are prepared. It is True if the data exist and contradict the configuration.
    """

    message: str
    is_error: bool


def data_problems(content: Mapping[str, Any]) -> list[DataProblem]:
    """Return what a configuration names and does not exist.

    Args:
        content: The mapping of a valid configuration: of a training run, a comparison, a search or a stream.
    """
    problems: list[DataProblem] = []
    data = content.get("data") or {}
    if "path" in data:
        problems += _of_directory(Path(data["path"]), bool(content.get("stages")), dict(_names(content)))
    weight = content.get("weight")
    curve = weight.get("examination") if isinstance(weight, dict) else None
    if curve and not Path(curve).is_file():
        message = f"weight.examination: {curve} is not a file; {Path(curve).absolute()} does not exist"
        problems.append(DataProblem(message, is_error=False))
    return problems


def _names(content: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the days or splits that each key names."""
    for use in _USES:
        if names := as_names(content["data"].get(use)):
            yield f"data.{use}", names
    for fold, uses in (content.get("folds") or {}).items():
        for use, names in uses.items():
            yield f"folds.{fold}.{use}", as_names(names)


def _of_directory(path: Path, is_cascade: bool, names: Mapping[str, list[str]]) -> list[DataProblem]:
    other = is_prepared if is_cascade else is_log
    if other(path):
        kind, wanted = ("ranking data", "an impression log") if is_cascade else ("an impression log", "ranking data")
        return [DataProblem(f"data.path: {path} is {kind}, expected {wanted} for this configuration", is_error=True)]
    try:
        with verification(False, lambda text: None):  # commands that read the data verify them
            data = ImpressionLog.load(path) if is_cascade else RankingData.load(path)
    except ValueError as error:
        return [DataProblem(f"data.{error}", is_error=path.exists())]
    found = [f"{key}: {problem}" for key, some in names.items() for name in some for problem in _of_name(data, name)]
    return [DataProblem(message, is_error=True) for message in found]


def _of_name(data: ImpressionLog | RankingData, name: str) -> Iterator[str]:
    try:
        data.choose([name]) if isinstance(data, ImpressionLog) else data[name]
    except ValueError as error:
        yield str(error).removeprefix("days: ").removeprefix("split: ")
