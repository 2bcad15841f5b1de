"""Samples of a cascade: what is drawn from what each stage dropped, with which probability, score and rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.serving.drawing import Draw, draw_from_all
from rankfall.serving.encoded_requests import NO_ITEM, EncodedRequests
from support.bundles import platform_bundle
from support.services import loaded, ranking_bundle, requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.serving.bundle import Bundle
    from rankfall.serving.drawing import Sample

SEEDS = np.random.default_rng(5)


def draw(count: int, *counts: int, sampled: Sequence[bool] | None = None) -> Draw:
    flags = np.ones(count, np.bool_) if sampled is None else np.array(sampled)
    return Draw(counts, flags, SEEDS.integers(2**64, size=count, dtype=np.uint64))


def drawn_by(sample: Sample, stage: int) -> np.ndarray[Any, Any]:
    """Return the positions in a sample of the items of a stage."""
    return np.flatnonzero((sample.stages == stage) & (sample.rows != NO_ITEM))


def sample_of(bundle: Bundle, plan: Draw, **options: Any) -> tuple[Any, Sample]:
    (ranking,) = bundle.run(bundle.encode([requests()[0]], **options), explain=True, draw=plan).rankings
    assert ranking.sample is not None
    return ranking, ranking.sample


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": [3]},
    {"exclude": [list(range(0, 40, 3))]},
    {"candidates": [list(range(60))]},
    {"candidates": [list(range(60))], "exclude": [list(range(0, 60, 7))], "k": [4]},
    {"candidates": [list(range(7))]},
    {"candidates": [[]]},
]


@pytest.mark.parametrize("bundle", [platform_bundle, ranking_bundle])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.witness("brute force")
def test_every_dropped_item_is_drawn_if_there_are_few(bundle: Any, options: dict[str, Any]) -> None:
    """With more draws than items, a sample has every item exactly once, where plain Python says it was dropped."""
    bundle = loaded(bundle())
    request, last = requests()[0], len(bundle.stages) - 1
    ids = bundle.items.ids(np.arange(len(bundle.items)))
    excluded = set(options.get("exclude", [[]])[0])
    left = [one for one in options.get("candidates", [ids])[0] if one in set(ids) - excluded]
    is_search = "candidates" not in options
    ranking, sample = sample_of(bundle, draw(1, 100_000), **options)
    names = dict(zip(range(len(ids)), ids, strict=True))
    seen = 0
    for number, stage in enumerate(bundle.stages):
        scores = dict(zip(left, bundle.score(request, left)[stage.name] if left else [], strict=True))
        order = sorted(left, key=lambda one: -scores[one])
        kept = options.get("k", [stage.quota])[0] if number == last else stage.quota
        found = set(ranking.stages[number].ids[: stage.quota]) if is_search and number == 0 else set(order[:kept])
        if number == last:
            found = set(ranking.ids)
        at = drawn_by(sample, number)
        assert {names[row] for row in sample.rows[at].tolist()} == set(left) - found
        assert len(at) == len(left) - len(found)
        assert np.allclose(sample.scores[at], [scores[names[row]] for row in sample.rows[at].tolist()], atol=1e-5)
        assert (sample.inclusion[at] == 1).all()
        for row, rank in zip(sample.rows[at].tolist(), sample.ranks[at].tolist(), strict=True):
            if not (is_search and number == 0):
                assert abs(scores[order[rank]] - scores[names[row]]) < 1e-5  # ties may be in any order
                assert rank >= kept
        seen += len(at)
        left = [one for one in left if one in found]
    answered = drawn_by(sample, len(bundle.stages))
    assert [names[row] for row in sample.rows[answered].tolist()] == ranking.ids
    assert sample.ranks[answered].tolist() == list(range(len(ranking.ids)))
    assert np.array_equal(sample.scores[answered], np.array(ranking.scores, np.float32))
    assert (sample.inclusion[answered] == 1).all()
