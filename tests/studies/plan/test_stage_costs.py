"""Costs of the stages of a bundle: the fitted line, and what is measured."""

from __future__ import annotations

import numpy as np
import pytest

from rankfall.benchmarks.serve import requests_like_examples
from rankfall.serving import Bundle
from rankfall.studies.plan.stage_costs import fit_line, measure_costs
from support.bundles import platform_bundle


def test_a_line_is_that_of_numpy_with_relative_errors() -> None:
    rng = np.random.default_rng(0)
    items = np.array([10, 20, 50, 100, 200, 400])
    costs = (2e-4 + 3e-6 * items) * (1 + 0.05 * rng.standard_normal(6))
    fixed, per_item, fixed_error, per_item_error = fit_line(items.tolist(), costs.tolist())
    expected, covariance = np.polyfit(items, costs, 1, w=1 / costs, cov=True)
    assert (per_item, fixed) == pytest.approx(expected.tolist())
    assert [per_item_error, fixed_error] == pytest.approx(np.sqrt(np.diag(covariance)).tolist())
    assert abs(fixed - 2e-4) < 3 * fixed_error
    assert abs(per_item - 3e-6) < 3 * per_item_error


def test_a_fixed_cost_is_never_negative() -> None:
    fixed, per_item, fixed_error, per_item_error = fit_line([10, 20, 40], [1.0, 2.1, 4.9])
    assert (fixed, fixed_error) == (0.0, 0.0)
    assert per_item == pytest.approx(0.11, abs=0.01)  # through 0
    assert per_item_error > 0


@pytest.mark.xdist_group("bench serve")
def test_costs_of_a_bundle_are_measured_by_stage() -> None:
    bundle = Bundle.load(platform_bundle())
    steps: list[str] = []
    requests = requests_like_examples(bundle, 32)
    costs = measure_costs(bundle, requests, [50, 50], seconds=0.1, on_step=lambda step, *_: steps.append(step))
    assert [cost.stage for cost in costs] == bundle.names == ["retrieval", "ranking"]
    assert steps == ["cost of retrieval", "cost of ranking"]
    assert bundle.quotas == [25, 10]  # a search for other quotas leaves them as they were
    first, second = costs
    assert (first.per_item, second.per_kept) == (0.0, 0.0)  # a search enters all items, and pays for those it returns
    for cost in costs:
        assert cost.samples is not None
        items, times = [sample.items for sample in cost.samples], [sample.cost for sample in cost.samples]
        assert items == sorted(set(items))
        assert items[-1] == 50
        assert min(times) > 0
        assert (cost.fixed, cost.per_item + cost.per_kept, cost.fixed_error, cost.slope_error) == fit_line(items, times)
