"""Metrics of a cascade on impressions: recall, value, feedback and lost items per stage, and metrics of lists.

The ground truth of an impression is the best `relevant` of its relevant items, by relevance, then by grade. No metric
depends on how a configuration labels items for training: metrics use relevance, the full-stage grades of the log and
the logged stages only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from rankfall._config import Number, Result
from rankfall._errors import RankfallError
from rankfall._lists import relevant_order, top_labels
from rankfall.data.impressions.spec import FIRST_KNOWN, Categorical, column_of
from rankfall.metrics import funnel
from rankfall.metrics.named import parse
from rankfall.metrics.significance import interval, resampled_sums, sums_by
from rankfall.training.config.component_checks import (
    JOINT,
    JOINT_VALUE,
    PUBLISHED_NDCG,
    VALUE_NDCG,
    alone_name,
    list_metric,
    measures,
)
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLoader
    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.impressions.spec import Spec
    from rankfall.training.distributed.group import Group

    ScoreBatch = Callable[[Impressions], "ScoredBatch"]


SEED = 0  # seed of the order of items with equal scores
BEST_PUBLISHED, WORST_PUBLISHED = 27.0, 5.0  # gains of the best item and of items of the first logged stage


# --- ground truth -------------------------------------------------------------------------------------------------


def ground_truth(batch: Impressions, relevant: int) -> Tensor:
    """Return membership ``(B, N)`` in the ground truth: the best of the relevant items, by relevance, then by grade.

    Items that tie at the last place share it, so memberships are between 0 and 1.
    """
    return top_labels(_order(batch), relevant, batch.mask & (batch.relevance > 0)).float()


def _order(batch: Impressions) -> Tensor:
    """Return numbers ``(B, N)`` that order the relevant items of a list: by relevance, then by grade."""
    return relevant_order(batch.relevance, batch.grade.double(), batch.mask)


def graded_truth(batch: Impressions, truth: Tensor) -> Tensor:
    """Return labels ``(B, N)``: the order of the ground truth, from 1 for its worst item on; 0 for all other items.

    Args:
        batch: The impressions.
        truth: Membership in the ground truth, see :func:`ground_truth`.
    """
    return _count_of_worse(batch, truth) + (truth > 0)


def published_gains(batch: Impressions, truth: Tensor) -> Tensor:
    """Return the gains ``(B, N)`` of the published code of LCRON: 28 minus the label of table 1 in the paper.

    Relevant items have 27, 26, ... in their order. All other items have a gain too: 5 for the first logged stage, 6 for
    the second and so on. Therefore a random scorer gets about .43 on lists of 4 x 10 items.

    Args:
        batch: The impressions.
        truth: Membership in the ground truth, see :func:`ground_truth`.
    """
    order = _count_of_worse(batch, truth)
    of_relevant = BEST_PUBLISHED - (order.amax(-1, keepdim=True) - order)
    return torch.where(truth > 0, of_relevant, WORST_PUBLISHED + batch.depth).masked_fill(~batch.mask, 0.0)


def relevance_gains(batch: Impressions, truth: Tensor) -> Tensor:
    """Return the gains ``(B, N)`` of ``ndcg_value``: the relevance of all relevant items.

    Args:
        batch: The impressions.
        truth: Membership in the ground truth, which does not matter here.
    """
    del truth
    return batch.relevance.clamp(min=0.0)


def _count_of_worse(batch: Impressions, truth: Tensor) -> Tensor:
    """Return for each item of the ground truth how many others of it are worse; 0 for all other items."""
    order = _order(batch).masked_fill(truth == 0, torch.inf)
    return torch.searchsorted(order.sort(-1).values, order).masked_fill(truth == 0, 0).float()


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Impressions and the scores of their items by all stages, on the CPU.

    Lists that were measured over all items of a catalogue do not hold all of them: they hold the items that the first
    stage ranks best, at least as many as it keeps, and all relevant items. The funnel of such lists is exact, since no
    other item passes the first stage. Figures of a later stage alone are not.

    Attributes:
        batch: The impressions, with the lists that were scored.
        scores: Scores ``(B, N)`` of each stage.
        ranked: Number of items ``(B,)`` that the first stage ranked, including those that the lists do not hold.
        complete: Whether the lists hold every item that the first stage ranked.
    """

    batch: Impressions
    scores: Sequence[Tensor]
    ranked: Tensor
    complete: bool = True

    @classmethod
    def of_lists(cls, batch: Impressions, scores: Sequence[Tensor]) -> ScoredBatch:
        """Return a batch whose lists hold every item that was ranked."""
        return cls(batch, scores, batch.mask.sum(-1))


