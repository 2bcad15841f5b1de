"""What was ranked in a measurement: the lengths of the lists, and the production funnel on the same lists.

Recall over short lists is usually higher than over all items, which a service ranks. A reader has to know which of the
two a figure is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall._errors import RankfallError
from rankfall._lists import has_order, rank_order
from rankfall.data.impressions.items import VOCABULARIES
from rankfall.data.lists.list_loader import Lists
from rankfall.metrics import ndcg, opa
from rankfall.models import TwoTower
from rankfall.models.build import has_vectors
from rankfall.training.cascade_metrics import (
    ListFigures,
    MeasuredFunnel,
    ScoredBatch,
    ground_truth,
    measure_lists,
    stage_figures,
)
from rankfall.training.checks import ignored_sizes, with_sizes
from rankfall.training.config.component_checks import JOINT_VALUE, SHOWN
from rankfall.training.device import device_of, moved
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLoader, ImpressionLog
    from rankfall.data.impressions.loader import Catalogue, Impressions
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.lists.ranking_data import RankingSplit
    from rankfall.metrics.named import NamedMetric
    from rankfall.training.cascade_metrics import ScoreBatch, StageFigures
    from rankfall.training.checks import Ranker
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.distributed.group import Group


SHORT = 2  # lists are much shorter than the catalogue if it has this many times their items
NO_RANK = 2.0**31  # in place of the rank of an item without one: after all others of its stage


def fit_warning(log: ImpressionLog, days: Sequence[str], train: Sequence[str]) -> str | None:
    """Return a warning if the encoding of a log was fitted to days that are measured.

    Args:
        log: The log.
        days: The days that are measured.
        train: Days and ranges of days that the model was trained on.
    """
    about = log.manifest.get("about", {})
    fitted = [*log.manifest.get(VOCABULARIES, ()), *about.get("scalings", ()), *about.get("edges", ())]
    trained: set[str] = set()
    with suppress(ValueError):  # another log need not have these days
        trained = {day.name for day in log.choose(train)}
    seen = [day for day in about.get("fit_days", ()) if day in days and day not in trained]
    if not fitted or not seen:
        return None
    return (
        f"the log was fitted to days that are measured ({', '.join(seen[:3])}{', ...' if len(seen) > 3 else ''}): its "
        f"vocabularies, scalings and buckets know their values; --fit-days {list(log.days).index(seen[0]) or 1} of "
        "'rankfall prepare rows' leaves these days out"
    )


def joined_warning(log: ImpressionLog, days: Sequence[str]) -> str | None:
    """Return a warning if days were joined from what a service recorded."""
    joined = [day for day in log.joined_days if day in days]
    if not joined:
        return None
    return (
        f"on {', '.join(joined)} users saw only what a cascade had answered: the model that served such a day kept all "
        "its relevant items, so that its recall is 1 by construction; do not compare it with other days or models"
    )


def short_lists(loader: ImpressionLoader) -> str | None:
    """Return a warning if the lists of a loader are much shorter than the catalogue of its last day."""
    catalogue = loader.catalogue_size()
    return None if catalogue is None else _short(loader.mean_length(), catalogue, loader.last_day)


def _short(mean_length: float, catalogue: int, day: str) -> str | None:
    if catalogue < SHORT * mean_length:
        return None
    return (
        f"recall is measured on lists of {mean_length:,.0f} items, but the log has {catalogue:,} items by {day}; over "
        "all of them, as in a service, recall is usually lower: data.length=all measures it"
    )


@dataclass(slots=True)
class MeasuredLists:
    """Collects what was ranked, batch by batch.

    Args:
        loader: The loader of the batches.
        config: Configuration of the measurement.
        score: Scores the lists of a batch.
    """

    loader: ImpressionLoader
    config: CascadeConfig
    score: ScoreBatch
    _ranked: list[Tensor] = field(default_factory=list)
    _left: list[Tensor] = field(default_factory=list)
    _reached: list[Tensor] = field(default_factory=list)
    _sizes: tuple[float, float] = (0.0, 0.0)
    _shown: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = field(default_factory=list)

    def add(self, loaded: Impressions, scored: ScoredBatch) -> None:
        """Add a batch as it was loaded, and as it was scored."""
        self._ranked.append(scored.ranked)
        self._sizes = with_sizes(self._sizes, loaded)
        if self._spec.relevant.column is not None:
            lists = scored if scored.complete else self.score(loaded)
            names = [stage.name for stage in self.config.stages]
            self._shown.append(within_shown(lists, names, len(self._spec.stages)))
        if self._has_production:
            truth = ground_truth(loaded, self.config.relevant)
            self._left.append(production_left(loaded, truth, [stage.quota for stage in self.config.stages]))
            self._reached.append(_reached(loaded, truth, len(self._spec.stages)))

    @property
    def _spec(self) -> Spec:
        return self.loader.log.spec

    @property
    def _has_production(self) -> bool:
        """Whether the log has ranks and depths of production, and its own definition of relevance."""
        spec = self._spec
        return spec.rank is not None and len(spec.stages) > 1 and spec.relevant.stage is None

    def shown(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the metrics of all lists within what was shown and their chance levels, as :func:`within_shown`."""
        if not self._shown:
            return {}, {}
        parts = zip(*self._shown, strict=True)
        values, chance = ({name: torch.cat([one[name] for one in part]) for name in part[0]} for part in parts)
        return values, chance

    def figures(self) -> ListFigures | None:
        """Return the lengths of the lists; None if items of the log belong to single requests."""
        catalogue = self.loader.catalogue_size()
        if catalogue is None:
            return None
        ranked = torch.cat(self._ranked)
        return ListFigures(
            mean_length=float(ranked.double().mean()),
            longest=int(ranked.max()),
            catalogue=catalogue,
            all_items=self.loader.length == "all",
        )

    def warnings(self) -> list[str]:
        """Return what a reader of the figures has to know about the lists."""
        figures, found = self.figures(), []
        if figures is not None and not figures.all_items:
            found.append(_short(figures.mean_length, figures.catalogue, self.loader.last_day))
        elif figures is not None and (left_out := self.loader.left_out()):
            found.append(
                f"{left_out:,} relevant items were not sampled when the log was prepared: they are ranked with all "
                "other items, but do not count as relevant"
            )
        found.append(fit_warning(self.loader.log, self.loader.days, self.config.data.train))
        found.append(joined_warning(self.loader.log, self.loader.days))
        found.append(ignored_sizes(self._sizes, self._spec, self.config))
        return [text for text in found if text]

    def production(self, units: Tensor | None = None) -> list[StageFigures] | None:
        """Return the figures of production's order, cut at the quotas of the stages.

        Args:
            units: What the bootstrap draws; see :func:`~rankfall.training.cascade_metrics.stage_figures`.
        """
        if not self._left or self._shares()[-1] == 1:
            return None
        stages = self.config.stages
        return stage_figures(
            [stage.name for stage in stages],
            [stage.quota for stage in stages],
            torch.cat(self._left),
            torch.cat(self._ranked),
            units=units,
        )

    def _shares(self) -> list[float]:
        """Return the share of the relevant items that reached each stage of production."""
        shares: list[float] = torch.cat(self._reached).nanmean(0).tolist()
        return shares

    def production_note(self) -> str | None:
        """Return how to read the figures of production, or why there are none."""
        spec = self._spec
        if spec.rank is None or len(spec.stages) < 2:
            return None
        if spec.relevant.stage is not None:
            return (
                f"Relevance is defined by production itself: items that reached its stage {spec.relevant.stage}. Its "
                "own recall is 1 by definition and is not shown."
            )
        shares = self._shares()
        if shares[-1] == 1:
            return (
                f"All relevant items reached production's last stage, {spec.stage_names[-1]}, as feedback exists "
                "only for items that it showed. Its own recall is 1 by construction and is not shown."
            )
        reached = ", ".join(f"{name} {share:.0%}" for name, share in zip(spec.stage_names, shares, strict=True))
        note = (
            "Production is the system that wrote the log: its order, deepest stage first and then by rank, cut at the "
            f"same quotas. Share of the relevant items that reached each of its stages: {reached}."
        )
        if any(stage.sample is not None for stage in spec.stages):
            note += " The log holds a sample of its items. Of all of them it would keep at most these shares."
        if spec.relevant.column in spec.feedback:
            note += " Feedback exists only for items that production showed, which favours it."
        return note


