"""Write train.txt, vali.txt and test.txt: generated ranking lists in the LETOR format.

usage: python make_lists.py
"""

from __future__ import annotations

import random

QUERIES = {"train": 400, "vali": 150, "test": 400}
DOCUMENTS, FEATURES = 20, 8


def main() -> None:
    draw = random.Random(0)
    query = 0
    for split, queries in QUERIES.items():
        with open(f"{split}.txt", "w", encoding="utf-8") as file:
            for _ in range(queries):
                query += 1
                for _ in range(DOCUMENTS):
                    values = [draw.gauss(0, 1) for _ in range(FEATURES)]
                    utility = values[0] + values[1] * values[2] + 0.5 * abs(values[3]) + draw.gauss(0, 0.5)
                    grade = sum(utility > edge for edge in (0.5, 1.5, 2.5))
                    features = " ".join(f"{number}:{value:.4f}" for number, value in enumerate(values, start=1))
                    file.write(f"{grade} qid:{query} {features}\n")


if __name__ == "__main__":
    main()
