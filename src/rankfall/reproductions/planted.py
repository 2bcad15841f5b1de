"""Generated ranking data whose ideal order is known: grades of a planted nonlinear utility.

A document has `FEATURES` features, of which the first six make its utility

.. math:: u = x_1 + x_2 x_3 + \\sin 3 x_4 - |x_5| + x_6 [x_1 > 0]

and the others are noise. Its grade, 0 to 4, is that of the utility plus noise that nobody can know and a shift that
all documents of a list share: lists differ in how much good they hold. The order by utility is the best that a ranker
can learn; what it gets is the oracle's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FEATURES = 20
SHORTEST, LONGEST = 45, 120  # documents of a list
NOISE, SHIFT = 1.0, 0.7  # beside a utility of variance about 3.5
GRADE_QUANTILES = (0.5, 0.8, 0.93, 0.98)  # half of the documents have grade 0, one of fifty has grade 4


@dataclass(frozen=True, slots=True)
class Planted:
    """Lists one after the other; `offsets` says where each begins."""

    features: NDArray[np.float32]  # (rows, FEATURES)
    labels: NDArray[np.int64]  # (rows,)
    utility: NDArray[np.float64]  # (rows,)
    offsets: NDArray[np.int64]  # (lists + 1,)


def utility_of(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The utility of documents with features (rows, FEATURES).

    >>> utility_of(np.array([[1.0, 2.0, 0.5, 0.0, -1.0, 3.0]]))
    array([4.])
    """
    u = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) - np.abs(x[:, 4]) + x[:, 5] * (x[:, 0] > 0)
    return u.astype(np.float64)


def plant(lists: int, seed: int) -> Planted:
    """Draw lists; the same seed gives the same ones."""
    random = np.random.default_rng(seed)
    sizes = random.integers(SHORTEST, LONGEST + 1, lists)
    rows = int(sizes.sum())
    features = random.standard_normal((rows, FEATURES)).astype(np.float32)
    utility = utility_of(features)
    shift = np.repeat(SHIFT * random.standard_normal(lists), sizes)
    noisy = utility + shift + NOISE * random.standard_normal(rows)
    labels = np.searchsorted(np.quantile(noisy, GRADE_QUANTILES), noisy)
    return Planted(features, labels, utility, np.concatenate([[0], np.cumsum(sizes)]))


def write_letor(data: Planted, path: Path) -> None:
    """The lists as ranking text, so that generated data take the road of all data."""
    qids = np.repeat(np.arange(len(data.offsets) - 1), np.diff(data.offsets))
    pattern = "%d qid:%d " + " ".join(f"{i + 1}:%.9g" for i in range(FEATURES))
    np.savetxt(path, np.column_stack([data.labels, qids, data.features]), pattern)
