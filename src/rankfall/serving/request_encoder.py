"""Encode requests with raw values of users, contexts and events as the input arrays of models.

A request is ``{"time": ..., "user": {...}, "context": {...}, "sequences": {NAME: [{...}, ...]}}``. Values that are left
out are missing; the default time is now. Events are listed oldest first, each with its values or, which is faster, as
columns: ``{"sequences": {"history": {"video_id": [7, 8], "author_id": [1, 4]}}}``. Features of an item that an event
leaves out are those of the table of items, if the event has the id of an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._errors import RankfallError, did_you_mean
from rankfall.encoding import NOWHERE, UNSEEN, BadValueError, NumberedIds, TimePart, VocabularyIds, rule_from_json
from rankfall.serving.value_encoders import INTEGER_TEXT, Encoders, Times, bad_value, field_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from numpy.typing import NDArray

    from rankfall.encoding import Lookup
    from rankfall.serving.bundle_files import Items

    Request = Mapping[str, Any]
    Rows = NDArray[np.int64]  # positions of items in the table of a bundle
    Events = tuple[int, list[list[Any]], dict[str, list[int]]]  # see last_events

KEYS = ("time", "user", "context", "sequences")
GROUPS = ("user", "context")
_WITH_UNSEEN = NumberedIds, VocabularyIds  # rules with values that have no id, which were never seen in training
MASK = "mask"  # sequence.NAME.mask, beside the features of the events


class RequestError(RankfallError):
    """A request that cannot be answered; `request` is its index among the requests of a call."""

    def __init__(self, message: str, request: int) -> None:
        super().__init__(message)
        self.request = request


class RequestEncoder:
    """Validates requests and encodes them by the rules of a manifest.

    Args:
        rules: The entry ``request`` of the manifest.
        vocabularies: The vocabularies by embedding table.
        items: The items, whose features events may leave out.
    """

    def __init__(
        self, rules: Mapping[str, Any], vocabularies: Mapping[str, Lookup], items: Items | None = None
    ) -> None:
        self._groups = {group: _Group(group, rules[group], rules["ignored"], vocabularies) for group in GROUPS}
        self._sequences = {
            name: _Sequence(name, rule, vocabularies, items) for name, rule in rules["sequences"].items()
        }
        self._ignored = ignored_names(rules["ignored"], "sequence")
        self._times = Times(rules["time"]["unit"], rules["time"]["zone"]) if rules["time"] else None
        self.times = self._times or Times(None, "UTC")

    def encode(self, requests: Sequence[Request], *, name: Callable[[int], str]) -> dict[str, NDArray[Any]]:
        """Return the input arrays of requests.

        Args:
            requests: The requests.
            name: Returns the name of a request in error messages, from its index.

        Raises:
            RequestError: A request has unknown keys, or values that a feature does not accept.
        """
        for place, request in enumerate(requests):
            _check_keys(request, KEYS, (), name(place), place, "parts of a request")
        now = datetime.now(UTC)
        times = [now] * len(requests)
        if self._times is not None:
            try:
                times = self._times.read([now if (time := one.get("time")) is None else time for one in requests])
            except BadValueError as error:
                raise RequestError(f"{name(error.position)}.time: {error}", error.position) from None
        arrays: dict[str, NDArray[Any]] = {}
        for key, group in self._groups.items():
            for feature, values in group.encode([request.get(key) for request in requests], times, name).items():
                arrays[f"{key}.{feature}"] = values
        given = [{} if (part := request.get("sequences")) is None else part for request in requests]
        for place, sequences in enumerate(given):
            _check_keys(sequences, self._sequences, self._ignored, f"{name(place)}.sequences", place, "sequences")
        for key, sequence in self._sequences.items():
            arrays |= sequence.encode([sequences.get(key) for sequences in given], name)
        return arrays

    def notes(self, requests: Sequence[Request], arrays: Mapping[str, NDArray[Any]]) -> list[list[str]]:
        """Return remarks on each request: at most one per feature, for values that were never seen in training.

        Hashed values, times and numbers have no such values.

        Args:
            requests: The requests.
            arrays: Their input arrays, which :meth:`encode` returned.
        """
        notes: list[list[str]] = [[] for _ in requests]
        for key, group in self._groups.items():
            for feature in group.checked:
                unseen = arrays[f"{key}.{feature}"] == UNSEEN
                if np.count_nonzero(unseen):  # faster than any()
                    for place in np.flatnonzero(unseen).tolist():
                        value = requests[place][key][feature]
                        notes[place].append(f"{key}.{feature}: {shown(value)} was never seen in training")
        for key, sequence in self._sequences.items():
            for feature in sequence.checked:
                unseen = arrays[f"sequence.{key}.{feature}"] == UNSEEN
                if np.count_nonzero(unseen):  # faster than any()
                    for place in np.flatnonzero(unseen.any(axis=1)).tolist():
                        events = requests[place]["sequences"][key]
                        notes[place].append(sequence.note(feature, events, unseen[place]))
        return notes


def ignored_names(ignored: Iterable[str], group: str) -> list[str]:
    """Return the features of a group that requests may hold although no model uses them."""
    return [name.partition(".")[2] for name in ignored if name.startswith(f"{group}.")]


class _Group:
    """The features of users, or of contexts."""

    def __init__(
        self, group: str, rules: Mapping[str, Any], ignored: Iterable[str], vocabularies: Mapping[str, Lookup]
    ) -> None:
        parsed = {name: rule_from_json(rule, vocabularies) for name, rule in rules.items()}
        self._where = f".{group}"
        self.checked = [name for name, rule in parsed.items() if isinstance(rule, _WITH_UNSEEN)]
        self._encoders = Encoders(parsed)
        self._of_request = [name for name, rule in parsed.items() if isinstance(rule, TimePart) and rule.of_request]
        self._ignored = ignored_names(ignored, group)

    def encode(
        self, groups: Sequence[Any], times: Sequence[datetime], name: Callable[[int], str]
    ) -> dict[str, NDArray[Any]]:
        given = [{} if group is None else group for group in groups]
        for place, group in enumerate(given):
            _check_keys(group, self._encoders.names, self._ignored, name(place) + self._where, place, "features")
        columns = {feature: [group.get(feature) for group in given] for feature in self._encoders.names}

        def error_for(feature: str, error: BadValueError) -> RequestError:
            return RequestError(f"{name(error.position)}{self._where}.{feature}: {error}", error.position)

        for feature in self._of_request:
            for place, value in enumerate(columns[feature]):
                if value is not None:
                    expected = "nothing, because it is derived from `time`; remove it"
                    raise error_for(feature, bad_value(place, value, expected))
            columns[feature] = [*times]
        return self._encoders.encode(columns, error_for)


class _Sequence:
    """The features of the events of a sequence."""

    def __init__(
        self, name: str, rules: Mapping[str, Any], vocabularies: Mapping[str, Lookup], items: Items | None
    ) -> None:
        self._name = name
        self._max_length: int = rules["max_length"]
        parsed = {key: rule_from_json(rule, vocabularies) for key, rule in rules["features"].items()}
        self.checked = [name for name, rule in parsed.items() if isinstance(rule, _WITH_UNSEEN)]
        self._encoders = Encoders(parsed)
        self._items = items
        self._item: str | None = rules.get("item")  # the feature that is the id of an item
        known = [] if items is None or self._item is None else items.features
        self._filled = [key for key in parsed if f"item.{key}" in known and key != self._item]
        self._getters = [itemgetter(feature) for feature in self._encoders.names]
        self._ignored: list[str] = rules["ignored"]
        self._positions = np.arange(max(1, self._max_length))

    def encode(self, sequences: Sequence[Any], name: Callable[[int], str]) -> dict[str, NDArray[Any]]:
        """Return the ids of the last events, and the mask of real ones."""
        columns: dict[str, list[Any]] = {feature: [] for feature in self._encoders.names}
        lengths = [0] * len(sequences)  # before the first events are dropped
        left_out: dict[str, list[int]] = {}
        for place, events in enumerate(sequences):
            if events is None:
                continue
            lengths[place], last, lacking = self._columns(events, f"{name(place)}.sequences.{self._name}", place)
            for feature, positions in lacking.items():
                start = len(columns[feature])
                left_out.setdefault(feature, []).extend(start + position for position in positions)
            for column, values in zip(columns.values(), last, strict=True):
                column += values
        kept = [min(length, self._max_length) for length in lengths]

        def error_for(feature: str, error: BadValueError) -> RequestError:
            where, request = self._event(error.position, lengths, kept)
            return RequestError(f"{name(request)}.{where}.{feature}: {error}", request)

        longest = max(1, *kept, 0)
        mask = self._positions[:longest] < np.array(kept)[:, None]
        is_full = sum(kept) == mask.size  # without padding
        arrays: dict[str, NDArray[Any]] = {f"sequence.{self._name}.{MASK}": mask}
        all_encoded = self._encoders.encode(columns, error_for)
        for feature, positions in left_out.items():
            self._fill(all_encoded[feature], feature, columns, positions)
        for feature, encoded in all_encoded.items():
            ids = encoded.reshape(mask.shape) if is_full else np.zeros(mask.shape, np.int32)
            if not is_full:
                ids[mask] = encoded
            arrays[f"sequence.{self._name}.{feature}"] = ids
        return arrays

    def _fill(
        self, encoded: NDArray[Any], feature: str, columns: Mapping[str, list[Any]], positions: Sequence[int]
    ) -> None:
        """Set a feature that some events leave out to that of their items, if the bundle has them."""
        assert self._items is not None  # otherwise no feature is filled
        assert self._item is not None
        rows = self._items.find([columns[self._item][position] for position in positions])
        known = rows != NOWHERE
        encoded[np.array(positions)[known]] = self._items.gather(f"item.{feature}", rows[known])

    def note(self, feature: str, events: Any, unseen: NDArray[np.bool_]) -> str:
        """Return a remark on the events of a request whose value of a feature was never seen in training."""
        _, columns, _ = self._columns(events, "", 0)
        values = columns[list(self._encoders.names).index(feature)]
        first = values[int(unseen.argmax())]
        example = "" if first is None else f", such as {shown(first)}"
        count = f"{int(unseen.sum())} of {len(values)} events"
        return f"sequences.{self._name}.{feature}: {count} have a value that was never seen in training{example}"

    def _event(self, position: int, lengths: Sequence[int], kept: Sequence[int]) -> tuple[str, int]:
        """Return the name of the event at a position among the kept ones, and the index of its request."""
        starts = np.cumsum(kept) - np.array(kept)
        request = int(np.searchsorted(starts, position, side="right")) - 1
        event = position - starts[request] + lengths[request] - kept[request]
        return f"sequences.{self._name}[{event}]", request

    def _columns(self, events: Any, where: str, place: int) -> Events:
        if type(events) is list:  # the usual case: all features and no other key
            last = events[-self._max_length :]
            if set(map(type, last)) == {dict} and set(map(len, last)) == {len(self._getters)}:
                try:
                    return len(events), [list(map(get, last)) for get in self._getters], {}
                except KeyError:
                    pass

        def check(names: Any) -> None:
            _check_keys(names, self._encoders.names, self._ignored, where, place, "events")

        return last_events(events, self._encoders.names, self._max_length, self._filled, check, where, place)


def last_events(
    events: Any,
    names: Collection[str],
    most: int,
    filled: Collection[str],
    check: Callable[[Mapping[str, Any]], object],
    where: str,
    place: int,
) -> Events:
    """Return the number of events, the values of each feature of the last ones, and which of these are left out.

    A value that is left out may be filled with that of the item. A value that is None is missing.

    Args:
        events: A list of events, or their columns.
        names: The features to return.
        most: The largest number of events to return.
        filled: The features of which those that events leave out are returned.
        check: Receives all names of features that the events have.
        where: The place of the events in messages.
        place: The index of the request.

    Raises:
        RequestError: If they are no events.
    """
    if isinstance(events, Mapping):
        check(events)
        lengths = set()
        for feature, values in events.items():
            if not isinstance(values, list | tuple | np.ndarray):
                raise _wrong(f"{where}.{feature}", values, "a list with a value for each event", place)
            lengths.add(len(values))
        if len(lengths) > 1:
            raise RequestError(f"{where}: found columns of {sorted(lengths)} events, expected one length", place)
        length = lengths.pop() if lengths else 0
        kept = min(length, most)
        found = [_last(events[feature], kept) if feature in events else [None] * kept for feature in names]
        return length, found, {name: list(range(kept)) for name in filled if name not in events} if kept else {}
    if not isinstance(events, list | tuple):
        raise _wrong(where, events, "a list of events", place)
    last = events[-most:]
    if not all(isinstance(event, Mapping) for event in last):
        at = next(i for i, event in enumerate(last) if not isinstance(event, Mapping))
        raise _wrong(f"{where}[{len(events) - len(last) + at}]", last[at], "an event with features by name", place)
    check(dict.fromkeys(set[str]().union(*last)))
    lacking = {name: [at for at, event in enumerate(last) if name not in event] for name in filled}
    values = [[event.get(feature) for event in last] for feature in names]
    return len(events), values, {name: positions for name, positions in lacking.items() if positions}


def _last(values: Any, kept: int) -> list[Any]:
    last = values[len(values) - kept :]
    return last.tolist() if isinstance(last, np.ndarray) else list(last)


# --- errors -------------------------------------------------------------------------------------------------------


def _check_keys(given: Any, known: Iterable[str], ignored: Iterable[str], where: str, place: int, what: str) -> None:
    """Refuse anything but a mapping with allowed keys."""
    if not isinstance(given, Mapping):
        raise _wrong(where, given, f"{what} by name", place)
    for key in given:
        if key not in known and key not in ignored:
            allowed = [*known, *ignored]
            hint = did_you_mean(key, allowed) if isinstance(key, str) else ""
            takes = f"allowed are {', '.join(allowed)}" if allowed else "there are none"
            raise RequestError(f"{field_of(where, key)}: found {shown(key)}{hint}; {takes}", place)


def _wrong(where: str, found: object, expected: str, place: int) -> RequestError:
    return RequestError(f"{where}: found {shown(found)}, expected {expected}", place)


NO_ITEM = -1  # in rows
_MOST_PADDED = 2**20  # candidates of all requests that are ranked at once, padding included


@dataclass(frozen=True, slots=True)
class EncodedRequests:
    """Validated requests, ready for the models. Items are given as rows of the bundle's table.

    Attributes:
        arrays: The inputs of the models by name, one row per request: ``user.age`` (B,), ``sequence.history.video_id``
            and ``sequence.history.mask`` (B, L).
        k: The number of items to return for each request.
        candidates: The items to rank for each request, distinct and without excluded ones; None for all items.
        exclude: The items that must not be returned.
        given: The candidates as given, -1 for those that the bundle does not have.
        unknown: The ids of these.
        notes: Remarks on each request, such as values that were never seen in training.
    """

    arrays: dict[str, NDArray[Any]]
    k: Rows
    candidates: list[Rows | None]
    exclude: list[Rows]
    given: list[Rows | None]
    unknown: list[list[int | str]]
    notes: list[list[str]]

    @classmethod
    def with_candidates(cls, arrays: dict[str, NDArray[Any]], candidates: Sequence[Rows], k: int) -> EncodedRequests:
        """Return requests that rank distinct candidates and exclude nothing."""
        count = len(candidates)
        nothing = [np.empty(0, np.int64)] * count
        none: tuple[list[list[Any]], ...] = ([[] for _ in range(count)], [[] for _ in range(count)])
        return cls(arrays, np.full(count, k), [*candidates], nothing, [*candidates], *none)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.k)

    def take(self, places: Sequence[int] | Rows) -> EncodedRequests:
        """Return the requests at these indices."""
        places = np.asarray(places, np.int64)  # an empty list has no integer type
        arrays = {name: array[places] for name, array in self.arrays.items()}
        lists = ([getattr(self, name)[place] for place in places] for name in _LISTS)
        return EncodedRequests(arrays, self.k[places], *lists)

    def without_candidates(self) -> EncodedRequests:
        """Return the same requests for all items."""
        nothing: list[Rows | None] = [None] * len(self)
        return replace(self, candidates=nothing, given=nothing, unknown=[[] for _ in range(len(self))])

    @classmethod
    def join(cls, parts: Sequence[EncodedRequests]) -> EncodedRequests:
        """Concatenate requests; shorter sequences are padded."""
        arrays = {name: stacked([part.arrays[name] for part in parts], 0) for name in parts[0].arrays}
        lists = ([one for part in parts for one in getattr(part, name)] for name in _LISTS)
        return cls(arrays, np.concatenate([part.k for part in parts]), *lists)


_LISTS = ("candidates", "exclude", "given", "unknown", "notes")  # the fields with one entry per request


def stacked(arrays: Sequence[NDArray[Any]], fill: float) -> NDArray[Any]:
    """Concatenate arrays (B, ...) along the first dimension; rows that are shorter than others are filled."""
    widths = {array.shape[1:2] for array in arrays}
    if len(widths) == 1:
        return np.concatenate(arrays)
    joined = np.full((sum(map(len, arrays)), *max(widths)), fill, arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return joined


def padded(lists: Sequence[Rows | None]) -> Rows:
    """Return lists of rows as one array (B, N) with -1 after the shorter ones; None is an empty list."""
    given = [np.empty(0, np.int64) if rows is None else rows for rows in lists]
    lengths = np.array([len(rows) for rows in given])
    rows = np.full((len(lists), max(1, lengths.max())), NO_ITEM, np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = np.concatenate(given)
    return rows


def parts_of(lists: Sequence[Rows | None]) -> list[list[int]]:
    """Return the indices of requests to compute together: those without a list, and lists of similar length."""
    parts = [without] if (without := [place for place, rows in enumerate(lists) if rows is None]) else []
    lengths = {place: len(rows) for place, rows in enumerate(lists) if rows is not None}
    if len(lengths) * max(lengths.values(), default=0) <= _MOST_PADDED:
        return [*parts, list(lengths)] if lengths else parts
    part: list[int] = []
    for place in sorted(lengths, key=lambda place: lengths[place]):
        if part and (len(part) + 1) * lengths[place] > _MOST_PADDED:
            parts.append(part)
            part = []
        part.append(place)
    return [*parts, part]


def distinct(rows: Rows, excluded: Rows) -> Rows:
    """Return every known row once, in the order of first occurrence, without excluded ones."""
    rows = rows[rows != NO_ITEM]
    _, first = np.unique(rows, return_index=True)
    rows = rows[np.sort(first)]
    left: Rows = rows[~np.isin(rows, excluded)]
    return left


_WHOLE = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_TEXT = {"type": "string"}
_BOOLEAN = {"type": "boolean"}
_NULL = {"type": "null"}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_TIMES = -62_000_000_000, 253_000_000_000  # seconds since 1970, in the years 5 to 9987, which have a date in every zone


def request_schema(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a request.

    Args:
        rules: The entry ``request`` of the manifest.
    """
    sequences = {name: _sequence(rule) for name, rule in rules["sequences"].items()}
    parts: dict[str, Any] = {"time": {"anyOf": [*_times((rules["time"] or {}).get("unit")), _NULL]}}
    for group in GROUPS:
        features = {name: feature_schema(rule) for name, rule in rules[group].items()}
        needed = [name for name, rule in rules[group].items() if _is_needed(rule)]
        parts[group] = object_schema(features, needed, ignored_names(rules["ignored"], group))
    parts["sequences"] = object_schema(sequences, [], ignored_names(rules["ignored"], "sequence"))
    return object_schema(parts, [group for group in GROUPS if parts[group].get("required")])


