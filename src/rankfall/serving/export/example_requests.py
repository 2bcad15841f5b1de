"""Requests of the log with raw values where they can be recovered from ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.encoding import FIRST_KNOWN, MISSING
from rankfall.serving.request_encoder import MASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.serving.export.encoding_rules import Rules
    from rankfall.serving.export.logged_requests import Reactions, RequestSample


def raw_requests(
    sample: RequestSample, rules: Rules, vocabularies: Mapping[str, pa.Array], count: int
) -> list[dict[str, Any]]:
    """Return the first `count` requests; an id whose value cannot be recovered is given as ``{"id": 7}``."""
    return [_request(sample, place, rules, vocabularies) for place in range(min(count, len(sample.requests)))]


def known_reactions(reactions: Reactions | None, count: int) -> list[dict[str, Any]]:
    """Return what the log knows about the items of the first `count` requests.

    Returns:
        ``relevant``, the ids of the ground truth, and ``feedback``, by name the pairs of id and value that are
        not 0; empty dictionaries if the log knows nothing.
    """
    if reactions is None:
        return [{} for _ in range(count)]
    first, last = np.searchsorted(reactions.request, [0, count])
    ids, request = reactions.ids.slice(first, last - first).to_pylist(), reactions.request[first:last]
    known: list[dict[str, Any]] = [{"relevant": [], "feedback": {}} for _ in range(count)]
    for at, one in enumerate(ids):
        of_request = known[request[at]]
        if reactions.share[first + at] > 0:
            of_request["relevant"].append(one)
        for name, values in reactions.feedback.items():
            if value := float(values[first + at]):
                of_request["feedback"].setdefault(name, []).append([one, value])
    return known


def _request(sample: RequestSample, place: int, rules: Rules, vocabularies: Mapping[str, pa.Array]) -> dict[str, Any]:
    arrays = sample.requests.arrays
    request: dict[str, Any] = {}
    if rules["time"] is not None:
        moment = datetime.fromtimestamp(int(sample.times[place]) / 1000, UTC)
        request["time"] = moment.isoformat(timespec="milliseconds")
    for group in ("user", "context"):
        values = {
            name: raw_value(rule, arrays[f"{group}.{name}"][place], vocabularies)
            for name, rule in rules[group].items()
            if not rule.get("of_request")  # follows from the time
        }
        if values:
            request[group] = values
    for name, rule in rules["sequences"].items():
        length = int(arrays[f"sequence.{name}.{MASK}"][place].sum())
        request.setdefault("sequences", {})[name] = [
            {
                feature: raw_value(of, arrays[f"sequence.{name}.{feature}"][place, event], vocabularies)
                for feature, of in rule["features"].items()
            }
            for event in range(length)
        ]
    return request


def raw_value(rule: Mapping[str, Any], value: Any, vocabularies: Mapping[str, pa.Array]) -> Any:
    """Return a value that is encoded as an id or number."""
    if rule["kind"] == "dense" and rule["edges"] is None:
        numbers = np.asarray(value, np.float64)
        return _raw_or_missing(rule, numbers) if rule.get("indicator") else _raw_number(rule, numbers)
    number = int(value)
    if number == MISSING:
        return {"id": MISSING} if rule["kind"] == "dense" and not rule.get("indicator") else None
    if number >= FIRST_KNOWN and rule["kind"] == "categorical":
        if rule["ids"] == "numbers":
            return number - FIRST_KNOWN
        if rule["ids"] == "vocabulary":
            return vocabularies[rule["vocabulary"]][number - FIRST_KNOWN].as_py()
    return {"id": number}


def _raw_or_missing(rule: Mapping[str, Any], value: NDArray[np.float64]) -> Any:
    """Return numbers without their indicators, None for missing ones."""
    numbers, missing = np.split(value, 2)
    raw = _raw_number(rule, numbers)
    values = [None if is_missing else number for number, is_missing in zip(raw, missing > 0, strict=True)]
    return values[0] if rule["size"] == 1 else values


def _raw_number(rule: Mapping[str, Any], value: NDArray[np.float64]) -> Any:
    if rule["mean"] is not None:
        scaled = value * np.array(rule["deviation"]) + np.array(rule["mean"])
        value = scaled if value.ndim else scaled[0]
    if rule["log1p"]:
        value = np.copysign(np.expm1(np.abs(value)), value)
    return value.tolist()
