"""Options by which an objective becomes its published form: ties, scales, numbers of items, and their defaults."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import rankfall as rf
from rankfall.objectives import ARF, ICC, LCRON, ARFv2, FSLambdaLoss, Objective, RankFlow, SortCE

QUOTAS = [30, 20]
SCHEDULES: tuple[Literal["joint"], Literal["alternate"]] = ("joint", "alternate")


def long_lists(lists: int = 3, seed: int = 0) -> dict[str, Any]:
    """Impressions of 40 items, 10 relevant with grades of their own, three groups of equal grades; nearly equal scores.

    Real items stand at random places among five that are masked.
    """
    generator = torch.Generator().manual_seed(seed)
    grades = torch.cat([torch.arange(13, 3, -1), torch.tensor([3, 2, 1]).repeat_interleave(10), torch.zeros(5)])
    place = torch.rand(lists, 45, generator=generator).argsort(-1)
    labels = grades.double().expand(lists, 45).gather(-1, place)
    scores = [0.1 * torch.randn(lists, 45, generator=generator, dtype=torch.float64) for _ in QUOTAS]
    return {"scores": scores, "labels": labels, "relevance": (labels > 3).double(), "mask": labels > 0}


def value(objective: Objective, batch: dict[str, Any]) -> Tensor:
    found: Tensor = objective.double()(
        batch["scores"], batch["labels"], relevance=batch["relevance"], mask=batch["mask"]
    )
    return found


def moved(batch: dict[str, Any]) -> dict[str, Any]:
    order = torch.randperm(45, generator=torch.Generator().manual_seed(1))
    return {key: [stage[:, order] for stage in one] if key == "scores" else one[:, order] for key, one in batch.items()}


# --- ties -------------------------------------------------------------------------------------------------------


@pytest.mark.witness("permutation", "ARF")
@pytest.mark.witness("permutation", "ARFv2")
@pytest.mark.witness("permutation", "SortCE")
@pytest.mark.parametrize("options", [{}, {"label_tau": 2.0}])
@pytest.mark.parametrize("name", ["ARF", "ARFv2", "SortCE"])
def test_the_order_of_items_with_equal_grades_does_not_matter(name: str, options: dict[str, Any]) -> None:
    relevant: dict[str, Any] = {} if name == "SortCE" else {"relevant": 10}
    needed = relevant | ({"quotas": QUOTAS} if name == "ARF" else {})
    make = getattr(rf.objectives, name)
    batch = long_lists()
    sound = make(tau=5.0, **needed, **options)
    torch.testing.assert_close(value(sound, moved(batch)), value(sound, batch), rtol=1e-10, atol=0)
    if not options:
        by_position = make(tau=5.0, **needed, ties="position")
        assert (value(by_position, moved(batch)) - value(by_position, batch)).abs() > 1e-6


@pytest.mark.witness("hand", "SortCE")
def test_two_equal_grades_share_their_ranks() -> None:
    """Items 1 and 2 are equally good, so ranks 1 and 2 have the mean of both costs, and rank 3 has item 0."""
    scores = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64)
    rows = rf.ops.neural_sort(scores, tau=2.0)
    expected = -(rows[0, 1:].log().sum() / 2 + rows[1, 1:].log().sum() / 2 + rows[2, 0].log()) / 3
    grades = torch.tensor([1.0, 2.0, 2.0])
    torch.testing.assert_close(SortCE(tau=2.0, stages=1)([scores], grades), expected)
    position = -(rows[0, 1].log() + rows[1, 2].log() + rows[2, 0].log()) / 3
    torch.testing.assert_close(SortCE(tau=2.0, stages=1, variant="published")([scores], grades), position)
    torch.testing.assert_close(SortCE(tau=2.0, stages=1, ties="position")([scores], grades), position)


# --- scales -----------------------------------------------------------------------------------------------------


@pytest.mark.witness("hand", "ARF")
def test_the_balance_of_arf_starts_as_printed_as_coded_or_even() -> None:
    """40 items, 10 relevant, nearly equal scores: every row is uniform, so both losses of an item are log 40."""
    batch = long_lists()

    def ratio(scale: Any) -> float:
        objective = ARF(relevant=10, quotas=QUOTAS, tau=50.0, scale=scale).double()
        parts = objective.parts(batch["scores"], batch["labels"], relevance=batch["relevance"], mask=batch["mask"])
        return (parts["stage1/recall"] / (2 * parts["stage1/order"])).item()

    assert ratio("mean") == pytest.approx(1, abs=0.03)
    assert ratio("sum") == pytest.approx(ratio("mean") * 10 / 40)
    assert ratio("mixed") == pytest.approx(ratio("mean") * 10)
    assert ratio(None) == ratio("mean")


@pytest.mark.witness("hand", "LCRON")
def test_lcron_as_a_sum_is_the_number_of_items_times_the_mean() -> None:
    batch = long_lists()
    fixed: dict[str, Any] = {"relevant": 10, "single_weight": 0.5}
    torch.testing.assert_close(value(LCRON(scale="sum", **fixed), batch), 40 * value(LCRON(**fixed), batch))


# --- numbers of items -------------------------------------------------------------------------------------------


@pytest.mark.witness("derivation", "ARFv2")
def test_arf_v2_takes_the_inclusion_at_the_quota_as_published() -> None:
    batch = long_lists()
    objective = ARFv2(relevant=10, quotas=QUOTAS, tau=50.0, variant="published").double()
    sound = ARFv2(relevant=10, quotas=QUOTAS, tau=50.0).double()
    given = {key: batch[key] for key in ("relevance", "mask")}
    for t, (scores, quota) in enumerate(zip(batch["scores"], QUOTAS, strict=True), 1):
        for one, m in ((objective, quota), (sound, 10)):
            p = rf.ops.topk("neural_sort", tau=50.0)(scores, m, mask=batch["mask"])
            costs = -(batch["relevance"] * p.log() + (1 - batch["relevance"]) * (1 - p).log())[batch["mask"]]
            torch.testing.assert_close(
                one.parts(batch["scores"], batch["labels"], **given)[f"stage{t}/recall"], costs.mean()
            )
    assert (objective.kept, sound.kept) == ([30, 20], [10, 10])


def test_arf_v2_has_as_many_stages_as_quotas() -> None:
    assert ARFv2(relevant=1).stages == 2
    assert ARFv2(relevant=1, quotas=[3, 2, 1]).stages == 3
    with pytest.raises(ValueError, match="quotas: found None, expected one number of items per stage"):
        ARFv2(relevant=1, variant="published")
    with pytest.raises(ValueError, match="one for each of 3 stages, got 2"):
        ARFv2(relevant=1, quotas=[3, 2], stages=3)


# --- schedules --------------------------------------------------------------------------------------------------


@pytest.mark.witness("derivation", "RankFlow")
def test_rankflow_trains_one_stage_per_step_if_it_alternates() -> None:
    """The gradient of the stage in turn is that of the joint step, the other stage has none; values are the same."""
    batch = long_lists()
    scores = [stage.requires_grad_() for stage in batch["scores"]]
    joint, alternate = (RankFlow(relevant=10, quotas=QUOTAS, schedule=one) for one in SCHEDULES)
    expected = torch.autograd.grad(value(joint, batch), scores)
    with torch.no_grad():
        value(alternate, batch)  # no step
    for turn in (0, 1, 0):
        found = value(alternate, batch)
        torch.testing.assert_close(found, value(joint, batch))
        gradients = torch.autograd.grad(found, scores, allow_unused=True)
        torch.testing.assert_close(gradients[turn], expected[turn])
        assert gradients[1 - turn] is None
    again = RankFlow(relevant=10, quotas=QUOTAS, schedule="alternate")
    again.load_state_dict(alternate.state_dict())
    assert torch.autograd.grad(value(again, batch), scores, allow_unused=True)[0] is None
    assert not joint.state_dict()  # checkpoints of joint runs have no counter


def test_several_processes_cannot_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = RankFlow(relevant=1, quotas=[2, 1], schedule="alternate")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="schedule: found 'alternate', expected 'joint' in training by several"):
        objective([torch.zeros(3)] * 2, torch.arange(3.0))


# --- defaults of the variants -----------------------------------------------------------------------------------


def test_a_variant_is_a_set_of_defaults() -> None:
    assert (FSLambdaLoss().version, FSLambdaLoss(variant="published").version) == ("sound", "heuristic")
    assert FSLambdaLoss(variant="published", version="sound").version == "sound"
    quotas: dict[str, Any] = {"relevant": 1, "quotas": [2, 1]}
    assert (ICC(**quotas).loss, ICC(variant="published", **quotas).loss) == ("lambdarank", "ranknet")
    assert ICC(variant="published", loss="lambdarank", **quotas).loss == "lambdarank"
    arf = ARF(variant="published", **quotas)
    assert (arf.ties, arf.scale) == ("position", "mixed")
    assert (ARF(**quotas).ties, ARF(**quotas).scale) == ("average", "mean")
    assert ARFv2(variant="published", **quotas).ties == "position"


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: LCRON(relevant=1, **o),
        lambda **o: FSLambdaLoss(**o),
        lambda **o: ICC(relevant=1, quotas=[2, 1], **o),
        lambda **o: ARF(relevant=1, quotas=[2, 1], **o),
        lambda **o: ARFv2(relevant=1, **o),
        lambda **o: SortCE(**o),
    ],
)
def test_unknown_words_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="variant must be one of 'sound', 'published', got 'old'"):
        make(variant="old")
    with pytest.raises((TypeError, ValueError), match=r"must be one of|unexpected keyword"):
        make(ties="random")
    with pytest.raises((TypeError, ValueError), match=r"must be one of|unexpected keyword"):
        make(scale="none")


# --- far from equal scores --------------------------------------------------------------------------------------


def test_an_item_that_is_nearly_certain_to_be_dropped_has_a_finite_gradient() -> None:
    """Survival near 0 and near 1: the published gradient has neither NaN nor an infinite slope."""
    scores = [torch.tensor([500.0, 200.0, -300.0, -900.0], requires_grad=True) for _ in range(2)]
    for labels in ([2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0]):
        objective = LCRON(relevant=2, topk=rf.ops.topk("neural_sort", tau=1.0), variant="published", single_weight=0)
        found = objective(scores, torch.tensor(labels))
        assert math.isfinite(found.item())
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found, scores))
