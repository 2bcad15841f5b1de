"""Objectives of a cascade against formulas written out with plain Python numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import rankfall as rf
from rankfall._lists import top_labels
from rankfall.objectives import (
    ARF,
    BCE,
    ICC,
    LCRON,
    ARFv2,
    FSLambdaLoss,
    FSRankNet,
    Objective,
    PerStage,
    RankFlow,
    SortCE,
)
from rankfall.training.cascade_metrics import ground_truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.ops.inclusion import Operator

TOPK = ["dftopk", "lapsum_topk", "sigmoid_topk", "sparse_topk", "neural_sort", "soft_sort", "diff_sort", "pirank_sort"]


def make_topk(name: str) -> Operator:
    # where sparse top-k is exactly 0 or 1 it has no gradient, so its temperature must cover the spread of the scores
    return rf.ops.topk(name, tau=5.0) if name == "sparse_topk" else rf.ops.topk(name)


def objectives(stages: int = 2, relevant: int = 2) -> dict[str, Objective]:
    quotas = [4, 3, 3][:stages]
    return {
        "BCE": BCE(relevant=relevant, stages=stages),
        "ICC": ICC(relevant=relevant, quotas=quotas),
        "RankFlow": RankFlow(relevant=relevant, quotas=quotas, alpha=0.3),
        "FSRankNet": FSRankNet(stages=stages),
        "FSLambdaLoss": FSLambdaLoss(k=3, mix=0.25, stages=stages),
        "FSLambdaLoss exp2": FSLambdaLoss(gain="exp2", stages=stages),
        "SortCE": SortCE(tau=2.0, stages=stages),
        "ARF": ARF(relevant=relevant, quotas=quotas, tau=2.0),
        "ARFv2": ARFv2(relevant=relevant, tau=2.0, stages=stages),
        "ARFv2 published": ARFv2(relevant=relevant, quotas=quotas, tau=2.0, variant="published"),
        "PerStage": PerStage(loss=rf.losses.ARFLoss(m=3, k=relevant, tau=2.0), stages=stages),
        "LCRON": LCRON(relevant=relevant, stages=stages),
        "LCRON published": LCRON(relevant=relevant, quotas=quotas, variant="published", scale="sum"),
        "LCRON learned": LCRON(relevant=relevant, quotas=quotas, e2e_weight="learned"),
        "LCRON alone": LCRON(relevant=relevant, topk=make_topk("dftopk"), stages=stages, single_weight=0),
        "LCRON apart": LCRON(relevant=relevant, topk=make_topk("dftopk"), stages=stages, e2e_weight=0),
        **{f"LCRON {name}": LCRON(relevant=relevant, quotas=quotas, topk=make_topk(name)) for name in TOPK},
    }


NAMES = list(objectives())
# the normaliser of a soft sort's inclusion carries no gradient, by definition
STOPPED = {
    "ARFv2",
    "LCRON",
    "ARFv2 published",
    "LCRON published",
    "LCRON learned",
    *(f"LCRON {name}" for name in ("neural_sort", "soft_sort", "pirank_sort")),
}
POINTWISE = {"BCE", "RankFlow"}  # here negatives have targets too


def impressions(
    seed: int = 0, lists: int = 5, n: int = 7, stages: int = 2, *, weighted: bool = False
) -> dict[str, Any]:
    """Random impressions of different lengths, real items first, with or without item weights."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, n + 1, (lists, 1), generator=generator)
    mask = torch.arange(n) < lengths
    grades = torch.rand(lists, n, generator=generator).masked_fill(~mask, -1).argsort(-1).argsort(-1).double()
    grades = (grades - (~mask).sum(-1, keepdim=True)).clamp(min=0)
    batch = {
        "scores": [torch.randn(lists, n, generator=generator, dtype=torch.float64) for _ in range(stages)],
        "labels": grades,
        "relevance": ((grades >= 3) & mask).double(),
        "depth": (grades // 2).long(),
        "mask": mask,
    }
    weight = torch.rand(lists, n, generator=generator, dtype=torch.float64) * 3
    return batch | ({"weight": weight} if weighted else {})


def call(objective: Objective, batch: dict[str, Any]) -> Tensor:
    given = {name: value for name, value in batch.items() if name not in ("scores", "labels")}
    value: Tensor = objective(batch["scores"], batch["labels"], **given)
    return value


def rearranged(batch: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {k: [change(s) for s in v] if isinstance(v, list) else change(v) for k, v in batch.items()}


# --- properties of all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up(name: str, stages: int) -> None:
    batch = impressions(stages=stages)
    objective = objectives(stages)[name].double()
    parts = objective.parts(batch["scores"], batch["labels"], mask=batch["mask"], relevance=batch["relevance"])
    value = objective(batch["scores"], batch["labels"], mask=batch["mask"], relevance=batch["relevance"])
    torch.testing.assert_close(torch.stack(list(parts.values())).sum(), value)
    assert all(part.ndim == 0 for part in parts.values())


@pytest.mark.witness("mask equivalence")
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_anywhere_changes_nothing(name: str, weighted: bool) -> None:
    objective = objectives()[name].double()
    batch = impressions(weighted=weighted)
    alone = [
        call(objective, rearranged(batch, lambda x, i=i: x[i][batch["mask"][i]]))  # type: ignore[misc]
        for i in range(5)
    ]
    wide = rearranged(batch, lambda x: torch.cat([x, torch.zeros_like(x[:, :2])], -1))
    places = torch.rand(5, 9, generator=torch.Generator().manual_seed(0))
    if name == "LCRON diff_sort":  # a sorting network depends on the order of its input, but not on the padding
        for row, real in zip(places, wide["mask"], strict=True):
            row[real] = row[real].sort().values
    order = places.argsort(-1)
    moved = rearranged(wide, lambda x: x.gather(-1, order))
    moved["scores"] = [scores.masked_fill(~moved["mask"], 1e4).requires_grad_() for scores in moved["scores"]]
    value = call(objective, moved)
    torch.testing.assert_close(value, torch.stack(alone).mean())
    for gradient in torch.autograd.grad(value, moved["scores"]):
        assert not gradient[~moved["mask"]].any()


@pytest.mark.witness("gradcheck")
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in STOPPED])
def test_gradients_are_those_of_the_value(name: str, weighted: bool) -> None:
    objective = objectives()[name].double()
    batch = impressions(lists=2, n=6, weighted=weighted)
    # the second stage of RankFlow is a teacher without gradient
    free = batch["scores"][:1] if name == "RankFlow" else batch["scores"]
    scores = [stage.requires_grad_() for stage in free]

    def value(*stages: Tensor) -> Tensor:
        return call(objective, {**batch, "scores": [*stages, *batch["scores"][len(stages) :]]})

    if name in {"ICC", "FSLambdaLoss", "FSLambdaLoss exp2", "FSRankNet"}:  # weights by rank are constant nearby
        torch.autograd.gradcheck(value, scores, eps=1e-7, atol=1e-5)
    else:
        torch.autograd.gradcheck(value, scores)


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in POINTWISE])
def test_lists_without_relevant_items_count_nothing(name: str) -> None:
    objective = objectives()[name].double()
    batch = impressions(lists=1)
    nothing = {**batch, "labels": torch.zeros_like(batch["labels"]), "relevance": torch.zeros_like(batch["labels"])}
    nothing["scores"] = [stage.clone().requires_grad_() for stage in batch["scores"]]
    value = call(objective, nothing)
    assert value == 0
    parameters = [*nothing["scores"], *objective.parameters()]
    for gradient in torch.autograd.grad(value, parameters, allow_unused=True):
        assert gradient is None or not gradient.any()


