"""Metrics on the stand-in device: values of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall import metrics
from support.standin_device import DEVICE, standin_device
from support.variants import Options, make_lists, place, variants

if TYPE_CHECKING:
    from collections.abc import Callable

LISTS = make_lists()
TIED = LISTS.scores.round()
# Significance tests return numbers of Python, so they read values by definition.
NAMES = ["arp", "average_precision", "hit_rate", "mrr", "ndcg", "opa", "precision", "recall"]


def check(call: Callable[..., Any], *given: Any, **options: Any) -> None:
    expected = call(*given, **place(options, "cpu"))
    with standin_device() as device:
        with device.without_synchronisation():
            found = call(*place(list(given), DEVICE), **place(options, DEVICE))
        for one, other in zip(_tensors(found), _tensors(expected), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-12, atol=1e-12, msg=lambda text: f"{options}: {text}")


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(asdict(result).values())


@pytest.mark.witness("stand-in device")
@pytest.mark.parametrize("name", NAMES)
def test_computes_what_a_cpu_computes(name: str) -> None:
    metric = getattr(metrics, name)
    for options in variants(metric, given=("scores", "labels", "mask")):
        check(metric, TIED, LISTS.labels, mask=LISTS.mask, **options)
    check(metric, TIED, LISTS.labels, **options)


@pytest.mark.witness("stand-in device", "funnel")
def test_funnel_computes_what_a_cpu_computes() -> None:
    for options in variants(metrics.funnel, given=("stage_scores", "relevant", "mask")):
        given: Options = {"mask": LISTS.mask} | options
        check(metrics.funnel, [TIED, -LISTS.scores], (LISTS.labels > 1).double(), **given)


def test_every_metric_of_lists_is_tested() -> None:
    from rankfall import registry

    known = {registry.get("metric", name) for name in registry.names("metric")}
    assert known <= {getattr(metrics, name) for name in NAMES}
