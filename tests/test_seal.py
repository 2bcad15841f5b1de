"""Damaged logs, ranking data and runs are noticed before anything is trained or measured on them."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rankfall as rf
from rankfall.data import ImpressionLoader, ImpressionLog, RankingData
from rankfall.data.impressions.log import LogWatcher
from rankfall.data.sources.letor.parse import Recipe
from rankfall.data.sources.letor.prepare_letor import prepare_letor
from rankfall.reporting.files import write_report
from rankfall.storage.manifests import SETTLED_NS, carried, check_file, note, once, seal, sealed, verification, verifies
from rankfall.studies.evaluate import evaluate_run
from rankfall.studies.workers import run_tasks
from rankfall.training.config.load_config import validate_any
from rankfall.training.methods import train
from rankfall.training.run_directory import read_config, read_lines, read_result, verify_run
from rankfall.training.train_cascade import load_run
from support.cascades import content
from support.logs import DAYS, random_log
from support.sealing import edit_manifest, seal_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Damage = Callable[[Path, Path], object]


def flip(place: float) -> Damage:
    """Return a damage of one bit at a share of the file."""

    def damage(file: Path, other: Path) -> None:
        written = bytearray(file.read_bytes())
        written[min(int(place * len(written)), len(written) - 1)] ^= 4
        file.write_bytes(written)

    return damage


def swap(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


DAMAGES: dict[str, Damage] = {
    "first byte": flip(0.0),
    "header": flip(0.1),
    "middle": flip(0.5),
    "offsets": flip(0.3),
    "footer": flip(0.95),
    "last byte": flip(1.0),
    "cut": lambda file, other: file.write_bytes(file.read_bytes()[:-2]),
    "half": lambda file, other: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "longer": lambda file, other: file.write_bytes(file.read_bytes() + bytes(8)),
    "gone": lambda file, other: file.unlink(),
    "empty": lambda file, other: file.write_bytes(b""),
    "zeros": lambda file, other: file.write_bytes(bytes(file.stat().st_size)),
    "of another": swap,
}


def check_all_noticed(file: Path, other: Path, read: Callable[[], object]) -> None:
    """Damage a file in every way: reading raises an error that names it and what to do, or a manifest is noted."""
    written = file.read_bytes()
    for name, damage in DAMAGES.items():
        damage(file, other)
        if file.exists() and file.read_bytes().strip() == written.strip():
            file.write_bytes(written)
            continue  # a manifest that says the same
        said: list[str] = []
        message = ""
        try:
            with verification(on_notice=said.append):
                read()
        except ValueError as error:
            message = str(error)
        if message or file.name != "manifest.json":
            assert str(file.parent) in message, (file, name)
            assert file.name in message or file.name == "manifest.json", (file, name)
        else:  # the key of the seal was damaged, or the manifest of a run is gone
            assert any("cannot be" in text for text in said), (file, name)
        file.write_bytes(written)
    with verification(on_notice=pytest.fail):
        read()


# --- logs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two logs of the same shape and other content."""
    place = tmp_path_factory.mktemp("logs")
    one = random_log(place / "one", impressions=6)
    two = random_log(place / "two", impressions=6, seed=7)
    return one.path, two.path


def read_log(path: Path) -> None:
    """Read what training, evaluation and a stream read before they use a log."""
    log = ImpressionLog.load(path)
    ImpressionLoader(log, list(DAYS), negatives=2)
    log.vocabulary("video")


def scan_log(path: Path) -> None:
    """Read a log as a stream does."""
    refused: list[str] = []
    log = LogWatcher(path, refused.append).scan()
    if refused:
        raise ValueError(refused[0])
    log.items()
    log.vocabulary("video")


@pytest.mark.parametrize("read", [read_log, scan_log])
def test_damages_of_a_log(logs: tuple[Path, Path], tmp_path: Path, read: Callable[[Path], None]) -> None:
    copy = shutil.copytree(logs[0], tmp_path / "log")
    files = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    assert len(files) == 2 + 2 * len(DAYS) + 1
    for file in files:
        check_all_noticed(copy / file, logs[1] / file, lambda: read(copy))


