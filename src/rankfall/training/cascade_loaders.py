"""The log of a cascade's configuration: its days, its loaders and its checksums."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, get_args

from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import ConfigError
from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.training.build_cascade import check_quotas
from rankfall.training.config.sections import Role
from rankfall.training.distributed.group import ALONE
from rankfall.training.propensity_weights import curve_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

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
