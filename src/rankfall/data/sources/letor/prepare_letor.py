"""Prepare ranking data from ranking text.

The text is read in blocks, parsed by threads, and its features are written to a `LetorSpool`. Then lists are chosen,
features are completed and the files described in `ranking_data` are written. Features are never in memory as a whole;
labels and the number of each row's list are, about 20 bytes per row. The directory is renamed when all files are on
disk.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import re
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError, checked
from rankfall.data.arrays import Moments, Scaling, edges
from rankfall.data.lists.ranking_data import FORMAT, VERSION, RankingData, is_prepared
from rankfall.data.sources.letor.parse import MAX_ID, Recipe, Rules, check, parse_block, read_blocks
from rankfall.data.sources.problems import DataCheck, Findings, Kind, Place, pointing_to_check
from rankfall.storage.disk import delete, make_directory, open_new
from rankfall.storage.files import about_file, checksum, fresh_directory
from rankfall.storage.manifests import MANIFEST, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.sources.letor.parse import ParsedBlock


BAD_LINES_SHOWN = 20

_DATA_LINE = re.compile(rb"^[ \t\r\v\f]*[^#\s].*", re.MULTILINE)
_QID_LINE = re.compile(rb"^[ \t\r\v\f]*[^#\s]+[ \t\r\v\f]+qid:", re.MULTILINE)
_PARTICULAR = re.compile(r"b?'[^']*'|\b\d+\b")  # what differs between lines with the same problem


class _List(NamedTuple):
    """A list of a split, and where its first lines are."""

    number: int
    source: str
    first_line: int


class SplitReader:
    """Reads the rows of a split.

    Args:
        name: The name of the split.
        recipe: How lists and features are prepared.
        spool: Receives the features. None: they are not needed.
        found: Receives all problems. None: the first problem is an error, unless the recipe skips invalid lines.
    """

    def __init__(
        self, name: str, recipe: Recipe, spool: LetorSpool | None = None, found: Findings | None = None
    ) -> None:
        self.name, self.recipe, self.spool, self._found = name, recipe, spool, found
        self.sources: list[dict[str, Any]] = []
        self.lists: dict[str, _List] = {}  # by qid
        self.rows = 0
        self.has_qids = self.has_docids = False
        self._labels: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
        self._list_of_row: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
        self._groups = 0  # the number of lists from files of group sizes
        self._current: str | None = None

    @property
    def labels(self) -> NDArray[np.float32]:
        """The label of each row."""
        return np.concatenate(self._labels)

    @property
    def list_of_row(self) -> NDArray[np.int32]:
        """The number of the list of each row."""
        return np.concatenate(self._list_of_row)

    def read(self, source: Path, group_file: Path | None, threads: int, on_read: Callable[[int], None]) -> None:
        """Read a file of the split.

        Args:
            source: The file.
            group_file: The file with the sizes of its lists, if its lines have no qid.
            threads: The number of threads that parse.
            on_read: Receives the number of stored bytes that were read.

        Raises:
            ValueError: If a line is invalid, or if a query starts again without `regroup`.
        """
        about: dict[str, Any] = {"path": str(source), "bytes": 0, "sha256": "", "lines": 0, "rows": 0}
        about |= {"groups": None, "bad_lines": 0, "bad_lines_shown": []}
        self.sources.append(about)
        lines, rows_before = 0, self.rows
        grouping = Grouping(source, group_file, first_list=self._groups)
        with closing(_parsed_blocks(read_blocks(source, on_read), grouping, self.recipe, threads)) as blocks:
            for text_lines, block in blocks:
                for number, reason in block.bad:
                    self._refuse(lines + number + 1, reason, "line")
                qids = grouping.qids(block) if block.qids is None else block.qids
                self._add_lists(qids, block.lines + lines + 1)
                self.rows += len(block.labels)
                self.has_docids |= block.docids is not None
                if self.spool is not None:
                    self._labels.append(block.labels)
                    self.spool.append(block)
                lines += text_lines
        self._groups += grouping.finish()
        self.has_qids |= grouping.with_qid is True
        about |= about_file(source) | {"lines": lines, "rows": self.rows - rows_before}
        about |= {"groups": grouping.about()}

    def _refuse(self, line: int, reason: str, dropped: Literal["line"] | None = None) -> None:
        """Raise an error, or note a problem that does not end the reading."""
        about = self.sources[-1]
        if self._found is not None:
            kind = Kind("error", None, _PARTICULAR.sub("...", reason), "lines", dropped)
            self._found.add(kind, 1, [Place(about["path"], found=reason, line=line)])
        elif dropped is None or not self.recipe.skip_bad_lines:
            raise RankfallError(f"{about['path']}:{line}: {reason}")
        about["bad_lines"] += 1
        if len(about["bad_lines_shown"]) < BAD_LINES_SHOWN:
            about["bad_lines_shown"].append({"line": line, "reason": reason})

    def _add_lists(self, qids: pl.Series, lines: NDArray[np.int64]) -> None:
        """Give every row the number of its list; a run of equal qids is one list or, with `regroup`, a part of one."""
        starts = np.flatnonzero((qids != qids.shift(1)).fill_null(True).to_numpy())
        sizes = np.diff(np.append(starts, len(lines)))
        numbers = []
        for qid, start in zip(qids.gather(starts).to_list(), starts.tolist(), strict=True):
            before = self.lists.get(qid)
            if before is None:
                before = self.lists[qid] = _List(len(self.lists), self.sources[-1]["path"], int(lines[start]))
            elif qid != self._current and not self.recipe.regroup:
                reason = (
                    f"query {qid!r} starts again here, after lines of other queries; it begins in line "
                    f"{before.first_line} of {before.source!r} (--regroup joins its lines)"
                )
                self._refuse(int(lines[start]), reason)
            self._current = qid
            numbers.append(before.number)
        if self.spool is not None:
            self._list_of_row.append(np.repeat(np.array(numbers, np.int32), sizes))


class Grouping:
    """How the lines of a source form lists: by qid, or by a file of group sizes."""

    def __init__(self, source: Path, file: Path | None, first_list: int) -> None:
        self._source, self._file, self._first_list = source, file, first_list
        self._ends = np.empty(0, np.int64) if file is None else _group_ends(file)
        self._data_lines = 0
        self.with_qid: bool | None = None if file is None else False

    def has_qids(self, text: bytes) -> bool:
        """Return whether lines have a qid, which the first block with data decides."""
        if self.with_qid is None and _DATA_LINE.search(text):
            self.with_qid = _QID_LINE.search(text) is not None
            if not self.with_qid:
                source = self._source
                stem = source.with_suffix("") if source.suffix in {".gz", ".xz", ".zst"} else source
                beside = [stem.with_name(stem.name + ending) for ending in (".query", ".group")]
                self._file = next((file for file in beside if file.exists()), None)
                if self._file is None:
                    raise RankfallError(
                        f"{source}: found lines without qid and no file of group sizes (give --groups, or put "
                        f"{beside[0].name} beside it)"
                    )
                self._ends = _group_ends(self._file)
        return self.with_qid is True

    def qids(self, block: ParsedBlock) -> pl.Series:
        """Return the number of each row's list as text; invalid lines count as members of a list."""
        bad = np.array([line for line, _ in block.bad], np.int64)
        places = self._data_lines + np.arange(len(block.lines)) + np.searchsorted(bad, block.lines)
        self._data_lines += len(block.lines) + len(bad)
        self._check(self._data_lines <= self._ends.max(initial=0), "more")
        return pl.Series(self._first_list + np.searchsorted(self._ends, places, side="right")).cast(pl.String)

    def finish(self) -> int:
        """Return the number of lists in the file of group sizes, after checking that it matches the lines."""
        self._check(not len(self._ends) or self._data_lines == self._ends[-1], str(self._data_lines))
        return len(self._ends)

    def about(self) -> dict[str, str] | None:
        """Return the entry of the file of group sizes in the manifest."""
        return None if self._file is None else {"path": str(self._file), "sha256": checksum(self._file)}

    def _check(self, holds: bool, found: str) -> None:
        if not holds:
            total = self._ends.max(initial=0)
            raise RankfallError(
                f"{self._file}: the sizes add up to {total}, but {self._source} has {found} lines of data"
            )


