"""What was ranked in a measurement: the lengths of the lists, and the production funnel on the same lists.

Recall over short lists is usually higher than over all items, which a service ranks. A reader has to know which of the
two a figure is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rankfall._lists import has_order, rank_order
from rankfall.data.impressions.schema import VOCABULARIES
from rankfall.metrics import ndcg, opa
from rankfall.training.cascade_metrics import ground_truth
from rankfall.training.config.cascade_metric_names import SHOWN
from rankfall.training.label_checks import ignored_sizes, with_sizes
from rankfall.training.stage_figures import ListFigures, stage_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLoader, ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.impressions.spec import Spec
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.scored_batch import ScoreBatch, ScoredBatch
    from rankfall.training.stage_figures import StageFigures

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
        fit = fit_warning(self.loader.log, self.loader.days, self.config.data.train)
        ignored = ignored_sizes(self._sizes, self._spec, self.config)
        return [*self._warnings_of_lengths(), *(text for text in (fit, ignored) if text)]

    def _warnings_of_lengths(self) -> list[str]:
        figures = self.figures()
        if figures is None:
            return []
        if not figures.all_items:
            short = _short(figures.mean_length, figures.catalogue, self.loader.last_day)
            return [short] if short else []
        left_out = self.loader.left_out()
        if not left_out:
            return []
        return [
            f"{left_out:,} relevant items were not sampled when the log was prepared: they are ranked with all other "
            "items, but do not count as relevant"
        ]

    def production(self, units: Tensor | None = None) -> list[StageFigures] | None:
        """Return the figures of production's order, cut at the quotas of the stages.

        Args:
            units: What the bootstrap draws; see :func:`~rankfall.training.stage_figures.stage_figures`.
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