# --- measuring ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredFunnel:
    """What a cascade did with R impressions, in the order of a loader.

    Attributes:
        values: One value ``(R,)`` per impression for each metric. NaN where a metric is undefined.
        chance: The same for a random cascade.
        wholes: For metrics that are pooled over impressions, what the values ``(R,)`` are parts of. Both are divided
            by the mean of the wholes, so that the mean of the values is the pooled share.
        stages: Names of the T stages.
        quotas: Number of items that each stage keeps.
        left: Share ``(R, T)`` of the ground truth that is left after each stage. NaN without a relevant item.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        users: Number of the user ``(R,)`` of each impression, where the log knows it. Impressions of users that were
            never seen have numbers of their own.
    """

    values: dict[str, Tensor]
    chance: dict[str, Tensor]
    wholes: dict[str, Tensor]
    stages: list[str]
    quotas: list[int]
    left: Tensor
    ranked: Tensor
    users: Tensor | None


def measure_lists(
    score: ScoreBatch,
    loader: ImpressionLoader,
    *,
    names: Sequence[str],
    quotas: Sequence[int],
    relevant: int,
    further: Sequence[str] = (),
    feedback: Mapping[str, str] | None = None,
    value: bool = False,
    on_batch: Callable[[int], None] = lambda count: None,
    group: Group = ALONE,
) -> MeasuredFunnel:
    """Measure a cascade on all impressions of a loader.

    Metrics are ``joint_recall`` and, for each stage, ``NAME/alone/recall`` and ``NAME/alone/ndcg`` of the stage by
    itself over the whole list and ``NAME/lost``, the share of the ground truth that the stage drops. `further` metrics
    ``NAME/alone/METRIC`` are those of lists, of the stage by itself, with the labels of :func:`graded_truth`;
    ``ndcg_published`` has the gains of :func:`published_gains`, ``ndcg_value`` those of :func:`relevance_gains`.

    If relevant items of a list differ in relevance, ``joint_value`` and ``NAME/value`` are the shares of the relevance
    of the ground truth that are left at the end and after each stage but the last. ``joint/FEEDBACK`` and
    ``NAME/FEEDBACK`` are the same shares of a feedback, of all items of an impression.

    Lists over all items of a log do not hold all of them. Then only the first stage has a recall by itself.

    Args:
        score: Returns a batch with the scores of each stage.
        loader: Batches of impressions.
        names: Names of the stages.
        quotas: Number of items that each stage keeps.
        relevant: Number of relevant items per impression.
        further: Names of further metrics of each stage.
        feedback: Feedback whose survival is measured: ``"rate"`` for the mean over impressions that have some,
            ``"sum"`` for the share of the sum over all impressions. Values of ``"sum"`` are scaled so that their mean
            is that share.
        value: Measure ``joint_value`` also if all relevant items of every list have the same relevance.
        on_batch: Called with the size of each batch.
        group: Processes that share the batches. Each batch is measured as a whole by one process, so that the values
            do not depend on the number of processes.
    """
    meter = _Meter(loader, list(names), list(quotas), relevant, list(further), feedback or {})
    parts: list[dict[_Column, Tensor]] = []
    with torch.no_grad():
        for number, loaded in enumerate(loader):
            if number % group.world == group.rank:
                parts.append(meter.columns(score(loaded), torch.Generator().manual_seed(SEED + number)))
            else:
                parts.append(dict.fromkeys(meter.names, torch.zeros(len(loaded))))
            on_batch(len(loaded))
    columns = {name: group.total(torch.cat([part[name] for part in parts])) for name in meter.names}
    return meter.result(columns, value=value)


_Column = tuple[str, str]  # what a column is, and the name of its metric, stage or feedback


