"""Prepared ranking data: lists of documents with features and labels, in memory-mapped files.

A directory has ``manifest.json`` and one directory per split with

================  =========================  ==============================================================
``features.npy``  float32 (rows, features)   the rows of a list follow each other
``labels.npy``    float32 (rows,)
``offsets.npy``   int64 (lists + 1,)         list i is the rows from ``offsets[i]`` up to ``offsets[i + 1]``
``moments.npy``   float64 (3, features)      rows, mean, sum of squared deviations, for standardising
``qids.arrow``    Arrow strings (lists,)
``docids.arrow``  Arrow strings (rows,)      if the source has comments
================  =========================  ==============================================================

The manifest is written last and the directory is renamed after that: a directory with a manifest is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._files import checksum
from rankfall._manifest import MANIFEST, has_format, read_manifest
from rankfall.data.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from rankfall.data.moments import Scaling

FORMAT = "rankfall ranking data"
VERSION = 1


@dataclass(frozen=True, slots=True)
class RankingSplit:
    """The lists of one split; all arrays are mapped from disk and read-only."""

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
        """The total number of documents."""
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
        """Path and size, in one line."""
        parts = ", ".join(f"{name} {len(split):,} lists" for name, split in self.splits.items())
        return f"RankingData({self.path}: {parts})"

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> RankingData:
        """Open a directory of prepared ranking data.

        Args:
            path: The directory.
            verify: Read all files and compare them with their checksums.

        Raises:
            ValueError: If the directory is not prepared ranking data, or if one of its files is damaged.
        """
        path = Path(path)
        kind = "prepared ranking data (see 'rankfall prepare letor --help')"
        manifest = read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again")
        if verify:
            _verify(path, manifest)
        splits = {name: _load_split(path / name, name, manifest) for name in manifest["splits"]}
        return cls(path, manifest, splits)

    def __getitem__(self, name: str) -> RankingSplit:
        """Return a split by name; ``name:2/5`` is the second of five parts of its lists, in their order."""
        whole, colon, part = name.partition(":")
        if whole not in self.splits:
            raise ValueError(f"split: {self.path} has no split {whole!r}; it has {', '.join(self.splits)}")
        return _part(self.splits[whole], part) if colon else self.splits[whole]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the splits."""
        return iter(self.splits)

    @property
    def features(self) -> int:
        """The number of features."""
        columns: int = self.manifest["features"]["columns"]
        return columns

    def scaling(self, train: Iterable[str]) -> Scaling:
        """Fit a standardisation on the splits `train` only, from their stored moments."""
        moments = [self[name].moments for name in train]
        if not moments:
            raise ValueError("train: found no split, expected at least one to fit a standardisation")
        return sum(moments[1:], start=moments[0]).scaling()


def is_prepared(path: Path) -> bool:
    """Return whether a directory is prepared ranking data of any version."""
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
    """Return one part of a split; all parts have the same number of lists, or one more."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= len(split)):
        raise ValueError(
            f"split: found {split.name}:{part}, expected a part of the {len(split)} lists of {split.name!r}, "
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
        raise ValueError(f"path: {path} has shape {found}, its manifest states {expected}")
