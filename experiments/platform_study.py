"""Statistics of the simulated platform: the numbers and figures of docs/concepts/simulated-platform.md.

``python -m experiments.platform_study DIR`` simulates the preset `recflow-like` and writes ``platform.json``
and the figures to DIR.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.metrics import funnel
from rankfall.reporting.charts import curves, heat_maps, save
from rankfall.simulation.platform import COARSE, POSITIVES, PRERANK, Platform
from rankfall.simulation.presets import preset_of
from rankfall.simulation.world import NO_ITEM, mixed
from rankfall.storage.disk import make_directory
from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.reporting.charts import Chart
    from rankfall.simulation.platform import ServedPortion
    from rankfall.simulation.presets import Shares

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

QUOTAS = (30, 20)  # of the two stages that are trained on such logs
SAMPLE = 10  # items per logged stage
TOP = 20  # best items of a user, of DRIFT_ITEMS
DRIFT_USERS, DRIFT_ITEMS = 500, 2000
MODELS = ("pre-ranking", "coarse ranking", "ranking", "truth")


class Study:
    """Statistics of a running platform.

    Attributes:
        shows: How often each item was shown.
        drift: Similarity of each day's interests to those of the first day.
        new: Share of each day's logged items that were not logged before.
        agreement: Agreement of pairs of production models, per day.
        variance: Shares of the parts of relevance in its variance, per portion.
        recalls: Joint recall of reference cascades, per portion.
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.shows = np.zeros(0, np.int64)
        self.drift: list[dict[str, float]] = []
        self.new: list[float] = []
        self.agreement: dict[str, list[float]] = {}
        self.variance: dict[str, list[float]] = {}
        self.recalls: dict[str, list[float]] = {}
        self._seen = np.zeros(0, np.bool_)
        self._random = np.random.default_rng(0)
        self._first_vectors = platform.users.vectors[:DRIFT_USERS]
        self._probes = platform.items.vector[:DRIFT_ITEMS]

    def run(self, days: int) -> dict[str, Any]:
        """Simulate the days and return all statistics."""
        today = ""
        for portion in self.platform.run(days):
            if portion.day != today:
                today = portion.day
                self._add_drift()
                self._add_new_items(portion)
                self._add_agreement(portion)
            self._add_variance(portion)
            self._add_recalls(portion)
            self._add_shows(portion)
        return self.to_json()

    def to_json(self) -> dict[str, Any]:
        """Content of ``platform.json``."""
        shows = np.sort(self.shows)[::-1]
        total = shows.sum()
        return {
            "preset": self.platform.preset.name,
            "requests_per_day": self.platform.requests_per_day,
            "items": len(self.shows),
            "shown items": int((shows > 0).sum()),
            "share of shows of the first 1 %": float(shows[: len(shows) // 100].sum() / total),
            "share of shows of the first 10 %": float(shows[: len(shows) // 10].sum() / total),
            "drift": self.drift,
            "new items": self.new,
            "agreement": {name: float(np.mean(values)) for name, values in self.agreement.items()},
            "variance": {name: float(np.mean(values)) for name, values in self.variance.items()},
            "variance of the last eighth": {
                name: float(np.mean(values[-len(values) // 8 :])) for name, values in self.variance.items()
            },
            "joint recall": {name: float(np.mean(values)) for name, values in self.recalls.items()},
        }

    def plots(self) -> dict[str, Chart]:
        """Figures of popularity, drift and agreement."""
        return {
            "platform-popularity": _popularity(self.shows),
            "platform-drift": _drift(self.drift),
            "platform-agreement": _agreement(self.to_json()["agreement"]),
        }

    def _add_drift(self) -> None:
        vectors = self.platform.users.vectors[:DRIFT_USERS]
        first, now = (_best(users @ self._probes.T, TOP) for users in (self._first_vectors, vectors))
        self.drift.append(
            {
                "cosine of the interests": float((self._first_vectors * vectors).sum(axis=1).mean()),
                f"overlap of the {TOP} best items": _overlap(first, now),
            }
        )

    def _add_new_items(self, portion: ServedPortion) -> None:
        self._seen = _extended(self._seen, len(self.platform.items))
        items = np.unique(portion.items[portion.items != NO_ITEM])
        self.new.append(float((~self._seen[items]).mean()))

    def _add_shows(self, portion: ServedPortion) -> None:
        self._seen[portion.items[portion.items != NO_ITEM]] = True
        self.shows = _extended(self.shows, len(self.platform.items))
        shown = portion.items[portion.feedback["realshow"] > 0]
        self.shows += np.bincount(shown, minlength=len(self.shows))

    def _add_agreement(self, portion: ServedPortion) -> None:
        empty = portion.candidates == NO_ITEM
        truth = np.where(empty, np.float32(-np.inf), mixed(portion.parts, self.platform.preset.shares))
        scores = portion.scores
        models = dict(zip(MODELS, (scores.prerank, scores.coarse, scores.rank, truth), strict=True))
        for one, other in combinations(models, 2):
            correlation = _correlation(models[one], models[other])
            overlap = _overlap(_best(models[one], POSITIVES), _best(models[other], POSITIVES))
            self.agreement.setdefault(f"rank correlation: {one}, {other}", []).append(correlation)
            self.agreement.setdefault(f"overlap of the best {POSITIVES}: {one}, {other}", []).append(overlap)

    def _add_variance(self, portion: ServedPortion) -> None:
        found = variance_shares(portion, self.platform.preset.shares)
        for name, value in found.items():
            self.variance.setdefault(name, []).append(value)

    def _add_recalls(self, portion: ServedPortion) -> None:
        for name, value in funnel_recalls(portion, self._random).items():
            self.recalls.setdefault(name, []).append(value)


def variance_shares(portion: ServedPortion, shares: Shares) -> dict[str, float]:
    """Return the share of each part in the variance of the true relevance among the candidates of a request."""
    real = portion.candidates != NO_ITEM
    found = {"noise": shares.noise}
    for name, values in portion.parts.items():
        mean = values.mean(axis=1, where=real, keepdims=True)
        found[name] = float(((values - mean) ** 2).mean(where=real)) * getattr(shares, name)
    total = sum(found.values())
    return {name: value / total for name, value in found.items()}


def funnel_recalls(portion: ServedPortion, random: np.random.Generator) -> dict[str, float]:
    """Return the joint recall of cascades with access to hidden scores, and of chance, on ten items per stage."""
    served = portion.served
    stage = np.select(
        [served.last_model == PRERANK, served.last_model == COARSE, served.rank_index >= POSITIVES], [0, 1, 2], 3
    )
    keys = random.random(stage.shape) + (portion.items == NO_ITEM)
    columns = [np.argsort(np.where(stage == depth, keys, 9), axis=1)[:, :SAMPLE] for depth in range(4)]
    chosen = np.concatenate(columns, axis=1)

    def sampled(candidates: Floats) -> torch.Tensor:
        logged = np.take_along_axis(candidates, served.place, axis=1)
        return torch.from_numpy(np.take_along_axis(logged, chosen, axis=1))

    truth = torch.from_numpy(np.take_along_axis(portion.relevance, chosen, axis=1))
    scores = portion.scores
    prerank, coarse, rank = sampled(scores.prerank), sampled(scores.coarse), sampled(scores.rank)
    relevant = torch.from_numpy(np.take_along_axis(stage, chosen, axis=1) == 3)
    cascades = {
        "truth": (truth, truth),
        "the ranking model": (rank, rank),
        "pre-ranking, then the ranking model": (prerank, rank),
        "pre-ranking": (prerank, prerank),
        "coarse ranking": (coarse, coarse),
    }
    results = {name: funnel(stages, relevant, quotas=QUOTAS) for name, stages in cascades.items()}
    recalls = {name: float(result.joint_recall.mean()) for name, result in results.items()}
    return {**recalls, "chance": float(results["truth"].chance.mean())}


def _extended(values: NDArray[Any], size: int) -> NDArray[Any]:
    return np.concatenate([values, np.zeros(size - len(values), values.dtype)])


def _best(scores: Floats, count: int) -> Integers:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _overlap(one: Integers, other: Integers) -> float:
    """Mean share of the entries of a row of `one` that are in the same row of `other`."""
    return float((one[:, :, None] == other[:, None, :]).any(axis=2).mean())


def _correlation(one: Floats, other: Floats) -> float:
    """Mean over rows of Spearman's correlation of the finite entries."""
    real = np.isfinite(one)
    ranks = [np.argsort(np.argsort(values, axis=1), axis=1) for values in (one, other)]
    first, second = (rank - rank.mean(axis=1, where=real, keepdims=True) for rank in ranks)
    products = [(a * b).sum(axis=1, where=real) for a, b in ((first, second), (first, first), (second, second))]
    return float((products[0] / np.sqrt(products[1] * products[2])).mean())


def _popularity(shows: Integers) -> Chart:
    ordered = np.sort(shows[shows > 0])[::-1]
    places = np.unique(np.geomspace(1, len(ordered), 60).astype(np.int64))
    return curves(
        {"times shown": {"items": [(int(n), int(ordered[n - 1])) for n in places]}},
        title="Popularity has a long tail",
        caption="how often each item was shown, most often first",
        x="place of the item",
        log_x=True,
        log_y=True,
        ticks=[10**n for n in range(7)],
    )


def _drift(days: list[dict[str, float]]) -> Chart:
    series = {name: [(day, found[name]) for day, found in enumerate(days)] for name in days[0]}
    return curves({"what is left of the first day": series}, title="Interests drift", x="days later")


def _agreement(agreement: dict[str, float]) -> Chart:
    panels: dict[str, dict[tuple[str, str], float]] = {}
    for name, value in agreement.items():
        panel, models = name.split(": ")
        one, other = models.split(", ")
        panels.setdefault(panel, {})[one, other] = value
    caption = "among the candidates of a request; framed: the model that agrees most with the column"
    return heat_maps(panels, title="The models of production disagree", caption=caption, by_column=True)


def main() -> None:
    """Write the numbers and figures of docs/concepts/simulated-platform.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="recflow-like")
    parser.add_argument("--days", type=int, default=None)
    parser.add_argument("--requests-per-day", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    preset = preset_of(options.preset)
    study = Study(Platform(preset, options.seed, options.requests_per_day or preset.requests_per_day))
    found = study.run(options.days or preset.days)
    make_directory(options.out)
    write_file(options.out / "platform.json", json.dumps(found, indent=1) + "\n")
    save(study.plots(), options.out)


if __name__ == "__main__":
    main()
