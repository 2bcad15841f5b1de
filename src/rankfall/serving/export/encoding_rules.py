"""The encoding rules of requests, as stored in the manifest of a bundle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rankfall.data.impressions.spec import column_of
from rankfall.encoding import FIRST_KNOWN, Numbers

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import Feature, Features
    from rankfall.encoding import Rule

Rules = dict[str, Any]


def request_rules(encoding: Encoding, features: Features, inputs: Collection[str]) -> Rules:
    """Return the rules of all values that a request may hold.

    Args:
        encoding: The encoding of the log that the models were trained on.
        features: The features of the models.
        inputs: The inputs of the models, such as ``user.age``; requests may hold other features, which are ignored.
    """
    time = encoding.spec.time
    rules: Rules = {
        "time": None if time is None else {"unit": time.unit, "zone": time.zone},
        "user": {},
        "context": {},
        "sequences": {},
        "ignored": [],
    }
    for feature in features.features:
        if feature.group == "item":
            continue
        if f"{feature.group}.{feature.name}" in inputs:
            rules[feature.group][feature.name] = feature_rule(encoding, feature).to_json()
        else:
            rules["ignored"].append(f"{feature.group}.{feature.name}")
    for sequence in features.sequences:
        if not any(name.startswith(f"sequence.{sequence.name}.") for name in inputs):
            rules["ignored"].append(f"sequence.{sequence.name}")
            continue
        item = next((name for name in sequence.features if _is_item(encoding, name)), None)
        rules["sequences"][sequence.name] = {
            **({} if item is None else {"item": item}),
            "max_length": sequence.max_length,
            "features": {name: feature_rule(encoding, features.item(name)).to_json() for name in sequence.features},
            "ignored": [feature.name for feature in features.of("item") if feature.name not in sequence.features],
        }
    return rules


def _is_item(encoding: Encoding, name: str) -> bool:
    """Return whether a feature of items is their id."""
    return column_of(encoding.spec, name, encoding.spec.features.item[name]) == encoding.spec.item


def feature_rule(encoding: Encoding, feature: Feature) -> Rule:
    """Return the rule that a log was prepared with, limited to the ids for which the model has rows."""
    rule = encoding.rule(feature.group, feature.name)
    return rule if isinstance(rule, Numbers) else replace(rule, rows=feature.rows)


def request_vocabularies(encoding: Encoding, rules: Rules) -> dict[str, pa.Array]:
    """Return the values of the vocabularies that the rules name, as far as the models have rows for them."""
    groups = [rules["user"], rules["context"], *(sequence["features"] for sequence in rules["sequences"].values())]
    lengths = {
        rule["vocabulary"]: rule["rows"] - FIRST_KNOWN
        for group in groups
        for rule in group.values()
        if "vocabulary" in rule
    }
    return {table: encoding.lookup(table).values.slice(0, length) for table, length in lengths.items()}
