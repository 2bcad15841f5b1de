"""CPU time of the stages of a bundle as lines: a fixed cost per request, and a cost per item."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.studies.plan.plan_result import CostSample, StageCost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.serving import Bundle
    from rankfall.serving.onnx_stages import Stage
    from rankfall.serving.request_encoder import EncodedRequests

    OnStep = Callable[[str, int, int | None], None]  # name of the step, completed amount, total amount

REQUESTS = 32  # enough different ones for a measurement
SIZES = 6  # numbers of items, per stage
SECONDS = 2.0  # of measuring, per stage
MIN_TURNS, MAX_TURNS = 20, 400


def measure_costs(
    bundle: Bundle,
    asked: Sequence[Mapping[str, Any]],
    longest: Sequence[int],
    *,
    seconds: float = SECONDS,
    on_step: OnStep = lambda step, done, total: None,
) -> list[StageCost]:
    """Measure the CPU time of each stage of a bundle for single requests.

    The first stage searches all items and returns several numbers of them, in turns; a later stage scores lists of
    several lengths. A line is fitted to the medians (:func:`fit_line`).

    Args:
        bundle: The bundle, loaded with one thread.
        asked: Different requests, which take turns.
        longest: For each stage, the largest number of items to measure: that it keeps for the first stage, that enter
            it for the others.
        seconds: Time to measure a stage.
        on_step: Receives the current step, the number of its finished units and their total.
    """
    requests = [bundle.encode([request]) for request in asked]
    rows = np.random.default_rng(0).permutation(len(bundle.items))

    def search(stage: Stage, request: EncodedRequests, quota: int) -> None:
        own, stage.quota = stage.quota, quota
        try:
            stage.search(request, scored=False)
        finally:
            stage.quota = own

    def score(stage: Stage, request: EncodedRequests, length: int) -> None:
        stage.score(request, rows[None, :length])

    costs = []
    for place, (stage, most) in enumerate(zip(bundle.stages, longest, strict=True)):
        on_step(f"cost of {stage.name}", place, len(bundle.stages))
        most = min(most, len(bundle.items))
        sizes = np.unique(np.geomspace(max(1, most // 32), most, SIZES).astype(int)).tolist()
        samples = _samples(partial(score if place else search, stage), requests, sizes, seconds)
        measured = [sample.items for sample in samples], [sample.cost for sample in samples]
        fixed, slope, fixed_error, slope_error = fit_line(*measured)
        per_item, per_kept = (slope, 0.0) if place else (0.0, slope)
        costs.append(StageCost(stage.name, fixed, per_item, per_kept, fixed_error, slope_error, samples))
    return costs


def fit_line(items: Sequence[int], costs: Sequence[float]) -> tuple[float, float, float, float]:
    """Fit ``cost = fixed + per_item * items`` and return fixed, per_item, and the standard errors of both.

    Squares of relative errors are minimised, since longer times vary more. A line with a negative fixed cost is
    replaced by the best one through 0.

    >>> [round(number, 6) for number in fit_line([10, 20, 40], [3.0, 5.0, 9.0])]
    [1.0, 0.2, 0.0, 0.0]
    """
    x, y = np.asarray(items, float), np.asarray(costs, float)
    for design in (np.stack([np.ones_like(x), x], 1), x[:, None]):
        scaled = design / y[:, None]
        found = np.linalg.lstsq(scaled, np.ones_like(y), rcond=None)[0]
        if found.min() >= 0:
            break
    freedom = len(x) - len(found)
    variance = ((scaled @ found - 1) ** 2).sum() / freedom if freedom > 0 else np.nan
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(scaled.T @ scaled)))
    if len(found) == 1:
        return 0.0, float(found[0]), 0.0, float(errors[0])
    return float(found[0]), float(found[1]), float(errors[0]), float(errors[1])


def _samples(
    work: Callable[[EncodedRequests, int], None],
    requests: Sequence[EncodedRequests],
    sizes: Sequence[int],
    seconds: float,
) -> list[CostSample]:
    """Return the median CPU time of work of each size, measured in turns so that other load affects all sizes."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for size in sizes:
        work(requests[0], size)  # buffers are allocated
    begin = time.perf_counter()
    turn = 0
    while turn < MIN_TURNS or (turn < MAX_TURNS and time.perf_counter() - begin < seconds):
        for size in sizes:
            before = time.process_time()
            work(requests[turn % len(requests)], size)
            times[size].append(time.process_time() - before)
        turn += 1
    return [CostSample(size, statistics.median(of_size)) for size, of_size in times.items()]
