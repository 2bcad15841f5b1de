"""Names of metrics of users: cutoffs, direction and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from rankfall.metrics.named import parse
from rankfall.registry.metric_names import forms, higher_is_better, parse_name
from rankfall.registry.references import split_cutoffs
from rankfall.storage.trust import remember
from rankfall.training.config.component_checks import higher_is_better as of_cascades
from rankfall.training.config.component_checks import shown_name
from support.own_components import write

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
    import torch
    import rankfall as rf
    from rankfall.option_types import Count, Fraction

    @rf.register.metric("own_rbp")
    def rbp(scores, labels, *, p: Fraction, depth: Count | None = None, mask=None, empty=0.0):
        '''Rank-biased precision.'''
        order = scores.argsort(descending=True)
        powers = torch.arange(scores.shape[-1])
        gains = labels.gather(-1, order) * (1 - p) * p**powers
        return gains[..., :depth].sum(-1)

    @rf.register.metric(higher_is_better=False)
    def first_rank(scores, labels, *, mask=None):
        return (scores >= scores.gather(-1, labels.argmax(-1, keepdim=True))).sum(-1).float()

    def flat(scores, labels, *, mask=None, empty=0.0):
        return scores.mean()
"""


@pytest.fixture
def own(here: Path) -> str:
    write(here / "own.py", OWN)
    return "own.py"


def test_cutoffs_fill_the_numbers_of_the_signature(own: str) -> None:
    assert parse_name(f"{own}:rbp@0.5").options == {"p": 0.5}
    assert parse_name(f"{own}:rbp@0.5@3").options == {"p": 0.5, "depth": 3}
    assert parse_name("own_rbp@1@3").options == {"p": 1, "depth": 3}
    assert {"own_rbp@p", "own_rbp@p@depth"} <= set(forms())
    for wrong in ("", "@2", "@0.5@0", "@0.5@1.5", "@0.5@3@4", "@half"):
        with pytest.raises(ValueError, match=r"expected own.py:rbp@p or own.py:rbp@p@depth, where cutoffs are numbers"):
            parse_name(f"{own}:rbp{wrong}")


@pytest.mark.parametrize(
    "name", ["ndcg@0", "ndcg@-1", "ndcg@1.5", "ndcg@010", "ndcg@+5", "ndcg@ 5", "ndcg@", "ndcg@inf"]
)
def test_cutoffs_of_built_in_metrics_are_whole_numbers(name: str) -> None:
    with pytest.raises(ValueError, match="expected ndcg or ndcg@k, where cutoffs are whole numbers above 0"):
        parse_name(name)


def test_values_by_hand(own: str) -> None:
    scores, labels = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 1.0, 1.0]])
    assert parse(f"{own}:rbp@0.5")(scores, labels).item() == pytest.approx(0.5 * (0.5 + 0.25))
    assert parse(f"{own}:rbp@0.5@2")(scores, labels).item() == pytest.approx(0.5 * 0.5)
    assert parse(f"{own}:first_rank")(scores, labels).item() == 2.0


def test_one_value_per_list_is_expected(own: str) -> None:
    with pytest.raises(ValueError, match=r"metric own.py:flat: found values of shape \(\), expected one .* \(2,\)"):
        parse(f"{own}:flat")(torch.zeros(2, 3), torch.zeros(2, 3))


def test_the_direction_is_what_the_decorator_says(here: Path, own: str) -> None:
    write(here / "own.py", "open('imported', 'w').close()\n" + (here / "own.py").read_text())
    assert higher_is_better(f"{own}:first_rank")  # code of another user does not run, so nobody knows
    assert higher_is_better("missing.py:metric")
    assert higher_is_better("ranking/shown/auc")
    assert not (here / "imported").exists()
    assert not parse(f"{own}:first_rank").higher_is_better
    assert (here / "imported").exists()
    assert higher_is_better(f"{own}:rbp@0.5")
    assert not higher_is_better(f"{own}:first_rank")
    assert not higher_is_better("first_rank")
    assert not of_cascades(f"ranking/{here}/own.py:first_rank")


def test_the_direction_of_trusted_code(here: Path, own: str) -> None:
    remember([here / own])
    assert not higher_is_better(f"{own}:first_rank")


def test_paths_may_hold_any_character() -> None:
    assert split_cutoffs("/a@b/c:d/own.py:rbp@0.8") == ("/a@b/c:d/own.py:rbp", ["0.8"])
    assert shown_name("ranking/alone//a@b/own.py:rbp@0.8") == "ranking/alone/own.py:rbp@0.8"
