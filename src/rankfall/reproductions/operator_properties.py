"""Properties of operators and losses on generated lists: gradients, temperatures, small trees, and LCRON's bounds."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall import ops
from rankfall.ops import neural_sort, pirank_sort, topk
from rankfall.reporting.charts import Chart, curves
from rankfall.reproductions.published import pick_points
from rankfall.reproductions.task import Report, pivot, sheet
from rankfall.training.build import make_loss
from rankfall.training.config.ranker_config import LossConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rankfall.reporting.blocks import Table
    from rankfall.reproductions.paper_schema import (
        GradientConflict,
        GradientSigns,
        Number,
        Options,
        SortTree,
        SurvivalBounds,
        SyntheticLists,
        TemperatureEffect,
    )
    from rankfall.reproductions.task import Task

    Shares = Mapping[str, float]  # by measure


def make_lists(settings: SyntheticLists, seed: int) -> tuple[Tensor, Tensor]:
    """Return scores in float64 and the mask of relevant items, both ``(lists, items)``.

    Relevant items are at random places, because the result of DiffSort depends on the order of the items.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (settings.lists, settings.items)
    relevant = torch.rand(shape, generator=generator).argsort(-1) < settings.relevant
    scores = torch.randn(shape, generator=generator, dtype=torch.double) + settings.shift * relevant
    return scores, relevant


QUICK_LISTS = 200

LOWERED, WRONG = "relevant items lowered by -log p", "items on the wrong side of L_TopK"
BOUNDARY, BOUNDARY_BCE = "gradient of -log p on the boundary", "gradient of L_TopK on the boundary"
ROW_CONFLICT, ROW_LOWERED = "rows with a conflict", "relevant items lowered by a row"
CANCELLED = "gradient of rows that cancels"
CONFLICTS = (LOWERED, WRONG, BOUNDARY, BOUNDARY_BCE, ROW_CONFLICT, ROW_LOWERED, CANCELLED)
ROUNDING = 1e-9  # share of the largest gradient of the list below which the sign of a gradient is not counted


def gradient_conflict(reproduction: GradientConflict, task: Task) -> Report:
    """Measure every operator at every k."""
    lists = reproduction.lists
    if task.quick:
        lists = lists.model_copy(update={"lists": min(lists.lists, QUICK_LISTS)})
    scores, relevant = make_lists(lists, task.seed)
    shares: dict[str, dict[int, Shares]] = {name: {} for name in reproduction.operators}
    for number, (name, options) in enumerate(reproduction.operators.items()):
        task.progress(name, number, len(shares))
        for k in reproduction.ks:
            shares[name][k] = measure_conflict(options, scores, relevant, k)
    percent = {
        measure: {
            name: {k: 100 * found[measure] for k, found in by_k.items() if measure in found}
            for name, by_k in shares.items()
        }
        for measure in CONFLICTS
    }
    columns = {k: f"k = {k}" for k in reproduction.ks}
    sheets = [
        pivot(
            f"percent: {measure}",
            "operator",
            {name: of for name, of in by_name.items() if of},
            columns,
            "{:.1f}".format,
        )
        for measure, by_name in percent.items()
    ]
    return Report(
        sheets=sheets,
        plots={
            reproduction.id: curves(
                {
                    measure: {name: of.items() for name, of in percent[measure].items()}
                    for measure in (LOWERED, BOUNDARY)
                },
                title=f"{reproduction.title}: gradient conflict by operator",
                caption=f"percent; {lists.lists} lists of {lists.items} items, {lists.relevant} of them relevant",
                x="k",
                ticks=reproduction.ks,
            )
        },
        results={
            "lists": lists.model_dump(),
            "shares": {name: {f"{k}": dict(found) for k, found in by_k.items()} for name, by_k in shares.items()},
            "published": "a drawing without numbers",
        },
        notes=reproduction.notes,
    )


# --- measures -----------------------------------------------------------------------------------------------------


