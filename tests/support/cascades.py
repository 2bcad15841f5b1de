"""A log with learnable preferences and a small cascade, for tests of training and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.training.config.load_config import merge
from support.logs import DAYS, ITEMS, item_columns, random_day, spec, write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec
    from support.logs import Columns


def liked_log(
    path: Path, *, change: Callable[[dict[str, Columns]], None] = lambda days: None, description: Spec | None = None
) -> Path:
    """Write a log in which users with odd ids prefer items with large numbers, others those with small ones."""
    rng = np.random.default_rng(0)
    days = {day: random_day(rng, number, 300 if number == 0 else 60) for number, day in enumerate(DAYS)}
    for columns in days.values():
        for i, (user, items) in enumerate(zip(columns["user.id"], columns["item"], strict=True)):
            liked = np.array(items) if user % 2 else ITEMS - np.array(items)
            place = (-liked).argsort().argsort()  # 0 is the best of 11
            depth = np.select([place < 2, place < 5, place < 9], [2, 1, 0], -1)
            columns["depth"][i] = depth.tolist()
            columns["rank"][i] = np.where(depth < 0, -1, place).tolist()
            columns["relevance"][i] = (depth == 2).astype(float).tolist()
            columns["grade"][i] = np.maximum(9 - place, 0).tolist()
    change(days)
    write_log(path, days, items=item_columns(), description=description)
    return path


def sized_log(path: Path) -> Path:
    """Write such a log with relevance 1, 2 and 10, requests without a relevant item, and some without feedback."""

    def change(days: dict[str, Columns]) -> None:
        rng = np.random.default_rng(3)
        for columns in days.values():
            for i, depth in enumerate(columns["depth"]):
                sizes = rng.choice([1.0, 2.0, 10.0], len(depth)) * (np.array(depth) >= 1)
                columns["relevance"][i] = sizes.tolist() if i % 9 else [0.0] * len(depth)
                columns["feedback.like"][i] = np.round(rng.gamma(1, 5, len(depth)) * (i % 5 > 0), 2).tolist()

    return liked_log(path, change=change, description=spec(user="id"))


def content(log: Path, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a cascade of two stages on such a log."""
    base = {
        "data": {"path": str(log), "train": DAYS[0], "valid": DAYS[1], "test": DAYS[2]},
        "relevant": 2,
        "stages": [
            {"name": "retrieval", "quota": 5, "model": {"kind": "two_tower", "hidden": [16, 8], "dim": 4}},
            {"name": "ranking", "quota": 3, "model": {"kind": "din", "hidden": [16], "dim": 4, "attention": 8}},
        ],
        "objective": {"name": "lcron", "topk": {"name": "dftopk", "tau": 1.0}},
        "training": {"epochs": 4, "batch": 32},
        "optimizer": {"lr": 0.02},
    }
    return merge(base, changes)