def _group_ends(file: Path) -> NDArray[np.int64]:
    sizes = array("q")
    lines = itertools.chain.from_iterable(block.splitlines() for block in read_blocks(file))
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not (text.isdigit() and 0 < int(text) < 2**40):
            shown = text[:40].decode(errors="replace")
            raise RankfallError(f"{file}:{number}: found the group size {shown!r}, expected a whole number above 0")
        if text:
            sizes.append(int(text))
    return np.cumsum(np.array(sizes, np.int64))


def _parsed_blocks(
    texts: Iterator[bytes], grouping: Grouping, recipe: Recipe, threads: int
) -> Generator[tuple[int, ParsedBlock]]:
    """Yield the number of lines and the parsed rows of each block, in order, for any number of threads."""
    waiting: deque[tuple[int, Any]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for text in texts:
                rules = Rules(
                    with_qid=grouping.has_qids(text),
                    missing=recipe.missing_value is not None,
                    log1p=recipe.log1p,
                    max_id=recipe.features or MAX_ID,
                )
                waiting.append((text.count(b"\n"), pool.submit(parse_block, text, rules)))
                if len(waiting) > threads:
                    lines, block = waiting.popleft()
                    yield lines, block.result()
            for lines, block in waiting:
                yield lines, block.result()
        finally:
            pool.shutdown(cancel_futures=True)


class LetorSpool:
    """The features of the rows of a split, in the order in which they were read: an Arrow file with a batch per block.

    Once rows are read, none can be appended.
    """

    _SCHEMA = pa.schema(
        [
            ("docid", pa.large_string()),
            ("ids", pa.large_list(pa.int32())),
            ("values", pa.large_list(pa.float32())),
        ]
    )

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_new(path)
        self._writer = pa.ipc.new_file(self._file, self._SCHEMA)
        self._starts = [0]  # the first row of each batch, and the number of rows
        self.least_id, self.largest_id = np.iinfo(np.int32).max, -1
        self.missing_ids: NDArray[np.int32] = np.empty(0, np.int32)

    def append(self, block: ParsedBlock) -> None:
        """Append the rows of a block."""
        rows, offsets = len(block.labels), pa.array(edges(block.counts))
        docids = pa.nulls(rows, pa.large_string()) if block.docids is None else block.docids.to_arrow()
        lists = [pa.LargeListArray.from_arrays(offsets, pa.array(flat)) for flat in (block.ids, block.values)]
        self._writer.write_batch(pa.record_batch([docids.cast(pa.large_string()), *lists], schema=self._SCHEMA))
        self._starts.append(self._starts[-1] + rows)
        self.least_id = min(self.least_id, int(block.ids.min(initial=self.least_id)))
        self.largest_id = max(self.largest_id, int(block.ids.max(initial=-1)))
        self.missing_ids = np.union1d(self.missing_ids, block.ids[np.isnan(block.values)])

    def take(self, rows: NDArray[np.int64], *, first_id: int, width: int) -> tuple[NDArray[np.float32], pa.Array]:
        """Read some rows, in that order.

        Returns:
            Their features (rows, width), 0 for absent features and NaN for missing values, and their document ids.
        """
        self.close()
        reader = pa.ipc.open_file(pa.memory_map(str(self._path)))
        features = np.zeros((len(rows), width), np.float32)
        docids = []
        numbers = np.searchsorted(self._starts, rows, side="right") - 1  # of batches
        places = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        for place, end in itertools.pairwise(places):
            number = int(numbers[place])
            batch = reader.get_batch(number).take(pa.array(rows[place:end] - self._starts[number]))
            owner = np.repeat(np.arange(place, end), batch["ids"].value_lengths())
            features[owner, batch["ids"].flatten().to_numpy() - first_id] = batch["values"].flatten().to_numpy()
            docids.append(batch["docid"].fill_null(""))
        return features, pa.concat_arrays(docids)

    def close(self) -> None:
        """Close the file, which then can only be read."""
        if not self._file.closed:
            with closing(self._file):
                self._writer.close()


def check_letor(
    sources: Mapping[str, Sequence[Path]],
    recipe: Recipe,
    *,
    groups: Mapping[Path, Path] | None = None,
    threads: int = 1,
    on_read: Callable[[int], None] = lambda n: None,
) -> DataCheck:
    """Check text files of ranking data.

    Args:
        sources: The files of each split.
        recipe: How lists and features would be prepared.
        groups: For sources without qid, the file with the sizes of their lists.
        threads: The number of threads that parse.
        on_read: Receives the number of stored bytes that were read.

    Returns:
        All problems of the files; `rows` are their lines of data.
    """
    found = Findings()
    rows = 0
    splits_of: dict[str, list[str]] = {}  # of each query
    for name, paths in sources.items():
        split = SplitReader(name, recipe, found=found)
        for path in paths:
            try:
                split.read(path, (groups or {}).get(path), threads, on_read)
            except (ValueError, OSError) as error:  # of the file, not of a line
                text = str(error).removeprefix(f"{path}: ")
                problem = _PARTICULAR.sub("...", text)
                found.add(Kind("error", None, problem, "files"), 1, [Place(str(path), found=text)])
        rows += split.rows
        for qid in split.lists if split.has_qids else ():
            splits_of.setdefault(qid, []).append(name)
    shared = {qid: names for qid, names in splits_of.items() if len(names) > 1}
    if shared:
        places = [
            Place(f"splits {', '.join(names)}", found=f"query {qid!r}") for qid, names in list(shared.items())[:3]
        ]
        problem = "found queries in several splits; a test on one uses training data of the other"
        found.add(Kind("warning", None, problem, "queries"), len(shared), places)
    if not rows and not found.found:
        files = [Place(str(path)) for paths in sources.values() for path in paths]
        found.add(Kind("error", None, "found no lines of data", "files"), len(files), files)
    return DataCheck(rows, found.problems())


# --- files ------------------------------------------------------------------------------------------------------

CHUNK_BYTES = 16 << 20  # of features written at once
LABELS_SHOWN = 32  # with more different labels a histogram has bins
LABEL_BINS = 20


@dataclass(frozen=True, slots=True)
class _Columns:
    """The feature columns of all splits: ids from `first_id` on, then indicators."""

    first_id: int
    ids: int
    indicators: NDArray[np.int64]  # columns with an indicator of missing values

    @property
    def total(self) -> int:
        return self.ids + len(self.indicators)


def write_splits(splits: dict[str, SplitReader], recipe: Recipe, directory: Path) -> None:
    """Write the splits that were read, their spools are deleted, and the manifest last.

    Raises:
        ValueError: If a split has no rows or no list is long enough, or if feature ids contradict the recipe.
    """
    for split in splits.values():
        if split.rows == 0:
            raise RankfallError(f"{split.sources[-1]['path']}: split {split.name!r} has no rows")
    spools = {name: split.spool for name, split in splits.items() if split.spool is not None}
    columns = _columns(list(spools.values()), recipe)
    about: dict[str, Any] = {}
    moments: dict[str, Moments] = {}
    for name, spool in spools.items():
        about[name], moments[name] = _write_split(splits[name], spool, columns, directory / name)
        delete(directory / f"spool-{name}.arrow")
    if recipe.standardise:
        fitted = [moments[name] for name in recipe.standardise]
        scaling = sum(fitted[1:], start=fitted[0]).scaling()
        _save(directory / "scaling.npy", np.stack([scaling.mean, scaling.deviation]))
        for name in splits:
            _standardise(directory / name / "features.npy", scaling)
            moments[name] = moments[name].scaled(scaling)
    for name in splits:
        _save(directory / name / "moments.npy", moments[name].to_array())
    shared = {}  # queries in two splits, of which one is usually a test of the other
    for one, other in itertools.combinations((split for split in splits.values() if split.has_qids), 2):
        if common := len(one.lists.keys() & other.lists.keys()):
            shared[f"{one.name} and {other.name}"] = common
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "rankfall": importlib.metadata.version("rankfall"),
        "recipe": asdict(recipe),
        "features": {
            "columns": columns.total,
            "first_id": columns.first_id,
            "indicators": (columns.indicators + columns.first_id).tolist(),
        },
        "splits": about,
        "shared_queries": shared,
        "files": {path.relative_to(directory).as_posix(): checksum(path) for path in files},
    }
    write_manifest(directory / MANIFEST, manifest)


