"""Random negatives: items that are drawn and appended to the lists of impressions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rankfall._errors import RankfallError
from rankfall.data.impressions.items import (
    ITEMS,
    VERSIONS,
    VOCABULARIES,
    differ,
    find_items,
    item_schema,
    version_rows,
    version_schema,
)
from rankfall.data.impressions.loader.window import Column, lengths_of, mask_of, numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.data.impressions.loader.impression_loader import ItemFirstSeen, Rows
    from rankfall.data.impressions.loader.window import Arrays, Layout
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec


ROOMY = 4  # from this many items per excluded or wanted item on, at least three of four draws are valid


NOTHING = np.array([-1], np.int32)  # a pool of padding, from which nothing is drawn


@dataclass(frozen=True, slots=True)
class Pool:
    """Items to draw from, sorted and without duplicates."""

    items: NDArray[np.int32]
    features: Arrays
    places: Rows | NDArray[np.int32] | None = None  # the rows of the items in `features`; None: in the same order


class KnownItems:
    """The items of a log, each from the first day on which an impression has it, also among its left-out items.

    Items are not drawn before they are known: a model would see them as negatives only, and what it learns from that is
    wrong on the days on which they appear. They have the features that requests of the day see, see
    :mod:`rankfall.data.impressions.items`.
    """

    def __init__(self, log: ImpressionLog, layout: Layout, last: str, first_days: ItemFirstSeen) -> None:
        """Read the days up to `last`, except those that `first_days` has read already."""
        self._items, self._features, self._versions = _all_items(log, layout)
        self._days = list(log.days)[: list(log.days).index(last) + 1]
        self._first = first_days.numbers(log, self._days, self._items)
        self._rows: tuple[str, NDArray[np.int32]] | None = None
        count = len(self._items)
        owners = None if self._versions is None else find_items(self._items, self._versions["item"].to_numpy())[0]
        self._changing = [
            name
            for name, values in self._features.items()
            if owners is not None and differ(values[owners], values[count:]).any()
        ]

    def until(self, day: str) -> Pool:
        """Return the items known at the end of a day."""
        places = np.flatnonzero(self._first <= self._days.index(day))
        if not len(places):
            return Pool(NOTHING, self._features)
        if self._versions is not None:
            return Pool(self._items[places], self._features, self._rows_on(day)[places])
        if len(places) == len(self._first):
            return Pool(self._items, self._features)
        return Pool(self._items[places], self._features, places)

    def count_until(self, day: str) -> int:
        """Return the number of items known at the end of a day."""
        return int((self._first <= self._days.index(day)).sum())

    def look_up(self, arrays: Arrays, day: str) -> None:
        """Give the items of lists the features that drawn items have, so that these do not tell both apart.

        Args:
            arrays: The columns of the impressions, whose features of items are replaced.
            day: The day of the impressions.
        """
        if not self._changing:
            return
        places, known = find_items(self._items, arrays["item"])
        rows, everywhere = self._rows_on(day)[places], known.all()
        for name in self._changing:
            values = self._features[name].take(rows, axis=0)
            if not everywhere:
                values[~known] = arrays[name][~known]
            arrays[name] = values

    def _rows_on(self, day: str) -> NDArray[np.int32]:
        """Return the row of the features of each item that requests of a day see."""
        assert self._versions is not None
        if self._rows is None or self._rows[0] != day:
            self._rows = day, version_rows(self._items, self._versions, day)
        return self._rows[1]


def _all_items(log: ImpressionLog, layout: Layout) -> tuple[NDArray[np.int32], Arrays, pa.Table | None]:
    """Return the items, the features of their newest and then of their earlier versions, and the latter."""
    table = log.items().combine_chunks()
    versions = log.item_versions()
    ids = table.schema.field("id").type if "id" in table.schema.names else None
    if table.schema != item_schema(log.spec, ids=ids):
        raise RankfallError(f"path: {log.path / ITEMS} does not match the spec of its log")
    if versions is not None and versions.schema != version_schema(log.spec):
        raise RankfallError(f"path: {log.path / VERSIONS} does not match the spec of its log")
    if not len(table):
        raise RankfallError(f"negatives: the item table of {log.path} is empty, expected items to draw from")
    # the table may be newer than the log, which is then limited to the ids that it knows
    known = {
        f"item.{one.name}": one.rows for one in log.features.of("item") if one.embedding in log.manifest[VOCABULARIES]
    }
    columns = [replace(column, rows=known.get(column.name)) for column in _features(layout)]
    features = {column.name: column.limited(numbers(table[column.name].chunk(0), column)) for column in columns}
    if versions is not None:
        versions = versions.combine_chunks()
        for column in columns:
            earlier = column.limited(numbers(versions[column.name].chunk(0), column))
            features[column.name] = np.concatenate([features[column.name], earlier])
    return table["item"].chunk(0).to_numpy(), features, versions


def pool_of_batch(arrays: Arrays, layout: Layout) -> Pool:
    """Return every item of a batch, with its features in one of the impressions."""
    mask = mask_of(arrays[lengths_of(layout.items)], layout.items.width)
    places = np.flatnonzero(mask)
    keys = np.sort(arrays["item"].reshape(-1)[places].astype(np.int64) << 32 | places)
    keys = keys[np.diff(keys >> 32, prepend=-1) > 0]
    features = {column.name: arrays[column.name].reshape(column.shape(-1)) for column in _features(layout)}
    if not len(keys):
        return Pool(NOTHING, features)
    return Pool((keys >> 32).astype(np.int32), features, keys & 0xFFFFFFFF)


def append(arrays: Arrays, layout: Layout, pool: Pool, drawn: Rows) -> NDArray[np.bool_]:
    """Append drawn items to the padded lists.

    Args:
        arrays: The columns of the impressions, which are replaced by longer ones.
        layout: The columns.
        pool: The items that were drawn from.
        drawn: Positions in the pool, (impressions, count), -1 for none.

    Returns:
        The mask of the longer lists.
    """
    (rows, count), width = drawn.shape, layout.items.width
    found = drawn >= 0
    places = drawn if pool.places is None else pool.places[drawn]
    for column in layout.items.columns:
        longer = np.empty(column.shape(rows, width + count), column.dtype)
        longer[:, :width] = arrays[column.name]
        added = longer[:, width:]
        if column.name == "item":
            added[...] = np.where(found, pool.items[drawn], column.padding)
        elif column.name in pool.features:
            added[...] = pool.features[column.name].take(places, axis=0, mode="clip")  # -1 is out of range
            added[~found] = column.padding
        else:
            added[...] = column.padding if column.name != "truth" else np.where(found, np.nan, column.padding)
        arrays[column.name] = longer
    return np.concatenate([mask_of(arrays[lengths_of(layout.items)], width), found], axis=1)


def close_up(arrays: Arrays, layout: Layout, mask: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Remove the padding between items and appended items, and cut the lists to `length`; return their mask."""
    width = layout.items.width
    slots, lengths = np.arange(length), arrays[lengths_of(layout.items)][:, None]
    index = np.where(slots < lengths, slots, slots - lengths + width)
    for column in layout.items.columns:
        at = index if column.size == 1 else index[..., None]
        arrays[column.name] = np.take_along_axis(arrays[column.name], at, axis=1)
    return np.take_along_axis(mask, index, axis=1)