@pytest.mark.parametrize("name", NAMES)
def test_grades_below_0_are_an_order_or_refused(name: str) -> None:
    """Without relevance, objectives of the ground truth would find no relevant item and be 0."""
    batch = impressions()
    del batch["relevance"]
    shifted = batch | {"labels": batch["labels"] - 9}
    if name in ("FSRankNet", "SortCE"):
        torch.testing.assert_close(call(objectives()[name], shifted), call(objectives()[name], batch))
        return
    with pytest.raises(ValueError, match=r"^labels must not hold values below 0"):
        call(objectives()[name], shifted)


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("name", NAMES)
def test_extreme_scores_stay_finite(name: str) -> None:
    objective = objectives()[name]
    batch = impressions()
    scores = [(1e4 * stage).float().requires_grad_() for stage in batch["scores"]]
    value = call(objective, {**batch, "scores": scores})
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value, scores))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_training_finds_the_funnel(name: str) -> None:
    """Free scores trained by any objective keep the relevant items."""
    torch.manual_seed(0)
    objective = objectives(relevant=3)[name]
    grades = torch.rand(8, 12).argsort(-1).argsort(-1).float()
    relevance, depth = (grades >= 9).float(), (grades // 4).long()
    scores = [torch.zeros(8, 12).normal_(generator=torch.Generator().manual_seed(t)).requires_grad_() for t in (1, 2)]
    optimizer = torch.optim.Adam([*scores, *objective.parameters()], lr=0.2)
    for _ in range(80):
        optimizer.zero_grad()
        objective(scores, grades, relevance=relevance, depth=depth).backward()
        optimizer.step()
    result = rf.metrics.funnel([stage.detach() for stage in scores], relevance, quotas=[6, 4])
    # the second stage of BCE was not trained on items of depth 0, so it may keep some
    assert result.joint_recall.mean() > (0.9 if name != "BCE" else 0.85)


# --- item weights -----------------------------------------------------------------------------------------------


def value_and_gradients(objective: Objective, batch: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    scores = [stage.clone().requires_grad_() for stage in batch["scores"]]
    value = call(objective, {**batch, "scores": scores})
    gradients = torch.autograd.grad(value, scores, allow_unused=True)
    return value.detach(), [torch.zeros(1) if one is None else one for one in gradients]


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_one_change_nothing(name: str) -> None:
    batch = impressions()
    plain, gradients = value_and_gradients(objectives()[name].double(), batch)
    weighted, others = value_and_gradients(objectives()[name].double(), {**batch, "weight": torch.ones(5, 7)})
    assert plain.equal(weighted)
    assert all(one.equal(other) for one, other in zip(gradients, others, strict=True))


@pytest.mark.witness("derivation")
@pytest.mark.parametrize("name", NAMES)
def test_terms_are_linear_in_the_weights(name: str) -> None:
    """The value is the sum over the items of the weight times the item's own term, which other weights do not change.

    Trained weights of the objectives are 1 here, so that their logarithms, which have no item, are 0.
    """
    batch, objective = impressions(lists=2, n=5, weighted=True), objectives()[name].double()
    own = torch.zeros(2, 5, dtype=torch.float64)
    for place in ((i, j) for i in range(2) for j in range(5)):
        alone = torch.zeros(2, 5, dtype=torch.float64)
        alone[place] = 1.0
        own[place] = call(objective, {**batch, "weight": alone}).detach()
    torch.testing.assert_close(call(objective, batch).detach(), (own * batch["weight"]).sum())
    assert not own[~batch["mask"]].any()


@pytest.mark.witness("brute force", "BCE")
@pytest.mark.witness("brute force", "ICC")
@pytest.mark.witness("brute force", "RankFlow")
@pytest.mark.witness("brute force", "LCRON")
def test_weighted_objectives_by_hand() -> None:
    """Four items, two stages, one relevant item, weights 3, 0, 2 and 0.5."""
    first, second, weight = [0.3, -0.7, 1.1, 0.9], [0.2, 0.9, -0.4, 0.5], [3.0, 0.0, 2.0, 0.5]
    truth, alpha = [1, 0, 0, 0], 0.3

    def found(objective: Objective) -> float:
        tensors = [torch.tensor(numbers, dtype=torch.float64) for numbers in (first, second, truth, weight)]
        return float(objective.double()(tensors[:2], tensors[2], weight=tensors[3]).detach())

    def bce(scores: list[float], among: list[int]) -> float:
        costs = [-math.log(sigmoid(scores[j] if truth[j] else -scores[j])) for j in range(4)]
        return sum(weight[j] * costs[j] for j in among) / len(among)

    assert found(BCE(relevant=1, min_depth=-1)) == pytest.approx(bce(first, [0, 1, 2, 3]) + bce(second, [0, 1, 2, 3]))

    kept = [0, 2, 3]  # the second stage ranks item 3 first, whose weight is that of the ranking term
    squared = sum(weight[j] * (first[j] - second[j]) ** 2 for j in kept) / 3
    ranked = -weight[3] * math.log(sigmoid(first[3] - (first[0] + first[2]) / 2))
    expected = bce(first, [0, 1, 2, 3]) + bce(second, kept) + (1 - alpha) * squared + alpha * ranked
    assert found(RankFlow(relevant=1, quotas=[3, 1], alpha=alpha)) == pytest.approx(expected)

    cut = sorted(first, reverse=True)[1]
    fused = [(1 - sigmoid(a - cut)) * a + sigmoid(a - cut) * b for a, b in zip(first, second, strict=True)]
    pairs = sum(weight[0] * math.log(1 + math.exp(fused[j] - fused[0])) for j in (1, 2, 3)) / 3
    assert found(ICC(relevant=1, quotas=[2, 1], loss="ranknet")) == pytest.approx(pairs)

    def cross_entropy(p: list[float]) -> float:
        return -sum(weight[j] * math.log(p[j] if truth[j] else 1 - p[j]) for j in range(4)) / 4

    p, q = dftopk(first, 1), dftopk(second, 1)
    survival = cross_entropy([a * b for a, b in zip(p, q, strict=True)])
    expected = survival + (cross_entropy(p) + cross_entropy(q)) / 2
    assert found(LCRON(relevant=1, topk=rf.ops.topk("dftopk"))) == pytest.approx(expected)


def test_weighted_objectives_of_one_loss_are_that_loss() -> None:
    """The losses are checked against loops of their own."""
    batch = impressions(weighted=True)
    scores, grades = batch["scores"], batch["labels"]
    given = {"mask": batch["mask"], "weight": batch["weight"]}
    loss = rf.losses
    cases: list[tuple[Objective, Callable[[Tensor, int], Tensor]]] = [
        (FSRankNet(), lambda s, t: loss.ranknet_loss(s, grades, **given)),
        (FSLambdaLoss(gain="exp2", k=2), lambda s, t: loss.lambda_loss(s, grades, k=2, **given)),
        (SortCE(tau=3.0), lambda s, t: loss.sort_cross_entropy_loss(s, grades, tau=3.0, **given)),
        (PerStage(loss=loss.SoftmaxLoss()), lambda s, t: loss.softmax_loss(s, grades, **given)),
        (
            ARF(relevant=2, quotas=[4, 3], tau=3.0).double(),
            lambda s, t: (
                loss.relax_loss(s, grades, m=[4, 3][t], k=2, tau=3.0, **given)
                + loss.sort_cross_entropy_loss(s, grades, tau=3.0, **given) / 2
            ),
        ),
        (
            ARFv2(relevant=2, tau=3.0).double(),
            lambda s, t: (
                loss.topk_bce_loss(s, grades, k=2, topk=rf.ops.topk("neural_sort", tau=3.0), **given)
                + loss.sort_cross_entropy_loss(s, grades, tau=3.0, **given) / 2
            ),
        ),
    ]
    for objective, of_stage in cases:
        expected = sum(of_stage(stage, t) for t, stage in enumerate(scores))
        torch.testing.assert_close(objective(scores, grades, **given).detach(), expected)


def test_logits_of_grades_take_weights() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    grades, weight = torch.tensor([[0.0, 1, 2, 3]] * 3), torch.rand(3, 4)
    found = PerStage(loss=rf.losses.GradeSoftmaxLoss(), stages=1)([logits], grades, weight=weight)
    torch.testing.assert_close(found, rf.losses.grade_softmax_loss(logits, grades, weight=weight))


def test_wrong_weights_are_refused() -> None:
    class OwnLoss(torch.nn.Module):
        def forward(self, scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
            return (scores * labels * mask).sum()

    scores, grades = [torch.zeros(2, 3)] * 2, torch.tensor([[2.0, 1, 0]] * 2)
    with pytest.raises(ValueError, match="weight: OwnLoss takes no item weights; leave weight out"):
        PerStage(loss=OwnLoss())(scores, grades, weight=torch.ones(2, 3))
    assert PerStage(loss=OwnLoss())(scores, grades) == 0
    with pytest.raises(ValueError, match=r"weight must have the shape of scores, \(2, 3\), got \(2,\)"):
        FSRankNet()(scores, grades, weight=torch.ones(2))
    with pytest.raises(ValueError, match="weight must not hold NaN, inf"):
        FSRankNet()(scores, grades, weight=torch.full((2, 3), math.nan))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_lists_has_the_value_0(name: str, weighted: bool) -> None:
    """One of several processes has an empty share of a small batch."""
    empty = rearranged(impressions(weighted=weighted), lambda x: x[:0])
    scores = [stage.requires_grad_() for stage in empty["scores"]]
    value = call(objectives()[name].double(), {**empty, "scores": scores})
    assert value == 0
    value.backward()


# --- the ground truth -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_the_ground_truth_is_ordered_by_relevance_then_by_grade(levels: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    relevance = torch.randint(0, levels + 1, (40, 9), generator=generator) * 0.7
    grades = torch.randint(0, 4, (40, 9), generator=generator).float()
    mask = torch.rand(40, 9, generator=generator) < 0.8
    batch = FSRankNet(stages=1)._check([torch.zeros(40, 9)], grades, relevance, None, mask)
    for k in (1, 3, 20):
        for i, found in enumerate(batch.truth(k).tolist()):
            relevant = [j for j in range(9) if mask[i, j] and relevance[i, j] > 0]
            keys = {j: (relevance[i, j].item(), grades[i, j].item()) for j in relevant}
            for j in range(9):
                if j not in keys:
                    assert found[j] == 0
                    continue
                better = sum(other > keys[j] for other in keys.values())
                equal = sum(other == keys[j] for other in keys.values())  # equal items share the places that are left
                assert found[j] == pytest.approx(min(1.0, max(0.0, (k - better) / equal)))
        measured = SimpleNamespace(relevance=relevance.masked_fill(~mask, 0), grade=grades.int(), mask=mask)
        torch.testing.assert_close(batch.truth(k), ground_truth(measured, k))  # type: ignore[arg-type]


# --- LCRON ------------------------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dftopk(scores: list[float], k: int) -> list[float]:
    ordered = sorted(scores, reverse=True)
    theta = (ordered[k - 1] + ordered[k]) / 2
    return [sigmoid(score - theta) for score in scores]


def entropy(p: list[float], truth: list[float]) -> float:
    return -sum(a * math.log(x) + (1 - a) * math.log(1 - x) for x, a in zip(p, truth, strict=True)) / len(p)


FIRST, SECOND = [0.3, -0.7, 1.1], [0.2, 0.9, -0.4]


@pytest.mark.witness("hand", "LCRON")
def test_lcron_on_three_items_by_hand() -> None:
    truth = [1.0, 0.0, 0.0]
    p, q = dftopk(FIRST, 2), dftopk(SECOND, 1)
    survive = [a * b for a, b in zip(p, q, strict=True)]
    expected_e2e = entropy(survive, truth)
    singles = [entropy(dftopk(FIRST, 1), truth), entropy(q, truth)]

    objective = LCRON(relevant=1, quotas=[2, 1], topk=rf.ops.topk("dftopk")).double()
    with torch.no_grad():
        objective.weights.copy_(torch.tensor([2.0, -0.5]))
    first = torch.tensor(FIRST, dtype=torch.float64, requires_grad=True)
    second = torch.tensor(SECOND, dtype=torch.float64, requires_grad=True)
    parts = objective.parts([first, second], torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64))
    assert parts["e2e"].item() == pytest.approx(expected_e2e)
    assert parts["stage1/single"].item() == pytest.approx(singles[0] / 8 + math.log(2))
    assert parts["stage2/single"].item() == pytest.approx(singles[1] * 2 + math.log(0.5))

    # The gradient of L_e2e by hand: dL/dS_j = -(a_j / S_j - (1 - a_j) / (1 - S_j)) / 3, dS_j/dp_j = q_j,
    # dp_j/ds_j = p_j (1 - p_j), and the threshold takes half of the sum from each of the two items at the cut.
    cost = [-(a / s - (1 - a) / (1 - s)) / 3 for a, s in zip(truth, survive, strict=True)]
    slopes = [c * other * x * (1 - x) for c, other, x in zip(cost, q, p, strict=True)]
    cut = sorted(range(3), key=lambda j: -FIRST[j])[1:3]
    by_hand = [slope - (sum(slopes) / 2 if j in cut else 0) for j, slope in enumerate(slopes)]
    (gradient,) = torch.autograd.grad(parts["e2e"], first)
    torch.testing.assert_close(gradient, torch.tensor(by_hand, dtype=torch.float64))


@pytest.mark.witness("derivation", "LCRON")
@pytest.mark.parametrize("name", TOPK)
def test_identical_stages_give_powers(name: str) -> None:
    batch = impressions(stages=1)
    topk = make_topk(name)
    (scores,) = batch["scores"]
    p = topk(scores, 2, mask=batch["mask"])
    truth = top_labels(batch["labels"], 2, batch["mask"])
    for stages in (1, 2, 3):
        objective = LCRON(relevant=2, topk=topk, stages=stages).double()
        parts = objective.parts([scores] * stages, batch["labels"], mask=batch["mask"])
        survive = p**stages
        costs = -(truth * survive.clamp(1e-40).log() + (1 - truth) * (1 - survive).clamp(1e-40).log())
        expected = (costs * batch["mask"]).sum(-1) / batch["mask"].sum(-1)
        torch.testing.assert_close(parts["e2e"], expected.mean(), rtol=1e-6, atol=1e-6)


def test_a_stage_that_drops_everything_still_learns() -> None:
    """Survival near 0: the product has no gradient for the good stage, L_single has one; neither gradient vanishes."""
    grades = torch.tensor([2.0, 1.0, 0.0, 0.0])
    first = torch.tensor([-400.0, 0.0, 5.0, 5.0], requires_grad=True)  # the relevant item is almost certainly dropped
    second = torch.tensor([0.0, 0.0, 0.0, 0.0], requires_grad=True)
    objective = LCRON(relevant=1, topk=rf.ops.topk("dftopk"))
    parts = objective.parts([first, second], grades)
    e2e = torch.autograd.grad(parts["e2e"], first, retain_graph=True)[0]
    assert e2e[0] == pytest.approx(-1 / 4, rel=1e-3)  # d log sigmoid(x) = 1 far below, though sigmoid(x) is 0
    single = torch.autograd.grad(parts["stage2/single"], second)[0]
    assert single[0] < 0


def test_learned_weights_follow_the_equation() -> None:
    batch = impressions()
    fixed = LCRON(relevant=2, topk=rf.ops.topk("lapsum_topk")).double()
    learned = LCRON(relevant=2, topk=rf.ops.topk("lapsum_topk"), e2e_weight="learned").double()
    with torch.no_grad():
        learned.weights.copy_(torch.tensor([1.0, 1.0, 3.0]))
    a = fixed.parts(batch["scores"], batch["labels"], mask=batch["mask"])
    b = learned.parts(batch["scores"], batch["labels"], mask=batch["mask"])
    torch.testing.assert_close(b["e2e"], a["e2e"] / 18 + math.log(3))
    assert (len(fixed.weights), len(learned.weights)) == (2, 3)


@pytest.mark.witness("mask equivalence", "LCRON")
@pytest.mark.parametrize("topk", TOPK)
def test_lists_of_which_everything_is_kept_count_for_nothing(topk: str) -> None:
    """Two lists of four items beside two with as many as the quotas: half of the value of the first two alone."""
    labels = torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=torch.float64).expand(4, 4)
    mask = torch.tensor([4, 4, 2, 1])[:, None] > torch.arange(4)
    scores = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    objective = LCRON(relevant=2, topk=make_topk(topk), e2e_weight="learned").double()
    with torch.no_grad():
        objective.weights.copy_(torch.tensor([0.7, 1.2, 1.5]))
    inputs = [*scores, *objective.parameters()]
    value = objective(scores, labels, mask=mask)
    alone = objective([stage[:2] for stage in scores], labels[:2], mask=mask[:2]) / 2
    torch.testing.assert_close(value, alone)
    torch.testing.assert_close(torch.autograd.grad(value, inputs), torch.autograd.grad(alone, inputs))


@pytest.mark.witness("hand", "LCRON")
def test_weights_may_be_numbers() -> None:
    """Three items by hand: L_e2e at weight 0.5, both L_single at weight 3, without logarithms; 0 leaves a term out."""
    truth = [1.0, 0.0, 0.0]
    p, q = dftopk(FIRST, 1), dftopk(SECOND, 1)
    e2e = entropy([a * b for a, b in zip(p, q, strict=True)], truth)
    singles = [entropy(p, truth), entropy(q, truth)]
    batch = [torch.tensor(FIRST), torch.tensor(SECOND)], torch.tensor([3.0, 1.0, 0.0])

    def parts(**weights: Any) -> dict[str, float]:
        objective = LCRON(relevant=1, topk=rf.ops.topk("dftopk"), **weights)
        assert not list(objective.parameters())
        return {name: value.item() for name, value in objective.parts(*batch).items()}

    assert parts(e2e_weight=0.5, single_weight=3) == {
        "e2e": pytest.approx(0.5 * e2e),
        "stage1/single": pytest.approx(3 * singles[0]),
        "stage2/single": pytest.approx(3 * singles[1]),
    }
    assert parts(single_weight=0) == {"e2e": pytest.approx(e2e)}
    assert parts(e2e_weight=0, single_weight=1.0) == {
        "stage1/single": pytest.approx(singles[0]),
        "stage2/single": pytest.approx(singles[1]),
    }


def test_disabling_a_term_keeps_other_terms() -> None:
    batch = impressions()
    both, apart = (LCRON(relevant=2, topk=rf.ops.topk("lapsum_topk"), e2e_weight=weight).double() for weight in (1, 0))
    expected = both.parts(batch["scores"], batch["labels"], mask=batch["mask"])
    found = apart.parts(batch["scores"], batch["labels"], mask=batch["mask"])
    expected.pop("e2e")
    torch.testing.assert_close(found, expected)
    learned = LCRON(relevant=2, e2e_weight="learned", single_weight=2.0)
    assert len(learned.weights) == 1
    assert len(apart.weights) == 2


# --- the others -------------------------------------------------------------------------------------------------


@pytest.mark.witness("brute force", "BCE")
def test_bce_trains_on_items_from_min_depth() -> None:
    batch = impressions(seed=3, lists=1)
    assert batch["depth"].max() >= 2
    first, second = (stage[0] for stage in batch["scores"])
    real, depth, truth = batch["mask"][0], batch["depth"][0], batch["labels"][0] >= batch["labels"].max() - 1

    def bce(scores: Tensor, among: Tensor) -> float:
        costs = [
            -math.log(sigmoid(s)) if t else -math.log(1 - sigmoid(s))
            for s, t in zip(scores[among].tolist(), truth[among].tolist(), strict=True)
        ]
        return sum(costs) / len(costs)

    for least, expected in ((None, [-1, 1]), (0, [0, 0]), ([-1, 2], [-1, 2])):
        objective = BCE(relevant=2, min_depth=least)
        parts = objective.parts(batch["scores"], batch["labels"], depth=batch["depth"], mask=batch["mask"])
        assert parts["stage1/bce"].item() == pytest.approx(bce(first, real & (depth >= expected[0])))
        assert parts["stage2/bce"].item() == pytest.approx(bce(second, real & (depth >= expected[1])))


def test_relevance_limits_the_ground_truth() -> None:
    # one relevant item where two are asked for: the second best grade is no ground truth
    grades, zeros = torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.zeros(4)
    objective = LCRON(relevant=2, topk=rf.ops.topk("dftopk"))
    batch = objective._check([zeros, zeros], grades, torch.tensor([1.0, 0.0, 0.0, 0.0]), None, None)
    assert batch.truth(2).tolist() == [1, 0, 0, 0]
    batch = objective._check([zeros, zeros], grades, None, None, None)
    assert batch.truth(2).tolist() == [1, 1, 0, 0]
    batch = objective._check([zeros, zeros], zeros, torch.ones(4), None, None)  # every item has the worst grade
    assert batch.truth(4).tolist() == [1, 1, 1, 1]


@pytest.mark.witness("hand", "ICC")
def test_icc_by_hand() -> None:
    first, second, temperature = FIRST, SECOND, 0.7
    kth = sorted(first, reverse=True)[1]
    stays = [sigmoid((s - kth) / temperature) for s in first]
    fused = [(1 - i) * a + i * b for i, a, b in zip(stays, first, second, strict=True)]
    # RankNet, mean over the two pairs in which item 0 should win
    expected = sum(math.log(1 + math.exp(fused[j] - fused[0])) for j in (1, 2)) / 2
    objective = ICC(relevant=1, quotas=[2, 1], temperature=temperature, loss="ranknet")
    found = objective([torch.tensor(first), torch.tensor(second)], torch.tensor([3.0, 1.0, 2.0]))
    assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.witness("limit", "ICC")
def test_icc_of_three_stages_fuses_all() -> None:
    stages = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 4.0, 9.0]), torch.tensor([7.0, 8.0, 6.0])]
    objective = ICC(relevant=1, quotas=[2, 1, 1], temperature=1e-4)
    fused = objective.fuse(objective._check(stages, torch.tensor([0.0, 0.0, 1.0]), None, None, None))
    # item 0 is cut by the first stage, item 1 is at its edge (half) and then cut by the second; item 2 is at
    # the edge of the second: half of 9 and half of 6
    torch.testing.assert_close(fused, torch.tensor([1.0, 0.5 * 2 + 0.5 * 4, 0.5 * 9 + 0.5 * 6]))


