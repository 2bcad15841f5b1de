"""Real requests: a sample of a log's impressions, against which everything that is exported is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rankfall._ids import UNSEEN
from rankfall.data import ImpressionLoader
from rankfall.serving.export.item_table import ids_of
from rankfall.serving.onnx_stages import NO_ITEM
from rankfall.serving.request_encoder import MASK, Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rankfall.data import ImpressionLog, Impressions
    from rankfall.data.impressions.spec import Features
    from rankfall.serving.export.item_table import ItemTable

    Rows = NDArray[np.int64]

CHANGES = 0.5  # share of an item's impressions in which a feature is another than before, from which on it is refused
_PAIRS = 50  # that are needed to say anything


class Sample(NamedTuple):
    """Requests with the candidates they had in the log, and when they were made, in ms since 1970."""

    batch: Batch
    times: NDArray[np.int64]


class Logged(NamedTuple):
    """Items of impressions: which, when, and the features that the log has for them there."""

    rows: Rows  # in the table of items, -1: it does not have them
    items: NDArray[np.int32]
    times: NDArray[np.int64]
    features: dict[str, NDArray[Any]]


def draw(
    log: ImpressionLog,
    days: Sequence[str],
    items: ItemTable,
    features: Features,
    inputs: Iterable[str],
    *,
    count: int,
    k: int,
) -> tuple[Sample, Logged]:
    """About so many impressions that want `k` items, as many of each day, at random but always the same.

    Ids for which the model has no row in `features`, as those of a log that has grown since, were never seen.
    """
    chosen = [day.name for day in log.choose(days) if len(day)]
    if not chosen:
        raise ValueError(f"{log.path}: found no impressions on {', '.join(days)}, expected some to check the bundle on")
    numbers, ids = ids_of(log)
    rows_of = items.lookup.find(ids) if _alike(items, ids) else np.full(len(ids), NO_ITEM)
    parts: list[tuple[Sample, Logged]] = []
    for day in chosen:
        each = -(-count // len(chosen))
        loader = ImpressionLoader(log, day, batch=each, window=max(each, 4096), seed=0, prefetch=0)
        impressions = next(iter(loader))
        rows = rows_of[np.searchsorted(numbers, impressions.item.numpy().clip(numbers[0]))]
        parts.append(_part(impressions, rows, features, inputs, k))
    batch = Batch.join([sample.batch for sample, _ in parts])
    logged = [of for _, of in parts]
    return Sample(batch, np.concatenate([sample.times for sample, _ in parts])), Logged(
        np.concatenate([of.rows for of in logged]),
        np.concatenate([of.items for of in logged]),
        np.concatenate([of.times for of in logged]),
        {name: np.concatenate([of.features[name] for of in logged]) for name in logged[0].features},
    )


def _alike(items: ItemTable, ids: Any) -> bool:
    return bool(items.lookup.values.type == ids.type)


def _part(
    impressions: Impressions, rows: Rows, features: Features, inputs: Iterable[str], k: int
) -> tuple[Sample, Logged]:
    known: dict[tuple[str, str], int] = {(feature.group, feature.name): feature.rows for feature in features.features}
    mask = impressions.mask.numpy()
    rows = np.where(mask, rows, NO_ITEM)
    arrays: dict[str, NDArray[Any]] = {}
    for name in inputs:
        group, _, rest = name.partition(".")
        sequence, _, feature = rest.partition(".")
        if group in ("user", "context"):
            arrays[name] = _fitted(getattr(impressions, group)[rest].numpy(), known[group, rest])
        elif group == "sequence" and feature == MASK:
            arrays[name] = impressions.sequence_mask[sequence].numpy()
        elif group == "sequence":
            arrays[name] = _fitted(impressions.sequences[sequence][feature].numpy(), known["item", feature])
    count = len(impressions)
    batch = Batch(
        arrays,
        np.full(count, k),
        [row[row != NO_ITEM] for row in rows],
        [np.empty(0, np.int64)] * count,
        [[] for _ in range(count)],
    )
    logged = mask & (impressions.depth.numpy() >= 0)  # others were drawn from the table of items
    times = impressions.time.numpy()
    of_items = {
        f"item.{name}": _fitted(values.numpy()[logged], known["item", name])
        for name, values in impressions.items.items()
        if ("item", name) in known
    }
    owner = np.broadcast_to(times[:, None], mask.shape)[logged]
    return Sample(batch, times), Logged(rows[logged], impressions.item.numpy()[logged], owner, of_items)


def _fitted(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Ids for which the model has rows; numbers, which have none, stay as they are."""
    if not rows or not (unknown := values >= rows).any():
        return values
    return np.where(unknown, UNSEEN, values).astype(values.dtype)


def check_features(logged: Logged, items: ItemTable, *, per_request: bool) -> list[str]:
    """Refuse item features that are another in every impression: a bundle has one value of each for an item.

    Returns what is worth a note: features of which the log sometimes had other values than the table has now.
    `per_request` says that the log itself calls its item features such; then none may differ at all.
    """
    order = np.lexsort((logged.times, logged.items))
    again = np.flatnonzero(np.diff(logged.items[order]) == 0)
    before, after = order[again], order[again + 1]
    known = logged.rows != NO_ITEM
    notes = []
    for name in items.features:
        values = logged.features[name]
        changed = _differ(values[before], values[after])
        other = _differ(values[known], items.features[name][logged.rows[known]])
        unsure = per_request and (len(changed) < _PAIRS or changed.any())
        if unsure or (len(changed) >= _PAIRS and changed.mean() > CHANGES):
            share = f" ({changed.mean():.0%} of the times an item comes again)" if len(changed) else ""
            raise ValueError(
                f"{name} depends on the request{share}, but a bundle has one value for each item. Leave it out of the "
                "models (`only`), or make it a feature of the context"
            )
        if other.any():
            notes.append(f"{name}: {other.mean():.1%} of the log's values are others than those of the items now")
    return notes


def _differ(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    differ: NDArray[np.bool_] = np.not_equal(one, other)
    return np.asarray(differ.any(axis=1)) if differ.ndim > 1 else differ