def _features(layout: Layout) -> list[Column]:
    return [column for column in layout.items.columns if column.name.startswith("item.")]


# --- the draw ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetLists:
    """The lists that items are drawn for: a `part` of a batch of `rows` impressions."""

    own: NDArray[np.int32]  # the items of the lists, which are not drawn
    rows: int
    part: slice
    left_out: Rows | None = None  # further items that are not drawn, in the form of LeftOut.take
    most_left_out: int = 0  # the largest number of them in any impression of the days


def draw(targets: TargetLists, pool: NDArray[np.int32], count: int, rng: np.random.Generator) -> Rows:
    """Draw `count` different items of the pool for each list, excluding the items that the list has.

    The items of a list do not depend on the part of the batch that it belongs to.

    Returns:
        Positions in the pool, (lists, count). If the pool has not enough items, the last positions are -1.
    """
    if len(pool) >= ROOMY * (targets.own.shape[1] + targets.most_left_out + count):
        return _draw_again(targets, pool, count, rng)
    return _draw_from_all(targets, pool, count, rng)


def _draw_again(targets: TargetLists, pool: NDArray[np.int32], count: int, rng: np.random.Generator) -> Rows:
    """Draw, and redraw invalid items. All items are treated alike, so the result is uniform."""

    def fresh() -> Rows:  # for the whole batch, so that the draws of one part do not depend on the others
        return rng.integers(len(pool), size=(targets.rows, count))[targets.part]

    drawn, lists = fresh(), np.arange(len(targets.own))
    while True:
        items = pool[drawn[lists]]
        again = _repeated(targets.own[lists], items)
        if targets.left_out is not None:
            again |= _among(targets.left_out, lists[:, None] << 32 | items)
        unlucky = again.any(axis=1)
        lists, again = lists[unlucky], again[unlucky]
        if not len(lists):
            return drawn
        drawn[lists] = np.where(again, fresh()[lists], drawn[lists])


