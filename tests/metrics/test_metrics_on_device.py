"""Metrics on the stand-in device: values of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rankfall import metrics, registry
from support.standin_device import DEVICE, standin_device
from support.variants import Options, compare, make_lists, place, variants

if TYPE_CHECKING:
    from collections.abc import Callable

LISTS = make_lists()
TIED = LISTS.scores.round()
# Significance tests return numbers of Python, so they read values by definition.
NAMES = ["arp", "average_precision", "hit_rate", "mrr", "ndcg", "opa", "precision", "recall"]


def check(call: Callable[..., Any], given: list[Any], options: Options) -> None:
    def run(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        result = call(*place(given, device, dtype), **place(options, device, dtype))
        return [result] if isinstance(result, Tensor) else list(asdict(result).values())

    compare(run, options)
    if call is not metrics.funnel or options.get("ties") == "position":  # random numbers in float32 are others
        compare(run, options, like="mps")


@pytest.mark.witness("stand-in device")
@pytest.mark.parametrize("name", NAMES)
def test_computes_what_a_cpu_computes(name: str) -> None:
    metric = getattr(metrics, name)
    for options in variants(metric, given=("scores", "labels", "mask")):
        check(metric, [TIED, LISTS.labels], {"mask": LISTS.mask} | options)
    check(metric, [TIED, LISTS.labels], options)


@pytest.mark.witness("stand-in device", "funnel")
def test_funnel_computes_what_a_cpu_computes() -> None:
    for options in variants(metrics.funnel, given=("stage_scores", "relevant", "mask")):
        given = [[TIED, -LISTS.scores], (LISTS.labels > 1).double()]
        check(metrics.funnel, given, {"mask": LISTS.mask} | options)


def test_every_metric_of_lists_is_tested() -> None:
    known = {registry.get("metric", name) for name in registry.names("metric")}
    assert known <= {getattr(metrics, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_on_the_cpu_is_named(name: str) -> None:
    needed = next(variants(getattr(metrics, name), given=("scores", "labels", "mask")))
    with standin_device(), pytest.raises(ValueError, match="labels must be on the device of scores, lazy:0, got cpu"):
        getattr(metrics, name)(place(TIED, DEVICE), LISTS.labels, **needed)


TESTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "paired": metrics.paired_test,
    "bootstrap": lambda a, b: metrics.paired_test(a, b, method="bootstrap", samples=50),
    "two samples": metrics.two_sample_test,
    "crossed": lambda a, b: metrics.crossed_test(a.view(5, 7), b.view(5, 7)),
    "compare": lambda a, b: metrics.compare({"a": a, "b": b}),
    "holm": lambda a, b: metrics.holm((a / 10).sigmoid()).tolist(),
}


@pytest.mark.parametrize("test", TESTS)
def test_significance_of_values_on_a_device(test: str) -> None:
    """The result consists of Python numbers, so these tests read values."""
    a, b = LISTS.scores.flatten(), LISTS.scores.flatten().flip(0) + 0.1
    expected = TESTS[test](a, b)
    with standin_device():
        found = TESTS[test](a.to(DEVICE), b.to(DEVICE))
    assert str(found) == str(expected)
