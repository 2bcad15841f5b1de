"""Parity of training and serving: what a log has of a request is what the model that answered it received.

A share of the requests is encoded again by the bundle that answered them, and their items are scored again. Scores must
be those that were served. Ids and numbers that the log is going to have must be those that the bundle received.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.encoding import hash_values
from rankfall.data.impressions.items import from_arrow
from rankfall.data.impressions.spec import Time
from rankfall.encoding import FIRST_KNOWN, NOWHERE, UNSEEN, Buckets, Numbers, VocabularyIds, rule_from_json
from rankfall.online.window_records import CLIENT_PARITY, PARITY
from rankfall.serving.request_encoder import NO_ITEM, RequestError
from rankfall.storage.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import Group
    from rankfall.data.sources.rows.log_state import LogState
    from rankfall.encoding import Lookup, Rule
    from rankfall.online.day_rows import RowLayout
    from rankfall.online.request_columns import BundleFinder
    from rankfall.online.window_records import Reasons
    from rankfall.serving.bundle import Bundle

    Values = NDArray[Any]

TOLERANCE = 1e-4  # of scores and numbers, relative to those above 1; of scores, to the largest of the request
_SEED = 20  # of the hashes that choose requests, which are others than those of samples
_AT_ONCE = 64  # requests
_PLACE = "\1place"


class ParityError(RankfallError):
    """More requests than allowed for which training and serving differ."""


class DifferenceError(Exception):
    """Requests whose features differ; the rows of a day have to be written again without them."""


class ParityCheck:
    """Checks a share of the requests of a day. Requests that differ are set apart.

    A difference counts towards the limit only if the log's value comes from the request itself or from the table of
    items. Features of the table of users, and histories that the log makes of its own feedback, differ whenever a
    client sends something else: such requests are set apart, but no number of them may stop the loop.

    Args:
        share: The share of the requests.
        limit: The largest share of the checked requests that may differ.
        finder: Finds the bundles that answered.
        layout: The columns of the log.
        is_new: Whether the log is new, so that its vocabularies and scalings are not those of the models.

    Attributes:
        different: Reason and detail of requests that differ. Those of an earlier attempt are set apart again.
        is_repeated: Whether there was one. Then features are not compared once more: histories that lack events of
            requests that are set apart would differ, too.
    """

    def __init__(self, share: float, limit: float, finder: BundleFinder, layout: RowLayout, *, is_new: bool) -> None:
        self._share, self._limit = share, limit
        self._finder = finder
        self._is_new = is_new
        # without columns of several features, of which a client may send several values
        self._from_body = {".".join(column.fields[0]) for column in layout.requests if len(column.fields) == 1}
        self._from_body |= {
            f"{group}.{name}"
            for group, name, feature in layout.spec.features
            if isinstance(feature, Time) and feature.column is None
        }
        self._own_sequences = {name for name, one in layout.spec.sequences.items() if one.columns is None}
        self._chosen: dict[str, tuple[str, str, str]] = {}  # model, bundle and body by request
        self._open: set[str] = set()  # chosen ones that have not been inspected
        self.different: dict[str, tuple[str, str]] = {}
        self.is_repeated = False
        self._found_some = False  # with other features
        self.not_compared: set[str] = set()

    @property
    def checked(self) -> int:
        """The number of requests that were checked."""
        return len(self._chosen)

    def check_scores(self, samples: pl.DataFrame) -> Reasons:
        """Score the items of some of the samples again; return those that differ.

        Raises:
            ValueError: If a bundle is missing.
        """
        if not self._share:
            return {}
        shares = hash_values(samples["request"], _SEED).astype(np.float64) / 2.0**64
        is_chosen = pl.Series(shares < self._share) & (samples["item"].list.len() > 0)
        chosen = samples.with_row_index(_PLACE).filter(is_chosen)
        found: Reasons = {}
        for model, of_model in sorted(chosen.group_by("model"), key=lambda group: str(group[0])):
            for part in of_model.iter_slices(_AT_ONCE):
                bundle = self._finder.find(str(model[0]), part["bundle"][0])
                for record, scores in _scored(bundle, part):
                    why = scores if isinstance(scores, str) else _difference_of_scores(bundle, record, scores)
                    if why is not None:
                        reason = CLIENT_PARITY if isinstance(scores, str) else PARITY
                        self.different[record["request"]] = reason, why
        for place, request, *rest in chosen.select(_PLACE, "request", "model", "bundle", "body").rows():
            self._chosen[request] = (rest[0], rest[1], rest[2])
            if request in self.different:
                found[place] = self.different[request]
            elif not self.is_repeated:
                self._open.add(request)
        return found

    def check_limit(self) -> None:
        """Check that not more requests differ than allowed.

        Raises:
            ParityError: If more do.
        """
        ours = {request: why for request, (reason, why) in self.different.items() if reason == PARITY}
        if len(ours) > self._limit * self.checked:
            request = min(ours)
            raise ParityError(
                f"parity: {len(ours):,} of {self.checked:,} checked requests ({len(ours) / self.checked:.1%}) differ "
                f"between training and serving, and {self._limit:.1%} may, such as request {request!r}: "
                f"{ours[request]}. Nothing of the day was written. Join with the table of items, and with the bundles, "
                "as they were when the service answered; or set all requests that differ apart, with --parity-limit 1"
            )

    def inspect(self, impressions: pa.Table, state: LogState) -> None:
        """Compare impressions with what bundles received for the same requests.

        Raises:
            DifferenceError: If features differ, after all requests of the day have been compared.
        """
        requests = [str(request) for request in impressions["request"].to_pylist()]
        places: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            if request in self._open:
                places.setdefault(self._chosen[request][0], []).append(place)
        for model, of_model in sorted(places.items()):
            for start in range(0, len(of_model), _AT_ONCE):
                part = of_model[start : start + _AT_ONCE]
                names = [requests[place] for place in part]
                bundle = self._finder.find(model, self._chosen[names[0]][1])
                comparison = _Comparison(bundle, state, names, self._is_new, self.not_compared)
                bodies = [parse_json(self._chosen[name][2]) for name in names]
                for name, (key, why) in comparison.compare(impressions.take(part), bodies).items():
                    self._found_some = True
                    group, _, rest = key.partition(".")
                    # whether the log has a feature from the body of the request, or from the table of items
                    is_ours = group == "item" or key in self._from_body
                    if group == "sequence":
                        is_ours = rest.partition(".")[0] not in self._own_sequences
                    self.different[name] = (PARITY if is_ours else CLIENT_PARITY), why
                self._open.difference_update(names)
        if self._found_some and not self._open:
            raise DifferenceError("requests differ")


def _scored(bundle: Bundle, part: pl.DataFrame) -> Iterator[tuple[dict[str, Any], Mapping[str, Sequence[float]] | str]]:
    """Yield samples with their scores, or with the error if the bundle does not accept the request any more."""
    requests = [parse_json(body) for body in part["body"]]
    items = part["item"].to_list()
    try:
        found: list[Any] = bundle.score(requests, items)
    except RequestError:
        found = []
        for request, of_request in zip(requests, items, strict=True):
            try:
                found.append(bundle.score(request, of_request))
            except RequestError as error:
                found.append(str(error))
    yield from zip(part.iter_rows(named=True), found, strict=True)


def _difference_of_scores(
    bundle: Bundle, record: Mapping[str, Any], scores: Mapping[str, Sequence[float]]
) -> str | None:
    names = bundle.names
    # numbers of a client may be large, and rounding is relative to the largest terms of the sum that a score is
    largest = {name: max([1.0, *map(abs, of_stage)]) for name, of_stage in scores.items()}
    for place, (item, stage, served) in enumerate(zip(record["item"], record["stage"], record["score"], strict=True)):
        name = names[min(stage, len(names) - 1)]
        again = scores[name][place]
        if not abs(again - served) <= TOLERANCE * largest[name]:  # also if one is NaN
            return (
                f"stage {name} gave item {item!r} the score {served:.6g} when it answered, and {bundle.path} gives it "
                f"{again:.6g} now"
            )
    return None


class _Feature(NamedTuple):
    """A feature of one kind as the bundle and the log have it."""

    name: str
    bundle: Rule | None  # unknown for features of items that no sequence has
    log: Rule


class _Comparison:
    """Compares the impressions of some requests with what a bundle received."""

    def __init__(
        self, bundle: Bundle, state: LogState, requests: Sequence[str], is_new: bool, not_compared: set[str]
    ) -> None:
        self._bundle, self._state, self._requests = bundle, state, requests
        self._not_compared = not_compared
        self._found: dict[str, tuple[str, str]] = {}
        self._fitted_alike = not is_new and _fitted_alike(bundle, state.encoding)

    def compare(self, impressions: pa.Table, bodies: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
        """Return the first feature that differs, and how, by request."""
        arrays = self._bundle.encode(bodies).arrays
        rules, encoding = self._bundle.manifest["request"], self._state.encoding
        for group in ("user", "context"):
            for name, rule in rules[group].items():
                key = f"{group}.{name}"
                if key in impressions.column_names:
                    feature = _Feature(key, self._rule(rule), encoding.rule(group, name))
                    self._check(feature, arrays[key], from_arrow(impressions[key]))
        for sequence, about in rules["sequences"].items():
            mask = arrays[f"sequence.{sequence}.mask"]
            for name, rule in about["features"].items():
                key = f"sequence.{sequence}.{name}"
                if key not in impressions.column_names:
                    continue
                lists = impressions[key].combine_chunks()
                lengths = lists.value_lengths().to_numpy()
                served = mask.sum(axis=1)
                alike = served == lengths
                for place in np.flatnonzero(~alike).tolist():
                    self._note(key, place, f"{served[place]} events", f"{lengths[place]} events")
                feature = _Feature(key, self._rule(rule), encoding.rule("item", name))
                owners = np.repeat(np.arange(len(lengths)), lengths)
                logged = from_arrow(_flat(impressions[key]))[alike[owners]]
                chosen = mask & alike[:, None]
                item = about.get("item")  # the feature that is the id of an item
                ids = arrays[f"sequence.{sequence}.{item}"][chosen] if item else None
                lacks = None if ids is None else self._lacks(about["features"][item], ids)
                self._check(feature, arrays[key][chosen], logged, owners[alike[owners]], lacks=lacks)
        self._check_items(impressions)
        return self._found

    def _rule(self, rule: Mapping[str, Any]) -> Rule:
        return rule_from_json(rule, self._bundle.vocabularies)

    def _lacks(self, rule: Mapping[str, Any], served: Values) -> NDArray[np.bool_]:
        """Return which ids are those of items that the bundle lacks, as far as its vocabulary tells."""
        ids, lacks = self._rule(rule), np.zeros(len(served), np.bool_)
        if isinstance(ids, VocabularyIds):
            known = served >= FIRST_KNOWN
            values = ids.known.values.take(pa.array(served[known] - FIRST_KNOWN))
            lacks[known] = self._bundle.items.find(values.to_pylist()) == NO_ITEM
        return lacks

    def _check_items(self, impressions: pa.Table) -> None:
        lists = impressions["item"].combine_chunks()
        numbers = lists.flatten().to_numpy()
        owners = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
        ids = _item_ids(self._state, numbers)
        rows = self._bundle.items.find(ids)
        logged = (rows != NO_ITEM) & (impressions["depth"].combine_chunks().flatten().to_numpy() >= 0)
        rules, encoding = self._bundle.manifest["request"]["sequences"], self._state.encoding
        stored = {name: rule for about in rules.values() for name, rule in about["features"].items()}
        for key in self._bundle.items.features:
            name = key.removeprefix("item.")
            if key not in impressions.column_names:
                continue
            rule = self._rule(stored[name]) if name in stored else None
            feature = _Feature(key, rule, encoding.rule("item", name))
            values = from_arrow(_flat(impressions[key]))
            served = self._bundle.items.gather(key, rows[logged])
            items = [ids[place] for place in np.flatnonzero(logged).tolist()]
            self._check(feature, served, values[logged], owners[logged], items)

    def _check(
        self,
        feature: _Feature,
        served: Values,
        logged: Values,
        owners: Values | None = None,
        items: Sequence[Any] | None = None,
        lacks: NDArray[np.bool_] | None = None,
    ) -> None:
        """Compare values of a feature; `owners` are their requests, `items` their items, `lacks` those without one."""
        same = self._same(feature, served, logged)
        if same is None:
            self._not_compared.add(feature.name)
            return
        for place in np.flatnonzero(~same).tolist():
            owner = place if owners is None else int(owners[place])
            theirs, ours = _shown(feature.bundle, served[place]), _shown(feature.log, logged[place])
            of_item = "" if items is None else f" of item {items[place]!r}"
            if lacks is not None and lacks[place]:
                of_item = " of an item of the history that the bundle lacks"
            self._note(feature.name, owner, theirs, ours, of_item)

    def _same(self, feature: _Feature, served: Values, logged: Values) -> NDArray[np.bool_] | None:
        """Return which values are the same; None if they cannot be compared."""
        theirs, ours = feature.bundle, feature.log
        if isinstance(ours, Numbers):
            if isinstance(theirs, Numbers):
                logged = _rescaled(logged, ours, theirs)
            elif not self._fitted_alike and ours.mean is not None:
                return None
            near = np.abs(served - logged) <= TOLERANCE * np.maximum(1, np.abs(served))
            return np.asarray(near.reshape(len(served), -1).all(axis=1))
        if isinstance(ours, Buckets):
            known = isinstance(theirs, Buckets) and list(theirs.edges) == list(ours.edges)
            if not known and not self._fitted_alike:
                return None
        if isinstance(ours, VocabularyIds):
            if isinstance(theirs, VocabularyIds):
                # ids of the same value, or of a value that one of the vocabularies lacks
                expected, is_theirs = _translation(theirs.known, ours.known)
                unseen = (served == UNSEEN) & (logged >= FIRST_KNOWN)
                same: NDArray[np.bool_] = expected[served] == logged
                same[unseen] = ~is_theirs[logged[unseen]]
                return same
            if not self._fitted_alike:
                return None
        return np.asarray((served == logged) | ((served == UNSEEN) & (logged >= FIRST_KNOWN)))

    def _note(self, key: str, place: int, served: str, logged: str, of_item: str = "") -> None:
        text = (
            f"{key}{of_item}: {self._bundle.path} received {served} when it answered, and the log would have {logged}"
        )
        if key.startswith("sequence."):
            text += " (events oldest first; those of the same time by position or rank, then by request and item)"
        self._found.setdefault(self._requests[place], (key, text))


def _fitted_alike(bundle: Bundle, encoding: Encoding) -> bool:
    """Return whether vocabularies, scalings and edges of a log are those of the log that a model was trained on.

    A bundle has only those of requests and events; those of items are taken to be alike if these are.

    Args:
        bundle: The bundle of the model.
        encoding: The encoding of the log.
    """
    rules = bundle.manifest["request"]
    known: list[tuple[Group, str, Any]] = [("user", *entry) for entry in rules["user"].items()]
    known += [("context", *entry) for entry in rules["context"].items()]
    known += [("item", *entry) for about in rules["sequences"].values() for entry in about["features"].items()]
    found = [
        _same_fit(rule_from_json(rule, bundle.vocabularies), encoding.rule(group, name))
        for group, name, rule in known
        if name in getattr(encoding.spec.features, group)
    ]
    return all(same for same in found if same is not None)


def _same_fit(theirs: Rule, ours: Rule) -> bool | None:
    """Return whether two rules were fitted alike, None if they are not fitted."""
    if isinstance(theirs, VocabularyIds) and isinstance(ours, VocabularyIds):
        count = min(len(theirs.known.values), len(ours.known.values))
        one, other = (known.values.slice(0, count) for known in (theirs.known, ours.known))
        return bool(one.cast(other.type).equals(other))
    if isinstance(theirs, Numbers) and isinstance(ours, Numbers) and theirs.mean is not None:
        return all(np.array_equal(a, b) for a, b in zip(_scaling(theirs), _scaling(ours), strict=True))
    if isinstance(theirs, Buckets) and isinstance(ours, Buckets):
        return list(theirs.edges) == list(ours.edges)
    return None


@functools.lru_cache(maxsize=16)
def _translation(theirs: Lookup, ours: Lookup) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return our id of each of their ids, and which of our ids they have."""
    places = ours.find(theirs.values.cast(ours.values.type))
    ids = np.where(places == NOWHERE, UNSEEN, places + FIRST_KNOWN)
    back = theirs.find(ours.values.cast(theirs.values.type)) != NOWHERE
    return np.concatenate([[0, UNSEEN], ids]), np.concatenate([[True, True], back])