@pytest.mark.witness("hand", "RankFlow")
def test_rankflow_by_hand() -> None:
    first, second, alpha = [0.3, -0.7, 1.1, 0.9], [0.2, 0.9, -0.4, 0.5], 0.3
    truth = [1, 0, 0, 0]

    def bce(scores: list[float], among: list[int]) -> float:
        return sum(-math.log(sigmoid(scores[j] if truth[j] else -scores[j])) for j in among) / len(among)

    kept = [0, 2, 3]  # the three best of the first stage; of them the second stage ranks 3 first
    squared = sum((first[j] - second[j]) ** 2 for j in kept) / 3
    ahead = first[3] - (first[0] + first[2]) / 2
    expected = bce(first, [0, 1, 2, 3]) + bce(second, kept) + (1 - alpha) * squared - alpha * math.log(sigmoid(ahead))
    objective = RankFlow(relevant=1, quotas=[3, 1], alpha=alpha)
    scores = [torch.tensor(first, requires_grad=True), torch.tensor(second, requires_grad=True)]
    value = objective(scores, torch.tensor([3.0, 2.0, 1.0, 0.0]))
    assert value.item() == pytest.approx(expected, rel=1e-5)
    distilled = objective.parts(scores, torch.tensor([3.0, 2.0, 1.0, 0.0]))["stage1/distilled"]
    gradients = torch.autograd.grad(distilled, scores, allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1] is None


