"""A sample of the impressions of a log as requests, on which an export is measured and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rankfall.data import ImpressionLoader
from rankfall.data.impressions.items import differ
from rankfall.data.impressions.repeats import FARTHER, compare_repeats
from rankfall.encoding import UNSEEN
from rankfall.serving.encoded_requests import NO_ITEM, EncodedRequests
from rankfall.serving.export.item_table import ids_of
from rankfall.serving.request_encoder import MASK
from rankfall.training.cascade_metrics import ground_truth, user_feature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from rankfall.data import ImpressionLog, Impressions
    from rankfall.data.impressions.spec import Features
    from rankfall.serving.export.item_table import ItemTable

    Rows = NDArray[np.int64]

CHANGES = 0.5  # share of changes between the impressions of an item above which a feature is refused
_MIN_PAIRS = 50  # of impressions of the same item, below which the share is not reliable


@dataclass(frozen=True, slots=True)
class Reactions:
    """Items that the log knows to be relevant to a request, or that got feedback, as columns.

    Attributes:
        request: The index of the request in the sample, ascending.
        row: The row of the item in the table of the bundle, -1 for items that it does not have.
        ids: The id of the item in the source of the log.
        share: The membership of the item in the ground truth of its request; items tied at the cut share a place.
        relevance: The relevance in the log.
        feedback: The values of the feedback columns by name.
    """

    request: Rows
    row: Rows
    ids: pa.Array
    share: NDArray[np.float64]
    relevance: NDArray[np.float32]
    feedback: dict[str, NDArray[np.float32]]

    @classmethod
    def join(cls, parts: Sequence[Reactions], counts: Sequence[int]) -> Reactions:
        """Concatenate the reactions to samples of `counts` requests."""
        starts = np.cumsum([0, *counts])
        return cls(
            np.concatenate([part.request + start for part, start in zip(parts, starts, strict=False)]),
            np.concatenate([part.row for part in parts]),
            pa.concat_arrays([part.ids for part in parts]),
            np.concatenate([part.share for part in parts]),
            np.concatenate([part.relevance for part in parts]),
            {name: np.concatenate([part.feedback[name] for part in parts]) for name in parts[0].feedback},
        )


class RequestSample(NamedTuple):
    """Requests with the candidates they had in the log.

    Attributes:
        requests: The requests.
        times: Their times in milliseconds since 1970.
        reactions: What the log knows about relevant items, None if it knows nothing.
        length: The mean number of items of the lists in the log.
        users: The id of the user of each request, where the log knows it.
    """

    requests: EncodedRequests
    times: NDArray[np.int64]
    reactions: Reactions | None = None
    length: float = 0.0
    users: NDArray[np.int64] | None = None


class LoggedItems(NamedTuple):
    """Items of impressions, with their times and their features in the log."""

    rows: Rows  # in the table of items, -1 for items that it does not have
    items: NDArray[np.int32]
    times: NDArray[np.int64]
    features: dict[str, NDArray[Any]]


def sample_requests(
    log: ImpressionLog,
    days: Sequence[str],
    items: ItemTable,
    features: Features,
    inputs: Iterable[str],
    *,
    count: int,
    k: int,
    relevant: int = 10,
) -> tuple[RequestSample, LoggedItems]:
    """Sample impressions of a log, with the same result for the same arguments.

    Args:
        log: The log.
        days: Its days; each contributes the same number of impressions.
        items: The items of the bundle.
        features: The features of the models. Ids for which they have no row, as in a log that has grown, are unseen.
        inputs: The inputs of the models.
        count: The approximate number of impressions.
        k: The number of items that each request asks for.
        relevant: The number of relevant items per request that are its ground truth.
    """
    chosen = [day.name for day in log.choose(days) if len(day)]
    if not chosen:
        raise ValueError(f"{log.path}: found no impressions on {', '.join(days)}, expected some to check the bundle on")
    numbers, ids = ids_of(log)
    rows_of = items.lookup.find(ids) if items.lookup.values.type == ids.type else np.full(len(ids), NO_ITEM)
    parts: list[tuple[RequestSample, LoggedItems]] = []
    user, users = user_feature(log.spec), []
    for day in chosen:
        each = -(-count // len(chosen))
        loader = ImpressionLoader(log, day, batch=each, window=max(each, 4096), seed=0, prefetch=0)
        impressions = next(iter(loader))
        places = np.searchsorted(numbers, impressions.item.numpy().clip(numbers[0]))
        rows = rows_of[places]
        sample, logged_items = _convert(impressions, rows, features, inputs, k)
        reactions = _reactions(impressions, rows, ids, places, relevant)
        parts.append((sample._replace(reactions=reactions), logged_items))
        if user is not None:
            users.append(impressions.user[user].long().numpy())
    samples = [sample for sample, _ in parts]
    counts = [len(sample.requests) for sample in samples]
    logged = [of for _, of in parts]
    joined = RequestSample(
        EncodedRequests.join([sample.requests for sample in samples]),
        np.concatenate([sample.times for sample in samples]),
        Reactions.join([sample.reactions for sample in samples if sample.reactions is not None], counts),
        float(np.average([sample.length for sample in samples], weights=counts)),
        np.concatenate(users) if users else None,
    )
    return joined, LoggedItems(
        np.concatenate([of.rows for of in logged]),
        np.concatenate([of.items for of in logged]),
        np.concatenate([of.times for of in logged]),
        {name: np.concatenate([of.features[name] for of in logged]) for name in logged[0].features},
    )


def _convert(
    impressions: Impressions, rows: Rows, features: Features, inputs: Iterable[str], k: int
) -> tuple[RequestSample, LoggedItems]:
    table_rows = {(feature.group, feature.name): feature.rows for feature in features.features}
    mask = impressions.mask.numpy()
    rows = np.where(mask, rows, NO_ITEM)
    arrays: dict[str, NDArray[Any]] = {}
    for name in inputs:
        group, _, rest = name.partition(".")
        sequence, _, feature = rest.partition(".")
        if group in ("user", "context"):
            arrays[name] = _limit(getattr(impressions, group)[rest].numpy(), table_rows[group, rest])  # type: ignore[index]
        elif group == "sequence" and feature == MASK:
            arrays[name] = impressions.sequence_mask[sequence].numpy()
        elif group == "sequence":
            arrays[name] = _limit(impressions.sequences[sequence][feature].numpy(), table_rows["item", feature])
    requests = EncodedRequests.with_candidates(arrays, [row[row != NO_ITEM] for row in rows], k)
    logged = mask & (impressions.depth.numpy() >= 0)  # the others were drawn from the table of items
    times = impressions.time.numpy()
    of_items = {
        f"item.{name}": _limit(values.numpy()[logged], table_rows["item", name])
        for name, values in impressions.items.items()
        if ("item", name) in table_rows
    }
    item_times = np.broadcast_to(times[:, None], mask.shape)[logged]
    logged_items = LoggedItems(rows[logged], impressions.item.numpy()[logged], item_times, of_items)
    return RequestSample(requests, times, length=float(mask.sum(axis=1).mean())), logged_items


def _reactions(impressions: Impressions, rows: Rows, ids: pa.Array, places: Rows, relevant: int) -> Reactions:
    """Return the items of impressions that are relevant or got feedback; `places` are their positions in `ids`."""
    feedback = {name: values.numpy() for name, values in impressions.feedback.items()}
    relevance = impressions.relevance.numpy()
    known = relevance > 0
    for values in feedback.values():
        known = known | (values > 0)
    known = known & impressions.mask.numpy()
    share = ground_truth(impressions, relevant).double().numpy()
    request, _ = np.nonzero(known)
    of_items = {name: values[known] for name, values in feedback.items()}
    return Reactions(request, rows[known], ids.take(pa.array(places[known])), share[known], relevance[known], of_items)


def _limit(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Replace ids for which the model has no row; numbers, which have no rows, are returned as they are."""
    if not rows or not (unknown := values >= rows).any():
        return values
    return np.where(unknown, UNSEEN, values).astype(values.dtype)


