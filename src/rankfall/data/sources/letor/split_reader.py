"""Read the text files of a split: the features of its rows go to a spool, labels and lists stay in memory."""

from __future__ import annotations

import functools
import itertools
import re
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.arrays import edges
from rankfall.data.sources.letor.parse import MAX_ID, ParsedBlock, Rules, TextFile, parse_block
from rankfall.data.sources.problems import DataCheck, Findings, Kind, Place
from rankfall.storage.disk import open_new
from rankfall.storage.files import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.sources.letor.parse import Recipe


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

    def read(self, source: TextFile, group_file: Path | None, threads: int) -> None:
        """Read a file of the split.

        Args:
            source: The file.
            group_file: The file with the sizes of its lists, if its lines have no qid.
            threads: The number of threads that parse.

        Raises:
            ValueError: If a line is invalid, or if a query starts again without `regroup`.
        """
        about: dict[str, Any] = {"path": str(source.path), "bytes": 0, "sha256": "", "lines": 0, "rows": 0}
        about |= {"groups": None, "bad_lines": 0, "bad_lines_shown": []}
        self.sources.append(about)
        lines, rows_before = 0, self.rows
        grouping = Grouping(source.path, group_file, first_list=self._groups)
        with closing(_parsed_blocks(source, grouping, self.recipe, threads)) as blocks:
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
        about |= {"bytes": source.bytes, "sha256": source.sha256, "lines": lines, "rows": self.rows - rows_before}
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
                self._file = _group_file_of(self._source)
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


def _group_file_of(source: Path) -> Path:
    stem = source.with_suffix("") if source.suffix in {".gz", ".xz", ".zst"} else source
    beside = [stem.with_name(stem.name + ending) for ending in (".query", ".group")]
    for file in beside:
        if file.exists():
            return file
    raise RankfallError(
        f"{source}: found lines without qid and no file of group sizes (give --groups, or put "
        f"{beside[0].name} beside it)"
    )


def _group_ends(file: Path) -> NDArray[np.int64]:
    sizes = array("q")
    lines = itertools.chain.from_iterable(block.splitlines() for block in TextFile(file).blocks())
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not (text.isdigit() and 0 < int(text) < 2**40):
            shown = text[:40].decode(errors="replace")
            raise RankfallError(f"{file}:{number}: found the group size {shown!r}, expected a whole number above 0")
        if text:
            sizes.append(int(text))
    return np.cumsum(np.array(sizes, np.int64))


def _parsed_blocks(
    source: TextFile, grouping: Grouping, recipe: Recipe, threads: int
) -> Generator[tuple[int, ParsedBlock]]:
    """Yield the number of lines and the parsed rows of each block, in order, for any number of threads."""
    waiting: deque[tuple[int, Any]] = deque()

    def finished() -> tuple[int, ParsedBlock]:
        lines, block = waiting.popleft()
        return lines, block.result()

    with ThreadPoolExecutor(threads) as pool:
        try:
            for text in source.blocks():
                rules = Rules(
                    with_qid=grouping.has_qids(text),
                    missing=recipe.missing_value is not None,
                    log1p=recipe.log1p,
                    max_id=recipe.features or MAX_ID,
                )
                waiting.append((text.count(b"\n"), pool.submit(parse_block, text, rules)))
                if len(waiting) > threads:
                    yield finished()
            while waiting:
                yield finished()
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
        features = np.zeros((len(rows), width), np.float32)
        docids = []
        for place, batch in self._batches(rows):
            owner = np.repeat(np.arange(place, place + len(batch)), batch["ids"].value_lengths())
            features[owner, batch["ids"].flatten().to_numpy() - first_id] = batch["values"].flatten().to_numpy()
            docids.append(batch["docid"].fill_null(""))
        return features, pa.concat_arrays(docids)

    def close(self) -> None:
        """Close the file, which then can only be read."""
        if not self._file.closed:
            with closing(self._file):
                self._writer.close()

    @functools.cached_property
    def _reader(self) -> Any:
        self.close()
        return pa.ipc.open_file(pa.memory_map(str(self._path)))

    def _batches(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows batch by batch, with the place of the first one among `rows`."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        for first, last in itertools.pairwise(bounds):
            batch = self._reader.get_batch(int(numbers[first]))
            yield first, batch.take(pa.array(rows[first:last] - self._starts[numbers[first]]))


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
                split.read(TextFile(path, on_read), (groups or {}).get(path), threads)
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
