"""Feedback of users on the items shown: the true relevance, observed through positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankfall.simulation.world import normal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

SHOWN = (4, 10)  # the smallest and the largest number of items shown per request
ATTENTION = 0.35  # position p is examined with probability (1 + p) ** -ATTENTION
WATCHED = (-2.4, 0.9, 0.7)  # log of the watched share of a video: at relevance 0, slope by relevance, deviation
EFFECTIVE, LONG = 0.3, 1.0  # the smallest watched shares of an effective and a long view
REACTIONS = {"like": -4.5, "follow": -6.5, "forward": -6.0, "comment": -5.5}  # log-odds of viewers at relevance 0


def react(
    random: np.random.Generator, position: Integers, relevance: Floats, duration: Integers
) -> dict[str, NDArray[np.int64]]:
    """Return RecFlow's columns of feedback on items, (requests, n) each.

    Args:
        random: The random numbers.
        position: The place of each item in the answer, from 0; -1 if it is not in it.
        relevance: The true relevance.
        duration: The lengths of the videos in ms.
    """
    shown_until = random.integers(SHOWN[0], SHOWN[1] + 1, (len(position), 1))
    shown = (position >= 0) & (position < shown_until)
    looks = random.random(position.shape) < (1.0 + np.maximum(position, 0)) ** -ATTENTION
    base, slope, spread = WATCHED
    watched = np.exp(base + slope * relevance + spread * normal(random, *position.shape))
    playing_time = np.where(shown & looks, np.minimum(watched, 5) * duration, 0).astype(np.int64)
    effective = shown & (playing_time >= EFFECTIVE * duration)
    columns = {
        "realshow": shown,
        "effective_view": effective,
        "long_view": shown & (playing_time >= LONG * duration),
    }
    for name, base_odds in REACTIONS.items():
        odds = np.exp(base_odds + relevance)
        columns[name] = effective & (random.random(position.shape) < odds / (1 + odds))
    return {"playing_time": playing_time, **{name: values.astype(np.int64) for name, values in columns.items()}}