def check_features(logged: LoggedItems, items: ItemTable, *, per_request: Collection[str]) -> list[str]:
    """Refuse item features that depend on the request, as a bundle has one value per item.

    Args:
        logged: Items of impressions of the log.
        items: The items of the bundle.
        per_request: Features that the log declares as dependent on the request; of them no value may differ.

    Returns:
        Notes about features of which the log sometimes has other values than the table.
    """
    order = np.lexsort((logged.times, logged.items))
    again = np.flatnonzero(np.diff(logged.items[order]) == 0)
    before, after = order[again], order[again + 1]
    known = logged.rows != NO_ITEM
    notes = []
    for name in items.features:
        values = logged.features[name]
        changed = differ(values[before], values[after])
        other = differ(values[known], items.features[name][logged.rows[known]])
        is_unsure = name in per_request and (len(changed) < _MIN_PAIRS or changed.any())
        closer, farther = compare_repeats(values[before], values[after], values[(after + 1) % len(values)])
        is_own = farther <= FARTHER * (closer + farther)  # it may change with time, as counters do
        if is_unsure or (len(changed) >= _MIN_PAIRS and changed.mean() > CHANGES and not is_own):
            share = f" ({changed.mean():.0%} of the repeated impressions of an item)" if len(changed) else ""
            raise ValueError(
                f"{name} depends on the request{share}, but a bundle has one value for each item. Leave it out of the "
                "models (`only`), or make it a feature of the context"
            )
        if other.any():
            notes.append(f"{name}: {other.mean():.1%} of the log's values differ from those of the items now")
    return notes