def _columns(spools: list[LetorSpool], recipe: Recipe) -> _Columns:
    """Return the columns of all splits; ids count from 1 unless an id 0 occurs."""
    largest, least = max(spool.largest_id for spool in spools), min(spool.least_id for spool in spools)
    if largest < 0:
        raise RankfallError("sources: found no feature in any line")
    first_id = min(least, 1) if recipe.first_id is None else recipe.first_id
    if least < first_id:
        raise RankfallError(f"first_id: expected ids from {first_id} on, but feature id {least} occurs")
    ids = recipe.features or largest + 1 - first_id
    if largest + 1 - first_id > ids:
        raise RankfallError(f"features: expected {ids} from id {first_id} on, but feature id {largest} occurs")
    missing = np.unique(np.concatenate([spool.missing_ids for spool in spools])).astype(np.int64) - first_id
    return _Columns(first_id, ids, missing if recipe.missing_indicator else missing[:0])


def _write_split(
    split: SplitReader, spool: LetorSpool, columns: _Columns, directory: Path
) -> tuple[dict[str, Any], Moments]:
    recipe, labels = split.recipe, split.labels
    order = np.argsort(split.list_of_row, kind="stable")
    sizes = np.bincount(split.list_of_row)
    kept = np.minimum(sizes, recipe.max_list or sizes)
    kept[sizes < recipe.min_list] = 0
    if not kept.any():
        raise RankfallError(
            f"min_list: every list of split {split.name!r} is shorter than {recipe.min_list}; the longest "
            f"has {sizes.max()} documents"
        )
    qids = np.array(list(split.lists), dtype=object)
    copies = np.repeat((kept > 0).astype(np.int64), sizes)  # how often each row of the ordered ones is written
    bounds = edges(sizes)
    draw = sample_with_replacement if recipe.replacement else sample
    for i in np.flatnonzero((kept > 0) & (kept < sizes)):
        of_list = slice(bounds[i], bounds[i + 1])
        of_list_labels = labels[order[of_list]]
        copies[of_list] = draw(of_list_labels, int(kept[i]), recipe.keep_positives, recipe.seed, qids[i])
    rows = np.repeat(order, copies)
    is_kept, offsets = kept > 0, edges(kept[kept > 0])
    make_directory(directory)
    moments = Moments.of(np.zeros((0, columns.total)))
    step = max(1, CHUNK_BYTES // (4 * columns.total))
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), columns.total)}
    with (
        open_new(directory / "features.npy") as file,
        _open_strings(directory / "docids.arrow", split.has_docids) as write_docids,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(rows), step):
            features, docids = spool.take(rows[first : first + step], first_id=columns.first_id, width=columns.ids)
            if recipe.missing_value is not None:
                missing = np.isnan(features)
                features[missing] = recipe.missing_value
                indicators = missing[:, columns.indicators].astype(np.float32)
                features = np.concatenate([features, indicators], axis=1)
            file.write(features.data)
            write_docids(docids)
            moments += Moments.of(features)
    _save(directory / "labels.npy", labels[rows])
    _save(directory / "offsets.npy", offsets)
    with _open_strings(directory / "qids.arrow") as write_qids:
        write_qids(pa.array(qids[is_kept], pa.large_string()))
    has_positive = np.maximum.reduceat(labels[rows], offsets[:-1]) > 0
    lengths = kept[is_kept]
    about = {
        "lists": len(lengths),
        "rows": len(rows),
        "docids": split.has_docids,
        "list_length": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "labels": _label_histogram(labels[rows]),
        "lists_without_positive": int((~has_positive).sum()),
        "short_lists": _lists_and_rows(sizes[~is_kept], 0),
        "cut_lists": _lists_and_rows(sizes[is_kept & (kept < sizes)], recipe.max_list or 0),
        "sources": split.sources,
    }
    return about, moments


