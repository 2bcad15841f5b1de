"""How a log made ids and numbers of values, as bundles keep it for the values of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall.data.impressions.spec import Categorical, Time, column_of, table_of
from rankfall.serving.lookup import is_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Dense, Feature, FeatureConfig, Features

Rules = dict[str, Any]


def request_rules(log: ImpressionLog, features: Features, inputs: Collection[str]) -> Rules:
    """What requests may hold for models with these features and inputs.

    The numbers of rows are those of the model's tables, which may be shorter than a log's that was prepared later.
    """
    rules: Rules = {"time": _time(log), "user": {}, "context": {}, "sequences": {}, "ignored": []}
    for feature in features.features:
        if feature.group == "item":
            continue
        if f"{feature.group}.{feature.name}" in inputs:
            rules[feature.group][feature.name] = feature_rule(log, feature)
        else:
            rules["ignored"].append(f"{feature.group}.{feature.name}")
    for sequence in features.sequences:
        if not any(name.startswith(f"sequence.{sequence.name}.") for name in inputs):
            rules["ignored"].append(f"sequence.{sequence.name}")
            continue
        rules["sequences"][sequence.name] = {
            "max_length": sequence.max_length,
            "features": {name: feature_rule(log, features.item(name)) for name in sequence.features},
            "ignored": [feature.name for feature in features.of("item") if feature.name not in sequence.features],
        }
    return rules


def vocabularies_of(log: ImpressionLog, rules: Rules) -> dict[str, pa.Array]:
    """The values of the tables that the rules name, as far as the models have rows for them."""
    lengths: dict[str, int] = {}
    for rule in all_rules(rules).values():
        if rule["kind"] == "categorical" and rule["ids"] == "vocabulary":
            lengths[rule["vocabulary"]] = rule["rows"]
    return {table: plain_values(log.vocabulary(table)).slice(0, rows - 2) for table, rows in lengths.items()}


def all_rules(rules: Rules) -> dict[str, Mapping[str, Any]]:
    """The rules of all features by the names of inputs."""
    found = {f"{group}.{name}": rule for group in ("user", "context") for name, rule in rules[group].items()}
    for sequence, of in rules["sequences"].items():
        found |= {f"sequence.{sequence}.{name}": rule for name, rule in of["features"].items()}
    return found


def plain_values(values: pa.Array) -> pa.Array:
    """Values as bundles keep them: int64, which false and true are 0 and 1 of, or text."""
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.large_string())


def _time(log: ImpressionLog) -> dict[str, Any] | None:
    """How the times of requests are read, if anything is made of them."""
    time = log.spec.time
    return None if time is None else {"unit": time.unit, "zone": time.zone}


def feature_rule(log: ImpressionLog, feature: Feature) -> dict[str, Any]:
    """How one feature is made."""
    config: FeatureConfig = getattr(log.spec.features, feature.group)[feature.name]
    if isinstance(config, Categorical):
        return {"kind": "categorical", "rows": feature.rows, **_categories(log, feature, config)}
    if isinstance(config, Time):
        unit = config.unit
        if config.column is None:
            unit = log.spec.time.unit if log.spec.time else None
        about = {"part": config.part, "unit": unit, "zone": log.spec.zone, "of_request": config.column is None}
        return {"kind": "time", "rows": feature.rows, **about}
    return {"kind": "dense", "rows": feature.rows, **_dense(log, f"{feature.group}.{feature.name}", config)}


def _categories(log: ImpressionLog, feature: Feature, config: Categorical) -> dict[str, Any]:
    if config.num_buckets is not None:
        return {"ids": "numbers"}
    if config.hash_bucket_size is not None:
        hashed = log.manifest["about"].get("hashed", {}).get(f"{feature.group}.{feature.name}")
        return {"ids": "hash", "text": None if hashed is None else hashed == "text"}  # older logs do not say
    table = table_of(feature.group, feature.name, config)
    return {"ids": "vocabulary", "vocabulary": table, "text": is_text(plain_values(log.vocabulary(table)))}


def _dense(log: ImpressionLog, address: str, config: Dense) -> dict[str, Any]:
    about = log.manifest["about"]
    scaling = about.get("scalings", {}).get(address, {"mean": None, "deviation": None})
    edges = about.get("edges", {}).get(address, config.bucketize)
    if (config.standardise and scaling["mean"] is None) or isinstance(edges, int):
        raise ValueError(
            f"{log.path}: {address} was fitted, but the manifest does not say to what, so no request can be read"
        )
    numbers = {"size": config.size, "log1p": config.log1p, "missing": config.missing, "edges": edges}
    return {**numbers, "mean": scaling["mean"], "deviation": scaling["deviation"]}


def raw_column(log: ImpressionLog, name: str) -> str:
    """The column of a source in which an item feature stands."""
    return column_of(log.spec, name, log.spec.features.item[name])