def measure_conflict(options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
    """Return the shares of an operator by name.

    Args:
        options: Options of `rankfall.ops.topk`.
        scores: Scores ``(lists, items)``.
        relevant: Mask of relevant items.
        k: Number of selected items, fewer than a list has.
    """
    shares = of_inclusion(options, scores, relevant, k)
    if options["name"].endswith("_sort"):
        shares |= of_rows(options, scores, relevant, k)
    return shares


def of_inclusion(options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
    """Return the shares of the losses of inclusion probabilities."""
    operator = ops.topk(**options)
    scores = scores.detach().requires_grad_()
    log_p, log_not_p = ops.log_inclusion(operator, scores, k)
    (towards,) = torch.autograd.grad(-(log_p * relevant).sum(), scores, retain_graph=True)
    boundary = scores.topk(k + 1, -1).indices[..., k - 1 :]
    shares = {LOWERED: _share(_lowered(towards)[relevant]), BOUNDARY: _mass(towards, boundary)}
    if (relevant.sum(-1) == k).all():
        (bce,) = torch.autograd.grad(-torch.where(relevant, log_p, log_not_p).sum(), scores)
        shares[WRONG] = _share(torch.where(relevant, _lowered(bce), _lowered(-bce)))
        shares[BOUNDARY_BCE] = _mass(bce, boundary)
    return shares


def of_rows(options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
    """Return the shares that the first k rows of a soft sort have each on its own; they depend on no `gradient`.

    Args:
        options: Options of `rankfall.ops.topk`.
        scores: Scores ``(lists, items)``.
        relevant: Mask of relevant items.
        k: Number of rows.
    """
    scores = scores.detach().requires_grad_()
    settings = {key: value for key, value in options.items() if key not in ("name", "gradient", "normalised")}
    matrix = partial(getattr(ops, options["name"]), **settings)(scores, k=k)
    found = (matrix * relevant.unsqueeze(-2)).sum(-1)  # expected relevant items at each rank
    rows = torch.stack([_gradient(-found[:, i].sum(), scores) for i in range(k)], -2)
    on_relevant = relevant.unsqueeze(-2).expand_as(rows)
    total = _gradient(-found.sum(), scores)[relevant].abs().sum()
    parts = rows[on_relevant].abs().sum()
    lowered, raised = (_lowered(one) & on_relevant for one in (rows, -rows))
    several = relevant.sum(-1) > 1  # a single relevant item has none to compete with
    return {
        ROW_CONFLICT: _share((lowered.any(-1) & raised.any(-1))[several]),
        ROW_LOWERED: _share(lowered[on_relevant]),
        CANCELLED: max(0.0, float(1 - total / parts)),
    }


def _gradient(value: Tensor, scores: Tensor) -> Tensor:
    return torch.autograd.grad(value, scores, retain_graph=True)[0]


def _lowered(gradient: Tensor) -> Tensor:
    """Return which items a gradient step lowers, apart from rounding."""
    return gradient > ROUNDING * gradient.abs().amax(-1, keepdim=True)


def _share(found: Tensor) -> float:
    return float(found.double().mean())


def _mass(gradient: Tensor, places: Tensor) -> float:
    return float(gradient.gather(-1, places).abs().sum() / gradient.abs().sum())


STEP = 0.5  # difference of neighbouring scores


def gradient_signs(reproduction: GradientSigns, task: Task) -> Report:  # all drivers have the same arguments
    """Differentiate every loss on every list, sorted by score."""
    pushes = {
        name: {loss: push(labels, options) for loss, options in reproduction.losses.items()}
        for name, labels in reproduction.lists.items()
    }
    return Report(
        sheets=[
            _signs_sheet(name, labels, pushes[name], reproduction.k) for name, labels in reproduction.lists.items()
        ],
        plots={
            reproduction.id: curves(
                {name: {loss: enumerate(of, 1) for loss, of in by_loss.items()} for name, by_loss in pushes.items()},
                title="Minus the derivative of a loss by the score of each item",
                caption="above 0: the item is pushed up",
                x="rank",
            )
        },
        results={"pushes": pushes, "labels": reproduction.lists, "k": reproduction.k, "published": None},
        notes=[
            *_moved(reproduction, pushes),
            *reproduction.notes,
        ],
    )


def _moved(reproduction: GradientSigns, pushes: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    for name, labels in reproduction.lists.items():
        for loss, values in pushes[name].items():
            found = [values[position] for position in below(labels, reproduction.k)]
            moved = sum(value != 0 for value in found)
            yield f"{name}: {loss} moves {moved} of the {len(found)} relevant items below rank {reproduction.k}."


def push(labels: Sequence[Number], loss: Options) -> list[float]:
    """Return minus the derivative by each score, for items with evenly spaced, descending scores."""
    scores = (-STEP * torch.arange(len(labels), dtype=torch.float64)).requires_grad_()
    function, _ = make_loss(LossConfig.model_validate(loss))
    value = function(scores[None], torch.tensor([labels], dtype=torch.float64), mask=torch.ones(1, len(labels)).bool())
    (gradient,) = torch.autograd.grad(value, scores)
    found: list[float] = (-gradient).tolist()
    return found


def below(labels: Sequence[Number], k: int) -> list[int]:
    """Return the positions of the relevant items below rank k.

    >>> below([1, 0, 1, 1], 2)
    [2, 3]
    """
    return [position for position, label in enumerate(labels) if label > 0 and position >= k]


def _signs_sheet(name: str, labels: Sequence[Number], pushes: dict[str, list[float]], k: int) -> Table:
    rows = [
        [
            f"{position + 1}{' (below k)' * (position >= k)}",
            "relevant" if label > 0 else "",
            *(_shown(values[position]) for values in pushes.values()),
        ]
        for position, label in enumerate(labels)
    ]
    return sheet(f"{name}: push of each item (0: none)", ["rank", "", *pushes], rows)


def _shown(value: float) -> str:
    if value == 0:
        return "0"
    return f"{'up' if value > 0 else 'down'} {abs(value):.1g}"


def sort_tree(reproduction: SortTree, task: Task) -> Report:  # all drivers have the same arguments
    """Merge the scores in a tree at every temperature; the hard tree is the one at the smallest."""
    scores = torch.tensor(reproduction.scores, dtype=torch.float64)
    levels = {tau: kept_values(scores, reproduction.branches, reproduction.k, tau) for tau in reproduction.taus}
    roots = {
        tau: pirank_sort(scores, k=reproduction.k, tau=tau, branches=reproduction.branches) @ scores for tau in levels
    }
    of_ranks = {
        f"rank {rank + 1}": [(tau, float(root[rank])) for tau, root in roots.items()] for rank in range(reproduction.k)
    }
    return Report(
        sheets=[
            sheet(
                f"values that a node keeps, scores {_listed(scores)}",
                ["tau", *(_name(level, len(reproduction.branches)) for level in range(len(reproduction.branches)))],
                [[f"{tau:g}", *("; ".join(map(_listed, nodes)) for nodes in found)] for tau, found in levels.items()],
            )
        ],
        plots={
            reproduction.id: curves(
                {"": of_ranks},
                title="The best scores at the root of a tree of soft sorts",
                x="tau",
                log_x=True,
                ticks=reproduction.taus,
            )
        },
        results={
            "values": {f"{tau:g}": [nodes.tolist() for nodes in found] for tau, found in levels.items()},
            "roots": {f"{tau:g}": root.tolist() for tau, root in roots.items()},
            "published": {"scores": reproduction.scores, "branches": reproduction.branches, "k": reproduction.k},
        },
        notes=reproduction.notes,
    )


def kept_values(scores: Tensor, branches: Sequence[int], k: int, tau: float) -> list[Tensor]:
    """Return the values that the nodes of each level keep, ``(nodes, kept)``, with a soft sort per node."""
    found: list[Tensor] = []
    values = scores.unsqueeze(-1)
    for children in branches:
        joined = values.reshape(-1, children * values.shape[-1])
        rows = neural_sort(joined, k=min(k, joined.shape[-1]), tau=tau)
        values = (rows * joined.unsqueeze(-2)).sum(-1)
        found.append(values)
    return found


def _name(level: int, levels: int) -> str:
    return "root" if level == levels - 1 else f"level {level + 1}"


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.3g}" for value in values.tolist())


# --- survival -----------------------------------------------------------------------------------------------------

SLACK = 1e-9  # differences below this are rounding


@dataclass(frozen=True, slots=True)
class Survival:
    """What the paper compares, per item; tensors ``(lists, n)``.

    Attributes:
        first: P_M1, the inclusion of the first stage.
        last: P_M2, the inclusion of the last stage.
        drawn: E(pi), the probability that an item is in the set that the first stage keeps (eq. 6).
        survives: P_CS (eq. 7).
        quota: Number of items that the first stage keeps.
    """

    first: Tensor
    last: Tensor
    drawn: Tensor
    survives: Tensor
    quota: int

    @property
    def product(self) -> Tensor:
        """The lower bound of eq. 8."""
        return self.first * self.last

    @property
    def gap_bound(self) -> Tensor:
        """The upper bound Delta' of the gap, eq. 14."""
        return self.last * (self.last.sum(-1, keepdim=True) / self.product.sum(-1, keepdim=True) - 1)

    @property
    def least_gap_bound(self) -> Tensor:
        """Delta' if the first stage keeps exactly the best items of the last, eq. 15."""
        kept = self.last.topk(self.quota).values.sum(-1, keepdim=True)
        return self.last * (self.last.sum(-1, keepdim=True) / kept - 1)


def survival_of(first: Tensor, last: Tensor, quota: int) -> Survival:
    """Enumerate the sets of `quota` items.

    Args:
        first: P_M1, positive numbers ``(lists, n)``.
        last: P_M2, positive numbers ``(lists, n)``.
        quota: Number of items that the first stage keeps.
    """
    n = first.shape[-1]
    rows = [[float(item in chosen) for item in range(n)] for chosen in itertools.combinations(range(n), quota)]
    sets = first.new_tensor(rows)  # (sets, n)
    probability = (first.log() @ sets.T).softmax(-1)  # (lists, sets)
    kept = (last @ sets.T) / last.sum(-1, keepdim=True)  # the share of the last stage's inclusion in each set
    return Survival(first, last, probability @ sets, last * ((probability / kept) @ sets), quota)


# --- claims -------------------------------------------------------------------------------------------------------

CLAIMS: dict[str, Callable[[Survival], Tensor]] = {  # by how much an item violates the claim; negative: it holds
    "E(pi) = P_M1 (section 4.3)": lambda one: (one.drawn - one.first).abs(),
    "P_CS >= E(pi) P_M2 (eq. 8, line 2)": lambda one: one.drawn * one.last - one.survives,
    "P_CS >= P_M1 P_M2 (eq. 8)": lambda one: one.product - one.survives,
    "P_CS - P_M1 P_M2 <= Delta' (eq. 14)": lambda one: one.survives - one.product - one.gap_bound,
    "Delta' = 0 if both keep the same items (eq. 15)": lambda one: one.least_gap_bound,
    "P_CS <= 1": lambda one: one.survives - 1,
}


@dataclass(frozen=True, slots=True)
class Check:
    """How often a claim fails.

    Attributes:
        claim: The claim.
        items: Number of items it was checked for.
        failures: Number of items for which it fails.
        worst: The largest violation, 0 if it never fails.
    """

    claim: str
    items: int
    failures: int
    worst: float


def check_claims(cases: Iterable[Survival]) -> list[Check]:
    """Check every claim for every item of the cases."""
    found = list(cases)
    checks = []
    for claim, violation in CLAIMS.items():
        values = torch.cat([violation(one).flatten() for one in found])
        worst = max(0.0, float(values.max()))
        checks.append(Check(claim, len(values), int((values > SLACK).sum()), worst if worst > SLACK else 0.0))
    return checks


# --- cases --------------------------------------------------------------------------------------------------------


def _cases(reproduction: SurvivalBounds, operator: dict[str, Any], seed: int) -> Iterator[tuple[Number, Survival]]:
    """Draw scores for every length, quotas and correlation of the two stages; yield the correlation with each case."""
    generator = torch.Generator().manual_seed(seed)
    select = topk(**operator)
    for n, correlation in itertools.product(reproduction.lengths, reproduction.correlations):
        noise = torch.randn(2, reproduction.lists, n, generator=generator, dtype=torch.double)
        scores = noise[0], correlation * noise[0] + (1 - correlation**2) ** 0.5 * noise[1]
        for first, last in itertools.combinations(range(n - 1, 0, -1), 2):  # the first stage keeps more
            inclusions = (select(scores[0], first), select(scores[1], last))
            yield correlation, survival_of(*inclusions, quota=first)


def survival_bounds(reproduction: SurvivalBounds, task: Task) -> Report:
    """Check the claims for every operator."""
    cases: dict[str, list[tuple[Number, Survival]]] = {}
    for number, operator in enumerate(reproduction.operators):
        name = ", ".join([operator["name"], *(f"{key} = {one:g}" for key, one in operator.items() if key != "name")])
        task.progress(name, number, len(reproduction.operators))
        cases[name] = list(_cases(reproduction, operator, task.seed))
    checks = {name: check_claims(one for _, one in of) for name, of in cases.items()}
    return Report(
        sheets=[_survival_bounds_sheet(reproduction.title, name, of) for name, of in checks.items()],
        plots={reproduction.id: _figure(reproduction, cases)},
        results={
            "lengths": reproduction.lengths,
            "correlations": reproduction.correlations,
            "lists_per_setting": reproduction.lists,
            "checks": {name: [asdict(one) for one in of] for name, of in checks.items()},
        },
        notes=reproduction.notes,
    )


def _survival_bounds_sheet(title: str, operator: str, checks: Sequence[Check]) -> Table:
    rows = [
        [one.claim, f"{one.failures:,} of {one.items:,}", f"{one.failures / one.items:.1%}", f"{one.worst:.3g}"]
        for one in checks
    ]
    return sheet(f"{title}: {operator}", ["claim", "fails for items", "share", "worst by"], rows)


def _figure(reproduction: SurvivalBounds, cases: Mapping[str, Sequence[tuple[Number, Survival]]]) -> Chart:
    """Draw the share of items for which each claim fails, by the correlation of the stages."""
    panels: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for operator, of in cases.items():
        panels[operator] = {claim: [] for claim in CLAIMS}
        for correlation in reproduction.correlations:
            for one in check_claims(case for at, case in of if at == correlation):
                panels[operator][one.claim].append((correlation, one.failures / one.items))
    return curves(
        panels,
        title=f"{reproduction.title}: share of items for which a claim fails",
        caption="all sets that the first stage can keep are enumerated",
        x="correlation of the scores of both stages",
    )


DISTANCE, EXCESS = "mean |p - hard|", "|sum of p - k| / k"
GRADIENT, SCALED = "mean |dL/ds|", "mean |dL/d(s/tau)|"
REACHED = "items reached"
EFFECTS = (DISTANCE, EXCESS, GRADIENT, SCALED, REACHED)
FAINT = 0.01  # an item is reached if its gradient is at least this share of the largest one of its list


def temperature_effect(reproduction: TemperatureEffect, task: Task) -> Report:
    """Measure the operator at every temperature."""
    scores, relevant = make_lists(reproduction.lists, task.seed)
    taus = pick_points(reproduction.taus, task.size.points and max(task.size.points, 5))
    values = {tau: measure_temperature(reproduction.operator, scores, relevant, reproduction.k, tau) for tau in taus}
    return Report(
        sheets=[
            pivot(
                f"{reproduction.operator} by temperature, k = {reproduction.k}, scores of standard deviation 1",
                "tau",
                {f"{tau:g}": found for tau, found in values.items()},
                {measure: measure for measure in EFFECTS},
                "{:.3g}".format,
            )
        ],
        plots={
            reproduction.id: curves(
                {
                    measure: {reproduction.operator: [(tau, found[measure]) for tau, found in values.items()]}
                    for measure in (DISTANCE, GRADIENT, SCALED)
                },
                title=f"{reproduction.title}: {reproduction.operator} by temperature",
                x="tau",
                log_x=True,
                log_y=True,
                ticks=taus,
            )
        },
        results={
            "lists": reproduction.lists.model_dump(),
            "values": {f"{tau:g}": found for tau, found in values.items()},
            "published": {"taus": reproduction.taus},
        },
        notes=reproduction.notes,
    )


def measure_temperature(operator: str, scores: Tensor, relevant: Tensor, k: int, tau: float) -> dict[str, float]:
    """Return what temperature `tau` changes, by name."""
    scores = scores.detach().requires_grad_()
    topk = ops.topk(operator, tau=tau)
    log_p, log_not_p = ops.log_inclusion(topk, scores, k)
    loss = -torch.where(relevant, log_p, log_not_p).mean(-1)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    with torch.no_grad():
        p, hard = topk(scores, k), ops.hard_topk(scores, k)
    size = gradient.abs()
    return {
        DISTANCE: float((p - hard).abs().mean()),
        EXCESS: float((p.sum(-1) - k).abs().mean() / k),
        GRADIENT: float(size.mean()),
        SCALED: float(size.mean() * tau),
        REACHED: float((size >= FAINT * size.amax(-1, keepdim=True)).double().mean()),
    }
