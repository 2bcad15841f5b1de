"""Compatibility of a log with a model that was trained on another log.

An id is a row of an embedding table. If another log assigns its ids differently, a model reads wrong rows, and nothing
shows it except bad metrics. A run therefore stores the signature of the log it was trained on: how the ids and numbers
of every feature are made, and the values that were fitted for it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall._errors import RankfallError
from rankfall.data.impressions.encoding import hash_values
from rankfall.data.impressions.log import PER_REQUEST
from rankfall.data.impressions.spec import Categorical, Features, Time

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    import pyarrow as pa

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Feature, FeatureConfig


EncodingSignature = dict[str, Any]  # plain values, as stored in JSON


class IncompatibleLogError(RankfallError):
    """A log whose ids or numbers differ from those that a model was trained on."""


def encoding_signature(log: ImpressionLog) -> EncodingSignature:
    """Return the signature of a log, which is stored with a model trained on it."""
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


def check_compatible(trained: EncodingSignature, log: ImpressionLog, *, used: Container[str]) -> list[str]:
    """Check that a model can read a log.

    Args:
        trained: The signature of the log that the model was trained on.
        log: The log that the model is going to read.
        used: The features and sequences of the model, such as ``user.age`` and ``sequence.history``.

    Returns:
        Warnings about embedding tables to which ids were added that the model has no rows for.

    Raises:
        IncompatibleLogError: If a used feature is missing or is encoded differently.
    """
    found = encoding_signature(log)
    if found["platform"] != trained["platform"]:
        raise _incompatible(
            log, f"it is of {_named(found['platform'])}, the model was trained on {_named(trained['platform'])}"
        )
    known = Features.from_json(trained["features"])
    features = {_address(feature): feature for feature in log.features.features}
    sequences = {sequence.name: sequence.features for sequence in log.features.sequences}
    warnings: list[str] = []
    for sequence in known.sequences:
        missing = [name for name in sequence.features if name not in sequences.get(sequence.name, ())]
        if missing and f"sequence.{sequence.name}" in used:
            raise _incompatible(log, f"its sequence {sequence.name} has no {', '.join(missing)}")
    for feature in known.features:
        address = _address(feature)
        if address not in used:
            continue
        if address not in features:
            raise _incompatible(log, f"it has no feature {address}")
        warnings += _compare(feature, features[address], trained, found, log)
    return list(dict.fromkeys(warnings))  # features may share a table


def _rule(feature: FeatureConfig, zone: str) -> dict[str, Any]:
    """Return how values become ids or numbers, without fitted values and the number of ids."""
    if isinstance(feature, Categorical):
        if feature.hash_bucket_size is not None:
            return {"ids": f"hashed into {feature.hash_bucket_size}"}
        return {"ids": "whole numbers" if feature.num_buckets is not None else "a vocabulary"}
    if isinstance(feature, Time):
        return {"ids": f"the {feature.part} in {zone}"}
    return feature.model_dump(mode="json", include={"size", "log1p", "missing", "standardise", "bucketize"})


def _compare(
    expected: Feature, found: Feature, trained: EncodingSignature, signature: EncodingSignature, log: ImpressionLog
) -> list[str]:
    """Compare a feature that both logs have; return warnings."""
    address = _address(expected)
    before, after = trained["rules"][address], signature["rules"][address]
    for key in before:
        if before[key] != after.get(key):
            raise _incompatible(
                log, f"{address}: found {key} {after.get(key)!r}, the model was trained with {before[key]!r}"
            )
    if trained["fitted"].get(address) != signature["fitted"].get(address):
        raise _incompatible(log, f"the scaling or the buckets of {address} were fitted to other data")
    is_vocabulary = expected.embedding in trained["vocabularies"]
    if is_vocabulary:
        _check_vocabulary(address, trained["vocabularies"][str(expected.embedding)], str(found.embedding), log)
    if found.rows <= expected.rows:
        return []
    count = found.rows - expected.rows
    return [
        f"{log.path} has {count:,} more id{'s' * (count > 1)} of {found.embedding} than the training log; the model "
        f"has no embeddings for them{' and reads them as never seen' if is_vocabulary else ''}"
    ]


def _check_vocabulary(address: str, before: Mapping[str, Any], table: str, log: ImpressionLog) -> None:
    """Check that a vocabulary only grew at its end; ids are positions in it."""
    values, count = log.vocabulary(table), before["values"]
    if len(values) < count or _digest(values[:count]) != before["digest"]:
        raise _incompatible(log, f"the vocabulary of {address} assigns other ids than that of the training log")


def _about_vocabulary(values: pa.Array) -> dict[str, Any]:
    return {"values": len(values), "digest": _digest(values)}


def _digest(values: pa.Array) -> str:
    return hashlib.sha256(hash_values(pl.Series(values)).tobytes()).hexdigest()


def _platform(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Identify a simulated platform; the same ids of another platform are other users and items."""
    if about.get("command") != "simulate":
        return None
    return {"preset": about["preset"], "seed": about["seed"]}