@dataclass
class _Meter:
    """Measures batches as columns with one number per impression, and makes the result of all of them.

    Args:
        loader: Loader of the batches.
        stages: Names of the stages.
        quotas: Number of items that each stage keeps.
        relevant: Number of relevant items per impression.
        further: Names of further metrics of each stage.
        feedback: ``"sum"`` or ``"rate"`` by feedback.
    """

    loader: ImpressionLoader
    stages: list[str]
    quotas: list[int]
    relevant: int
    further: list[str]
    feedback: Mapping[str, str]

    def __post_init__(self) -> None:
        self.user = user_feature(self.loader.log.spec)
        self.complete = self.loader.length != "all"
        self.further = self.further if self.complete else []
        feedback = self.feedback
        self.measured = measures(self.stages, self.further, feedback, complete=self.complete)
        of_stages = [f"{stage}/{name}" for stage in self.stages for name in feedback]
        plain = [name for name in self.measured if name.rpartition("/")[-1] not in feedback]
        self.names: list[_Column] = [
            *((kind, name) for kind in ("value", "chance") for name in plain),
            *((kind, stage) for kind in ("left", "worth", "expected") for stage in self.stages),
            *(("feedback", name) for name in feedback),
            *(("kept", name) for name in of_stages),
            *((kind, "") for kind in ("sizes", "ranked", "user")),
        ]

    def columns(self, scored: ScoredBatch, generator: torch.Generator) -> dict[_Column, Tensor]:
        """Return the columns of a batch."""
        batch, ranked = scored.batch, scored.ranked
        truth = ground_truth(batch, self.relevant)
        scores = [stage.float() for stage in scored.scores]
        result = funnel(scores, truth, quotas=self.quotas, mask=batch.mask, generator=generator)
        undefined = ~result.defined
        # share (B, T) of any items that a random cascade keeps up to each stage
        expected = (
            torch.stack([(quota / ranked.double()).clamp(max=1.0) for quota in self.quotas], -1).cummin(-1).values
        )
        values, chance = {JOINT: result.joint_recall}, {JOINT: expected[..., -1].float()}
        before, flat = torch.ones_like(expected[..., 0]), torch.zeros_like(truth)
        for t, (stage, quota) in enumerate(zip(self.stages, self.quotas, strict=True)):
            recall, quality, lost = alone_name(stage, "recall"), alone_name(stage, "ndcg"), f"{stage}/lost"
            values |= {
                recall: result.stage_recall[..., t],
                quality: result.stage_ndcg[..., t],
                lost: result.lost[..., t],
            }
            chance |= {recall: (quota / ranked).clamp(max=1.0), lost: (before - expected[..., t]).float()}
            if self.complete:
                chance[quality] = parse("ndcg_linear")(flat, truth, batch.mask)
            before = expected[..., t]
        for metric in self.further:
            measured = parse(list_metric(metric))
            labels = _LABELS.get(metric.partition("@")[0], graded_truth)(batch, truth)
            for stage, of_stage in zip(self.stages, scores, strict=True):
                values[alone_name(stage, metric)] = measured(of_stage, labels, batch.mask)
                chance[alone_name(stage, metric)] = measured(flat, labels, batch.mask)
        columns: dict[_Column, Tensor] = {
            (kind, name): value.masked_fill(undefined, torch.nan)
            for kind, found in (("value", values), ("chance", chance))
            for name, value in found.items()
            if name in self.measured
        }
        worth = batch.relevance * truth
        for t, stage in enumerate(self.stages):
            columns["left", stage] = result.survived[..., t].masked_fill(undefined, torch.nan)
            columns["worth", stage] = _share(worth, result.survivors[..., t, :]).masked_fill(undefined, torch.nan)
            columns["expected", stage] = expected[..., t].float()
        for name in self.feedback:
            given = _check_feedback(name, batch).double()
            columns["feedback", name] = given.sum(-1)
            for t, stage in enumerate(self.stages):
                columns["kept", f"{stage}/{name}"] = (given * result.survivors[..., t, :]).sum(-1)
        columns["sizes", ""] = _has_sizes(batch.relevance, truth).float()
        columns["ranked", ""] = ranked.double()
        columns["user", ""] = batch.user[self.user].double() if self.user else torch.zeros(len(batch)).double()
        return columns

    def result(self, columns: Mapping[_Column, Tensor], *, value: bool) -> MeasuredFunnel:
        """Return the result of the columns of all impressions."""
        values, chance, wholes = {}, {}, {}
        for name in self.measured:
            stage, _, last = name.rpartition("/")
            if last in self.feedback:
                stage = self.stages[-1] if stage == "joint" else stage
                total = columns["feedback", last]
                given = torch.where(total > 0, total, torch.nan)
                by = given if self.feedback[last] == "rate" else given.nanmean()
                values[name] = torch.where(total > 0, columns["kept", f"{stage}/{last}"], torch.nan) / by
                chance[name] = columns["expected", stage] * given / by
                if self.feedback[last] == "sum":
                    wholes[name] = given / by
            else:
                values[name], chance[name] = columns["value", name], columns["chance", name]
            if name == JOINT and (value or bool(columns["sizes", ""].any())):
                values[JOINT_VALUE], chance[JOINT_VALUE] = columns["worth", self.stages[-1]], chance[JOINT]
            if last == "lost" and stage != self.stages[-1] and JOINT_VALUE in values:
                worth = columns["worth", stage]
                values[f"{stage}/value"] = worth
                chance[f"{stage}/value"] = columns["expected", stage].masked_fill(worth.isnan(), torch.nan)
        return MeasuredFunnel(
            values,
            chance,
            wholes,
            self.stages,
            self.quotas,
            torch.stack([columns["left", stage] for stage in self.stages], -1),
            columns["ranked", ""].long(),
            user_numbers(columns["user", ""].long()) if self.user else None,
        )