def _rescaled(numbers: Values, ours: Numbers, theirs: Numbers) -> Values:
    """Return numbers that were scaled for a log as a bundle scales them."""
    (mean, deviation), (other_mean, other_deviation) = _scaling(ours), _scaling(theirs)
    if np.array_equal(mean, other_mean) and np.array_equal(deviation, other_deviation):
        return numbers
    size = ours.size
    values = numbers.reshape(len(numbers), -1).astype(np.float64)
    scaled = (values[:, :size] * deviation + mean - other_mean) / other_deviation
    return np.concatenate([scaled, values[:, size:]], axis=1).reshape(numbers.shape)


def _scaling(rule: Numbers) -> tuple[Values, Values]:
    if rule.mean is None or rule.deviation is None:
        return np.zeros(1), np.ones(1)
    return rule.mean, rule.deviation


def _flat(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([lists.combine_chunks().flatten()])


def _item_ids(state: LogState, numbers: Values) -> list[Any]:
    """Return the ids of items that have these numbers in the log."""
    table = state.items.table
    if "id" not in table.column_names:
        return list(numbers.tolist())
    places = np.searchsorted(table["item"].to_numpy(), numbers)
    return list(table["id"].take(places).to_pylist())


def _shown(rule: Rule | None, value: Any) -> str:
    """Return a value for messages: that of the vocabulary, if there is one."""
    if isinstance(rule, VocabularyIds) and value >= FIRST_KNOWN:
        return repr(rule.known.values[int(value) - FIRST_KNOWN].as_py())
    names = {0: "a missing value", UNSEEN: "a value without an id"}
    if rule is None or isinstance(rule, Numbers):
        return str(value)
    return names.get(int(value), f"id {value}")