@pytest.mark.witness("derivation", "FSRankNet")
@pytest.mark.witness("derivation", "FSLambdaLoss")
@pytest.mark.witness("derivation", "SortCE")
@pytest.mark.witness("derivation", "ARF")
@pytest.mark.witness("derivation", "ARFv2")
@pytest.mark.witness("derivation", "PerStage")
def test_per_stage_objectives_are_their_losses() -> None:
    batch = impressions()
    scores, grades, mask = batch["scores"], batch["labels"], batch["mask"]
    loss = rf.losses
    cases: list[tuple[Objective, Callable[[Tensor, int], Tensor]]] = [
        (FSRankNet(), lambda s, t: loss.ranknet_loss(s, grades, mask=mask)),
        (FSLambdaLoss(gain="exp2", k=2, mix=0.5), lambda s, t: loss.lambda_loss(s, grades, mask=mask, k=2, mix=0.5)),
        (SortCE(tau=3.0), lambda s, t: loss.sort_cross_entropy_loss(s, grades, mask=mask, tau=3.0)),
        (
            ARF(relevant=2, quotas=[4, 3], tau=3.0).double(),
            lambda s, t: loss.ARFLoss(m=[4, 3][t], k=2, tau=3.0).double()(s, grades, mask=mask),
        ),
        (
            ARFv2(relevant=2, tau=3.0).double(),
            lambda s, t: loss.ARFv2Loss(k=2, tau=3.0).double()(s, grades, mask=mask),
        ),
    ]
    cases += [
        (PerStage(loss=loss.RelaxLoss(m=3, k=2)), lambda s, t: loss.relax_loss(s, grades, mask=mask, m=3, k=2)),
        (
            PerStage(loss=loss.ARFLoss(m=3, k=2).double()),
            lambda s, t: loss.ARFLoss(m=3, k=2).double()(s, grades, mask=mask),
        ),
    ]
    for objective, of_stage in cases:
        expected = sum(of_stage(stage, t) for t, stage in enumerate(scores))
        torch.testing.assert_close(objective(scores, grades, mask=mask), expected)


