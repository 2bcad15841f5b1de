"""Whether the rules of a bundle read values as the code did that prepared the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._ids import FIRST_KNOWN, UNSEEN
from rankfall.serving.export.encoding_rules import all_rules
from rankfall.serving.export.item_table import encoding_of
from rankfall.serving.lookup import Lookup
from rankfall.serving.value_encoders import make_encoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.serving.export.encoding_rules import Rules

_VALUES = 1000  # of a vocabulary
_NUMBERS = [0.0, 1.0, -1.0, 0.5, -2.25, 17.0, 1e-3, 1e6]
_TIMES = ["2024-01-13T08:30:00", "2024-07-01T23:59:59Z", "1999-12-31T23:30:00+05:00", "2024-02-29"]
_WHOLE = [0, 7, -3, 2**40]
_TEXT = ["", "7", "a value", "été"]


def check_reading(log: ImpressionLog, rules: Rules, vocabularies: Mapping[str, pa.Array]) -> int:
    """Refuse rules that make other ids or numbers of values than the log's own encoding; gives how many were compared.

    The two share what the manifest says, but no code.
    """
    encoding = encoding_of(log)
    lookups = {table: Lookup.of(values, name=f"the vocabulary {table}") for table, values in vocabularies.items()}
    features = {_address(name): rule for name, rule in all_rules(rules).items()}
    count = 0
    for (group, name), rule in features.items():
        encode = make_encoder(rule, lookups)
        for values in _samples(rule, log):
            raw = pl.Series(name, values, strict=False)
            expected = encoding.encode(group, name, raw)
            if rule["rows"]:  # what the model has no row for was never seen
                expected = np.where(expected >= rule["rows"], UNSEEN, expected)
            differ = encode(values) != expected
            if differ.any():
                place = int(differ.reshape(len(values), -1).any(axis=1).argmax())
                raise ValueError(f"{group}.{name}: {values[place]!r} is not read as the log was")
            count += len(values)
    return count


def _address(name: str) -> tuple[Any, str]:
    """The feature that an input is made of: events have those of items."""
    group, first, *feature = name.split(".")
    return ("item", feature[0]) if feature else (group, first)


def _samples(rule: Mapping[str, Any], log: ImpressionLog) -> list[list[Any]]:
    """Columns of values that a feature may have, each of one type."""
    if rule["kind"] == "time":
        return [[*_TIMES, None], *([[0, 1_705_118_400, None]] if rule["unit"] else [])]
    if rule["kind"] == "dense":
        return [_dense(rule)]
    if rule["ids"] == "numbers":
        count = rule["rows"] - FIRST_KNOWN
        return [[0, count - 1, count, 2**40, None]]
    if rule["ids"] == "hash":
        return [[*some, None] for some, text in ((_TEXT, True), (_WHOLE, False)) if rule["text"] in (None, text)]
    known = log.vocabulary(rule["vocabulary"])
    some = known.take(np.unique(np.linspace(0, len(known) - 1, min(len(known), _VALUES)).astype(np.int64))).to_pylist()
    strangers: list[Any] = _TEXT if rule["text"] else _WHOLE
    if not rule["text"] and known.type != pa.int64():  # which cannot hold them
        strangers = []
    return [[*some, *strangers, None]]


def _dense(rule: Mapping[str, Any]) -> list[Any]:
    edges = rule["edges"] or []
    numbers = [*_NUMBERS, *edges, *(np.nextafter(edge, -np.inf).item() for edge in edges)]
    values: list[Any] = [[number + place for place in range(rule["size"])] for number in numbers]
    if rule["size"] == 1:
        values = numbers
    return values if rule["missing"] is None else [*values, None]