def feature_schema(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a feature from its rule."""
    if rule["kind"] == "dense":
        number: dict[str, Any] = {"type": "number"}
        if rule["size"] > 1:
            number = {"type": "array", "items": number, "minItems": rule["size"], "maxItems": rule["size"]}
        kinds = [number, *([] if _is_needed(rule) else [_NULL])]
    else:
        kinds = [*_values(rule), _NULL]
    if rule["rows"]:
        about = {"description": "the row of an embedding table"}
        kinds.append(
            object_schema({"id": {"type": "integer", "minimum": 0, "maximum": rule["rows"] - 1, **about}}, ["id"])
        )
    return {"anyOf": kinds}


def _values(rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    if rule["kind"] == "time":
        return [] if rule["of_request"] else _times(rule["unit"])  # it follows from the time of the request
    if rule["ids"] == "numbers":
        return [{**_WHOLE, "minimum": 0}, _BOOLEAN]
    if rule["ids"] == "hash" and rule["text"] is False:
        return [{**_TEXT, "pattern": f"^({INTEGER_TEXT.pattern})$"}, _WHOLE, _BOOLEAN]
    if rule["ids"] == "hash" or rule["text"]:
        return [_TEXT, _WHOLE, _BOOLEAN]
    return [_WHOLE, _BOOLEAN]


def _times(unit: str | None) -> list[dict[str, Any]]:
    numbers = []
    if unit is not None:
        first, last = (_PER_SECOND[unit] * seconds for seconds in _TIMES)
        numbers = [{"type": "integer", "minimum": first, "maximum": last, "description": f"{unit} since 1970"}]
    return [{"type": "string", "format": "date-time"}, *numbers]


def _sequence(rule: Mapping[str, Any]) -> dict[str, Any]:
    features = {name: feature_schema(of) for name, of in rule["features"].items()}
    needed = [name for name, of in rule["features"].items() if _is_needed(of)]
    lists = {name: {"type": "array", "items": features.get(name, {})} for name in (*features, *rule["ignored"])}
    columns = object_schema(lists, [])
    if needed:  # without any column there are no events
        columns["dependentRequired"] = dict.fromkeys(lists, needed)
    kept = f"the last {rule['max_length']} are used"
    return {
        "anyOf": [
            {
                "type": "array",
                "items": object_schema(features, needed, rule["ignored"]),
                "description": f"oldest first; {kept}",
            },
            {**columns, "description": f"one column per feature, all of the same length; {kept}"},
            _NULL,
        ]
    }


def _is_needed(rule: Mapping[str, Any]) -> bool:
    return rule["kind"] == "dense" and rule["missing"] is None


def object_schema(
    properties: Mapping[str, Any], required: Sequence[str], ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the schema of an object that has no other properties; ignored ones may have any value."""
    content = {"type": "object", "properties": {**properties, **{name: {} for name in ignored}}}
    return {**content, "additionalProperties": False, **({"required": required} if required else {})}
