"""The funnel of a cascade, against a funnel of Python loops."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rankfall.metrics import FunnelResult, funnel, ndcg, recall

if TYPE_CHECKING:
    from collections.abc import Callable

QUOTAS = [6, 4, 2]


def lists(*shape: int, seed: int = 0, ties: bool = False) -> tuple[list[Tensor], Tensor, Tensor]:
    """Three stages' scores, relevant items, a mask."""
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.randn(shape, generator=generator) for _ in QUOTAS]
    if ties:
        scores = [score.round() for score in scores]
    return scores, torch.rand(shape, generator=generator) > 0.6, torch.rand(shape, generator=generator) > 0.2


def assert_equal(first: FunnelResult, second: FunnelResult) -> None:
    torch.testing.assert_close(asdict(first), asdict(second))  # names the field that differs


def funnel_of(scores: list[list[float]], relevant: list[float], mask: list[bool], quotas: list[int]) -> dict[str, Any]:
    """The same by loops, ties by position."""
    real = [item for item, is_real in enumerate(mask) if is_real]
    total = sum(relevant[item] for item in real)
    alive, left = real, total
    survivors, lost, alone = [], [], []
    for score, quota in zip(scores, quotas, strict=True):
        alone.append(sum(relevant[item] for item in sorted(real, key=lambda i: -score[i])[:quota]))
        alive = sorted(sorted(alive, key=lambda i: -score[i])[:quota])
        survivors.append([item in alive for item in range(len(mask))])
        kept = sum(relevant[item] for item in alive)
        lost.append(left - kept)
        left = kept

    def share(value: float) -> float:
        return value / total if total else 0.0

    return {
        "survivors": survivors,
        "joint_recall": share(left),
        "stage_recall": [share(value) for value in alone],
        "lost": [share(value) for value in lost],
        "chance": min(*quotas, len(real)) / len(real) if total else 0.0,
        "defined": total > 0,
    }


@pytest.mark.witness("brute force", "funnel")
@pytest.mark.parametrize("quotas", [QUOTAS, [2, 4, 6], [1, 1, 1], [99, 5, 99]])
def test_equals_a_funnel_of_loops(quotas: list[int]) -> None:
    scores, _, mask = lists(60, 9, ties=True)
    relevant = torch.randint(0, 3, (60, 9), generator=torch.Generator().manual_seed(1)) / 2
    result = asdict(funnel(scores, relevant, quotas=quotas, mask=mask, ties="position"))
    for index in range(60):
        expected = funnel_of(
            [score[index].tolist() for score in scores],
            relevant[index].tolist(),
            mask[index].tolist(),
            quotas,
        )
        torch.testing.assert_close(
            {name: result[name][index] for name in expected},
            {name: torch.tensor(value) for name, value in expected.items()},
        )


@pytest.mark.witness("hand", "funnel")
def test_two_stages_by_hand() -> None:
    # The first stage keeps items 0, 1, 2 and loses the relevant item 4; the second keeps 2 and 1 and
    # loses item 0. Alone the second stage would keep 4 and 3.
    first, second = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    relevant = torch.tensor([True, False, True, False, True])
    result = funnel([first, second], relevant, quotas=[3, 2])
    assert result.survivors.int().tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 0, 0]]
    torch.testing.assert_close(result.joint_recall, torch.tensor(1 / 3))
    torch.testing.assert_close(result.lost, torch.tensor([1 / 3, 1 / 3]))
    torch.testing.assert_close(result.stage_recall, torch.tensor([2 / 3, 1 / 3]))
    torch.testing.assert_close(result.chance, torch.tensor(2 / 5))
    assert bool(result.defined)


@pytest.mark.witness("brute force", "funnel")
def test_each_stage_alone_is_a_ranking_metric() -> None:
    scores, relevant, mask = lists(50, 12)
    result = funnel(scores, relevant, quotas=QUOTAS, mask=mask)
    for stage, (score, quota) in enumerate(zip(scores, QUOTAS, strict=True)):
        torch.testing.assert_close(result.stage_recall[:, stage], recall(score, relevant, m=quota, k=12, mask=mask))
        torch.testing.assert_close(result.stage_ndcg[:, stage], ndcg(score, relevant, mask=mask))