_LABELS: dict[str, Callable[[Impressions, Tensor], Tensor]] = {
    PUBLISHED_NDCG: published_gains,
    VALUE_NDCG: relevance_gains,
}


def _share(worth: Tensor, survivors: Tensor) -> Tensor:
    """Return the share ``(B,)`` of the worth of the items that survives; 0 without any worth."""
    total = worth.double().sum(-1)
    return ((worth * survivors).double().sum(-1) / total.where(total > 0, 1.0)).float()


def _has_sizes(relevance: Tensor, truth: Tensor) -> Tensor:
    """Return the lists ``(B,)`` whose ground truth has items of different relevance."""
    most = relevance.masked_fill(truth == 0, -torch.inf).amax(-1)
    least = relevance.masked_fill(truth == 0, torch.inf).amin(-1)
    return most > least


def _check_feedback(name: str, batch: Impressions) -> Tensor:
    """Return a feedback of the items ``(B, N)``. A share of it has no meaning if values are negative."""
    given = batch.feedback[name]
    if bool((given < 0).any()):
        raise RankfallError(
            f"feedback: {name} is {float(given.min()):g} for an item of {batch.day}, expected values of at least 0, of "
            "which a share can survive"
        )
    return given


# --- users --------------------------------------------------------------------------------------------------------


def user_feature(spec: Spec) -> str | None:
    """Return the feature of users that identifies them: one with ids of the log's user column. None without one."""
    for name, feature in spec.features.user.items():
        if isinstance(feature, Categorical) and column_of(spec, name, feature) == spec.user:
            return name
    return None


def user_numbers(ids: Tensor) -> Tensor:
    """Return one number per user; impressions without a known user have numbers of their own."""
    own = -1 - torch.arange(len(ids))
    return torch.where(ids >= FIRST_KNOWN, ids, own)


