"""Impressions from the rows of a full-stage log, one row per request and item.

:func:`assemble` receives whole requests. It finds the stage of every row, samples, grades and encodes the items and
collects them per request. All readers of logs and the simulated platform use it, so all of them produce the same
impressions from the same rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.arrays import edges, spans
from rankfall.data.impressions.encoding import count_missing, hash_values
from rankfall.data.impressions.items import differ, from_arrow, impression_schema, item_numbers, to_arrow
from rankfall.data.impressions.requests import (
    DAY,
    HASH,
    TIME,
    Counts,
    bad_inclusions,
    bad_labels,
    bad_places,
    draw_negatives,
    full_stage_grades,
    full_stage_sample,
    group_rows,
    order_keys,
    refuse,
    row_name,
    sample_keys,
    stage_depths,
)
from rankfall.data.impressions.spec import MISSING, UNSEEN, Dense, column_of, is_dense
from rankfall.encoding import BadValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.requests import RequestGroups
    from rankfall.data.impressions.spec import Group

    Integers = NDArray[np.int64]

NEGATIVE = -1  # the depth of an item that was drawn at random and not logged for the request


class Assembled(NamedTuple):
    """Impressions per day, in the order of days and sorted by time within a day."""

    days: list[tuple[str, pa.Table]]
    counts: Counts


def assemble(
    rows: pl.DataFrame,
    encoding: Encoding,
    *,
    seed: int = 0,
    groups: RequestGroups | None = None,
    requests: pl.DataFrame | None = None,
    items: pa.Table | None = None,
) -> Assembled:
    """Make the impressions of whole requests.

    Args:
        rows: The columns that the spec of the log names, one row per request and item.
        encoding: The fitted encoding of the log.
        seed: Seed of the sample, of the order of items and of random negatives.
        groups: The requests of the rows, if they are known; by default the rows are grouped here.
        requests: More columns of requests, one row per request: features of user and context, and sequences as lists
            of raw values in columns ``sequence.NAME.FEATURE``.
        items: The item table, from which random negatives are drawn. If it has a column ``id``, it also maps the item
            ids of the rows to int32.

    Raises:
        ValueError: If the rows contradict the spec of the log; the message names the request.
    """
    if groups is None:
        groups = group_rows(rows, encoding.spec)
    builder = _Builder(rows, encoding, seed, groups, requests, items)
    return Assembled(builder.days(), builder.counts)


class _Builder:
    """The steps from rows to impressions: items are chosen and ordered first, then their columns are gathered."""

    def __init__(
        self,
        rows: pl.DataFrame,
        encoding: Encoding,
        seed: int,
        groups: RequestGroups,
        requests: pl.DataFrame | None,
        items: pa.Table | None,
    ) -> None:
        self.spec = encoding.spec
        self.encoding = encoding
        self.seed = seed
        self.rows = rows
        self.items = items
        self.groups = groups
        self.requests = groups.table  # one row per request, in their final order
        self.keys = self.requests[self.spec.request]
        self.counts = Counts(rows=len(rows), requests=len(groups))
        self.extra = self._in_request_order(requests)
        self.depth = stage_depths(rows, self.spec)
        self._sequence_lengths: dict[str, Integers] = {}
        self._check_items()
        self._choose()

    def _check_items(self) -> None:
        repeated = self.rows.select(self.spec.request, self.spec.item).is_duplicated()
        if repeated.any():
            where = row_name(self.rows, self.spec, int(repeated.arg_max() or 0))
            raise RankfallError(f"an item occurs twice in a request ({where})")

    def _in_request_order(self, extra: pl.DataFrame | None) -> pl.DataFrame:
        if extra is None:
            return pl.DataFrame()
        request = self.spec.request
        if (repeated := extra[request].is_duplicated()).any():
            raise RankfallError(f"request {extra[request].filter(repeated)[0]!r} occurs twice in the table of requests")
        return self.requests.select(request).join(extra, on=request, how="left", maintain_order="left")

    # --- items ---

    def _choose(self) -> None:
        """Sample, add negatives, grade and order; `number`, `row`, `item`, ... then describe the chosen items."""
        spec, number = self.spec, self.groups.number
        request_hash = self.requests[HASH].to_numpy()
        item_hash = hash_values(self.rows[spec.item])
        keys = sample_keys(self.seed, request_hash[number], item_hash)
        chosen = full_stage_sample(number, self.depth, keys, [stage.sample for stage in spec.stages])
        self._count_stages(number, chosen)
        item = self._item_ids()
        depth, rank = self.depth[chosen], self._places("rank")[chosen]
        position = self._places("position")[chosen]
        inclusion = self._inclusions(number, chosen)
        self.relevance = self._relevance_of_rows()
        self._leave_out(number, item, chosen)
        self.row, self.number, self.item = chosen, number[chosen], item[chosen]
        hashes = item_hash[chosen]
        if spec.negatives:
            extra_number, extra_row, extra_hash = self._draw(number, item)
            count = len(extra_number)
            self.row = np.concatenate([chosen, -1 - extra_row])  # below 0: a row of the item table, not of the log
            self.number = np.concatenate([self.number, extra_number])
            self.item = np.concatenate([self.item, self._table_items()[extra_row]])
            hashes = np.concatenate([hashes, extra_hash])
            depth = np.concatenate([depth, np.full(count, NEGATIVE)])
            rank, position = (np.concatenate([places, np.full(count, -1)]) for places in (rank, position))
            inclusion = np.concatenate([inclusion, np.ones(count, np.float32)])
            self.counts.negatives = count
        order = np.lexsort((order_keys(self.seed, request_hash[self.number], hashes), self.number))
        graded = None if spec.has_funnel else self._of_chosen(self.relevance)
        grade = full_stage_grades(self.number, depth, rank, graded)
        self.row, self.number, self.item = self.row[order], self.number[order], self.item[order]
        self.columns: dict[str, NDArray[Any]] = {
            "depth": depth[order],
            "rank": rank[order],
            "position": position[order],
            "inclusion": inclusion[order],
            "grade": grade[order],
        }
        self.edges = edges(np.bincount(self.number, minlength=len(self.requests)))

    def _leave_out(self, number: Integers, item: Integers, chosen: Integers) -> None:
        """Collect the relevant items that were not chosen, sorted within each request."""
        relevant = self.relevance > 0
        relevant[chosen] = False
        number, item = number[relevant], item[relevant]
        self.left_out = item[np.lexsort((item, number))]
        self.left_out_edges = edges(np.bincount(number, minlength=len(self.requests)))

    def _count_stages(self, number: Integers, chosen: Integers) -> None:
        names, count = self.spec.stage_names, len(self.requests)
        for depth, stage in enumerate(self.spec.stages):
            of_stage = self.depth[chosen] == depth
            self.counts.logged[names[depth]] = int((self.depth == depth).sum())
            self.counts.kept[names[depth]] = int(of_stage.sum())
            if stage.sample is not None:
                found = np.bincount(number[chosen][of_stage], minlength=count)
                self.counts.short[names[depth]] = int((found < stage.sample).sum())

    def _item_ids(self) -> NDArray[np.int64]:
        raw = self.rows[self.spec.item]
        if self.items is None or "id" not in self.items.column_names:
            numbers = item_numbers(raw)
            if numbers is None:
                raise RankfallError(f"column {self.spec.item!r}: item ids that are not int32 need an item table")
            return numbers.astype(np.int64)
        known = pl.DataFrame({"id": pl.from_arrow(self.items["id"]), "item": pl.from_arrow(self.items["item"])})
        ids = pl.DataFrame({"id": raw.cast(known["id"].dtype)})
        found = ids.join(known, on="id", how="left", maintain_order="left")["item"]
        if found.has_nulls():
            unknown = raw[int(found.is_null().arg_max() or 0)]
            raise RankfallError(f"column {self.spec.item!r}: found {unknown!r}, which is not in the item table")
        return found.cast(pl.Int64).to_numpy()

    def _places(self, key: Literal["rank", "position"]) -> Integers:
        """Return the logged ranks or shown positions of all rows, -1 for none."""
        column: str | None = getattr(self.spec, key)
        if column is None:
            return np.full(len(self.rows), -1, np.int64)
        raw = self.rows[column]
        if not raw.dtype.is_integer() and raw.dtype != pl.Null:
            raise RankfallError(f"column {column!r}: found {raw.dtype}, expected whole numbers")
        refuse(bad_places(self.rows, [column]), self.rows, self.spec)
        return raw.cast(pl.Int64).fill_null(-1).to_numpy()

    def _inclusions(self, number: Integers, chosen: Integers) -> NDArray[np.float32]:
        """Return the probability with which each chosen item was drawn: for the log, times that of the sample here."""
        if self.spec.inclusion is None:
            return np.ones(len(chosen), np.float32)
        refuse(bad_inclusions(self.rows, self.spec), self.rows, self.spec)
        logged = self.rows[self.spec.inclusion].cast(pl.Float64).fill_null(1).to_numpy()
        stages = len(self.spec.stages)
        sizes = np.array([len(logged) if stage.sample is None else stage.sample for stage in self.spec.stages])
        cell = number * stages + self.depth
        shares = np.minimum(1, sizes[self.depth] / np.bincount(cell)[cell])
        smallest = np.finfo(np.float32).tiny
        inclusion: NDArray[np.float32] = np.maximum((logged * shares)[chosen], smallest).astype(np.float32)
        return inclusion

    def _table_items(self) -> NDArray[np.int64]:
        assert self.items is not None
        numbers: NDArray[np.int64] = self.items["item"].to_numpy().astype(np.int64)
        return numbers

    def _draw(self, number: Integers, item: Integers) -> tuple[Integers, Integers, NDArray[np.uint64]]:
        if self.items is None:
            raise RankfallError("items: random negatives are drawn from the item table, which is missing")
        table = self._table_items()
        numbers, rows = draw_negatives(
            self.requests[HASH].to_numpy(),
            number,
            np.searchsorted(table, item),
            items=len(table),
            count=self.spec.negatives,
            seed=self.seed,
        )
        raw = self.items["id"] if "id" in self.items.column_names else self.items["item"]
        hashes = hash_values(pl.Series("item", pl.from_arrow(raw)).gather(rows))
        return numbers, rows, hashes

    # --- columns ---

    def days(self) -> list[tuple[str, pa.Table]]:
        kind = pa.string() if self.keys.dtype == pl.String else pa.int64()
        schema = impression_schema(self.spec, request=kind)
        table = pa.table([self._column(field) for field in schema], schema=schema)
        runs = self.requests[DAY].rle().struct.unnest()
        stops = np.cumsum(runs["len"].to_numpy())
        return [
            (name, table.slice(int(stop) - int(length), int(length)))
            for name, length, stop in zip(runs["value"], runs["len"], stops, strict=True)
        ]

    def _column(self, field: pa.Field) -> pa.Array:
        group, _, name = field.name.partition(".")
        match group:
            case "request":
                return self.keys.to_arrow().cast(field.type)
            case "time":
                return self.requests[TIME].to_arrow().cast(field.type)
            case "user" | "context":
                return to_arrow(self._request_feature(group, name), field.type)
            case "sequence":
                sequence, _, feature = name.partition(".")
                return self._sequence(sequence, feature, field.type)
            case "left_out":
                return _lists(self.left_out_edges, self.left_out, field.type)
            case "item":
                values = self._item_feature(name) if name else self.item
            case "relevance":
                values = self._of_chosen(self.relevance)
                found = np.bincount(self.number, values > 0, minlength=len(self.requests))
                self.counts.without_relevant = int((found == 0).sum())
            case "feedback" | "truth":
                values = self._of_chosen(self._numbers(name or str(self.spec.truth)))
            case _:
                values = self.columns[group]
        return _lists(self.edges, values, field.type)

    def _request_feature(self, group: Group, name: str) -> NDArray[Any]:
        feature = getattr(self.spec.features, group)[name]
        column = column_of(self.spec, name, feature)
        if column in self.extra.columns and column not in self.rows.columns:
            raw = self.extra[column]
        else:
            raw = self.rows[column].gather(self.groups.first_row)
        return self._encode(group, name, raw, self.keys)

    def _item_feature(self, name: str) -> NDArray[Any]:
        feature = self.spec.features.item[name]
        logged = self.row >= 0
        raw = self.rows[column_of(self.spec, name, feature)].gather(self.row[logged])
        keys = self.keys.gather(self.number[logged])
        values = self._encode("item", name, raw, keys)
        if logged.all():
            return values
        assert self.items is not None
        table = from_arrow(self.items[f"item.{name}"])
        filled = np.empty((len(self.row), *values.shape[1:]), values.dtype)
        filled[logged] = values
        filled[~logged] = table[-1 - self.row[~logged]]
        return filled

    def _sequence(self, name: str, feature: str, kind: pa.DataType) -> pa.Array:
        config = self.spec.sequences[name]
        column = f"sequence.{name}.{feature}"
        if column in self.extra.columns:
            raw = self.extra[column]
        elif config.columns is not None and config.columns[feature] in self.extra.columns:
            raw = self.extra[config.columns[feature]]
        elif config.columns is not None and config.columns[feature] in self.rows.columns:
            raw = self.rows[config.columns[feature]].gather(self.groups.first_row)
        else:
            raise RankfallError(f"sequences.{name}: no column has the values of {feature!r}")
        if not isinstance(raw.dtype, pl.List):
            raise RankfallError(f"column {raw.name!r}: found {raw.dtype}, expected lists")
        raw = raw.list.tail(config.max_length)
        lengths = raw.list.len().fill_null(0).to_numpy().astype(np.int64)
        self._check_same_lengths(name, lengths)
        values = raw.explode(empty_as_null=False, keep_nulls=False).alias(raw.name)
        keys = self.keys.gather(np.repeat(np.arange(len(lengths)), lengths))
        return _lists(edges(lengths), self._encode("item", feature, values, keys, of=column), kind)

    def _check_same_lengths(self, name: str, lengths: Integers) -> None:
        expected = self._sequence_lengths.setdefault(name, lengths)
        if (differ := np.flatnonzero(expected != lengths)).size:
            key = self.keys[int(differ[0])]
            raise RankfallError(f"sequences.{name}: the features of request {key!r} have different numbers of events")

    def _relevance_of_rows(self) -> NDArray[np.float32]:
        """Return the relevance of all rows, chosen or not."""
        relevant = self.spec.relevant
        if relevant.stage is not None:
            return (self.depth >= self.spec.stage_names.index(relevant.stage)).astype(np.float32)
        assert relevant.column is not None
        return np.maximum(self._numbers(relevant.column), 0)

    def _numbers(self, column: str) -> NDArray[np.float32]:
        """Return the numbers of all rows; null and NaN become 0."""
        refuse(bad_labels(self.rows, [column]), self.rows, self.spec)
        return self.rows[column].cast(pl.Float32).fill_null(0).fill_nan(0).to_numpy()

    def _of_chosen(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values of the chosen items; items that are not from the log have 0."""
        if len(values) == 0:
            return np.zeros(len(self.row), np.float32)
        return np.where(self.row >= 0, values[np.maximum(self.row, 0)], np.float32(0))

    def _encode(self, group: Group, name: str, raw: pl.Series, keys: pl.Series, of: str | None = None) -> NDArray[Any]:
        try:
            values = self.encoding.encode(group, name, raw)
        except BadValueError as error:
            raise RankfallError(f"{error} (request {keys[error.position]!r})") from None
        feature, key = getattr(self.spec.features, group)[name], of or f"{group}.{name}"
        if isinstance(feature, Dense):
            self.counts.numbers[key] += len(values)
            self.counts.missing_numbers[key] += count_missing(feature, raw)
        if not is_dense(feature):
            self.counts.values[key] += len(values)
            self.counts.missing[key] += int((values == MISSING).sum())
            self.counts.unseen[key] += int((values == UNSEEN).sum())
        return values


