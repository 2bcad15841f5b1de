"""What is done with lists on their way from ranking text to prepared data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done with the lists; the manifest keeps it.

    Lists shorter than `min_list` are dropped. Lists longer than `max_list` are cut to a sample that holds
    at least `keep_positives` documents with a label above 0, as far as there are so many (ARF, B.2: 41, 200
    and 15); the sample depends on `seed` and the query's id alone. With `log1p` a feature v becomes sign(v)
    log(1 + abs(v)). Values that are missing or not finite become `missing_value` after that, and with
    `missing_indicator` each feature that misses a value anywhere gets a column which is 1 where it does.
    `standardise` names the splits whose mean and deviation standardise all of them. `features` and
    `first_id` say how many columns there are and which feature id is the first; otherwise the data decide.
    """

    min_list: int = 1
    max_list: int | None = None
    keep_positives: int = 15
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
        """Refuse what cannot be meant."""
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
    """Refuse an argument, saying what it is and what it may be."""
    if not holds:
        raise ValueError(f"{name}: expected {allowed}, got {found}")
