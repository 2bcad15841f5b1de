"""Compare the encoding rules of a bundle with the encoding of its log, on many values of every feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall.data.impressions.encoding import Encoding
from rankfall.encoding import FIRST_KNOWN, UNSEEN, Lookup, rule_from_json
from rankfall.serving.value_encoders import make_encoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankfall.data import ImpressionLog

_VALUES = 1000  # of a vocabulary
_NUMBERS = [0.0, 1.0, -1.0, 0.5, -2.25, 17.0, 1e-3, 1e6]
_TIMES = ["2024-01-13T08:30:00", "2024-07-01T23:59:59Z", "1999-12-31T23:30:00+05:00", "2024-02-29"]
_INTEGERS = [0, 7, -3, 2**40]
_TEXT = ["", "7", "a value", "été"]


def compare_with_log(log: ImpressionLog, rules: Mapping[str, Any], vocabularies: Mapping[str, pa.Array]) -> int:
    """Return the number of values that were compared; raise ValueError if one is encoded differently."""
    encoding = Encoding.of_log(log)
    lookups = {table: Lookup.of(values, name=table) for table, values in vocabularies.items()}
    count = 0
    for group, name, rule in _features(rules):
        encoder = make_encoder(rule_from_json(rule, lookups))
        for values in _columns(rule, log):
            expected = encoding.encode(group, name, pl.Series(name, values, strict=False))
            if rule["rows"]:  # values for which the model has no row are unseen
                expected = np.where(expected >= rule["rows"], UNSEEN, expected)
            differ = encoder.encode(values) != expected
            if differ.any():
                place = int(differ.reshape(len(values), -1).any(axis=1).argmax())
                raise ValueError(f"{group}.{name}: {values[place]!r} is encoded differently than in the log")
            count += len(values)
    return count


def _features(rules: Mapping[str, Any]) -> Iterator[tuple[Any, str, Mapping[str, Any]]]:
    for group in ("user", "context"):
        yield from ((group, name, rule) for name, rule in rules[group].items())
    for sequence in rules["sequences"].values():  # events have the features of items
        yield from (("item", name, rule) for name, rule in sequence["features"].items())


def _columns(rule: Mapping[str, Any], log: ImpressionLog) -> list[list[Any]]:
    """Return columns of values that a feature accepts, each of one type."""
    if rule["kind"] == "time":
        return [[*_TIMES, None], *([[0, 1_705_118_400, None]] if rule["unit"] else [])]
    if rule["kind"] == "dense":
        return [_dense(rule)]
    if rule["ids"] == "numbers":
        count = rule["rows"] - FIRST_KNOWN
        return [[0, count - 1, count, 2**40, None]]
    if rule["ids"] == "hash":
        return [[*some, None] for some, text in ((_TEXT, True), (_INTEGERS, False)) if rule["text"] in (None, text)]
    known = log.vocabulary(rule["vocabulary"])
    some = known.take(np.unique(np.linspace(0, len(known) - 1, min(len(known), _VALUES)).astype(np.int64))).to_pylist()
    others: list[Any] = _TEXT if rule["text"] else _INTEGERS
    if not rule["text"] and known.type != pa.int64():  # cannot represent them
        others = []
    return [[*some, *others, None]]


def _dense(rule: Mapping[str, Any]) -> list[Any]:
    edges = rule["edges"] or []
    numbers = [*_NUMBERS, *edges, *(np.nextafter(edge, -np.inf).item() for edge in edges)]
    values: list[Any] = [[number + place for place in range(rule["size"])] for number in numbers]
    if rule["size"] == 1:
        values = numbers
    return values if rule["missing"] is None else [*values, None]
