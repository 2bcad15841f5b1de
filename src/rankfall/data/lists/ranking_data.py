"""Prepared ranking data: lists of documents with features and labels, in files that are mapped into memory.

A directory holds ``manifest.json`` and one directory a split with

================  =========================  ==============================================================
``features.npy``  float32 (rows, features)   the rows of one list stand together
``labels.npy``    float32 (rows,)
``offsets.npy``   int64 (lists + 1,)         list i is the rows from ``offsets[i]`` up to ``offsets[i + 1]``
``moments.npy``   float64 (3, features)      rows, mean, sum of squared deviations: what standardising needs
``qids.arrow``    Arrow strings (lists,)
``docids.arrow``  Arrow strings (rows,)      only if the source had comments
================  =========================  ==============================================================

The manifest is written last and the directory gets its name after that: a directory with a manifest is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._files import checksum
from rankfall._manifest import MANIFEST, has_format, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

FORMAT = "rankfall ranking data"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Moments:
    """Number of rows, and mean and sum of squared deviations of each feature. Those of parts add up."""

    rows: float
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[Any]) -> Moments:
        """The moments of (rows, features)."""
        values = features.astype(np.float64)
        if len(values) == 0:
            return cls(0.0, np.zeros(values.shape[1]), np.zeros(values.shape[1]))
        mean = values.mean(axis=0)
        values -= mean
        return cls(float(len(values)), mean, np.einsum("rf,rf->f", values, values))

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of rows together (Chan, Golub and LeVeque, 1983)."""
        rows = self.rows + other.rows
        if rows == 0:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.rows / rows)
        squares = self.squares + other.squares + apart**2 * (self.rows * other.rows / rows)
        return Moments(rows, mean, squares)

    def scaling(self) -> Scaling:
        """The scaling that gives these rows mean 0 and variance 1."""
        deviation = np.sqrt(self.squares / max(self.rows, 1.0))
        # rounding leaves a constant feature a deviation of some 1e-16 of its mean, which must not be blown up
        constant = deviation <= 1e-12 * np.abs(self.mean)
        return Scaling(self.mean, np.where(constant, 1.0, deviation))

    def scaled(self, scaling: Scaling) -> Moments:
        """The moments of the scaled rows."""
        return Moments(self.rows, (self.mean - scaling.mean) / scaling.deviation, self.squares / scaling.deviation**2)

    def to_array(self) -> NDArray[np.float64]:
        """As stored: (3, features)."""
        return np.stack([np.full_like(self.mean, self.rows), self.mean, self.squares])

    @classmethod
    def from_array(cls, array: NDArray[np.float64]) -> Moments:
        """As stored: (3, features)."""
        return cls(float(array[0, 0]) if array.size else 0.0, array[1], array[2])


@dataclass(frozen=True, slots=True)
class Scaling:
    """Standardisation: (features - mean) / deviation."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def __call__(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Scale (rows, features), computed in float64."""
        scaled: NDArray[np.float32] = ((features - self.mean) / self.deviation).astype(np.float32)
        return scaled


