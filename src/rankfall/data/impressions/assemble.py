"""From the rows of a full-stage log, one for each request and item, to impressions.

:func:`assemble` takes whole requests: it finds the stage of every row, samples, grades, encodes and puts the items
of a request together. All readers of logs and the simulated platform go through it, so all agree on what an
impression is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall.data.impressions.counts import Counts
from rankfall.data.impressions.encoding import BadValueError, to_times
from rankfall.data.impressions.hashing import hash_values
from rankfall.data.impressions.log import impression_schema, item_schema
from rankfall.data.impressions.sampler import (
    draw_negatives,
    full_stage_grades,
    full_stage_sample,
    order_keys,
    sample_keys,
)
from rankfall.data.impressions.spec import MISSING, UNSEEN, Time, is_dense
from rankfall.data.impressions.stage_depth import place, stage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import FeatureConfig, Group, Spec

    Integers = NDArray[np.int64]

NEGATIVE = -1  # the depth of an item that the log did not have for the request


class Assembled(NamedTuple):
    """Impressions, those of one day together and sorted by time, days in order."""

    days: list[tuple[str, pa.Table]]
    counts: Counts


def assemble(
    rows: pl.DataFrame,
    encoding: Encoding,
    *,
    seed: int = 0,
    requests: pl.DataFrame | None = None,
    items: pa.Table | None = None,
) -> Assembled:
    """The impressions of whole requests.

    `rows` has the columns that the description of the log names, one row for each request and item. `requests` adds
    columns of requests, one row for each: features of user and context, and sequences as lists of raw values in columns
    ``sequence.NAME.FEATURE``. `items` is the table of all items, from which random negatives are drawn, if the
    description asks for some; its ids are also those of `item` if it has a column ``id``.
    """
    builder = _Builder(rows, encoding, seed, requests, items)
    return Assembled(builder.days(), builder.counts)


def item_table(items: pl.DataFrame, encoding: Encoding) -> pa.Table:
    """The table of items of a log from their raw columns, one row an item."""
    spec = encoding.spec
    items = items.sort(spec.item)
    raw = items[spec.item]
    numbers = item_numbers(raw)
    columns: dict[str, Any] = {"item": np.arange(len(raw)) if numbers is None else numbers}
    schema = item_schema(
        spec, ids=None if numbers is not None else pa.string() if raw.dtype == pl.String else pa.int64()
    )
    if numbers is None:
        columns["id"] = raw.to_arrow()
    for name, feature in spec.features.item.items():
        columns[f"item.{name}"] = encoding.encode("item", name, items[column_of(spec, name, feature)])
    arrays = [_flat_array(columns[field.name], field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def item_numbers(raw: pl.Series) -> NDArray[np.int32] | None:
    """The ids of items as they are stored, if they are whole numbers that fit; otherwise they must be given out."""
    if not raw.dtype.is_integer():
        return None
    values = raw.to_numpy()
    if len(values) and (values.min() < 0 or values.max() >= 2**31):
        return None
    return values.astype(np.int32)


def column_of(spec: Spec, name: str, feature: FeatureConfig) -> str:
    """The column of the log in which a feature stands."""
    if isinstance(feature, Time) and feature.column is None:
        assert spec.time is not None  # the description was checked
        return spec.time.column
    return feature.column or name


class _Builder:
    """The steps from rows to impressions. Rows are chosen and ordered first, their columns gathered last."""

    def __init__(
        self,
        rows: pl.DataFrame,
        encoding: Encoding,
        seed: int,
        requests: pl.DataFrame | None,
        items: pa.Table | None,
    ) -> None:
        self.spec = encoding.spec
        self.encoding = encoding
        self.seed = seed
        self.rows = rows
        self.items = items
        self.counts = Counts(rows=len(rows))
        self._check_keys()
        self.request_hash = hash_values(rows[self.spec.request])
        self.depth = stage_of(rows, self.spec)
        self.times = self._request_times()
        self.extra = pl.DataFrame()  # what the caller knows of requests, in the order of
        self.requests = self._requests(requests)  # one row a request, in their final order
        self._choose()

    # --- requests ---

    def _check_keys(self) -> None:
        spec, rows = self.spec, self.rows
        for column in (spec.request, spec.item):
            if rows[column].has_nulls():
                position = int(rows[column].is_null().arg_max() or 0)
                raise ValueError(f"column {column!r}: found nothing in row {position} of a portion of the log")
        pairs = rows.select(spec.request, spec.item)
        if (again := pairs.is_duplicated()).any():
            position = int(again.arg_max() or 0)
            raise ValueError(f"an item stands twice in a request ({place(rows, spec, position)})")

    def _request_times(self) -> pl.Series:
        time = self.spec.time
        if time is None:
            return pl.zeros(len(self.rows), pl.Int64, eager=True)
        times = to_times(self.rows[time.column], time.unit, time.zone).dt.epoch("ms")
        if times.has_nulls():
            where = place(self.rows, self.spec, int(times.is_null().arg_max() or 0))
            raise ValueError(f"column {time.column!r}: found nothing, expected a time ({where})")
        return times

    def _requests(self, extra: pl.DataFrame | None) -> pl.DataFrame:
        """One row a request: its number in the final order, time, day and the row that speaks for it."""
        spec = self.spec
        rows = pl.DataFrame(
            {
                "key": self.rows[spec.request],
                "hash": self.request_hash,
                "time": self.times,
                "row": np.arange(len(self.rows)),
                **({"day": self.rows[spec.day].cast(pl.String)} if spec.day else {}),
                **({"user": self.rows[spec.user]} if spec.user else {}),
            }
        )
        same = [name for name in ("time", "day", "user") if name in rows.columns]
        requests = rows.group_by("key").agg(
            pl.first("hash"),
            pl.min("row"),
            *(pl.first(name) for name in same),
            *(pl.n_unique(n).alias(f"{n}s") for n in same),
        )
        for name in same:
            if (requests[f"{name}s"] > 1).any():
                key = requests.filter(pl.col(f"{name}s") > 1)["key"].min()
                raise ValueError(f"request {key!r} has rows of more than one {name}")
        if not spec.day:
            day = pl.from_epoch(requests["time"], "ms").dt.replace_time_zone("UTC").dt.convert_time_zone(spec.zone)
            requests = requests.with_columns(day=day.dt.strftime("%Y-%m-%d"))
        requests = requests.sort("day", "time", "hash", "key")
        if extra is not None:
            if (again := extra[spec.request].is_duplicated()).any():
                raise ValueError(
                    f"request {extra[spec.request].filter(again)[0]!r} stands twice in the table of requests"
                )
            keys = requests.select(pl.col("key").alias(spec.request))
            self.extra = keys.join(extra, on=spec.request, how="left", maintain_order="left")
        self.counts.requests = len(requests)
        return requests

    # --- items ---

    def _choose(self) -> None:
        """Sample, add negatives, grade, and order: afterwards `number`, `row`, ... speak of the chosen items."""
        spec = self.spec
        numbers = pl.DataFrame({"key": self.requests["key"], "number": np.arange(len(self.requests))})
        asked = pl.DataFrame({"key": self.rows[spec.request]})
        number = asked.join(numbers, on="key", how="left", maintain_order="left")["number"].to_numpy()
        item_hash = hash_values(self.rows[spec.item])
        keys = sample_keys(self.seed, self.request_hash, item_hash)
        chosen = full_stage_sample(number, self.depth, keys, [stage.sample for stage in spec.stages])
        self._count_stages(number, chosen)
        item = self._item_ids()
        depth, rank = self.depth[chosen], self._ranks(chosen)
        self._leave_out(number, item, chosen)
        self.row, self.number, self.item = chosen, number[chosen], item[chosen]
        hashes = item_hash[chosen]
        if spec.negatives:
            extra_number, extra_row, extra_hash = self._draw(number, item)
            count = len(extra_number)
            self.row = np.concatenate([chosen, -1 - extra_row])  # a negative has no row; it has one in the table
            self.number = np.concatenate([self.number, extra_number])
            self.item = np.concatenate([self.item, self._table_items()[extra_row]])
            hashes = np.concatenate([hashes, extra_hash])
            depth = np.concatenate([depth, np.full(count, NEGATIVE)])
            rank = np.concatenate([rank, np.full(count, -1)])
            self.counts.negatives = count
        order = np.lexsort((order_keys(self.seed, self.requests["hash"].to_numpy()[self.number], hashes), self.number))
        self.grade = full_stage_grades(self.number, depth, rank)[order]
        self.row, self.number, self.item = self.row[order], self.number[order], self.item[order]
        self.chosen_depth, self.rank = depth[order], rank[order]
        lengths = np.bincount(self.number, minlength=len(self.requests))
        self.edges = _edges(lengths)

    def _leave_out(self, number: Integers, item: Integers, chosen: Integers) -> None:
        """Note the relevant items that are not among the chosen ones, those of each request sorted."""
        relevant = self._relevance_of_rows() > 0
        relevant[chosen] = False
        number, item = number[relevant], item[relevant]
        self.left_out = item[np.lexsort((item, number))]
        self.left_out_edges = _edges(np.bincount(number, minlength=len(self.requests)))

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
                raise ValueError(f"column {self.spec.item!r}: ids that are no int32 need a table of items")
            return numbers.astype(np.int64)
        known = pl.DataFrame({"id": pl.from_arrow(self.items["id"]), "item": pl.from_arrow(self.items["item"])})
        asked = pl.DataFrame({"id": raw.cast(known["id"].dtype)})
        found = asked.join(known, on="id", how="left", maintain_order="left")["item"]
        if found.has_nulls():
            raise ValueError(
                f"column {self.spec.item!r}: {raw[int(found.is_null().arg_max() or 0)]!r} is no known item"
            )
        return found.cast(pl.Int64).to_numpy()

    def _ranks(self, chosen: Integers) -> Integers:
        if self.spec.rank is None:
            return np.full(len(chosen), -1, np.int64)
        raw = self.rows[self.spec.rank]
        if not raw.dtype.is_integer() and raw.dtype != pl.Null:
            raise ValueError(f"column {self.spec.rank!r}: found {raw.dtype}, expected whole numbers")
        ranks = raw.cast(pl.Int64).fill_null(-1).to_numpy()
        if (bad := np.flatnonzero((ranks < -1) | (ranks >= 2**31))).size:
            found, where = ranks[bad[0]], place(self.rows, self.spec, int(bad[0]))
            raise ValueError(f"column {self.spec.rank!r}: found {found}, expected at least 0, or -1 for none ({where})")
        chosen_ranks: Integers = ranks[chosen]
        return chosen_ranks

    def _table_items(self) -> NDArray[np.int64]:
        assert self.items is not None
        numbers: NDArray[np.int64] = self.items["item"].to_numpy().astype(np.int64)
        return numbers

    def _draw(self, number: Integers, item: Integers) -> tuple[Integers, Integers, NDArray[np.uint64]]:
        if self.items is None:
            raise ValueError("items: random negatives are drawn from the table of items, which is missing")
        table = self._table_items()
        numbers, rows = draw_negatives(
            self.requests["hash"].to_numpy(),
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
        request = self.requests["key"]
        kind = pa.string() if request.dtype == pl.String else pa.int64()
        schema = impression_schema(self.spec, request=kind)
        table = pa.table([self._column(field) for field in schema], schema=schema)
        day = self.requests["day"]
        runs = day.rle().struct.unnest()
        stops = np.cumsum(runs["len"].to_numpy())
        return [
            (name, table.slice(int(stop) - int(length), int(length)))
            for name, length, stop in zip(runs["value"], runs["len"], stops, strict=True)
        ]

    def _column(self, field: pa.Field) -> pa.Array:
        group, _, name = field.name.partition(".")
        match group:
            case "request":
                return self.requests["key"].to_arrow().cast(field.type)
            case "time":
                return self.requests["time"].to_arrow().cast(field.type)
            case "user" | "context":
                return _flat_array(self._request_feature(group, name), field.type)
            case "sequence":
                sequence, _, feature = name.partition(".")
                return self._sequence(sequence, feature, field.type)
            case "left_out":
                return _lists(self.left_out_edges, self.left_out, field.type)
            case _:
                return _lists(self.edges, self._item_values(group, name), field.type)

    def _item_values(self, group: str, name: str) -> NDArray[Any]:
        match group:
            case "item":
                return self._item_feature(name) if name else self.item
            case "depth":
                return self.chosen_depth
            case "rank":
                return self.rank
            case "grade":
                return self.grade
            case "relevance":
                return self._relevance()
            case "feedback":
                return self._logged(name)
            case _:
                assert self.spec.truth is not None  # no other column is left
                return self._logged(self.spec.truth)

    def _request_feature(self, group: Group, name: str) -> NDArray[Any]:
        feature = getattr(self.spec.features, group)[name]
        column = column_of(self.spec, name, feature)
        if column in self.extra.columns and column not in self.rows.columns:
            raw = self.extra[column]
        else:
            raw = self.rows[column].gather(self.requests["row"])
        return self._encode(group, name, raw, self.requests["key"])

    def _item_feature(self, name: str) -> NDArray[Any]:
        feature = self.spec.features.item[name]
        logged = self.row >= 0
        raw = self.rows[column_of(self.spec, name, feature)].gather(self.row[logged])
        keys = self.requests["key"].gather(self.number[logged])
        values = self._encode("item", name, raw, keys)
        if logged.all():
            return values
        assert self.items is not None
        table = _flat_values(self.items[f"item.{name}"])
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
            raw = self.rows[config.columns[feature]].gather(self.requests["row"])
        else:
            raise ValueError(f"sequences.{name}: nothing gives the values of {feature!r}")
        if not isinstance(raw.dtype, pl.List):
            raise ValueError(f"column {raw.name!r}: found {raw.dtype}, expected lists")
        raw = raw.list.tail(config.max_length)
        lengths = raw.list.len().fill_null(0).to_numpy().astype(np.int64)
        edges = _edges(lengths)
        self._check_same_lengths(name, lengths)
        values = raw.explode(empty_as_null=False, keep_nulls=False).alias(raw.name)
        keys = self.requests["key"].gather(np.repeat(np.arange(len(lengths)), lengths))
        return _lists(edges, self._encode("item", feature, values, keys, of=column), kind)

    def _check_same_lengths(self, name: str, lengths: Integers) -> None:
        seen: dict[str, Integers] = self.__dict__.setdefault("_sequence_lengths", {})
        if (differ := np.flatnonzero(seen.setdefault(name, lengths) != lengths)).size:
            key = self.requests["key"][int(differ[0])]
            raise ValueError(f"sequences.{name}: the features of request {key!r} have different numbers of events")

    def _relevance(self) -> NDArray[np.float32]:
        values = self._of_chosen(self._relevance_of_rows())
        found = np.bincount(self.number, values > 0, minlength=len(self.requests))
        self.counts.without_relevant = int((found == 0).sum())
        return values

    def _relevance_of_rows(self) -> NDArray[np.float32]:
        """Of all rows, chosen or not."""
        relevant = self.spec.relevant
        if relevant.stage is not None:
            return (self.depth >= self.spec.stage_names.index(relevant.stage)).astype(np.float32)
        assert relevant.column is not None
        return np.maximum(self._numbers(relevant.column), 0)

    def _numbers(self, column: str) -> NDArray[np.float32]:
        """The numbers of all rows; nothing and NaN count 0."""
        values = self.rows[column].cast(pl.Float32).fill_null(0).fill_nan(0).to_numpy()
        if (bad := np.flatnonzero(np.isinf(values))).size:
            raise ValueError(f"column {column!r}: found {values[bad[0]]} ({place(self.rows, self.spec, int(bad[0]))})")
        return values

    def _logged(self, column: str) -> NDArray[np.float32]:
        return self._of_chosen(self._numbers(column))

    def _of_chosen(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of the log's rows those of the chosen items; items that are not from the log have 0."""
        if len(values) == 0:
            return np.zeros(len(self.row), np.float32)
        return np.where(self.row >= 0, values[np.maximum(self.row, 0)], np.float32(0))

    def _encode(self, group: Group, name: str, raw: pl.Series, keys: pl.Series, of: str | None = None) -> NDArray[Any]:
        try:
            values = self.encoding.encode(group, name, raw)
        except BadValueError as error:
            raise ValueError(f"{error} (request {keys[error.position]!r})") from None
        if not is_dense(getattr(self.spec.features, group)[name]):
            key = of or f"{group}.{name}"
            self.counts.values[key] += len(values)
            self.counts.missing[key] += int((values == MISSING).sum())
            self.counts.unseen[key] += int((values == UNSEEN).sum())
        return values


def _flat_values(column: pa.ChunkedArray) -> NDArray[Any]:
    """The numbers of a column, (n,) or (n, size)."""
    array = column.combine_chunks()
    if pa.types.is_fixed_size_list(array.type):
        return np.asarray(array.flatten()).reshape(len(array), array.type.list_size)
    return np.asarray(array)


def _flat_array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), kind.value_type), type=kind)
    return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind)


def _edges(lengths: Integers) -> Integers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _lists(edges: Integers, values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), _flat_array(values, kind.value_type), type=kind)
