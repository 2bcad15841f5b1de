"""Scoring of every item of a day: brute force is the witness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rankfall as rf
from rankfall.data import ImpressionLoader
from rankfall.training import measured_lists as all_items
from rankfall.training.cascade_metrics import ground_truth, measure_lists
from rankfall.training.measured_lists import AllItemsScorer, best_places, scorer_of
from support.cascades import liked_log
from support.logs import DAYS, ITEMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.impressions.spec import Features
    from support.logs import Columns

CPU = torch.device("cpu")
QUOTAS = [9, 4, 2]
MODELS: dict[str, Callable[[Features], torch.nn.Module]] = {
    "two_tower": lambda features: rf.models.TwoTower(features, hidden=[8, 4], dim=3),
    "din": lambda features: rf.models.DIN(features, hidden=[8], dim=3, attention=4),
}


def same_features(days: dict[str, Columns]) -> None:
    """Give items in impressions the features of the item table, and leave some items for later days."""
    for number, columns in enumerate(days.values()):
        for i, items in enumerate(columns["item"]):
            columns["item.price"][i] = [item / 10 for item in items]
            keep = [place for place, item in enumerate(items) if item < 30 + 5 * number] or [0]
            for name in ("item", "depth", "rank", "relevance", "grade"):
                columns[name][i] = [columns[name][i][place] for place in keep]
            for name in columns:
                if name.startswith(("item.", "feedback.")):
                    columns[name][i] = [columns[name][i][place] for place in keep]
            columns["left_out"][i] = [item for item in columns["left_out"][i] if item < 30 + 5 * number]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return liked_log(tmp_path_factory.mktemp("all") / "log", change=same_features)


def cascade_of(log: Path, first: str) -> rf.Cascade:
    features = rf.data.ImpressionLog.load(log).features
    torch.manual_seed(3)
    kinds = [first, "din", "two_tower"]
    stages = [rf.Stage(f"s{number}", MODELS[kind](features), QUOTAS[number]) for number, kind in enumerate(kinds)]
    return rf.Cascade(stages).eval()


def known_until(log: Path, day: str) -> list[int]:
    """Return the items of all impressions up to a day, by a plain loop."""
    opened = rf.data.ImpressionLog.load(log)
    found: set[int] = set()
    for name in DAYS[: DAYS.index(day) + 1]:
        for column in ("item", "left_out"):
            for items in opened.days[name].table()[column].to_pylist():
                found |= set(items)
    return sorted(found)


class OneRequest:
    """A request with any items, as a model receives it."""

    def __init__(self, batch: Impressions, row: int, table: dict[str, Any]) -> None:
        one = batch.take(slice(row, row + 1))
        self.user, self.context = one.user, one.context
        self.sequences, self.sequence_mask = one.sequences, one.sequence_mask
        self.items = {name.removeprefix("item."): values.unsqueeze(0) for name, values in table.items()}
        self.mask = torch.ones(1, len(next(iter(table.values()))), dtype=torch.bool)


def table_of(log: Path, items: list[int]) -> dict[str, Any]:
    table = rf.data.ImpressionLog.load(log).items().to_pydict()
    at = {item: place for place, item in enumerate(table["item"])}
    return {
        name: torch.tensor(np.array(values)[[at[item] for item in items]], dtype=torch.float32)
        if name == "item.price"
        else torch.tensor([values[at[item]] for item in items])
        for name, values in table.items()
        if name.startswith("item.")
    }


@torch.no_grad()
def survivors_by_brute_force(cascade: rf.Cascade, log: Path, batch: Impressions, row: int) -> list[set[int]]:
    """Return what each stage keeps of all items known on the day: plain loops, one request at a time."""
    left = known_until(log, batch.day)
    kept = []
    for stage in cascade.stages:
        scores = stage.model(OneRequest(batch, row, table_of(log, left)))[0].tolist()
        left = [item for _, item in sorted(zip(scores, left, strict=True), reverse=True)[: stage.quota]]
        kept.append(set(left))
    return kept


@pytest.mark.parametrize("first", list(MODELS))
@pytest.mark.parametrize("blocks", [(1 << 22, 1 << 14), (70, 25)])
def test_the_funnel_over_all_items_is_that_of_brute_force(
    log: Path, first: str, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_items, "SCORES", blocks[0])
    monkeypatch.setattr(all_items, "PAIRS", blocks[1])
    cascade = cascade_of(log, first)
    loader = ImpressionLoader(log, DAYS[1:], batch=16, shuffle=False, length="all", prefetch=0)
    score = AllItemsScorer(cascade, loader, reach=QUOTAS[0], device=CPU)
    values = measure_lists(score, loader, names=cascade.names, quotas=QUOTAS, relevant=2).values
    expected = []
    for batch in loader:
        truth = ground_truth(batch, 2)
        for row in range(len(batch)):
            wanted = set(batch.item[row][truth[row] > 0].tolist())
            kept = survivors_by_brute_force(cascade, log, batch, row)[-1] if row % 5 == 0 else None
            expected.append(None if kept is None or not wanted else len(kept & wanted) / len(wanted))
    compared = [
        (value, found) for value, found in zip(expected, values["joint_recall"], strict=True) if value is not None
    ]
    assert len(compared) > 15
    assert 0 < sum(value for value, _ in compared) < len(compared)
    assert [value for value, _ in compared] == pytest.approx([float(found) for _, found in compared])


@pytest.mark.parametrize("reach", [9, 20])
def test_pruned_lists_hold_the_best_items_and_all_measured_ones(log: Path, reach: int) -> None:
    cascade = cascade_of(log, "two_tower")
    loader = ImpressionLoader(log, DAYS[1], batch=32, shuffle=False, length="all")
    score = AllItemsScorer(cascade, loader, reach=reach, device=CPU)
    known = known_until(log, DAYS[1])
    assert loader.catalogue(DAYS[1]).item.tolist() == known
    assert loader.longest_ranked == len(known) < ITEMS
    for batch in loader:
        scored = score(batch)
        assert not scored.complete
        assert scored.ranked.tolist() == [len(known)] * len(batch)
        for row in range(len(batch)):
            items = scored.batch.item[row][scored.batch.mask[row]].tolist()
            assert len(items) == len(set(items)) >= reach
            with torch.no_grad():
                all_scores = cascade.models["s0"](OneRequest(batch, row, table_of(log, known)))[0]
            best = {known[place] for place in all_scores.topk(reach).indices.tolist()}
            assert best <= set(items)
            logged = {int(item): place for place, item in enumerate(batch.item[row]) if item >= 0}
            click = batch.feedback["click"][row]
            like = batch.feedback["like"][row]
            measured = {i for i, p in logged.items() if batch.relevance[row, p] > 0 or click[p] != 0 or like[p] != 0}
            assert set(items) == best | measured
            for place, item in enumerate(items):
                at = logged.get(item)
                for name, other in (("depth", -1), ("rank", -1), ("relevance", 0), ("grade", 0)):
                    expected = other if at is None else getattr(batch, name)[row, at].item()
                    assert getattr(scored.batch, name)[row, place].item() == expected
                assert scored.batch.feedback["click"][row, place] == (0 if at is None else click[at])
                assert scored.batch.items["price"][row, place] == pytest.approx(item / 10)
                assert scored.scores[0][row, place] == pytest.approx(all_scores[known.index(item)], abs=1e-6)


def test_complete_lists_give_what_lists_of_that_length_give(log: Path) -> None:
    """With no left-out items, a fixed length that holds all items of the day is the same measurement."""
    cascade = cascade_of(log, "two_tower")
    known = len(known_until(log, DAYS[2]))
    fixed = ImpressionLoader(log, DAYS[2], batch=16, shuffle=False, length=known)
    every = ImpressionLoader(log, DAYS[2], batch=16, shuffle=False, length="all")
    complete = torch.cat([batch.mask.all(-1) for batch in fixed])
    assert complete.sum() > 10  # left-out items are not drawn, so that some lists are shorter
    options: dict[str, Any] = {"names": cascade.names, "quotas": QUOTAS, "relevant": 2}
    values = measure_lists(scorer_of(cascade), fixed, **options).values
    pruned = AllItemsScorer(cascade, every, reach=QUOTAS[0], device=CPU)
    found = measure_lists(pruned, every, **options).values
    whole = measure_lists(AllItemsScorer(cascade, every, reach=known, device=CPU), every, **options).values
    for name in ("joint_recall", "s0/alone/recall", "s0/lost", "s1/lost", "s2/lost"):
        assert torch.equal(found[name][complete].nan_to_num(2), values[name][complete].nan_to_num(2))
        assert torch.equal(whole[name].nan_to_num(2), found[name].nan_to_num(2))


def test_truth_is_unknown_for_items_that_were_not_logged(log: Path) -> None:
    loader = ImpressionLoader(log, DAYS[1], batch=8, shuffle=False, length="all")
    batch = next(iter(loader))
    batch.truth = batch.item.float() / 7
    pruned = AllItemsScorer(cascade_of(log, "two_tower"), loader, reach=9, device=CPU)(batch).batch
    assert pruned.truth is not None
    logged = pruned.depth >= 0
    assert torch.equal(pruned.truth[logged], pruned.item[logged].float() / 7)
    added = pruned.mask & (pruned.item.unsqueeze(-1) != batch.item.unsqueeze(-2)).all(-1)
    assert added.any()
    assert pruned.truth[added].isnan().all()
    assert (pruned.truth[~pruned.mask] == 0).all()


def test_constant_scores_have_the_recall_of_chance() -> None:
    """Items that tie at the cut are drawn, wherever they are in the catalogue."""
    scores = torch.zeros(4000, 12)
    scores[:, 3] = 1.0
    best = best_places(scores, 4, torch.Generator().manual_seed(0))
    assert (best.sort(-1).values.diff(dim=-1) > 0).all()
    share = torch.zeros(12).scatter_add_(0, best.flatten(), torch.ones(best.numel())) / len(best)
    assert share[3] == 1
    others = torch.cat([share[:3], share[4:]])
    assert others.tolist() == pytest.approx([3 / 11] * 11, abs=4 * (3 / 11 * 8 / 11 / 4000) ** 0.5)


class Flat(torch.nn.Module):
    """A model with constant scores."""

    def forward(self, batch: Impressions) -> torch.Tensor:
        return torch.zeros(batch.mask.shape)


def test_a_relevant_item_that_ties_with_the_last_of_the_best_does_not_pass_in_its_place(log: Path) -> None:
    cascade = rf.Cascade([rf.Stage("flat", Flat(), 9), rf.Stage("last", Flat(), 9)])
    loader = ImpressionLoader(log, DAYS, batch=32, shuffle=False, length="all")
    score = AllItemsScorer(cascade, loader, reach=9, device=CPU)
    values = measure_lists(score, loader, names=cascade.names, quotas=[9, 9], relevant=2).values
    recall = values["joint_recall"]
    recall = recall[~recall.isnan()]
    chance = 9 / 32  # of 30 to 40 items
    assert float(recall.mean()) == pytest.approx(chance, abs=0.06)


def test_an_item_that_the_table_lacks_is_named(log: Path) -> None:
    loader = ImpressionLoader(log, DAYS[0], batch=8, shuffle=False, length="all")
    catalogue = loader.catalogue(DAYS[0])
    with pytest.raises(ValueError, match="item 77 of 2024-01-13 is not in the item table"):
        catalogue.places(torch.tensor([[1, 77]], dtype=torch.int32), torch.tensor([[True, True]]))
