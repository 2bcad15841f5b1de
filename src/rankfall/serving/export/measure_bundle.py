"""The recall of a bundle over its own items, measured by asking the bundle for requests of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from rankfall._config import Number, Result
from rankfall._errors import RankfallError
from rankfall.data import ImpressionLoader
from rankfall.data.impressions.assemble import FARTHER, compare_repeats
from rankfall.data.impressions.items import differ
from rankfall.encoding import UNSEEN
from rankfall.serving.export.item_table import ids_of
from rankfall.serving.request_encoder import MASK, NO_ITEM, EncodedRequests
from rankfall.training.cascade_metrics import (
    Estimate,
    StageFigures,
    ground_truth,
    stage_figures,
    user_feature,
    user_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.data import ImpressionLog, Impressions
    from rankfall.data.impressions.spec import Features
    from rankfall.serving.bundle import Bundle
    from rankfall.serving.export.item_table import ItemTable

    Rows = NDArray[np.int64]

_BATCH = 64  # requests that are asked for at once
_SCORED = 5_000_000  # pairs of requests and items at most, if the first stage scores every item
_LEAST = 32  # requests in that case


@dataclass(frozen=True)
class RunFigure(Result):
    """The joint recall that the run reported, the mean length of the lists it was measured on, and their days."""

    joint_recall: Number
    list_length: Number | None
    split: str = "test"


@dataclass(frozen=True)
class ServedFigures(Result):
    """What a bundle keeps of the relevant items of logged requests when it ranks all its items.

    Relevant items that were not exported are lost by the first stage.
    """

    requests: int
    """Number of requests with a relevant item."""
    items: int
    """Number of items of the bundle."""
    joint_recall: Estimate
    stages: list[StageFigures]
    index_recall: Number | None
    """Share of the best items that the index of the first stage finds; None without an index."""
    run: RunFigure | None
    """None if the run was not evaluated, or with other stages or quotas."""
    relevant: int
    """Number of relevant items of all these requests."""
    not_exported: int
    """Number of these that the bundle does not have."""
    resampled: Literal["requests", "users"] = "requests"
    """What intervals are over, as in an evaluation."""


def measure_bundle(
    bundle: Bundle,
    sample: RequestSample,
    run: RunFigure | None,
    on_requests: Callable[[int, int], None] = lambda done, total: None,
) -> ServedFigures | None:
    """Measure a bundle on the requests of a sample that have a relevant item.

    Args:
        bundle: The bundle, which is asked without candidates.
        sample: Requests of the log.
        run: The figure of the run.
        on_requests: Receives the number of requests that were answered, and their total.

    Returns:
        The figures, None if no request has a relevant item.
    """
    reactions = sample.reactions
    if reactions is None or not (reactions.share > 0).any():
        return None
    places = np.unique(reactions.request[reactions.share > 0])
    if "index" not in bundle.manifest["stages"][0]:
        places = places[: max(_LEAST, _SCORED // len(bundle.items))]
    # the share of the ground truth of each request that is left after each stage (R, T)
    left = np.zeros((len(places), len(bundle.stages)))
    requests = sample.requests.without_candidates()
    first, last = (np.searchsorted(reactions.request, places, side=side) for side in ("left", "right"))
    for start in range(0, len(places), _BATCH):
        some = places[start : start + _BATCH]
        for at, ranking in enumerate(bundle.run(requests.take(some), explain=True).rankings, start):
            known = slice(first[at], last[at])
            share, ids = reactions.share[known], reactions.ids[known].to_pylist()
            assert ranking.stages is not None  # asked for
            for stage, trace in enumerate(ranking.stages):
                kept = set(trace.ids[: trace.kept])
                left[at, stage] = share[[one in kept for one in ids]].sum() / share.sum()
        on_requests(min(start + _BATCH, len(places)), len(places))
    counted = np.isin(reactions.request, places) & (reactions.share > 0)
    ranked = torch.full((len(places),), len(bundle.items))
    users = None if sample.users is None else user_numbers(torch.from_numpy(sample.users[places]))
    stages = stage_figures(bundle.names, bundle.quotas, torch.from_numpy(left), ranked, units=users)
    return ServedFigures(
        requests=len(places),
        items=len(bundle.items),
        joint_recall=stages[-1].survived,
        stages=stages,
        index_recall=bundle.manifest["stages"][0].get("index", {}).get("recall"),
        run=run,
        relevant=int(counted.sum()),
        resampled="requests" if users is None else "users",
        not_exported=int((reactions.row[counted] < 0).sum()),
    )


def run_figure(metrics: Mapping[str, Any], *, best_is_recall: bool, list_length: float | None) -> RunFigure | None:
    """Return the joint recall that a run stored: that of its evaluation, otherwise that of its best epoch.

    Args:
        metrics: The content of its evaluations by name of the split, and of ``result.json`` as ``training``.
        best_is_recall: Whether the joint recall chose the best epoch.
        list_length: Length of the lists of the configuration, for a run that was not evaluated.
    """
    for split in ("test", "valid"):
        evaluation = metrics.get(split)
        if evaluation is not None and (recall := evaluation["metrics"].get("joint_recall")) is not None:
            return RunFigure(recall, evaluation["lists"]["mean_length"], split)
    if best_is_recall and (best := metrics.get("training", {}).get("best_metric")) is not None:
        return RunFigure(best, list_length, "valid")
    return None


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
        request = np.concatenate([part.request + start for part, start in zip(parts, starts, strict=False)])
        row, share, relevance = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("row", "share", "relevance")
        )
        feedback = {name: np.concatenate([part.feedback[name] for part in parts]) for name in parts[0].feedback}
        return cls(request, row, pa.concat_arrays([part.ids for part in parts]), share, relevance, feedback)


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
        raise RankfallError(
            f"{log.path}: found no impressions on {', '.join(days)}, expected some to check the bundle on"
        )
    numbers, ids = ids_of(log)
    rows_of = items.lookup.find(ids) if items.lookup.values.type == ids.type else np.full(len(ids), NO_ITEM)
    samples: list[RequestSample] = []
    logged: list[LoggedItems] = []
    reactions: list[Reactions] = []
    user, users = user_feature(log.spec), []
    for day in chosen:
        each = -(-count // len(chosen))
        loader = ImpressionLoader(log, day, batch=each, window=max(each, 4096), seed=0, prefetch=0)
        impressions = next(iter(loader))
        places = np.searchsorted(numbers, impressions.item.numpy().clip(numbers[0]))
        rows = rows_of[places]
        sample, logged_items = _convert(impressions, rows, features, inputs, k)
        samples.append(sample)
        logged.append(logged_items)
        reactions.append(_reactions(impressions, rows, ids, places, relevant))
        if user is not None:
            users.append(impressions.user[user].long().numpy())
    counts = [len(sample.requests) for sample in samples]
    joined = RequestSample(
        EncodedRequests.join([sample.requests for sample in samples]),
        np.concatenate([sample.times for sample in samples]),
        Reactions.join(reactions, counts),
        float(np.average([sample.length for sample in samples], weights=counts)),
        np.concatenate(users) if users else None,
    )
    rows, numbers, times = (np.concatenate([of[field] for of in logged]) for field in range(3))
    of_items = {name: np.concatenate([of.features[name] for of in logged]) for name in logged[0].features}
    return joined, LoggedItems(rows, numbers, times, of_items)


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
            raise RankfallError(
                f"{name} depends on the request{share}, but a bundle has one value for each item. Leave it out of the "
                "models (`only`), or make it a feature of the context"
            )
        if other.any():
            notes.append(f"{name}: {other.mean():.1%} of the log's values differ from those of the items now")
    return notes
