"""The options for preparing ranking data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How lists and features are prepared; the manifest stores it.

    Args:
        min_list: Drop lists with fewer documents.
        max_list: Cut longer lists to a sample of this size (ARF, B.2, uses 41, 200 and 15 for these three options, and
            `replacement`). The sample depends on `seed` and the query id only.
        keep_positives: The smallest number of documents with a label above 0 in such a sample, if the list has that
            many.
        replacement: Draw such a sample with replacement, as ARF does: a document can occur several times, and a list
            with fewer positives than `keep_positives` gets copies of them.
        log1p: Transform a feature v to sign(v) log(1 + abs(v)).
        missing_value: Replaces values that are missing or not finite, after `log1p`; by default they are errors.
        missing_indicator: Add a column, which is 1 for missing values, for each feature that has some.
        standardise: The splits whose mean and deviation standardise all splits.
        regroup: Bring together the lines of a query that are apart.
        skip_bad_lines: Leave out invalid lines instead of raising an error.
        features: The number of features; by default the largest id decides.
        first_id: The smallest feature id; by default 0 if it occurs, else 1.
        seed: Seed of the samples.
    """

    min_list: int = 1
    max_list: int | None = None
    keep_positives: int = 15
    replacement: bool = False
    log1p: bool = False
    missing_value: float | None = None
    missing_indicator: bool = False
    standardise: tuple[str, ...] = ()
    regroup: bool = False
    skip_bad_lines: bool = False
    features: int | None = None
    first_id: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges of all options."""
        check(self.min_list >= 1, "min_list", self.min_list, "at least 1")
        check(self.keep_positives >= 0, "keep_positives", self.keep_positives, "at least 0")
        check(self.first_id in (None, 0, 1), "first_id", self.first_id, "0, 1 or None")
        check(self.seed >= 0, "seed", self.seed, "at least 0")
        if self.max_list is not None:
            check(
                self.max_list >= self.min_list,
                "max_list",
                self.max_list,
                f"at least min_list, {self.min_list}",
            )
        if self.features is not None:
            check(1 <= self.features < 10**8, "features", self.features, "from 1 to 99999999")
        if self.missing_value is None:
            check(not self.missing_indicator, "missing_indicator", True, "given together with missing_value")
        else:
            finite = bool(np.isfinite(np.float32(self.missing_value)))
            check(finite, "missing_value", self.missing_value, "a finite number")


def check(holds: bool, name: str, found: object, allowed: str) -> None:
    """Raise an error with the found and the allowed value if a condition does not hold."""
    if not holds:
        raise ValueError(f"{name}: expected {allowed}, found {found}")
