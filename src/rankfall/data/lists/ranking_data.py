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

import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._errors import RankfallError, checked
from rankfall.data.arrays import Moments
from rankfall.storage.files import open_regular
from rankfall.storage.manifests import (
    MANIFEST,
    check_counts,
    check_file,
    check_mappings,
    check_names,
    check_seal,
    compare_file,
    has_format,
    once,
    read_manifest,
    verifies,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from rankfall.data.arrays import Scaling


FORMAT = "rankfall ranking data"
VERSION = 1
REMEDY = "prepare the data again, or restore the file from a copy"


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
    verifies: bool = True  # whether the files of a split are compared with their checksums when it is opened
    opened: dict[str, RankingSplit] = field(default_factory=dict, repr=False, compare=False)  # those used so far

    def __repr__(self) -> str:
        """Path and size, in one line."""
        parts = ", ".join(f"{name} {about['lists']:,} lists" for name, about in self.manifest["splits"].items())
        return f"RankingData({self.path}: {parts})"

    @classmethod
    @checked
    def load(cls, path: str | Path, *, verify: bool | None = None) -> RankingData:
        """Open a directory of prepared ranking data.

        Args:
            path: The directory.
            verify: True reads all files at once and compares them with their checksums, False compares none. Default:
                compare the files of a split when it is first used.

        Raises:
            ValueError: If the directory is not prepared ranking data, or if one of its files is damaged.
        """
        path = Path(path)
        kind = "prepared ranking data (see 'rankfall prepare letor --help')"
        keys = ("files", "splits", "features", "recipe")
        manifest = read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again", keys=keys)
        check_seal(path / MANIFEST, manifest, remedy="prepare the data again")
        check_mappings(path / MANIFEST, manifest, "files", "splits", "features")
        check_names(path, "a split", manifest["splits"])
        check_counts(path / MANIFEST, manifest["features"], "columns", inside="features.")
        for name, about in manifest["splits"].items():
            check_counts(path / MANIFEST, about, "lists", "rows", inside=f"splits.{name}.")
        if verify:
            for name, expected in manifest["files"].items():
                compare_file(path / name, expected, remedy=REMEDY)
        return cls(path, manifest, verifies() if verify is None else verify)

    def __getitem__(self, name: str) -> RankingSplit:
        """Return a split by name; ``name:2/5`` is the second of five parts of its lists, in their order."""
        whole, colon, part = name.partition(":")
        if whole not in self.manifest["splits"]:
            raise RankfallError(f"split: {self.path} has no split {whole!r}; it has {', '.join(self)}")
        if whole not in self.opened:
            self.opened[whole] = self._open(whole)
        return _part(self.opened[whole], part) if colon else self.opened[whole]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the splits."""
        return iter(self.manifest["splits"])

    @property
    def splits(self) -> dict[str, RankingSplit]:
        """All splits by name."""
        return {name: self[name] for name in self}

    @property
    def features(self) -> int:
        """The number of features."""
        columns: int = self.manifest["features"]["columns"]
        return columns

    @checked
    def scaling(self, train: Iterable[str]) -> Scaling:
        """Fit a standardisation on the splits `train` only, from their stored moments."""
        moments = [self[name].moments for name in train]
        if not moments:
            raise RankfallError("train: found no split, expected at least one to fit a standardisation")
        return sum(moments[1:], start=moments[0]).scaling()

    def _open(self, name: str) -> RankingSplit:
        """Map the files of a split."""
        about = self.manifest["splits"][name]
        lists, rows, columns = about["lists"], about["rows"], self.features
        split = RankingSplit(
            name=name,
            features=self._array(f"{name}/features.npy", np.float32, (rows, columns)),
            labels=self._array(f"{name}/labels.npy", np.float32, (rows,)),
            offsets=self._array(f"{name}/offsets.npy", np.int64, (lists + 1,)),
            qids=self._strings(f"{name}/qids.arrow", lists),
            docids=self._strings(f"{name}/docids.arrow", rows) if about.get("docids") else None,
            moments=Moments.from_array(self._array(f"{name}/moments.npy", np.float64, (3, columns))),
        )
        offsets = split.offsets
        if offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 1).any():
            raise RankfallError(f"path: {self.path / name / 'offsets.npy'} is damaged: a list has no rows, or others'")
        return split

    def _verified(self, file: str) -> Path:
        """Return the path of a file after comparing it with its checksum."""
        if self.verifies:
            if file not in self.manifest["files"]:
                raise RankfallError(f"path: {self.path / MANIFEST} is damaged, it has no checksum of {file}")
            check_file(self.path / file, self.manifest["files"][file], remedy=REMEDY)
        return self.path / file

    def _array(self, file: str, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
        path = self._verified(file)
        try:
            open_regular(path).close()
            with warnings.catch_warnings(action="error"):  # about headers that are not as NumPy writes them
                array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError, OverflowError, SyntaxError, TokenError, TypeError, Warning) as error:
            raise RankfallError(f"path: {path} is missing, damaged or truncated ({error}); {REMEDY}") from None
        if array.dtype != dtype:
            raise RankfallError(f"path: {path} has the type {array.dtype}, expected {np.dtype(dtype)}; {REMEDY}")
        _check_shape(path, array.shape, shape)
        return array

    def _strings(self, file: str, length: int) -> pa.ChunkedArray:
        path = self._verified(file)
        try:
            open_regular(path).close()
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            once(("structure",), path, partial(table.validate, full=True))
            strings = table.column(0).cast(pa.large_string())
        except (pa.ArrowException, OSError, IndexError) as error:
            raise RankfallError(f"path: {path} is missing, damaged or truncated ({error}); {REMEDY}") from None
        _check_shape(path, (len(strings),), (length,))
        return strings


def is_prepared(path: Path) -> bool:
    """Return whether a directory is prepared ranking data of any version."""
    return has_format(path / MANIFEST, FORMAT)


def _part(split: RankingSplit, part: str) -> RankingSplit:
    """Return one part of a split; all parts have the same number of lists, or one more."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= len(split)):
        raise RankfallError(
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


def _check_shape(path: Path, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise RankfallError(f"path: {path} has shape {found}, its manifest states {expected}")