def sample(labels: NDArray[np.float32], size: int, keep_positives: int, seed: int, qid: str) -> NDArray[np.bool_]:
    """Sample `size` documents of a list uniformly, at least `keep_positives` of them with a label above 0.

    If the sample has too few of them and the list has more, the next positives of the random order replace the last
    others. The sample depends on the seed and the qid, not on the position of the list in the data.

    >>> sample(np.array([0, 0, 1, 0, 0, 1]), 2, keep_positives=2, seed=0, qid="7")
    array([False, False,  True, False, False,  True])
    """
    drawn = np.argsort(_random_bits(seed, qid).random_raw(len(labels)), kind="stable")
    first_positives = drawn[labels[drawn] > 0][: min(keep_positives, size)]
    chosen = np.zeros(len(labels), np.bool_)
    chosen[first_positives] = True
    others = drawn[~chosen[drawn]]
    chosen[others[: size - len(first_positives)]] = True
    return chosen


def sample_with_replacement(
    labels: NDArray[np.float32], size: int, keep_positives: int, seed: int, qid: str
) -> NDArray[np.int64]:
    """Draw `size` documents of a list with replacement and return how often each is drawn.

    At least `keep_positives` draws have a label above 0, if the list has any such document: further draws among these
    replace the last others.

    >>> sample_with_replacement(np.array([0, 0, 1]), 2, keep_positives=2, seed=0, qid="7")
    array([0, 0, 2])
    """
    bits = _random_bits(seed, qid)
    drawn = (bits.random_raw(size) % len(labels)).astype(np.int64)
    positives = np.flatnonzero(labels > 0)
    others = np.flatnonzero(labels[drawn] <= 0)
    missing = max(0, min(keep_positives, size) - (size - len(others)))
    if missing and len(positives):
        drawn[others[-missing:]] = positives[(bits.random_raw(missing) % len(positives)).astype(np.int64)]
    return np.bincount(drawn, minlength=len(labels))


