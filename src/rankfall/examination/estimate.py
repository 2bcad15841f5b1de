"""Estimate the examination curve of a log, with bootstrap intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from rankfall._suggestions import did_you_mean
from rankfall.examination.curve import ExaminationCurve, ExaminationPoint
from rankfall.examination.estimators import Naive, Pairs, RegressionEM
from rankfall.examination.shows import ITEM, RANK, default_given, read_shows, varies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.examination.estimators import Estimator
    from rankfall.examination.shows import Shows

    Floats = NDArray[np.float64]
    OnProgress = Callable[[str, int, int], None]

Method = Literal["pairs", "em", "naive"]
ESTIMATORS: dict[str, Callable[[Shows], Estimator]] = {"pairs": Pairs, "em": RegressionEM, "naive": Naive}
FEWEST_SHOWS = 100  # of a position in the curve


def estimate_examination(
    log: ImpressionLog,
    feedback: str,
    *,
    method: Method = "pairs",
    given: Sequence[str] | None = None,
    days: Sequence[str] | None = None,
    positions: int = 30,
    resamples: int = 100,
    seed: int = 0,
    on_progress: OnProgress = lambda step, done, total: None,
) -> ExaminationCurve:
    """Estimate how often each position is examined, relative to the first one.

    Args:
        log: A log with positions.
        feedback: The feedback that counts as a click where it is above 0.
        method: ``"pairs"`` compares items that agree in all of `given` at different positions, ``"em"`` fits a logistic
            regression on `given`, ``"naive"`` takes the click rate of each position.
        given: What describes the relevance of an item: ``rank``, ``item``, and features such as ``item.category``. By
            default the logged rank, for ``"em"`` also all features with few values; without informative ranks ``pairs``
            takes the item.
        days: Names and ranges ``FIRST..LAST`` of days; by default all.
        positions: The largest number of positions. The curve ends before the first position with fewer than 100 shows
            or without a click.
        resamples: The number of bootstrap samples of users, or of requests where the log does not know users.
        seed: Seed of the bootstrap.
        on_progress: Receives the name of a step, the amount done and the total.

    Raises:
        ValueError: If the log has no positions, if an argument is wrong, or if the shown items cannot tell examination
            from relevance.
    """
    if method not in get_args(Method):
        raise ValueError(
            f"method: found {method!r}{did_you_mean(method, get_args(Method))}; allowed are {get_args(Method)}"
        )
    if positions < 1 or resamples < 2:
        raise ValueError(f"found {positions} positions and {resamples} resamples, expected at least 1 and 2")
    chosen = log.choose(days) if days else list(log.days.values())
    asked = _asked(log, method, given)
    done = 0

    def on_day(_: str) -> None:
        nonlocal done
        done += 1
        on_progress("reading days", done, len(chosen))

    shows = read_shows(log, feedback, given=asked, days=chosen, on_day=on_day)
    shows, notes = _usable(shows, positions)
    shows, ranked_notes = _without_useless_rank(shows, given is not None, method)
    estimators = {"naive": Naive(shows), "estimate": ESTIMATORS[method](shows)}
    fitted, samples = _bootstrap(estimators, shows, resamples, seed, on_progress)
    points = _points(shows, fitted, samples)
    return ExaminationCurve(
        log=str(log.path),
        feedback=feedback,
        method=method,
        given=list(shows.values),
        days=[day.name for day in chosen],
        requests=len(np.unique(shows.request)),
        resampled=shows.resampled,
        resamples=resamples,
        points=points,
        notes=[*notes, *ranked_notes, *_rising(points)],
    )


def _asked(log: ImpressionLog, method: Method, given: Sequence[str] | None) -> list[str]:
    if method == "naive":
        return []
    if given is not None:
        return list(given)
    return [*default_given(log, few=method == "pairs"), *([ITEM] if method == "pairs" else [])]


def _usable(shows: Shows, most: int) -> tuple[Shows, list[str]]:
    """Keep the leading positions with enough shows."""
    counts = np.bincount(shows.position)
    clicks = np.bincount(shows.position, shows.click)
    enough = (counts >= FEWEST_SHOWS) & (clicks > 0)
    end = min(int(np.argmin([*enough, False])), most)
    if not end:
        raise ValueError(
            f"position 0 has {counts[0]:,} shows and {clicks[0]:,.0f} clicks, expected at least {FEWEST_SHOWS} and 1; "
            "positions are counted from 0"
        )
    left_out = int(counts[end:].sum())
    notes = [f"{left_out:,} shows below position {end - 1} are left out"] if left_out else []
    return shows.where(shows.position < end), notes


def _without_useless_rank(shows: Shows, is_asked: bool, method: Method) -> tuple[Shows, list[str]]:
    """Leave the rank out of the defaults where it is the position itself; for pairs, one of rank and item is kept."""
    values, notes = dict(shows.values), []
    if RANK in values and not varies(values[RANK], shows.position):
        if is_asked:
            raise ValueError(
                "given: found rank, but items of one rank were always shown at the same position, so that rank and "
                "position cannot be told apart"
            )
        del values[RANK]
    if method != "naive" and RANK not in values and not is_asked:
        notes.append(
            "the log has no ranks apart from the positions: if production showed better items first, the curve falls "
            "too steeply"
        )
    if method == "pairs" and not is_asked and RANK in values:
        del values[ITEM]
    return replace(shows, values=values), notes


def _bootstrap(
    estimators: dict[str, Estimator], shows: Shows, resamples: int, seed: int, on_progress: OnProgress
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the curves of all shown items, and those of samples, with a Poisson(1) weight for every cluster."""
    on_progress("estimating", 0, resamples + 1)
    fitted = {name: estimator(np.ones(len(shows))) for name, estimator in estimators.items()}
    random = np.random.default_rng(seed)
    clusters, number = np.unique(shows.cluster, return_inverse=True)
    curves: dict[str, list[Floats]] = {name: [] for name in estimators}
    for done in range(1, resamples + 1):
        on_progress("estimating", done, resamples + 1)
        weight = random.poisson(1.0, len(clusters)).astype(np.float64)[number]
        for name, estimator in estimators.items():
            curves[name].append(estimator(weight))
    on_progress("estimating", resamples + 1, resamples + 1)
    return fitted, {name: np.stack(found) for name, found in curves.items()}


def _rising(points: Sequence[ExaminationPoint]) -> list[str]:
    """Note a curve that rises by more than its intervals: users seldom examine lower positions more often."""
    for place, point in enumerate(points):
        before = min(points[:place], key=lambda other: other.high, default=point)
        if point.low > before.high:
            return [
                f"the curve rises from position {before.position} to {point.position}: items may have been moved for "
                "reasons that clicks depend on, so do not trust it below there"
            ]
    return []


def _points(shows: Shows, fitted: dict[str, Floats], samples: dict[str, Floats]) -> list[ExaminationPoint]:
    intervals = {name: np.nanquantile(curves, (0.025, 0.975), axis=0) for name, curves in samples.items()}
    counts = np.bincount(shows.position)
    clicks = np.bincount(shows.position, shows.click)
    return [
        ExaminationPoint(
            position=place,
            shows=int(counts[place]),
            clicks=int(clicks[place]),
            naive=float(fitted["naive"][place]),
            naive_low=float(intervals["naive"][0, place]),
            naive_high=float(intervals["naive"][1, place]),
            examination=float(fitted["estimate"][place]),
            low=float(intervals["estimate"][0, place]),
            high=float(intervals["estimate"][1, place]),
        )
        for place in range(shows.positions)
    ]
