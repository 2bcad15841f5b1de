"""Which lists an experiment runs on: a benchmark in its published layout, prepared data, sets at hand, generated ones.

Whatever they are, they become prepared data and folds that say what is trained, validated and tested on. Experiments
with cascades run on impressions, see `logs`.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankfall._suggest import did_you_mean
from rankfall.data import RankingData, Recipe, prepare_letor
from rankfall.data.impressions.log import is_log
from rankfall.data.lists.ranking_data import is_prepared
from rankfall.reproductions.planted import Planted, plant, write_letor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.reproductions.task import Size

VARIABLE = "RANKFALL_DATA"
GENERATED = "generated"
PARTS = 5  # of a set without splits of its own
VALIDATION, TEST = 0.4, 0.6  # lists of generated data, for each one of the training split

_TEXT = r"(?:\.txt)?(?:\.gz|\.xz|\.zst)?"
_ROLES = {"train": "train", "valid": "vali(?:d|dation)?|val|dev", "test": "test"}
_KNOWN = {"mslr_sample": "MSLR sample", "mq2007": "MQ2007", "clueweb09": "ClueWeb09"}  # directories under VARIABLE


@dataclass(frozen=True, slots=True)
class Origin:
    """Where data come from: text files by split, a directory, or nowhere (generated lists, a simulated platform)."""

    name: str
    kind: Literal["text", "prepared", "generated", "log", "recflow", "simulated"]
    files: dict[str, Path]  # by split, if they are text
    path: Path | None = None  # if they are a directory


@dataclass(frozen=True, slots=True)
class DataSet:
    """Prepared data with their folds."""

    name: str
    path: Path
    folds: dict[str, dict[str, list[str]]]  # of each fold: train, valid, test -> splits
    features: int
    train_lists: int  # of the first fold
    test_lists: int  # of all folds
    planted: Planted | None = None  # the test split with its utilities, if generated

    @property
    def about(self) -> str:
        """In words."""
        folds = f"{len(self.folds)} fold{'s' * (len(self.folds) > 1)}"
        return f"{self.name}: {self.train_lists:,} lists to train on, {self.test_lists:,} tested, in {folds}."

    def summary(self) -> dict[str, Any]:
        """What the report says of the data."""
        return {
            "name": self.name,
            "about": self.about,
            "features": self.features,
            "folds": self.folds,
            "train_lists": self.train_lists,
            "test_lists": self.test_lists,
        }


# --- finding ------------------------------------------------------------------------------------------------------


def find(wanted: str | None) -> Origin:
    """The data of that path or name; without one, the MSLR sample at hand, or generated data.

    What cannot be found is a `ValueError` that says what was looked for.
    """
    if wanted is None:
        path = _at_hand("mslr_sample")
        return Origin(GENERATED, "generated", {}) if path is None else _from_directory(path, _KNOWN["mslr_sample"])
    if wanted == GENERATED:
        return Origin(GENERATED, "generated", {})
    path = Path(wanted).expanduser()
    if path.exists():
        return _from_directory(path, path.resolve().name) if path.is_dir() else _from_file(path)
    if wanted not in _KNOWN:
        hint = did_you_mean(wanted, [*_KNOWN, GENERATED])
        raise ValueError(f"{wanted} is not there{hint}; expected a path, {', '.join(_KNOWN)} or {GENERATED}")
    at_hand = _at_hand(wanted)
    if at_hand is None:
        raise ValueError(
            f"{wanted} is not there: {VARIABLE} must name a directory that holds it, and is {_shown_variable()}"
        )
    return _from_directory(at_hand, _KNOWN[wanted])


def _at_hand(name: str) -> Path | None:
    root = os.environ.get(VARIABLE)
    path = Path(root) / name if root else None
    return path if path is not None and path.is_dir() else None


def _shown_variable() -> str:
    return repr(os.environ[VARIABLE]) if VARIABLE in os.environ else "not set"


def _from_file(path: Path) -> Origin:
    return Origin(path.name, "text", {"all": path})


def _from_directory(path: Path, name: str) -> Origin:
    if is_prepared(path):
        return Origin(name, "prepared", {}, path)
    if is_log(path):
        raise ValueError(f"{path} is an impression log, but this experiment takes ranking lists (see --list)")
    for directory in (path, path / "Fold1", path / "full", path / "sample"):
        for before in ("", r"set1\."):
            files = _matching(directory, {role: f"{before}(?:{words})" for role, words in _ROLES.items()})
            if {"train", "test"} <= files.keys():
                return Origin(name, "text", files)
    parts = _matching(path, {f"S{i}": rf"(?:features46_)?(?:S|fold){i}" for i in range(1, PARTS + 1)})
    if len(parts) == PARTS:
        return Origin(name, "text", parts)
    single = _matching(path, {"all": re.escape(path.name)})
    if single:
        return Origin(name, "text", single)
    raise ValueError(
        f"{path} is neither prepared data nor a benchmark in its published layout; looked for Fold1/train.txt "
        "(MSLR-WEB), set1.train.txt (Yahoo), full/train.txt or sample/train.txt (Istella), train.txt, S1.txt to S5.txt"
    )


def _matching(directory: Path, patterns: dict[str, str]) -> dict[str, Path]:
    """The files whose names match, case aside, plain or packed."""
    if not directory.is_dir():
        return {}
    entries = sorted(entry for entry in directory.iterdir() if entry.is_file())
    found = {}
    for role, pattern in patterns.items():
        whole = re.compile(pattern + _TEXT, re.IGNORECASE)
        if matches := [entry for entry in entries if whole.fullmatch(entry.name)]:
            found[role] = matches[0]
    return found


# --- preparing ----------------------------------------------------------------------------------------------------


def prepare(origin: Origin, recipe: Recipe, cache: Path, *, size: Size, seed: int) -> DataSet:
    """Prepare the data under `cache`, unless they are there already, and lay out their folds."""
    recipe = replace(recipe, seed=seed)
    planted = None
    if origin.kind == "prepared":
        assert origin.path is not None
        data = RankingData.load(origin.path)
    elif origin.kind == "generated":
        data, planted = _generate(recipe, cache, size.generated_lists, seed)
    else:
        data = _prepared(origin.files, cache / _directory_name(origin.name), recipe)
    folds = _folds(data, size)
    first = next(iter(folds.values()))
    return DataSet(
        name=origin.name,
        path=data.path,
        folds=folds,
        features=data.features,
        train_lists=sum(len(data[split]) for split in first["train"]),
        test_lists=sum(len(data[split]) for fold in folds.values() for split in fold["test"]),
        planted=planted,
    )


def _generate(recipe: Recipe, cache: Path, lists: int, seed: int) -> tuple[RankingData, Planted]:
    name = f"{GENERATED}-{lists}-{seed}"
    shares = {"train": 1.0, "valid": VALIDATION, "test": TEST}
    split_seeds = {"train": 3 * seed, "valid": 3 * seed + 1, "test": 3 * seed + 2}
    split = {role: plant(max(2, round(lists * share)), split_seeds[role]) for role, share in shares.items()}
    files = {role: cache / f"{name}.{role}.txt" for role in shares}
    # lists are neither short nor long, so that all of them, and their utilities, stay as they are
    recipe = replace(recipe, min_list=1, max_list=None)
    data = _cached(files, cache / name, recipe)
    if data is None:
        cache.mkdir(parents=True, exist_ok=True)
        for role, file in files.items():
            write_letor(split[role], file)
        data = _prepared(files, cache / name, recipe)
    return data, split["test"]


def _prepared(files: dict[str, Path], out: Path, recipe: Recipe) -> RankingData:
    cached = _cached(files, out, recipe)
    if cached is not None:
        return cached
    return prepare_letor({name: [path] for name, path in files.items()}, out, recipe, threads=2, force=True)


def _cached(files: dict[str, Path], out: Path, recipe: Recipe) -> RankingData | None:
    """What was prepared before from the same files by the same recipe."""
    if not is_prepared(out):
        return None
    data = RankingData.load(out)
    stored = {name: about["sources"][0] for name, about in data.manifest["splits"].items()}
    found = {name: (source["path"], source["bytes"]) for name, source in stored.items()}
    expected = {name: (str(path), path.stat().st_size if path.exists() else -1) for name, path in files.items()}
    return data if found == expected and data.manifest["recipe"] == _as_stored(recipe) else None


def _as_stored(recipe: Recipe) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(recipe).items()}


def _directory_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


# --- folds --------------------------------------------------------------------------------------------------------


def _folds(data: RankingData, size: Size) -> dict[str, dict[str, list[str]]]:
    """Folds until enough lists are tested: one if the data have splits for it, else those of cross-validation."""
    found: dict[str, dict[str, list[str]]] = {}
    tested = 0
    for name, fold in _all_folds(data):
        fold = {role: _first_lists(data, splits, size.lists) for role, splits in fold.items()}
        found[name] = fold
        tested += sum(len(data[split]) for split in fold["test"])
        if tested >= size.test_lists:
            break
    return found


def _all_folds(data: RankingData) -> list[tuple[str, dict[str, list[str]]]]:
    names = list(data)
    by_role = {role: [name for name in names if re.fullmatch(words, name)] for role, words in _ROLES.items()}
    if by_role["train"] and by_role["test"]:
        if by_role["valid"]:
            return [("given", by_role)]
        parts = [f"{name}:{i}/{PARTS}" for name in by_role["train"] for i in range(1, PARTS + 1)]
        held_out = parts[PARTS - 1 :: PARTS]
        return [("given", by_role | {"train": [part for part in parts if part not in held_out], "valid": held_out})]
    parts = names if len(names) >= 3 else [f"{name}:{i}/{PARTS}" for name in names for i in range(1, PARTS + 1)]
    return [(f"fold{i + 1}", _cyclic(parts, i)) for i in range(len(parts))]


def _cyclic(parts: Sequence[str], start: int) -> dict[str, list[str]]:
    """As in LETOR: the last part tests, the one before it validates, and the next fold starts one further."""
    turned = [*parts[start:], *parts[:start]]
    return {"train": turned[:-2], "valid": [turned[-2]], "test": [turned[-1]]}


def _first_lists(data: RankingData, splits: list[str], limit: int | None) -> list[str]:
    """As many splits as make up the limit, or the first part of the first one."""
    if limit is None:
        return splits
    first = splits[0]
    if ":" not in first and len(data[first]) > limit:
        return [f"{first}:1/{len(data[first]) // limit}"]
    counts = list(itertools.accumulate(len(data[split]) for split in splits))
    return splits[: sum(count < limit for count in counts) + 1]
