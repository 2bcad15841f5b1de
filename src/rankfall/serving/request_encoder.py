"""Requests with the raw values of users, contexts and events, as arrays that models take.

A request is ``{"time": ..., "user": {...}, "context": {...}, "sequences": {NAME: [{...}, ...]}}``. What is left out is
missing, and the time is now. Events come oldest first, each with its values or, which is faster, as columns:
``{"sequences": {"history": {"video_id": [7, 8], "author_id": [1, 4]}}}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._suggest import did_you_mean
from rankfall.serving.value_checks import BadValueError, field_of, shown
from rankfall.serving.value_encoders import Encoders, Times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from rankfall.serving.lookup import Lookup

    Request = Mapping[str, Any]
    Rows = NDArray[np.int64]  # where items stand in the table of the bundle

KEYS = ("time", "user", "context", "sequences")
GROUPS = ("user", "context")
MASK = "mask"  # sequence.NAME.mask, beside the features of the events


class RequestError(ValueError):
    """A request that cannot be answered; `request` is its number among those that came together."""

    def __init__(self, message: str, request: int) -> None:
        super().__init__(message)
        self.request = request


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that were checked, ready for the models.

    `arrays` has the inputs of the models by name, one row a request: ``user.age`` (B,), ``sequence.history.video_id``
    and ``sequence.history.mask`` (B, L). Items are rows of the bundle's table.
    """

    arrays: dict[str, NDArray[Any]]
    k: Rows  # how many items each request wants
    candidates: list[Rows | None]  # what may be ranked, None: everything
    exclude: list[Rows]  # what may not
    unknown: list[list[int | str]]  # candidates that the bundle does not have

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.k)

    def take(self, places: Sequence[int] | Rows) -> Batch:
        """Some of the requests."""
        places = np.asarray(places, np.int64)  # which may be none
        return Batch(
            {name: array[places] for name, array in self.arrays.items()},
            self.k[places],
            [self.candidates[place] for place in places],
            [self.exclude[place] for place in places],
            [self.unknown[place] for place in places],
        )

    def part(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """The inputs of requests that follow one another."""
        return {name: array[start:stop] for name, array in self.arrays.items()}

    def open(self) -> Batch:
        """The same requests, without the candidates that they came with."""
        return replace(self, candidates=[None] * len(self))

    @classmethod
    def join(cls, batches: Sequence[Batch]) -> Batch:
        """Requests that came separately as one batch."""
        names = batches[0].arrays
        return cls(
            {name: _concatenate([batch.arrays[name] for batch in batches], name) for name in names},
            np.concatenate([batch.k for batch in batches]),
            [rows for batch in batches for rows in batch.candidates],
            [rows for batch in batches for rows in batch.exclude],
            [ids for batch in batches for ids in batch.unknown],
        )


def padded(lists: Sequence[Rows | None]) -> Rows:
    """Lists of rows as one array, -1 behind the shorter ones; None is an empty list."""
    given = [np.empty(0, np.int64) if rows is None else rows for rows in lists]
    lengths = np.array([len(rows) for rows in given])
    rows = np.full((len(lists), max(1, lengths.max())), -1, np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = np.concatenate(given)
    return rows


def _concatenate(parts: Sequence[NDArray[Any]], name: str) -> NDArray[Any]:
    if not name.startswith("sequence.") or len({part.shape[1] for part in parts}) == 1:
        return np.concatenate(parts)
    longest = max(part.shape[1] for part in parts)
    joined = np.zeros((sum(map(len, parts)), longest), parts[0].dtype)
    start = 0
    for part in parts:
        joined[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return joined


class RequestEncoder:
    """Checks requests and makes arrays of them, by the rules of a manifest."""

    def __init__(self, rules: Mapping[str, Any], vocabularies: Mapping[str, Lookup]) -> None:
        self._groups = {group: _Group(f".{group}", rules[group], rules["ignored"], vocabularies) for group in GROUPS}
        self._sequences = {name: _Sequence(name, rule, vocabularies) for name, rule in rules["sequences"].items()}
        self._ignored = {name.partition(".")[2] for name in rules["ignored"] if name.startswith("sequence.")}
        self._time = Times("hour", rules["time"]["unit"], rules["time"]["zone"]) if rules["time"] else None

    def encode(self, requests: Sequence[Request], *, name: Callable[[int], str]) -> dict[str, NDArray[Any]]:
        """The arrays of requests; `name` says what errors call each of them."""
        for place, request in enumerate(requests):
            _check_keys(request, KEYS, (), name(place), place, "parts of a request")
        times = self._times(requests, name)
        arrays: dict[str, NDArray[Any]] = {}
        for key, group in self._groups.items():
            for feature, values in group.encode([request.get(key) for request in requests], times, name).items():
                arrays[f"{key}.{feature}"] = values
        given = [_or_nothing(request.get("sequences")) for request in requests]
        for place, sequences in enumerate(given):
            _check_keys(sequences, self._sequences, self._ignored, f"{name(place)}.sequences", place, "sequences")
        for key, sequence in self._sequences.items():
            arrays |= sequence.encode([sequences.get(key) for sequences in given], name)
        return arrays

    def _times(self, requests: Sequence[Request], name: Callable[[int], str]) -> list[datetime]:
        """When the requests were made, which is now if they do not say."""
        now = datetime.now(UTC)
        if self._time is None:
            return [now] * len(requests)
        given = [request.get("time") for request in requests]
        try:
            return self._time.moments([now if time is None else time for time in given])
        except BadValueError as error:
            raise RequestError(f"{name(error.place)}.time: {error}", error.place) from None


class _Group:
    """The features of users, or of contexts."""

    def __init__(
        self, where: str, rules: Mapping[str, Any], ignored: Iterable[str], vocabularies: Mapping[str, Lookup]
    ) -> None:
        self._where = where
        self._encode = Encoders(rules, vocabularies)
        self._of_request = {name for name, rule in rules.items() if rule["kind"] == "time" and rule["of_request"]}
        self._ignored = {name.partition(".")[2] for name in ignored if name.startswith(f"{where[1:]}.")}

    def encode(
        self, groups: Sequence[Any], times: Sequence[datetime], name: Callable[[int], str]
    ) -> dict[str, NDArray[Any]]:
        given = [_or_nothing(group) for group in groups]
        for place, group in enumerate(given):
            _check_keys(group, self._encode.names, self._ignored, name(place) + self._where, place, "features")
        columns = {feature: [group.get(feature) for group in given] for feature in self._encode.names}

        def wrong(feature: str, error: BadValueError) -> RequestError:
            return RequestError(f"{name(error.place)}{self._where}.{feature}: {error}", error.place)

        for feature in self._of_request:
            try:
                columns[feature] = [_or_time(columns[feature], place, time) for place, time in enumerate(times)]
            except BadValueError as error:
                raise wrong(feature, error) from None
        return self._encode(columns, wrong)


def _or_time(values: Sequence[Any], place: int, time: datetime) -> Any:
    """The time of a request, for what follows from it; or an id, which needs no time."""
    value = values[place]
    if value is None or isinstance(value, Mapping):
        return time if value is None else value
    raise BadValueError(place, value, "nothing, as it follows from the time of the request")


class _Sequence:
    """What users did before."""

    def __init__(self, name: str, rule: Mapping[str, Any], vocabularies: Mapping[str, Lookup]) -> None:
        self._name = name
        self._max_length: int = rule["max_length"]
        self._encode = Encoders(rule["features"], vocabularies)
        self._getters = [itemgetter(feature) for feature in self._encode.names]
        self._ignored: list[str] = rule["ignored"]
        self._places = np.arange(max(1, self._max_length))

    def encode(self, sequences: Sequence[Any], name: Callable[[int], str]) -> dict[str, NDArray[Any]]:
        """Ids of the last events, and which of them are real."""
        columns: dict[str, list[Any]] = {feature: [] for feature in self._encode.names}
        lengths = [0] * len(sequences)  # as they came
        for place, events in enumerate(sequences):
            if events is None:
                continue
            lengths[place], last = self._columns(events, f"{name(place)}.sequences.{self._name}", place)
            for column, values in zip(columns.values(), last, strict=True):
                column += values
        kept = [min(length, self._max_length) for length in lengths]

        def wrong(feature: str, error: BadValueError) -> RequestError:
            where, request = self._where(error.place, lengths, kept)
            return RequestError(f"{name(request)}.{where}.{feature}: {error}", request)

        longest = max(1, *kept, 0)
        mask = self._places[:longest] < np.array(kept)[:, None]
        whole = sum(kept) == mask.size  # so that nothing has to be padded
        arrays: dict[str, NDArray[Any]] = {f"sequence.{self._name}.{MASK}": mask}
        for feature, found in self._encode(columns, wrong).items():
            ids = found.reshape(mask.shape) if whole else np.zeros(mask.shape, np.int32)
            if not whole:
                ids[mask] = found
            arrays[f"sequence.{self._name}.{feature}"] = ids
        return arrays

    def _where(self, place: int, lengths: Sequence[int], kept: Sequence[int]) -> tuple[str, int]:
        """The event at a place among those that count, and the number of its request."""
        starts = np.cumsum(kept) - np.array(kept)
        request = int(np.searchsorted(starts, place, side="right")) - 1
        event = place - starts[request] + lengths[request] - kept[request]
        return f"sequences.{self._name}[{event}]", request

    def _columns(self, events: Any, where: str, place: int) -> tuple[int, list[list[Any]]]:
        """How many events there are, and of the last ones the values of each feature."""
        if isinstance(events, Mapping):
            return self._given_columns(events, where, place)
        if not isinstance(events, list | tuple):
            raise _wrong(where, events, "a list of events", place)
        last = events[-self._max_length :]
        if set(map(type, last)) == {dict} and set(map(len, last)) == {len(self._getters)}:
            try:  # most events have all features and nothing else
                return len(events), [list(map(get, last)) for get in self._getters]
            except KeyError:
                pass
        if not all(isinstance(event, Mapping) for event in last):
            at = next(i for i, event in enumerate(last) if not isinstance(event, Mapping))
            raise _wrong(f"{where}[{len(events) - len(last) + at}]", last[at], "an event with features by name", place)
        keys: set[str] = set().union(*last)
        _check_keys(dict.fromkeys(keys), self._encode.names, self._ignored, where, place, "events")
        return len(events), [[event.get(feature) for event in last] for feature in self._encode.names]

    def _given_columns(self, columns: Mapping[str, Any], where: str, place: int) -> tuple[int, list[list[Any]]]:
        _check_keys(columns, self._encode.names, self._ignored, where, place, "events")
        lengths = set()
        for feature, values in columns.items():
            if not isinstance(values, list | tuple | np.ndarray):
                raise _wrong(f"{where}.{feature}", values, "a list with a value for each event", place)
            lengths.add(len(values))
        if len(lengths) > 1:
            raise RequestError(f"{where}: found columns of {sorted(lengths)} events, expected one length", place)
        length = lengths.pop() if lengths else 0
        kept = min(length, self._max_length)
        return length, [
            _as_list(columns[feature], kept) if feature in columns else [None] * kept for feature in self._encode.names
        ]


def _or_nothing(part: Any) -> Any:
    return {} if part is None else part


def _as_list(values: Any, kept: int) -> list[Any]:
    last = values[len(values) - kept :]
    return last.tolist() if isinstance(last, np.ndarray) else list(last)


# --- what is wrong ------------------------------------------------------------------------------------------------


def _check_keys(given: Any, known: Iterable[str], ignored: Iterable[str], where: str, place: int, what: str) -> None:
    """Refuse what is no mapping, and keys that mean nothing."""
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