def _repeated(own: NDArray[np.int32], drawn: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which drawn items are in their list already, or occur earlier among the drawn ones."""
    items = np.concatenate([own, drawn], axis=1).astype(np.int64)
    keys = np.sort(items << 32 | np.arange(items.shape[1]), axis=1)
    lists, at = np.nonzero((keys[:, 1:] ^ keys[:, :-1]).view(np.uint64) < 1 << 32)  # equal neighbours
    repeated = np.zeros(items.shape, bool)
    repeated[lists, keys[lists, at + 1] & 0xFFFFFFFF] = True
    return repeated[:, own.shape[1] :]


def _among(known: NDArray[Any], asked: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are among the known ones, which are sorted and not empty."""
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
    return found


def _draw_from_all(targets: TargetLists, pool: NDArray[np.int32], count: int, rng: np.random.Generator) -> Rows:
    """Order the whole pool randomly and take the first valid items; used if most of the pool is excluded."""
    keys: NDArray[Any] = rng.random((targets.rows, len(pool)))[targets.part]
    places = np.minimum(np.searchsorted(pool, targets.own), len(pool) - 1)
    lists, at = np.nonzero(pool[places] == targets.own)
    keys[lists, places[lists, at]] = np.inf
    if targets.left_out is not None:
        lists, items = targets.left_out >> 32, (targets.left_out & 0xFFFFFFFF).astype(np.int32)
        known = _among(pool, items)
        keys[lists[known], np.searchsorted(pool, items[known])] = np.inf
    order = np.argsort(keys, axis=1)[:, :count]
    drawn: Rows = np.full((len(targets.own), count), -1, np.int64)
    drawn[:, : order.shape[1]] = np.where(np.isinf(np.take_along_axis(keys, order, axis=1)), -1, order)
    return drawn


Labels = Literal["full", "published", "rank", "relevance"]

_PADDING = np.iinfo(np.int32).max


def first_ordered_depth(spec: Spec) -> int:
    """Return the depth of the relevant stage, from which on the scheme ``"published"`` orders items.

    Raises:
        ValueError: If the log has no relevant stage.
    """
    if spec.relevant.stage is None:
        raise RankfallError(
            f"labels: found 'published', which orders the items of the relevant stage only, but relevance is the "
            f"column {spec.relevant.column!r} of this log; expected 'full'"
        )
    return spec.stage_names.index(spec.relevant.stage)


def published_grades(
    grade: NDArray[np.integer[Any]], depth: NDArray[np.integer[Any]], mask: NDArray[np.bool_], *, ordered_from: int
) -> NDArray[np.integer[Any]]:
    """Return grades as in LCRON's table 1: one per stage, except that the items of the relevant stage keep their order.

    LCRON labels ``rank_pos`` with 1 to 20, ``rank_neg`` with 21, ``coarse_neg`` with 22 and ``prerank_neg`` with 23;
    the smallest label is the best. Here the grades are 0 for ``prerank_neg``, 1, 2, and from 3 on for ``rank_pos``.
    Items with equal full-stage grades keep equal grades, so random items that were added to a list have grade 0.

    Args:
        grade: Full-stage grades ``(B, N)``.
        depth: Deepest logged stage ``(B, N)`` of each item.
        mask: True for real items ``(B, N)``.
        ordered_from: Depth from which on items keep their order.
    """
    values = np.where(mask, grade, _PADDING)
    for stage in range(-1, ordered_from):
        of_stage = mask & (depth == stage)
        lowest = values.min(axis=1, where=of_stage, initial=_PADDING, keepdims=True)
        values = np.where(of_stage, lowest, values)
    return _places(values, mask)


def rank_grades(rank: NDArray[np.integer[Any]], mask: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return grades by the logged rank alone, whatever the stage (ARF, B.1).

    Use it for logs in which one model ranks the items of all stages. Items without a rank have the lowest grade.

    Args:
        rank: Logged rank ``(B, N)``, the smallest is the best; -1 for none.
        mask: True for real items ``(B, N)``.
    """
    lowest = np.iinfo(np.int32).min
    return _places(np.where(mask, np.where(rank < 0, lowest, -rank), _PADDING), mask)


def relevance_grades(relevance: NDArray[np.floating[Any]], mask: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return grades by the relevance alone: items of equal relevance share a grade, irrelevant items have 0.

    Use it for logs whose relevance is feedback of users: full-stage grades follow the order of production, so that an
    objective trained with them imitates production.

    Args:
        relevance: Relevance ``(B, N)``, at least 0.
        mask: True for real items ``(B, N)``.
    """
    # numbers from 0 on have the same order as their bits
    keys = np.ascontiguousarray(relevance + np.float32(0), np.float32).view(np.int32)  # -0.0 becomes 0.0
    has_zero = (mask & (keys == 0)).any(axis=1, keepdims=True)
    places = _places(np.where(mask, keys, _PADDING), mask)
    return np.where(mask & (keys > 0) & ~has_zero, places + 1, places)


def _places(values: NDArray[np.integer[Any]], mask: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return the place of each value among the different values of its list, from 0 for the lowest; 0 for padding."""
    order = np.argsort(values, axis=1)
    best_last = np.take_along_axis(values, order, axis=1)
    places = np.zeros_like(values)
    places[:, 1:] = np.cumsum(best_last[:, 1:] != best_last[:, :-1], axis=1)
    grades = np.empty_like(values)
    np.put_along_axis(grades, order, places, axis=1)
    return np.where(mask, grades, grades.dtype.type(0))
