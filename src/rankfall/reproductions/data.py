"""Data of a reproduction: ranking lists with folds, or a log with days for training, validation and test.

Lists are a benchmark in its published layout, prepared data, a known set, or generated lists whose ideal order is
known: the first six features of a document determine its utility

.. math:: u = x_1 + x_2 x_3 + \\sin 3 x_4 - |x_5| + x_6 [x_1 > 0]

and the others are noise. Its grade, 0 to 4, is a quantile of the utility plus two unobserved terms: noise per document
and a shift per list, so that lists differ in their number of relevant documents. The order by utility is the best that
a ranker can learn; its metrics are those of the oracle. Impressions are a prepared log, RecFlow's directory, or a
simulated platform.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from rankfall._errors import RankfallError, did_you_mean
from rankfall.data import RankingData, Recipe, prepare_letor
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.lists.ranking_data import is_prepared
from rankfall.data.sources.recflow import ROWS, prepare_recflow
from rankfall.simulation.presets import preset_of
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.storage.disk import make_directory
from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.reproductions.task import Size

    Progress = Callable[[str, int, int], None]

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


VARIABLE = "RANKFALL_DATA"
GENERATED = "generated"
PARTS = 5  # of a set without splits
VALIDATION, TEST = 0.4, 0.6  # generated lists per training list

_TEXT = r"(?:\.txt)?(?:\.gz|\.xz|\.zst)?"
_ROLES = {"train": "train", "valid": "vali(?:d|dation)?|val|dev", "test": "test"}
_KNOWN_SETS = {
    "mslr_sample": "MSLR sample",
    "mq2007": "MQ2007",
    "clueweb09": "ClueWeb09",
}  # directories in $RANKFALL_DATA


@dataclass(frozen=True, slots=True)
class DataSource:
    """Where the data of a reproduction come from.

    Attributes:
        name: Name of the data in reports.
        kind: Files in LETOR format, prepared lists, generated lists, a log, RecFlow's directory, a simulated platform,
            or none.
        files: Files in LETOR format by split.
        path: Directory of prepared lists, of a log, or of RecFlow.
    """

    name: str
    kind: Literal["text", "prepared", "generated", "log", "recflow", "simulated", "none"]
    files: dict[str, Path]
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class ListData:
    """Prepared lists with their folds.

    Attributes:
        name: Name in reports.
        path: Directory of the prepared data.
        folds: For each fold, the splits for train, valid and test.
        features: Number of features.
        train_lists: Training lists of the first fold.
        test_lists: Test lists of all folds.
        generated: The test split with its utilities, if the lists are generated.
    """

    name: str
    path: Path
    folds: dict[str, dict[str, list[str]]]
    features: int
    train_lists: int
    test_lists: int
    generated: GeneratedLists | None = None

    @property
    def description(self) -> str:
        """The data in a sentence."""
        folds = f"{len(self.folds)} fold{'s' * (len(self.folds) > 1)}"
        return f"{self.name}: {self.train_lists:,} lists to train on, {self.test_lists:,} tested, in {folds}."

    def summary(self) -> dict[str, Any]:
        """Description of the data in ``results.json``."""
        return {
            "name": self.name,
            "about": self.description,
            "features": self.features,
            "folds": self.folds,
            "train_lists": self.train_lists,
            "test_lists": self.test_lists,
        }


# --- finding ------------------------------------------------------------------------------------------------------


def find_lists(wanted: str | None) -> DataSource:
    """Find the lists of a path or name. None: the MSLR sample in ``$RANKFALL_DATA``, or generated lists without it.

    Raises:
        ValueError: There are no such lists; the message states what was expected.
    """
    if wanted is None:
        sample = _known_directory("mslr_sample")
        if sample is not None:
            return _from_directory(sample, _KNOWN_SETS["mslr_sample"])
        wanted = GENERATED
    if wanted == GENERATED:
        return DataSource(GENERATED, "generated", {})
    path = Path(wanted).expanduser()
    if path.exists():
        is_file = not path.is_dir()
        return DataSource(path.name, "text", {"all": path}) if is_file else _from_directory(path, path.resolve().name)
    if wanted not in _KNOWN_SETS:
        hint = did_you_mean(wanted, [*_KNOWN_SETS, GENERATED])
        raise RankfallError(f"{wanted} does not exist{hint}; expected a path, {', '.join(_KNOWN_SETS)} or {GENERATED}")
    known = _known_directory(wanted)
    if known is None:
        found = repr(os.environ[VARIABLE]) if VARIABLE in os.environ else "not set"
        raise RankfallError(
            f"{wanted} is not available: {VARIABLE} must name a directory that contains it, and is {found}"
        )
    return _from_directory(known, _KNOWN_SETS[wanted])


def _known_directory(name: str) -> Path | None:
    root = os.environ.get(VARIABLE)
    path = Path(root) / name if root else None
    return path if path is not None and path.is_dir() else None


def _from_directory(path: Path, name: str) -> DataSource:
    if is_prepared(path):
        return DataSource(name, "prepared", {}, path)
    if is_log(path):
        raise RankfallError(f"{path} is an impression log, but this reproduction takes ranking lists (see --list)")
    for directory in (path, path / "Fold1", path / "full", path / "sample"):
        for before in ("", r"set1\."):
            files = _matching(directory, {role: f"{before}(?:{words})" for role, words in _ROLES.items()})
            if {"train", "test"} <= files.keys():
                return DataSource(name, "text", files)
    parts = _matching(path, {f"S{i}": rf"(?:features46_)?(?:S|fold){i}" for i in range(1, PARTS + 1)})
    if len(parts) == PARTS:
        return DataSource(name, "text", parts)
    single = _matching(path, {"all": re.escape(path.name)})
    if single:
        return DataSource(name, "text", single)
    raise RankfallError(
        f"{path} is neither prepared data nor a benchmark in its published layout; looked for Fold1/train.txt "
        "(MSLR-WEB), set1.train.txt (Yahoo), full/train.txt or sample/train.txt (Istella), train.txt, S1.txt to S5.txt"
    )


def _matching(directory: Path, patterns: dict[str, str]) -> dict[str, Path]:
    """The files whose names match, in any case, compressed or not."""
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


def prepare_lists(source: DataSource, recipe: Recipe, cache: Path, *, size: Size, seed: int) -> ListData:
    """Prepare the data in `cache`, unless they are already, and assign their folds."""
    recipe = replace(recipe, seed=seed)
    generated = None
    if source.kind == "prepared":
        assert source.path is not None
        data = RankingData.load(source.path)
    elif source.kind == "generated":
        data, generated = _generate(recipe, cache, size.generated_lists, seed)
    else:
        data = _prepared(source.files, cache / re.sub(r"[^A-Za-z0-9_.-]+", "-", source.name), recipe)
    folds = _folds(data, size)
    first = next(iter(folds.values()))
    return ListData(
        name=source.name,
        path=data.path,
        folds=folds,
        features=data.features,
        train_lists=sum(len(data[split]) for split in first["train"]),
        test_lists=sum(len(data[split]) for fold in folds.values() for split in fold["test"]),
        generated=generated,
    )


def _generate(recipe: Recipe, cache: Path, lists: int, seed: int) -> tuple[RankingData, GeneratedLists]:
    name = f"{GENERATED}-{lists}-{seed}"
    shares = {"train": 1.0, "valid": VALIDATION, "test": TEST}
    split_seeds = {"train": 3 * seed, "valid": 3 * seed + 1, "test": 3 * seed + 2}
    split = {role: generate_lists(max(2, round(lists * share)), split_seeds[role]) for role, share in shares.items()}
    files = {role: cache / f"{name}.{role}.txt" for role in shares}
    # no list is dropped or cut, so that rows correspond to utilities
    recipe = replace(recipe, min_list=1, max_list=None)
    data = _cached(files, cache / name, recipe)
    if data is None:
        make_directory(cache)
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
    """The data in `out`, if they were prepared from the same files by the same recipe."""
    if not is_prepared(out):
        return None
    data = RankingData.load(out)
    stored = {name: split["sources"][0] for name, split in data.manifest["splits"].items()}
    found = {name: (source["path"], source["bytes"]) for name, source in stored.items()}
    expected = {name: (str(path), path.stat().st_size if path.exists() else -1) for name, path in files.items()}
    stored_recipe = json.loads(json.dumps(asdict(recipe)))  # with lists instead of tuples
    return data if found == expected and data.manifest["recipe"] == stored_recipe else None


# --- folds --------------------------------------------------------------------------------------------------------


def _folds(data: RankingData, size: Size) -> dict[str, dict[str, list[str]]]:
    """Folds until enough lists are tested: a single one if the data have splits, else those of cross-validation."""
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
    """A fold as in LETOR: the last part is the test, the one before it validation; the next fold is shifted by one."""
    rotated = [*parts[start:], *parts[:start]]
    return {"train": rotated[:-2], "valid": [rotated[-2]], "test": [rotated[-1]]}


def _first_lists(data: RankingData, splits: list[str], limit: int | None) -> list[str]:
    """The first splits that together have `limit` lists, or a part of the first one if that is larger."""
    if limit is None:
        return splits
    first = splits[0]
    if ":" not in first and len(data[first]) > limit:
        return [f"{first}:1/{len(data[first]) // limit}"]
    counts = list(itertools.accumulate(len(data[split]) for split in splits))
    return splits[: sum(count < limit for count in counts) + 1]


Day = TypeVar("Day")

SIMULATED = "simulated"
MIN_DAYS = 3  # training, validation, test
_EXPECTED = (
    "an impression log (a directory made by 'rankfall simulate' or 'rankfall prepare'), RecFlow's directory with "
    f"{ROWS}/, or {SIMULATED}"
)


@dataclass(frozen=True, slots=True)
class LogData:
    """A log and the use of its days.

    Attributes:
        name: Name in reports.
        path: Directory of the log.
        train: Training days.
        valid: Validation day.
        test: Test day.
        train_impressions: Impressions of the training days.
        test_impressions: Impressions of the test day.
        items: Mean number of items per impression.
        depths: Number of stages that the log distinguishes.
        sequences: Whether it has behaviour sequences.
    """

    name: str
    path: Path
    train: tuple[str, ...]
    valid: str
    test: str
    train_impressions: int
    test_impressions: int
    items: float
    depths: int
    sequences: bool

    @property
    def description(self) -> str:
        """The data in a sentence."""
        days = f"{len(self.train)} day{'s' * (len(self.train) > 1)}"
        return (
            f"{self.name}: {self.train_impressions:,} impressions of {days} to train on, {self.test_impressions:,} "
            f"tested, lists of {self.items:.4g} items."
        )

    @property
    def roles(self) -> dict[str, str]:
        """The days as configurations specify them."""
        return {"train": f"{self.train[0]}..{self.train[-1]}", "valid": self.valid, "test": self.test}

    def summary(self) -> dict[str, Any]:
        """Description of the data in ``results.json``."""
        return {**asdict(self), "path": str(self.path), "about": self.description}


# --- finding ------------------------------------------------------------------------------------------------------


def find_log(wanted: str | None) -> DataSource:
    """Find the log at a path. None: a platform is simulated.

    Raises:
        ValueError: The path does not exist or is not a log; the message states what was expected.
    """
    if wanted is None or wanted == SIMULATED:
        return DataSource(SIMULATED, "simulated", {})
    path = Path(wanted).expanduser()
    if not path.exists():
        raise RankfallError(f"{wanted} does not exist{did_you_mean(wanted, [SIMULATED])}; expected {_EXPECTED}")
    name = path.resolve().name
    if is_log(path):
        return DataSource(name, "log", {}, path)
    if (path / ROWS).is_dir():
        return DataSource(name, "recflow", {}, path)
    found = "holds prepared ranking lists" if is_prepared(path) else "is not an impression log"
    raise RankfallError(f"{path} {found}, but this reproduction takes impressions (see --list); expected {_EXPECTED}")


# --- preparing ----------------------------------------------------------------------------------------------------


def prepare_log(
    source: DataSource, platform: str, cache: Path, *, size: Size, seed: int, progress: Progress = lambda *step: None
) -> LogData:
    """Simulate the platform or prepare RecFlow in `cache`, unless that is done already, and assign the days."""
    if source.kind == "simulated":
        return _with_roles(_simulated(platform, cache, size, seed, progress), platform, size)
    assert source.path is not None
    if source.kind == "recflow":
        return _with_roles(_from_recflow(source.path, platform, cache, size, seed, progress), source.name, size)
    return _with_roles(ImpressionLog.load(source.path), source.name, size)


def _simulated(platform: str, cache: Path, size: Size, seed: int, progress: Progress) -> ImpressionLog:
    preset = preset_of(platform)
    days, requests = size.days or preset.days, size.requests or preset.requests_per_day
    simulation = Simulation(preset=platform, days=days, requests_per_day=requests, seed=seed)
    out = cache / f"{platform}-{days}x{requests}-{seed}"
    if is_log(out):
        return ImpressionLog.load(out)
    served = 0

    def on_requests(count: int) -> None:
        nonlocal served
        served += count
        progress(f"simulating {platform}", served, days * requests)

    return simulate_log(simulation, out, on_requests=on_requests)


def _from_recflow(source: Path, platform: str, cache: Path, size: Size, seed: int, progress: Progress) -> ImpressionLog:
    stages: Literal[2, 3] = 3 if len(preset_of(platform).sample) == 5 else 2  # of the cascade that is trained
    files = _last(sorted((source / ROWS).glob("*.feather")), size.days)
    out = cache / f"recflow-{stages}-{len(files)}-{seed}"
    if is_log(out):
        log = ImpressionLog.load(out)
        if [one["path"] for one in log.manifest["about"]["sources"]] == [str(file) for file in files]:
            return log
    return prepare_recflow(
        source,
        out,
        stages=stages,
        days=f"{files[0].stem}..{files[-1].stem}" if files else None,  # which raises the error
        seed=seed,
        force=True,
        on_progress=lambda step, done, total: progress(step, done, total or done),
    )


def _with_roles(log: ImpressionLog, name: str, size: Size) -> LogData:
    """Use the last day for test, the one before it for validation, and earlier days for training, in order."""
    days = _last(list(log.days), size.days)
    if len(days) < MIN_DAYS:
        raise RankfallError(
            f"{log.path} has {len(days)} day{'s' * (len(days) != 1)}, expected at least {MIN_DAYS}: one each for "
            "training, validation and test"
        )
    *train, valid, test = days
    tested = log.days[test]
    return LogData(
        name=name,
        path=log.path,
        train=tuple(train),
        valid=valid,
        test=test,
        train_impressions=sum(len(log.days[day]) for day in train),
        test_impressions=len(tested),
        items=tested.manifest["items"] / max(1, len(tested)),
        depths=len(log.spec.stages),
        sequences=bool(log.spec.sequences),
    )


def _last(days: list[Day], count: int | None) -> list[Day]:
    return days if count is None else days[-count:]