@dataclass(frozen=True, slots=True)
class RankingSplit:
    """The lists of one split; every array is mapped from disk and read-only."""

    name: str
    features: NDArray[np.float32]  # (rows, features)
    labels: NDArray[np.float32]  # (rows,)
    offsets: NDArray[np.int64]  # (lists + 1,)
    qids: pa.ChunkedArray  # (lists,) strings
    docids: pa.ChunkedArray | None  # (rows,) strings, empty where a row had no comment
    moments: Moments

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.offsets) - 1

    @property
    def rows(self) -> int:
        """The number of documents of all lists."""
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class RankingData:
    """Prepared ranking data (see ``rankfall prepare letor``): splits by name.

    ``RankingData.load("mslr")["train"].features`` is an array (rows, features) mapped from disk.
    """

    path: Path
    manifest: dict[str, Any]
    splits: dict[str, RankingSplit]

    def __repr__(self) -> str:
        """One line: what there is, not what is in it."""
        parts = ", ".join(f"{name} {len(split):,} lists" for name, split in self.splits.items())
        return f"RankingData({self.path}: {parts})"

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> RankingData:
        """Open a prepared directory; with `verify` its files are read and compared with their checksums."""
        path = Path(path)
        kind = "prepared ranking data (see 'rankfall prepare letor --help')"
        manifest = read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again")
        if verify:
            _verify(path, manifest)
        splits = {name: _load_split(path / name, name, manifest) for name in manifest["splits"]}
        return cls(path, manifest, splits)

    def __getitem__(self, name: str) -> RankingSplit:
        """The split of that name; ``name:2/5`` is the second of five parts of its lists, in their order."""
        whole, colon, part = name.partition(":")
        if whole not in self.splits:
            raise ValueError(f"split: {self.path} has no split {whole!r}; it has {', '.join(self.splits)}")
        return _part(self.splits[whole], part) if colon else self.splits[whole]

    def __iter__(self) -> Iterator[str]:
        """The names of the splits."""
        return iter(self.splits)

    @property
    def features(self) -> int:
        """The number of features."""
        columns: int = self.manifest["features"]["columns"]
        return columns

    def scaling(self, train: Iterable[str]) -> Scaling:
        """Standardisation fitted on the splits `train`, and on nothing else; no row is read for it."""
        moments = [self[name].moments for name in train]
        if not moments:
            raise ValueError("train: at least one split is needed to fit a standardisation, got none")
        return sum(moments[1:], start=moments[0]).scaling()


def is_prepared(path: Path) -> bool:
    """Whether a directory holds prepared ranking data of any version."""
    return has_format(path / MANIFEST, FORMAT)


def _verify(path: Path, manifest: dict[str, Any]) -> None:
    for file, expected in manifest["files"].items():
        if checksum(path / file) != expected:
            raise ValueError(f"path: {path / file} has changed since it was written (its checksum differs)")


def _load_split(directory: Path, name: str, manifest: dict[str, Any]) -> RankingSplit:
    about = manifest["splits"][name]
    lists, rows, columns = about["lists"], about["rows"], manifest["features"]["columns"]
    return RankingSplit(
        name=name,
        features=_load_array(directory / "features.npy", (rows, columns)),
        labels=_load_array(directory / "labels.npy", (rows,)),
        offsets=_load_array(directory / "offsets.npy", (lists + 1,)),
        qids=_load_strings(directory / "qids.arrow", lists),
        docids=_load_strings(directory / "docids.arrow", rows) if about["docids"] else None,
        moments=Moments.from_array(_load_array(directory / "moments.npy", (3, columns))),
    )


def _part(split: RankingSplit, part: str) -> RankingSplit:
    """One of so many parts of a split, with as many lists as the others or one more."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= len(split)):
        raise ValueError(
            f"split: {split.name}:{part} names no part of {split.name!r}; its {len(split)} lists have the parts "
            f"{split.name}:1/n to {split.name}:n/n"
        )
    first, last = (len(split) * i // int(count) for i in (int(number) - 1, int(number)))
    rows = slice(split.offsets[first], split.offsets[last])
    return RankingSplit(
        name=f"{split.name}:{part}",
        features=split.features[rows],
        labels=split.labels[rows],
        offsets=split.offsets[first : last + 1] - split.offsets[first],
        qids=split.qids[first:last],
        docids=None if split.docids is None else split.docids[rows],
        moments=Moments.of(split.features[rows]),
    )


def _load_array(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    _check_shape(path, array.shape, shape)
    return array


def _load_strings(path: Path, length: int) -> pa.ChunkedArray:
    strings = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(0)
    _check_shape(path, (len(strings),), (length,))
    return strings


def _check_shape(path: Path, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ValueError(f"path: {path} has shape {found}, its manifest says {expected}")
