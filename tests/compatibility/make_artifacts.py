"""Write one small artifact of each kind with the installed version of rankfall, by its command line alone.

``python tests/compatibility/make_artifacts.py OUT.tar.xz`` is run once per release. The archive is kept, and
``test_old_artifacts.py`` checks that later versions still load, evaluate, resume, compare and serve what it holds.
``expected.json`` holds what the version that wrote the artifacts answered.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

DAYS = ("2024-01-13", "2024-01-14", "2024-01-15")
SPEC: dict[str, Any] = {
    "request": "request",
    "item": "item",
    "user": "user",
    "time": {"column": "time", "unit": "ms"},
    "stage": "stage",
    "rank": "rank",
    "stages": [{"name": "matched", "sample": 6}, {"name": "ranked", "sample": 6}],
    "relevant": {"column": "clicked"},
    "feedback": ["clicked"],
    "features": {
        "user": {"user": {"kind": "categorical", "hash_bucket_size": 20}},
        "context": {"hour": {"kind": "time", "part": "hour"}},
        "item": {
            "item": {"kind": "categorical", "vocabulary": True},
            "brand": {"kind": "categorical", "num_buckets": 5},
            "price": {"kind": "dense", "log1p": True, "standardise": True},
            "weight": {"kind": "dense", "missing": 0.0, "bucketize": [1.0, 2.0]},
        },
    },
    "sequences": {"clicks": {"max_length": 5, "features": ["item"], "feedback": "clicked"}},
}
STAGES: list[dict[str, Any]] = [
    {"name": "retrieval", "quota": 6, "model": {"kind": "two_tower", "hidden": [4], "dim": 2}},
    {"name": "ranking", "quota": 3, "model": {"kind": "din", "hidden": [4], "dim": 2, "attention": 2}},
]
DRAWN = (".html", ".png", ".svg")  # pages and pictures, which nothing reads
REQUEST = {"time": "2024-01-15T10:30:00", "user": {"user": "u3"}, "sequences": {"clicks": [{"item": "i1"}]}}


def main(archive: Path) -> None:
    """Write all artifacts into a directory, and the directory into an archive."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_all(directory)
        with tarfile.open(archive, "w:xz", preset=9) as tar:
            for path in sorted(path for path in directory.rglob("*") if path.is_file()):
                if path.suffix not in DRAWN:
                    tar.add(path, path.relative_to(directory))


def write_all(directory: Path) -> None:
    """Write an impression log, LETOR data, runs, a comparison, a stream and a bundle."""
    write_rows(directory / "rows.csv")
    write_letor(directory / "lists.txt")
    cascade = {
        "data": {"path": "log", "train": DAYS[0], "valid": DAYS[1], "test": DAYS[2]},
        "relevant": 2,
        "stages": STAGES,
        "objective": {"name": "lcron", "topk": {"name": "dftopk", "tau": {"start": 2.0, "end": 1.0}}},
        "training": {"epochs": 2, "batch": 8, "checkpoint_every": 0.0},
    }
    ranker = {
        "data": {"path": "lists", "train": "lists:1/3", "valid": "lists:2/3", "test": "lists:3/3"},
        "model": {"hidden": [4], "dropout": 0.1},
        "loss": {"name": "arf_v2", "k": 2},
        "training": {"epochs": 2, "batch": 4, "patience": None, "checkpoint_every": 0.0},
    }
    stream = {key: value for key, value in cascade.items() if key != "objective"}
    stream |= {"data": {"path": "log"}, "training": {"batch": 8}, "seeds": [0], "methods": {"bce": {"objective": BCE}}}
    comparison = {key: value for key, value in cascade.items() if key != "objective"}
    comparison |= {"seeds": [0, 1], "methods": {"bce": {"objective": BCE}, "sort": {"objective": {"name": "sort_ce"}}}}
    files = {"spec": SPEC, "cascade": cascade, "ranker": ranker, "comparison": comparison, "stream": stream}
    for name, content in files.items():
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    run(directory, "prepare", "rows", "rows.csv", "--spec", "spec.yaml", "--out", "log")
    run(directory, "prepare", "letor", "lists.txt", "--out", "lists")
    for kind in ("cascade", "ranker"):
        run(directory, "train", f"{kind}.yaml", "--out", f"{kind}-run")
        interrupt(directory, "train", f"{kind}.yaml", "training.epochs=60", "--out", f"{kind}-stopped")
    run(directory, "compare", "comparison.yaml", "--out", "comparison")
    run(directory, "stream", "stream.yaml", "--out", "stream")
    run(directory, "export", "cascade-run", "--out", "bundle")
    (directory / "expected.json").write_text(json.dumps(answers(directory), indent=1) + "\n")


BCE = {"name": "bce", "min_depth": 0}


def answers(directory: Path) -> dict[str, Any]:
    """Return what this version makes of the artifacts."""
    import rankfall
    from rankfall.serving import Bundle

    ranking = Bundle.load(directory / "bundle").rank([REQUEST], k=3)[0]
    return {
        "rankfall": rankfall.__version__,
        "request": REQUEST,
        "items": list(map(str, ranking.ids)),
        "scores": list(map(float, ranking.scores)),
        **{
            f"{kind}-run": json.loads(run(directory, "evaluate", f"{kind}-run", "--json"))
            for kind in ("cascade", "ranker")
        },
    }


def run(directory: Path, *words: str) -> str:
    """Run the command line and return its standard output."""
    command = [sys.executable, "-m", "rankfall", *words]
    return subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True).stdout


def interrupt(directory: Path, *words: str) -> None:
    """Start a training run and stop it by SIGINT once it has written checkpoints, so that it can be resumed."""
    process = subprocess.Popen([sys.executable, "-m", "rankfall", *words], cwd=directory)
    checkpoints = directory / words[-1] / "checkpoints"
    deadline = time.monotonic() + 120
    while not checkpoints.is_dir() or len(list(checkpoints.iterdir())) < 3:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{' '.join(words)} ended before it could be stopped")
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait(60)


def write_rows(path: Path) -> None:
    """Write a raw full-stage log: 24 requests per day, 12 items per request, 30 items."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["request", "time", "user", "item", "stage", "rank", "brand", "price", "weight", "clicked"])
        for number in range(24 * len(DAYS)):
            moment = 1_705_104_000_000 + number // 24 * 86_400_000 + number % 24 * 3_600_000
            user = draw.randrange(8)
            for place, item in enumerate(draw.sample(range(30), 12)):
                stage, rank = ("ranked", place + 1) if place < 6 else ("matched", "")
                weight = "" if item % 7 == 0 else item / 10
                clicked = int((item % 8 == user and place < 6) or place == 0)
                writer.writerow(
                    [f"r{number}", moment, f"u{user}", f"i{item}", stage, rank, item % 5, item + 0.5, weight, clicked]
                )


def write_letor(path: Path) -> None:
    """Write 18 lists of 8 documents with 4 features."""
    draw = random.Random(1)
    with path.open("w") as file:
        for query in range(18):
            for _ in range(8):
                values = [round(draw.gauss(0, 1), 4) for _ in range(4)]
                label = max(0, min(2, round(values[0] + values[1])))
                file.write(f"{label} qid:{query} {' '.join(f'{i}:{v}' for i, v in enumerate(values, 1))}\n")


if __name__ == "__main__":
    os.environ.pop("RANKFALL_DATA", None)
    main(Path(sys.argv[1]).absolute())