@pytest.mark.parametrize("ties", ["random", "position"])
def test_what_is_lost_and_what_is_kept_add_up(ties: Any) -> None:
    scores, relevant, mask = lists(5, 40, 15, ties=True)
    result = funnel(scores, relevant, quotas=QUOTAS, mask=mask, ties=ties)
    total = result.joint_recall + result.lost.sum(-1)
    torch.testing.assert_close(result.survived, result.defined.float().unsqueeze(-1) - result.lost.cumsum(-1))
    assert torch.equal(result.survived[..., -1], result.joint_recall)
    torch.testing.assert_close(total, result.defined.float())
    torch.testing.assert_close(result.stage_recall[..., 0] + result.lost[..., 0], result.defined.float())
    sizes = mask.sum(-1)
    for stage, quota in enumerate(QUOTAS):
        assert torch.equal(result.survivors[..., stage, :].sum(-1), sizes.clamp(max=quota))
    assert not (result.survivors & ~mask.unsqueeze(-2)).any()
    assert not (result.survivors[..., 1:, :] & ~result.survivors[..., :-1, :]).any()


@pytest.mark.witness("limit", "funnel")
@pytest.mark.parametrize("constant", [True, False])
def test_a_constant_and_a_random_cascade_get_chance_on_average(constant: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    relevant = torch.tensor([True, True, False, False, False, False, False]).expand(20_000, 7)
    mask = torch.tensor([True, True, True, True, True, True, False]).expand(20_000, 7)
    scores = [torch.zeros(20_000, 7) if constant else torch.rand(20_000, 7, generator=generator) for _ in range(2)]
    result = funnel(scores, relevant, quotas=[4, 3], mask=mask)
    assert (result.chance == 0.5).all()
    values = torch.stack([result.joint_recall, result.stage_recall[:, 1]]).double()
    assert ((values.mean(-1) - 0.5).abs() < 4 * values.std(-1) / 20_000**0.5).all()
    # The stages draw independently: alone they would keep other items than together.
    assert not torch.equal(values[0], values[1])


def test_random_ties_repeat_and_follow_the_generator() -> None:
    scores, relevant = [torch.zeros(50, 20)] * 2, torch.arange(20).expand(50, 20) < 5

    def survivors(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return funnel(scores, relevant, quotas=[10, 5], generator=generator).survivors

    assert torch.equal(survivors(None), survivors(None))
    assert torch.equal(survivors(1), survivors(1))
    assert not torch.equal(survivors(1), survivors(2))
    state = torch.random.get_rng_state()
    survivors(None)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.witness("mask equivalence", "funnel")
def test_padding_changes_nothing_wherever_it_stands() -> None:
    scores, relevant, mask = lists(30, 9)
    mask[:, 4] = True
    padded = [score.masked_fill(~mask, float("nan")) for score in scores]
    result = funnel(padded, relevant, quotas=QUOTAS, mask=mask)
    for index, real in enumerate(mask):
        alone = funnel([score[index][real] for score in scores], relevant[index][real], quotas=QUOTAS)
        part = asdict(result)
        part["survivors"] = part["survivors"][..., real]  # the padded items never survive, as tested above
        part = {name: value[index] for name, value in part.items()}
        assert_equal(FunnelResult(**part), alone)


@pytest.mark.witness("permutation", "funnel")
def test_order_of_items_does_not_matter() -> None:
    scores, relevant, mask = lists(30, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    moved = asdict(funnel([s[:, order] for s in scores], relevant[:, order], quotas=QUOTAS, mask=mask[:, order]))
    moved["survivors"] = moved["survivors"][..., order.argsort()]
    assert_equal(FunnelResult(**moved), funnel(scores, relevant, quotas=QUOTAS, mask=mask))


@pytest.mark.witness("shapes and types", "funnel")
@pytest.mark.parametrize("shape", [(), (5,), (5, 2), (5, 2, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float, torch.double])
def test_shapes_and_types(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scores, relevant, mask = lists(*shape, 7)
    result = funnel([score.to(dtype) for score in scores], relevant, quotas=QUOTAS, mask=mask)
    shapes = {name: value.shape for name, value in asdict(result).items()}
    assert shapes == {
        "survivors": (*shape, 3, 7),
        "joint_recall": shape,
        "survived": (*shape, 3),
        "stage_recall": (*shape, 3),
        "stage_ndcg": (*shape, 3),
        "lost": (*shape, 3),
        "chance": shape,
        "defined": shape,
    }
    wide = torch.double if dtype == torch.double else torch.float
    assert {value.dtype for value in asdict(result).values()} == {torch.bool, wide}


@pytest.mark.witness("shapes and types", "funnel")
def test_expanded_tensors_and_mixed_types() -> None:
    scores, relevant, mask = lists(7, 7)
    mixed = [scores[0].double(), scores[1].T.contiguous().T, scores[2]]
    result = funnel(mixed, relevant[0].expand(7, 7), quotas=QUOTAS, mask=mask[0].expand(7, 7))
    plain = funnel([s.double() for s in scores], relevant[0].repeat(7, 1), quotas=QUOTAS, mask=mask[0].repeat(7, 1))
    assert_equal(result, plain)


@pytest.mark.witness("extremes", "funnel")
def test_degenerate_lists() -> None:
    infinite = torch.tensor([-torch.inf, torch.inf, 0.0])
    result = funnel([infinite], torch.tensor([True, True, False]), quotas=[2])
    assert result.survivors.tolist() == [[False, True, True]]
    one = funnel([torch.tensor([3.0])], torch.tensor([True]), quotas=[5])
    assert float(one.joint_recall) == float(one.chance) == float(one.stage_ndcg) == 1
    scores, relevant, mask = lists(4, 6)
    for nothing in (
        funnel(scores, torch.zeros_like(relevant), quotas=QUOTAS, mask=mask),
        funnel(scores, relevant, quotas=QUOTAS, mask=torch.zeros_like(mask)),
    ):
        assert not nothing.defined.any()
        for measured in (
            nothing.joint_recall,
            nothing.stage_recall,
            nothing.stage_ndcg,
            nothing.lost,
            nothing.chance,
        ):
            assert (measured == 0).all()


@pytest.mark.slow
@pytest.mark.witness("compile", "funnel")
@pytest.mark.parametrize("ties", ["random", "position"])
def test_compiles_without_graph_breaks(ties: str) -> None:
    compiled: Callable[..., FunnelResult] = torch.compile(funnel, fullgraph=True, backend="eager")
    for n in (9, 12):
        scores, relevant, mask = lists(5, n, ties=True)
        options: dict[str, Any] = {"quotas": QUOTAS, "mask": mask, "ties": ties}
        assert_equal(compiled(scores, relevant, **options), funnel(scores, relevant, **options))


@pytest.mark.witness("meta device", "funnel")
@pytest.mark.parametrize("ties", ["random", "position"])
def test_runs_on_the_meta_device(ties: Any) -> None:
    scores, relevant, mask = lists(5, 9)
    result = funnel([s.to("meta") for s in scores], relevant.to("meta"), quotas=QUOTAS, mask=mask.to("meta"), ties=ties)
    assert {value.device.type for value in asdict(result).values()} == {"meta"}


GOOD = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"stage_scores": [], "quotas": []},
            ValueError,
            "stage_scores must hold the scores of at least one stage",
        ),
        (
            {"stage_scores": [GOOD, GOOD[:2]]},
            ValueError,
            r"stage_scores\[1\] must have the shape of stage_scores\[0\]",
        ),
        ({"stage_scores": [GOOD, GOOD.int()]}, ValueError, r"stage_scores\[1\] must be floating point"),
        ({"stage_scores": [GOOD, GOOD * float("nan")]}, ValueError, r"stage_scores\[1\] must not hold NaN"),
        (
            {"stage_scores": [GOOD, None]},
            TypeError,
            r"stage_scores\[1\] must be a torch.Tensor, got NoneType",
        ),
        (
            {"stage_scores": [None, GOOD]},
            TypeError,
            r"stage_scores\[0\] must be a torch.Tensor, got NoneType",
        ),
        ({"relevant": GOOD}, ValueError, r"relevant must not hold values outside \[0, 1\]"),
        ({"relevant": GOOD[:2]}, ValueError, r"relevant must have the shape of stage_scores\[0\]"),
        ({"relevant": [1, 0, 0]}, TypeError, "relevant must be a torch.Tensor"),
        ({"mask": GOOD}, ValueError, "mask must be boolean"),
        ({"quotas": [2]}, ValueError, "quotas must have one number per stage, 2, got 1"),
        ({"quotas": [0, 1]}, ValueError, r"quotas\[0\] must be at least 1, got 0"),
        ({"quotas": [2, 1.5]}, TypeError, r"quotas\[1\] must be an int, got float"),
        ({"ties": "average"}, ValueError, "ties must be one of 'random', 'position', got 'average'"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"stage_scores": [GOOD, GOOD], "relevant": GOOD > 2, "quotas": [2, 1]}
    with pytest.raises(error, match=message):
        funnel(**(arguments | changes))
