"""Encode requests with raw values of users, contexts and events as the input arrays of models.

A request is ``{"time": ..., "user": {...}, "context": {...}, "sequences": {NAME: [{...}, ...]}}``. Values that are left
out are missing; the default time is now. Events are listed oldest first, each with its values or, which is faster, as
columns: ``{"sequences": {"history": {"video_id": [7, 8], "author_id": [1, 4]}}}``. Features of an item that an event
leaves out are those of the table of items, if the event has the id of an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._suggestions import did_you_mean
from rankfall.encoding import UNSEEN, BadValueError, NumberedIds, TimePart, VocabularyIds, rule_from_json
from rankfall.encoding.lookup import NOWHERE
from rankfall.serving.value_checks import bad_value, field_of, shown
from rankfall.serving.value_encoders import Encoders, Times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from rankfall.encoding import Rule
    from rankfall.encoding.lookup import Lookup
    from rankfall.serving.bundle_items import Items

    Request = Mapping[str, Any]

KEYS = ("time", "user", "context", "sequences")
GROUPS = ("user", "context")
MASK = "mask"  # sequence.NAME.mask, beside the features of the events


class RequestError(ValueError):
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
        times = self._request_times(requests, name)
        arrays: dict[str, NDArray[Any]] = {}
        for key, group in self._groups.items():
            for feature, values in group.encode([request.get(key) for request in requests], times, name).items():
                arrays[f"{key}.{feature}"] = values
        given = [_or_empty(request.get("sequences")) for request in requests]
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

    def _request_times(self, requests: Sequence[Request], name: Callable[[int], str]) -> list[datetime]:
        now = datetime.now(UTC)
        if self._times is None:
            return [now] * len(requests)
        given = [request.get("time") for request in requests]
        try:
            return self._times.read([now if time is None else time for time in given])
        except BadValueError as error:
            raise RequestError(f"{name(error.position)}.time: {error}", error.position) from None


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
        self.checked = _with_unseen(parsed)
        self._encoders = Encoders(parsed)
        self._of_request = [name for name, rule in parsed.items() if isinstance(rule, TimePart) and rule.of_request]
        self._ignored = ignored_names(ignored, group)

    def encode(
        self, groups: Sequence[Any], times: Sequence[datetime], name: Callable[[int], str]
    ) -> dict[str, NDArray[Any]]:
        given = [_or_empty(group) for group in groups]
        for place, group in enumerate(given):
            _check_keys(group, self._encoders.names, self._ignored, name(place) + self._where, place, "features")
        columns = {feature: [group.get(feature) for group in given] for feature in self._encoders.names}

        def error_for(feature: str, error: BadValueError) -> RequestError:
            return RequestError(f"{name(error.position)}{self._where}.{feature}: {error}", error.position)

        for feature in self._of_request:
            try:
                columns[feature] = [_or_time(place, columns[feature][place], time) for place, time in enumerate(times)]
            except BadValueError as error:
                raise error_for(feature, error) from None
        return self._encoders.encode(columns, error_for)


def _or_time(place: int, value: Any, time: datetime) -> Any:
    """Return the time of a request for a feature that is derived from it."""
    if value is None:
        return time
    raise bad_value(place, value, "nothing, because it is derived from `time`; remove it")


class _Sequence:
    """The features of the events of a sequence."""

    def __init__(
        self, name: str, rules: Mapping[str, Any], vocabularies: Mapping[str, Lookup], items: Items | None
    ) -> None:
        self._name = name
        self._max_length: int = rules["max_length"]
        parsed = {key: rule_from_json(rule, vocabularies) for key, rule in rules["features"].items()}
        self.checked = _with_unseen(parsed)
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

    def _columns(self, events: Any, where: str, place: int) -> tuple[int, list[list[Any]], dict[str, list[int]]]:
        """Return the number of events, the values of each feature of the last ones, and which of these are left out.

        A value that is left out may be filled with that of the item. A value that is None is missing.
        """
        if isinstance(events, Mapping):
            return self._given_columns(events, where, place)
        if not isinstance(events, list | tuple):
            raise _wrong(where, events, "a list of events", place)
        last = events[-self._max_length :]
        if set(map(type, last)) == {dict} and set(map(len, last)) == {len(self._getters)}:
            try:  # the usual case: all features and no other key
                return len(events), [list(map(get, last)) for get in self._getters], {}
            except KeyError:
                pass
        if not all(isinstance(event, Mapping) for event in last):
            at = next(i for i, event in enumerate(last) if not isinstance(event, Mapping))
            raise _wrong(f"{where}[{len(events) - len(last) + at}]", last[at], "an event with features by name", place)
        keys: set[str] = set().union(*last)
        _check_keys(dict.fromkeys(keys), self._encoders.names, self._ignored, where, place, "events")
        values = [[event.get(feature) for event in last] for feature in self._encoders.names]
        lacking = {name: [at for at, event in enumerate(last) if name not in event] for name in self._filled}
        return len(events), values, {name: positions for name, positions in lacking.items() if positions}

    def _given_columns(
        self, columns: Mapping[str, Any], where: str, place: int
    ) -> tuple[int, list[list[Any]], dict[str, list[int]]]:
        _check_keys(columns, self._encoders.names, self._ignored, where, place, "events")
        lengths = set()
        for feature, values in columns.items():
            if not isinstance(values, list | tuple | np.ndarray):
                raise _wrong(f"{where}.{feature}", values, "a list with a value for each event", place)
            lengths.add(len(values))
        if len(lengths) > 1:
            raise RequestError(f"{where}: found columns of {sorted(lengths)} events, expected one length", place)
        length = lengths.pop() if lengths else 0
        kept = min(length, self._max_length)
        found = [
            _last(columns[feature], kept) if feature in columns else [None] * kept for feature in self._encoders.names
        ]
        lacking = {name: list(range(kept)) for name in self._filled if name not in columns}
        return length, found, lacking if kept else {}


def _with_unseen(rules: Mapping[str, Rule]) -> list[str]:
    """Return the features that have values without an id, which count as never seen in training."""
    return [name for name, rule in rules.items() if isinstance(rule, NumberedIds | VocabularyIds)]


def _or_empty(part: Any) -> Any:
    return {} if part is None else part


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