@dataclass(frozen=True)
class Estimate(Result):
    """A figure and its 95 % bootstrap interval."""

    value: Number
    low: Number
    high: Number

    def columns(self, name: str) -> dict[str, Any]:
        """Return the figure and its interval as columns `name`, `name_low` and `name_high` of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


@dataclass(frozen=True)
class StageFigures(Result):
    """What a stage did with the ground truth, as means over requests.

    The product of `kept` over all stages is the joint recall. The sum of `lost` over all stages is 1 minus the joint
    recall, and the sum of `loss_share` is 1.
    """

    stage: str
    quota: int
    """Number of items that the stage keeps."""
    entered: Number
    """Mean number of items that arrived."""
    survived: Estimate
    """Share of the ground truth that is left after the stage."""
    kept: Estimate
    """Share that the stage kept of the ground truth that arrived."""
    chance: Number
    """What a random stage would keep of the ground truth that arrived."""
    lost: Estimate
    """Share of the whole ground truth that the stage dropped; lower is better."""
    loss_share: Estimate
    """Share of all losses that happened at this stage. NaN if nothing was lost."""
    alone: Estimate | None = None
    """Recall of the stage by itself, over the whole list. None if later stages did not score the whole list."""
    alone_chance: float | None = None
    """The same for a random stage."""

    def row(self) -> dict[str, Any]:
        """Return the stage as a row of a table."""
        return {
            "stage": self.stage,
            "quota": self.quota,
            "entered": self.entered,
            **self.kept.columns("kept"),
            "chance": self.chance,
            **self.lost.columns("lost"),
            **self.survived.columns("survived"),
            "loss_share": self.loss_share.value,
        }


@dataclass(frozen=True)
class ListFigures(Result):
    """How long the measured lists were, beside the number of items that a service would rank."""

    mean_length: Number
    longest: int
    catalogue: int
    """Number of items that were in the log by the end of the last measured day."""
    all_items: bool
    """Whether every item of the catalogue was ranked (``data.length: all``)."""


class Resampler:
    """Sums of columns over all requests and over bootstrap resamples of them.

    All columns are summed over the same draws, and equal columns once, so figures of one evaluation can share one.

    Args:
        units: What the bootstrap draws, as in :func:`~rankfall.metrics.significance.resampled_sums`.
    """

    def __init__(self, units: Tensor | None = None) -> None:
        self.units = units
        self._columns: list[Tensor] = []
        self._sums: list[Tensor] = []

    def place(self, column: Tensor) -> int:
        """Add a column ``(R,)`` without NaN, and return its place."""
        for known, other in enumerate(self._columns):
            if torch.equal(other, column):
                return known
        self._columns.append(column)
        return len(self._columns) - 1

    def __getitem__(self, place: int) -> Tensor:
        """Return the sum of a column over all requests, followed by its sum over each resample."""
        if place >= len(self._sums):
            new = torch.stack(self._columns[len(self._sums) :], -1)
            sums = torch.cat([new.sum(0, keepdim=True), resampled_sums(new, units=self.units)])
            self._sums += sums.unbind(-1)
        return self._sums[place]

    def are_few(self, place: int) -> bool:
        """Return whether fewer than two units have a request with a value above 0 in a column."""
        return bool(self._are_few(self._columns[place].unsqueeze(-1)))

    def per_unit(self, columns: Tensor) -> Tensor:
        """Return the sums ``(units, C)`` of values ``(R, C)`` per request."""
        return columns if self.units is None else sums_by(self.units, columns)

    def ratios(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Estimate]:
        """Return ratios of sums over all requests with their intervals. The columns are not kept.

        Drawing the samples takes most of the time, so it is faster to pass all ratios in one call.

        Args:
            pairs: Values ``(R,)`` per request in the numerator and in the denominator of each ratio. A ratio is NaN if
                its denominator is 0; draws with such a denominator are left out of its interval.
        """
        above, below = (torch.stack([column.double() for column in side], -1) for side in zip(*pairs, strict=True))
        return self._ratios(above, below)

    def means(self, values: Iterable[Tensor]) -> list[Estimate]:
        """Return means of values ``(R,)`` per request with their intervals. The columns are not kept."""
        above = torch.stack([column.double() for column in values], -1)
        return self._ratios(above, torch.ones_like(above[:, :1]))

    def _ratios(self, above: Tensor, below: Tensor) -> list[Estimate]:
        """Return the ratios of columns ``(R, C)``; the denominators ``(R, C)`` or ``(R, 1)``."""
        columns = torch.cat([above, below], -1)
        sums = torch.cat([columns.sum(0, keepdim=True), resampled_sums(columns, units=self.units)])
        numerators, denominators = sums.split([above.shape[1], below.shape[1]], -1)
        figures = torch.where(denominators > 0, numerators / denominators, torch.nan)
        few = self._are_few(below).expand(above.shape[1]).tolist()
        return [_estimate(figure, few=one) for figure, one in zip(figures.unbind(-1), few, strict=True)]

    def _are_few(self, columns: Tensor) -> Tensor:
        """Return for columns ``(R, C)`` whether fewer than two units have a request with a value above 0."""
        return (self.per_unit((columns > 0).double()) > 0).sum(0) < 2


def stage_figures(
    stages: Sequence[str],
    quotas: Sequence[int],
    left: Tensor,
    ranked: Tensor,
    *,
    alone: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
    resampler: Resampler | None = None,
) -> list[StageFigures]:
    """Return the figures of all stages from what is left of the ground truth of each request.

    Args:
        stages: Names of the T stages.
        quotas: Number of items that each stage keeps.
        left: Shares ``(R, T)`` of the ground truth of R requests that are left after each stage. NaN for requests
            without a relevant item, which do not count.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        alone: Recall ``(R,)`` of a stage over the whole list, by name; stages may be missing.
        units: What the bootstrap draws, as in :func:`~rankfall.metrics.significance.resampled_sums`.
        resampler: Sums of the same requests that other figures have drawn. Default: one of `units`.
    """
    resampler = resampler or Resampler(units)
    counts = ~left.isnan().any(-1)
    entered = items_entered(ranked[counts], quotas)
    # Requests that do not count are drawn too, as in `estimates`, so that equal figures have equal intervals.
    shares = [counts.double(), *(left.nan_to_num().double() * counts.unsqueeze(-1)).unbind(-1)]
    by_itself = {name: values.nan_to_num().double() * counts for name, values in (alone or {}).items()}
    places = [resampler.place(column) for column in shares]
    places_alone = {name: resampler.place(column) for name, column in by_itself.items()}
    few = resampler.are_few(places[0])
    sums = [resampler[place] for place in places]
    figures = []
    for t, (stage, quota) in enumerate(zip(stages, quotas, strict=True)):
        arrived, lost = shares[t][counts], sums[t] - sums[t + 1]
        by_chance = (quota / entered[:, t]).clamp(max=1.0)
        is_alone = stage in places_alone
        figures.append(
            StageFigures(
                stage=stage,
                quota=quota,
                entered=float(entered[:, t].mean()),
                survived=_estimate(sums[t + 1] / sums[0], few=few),
                kept=_estimate(sums[t + 1] / sums[t], few=few),
                chance=float((arrived * by_chance).sum() / arrived.sum()),
                lost=_estimate(lost / sums[0], few=few),
                loss_share=_estimate(lost / (sums[0] - sums[-1]), few=few),
                alone=_estimate(resampler[places_alone[stage]] / sums[0], few=few) if is_alone else None,
                alone_chance=float((quota / ranked[counts]).clamp(max=1.0).mean()) if is_alone else None,
            )
        )
    return figures


def items_entered(ranked: Tensor, quotas: Sequence[int]) -> Tensor:
    """Return the number of items ``(R, T)`` that arrive at each stage: all that are ranked, then what is kept.

    >>> items_entered(torch.tensor([100, 3]), [10, 5]).tolist()
    [[100.0, 10.0], [3.0, 3.0]]
    """
    entered = [ranked.double()]
    for quota in quotas[:-1]:
        entered.append(entered[-1].clamp(max=quota))
    return torch.stack(entered, -1)


def estimates(values: Mapping[str, Tensor], wholes: Mapping[str, Tensor], resampler: Resampler) -> dict[str, Estimate]:
    """Return the mean of each metric over the requests on which it is defined, with its interval.

    Args:
        values: Values ``(R,)`` of each metric, NaN where it is undefined.
        wholes: For metrics that are pooled over requests, what the values ``(R,)`` are parts of: the figure is the sum
            of the values divided by the sum of these.
        resampler: Sums over the requests.
    """
    places = {}
    for name, value in values.items():
        whole = wholes[name].double().nan_to_num() if name in wholes else (~value.isnan()).double()
        places[name] = resampler.place(value.double().nan_to_num()), resampler.place(whole)
    few = {whole: resampler.are_few(whole) for whole in {whole for _, whole in places.values()}}
    return {
        name: _estimate(resampler[part] / resampler[whole], few=few[whole]) for name, (part, whole) in places.items()
    }


def _estimate(figures: Tensor, *, few: bool) -> Estimate:
    """Return the first figure, which is that of all requests, and the interval of the others."""
    low, high = interval(figures[1:])
    unknown = few or bool(figures[0].isnan())  # one unit says nothing about others
    return Estimate(float(figures[0]), *((torch.nan, torch.nan) if unknown else (float(low), float(high))))


CHANCE = "chance "  # prefix of the columns with the values of a random scorer


def values_table(
    qids: pa.Array | pa.ChunkedArray, values: Mapping[str, Tensor], chance: Mapping[str, Tensor]
) -> pa.Table:
    """Return a table with one row per list: its id, each metric and its chance level. NaN where undefined."""
    columns = {"qid": qids}
    columns |= {name: pa.array(value.numpy()) for name, value in values.items()}
    columns |= {CHANCE + name: pa.array(value.numpy()) for name, value in chance.items()}
    return pa.table(columns)