def within_shown(scored: ScoredBatch, names: Sequence[str], logged: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return AUC and NDCG of each stage within the items that were shown, and of constant scores, one value per list.

    Relevance such as a click is known for shown items only, so that these figures do not depend on what was not shown.
    They are NaN for lists whose shown items are all relevant or all irrelevant.

    Args:
        scored: Lists that hold all of their items.
        names: Names of the stages of the cascade.
        logged: Number of stages in the log; items that reached the last one were shown.
    """
    batch = scored.batch
    mask, labels = batch.mask & (batch.depth == logged - 1), (batch.relevance > 0).float()
    undefined = ~has_order(labels, mask)
    values, chance = {}, {}
    for name, scores in zip(names, scored.scores, strict=True):
        for metric, function in (("auc", opa), ("ndcg", ndcg)):
            key, constant = f"{name}/{SHOWN}/{metric}", torch.zeros_like(scores)
            values[key] = function(scores, labels, mask=mask).double().masked_fill(undefined, torch.nan)
            chance[key] = function(constant, labels, mask=mask).double().masked_fill(undefined, torch.nan)
    return values, chance


def production_left(batch: Impressions, truth: Tensor, quotas: Sequence[int]) -> Tensor:
    """Return the share ``(B, T)`` of the ground truth among the best items of production, for T quotas.

    Production's order is the deepest stage first, then the rank in it. Items that it did not log come last. Items
    without a rank have a random order within their stage.

    Args:
        batch: Impressions with logged depths and ranks.
        truth: Membership ``(B, N)`` in the ground truth.
        quotas: Number of items that each stage keeps.

    Returns:
        The shares, NaN for impressions without a relevant item.
    """
    rank = torch.where(batch.rank < 0, NO_RANK, batch.rank.double())
    worth = (batch.depth.double() + 1) * 2 * NO_RANK - rank
    generator = torch.Generator().manual_seed(int(batch.rows[0]))
    shuffle = torch.rand(worth.shape, generator=generator).argsort(-1)
    order = shuffle.gather(-1, rank_order(worth.gather(-1, shuffle), batch.mask.gather(-1, shuffle)))
    found = truth.gather(-1, order).double().cumsum(-1)
    ends = [min(quota, found.shape[-1]) - 1 for quota in quotas]
    return found[:, ends] / found[:, -1:]  # 0 / 0 is NaN


def _reached(batch: Impressions, truth: Tensor, stages: int) -> Tensor:
    """Return the share ``(B, stages)`` of the ground truth that reached each logged stage."""
    deep = batch.depth.unsqueeze(-1) >= torch.arange(stages)
    count = truth.double().sum(-1, keepdim=True)
    return (truth.double().unsqueeze(-1) * deep).sum(-2) / count


SCORES = 1 << 22  # scores of a matrix product at a time: 16 MB
PAIRS = 1 << 14  # requests x items that a model scores at a time; attention needs some 10 kB for each
NOT_LOGGED = {  # values of items that were not logged; others are 0
    "depth": -1,
    "rank": -1,
    "position": -1,
    "inclusion": 1,
    "truth": torch.nan,
}


class AllItemsScorer:
    """Scores the batches of a loader with ``length="all"``.

    Args:
        cascade: The cascade, in evaluation mode.
        loader: The loader, which has the catalogue of each day.
        reach: Number of best items of the first stage in the pruned lists, at least the quota of that stage.
        device: Device of the weights.
    """

    def __init__(self, cascade: Cascade, loader: ImpressionLoader, *, reach: int, device: torch.device) -> None:
        self.cascade, self.loader, self.reach, self.device = cascade, loader, reach, device
        self._day: _DayItems | None = None

    @torch.no_grad()
    def __call__(self, batch: Impressions) -> ScoredBatch:
        """Return pruned lists with the scores of all stages."""
        if self._day is None or self._day.catalogue.day != batch.day:
            self._day = _DayItems(self.cascade, self.loader.catalogue(batch.day), self.device)
        catalogue = self._day.catalogue
        logged = catalogue.places(batch.item, batch.mask)
        best, of_best, of_logged = self._first_stage(self._day, batch, logged)
        further, there = _further_items(best, logged, _is_measured(batch))
        places = torch.cat([best, logged.gather(-1, further).masked_fill(~there, 0)], -1)
        mask = torch.cat([torch.ones_like(best, dtype=torch.bool), there], -1)
        pruned = _lists_of(batch, catalogue, places, mask, logged)
        # A further item may tie with the last of the best, which was drawn; it comes after it.
        below = of_best.amin(-1, keepdim=True).nextafter(torch.tensor(-torch.inf))
        first = torch.cat([of_best, torch.minimum(of_logged.gather(-1, further), below)], -1)
        later = [self._scores(model, pruned) for model in list(self.cascade.models.values())[1:]]
        ranked = torch.full((len(batch),), len(catalogue))
        return ScoredBatch(pruned, [first, *later], ranked, complete=best.shape[-1] == len(catalogue))

    def _first_stage(self, day: _DayItems, batch: Impressions, logged: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places ``(B, K)`` of the best items in the catalogue, their scores, and those of logged items."""
        count = len(day.catalogue)
        generator = torch.Generator().manual_seed(int(batch.rows[0]))
        best, of_best, of_logged = [], [], []
        for rows in _blocks(len(batch), max(1, SCORES // count)):
            scores = day.first_scores(batch.take(rows))
            best.append(best_places(scores, self.reach, generator))
            of_best.append(scores.gather(-1, best[-1]))
            of_logged.append(scores.gather(-1, logged[rows].clamp(max=count - 1)))
        return torch.cat(best), torch.cat(of_best), torch.cat(of_logged)

    def _scores(self, model: nn.Module, batch: Impressions) -> Tensor:
        """Return the scores of the items of a batch by a later stage."""
        rows = _blocks(len(batch), max(1, PAIRS // batch.mask.shape[-1]))
        return torch.cat([model(batch.take(some).to(self.device)).float().cpu() for some in rows])


class _DayItems:
    """The catalogue of a day and how the first stage scores it."""

    def __init__(self, cascade: Cascade, catalogue: Catalogue, device: torch.device) -> None:
        self.catalogue, self._device = catalogue, device
        self._model = next(iter(cascade.models.values()))
        self._features = {name: values.to(device) for name, values in catalogue.features.items()}
        self._vectors: Tensor | None = None
        if has_vectors(self._model):
            blocks = [self._model.item_vectors(self._part(items)) for items in _blocks(len(catalogue), PAIRS)]
            self._vectors = torch.cat(blocks).float()

    def first_scores(self, batch: Impressions) -> Tensor:
        """Return the scores ``(B, M)`` of all items by the first stage, on the CPU."""
        if self._vectors is not None:
            assert isinstance(self._model, TwoTower)
            return (self._model.user_vectors(batch.to(self._device)).float() @ self._vectors.T).cpu()
        parts = [self._scored(batch.take(rows)) for rows in _blocks(len(batch), max(1, PAIRS // len(self.catalogue)))]
        return torch.cat(parts)

    def _scored(self, batch: Impressions) -> Tensor:
        on_device = batch.to(self._device)
        parts = []
        for items in _blocks(len(self.catalogue), max(1, PAIRS // len(batch))):
            shared = {name: values.expand(len(batch), *values.shape) for name, values in self._part(items).items()}
            mask = torch.ones(len(batch), items.stop - items.start, dtype=torch.bool, device=self._device)
            parts.append(self._model(replace(on_device, items=shared, mask=mask)).float().cpu())
        return torch.cat(parts, -1)

    def _part(self, items: slice) -> dict[str, Tensor]:
        return {name: values[items] for name, values in self._features.items()}


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def best_places(scores: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Return the places ``(B, reach)`` of the best scores ``(B, M)``; of items that tie at the cut, a random choice.

    Without a random choice the place of an item in the catalogue would decide, and a model with constant scores would
    not have the recall of chance.
    """
    if reach >= scores.shape[-1]:
        return torch.arange(scores.shape[-1]).expand(scores.shape)
    values, places = scores.topk(reach + 1)
    tied = values[:, -1] == values[:, -2]
    places = places[:, :reach].clone()
    if tied.any():
        some, cut = scores[tied], values[tied][:, -1:]
        keys = torch.rand(some.shape, generator=generator).masked_fill(some > cut, 2.0).masked_fill(some < cut, -1.0)
        places[tied] = keys.topk(reach).indices
    return places


def _is_measured(batch: Impressions) -> Tensor:
    """Return the logged items ``(B, N)`` whose fate is measured: relevant ones and those with feedback."""
    measured = batch.relevance > 0
    for values in batch.feedback.values():
        measured = measured | (values != 0)
    return measured & batch.mask


def _further_items(best: Tensor, logged: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Return which measured items have to be added to the best ones.

    Args:
        best: Places ``(B, K)`` in the catalogue.
        logged: Places ``(B, N)`` of the logged items.
        measured: The logged items ``(B, N)`` whose fate is measured.

    Returns:
        Positions ``(B, F)`` in the logged lists, and a mask of the same shape.
    """
    further = measured & (_place_in(best, logged) < 0)
    positions = further.int().argsort(dim=-1, descending=True, stable=True)[:, : int(further.sum(-1).max())]
    return positions, further.gather(-1, positions)


def _place_in(rows: Tensor, asked: Tensor) -> Tensor:
    """Return where numbers ``(B, N)`` are in rows ``(B, K)`` of different numbers, -1 if they are not there."""
    ordered, order = rows.sort(-1)
    found = torch.searchsorted(ordered, asked.contiguous()).clamp(max=rows.shape[-1] - 1)
    return order.gather(-1, found).masked_fill(ordered.gather(-1, found) != asked, -1)


def _lists_of(batch: Impressions, catalogue: Catalogue, places: Tensor, mask: Tensor, logged: Tensor) -> Impressions:
    """Return the impressions with lists of these items of the catalogue, and what the log knows of them."""
    # padding has places of its own, so that no two numbers of a row are equal
    apart = torch.where(logged < len(catalogue), logged, len(catalogue) + torch.arange(logged.shape[-1]))
    source = _place_in(apart, places).masked_fill(~mask, -1)

    def of_log(values: Tensor, other: float) -> Tensor:
        return values.gather(-1, source.clamp(min=0)).masked_fill(source < 0, other)

    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    columns: dict[str, Any] = {
        name: of_log(values, NOT_LOGGED.get(name, 0))
        for name, values in tensors.items()
        if isinstance(values, Tensor) and values.shape == batch.mask.shape and name not in ("item", "mask")
    }
    if batch.truth is not None:
        columns["truth"] = columns["truth"].masked_fill(~mask, 0.0)
    return replace(
        batch,
        item=catalogue.item[places].masked_fill(~mask, -1),
        items={
            name: values[places].masked_fill(~(mask if values.ndim == 1 else mask.unsqueeze(-1)), 0)
            for name, values in catalogue.features.items()
        },
        feedback={name: of_log(values, 0.0) for name, values in batch.feedback.items()},
        mask=mask,
        **columns,
    )


def measure_cascade(
    cascade: Cascade,
    loader: ImpressionLoader,
    config: CascadeConfig,
    *,
    on_batch: Callable[[int], None] = lambda count: None,
    on_scored: Callable[[Impressions, ScoredBatch], None] = lambda loaded, scored: None,
    group: Group = ALONE,
) -> MeasuredFunnel:
    """Return the metrics of each impression in evaluation mode, with what their intervals and figures need.

    Args:
        cascade: The cascade.
        loader: Batches of impressions.
        config: Configuration with the quotas and metrics.
        on_batch: Called with the size of each batch.
        on_scored: Called with each batch that this process scores, as it was loaded and as it was scored.
        group: Processes that share the batches.
    """
    was_training = cascade.training
    cascade.eval()
    score = scorer_for(cascade, loader, config)

    def scored(loaded: Impressions) -> ScoredBatch:
        found = score(loaded)
        on_scored(loaded, found)
        return found

    try:
        return measure_lists(
            scored,
            loader,
            names=cascade.names,
            quotas=[stage.quota for stage in config.stages],
            relevant=config.relevant,
            further=config.stage_metrics,
            feedback=config.feedback,
            value=config.training.metric == JOINT_VALUE,
            on_batch=on_batch,
            group=group,
        )
    finally:
        cascade.train(was_training)


def scorer_of(cascade: Cascade) -> ScoreBatch:
    """Return a function that scores the lists of a batch by all stages, on the device of the weights."""
    device = device_of(cascade)

    @torch.no_grad()
    def score(batch: Impressions) -> ScoredBatch:
        return ScoredBatch.of_lists(batch, [stage.cpu() for stage in cascade(moved(batch, device))])

    return score


def scorer_for(
    cascade: Cascade, loader: ImpressionLoader, config: CascadeConfig, *, reach: int | None = None
) -> ScoreBatch:
    """Return a function that scores the batches of a loader: their own lists, or all items with ``data.length: all``.

    Args:
        cascade: The cascade, in evaluation mode.
        loader: The loader of the batches.
        config: Configuration with the quotas that are measured.
        reach: With ``data.length: all``, the number of best items of the first stage in the lists; at least its quota.
    """
    if loader.length != "all":
        return scorer_of(cascade)
    quota = config.stages[0].quota
    return AllItemsScorer(cascade, loader, reach=max(quota, reach or quota), device=device_of(cascade))


def means_of(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the means over the impressions on which a metric is defined."""
    return {name: float(value.nanmean()) for name, value in values.items()}


CHUNK_ROWS = 1 << 14  # documents scored at once


def score(model: Ranker, split: RankingSplit | Lists, group: Group = ALONE) -> Tensor:
    """Score every document in evaluation mode, on the device of the weights.

    Args:
        model: The ranker.
        split: Lists to score.
        group: Processes that share the work.

    Returns:
        Scores ``(rows,)`` in the order of the split, on the CPU.
    """
    lists = split if isinstance(split, Lists) else Lists([split])
    was_training, device = model.training, device_of(model)
    model.eval()
    try:
        with torch.no_grad():
            scores = [
                model.score(moved(chunk, device)).cpu()
                if number % group.world == group.rank
                else torch.zeros(len(chunk))
                for number, chunk in enumerate(lists.chunks(CHUNK_ROWS))
            ]
            return group.total(torch.cat(scores))
    finally:
        model.train(was_training)


def measure_scores(scores: Tensor, split: RankingSplit | Lists, metrics: Sequence[NamedMetric]) -> dict[str, Tensor]:
    """Return one value per list for each metric of the scores ``(rows,)``. NaN where a metric is undefined."""
    lists = split if isinstance(split, Lists) else Lists([split])
    if scores.shape != (lists.rows,):
        raise RankfallError(f"scores must be one for each of the {lists.rows} documents, got {tuple(scores.shape)}")
    values = {metric.name: torch.empty(len(lists)) for metric in metrics}
    for batch in lists.by_length():
        padded = batch.pad(scores[torch.from_numpy(batch.rows)])
        for metric in metrics:
            values[metric.name][torch.from_numpy(batch.lists)] = metric(padded, batch.labels, batch.mask).float()
    return values
