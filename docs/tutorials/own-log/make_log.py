"""Write the log of a small simulated shop: one row for each request and candidate of a three-stage funnel.

usage: python make_log.py shop.csv
"""

from __future__ import annotations

import csv
import math
import random
import sys
from datetime import datetime, timedelta

CATEGORIES = ["books", "garden", "kitchen", "music", "sport", "toys"]
DAYS, REQUESTS_PER_DAY, USERS, ITEMS = 7, 400, 150, 400
COLUMNS = ["request", "time", "user", "city", "item", "category", "brand", "price", "stage", "rank", "clicked"]

draw = random.Random(0)


def best(candidates: list[str], relevance: dict[str, float], *, keep: int, noise: float) -> list[str]:
    """Return the items that a stage keeps, best first. A stage observes the relevance with noise."""
    return sorted(candidates, key=lambda item: -relevance[item] - draw.gauss(0, noise))[:keep]


def main(path: str) -> None:
    cities = {f"u{number}": draw.choice(["Basel", "Genoa", "Lyon"]) for number in range(USERS)}
    tastes = {user: {category: draw.gauss(0, 1) for category in CATEGORIES} for user in cities}
    items = {
        f"i{number}": (draw.choice(CATEGORIES), f"b{draw.randrange(40)}", round(math.exp(draw.gauss(3, 1)), 2))
        for number in range(ITEMS)
    }
    quality = {item: draw.gauss(0, 0.7) for item in items}
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(DAYS * REQUESTS_PER_DAY):
            time = datetime(2024, 1, 1) + timedelta(days=number / REQUESTS_PER_DAY)
            user = draw.choice(list(cities))
            relevance = {
                item: tastes[user][category] + quality[item] - 0.3 * math.log(price / 20)
                for item, (category, _, price) in items.items()
            }
            favourites = sorted(CATEGORIES, key=lambda category: -tastes[user][category])[:2]
            retrieved = draw.sample([item for item in items if items[item][0] in favourites], 60)
            preranked = best(retrieved, relevance, keep=30, noise=1.0)
            ranked = best(preranked, relevance, keep=10, noise=0.5)
            for item in retrieved:
                stage = "ranked" if item in ranked else "preranked" if item in preranked else "retrieved"
                rank = ranked.index(item) + 1 if item in ranked else ""
                clicked = item in ranked and draw.random() < 1 / (1 + math.exp(3 - relevance[item]))
                request = [f"r{number}", time.isoformat(timespec="seconds"), user, cities[user]]
                writer.writerow([*request, item, *items[item], stage, rank, int(clicked)])


if __name__ == "__main__":
    main(sys.argv[1])