def _random_bits(seed: int, qid: str) -> np.random.PCG64:
    key = hashlib.sha256(qid.encode()).digest()
    return np.random.PCG64(np.random.SeedSequence([seed, *np.frombuffer(key, "<u4").tolist()]))


def _standardise(path: Path, scaling: Scaling) -> None:
    """Standardise a file of features in place, without mapping all of it into memory."""
    stored = np.load(path, mmap_mode="r")
    (rows, width), place = stored.shape, stored.offset
    del stored
    step = max(1, CHUNK_BYTES // (4 * width))
    with open_new(path, "r+b") as file:
        for row in range(0, rows, step):
            file.seek(place + row * width * 4)
            chunk = np.fromfile(file, "<f4", min(step, rows - row) * width)
            file.seek(place + row * width * 4)
            file.write(scaling(chunk.reshape(-1, width)).data)


def _label_histogram(labels: NDArray[np.float32]) -> dict[str, int]:
    """Count the labels, or ranges of labels if there are many different ones."""
    different, counts = np.unique(labels, return_counts=True)
    if len(different) <= LABELS_SHOWN:
        return {f"{label:g}": count for label, count in zip(different.tolist(), counts.tolist(), strict=True)}
    counts, ends = np.histogram(labels, LABEL_BINS, (float(labels.min()), float(labels.max())))
    names = (f"{low:g} to {high:g}" for low, high in itertools.pairwise(ends))
    return dict(zip(names, counts.tolist(), strict=True))


def _save(path: Path, values: NDArray[Any]) -> None:
    with open_new(path) as file:
        np.save(file, values, allow_pickle=False)


@contextmanager
def _open_strings(path: Path, wanted: bool = True) -> Iterator[Callable[[Any], None]]:
    if not wanted:
        yield lambda strings: None
        return
    schema = pa.schema([("text", pa.large_string())])
    with open_new(path) as file, pa.ipc.new_file(file, schema) as writer:
        yield lambda strings: writer.write_batch(pa.record_batch([strings], schema=schema))


def _lists_and_rows(sizes: NDArray[np.int64], stay: int) -> dict[str, int]:
    return {"lists": len(sizes), "rows": int((sizes - stay).sum())}


_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@checked
def prepare_letor(
    sources: Mapping[str, Sequence[Path]],
    out: Path,
    recipe: Recipe,
    *,
    groups: Mapping[Path, Path] | None = None,
    threads: int = 1,
    force: bool = False,
    skip_bad: int | None = None,
    on_read: Callable[[int], None] = lambda n: None,
) -> RankingData:
    """Prepare ranking data from text files.

    Args:
        sources: The files of each split, which are read as one.
        out: The directory to write.
        recipe: How lists and features are prepared.
        groups: For sources without qid, the file with the sizes of their lists; by default the file beside the source
            that ends in ``.query`` or ``.group``.
        threads: The number of threads that parse.
        force: Replace existing ranking data.
        skip_bad: Leave out invalid lines, at most this many; by default `recipe` decides.
        on_read: Receives the number of stored bytes that were read.

    Raises:
        ValueError: If a file or a line is invalid; the message names both.
    """
    _check_splits(sources, recipe)
    check(threads >= 1, "threads", threads, "at least 1")
    if skip_bad is not None:
        check(skip_bad >= 0, "skip_bad", skip_bad, "at least 0")
        recipe = replace(recipe, skip_bad_lines=True)
    with fresh_directory(out, is_prepared, force=force) as directory, ExitStack() as stack:
        splits = {}
        for name, paths in sources.items():
            spool = stack.enter_context(closing(LetorSpool(directory / f"spool-{name}.arrow")))
            splits[name] = SplitReader(name, recipe, spool)
            for path in paths:
                with pointing_to_check("files"):
                    splits[name].read(path, (groups or {}).get(path), threads, on_read)
                _check_limit(splits.values(), skip_bad)
        write_splits(splits, recipe, directory)
    return RankingData.load(out)


def _check_limit(splits: Iterable[SplitReader], limit: int | None) -> None:
    bad = [about for split in splits for about in split.sources if about["bad_lines"]]
    if limit is not None and sum(about["bad_lines"] for about in bad) > limit:
        lines = [
            f"{about['path']}:{line['line']}: {line['reason']}" for about in bad for line in about["bad_lines_shown"]
        ]
        raise RankfallError(
            "\n".join([f"skip_bad: found more than {limit:,} invalid lines; the first are", *lines[:3]])
        )


def _check_splits(sources: Mapping[str, Sequence[Path]], recipe: Recipe) -> None:
    check(len(sources) > 0, "sources", "none", "at least one file")
    for name, paths in sources.items():
        fits = _SPLIT_NAME.fullmatch(name) is not None and name not in {MANIFEST, "scaling.npy"}
        check(fits, "split", repr(name), "a name of letters, digits, '_', '-' and '.'")
        check(len(paths) > 0, f"split {name}", "no file", "at least one file")
    for name in recipe.standardise:
        check(name in sources, "standardise", repr(name), f"one of the splits {', '.join(sources)}")
