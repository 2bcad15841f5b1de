"""What the ids and numbers of a log mean, and whether a model that learned from one log can read another.

An id is a row of an embedding table. If another log gave its ids out differently, a model reads them as something
else, and nothing looks wrong but its figures. So a run keeps the meaning of the log it was trained on: how every
feature is made, and what was fitted for it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall.data.impressions.hashing import hash_values
from rankfall.data.impressions.spec import Categorical, Features, Time

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    import pyarrow as pa

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Feature, FeatureConfig

Meaning = dict[str, Any]  # plain values, as JSON keeps them


class OtherMeaningError(ValueError):
    """A log whose ids or numbers are not those that a model was trained on."""


def meaning_of(log: ImpressionLog) -> Meaning:
    """What a model must remember of the log that it is trained on."""
    about = log.manifest["about"]
    fitted = sorted({*about.get("scalings", {}), *about.get("edges", {})})
    return {
        "features": log.features.to_json(),
        "rules": {f"{group}.{name}": _rule(feature, log.spec.zone) for group, name, feature in log.spec.features},
        "fitted": {
            address: {what: about[what][address] for what in ("scalings", "edges") if address in about.get(what, {})}
            for address in fitted
        },
        "vocabularies": {table: _about_vocabulary(log.vocabulary(table)) for table in log.manifest["vocabularies"]},
        "platform": _platform(about),
    }


def check_meaning(trained: Meaning, log: ImpressionLog, *, used: Container[str]) -> list[str]:
    """Refuse a log whose features, as far as they are `used`, mean something else than those of a training.

    `used` holds names such as ``user.age`` and ``sequence.history``. Returns what is worth a warning: tables to which
    ids were added, which the model has no rows for.
    """
    now = meaning_of(log)
    if now["platform"] != trained["platform"]:
        raise _other(log, f"it is of {_named(now['platform'])}, the training was on {_named(trained['platform'])}")
    known, there = Features.from_json(trained["features"]), log.features
    features = {_address(feature): feature for feature in there.features}
    sequences = {sequence.name: sequence.features for sequence in there.sequences}
    notes: list[str] = []
    for sequence in known.sequences:
        missing = [name for name in sequence.features if name not in sequences.get(sequence.name, ())]
        if missing and f"sequence.{sequence.name}" in used:
            raise _other(log, f"its sequence {sequence.name} has no {', '.join(missing)}")
    for feature in known.features:
        address = _address(feature)
        if address not in used:
            continue
        if address not in features:
            raise _other(log, f"it has no feature {address}")
        notes += _compare(feature, features[address], trained, now, log)
    return list(dict.fromkeys(notes))  # features may share a table


def _rule(feature: FeatureConfig, zone: str) -> dict[str, Any]:
    """How a value becomes an id or a number, but for what is fitted and for how many ids there are."""
    if isinstance(feature, Categorical):
        if feature.hash_bucket_size is not None:
            return {"ids": f"hashed into {feature.hash_bucket_size}"}
        return {"ids": "whole numbers" if feature.num_buckets is not None else "a vocabulary"}
    if isinstance(feature, Time):
        return {"ids": f"the {feature.part} in {zone}"}
    return feature.model_dump(mode="json", include={"size", "log1p", "missing", "standardise", "bucketize"})


def _compare(was: Feature, found: Feature, trained: Meaning, now: Meaning, log: ImpressionLog) -> list[str]:
    """What is worth saying of one feature that both logs have."""
    address = _address(was)
    before, after = trained["rules"][address], now["rules"][address]
    for key in before:
        if before[key] != after.get(key):
            raise _other(log, f"{address}: found {key} {after.get(key)!r}, the training had {before[key]!r}")
    if trained["fitted"].get(address) != now["fitted"].get(address):
        raise _other(log, f"{address} was scaled or cut into buckets by other data")
    if was.embedding in trained["vocabularies"]:
        _check_vocabulary(address, trained["vocabularies"][was.embedding], str(found.embedding), log)
    if found.rows <= was.rows:
        return []
    more = f"{found.rows - was.rows:,} id{'s' * (found.rows - was.rows > 1)}"
    return [f"{log.path} has {more} of {found.embedding} more than the training had, which the model does not know"]


def _check_vocabulary(address: str, before: Mapping[str, Any], table: str, log: ImpressionLog) -> None:
    """Ids are places in the vocabulary, so it may have become longer and nothing else."""
    values, count = log.vocabulary(table), before["values"]
    if len(values) < count or _digest(values[:count]) != before["digest"]:
        raise _other(log, f"the vocabulary of {address} gives other ids than that of the training")


def _about_vocabulary(values: pa.Array) -> dict[str, Any]:
    return {"values": len(values), "digest": _digest(values)}


def _digest(values: pa.Array) -> str:
    return hashlib.sha256(hash_values(pl.Series(values)).tobytes()).hexdigest()


def _platform(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which simulated platform it is: the same ids of another one are other users and items."""
    if about.get("command") != "simulate":
        return None
    return {"preset": about["preset"], "seed": about["seed"]}


def _named(platform: Mapping[str, Any] | None) -> str:
    if platform is None:
        return "no simulated platform"
    return f"the simulated platform {platform['preset']} of seed {platform['seed']}"


def _address(feature: Feature) -> str:
    return f"{feature.group}.{feature.name}"


def _other(log: ImpressionLog, what: str) -> OtherMeaningError:
    return OtherMeaningError(
        f"{log.path} is not read as the log of the training was: {what}. Prepare both as one log, or train on this one"
    )