@pytest.mark.witness("brute force", "PerStage")
def test_any_loss_of_each_stage() -> None:
    """RankNet by a loop over the pairs of both stages; trained weights are those of a stage alone."""
    grades = [2.0, 0.0, 1.0]
    pairs = [(i, j) for i in range(3) for j in range(3) if grades[i] > grades[j]]
    stages = [sum(math.log(1 + math.exp(s[j] - s[i])) for i, j in pairs) / 3 for s in (FIRST, SECOND)]
    parts = PerStage(loss=rf.losses.RankNetLoss()).parts(
        [torch.tensor(FIRST), torch.tensor(SECOND)], torch.tensor(grades)
    )
    assert [value.item() for value in parts.values()] == pytest.approx(stages)
    pairs = [(0, 1), (0, 2)]  # if the labels only mark the first item as relevant
    stages = [sum(math.log(1 + math.exp(s[j] - s[i])) for i, j in pairs) / 2 for s in (FIRST, SECOND)]
    parts = PerStage(loss=rf.losses.RankNetLoss(), labels="relevance", relevant=1).parts(
        [torch.tensor(FIRST), torch.tensor(SECOND)], torch.tensor(grades)
    )
    assert [value.item() for value in parts.values()] == pytest.approx(stages)
    with pytest.raises(ValueError, match="relevant: found None, expected a number"):
        PerStage(loss=rf.losses.RankNetLoss(), labels="relevance")
    trained = PerStage(loss=rf.losses.ARFLoss(m=2, k=1), stages=3)
    weights = list(trained.parameters())
    assert len(weights) == len({id(weight) for weight in weights}) == 3
    with pytest.raises(TypeError, match=r"loss must be a module of rankfall\.losses, got <function ranknet_loss"):
        PerStage(loss=rf.losses.ranknet_loss)  # type: ignore[arg-type]


