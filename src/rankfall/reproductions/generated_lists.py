"""Generated ranking lists whose ideal order is known: grades of a nonlinear utility.

A document has `FEATURES` features, of which the first six determine its utility

.. math:: u = x_1 + x_2 x_3 + \\sin 3 x_4 - |x_5| + x_6 [x_1 > 0]

and the others are noise. Its grade, 0 to 4, is a quantile of the utility plus two unobserved terms: noise per document
and a shift per list, so that lists differ in their number of relevant documents. The order by utility is the best that
a ranker can learn; its metrics are those of the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np

from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FEATURES = 20
SHORTEST, LONGEST = 45, 120  # documents per list
NOISE, SHIFT = 1.0, 0.7  # standard deviations; the variance of the utility is about 3.5
GRADE_QUANTILES = (0.5, 0.8, 0.93, 0.98)  # half of the documents have grade 0, one of fifty has grade 4


@dataclass(frozen=True, slots=True)
class GeneratedLists:
    """Lists one after the other.

    Attributes:
        features: (rows, FEATURES)
        labels: Grade of each document, (rows,)
        utility: Utility of each document, (rows,)
        offsets: First row of each list and the number of rows, (lists + 1,)
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    utility: NDArray[np.float64]
    offsets: NDArray[np.int64]


def utility_of(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the utility of documents with features (rows, FEATURES).

    >>> utility_of(np.array([[1.0, 2.0, 0.5, 0.0, -1.0, 3.0]]))
    array([4.])
    """
    u = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) - np.abs(x[:, 4]) + x[:, 5] * (x[:, 0] > 0)
    return u.astype(np.float64)


def generate_lists(lists: int, seed: int) -> GeneratedLists:
    """Generate lists; the same seed gives the same lists."""
    random = np.random.default_rng(seed)
    sizes = random.integers(SHORTEST, LONGEST + 1, lists)
    rows = int(sizes.sum())
    features = random.standard_normal((rows, FEATURES)).astype(np.float32)
    utility = utility_of(features)
    shift = np.repeat(SHIFT * random.standard_normal(lists), sizes)
    noisy = utility + shift + NOISE * random.standard_normal(rows)
    labels = np.searchsorted(np.quantile(noisy, GRADE_QUANTILES), noisy)
    return GeneratedLists(features, labels, utility, np.concatenate([[0], np.cumsum(sizes)]))


def write_letor(data: GeneratedLists, path: Path) -> None:
    """Write the lists in LETOR format, so that they are prepared like any other data."""
    qids = np.repeat(np.arange(len(data.offsets) - 1), np.diff(data.offsets))
    pattern = "%d qid:%d " + " ".join(f"{i + 1}:%.9g" for i in range(FEATURES))
    text = StringIO()
    np.savetxt(text, np.column_stack([data.labels, qids, data.features]), pattern)
    write_file(path, text.getvalue())