def _named(platform: Mapping[str, Any] | None) -> str:
    if platform is None:
        return "no simulated platform"
    return f"the simulated platform {platform['preset']} with seed {platform['seed']}"


def _address(feature: Feature) -> str:
    return f"{feature.group}.{feature.name}"


def _incompatible(log: ImpressionLog, reason: str) -> IncompatibleLogError:
    return IncompatibleLogError(
        f"{log.path} is not encoded like the log that the model was trained on: {reason}. "
        "Prepare both as one log, or train on this one"
    )


WORTH_A_WARNING = 0.01  # share of ids never seen
WITHOUT_THEM = "leave them out of the models (`only`), or make them features of the context"


def log_warnings(about: Mapping[str, Any]) -> list[str]:
    """Return what a user has to know about a log.

    Args:
        about: The section `about` of the manifest.
    """
    return [*_count_warnings(about["counts"]), *_source_warnings(about)]


def share(count: int, of: int) -> str:
    """Return a count and its share as text.

    >>> share(3, 12), share(0, 12)
    ('3 (25.00%)', '0')
    """
    return f"{count:,} ({count / of:.2%})" if count else "0"


def depends_on_request(features: Sequence[str]) -> str:
    """Return the statement that item features depend on the request.

    >>> depends_on_request(["item.distance"]), depends_on_request(["item.a", "item.b", "item.c", "item.d"])
    ('item.distance depends on the request', 'item.a, item.b and 2 others depend on the request')
    """
    if len(features) == 1:
        return f"{features[0]} depends on the request"
    shown = ", ".join(features) if len(features) < 4 else f"{', '.join(features[:2])} and {len(features) - 2} others"
    return f"{shown} depend on the request"


def _count_warnings(counts: Mapping[str, Any]) -> Iterator[str]:
    requests = counts["requests"]
    for name, unseen in counts["unseen"].items():
        if unseen >= WORTH_A_WARNING * (values := counts["values"][name]):
            yield f"{name}: {share(unseen, values)} ids were never seen on the days of the fit"
    if without := counts["without_relevant"]:
        yield f"{share(without, requests)} impressions have no relevant item"
    for stage, short in counts["short"].items():
        if short:
            yield f"stage {stage}: {share(short, requests)} impressions have fewer items than the sample"
    for stage, logged in counts["logged"].items():
        if not logged:
            yield f"stage {stage}: the log has no items of it"


def _source_warnings(about: Mapping[str, Any]) -> Iterator[str]:
    if features := about.get(PER_REQUEST):
        yield (
            f"{depends_on_request(features)}: lists cannot be extended by other items (data.negatives, data.length). "
            "What production decided, such as a position, is no feature: a model would see the answer in it"
        )
    for source in about["sources"]:
        if source["rows"] == 0:
            yield f"{source['path']} has no rows"
    if days := about.get("empty_days"):
        yield f"the log has no rows on {', '.join(days[:5])}{' and other days' if len(days) > 5 else ''}"
    for table, unknown in about.get("unknown", {}).items():
        if unknown:
            yield f"{unknown:,} {table} of the log are not in the table of {table}; its columns are missing for them"
    if unused := about.get("unused_requests"):
        yield f"{unused:,} requests of the table of requests are not in the log"