def test_days_that_change_places(logs: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(logs[0], tmp_path / "log")
    first, second = (copy / "days" / day for day in DAYS[:2])
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    for read in (read_log, scan_log):
        with pytest.raises(ValueError, match=rf"{DAYS[0]} has another checksum than .* lists; prepare the log again"):
            read(copy)


def test_only_days_that_are_used_are_read(logs: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(logs[0], tmp_path / "log")
    flip(0.5)(copy / "days" / DAYS[2] / "impressions.arrow", copy)
    flip(0.5)(copy / "items.arrow", copy)
    assert len(list(ImpressionLoader(copy, DAYS[:2]))) == 2
    with pytest.raises(ValueError, match=f"{DAYS[2]}/impressions.arrow has changed since it was written: its SHA-256"):
        ImpressionLoader(copy, DAYS[2])
    ImpressionLoader(ImpressionLog.load(copy, verify=False), DAYS[2])
    with verification(False):
        log = ImpressionLog.load(copy)
    log.items()  # which was decided when the log was opened
    with pytest.raises(ValueError, match=r"items\.arrow has changed"):
        log.verify()


# --- ranking data ---------------------------------------------------------------------------------------------------


def lists_text(seed: int) -> str:
    draw = random.Random(seed)
    rows = (
        f"{draw.randrange(3)} qid:{row // 5} 1:{draw.random():.3f} 2:{draw.random():.3f} # d{row}" for row in range(60)
    )
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("lists")
    for number in (1, 2):
        for split in "ab":
            (place / f"{split}{number}.txt").write_text(lists_text(10 * number + ord(split)))
        prepare_letor({split: [place / f"{split}{number}.txt"] for split in "ab"}, place / str(number), Recipe())
    return place / "1", place / "2"


def test_damages_of_ranking_data(lists: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(lists[0], tmp_path / "lists")
    for file in [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]:
        check_all_noticed(copy / file, lists[1] / file, lambda: [RankingData.load(copy)[split] for split in "ab"])


def test_only_splits_that_are_used_are_read(lists: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(lists[0], tmp_path / "lists")
    flip(0.9)(copy / "b" / "labels.npy", copy)
    data = RankingData.load(copy)
    assert data["a"].rows == 60
    with pytest.raises(ValueError, match=r"b/labels\.npy has changed .*; prepare the data again, or restore"):
        data["b"]
    assert RankingData.load(copy, verify=False)["b"].rows == 60


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("offsets.npy", np.arange(13) * 5 + np.eye(13, dtype=np.int64)[12] * 999, "is damaged: a list has no rows"),
        ("offsets.npy", np.array([0, 9, 5, *range(15, 65, 5)]), "is damaged: a list has no rows"),
        ("offsets.npy", np.array([-5, *range(5, 65, 5)]), "is damaged: a list has no rows"),
        ("offsets.npy", np.arange(0, 65, 5, dtype=np.int32), "has the type int32, expected int64"),
        ("labels.npy", np.zeros(61, np.float32), "has shape"),
        ("features.npy", np.zeros((60, 2)), "has the type float64, expected float32"),
        ("labels.npy", None, "is missing, damaged or truncated"),
        ("qids.arrow", None, "is missing, damaged or truncated"),
    ],
)
def test_forged_ranking_data(lists: tuple[Path, Path], tmp_path: Path, file: str, values: Any, message: str) -> None:
    copy = shutil.copytree(lists[0], tmp_path / "lists")
    if values is None:
        (copy / "a" / file).write_bytes(os.urandom(300))
    else:
        np.save(copy / "a" / file, values)
    seal_again(copy)
    with pytest.raises(ValueError, match=f"a/{file} {message}"):
        RankingData.load(copy)["a"]


# --- forged logs ----------------------------------------------------------------------------------------------------


def test_forged_logs_do_not_crash(logs: tuple[Path, Path], tmp_path: Path) -> None:
    """Random bytes with good checksums: the process survives, and errors are ValueErrors."""
    copy, draw, refused = shutil.copytree(logs[0], tmp_path / "log"), random.Random(0), 0
    files = [*(copy / "days" / day / "impressions.arrow" for day in DAYS[:1]), copy / "items.arrow"]
    for file in files:
        written = file.read_bytes()
        for _ in range(60):
            forged = bytearray(written)
            for _ in range(draw.choice([1, 2, 8])):
                forged[draw.randrange(len(forged))] = draw.choice([0, 1, 127, 128, 255])
            file.write_bytes(forged)
            seal_again(copy)
            try:
                for batch in ImpressionLoader(copy, DAYS[0], negatives=2, prefetch=0):
                    batch.grade.sum()
            except ValueError:
                refused += 1
        file.write_bytes(written)
    assert refused > 10


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(logs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    for number, log in enumerate(logs, 1):
        train(validate_any(content(log, training={"epochs": 1})), place / str(number))
    return place / "1", place / "2"


def read_run(run: Path) -> None:
    """Read what evaluation, report, resume and export read of a run."""
    config, _ = load_run(run)
    load_run(run, checkpoint="last")
    read_result(run)
    read_lines(run)
    verify_run(run, "data.json", "log.json")
    assert config.training.epochs == 1


def test_damages_of_a_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "run")
    listed = json.loads((copy / "manifest.json").read_text())["files"]
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert listed.keys() == files - {"manifest.json"}
    for file in sorted(files):
        check_all_noticed(copy / file, runs[1] / file, lambda: read_run(copy))


def test_commands_notice_damages(logs: tuple[Path, Path], runs: tuple[Path, Path], tmp_path: Path) -> None:
    """The functions behind `train`, `evaluate`, `report` and `export` raise before they write anything."""
    log, run = shutil.copytree(logs[0], tmp_path / "log"), shutil.copytree(runs[0], tmp_path / "run")
    for day in DAYS:
        flip(0.6)(log / "days" / day / "impressions.arrow", log)
    with pytest.raises(ValueError, match=r"impressions\.arrow has changed since it was written"):
        rf.train(content(log), tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match=r"impressions\.arrow has changed since it was written"):
        rf.evaluate(run, data=log, progress=False)
    flip(0.5)(run / "checkpoints" / "best.safetensors", run)
    with pytest.raises(ValueError, match=r"best\.safetensors has changed .*; train the run again"):
        evaluate_run(run)
    flip(0.5)(run / "metrics.jsonl", run)
    with pytest.raises(ValueError, match=r"metrics\.jsonl has changed"):
        write_report(run)
    assert not (tmp_path / "out").exists()
    assert not (run / "evaluation.json").exists()


def test_a_run_that_is_trained_has_only_files_that_stay_in_its_manifest(
    logs: tuple[Path, Path], tmp_path: Path
) -> None:
    seen = []

    def look(step: Any) -> None:
        seen.append(sorted(json.loads((tmp_path / "run" / "manifest.json").read_text())["files"]))

    train(validate_any(content(logs[0], training={"epochs": 2, "batch": 6})), tmp_path / "run", progress=look)
    assert seen == [["config.yaml", "data.json", "log.json"]] * 2
    # a finished run that is started again, and killed before the manifest is there
    (tmp_path / "run" / "manifest.json").unlink()
    said: list[str] = []
    with verification(on_notice=said.append):
        read_config(tmp_path / "run")
        read_config(tmp_path / "run")
    assert said == [f"{tmp_path / 'run'} has no manifest.json: its files cannot be verified"]


# --- the functions --------------------------------------------------------------------------------------------------


def test_a_seal_does_not_depend_on_the_order_of_keys() -> None:
    content = {"b": (1, 2), "a": {"x": 0.5, "y": None}}
    manifest = sealed(content)
    assert manifest["b"] == [1, 2]
    assert seal(dict(reversed(manifest.items()))) == manifest["sha256"] == seal(content)
    assert seal(manifest | {"a": {}}) != manifest["sha256"]
    assert sealed({"sha256": "of a file"}, "seal")["sha256"] == "of a file"


def test_a_file_is_read_once_and_again_after_it_changed(tmp_path: Path) -> None:
    file, calls = tmp_path / "file", 0

    def check() -> None:
        nonlocal calls
        calls += 1

    file.write_bytes(b"a")
    for _ in range(2):  # it may change again within the resolution of its times
        once(("test",), file, check)
    assert calls == 2
    old = file.stat().st_mtime_ns - 10 * SETTLED_NS

    def settle() -> None:
        os.utime(file, ns=(old, old))
        while time.time_ns() - file.stat().st_ctime_ns <= 2 * SETTLED_NS:
            pass

    settle()
    for _ in range(3):
        once(("test",), file, check)
    assert calls == 3
    file.write_bytes(b"b")  # of the same size
    settle()  # and with the same time of modification
    once(("test",), file, check)
    assert calls == 4
    with pytest.raises(ValueError, match=f"{tmp_path / 'none'} is missing; do something"):
        check_file(tmp_path / "none", "0", remedy="do something")


def what_a_worker_does(task: int) -> bool:
    note("nobody receives this")
    return verifies()


def test_workers_verify_if_their_parent_does() -> None:
    assert carried(what_a_worker_does)(0)
    with verification(False):
        assert not verifies()
        with verification(True):
            assert not verifies()  # it holds for everything inside
        assert not carried(what_a_worker_does)(0)
        work = carried(what_a_worker_does)
    assert verifies()
    assert [value for _, value in run_tasks(work, [0])] == [False]


def test_notes_are_passed_on_once() -> None:
    said: list[str] = []
    with verification(on_notice=said.append):
        note("a")
        with verification():
            note("a")
            note("b")
    assert said == ["a", "b"]
    with pytest.warns(UserWarning, match="c"):
        note("c")


def test_a_forged_manifest_of_a_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "run")
    edit_manifest(copy / "manifest.json", version=99)
    with pytest.raises(ValueError, match="was written in format version 99, this release reads version 1"):
        read_config(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not the manifest of a run"):
        read_config(copy)
    with verification(False):
        read_config(copy)
