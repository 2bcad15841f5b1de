"""The ranking metrics: one table of all of them, against enumeration, other libraries and properties."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from typing import TYPE_CHECKING, Any

import ir_measures
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from torch import Tensor

from rankfall import metrics
from rankfall.metrics.named import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAN, INF = float("nan"), float("inf")
EXAMPLE = {"m": 3, "k": 2}  # values of the required arguments of metrics


def is_ranking_metric(name: str) -> bool:
    member = getattr(metrics, name)
    return inspect.isfunction(member) and list(inspect.signature(member).parameters)[:2] == [
        "scores",
        "labels",
    ]


RANKING = [name for name in metrics.__all__ if is_ranking_metric(name)]
every_metric = pytest.mark.parametrize("name", RANKING)


def required(name: str) -> dict[str, int]:
    parameters = inspect.signature(getattr(metrics, name)).parameters.values()
    return {p.name: EXAMPLE[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}


def measure(name: str, scores: Tensor, labels: Tensor, **options: Any) -> Tensor:
    value = getattr(metrics, name)(scores, labels, **(required(name) | options))
    assert isinstance(value, Tensor)
    return value


def tied_lists(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with many ties and some infinities, graded labels, a mask."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([-INF, -1.0, 0.0, 0.5, INF], dtype=dtype)
    scores = values[torch.randint(5, shape, generator=generator)]
    labels = torch.randint(-2, 4, shape, generator=generator).clamp(min=0).to(dtype)
    return scores, labels, torch.rand(shape, generator=generator) > 0.2


def distinct_lists(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(shape, generator=generator, dtype=torch.double).argsort(-1).double()
    return scores, torch.randint(-2, 4, shape, generator=generator).clamp(min=0).double()


# --- the definitions, on the labels of one list in the order of its ranks -------------------------------------


def recall_of(y: list[float], m: int, k: int) -> float | None:
    def membership(label: float) -> float:
        greater, equal = sum(x > label for x in y), y.count(label)
        return min(max((k - greater) / equal, 0), 1) if label > 0 else 0

    total = sum(map(membership, y))
    return sum(map(membership, y[:m])) / total if total else None


def ndcg_of(y: list[float], k: int | None = None, gain: str = "exp2") -> float | None:
    def dcg(order: list[float]) -> float:
        gains = [2**x - 1 if gain == "exp2" else x for x in order]
        return sum(g / math.log2(1 + rank) for rank, g in enumerate(gains[:k], 1))

    ideal = dcg(sorted(y, reverse=True))
    return dcg(y) / ideal if ideal else None


def opa_of(y: list[float], label_ties: str = "skip") -> float | None:
    pairs = list(itertools.combinations(y, 2))
    if label_ties == "skip":
        pairs = [(first, second) for first, second in pairs if first != second]
    return sum(first >= second for first, second in pairs) / len(pairs) if pairs else None


def arp_of(y: list[float]) -> float | None:
    return sum(rank * label for rank, label in enumerate(y, 1)) / sum(y) if sum(y) else None


def mrr_of(y: list[float]) -> float | None:
    return next((1 / rank for rank, label in enumerate(y, 1) if label > 0), None)


def average_precision_of(y: list[float]) -> float | None:
    ranks = [rank for rank, label in enumerate(y, 1) if label > 0]
    return sum(hits / rank for hits, rank in enumerate(ranks, 1)) / len(ranks) if ranks else None


def precision_of(y: list[float], k: int) -> float | None:
    return sum(label > 0 for label in y[:k]) / k if any(label > 0 for label in y) else None


def hit_rate_of(y: list[float], k: int) -> float | None:
    return float(any(label > 0 for label in y[:k])) if any(label > 0 for label in y) else None


DEFINITION: dict[str, Callable[..., float | None]] = {
    name: globals()[f"{name}_of"] for name in RANKING if f"{name}_of" in globals()
}


def tie_orders(scores: list[float], labels: list[float], ties: str) -> Iterator[list[float]]:
    """Labels in every order that sorts the scores; only the first such order if ties go by position."""
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            yield [labels[i] for i in order]
            if ties == "position":  # permutations come in lexicographic order, so the first is the stable one
                return


def enumerate_orders(name: str, scores: Tensor, labels: Tensor, mask: Tensor, ties: str, **options: Any) -> float:
    real_scores, real_labels = scores[mask].tolist(), labels[mask].tolist()
    values = [DEFINITION[name](y, **options) for y in tie_orders(real_scores, real_labels, ties)]
    known = [value for value in values if value is not None]
    assert len(known) in (0, len(values))
    return sum(known) / len(known) if known else NAN


def test_every_metric_has_a_definition() -> None:
    assert list(DEFINITION) == RANKING


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "recall": [{"m": m, "k": k} for m in (1, 3, 9) for k in (1, 2, 9)],
    "ndcg": [{"k": k, "gain": gain} for k in (None, 1, 3, 9) for gain in ("exp2", "linear")],
    "opa": [{}, {"label_ties": "count"}],
    "precision": [{"k": k} for k in (1, 3, 9)],
    "hit_rate": [{"k": k} for k in (1, 3, 9)],
}


@pytest.mark.witness("brute force")
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("ties", ["average", "position"])
@every_metric
def test_equals_the_mean_over_all_orders_of_ties(name: str, ties: str, dtype: torch.dtype) -> None:
    scores, labels, mask = tied_lists(40, 6, dtype=dtype)
    for options in OPTIONS.get(name, [{}]):
        value = measure(name, scores, labels, mask=mask, ties=ties, empty=NAN, **options)
        expected = [enumerate_orders(name, *one, ties, **options) for one in zip(scores, labels, mask, strict=True)]
        tolerance = 1e-6 if dtype == torch.float else 1e-14
        torch.testing.assert_close(
            value, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.witness("brute force", "opa")
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65, 300])
def test_opa_counts_pairs(n: int) -> None:
    scores, labels, mask = tied_lists(3, n, dtype=torch.double)
    for ties, of_tie in [("average", 0.5), ("correct", 1.0)]:
        better = (labels[:, :, None] > labels[:, None, :]) & mask[:, :, None] & mask[:, None, :]
        above = scores[:, :, None] > scores[:, None, :]
        tied = scores[:, :, None] == scores[:, None, :]
        right = ((above + of_tie * tied.double()) * better).sum((-1, -2)) / better.sum((-1, -2))
        value = measure("opa", scores, labels, mask=mask, ties=ties, empty=NAN)
        torch.testing.assert_close(value, right, equal_nan=True)


@pytest.mark.witness("brute force", "opa")
@pytest.mark.parametrize("n", [1, 2, 33, 65])
def test_opa_is_the_published_formula_if_all_ties_count(n: int) -> None:
    """ARF, eq. 2: pairs whose differences of scores and of labels have a product of at least 0, over all pairs."""
    scores, labels, mask = tied_lists(3, n, dtype=torch.double)
    scores = scores.clamp(-9, 9)
    value = measure("opa", scores, labels, mask=mask, ties="correct", label_ties="count", empty=NAN)
    for s, v, real, found in zip(scores, labels, mask, value, strict=True):
        pairs = list(itertools.combinations(zip(s[real].tolist(), v[real].tolist(), strict=True), 2))
        right = sum((a[0] - b[0]) * (a[1] - b[1]) >= 0 for a, b in pairs)
        expected = torch.tensor(right / len(pairs) if pairs else NAN, dtype=torch.double)
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.witness("hand", "opa")
def test_opa_with_equal_labels() -> None:
    scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 0.0, 1.0])
    assert metrics.opa(scores, labels) == 0
    torch.testing.assert_close(metrics.opa(scores, labels, label_ties="count"), torch.tensor(1 / 3))
    torch.testing.assert_close(parse("opa_all")(scores, labels), torch.tensor(1 / 3))
    with pytest.raises(ValueError, match="label_ties"):
        metrics.opa(scores, labels, label_ties="average")  # type: ignore[arg-type]


@pytest.mark.witness("hand", "ndcg")
def test_names_select_the_gain() -> None:
    scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 3.0, 2.0])
    discount = [1 / math.log2(rank + 1) for rank in (1, 2, 3)]
    for name, gains in {"ndcg@2": (1, 7, 3), "ndcg_linear@2": (1, 3, 2)}.items():
        ideal = sorted(gains, reverse=True)
        value = (gains[0] * discount[0] + gains[1] * discount[1]) / (ideal[0] * discount[0] + ideal[1] * discount[1])
        torch.testing.assert_close(parse(name)(scores, labels), torch.tensor(value))


@pytest.mark.witness("hand", "recall")
def test_recall_of_all_ranks_when_labels_are_ranks() -> None:
    labels = torch.tensor([-3.0, -1.0, -2.0, -4.0])
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert metrics.recall(scores, labels, m=2, k=2) == 0  # no label is positive
    assert metrics.recall(scores, labels, m=2, k=2, positive_only=False) == 0.5


@pytest.mark.witness("hand", "opa")
def test_opa_of_a_constant_scorer() -> None:
    scores, labels = torch.zeros(4), torch.tensor([0.0, 1.0, 2.0, 2.0])
    assert metrics.opa(scores, labels) == 0.5
    assert metrics.opa(scores, labels, ties="correct") == 1
    # By position 0 goes before 1 before 2: every pair of different labels is in the wrong order.
    assert metrics.opa(scores, labels, ties="position") == 0


# --- other libraries ------------------------------------------------------------------------------------------


@pytest.mark.witness("scikit-learn", "ndcg")
@pytest.mark.parametrize("k", [None, 1, 5, 50])
def test_ndcg_agrees_with_scikit_learn_even_on_ties(k: int | None) -> None:
    scores, labels, _ = tied_lists(30, 20, dtype=torch.double)
    scores = scores.clamp(-9, 9)
    expected = [sklearn.metrics.ndcg_score(y[None], s[None], k=k) for y, s in zip(labels, scores, strict=True)]
    np.testing.assert_allclose(metrics.ndcg(scores, labels, k=k, gain="linear"), expected, rtol=1e-12)


@pytest.mark.witness("scikit-learn", "opa")
def test_opa_of_binary_labels_is_the_area_under_the_curve() -> None:
    scores, labels, _ = tied_lists(30, 20, dtype=torch.double)
    scores, labels = scores.clamp(-9, 9), (labels > 0).double()
    expected = [sklearn.metrics.roc_auc_score(y, s) for y, s in zip(labels, scores, strict=True)]
    np.testing.assert_allclose(metrics.opa(scores, labels), expected, rtol=1e-12)


@pytest.mark.witness("scikit-learn", "average_precision")
def test_average_precision_agrees_with_scikit_learn() -> None:
    scores, labels = distinct_lists(30, 20)
    expected = [sklearn.metrics.average_precision_score(y > 0, s) for y, s in zip(labels, scores, strict=True)]
    np.testing.assert_allclose(metrics.average_precision(scores, labels), expected, rtol=1e-12)


@pytest.mark.witness("scipy", "opa")
def test_opa_is_somers_d() -> None:
    scores, labels, _ = tied_lists(20, 15, dtype=torch.double)
    scores = scores.clamp(-9, 9)
    expected = [
        (1 + scipy.stats.somersd(y.numpy(), s.numpy()).statistic) / 2 for y, s in zip(labels, scores, strict=True)
    ]
    np.testing.assert_allclose(metrics.opa(scores, labels), expected, rtol=1e-12)


@pytest.mark.witness("scipy", "arp")
def test_arp_agrees_with_scipy_ranks() -> None:
    scores, labels, _ = tied_lists(30, 20, dtype=torch.double)
    ranks = scipy.stats.rankdata(-scores.clamp(-9, 9), axis=-1)
    np.testing.assert_allclose(metrics.arp(scores, labels), (ranks * labels.numpy()).sum(-1) / labels.numpy().sum(-1))


@pytest.mark.witness("ir-measures")
@pytest.mark.parametrize(
    ("name", "options", "measure_name"),
    [
        ("ndcg", {"gain": "linear"}, "nDCG"),
        ("ndcg", {"gain": "linear", "k": 5}, "nDCG@5"),
        ("mrr", {}, "RR"),
        ("average_precision", {}, "AP"),
        ("precision", {"k": 5}, "P@5"),
        ("precision", {"k": 50}, "P@50"),
        ("recall", {"m": 5, "k": 20}, "R@5"),
        ("hit_rate", {"k": 1}, "Success@1"),
        ("hit_rate", {"k": 3}, "Success@3"),
    ],
)
def test_agrees_with_ir_measures(name: str, options: dict[str, Any], measure_name: str) -> None:
    scores, labels = distinct_lists(30, 20)
    judged = {str(q): {str(i): int(y) for i, y in enumerate(row)} for q, row in enumerate(labels.tolist())}
    run = {str(q): {str(i): s for i, s in enumerate(row)} for q, row in enumerate(scores.tolist())}
    wanted = ir_measures.parse_measure(measure_name)
    result = {r.query_id: r.value for r in ir_measures.iter_calc([wanted], judged, run)}
    np.testing.assert_allclose(measure(name, scores, labels, **options), [result[str(q)] for q in range(30)], rtol=1e-6)


# --- properties of all ----------------------------------------------------------------------------------------


@pytest.mark.witness("mask equivalence")
@pytest.mark.parametrize("ties", ["average", "position"])
@every_metric
def test_padding_changes_nothing_wherever_it_stands(name: str, ties: str) -> None:
    scores, labels, mask = tied_lists(30, 9)
    mask[:, 0] = True
    value = measure(name, scores.masked_fill(~mask, NAN), labels.masked_fill(~mask, NAN), mask=mask, ties=ties)
    alone = [measure(name, s[m], y[m], ties=ties) for s, y, m in zip(scores, labels, mask, strict=True)]
    torch.testing.assert_close(value, torch.stack(alone), rtol=1e-6, atol=0)


@pytest.mark.witness("permutation")
@every_metric
def test_order_of_rows_does_not_matter(name: str) -> None:
    scores, labels, mask = tied_lists(30, 9)
    value = measure(name, scores, labels, mask=mask)
    for seed in range(5):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
        moved = measure(name, scores[:, order], labels[:, order], mask=mask[:, order])
        torch.testing.assert_close(moved, value, rtol=1e-6, atol=1e-7)


@pytest.mark.witness("permutation")
@every_metric
def test_only_the_order_of_scores_matters(name: str) -> None:
    scores, labels = distinct_lists(10, 30)
    value = measure(name, scores, labels)
    for change in (lambda s: 1e4 * s - 1e5, torch.sigmoid, lambda s: s.float()):
        assert torch.equal(measure(name, change(scores), labels).double(), value.to(change(scores).dtype).double())


@pytest.mark.witness("brute force")
@every_metric
def test_constant_scores_give_the_mean_of_random_scores(name: str) -> None:
    labels = torch.tensor([2.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    mask = torch.tensor([True, True, True, True, False, True, True])
    scores = torch.rand(20_000, 7, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    values = measure(name, scores, labels.expand_as(scores), mask=mask.expand_as(scores))
    chance = measure(name, torch.zeros(7, dtype=torch.double), labels, mask=mask)
    assert abs(values.mean() - chance) < 4 * values.std() / len(values) ** 0.5


@pytest.mark.witness("limit")
@every_metric
def test_the_ideal_order_is_best_and_the_reverse_is_worst(name: str) -> None:
    scores, labels = distinct_lists(50, 8)
    sign = -1 if name == "arp" else 1
    values = sign * torch.stack([measure(name, s, labels) for s in (-labels, scores, labels)])
    assert (values[0] <= values[1] + 1e-12).all()
    assert (values[1] <= values[2] + 1e-12).all()


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("shape", [(), (5,), (5, 2), (5, 2, 3), (0,), (3, 0)])
@every_metric
def test_leading_dimensions_are_batch(name: str, shape: tuple[int, ...]) -> None:
    scores, labels, mask = tied_lists(*shape, 7)
    value = measure(name, scores, labels, mask=mask)
    assert value.shape == shape
    flat = [
        measure(name, *one, mask=m)
        for *one, m in zip(scores.view(-1, 7), labels.view(-1, 7), mask.view(-1, 7), strict=True)
    ]
    assert value.flatten().tolist() == torch.tensor(flat).tolist()


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.float, torch.double])
@every_metric
def test_any_floating_type(name: str, dtype: torch.dtype) -> None:
    scores, labels, mask = tied_lists(10, 300)
    value = measure(name, scores.to(dtype).requires_grad_(), labels, mask=mask)
    assert value.dtype == (torch.double if dtype == torch.double else torch.float)
    assert not value.requires_grad
    torch.testing.assert_close(value, measure(name, scores, labels, mask=mask).to(value.dtype), rtol=1e-6, atol=0)


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16])
@every_metric
def test_any_type_of_labels(name: str, dtype: torch.dtype) -> None:
    scores, labels, _ = tied_lists(10, 12)
    labels = labels.to(dtype)
    assert torch.equal(measure(name, scores, labels), measure(name, scores, labels.float()))


@pytest.mark.witness("shapes and types")
@every_metric
def test_strided_and_expanded_tensors(name: str) -> None:
    scores, labels, mask = tied_lists(7, 5)
    transposed = measure(name, scores.T, labels.T, mask=mask.T)
    assert torch.equal(transposed, measure(name, scores.T.clone(), labels.T.clone(), mask=mask.T.clone()))
    expanded = measure(name, scores, labels[0].expand(7, 5), mask=mask[0].expand(7, 5))
    assert torch.equal(expanded, measure(name, scores, labels[0].repeat(7, 1), mask=mask[0].repeat(7, 1)))


@pytest.mark.witness("extremes")
@every_metric
def test_undefined_lists_get_the_value_of_empty(name: str) -> None:
    scores, labels = distinct_lists(4, 6)
    nothing = torch.zeros(4, 6, dtype=torch.bool)
    for empty in (0.0, -1.0):
        assert (measure(name, scores, torch.zeros(4, 6), empty=empty) == empty).all()
        assert (measure(name, scores, labels, mask=nothing, empty=empty) == empty).all()
    assert measure(name, scores, labels, mask=nothing, empty=NAN).isnan().all()
    assert (measure(name, scores, labels, mask=nothing) == 0).all()


@pytest.mark.witness("extremes")
@every_metric
def test_one_item(name: str) -> None:
    expected = {"opa": 7.0, "precision": 1 / 2}  # no pair; k = 2 ranks of which one exists
    value = measure(name, torch.tensor([0.3]), torch.tensor([2.0]), empty=7.0)
    assert float(value) == expected.get(name, 1.0)


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("ties", ["average", "position"])
@every_metric
def test_long_lists(name: str, ties: str) -> None:
    n = 100_000
    labels = (torch.arange(n) >= n // 2).float()
    value = measure(name, torch.arange(n).float(), labels, ties=ties)
    # A perfect order of n/2 relevant items; the k = 2 places of the ground truth are shared by all of them.
    expected = {"recall": EXAMPLE["m"] / (n / 2), "arp": (n / 2 + 1) / 2}
    assert float(value) == pytest.approx(expected.get(name, 1.0), rel=1e-6)


@pytest.mark.witness("extremes", "ndcg")
def test_labels_in_the_hundreds() -> None:
    # 2^500 overflows float32; compared to it a label of 400 is negligible.
    labels = torch.tensor([500.0, 400.0, 0.0])
    torch.testing.assert_close(metrics.ndcg(torch.tensor([1.0, 2.0, 0.0]), labels), torch.tensor(1 / math.log2(3)))


@pytest.mark.witness("brute force", "mrr")
def test_mrr_of_a_long_tie() -> None:
    # One relevant item among n tied: the mean of 1/r, the n-th harmonic number over n.
    n = 100_000
    labels = torch.zeros(n, dtype=torch.double)
    labels[77] = 1.0
    harmonic = sum(1 / r for r in range(n, 0, -1))
    value = metrics.mrr(torch.zeros(n, dtype=torch.double), labels)
    assert float(value) == pytest.approx(harmonic / n, rel=1e-9)


@pytest.mark.witness("scipy", "hit_rate")
@pytest.mark.parametrize(("n", "relevant", "k"), [(10, 3, 4), (1000, 7, 100), (50_000, 5, 20_000), (1000, 900, 200)])
def test_hit_rate_of_a_tie_is_hypergeometric(n: int, relevant: int, k: int) -> None:
    labels = (torch.arange(n) < relevant).double()
    value = metrics.hit_rate(torch.zeros(n, dtype=torch.double), labels, k=k)
    assert float(value) == pytest.approx(scipy.stats.hypergeom.sf(0, n, relevant, k), rel=1e-9)


@pytest.mark.slow
@pytest.mark.witness("compile")
@pytest.mark.parametrize("ties", ["average", "position"])
@every_metric
def test_compiles_without_graph_breaks(name: str, ties: str) -> None:
    compiled: Callable[..., Tensor] = torch.compile(getattr(metrics, name), fullgraph=True, backend="eager")
    for n in (70, 90):  # from the second length on PyTorch traces with symbolic shapes
        scores, labels, mask = tied_lists(4, n)
        value = compiled(scores, labels, mask=mask, ties=ties, **required(name))
        assert torch.equal(value, measure(name, scores, labels, mask=mask, ties=ties))


@pytest.mark.witness("meta device")
@pytest.mark.parametrize("ties", ["average", "position"])
@every_metric
def test_runs_on_the_meta_device(name: str, ties: str) -> None:
    scores, labels, mask = (tensor.to("meta") for tensor in tied_lists(4, 70))
    value = measure(name, scores, labels, mask=mask, ties=ties)
    assert value.shape == (4,)
    assert value.device.type == "meta"


# --- bad input ------------------------------------------------------------------------------------------------

GOOD = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scores": [1.0, 2.0, 3.0]}, TypeError, "scores must be a torch.Tensor, got list"),
        ({"scores": torch.tensor([1, 2, 3])}, ValueError, "scores must be floating point"),
        ({"scores": torch.tensor([1.0, NAN, 3.0])}, ValueError, "scores must not hold NaN"),
        ({"scores": torch.tensor(1.0)}, ValueError, "scores must have at least one dimension"),
        ({"scores": torch.empty(2, 0)}, ValueError, "scores must have at least one item"),
        ({"labels": torch.tensor([1.0, 0.0])}, ValueError, r"labels must have the shape of scores, \(3,\)"),
        ({"labels": torch.tensor([1.0, NAN, 0.0])}, ValueError, "labels must not hold NaN"),
        ({"labels": torch.tensor([1.0, INF, 0.0])}, ValueError, "labels must not hold NaN, inf or numbers beyond 1e"),
        ({"labels": None}, TypeError, "labels must be a torch.Tensor"),
        ({"mask": torch.ones(3)}, ValueError, "mask must be boolean"),
        ({"mask": torch.ones(2, dtype=torch.bool)}, ValueError, "mask must have the shape of scores"),
        ({"ties": "best"}, ValueError, "ties must be one of 'average', 'position'.*got 'best'"),
    ],
)
@every_metric
def test_bad_input_is_named(name: str, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"scores": GOOD, "labels": GOOD} | changes
    with pytest.raises(error, match=message):
        measure(name, **arguments)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
@pytest.mark.parametrize(
    ("name", "argument"),
    [("recall", "m"), ("recall", "k"), ("ndcg", "k"), ("precision", "k"), ("hit_rate", "k")],
)
def test_bad_cutoffs_are_named(name: str, argument: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{argument} must be"):
        measure(name, GOOD, GOOD, **{argument: value})


def test_unknown_gain_is_named() -> None:
    with pytest.raises(ValueError, match="gain must be one of 'exp2', 'linear', got 'cubic'"):
        metrics.ndcg(GOOD, GOOD, gain="cubic")  # type: ignore[arg-type]


@pytest.mark.witness("brute force", "recall")
def test_a_real_item_of_minus_infinity_is_not_padding() -> None:
    rng = random.Random(0)
    for _ in range(50):
        mask = torch.tensor([rng.random() < 0.5 for _ in range(5)] + [True])
        scores = torch.tensor([rng.choice([-INF, 0.0]) for _ in range(6)])
        labels = torch.tensor([float(rng.random() < 0.5) for _ in range(6)])
        for m in range(1, 7):
            value = metrics.recall(scores, labels, m=m, k=6, mask=mask, empty=NAN)
            expected = enumerate_orders("recall", scores, labels, mask, "average", m=m, k=6)
            assert float(value) == pytest.approx(expected, nan_ok=True)