def _lists(edges: Integers, values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), to_arrow(values, kind.value_type), type=kind)


_LEAST_REPEATS = 100  # comparisons, below which nothing is said about a feature
FARTHER = 0.25  # share of values that are farther from the previous one; 0.5 if the item says nothing about the value


@dataclass(slots=True)
class RepeatCounts:
    """How well the previous value of an item predicts its next one on the same day, by item feature.

    Two distances are compared for each repeated occurrence of an item: that to its previous value, and that to the
    value of another item of the request. A feature of items is closer to its previous value, also if it changes as
    running counters do. A feature that depends on the request is not.
    """

    closer: Counter[str] = field(default_factory=Counter)
    farther: Counter[str] = field(default_factory=Counter)

    def add(self, items: NDArray[Any], features: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Count the repeated items of requests of one day, in the order of time.

        Args:
            items: The items of the requests, one request after the other.
            features: Names of item features, and their values for these items.
        """
        order = np.argsort(items, kind="stable")
        again = np.flatnonzero(np.diff(items[order]) == 0)
        before, after = order[again], order[again + 1]
        beside = (after + 1) % max(1, len(items))
        for name, values in features:
            if differ(values[before], values[after]).any():
                closer, farther = compare_repeats(values[before], values[after], values[beside])
                self.closer[name] += closer
                self.farther[name] += farther

    def per_request(self) -> list[str]:
        """Return the features that depend on the request."""
        return sorted(
            name
            for name, count in self.farther.items()
            if count + self.closer[name] >= _LEAST_REPEATS and count > FARTHER * (count + self.closer[name])
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RepeatCounts:
        """Read the counts that a state stores."""
        return cls(*(Counter(content.get(name, {})) for name in cls.__slots__))

    def to_json(self) -> dict[str, Any]:
        """Return the form that a state stores."""
        return {name: dict(sorted(getattr(self, name).items())) for name in self.__slots__}


def logged_values(impressions: pa.Table, column: str) -> NDArray[Any]:
    """Return the values of the logged items of all lists, one list after the other, without random negatives."""
    values, depths = (
        from_arrow(pa.chunked_array([chunk.flatten() for chunk in impressions[name].chunks]))
        for name in (column, "depth")
    )
    return values[depths >= 0]


def compare_repeats(before: NDArray[Any], after: NDArray[Any], beside: NDArray[Any]) -> tuple[int, int]:
    """Return how many values of items are closer to their previous one than to that of another item, and how many not.

    Args:
        before: Values of items.
        after: The next values of the same items.
        beside: Values of other items, in the same lists as `after`.
    """
    previous, other = _distance(after, before), _distance(after, beside)
    return int((previous < other).sum()), int((previous > other).sum())


def _distance(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return distances of numbers or vectors; ids are equal or not."""
    if one.dtype.kind == "i":
        return differ(one, other)
    distance: NDArray[Any] = np.abs(one.astype(np.float64) - other)
    return distance.sum(axis=1) if distance.ndim > 1 else distance


class EventHistory:
    """The last events of every user. Portions of a log go through :meth:`advance` in the order of time.

    Args:
        max_length: The largest number of events of a request.
        columns: The columns of events that a sequence contains. Events also have `user`, `time` and `order` (whole
            numbers), which orders events of the same time.
        ties: Columns that order events of the same time and `order`. They are forgotten as soon as no other event can
            have this time, because ids need much memory.
        events: The events of earlier portions that are still needed, as :attr:`events` returned them.
    """

    def __init__(
        self,
        max_length: int,
        columns: Sequence[str],
        events: pl.DataFrame | None = None,
        ties: Sequence[str] = (),
    ) -> None:
        self.max_length = max_length
        self.columns = list(columns)
        self._ties = list(ties)
        self._keys = ["user", "time", "order", *ties]
        self._events = events

    @property
    def events(self) -> pl.DataFrame | None:
        """The events that later portions may need, in a form that does not depend on the portions; None before any."""
        if self._events is None:
            return None
        known = self._events.sort(self._keys)
        last = known["time"].max()  # no later request is before this time
        return self._still_needed(known, last if isinstance(last, int) else 0).sort(self._keys)

    def advance(self, users: pl.Series, times: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
        """Return the last events strictly before each request of a portion.

        Args:
            users: The user of each request. Requests and events without a user have no history.
            times: The time of each request.
            events: The events of the portion. No later portion may have an earlier time than the latest of this one.

        Returns:
            One row per request; each of `columns` is a column of lists, oldest event first.
        """
        known = events.select(*self._keys, *self.columns).filter(pl.col("user").is_not_null())
        if self._events is not None:
            # a portion without any user may have a column of nulls
            known = pl.concat([self._events, known], how="vertical_relaxed")
        known = known.sort(self._keys)
        starts, stops = _spans_before(known, users, times)
        starts = np.maximum(starts, stops - self.max_length)
        self._events = self._still_needed(known, int(times.to_numpy().max(initial=0)))
        return _take_spans(known.select(self.columns), starts, stops)

    def _still_needed(self, known: pl.DataFrame, last: int) -> pl.DataFrame:
        """Return the events that requests from the time `last` on may need."""
        earlier = known.filter(pl.col("time") < last).group_by("user", maintain_order=True).tail(self.max_length)
        earlier = earlier.select(known.columns)
        if self._ties:
            forgotten = [pl.lit(None, known.schema[name]).alias(name) for name in self._ties]
            numbers = pl.int_range(pl.len(), dtype=pl.Int64).alias("order")  # which keep the order of events
            earlier = earlier.with_columns(numbers, *forgotten)
        return pl.concat([earlier, known.filter(pl.col("time") >= last)])


def _spans_before(
    known: pl.DataFrame, users: pl.Series, times: pl.Series
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the events of each request's user begin, and where those before the request end.

    The events are sorted by user and time.
    """
    both = pl.concat(
        [known.select("user", "time"), pl.DataFrame({"user": users, "time": times.cast(known["time"].dtype)})],
        how="vertical_relaxed",
    )
    # ranks combine user and time into one number that cannot overflow; a missing user is 0, below all events
    codes = both["user"].rank("dense").cast(pl.Int64).fill_null(0).to_numpy()
    moments = both["time"].rank("dense").cast(pl.Int64).to_numpy()
    width = int(moments.max(initial=0)) + 1
    keys = codes * width + moments
    sorted_keys, request_keys = keys[: len(known)], keys[len(known) :]
    starts = np.searchsorted(sorted_keys, codes[len(known) :] * width, side="left")
    return starts, np.searchsorted(sorted_keys, request_keys, side="left")


def _take_spans(values: pl.DataFrame, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> pl.DataFrame:
    lengths = stops - starts
    offsets = pa.array(edges(lengths))
    taken = values[spans(starts, lengths)]
    return pl.DataFrame(
        {name: pl.from_arrow(pa.LargeListArray.from_arrays(offsets, taken[name].to_arrow())) for name in values.columns}
    )