@pytest.mark.witness("brute force", "FSLambdaLoss")
def test_linear_gain_is_the_grade() -> None:
    """LambdaLoss with linear gain by a loop over pairs."""
    grades, scores = [3.0, 1.0, 0.0], [0.1, 0.5, -0.3]
    ranks = [2, 1, 3]
    ideal = sum(g / math.log2(1 + r) for r, g in enumerate(sorted(grades, reverse=True), 1))
    expected = 0.0
    for i in range(3):
        for j in range(3):
            if grades[i] > grades[j]:
                apart = abs(ranks[i] - ranks[j])
                delta = 1 / math.log2(1 + apart) - 1 / math.log2(2 + apart)
                expected += (grades[i] - grades[j]) * delta * math.log(1 + math.exp(scores[j] - scores[i])) / ideal
    found = FSLambdaLoss(stages=1)([torch.tensor(scores)], torch.tensor(grades))
    assert found.item() == pytest.approx(expected, rel=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LCRON(relevant=0), "relevant must be at least 1, got 0"),
        (lambda: LCRON(relevant=1, quotas=[2, 3]), r"quotas must not grow from stage to stage, got \[2, 3\]"),
        (lambda: LCRON(relevant=1, quotas=[3, 2], stages=3), "one for each of 3 stages, got 2"),
        (
            lambda: LCRON(relevant=1, e2e_weight="none"),  # type: ignore[arg-type]
            "e2e_weight must be 'fixed', 'learned' or a number from 0 to 100000, got 'none'",
        ),
        (
            lambda: LCRON(relevant=1, single_weight=-1),
            "single_weight must be 'learned' or a number from 0 to 100000, got -1",
        ),
        (lambda: LCRON(relevant=1, single_weight=math.nan), "or a number from 0 to 100000, got nan"),
        (lambda: LCRON(relevant=1, e2e_weight=0, single_weight=0), "both 0, so nothing would be trained"),
        (lambda: BCE(relevant=1, min_depth=[1]), "min_depth must be one number, or one for each of 2 stages, got 1"),
        (lambda: RankFlow(relevant=1, quotas=[1, 1], alpha=2), r"alpha must be in \[0, 1\], got 2"),
        (lambda: ICC(relevant=1, quotas=[1, 1], temperature=0), "temperature must be from"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Objective], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_scores_are_refused() -> None:
    objective, zeros = LCRON(relevant=1), torch.zeros(3)
    with pytest.raises(TypeError, match="scores must be a list of tensors, one per stage, got Tensor"):
        objective(zeros, zeros)
    with pytest.raises(ValueError, match="scores must be a list of 2 tensors, one per stage, got 3"):
        objective([zeros] * 3, zeros)
    with pytest.raises(ValueError, match="relevance must have the shape of scores"):
        objective([zeros] * 2, zeros, relevance=torch.zeros(4))
    with pytest.raises(ValueError, match="depth must have the shape of scores"):
        objective([zeros] * 2, zeros, depth=torch.zeros(4))
    with pytest.raises(ValueError, match="scores must not hold NaN"):
        objective([zeros, zeros * math.nan], zeros)
