"""Read the text files of a split: its rows go to a spool, its lists are spans of them."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall.data.arrays import edges
from rankfall.data.sources.letor.parse import MAX_ID, ParsedBlock, Rules, TextFile, parse_block
from rankfall.data.sources.problems import DataCheck, Findings, Kind, Place
from rankfall.storage.disk import make_directory, open_new
from rankfall.storage.files import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.sources.letor.parse import Recipe


BAD_LINES_SHOWN = 20

_DATA_LINE = re.compile(rb"^[ \t\r\v\f]*[^#\s].*", re.MULTILINE)
_QID_LINE = re.compile(rb"^[ \t\r\v\f]*[^#\s]+[ \t\r\v\f]+qid:", re.MULTILINE)


class SplitReader:
    """Collects the rows of a split, and its lists as spans of rows; a list whose lines are apart has several spans."""

    def __init__(self, name: str, spool: LetorSpool, recipe: Recipe) -> None:
        self.name = name
        self.spool = spool
        self.recipe = recipe
        self.sources: list[dict[str, Any]] = []
        self.lists: dict[str, int] = {}  # the number of each list by qid
        self.has_qids = False
        self._numbers = array("q")  # by span: the number of its list,
        self._starts = array("q")  # its first row,
        self._first_lines = array("q")  # its first line,
        self._last_lines = array("q")  # its last line,
        self._origins = array("q")  # and the source of its lines
        self._groups = 0  # the number of lists from files of group sizes
        self._current: str | None = None

    def read(self, source: TextFile, group_file: Path | None, threads: int) -> None:
        """Read a file of the split.

        Args:
            source: The file.
            group_file: The file with the sizes of its lists, if its lines have no qid.
            threads: The number of threads that parse.

        Raises:
            ValueError: If a line is invalid, or if a query starts again without `regroup`.
        """
        lines = rows = bad_lines = 0
        shown: list[dict[str, Any]] = []
        grouping = Grouping(source.path, group_file, first_list=self._groups)
        about: dict[str, Any] = {"path": str(source.path)}
        self.sources.append(about)
        with closing(parsed_blocks(source, grouping, self.recipe, threads)) as blocks:
            for text_lines, block in blocks:
                if block.bad and not self.recipe.skip_bad_lines:
                    number, reason = block.bad[0]
                    raise ValueError(f"{source.path}:{lines + number + 1}: {reason}")
                shown += [
                    {"line": lines + number + 1, "reason": reason}
                    for number, reason in block.bad[: BAD_LINES_SHOWN - len(shown)]
                ]
                bad_lines += len(block.bad)
                qids = block.qids if grouping.with_qid else grouping.qids(block)
                self._add_lists(qids, block.lines + lines + 1)
                self.spool.append(block)
                lines += text_lines
                rows += len(block.labels)
        self._groups += grouping.finish()
        self.has_qids |= grouping.with_qid is True
        about |= {"bytes": source.bytes, "sha256": source.sha256, "lines": lines, "rows": rows}
        about |= {"groups": grouping.about(), "bad_lines": bad_lines, "bad_lines_shown": shown}

    def spans_of_lists(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each span, the row after its last and the number of its list, sorted by list."""
        starts = np.array(self._starts)
        ends = np.append(starts[1:], self.spool.rows)
        numbers = np.array(self._numbers)
        order = np.argsort(numbers, kind="stable")
        return starts[order], ends[order], numbers[order]

    def _add_lists(self, qids: Any, lines: NDArray[np.int64]) -> None:
        if len(lines) == 0:
            return
        firsts = _run_starts(qids)
        lasts = np.append(firsts[1:], len(lines)) - 1
        names = qids.take(pa.array(firsts)).to_pylist()
        for qid, first, last in zip(names, firsts.tolist(), lasts.tolist(), strict=True):
            if qid != self._current:
                self._add_span(qid, self.spool.rows + first, int(lines[first]), int(lines[last]))
            elif self._origins[-1] == len(self.sources) - 1:
                self._last_lines[-1] = int(lines[last])

    def _add_span(self, qid: str, row: int, first_line: int, last_line: int) -> None:
        if qid in self.lists and not self.recipe.regroup:
            self._refuse_apart(qid, first_line)
        self._current = qid
        self._numbers.append(self.lists.setdefault(qid, len(self.lists)))
        self._starts.append(row)
        self._first_lines.append(first_line)
        self._last_lines.append(last_line)
        self._origins.append(len(self.sources) - 1)

    def _refuse_apart(self, qid: str, line: int) -> NoReturn:
        before = self._numbers.index(self.lists[qid])
        origin = self.sources[self._origins[before]]["path"]
        raise ValueError(
            f"{self.sources[-1]['path']}:{line}: query {qid!r} starts again here; it has lines "
            f"{self._first_lines[before]} to {self._last_lines[before]} of {origin}, with other queries in "
            "between (--regroup joins them)"
        )


def _run_starts(qids: Any) -> NDArray[np.int64]:
    """Return the rows at which another query begins."""
    changes = np.flatnonzero(pc.not_equal(qids[1:], qids[:-1]).to_numpy(zero_copy_only=False)) + 1
    return np.concatenate([np.zeros(1, np.int64), changes])


class Grouping:
    """How the lines of a source form lists: by qid, or by a file of group sizes."""

    def __init__(self, source: Path, file: Path | None, first_list: int) -> None:
        self._source = source
        self._file = file
        self._first_list = first_list
        self._ends: NDArray[np.int64] = np.empty(0, np.int64)
        self._data_lines = 0
        self.with_qid: bool | None = None if file is None else False
        if file is not None:
            self._ends = _group_ends(file)

    def has_qids(self, text: bytes) -> bool:
        """Return whether lines have a qid, which the first block with data decides."""
        if self.with_qid is None and _DATA_LINE.search(text):
            self.with_qid = _QID_LINE.search(text) is not None
            if not self.with_qid:
                self._file = _group_file_of(self._source)
                self._ends = _group_ends(self._file)
        return self.with_qid is True

    def qids(self, block: ParsedBlock) -> pa.StringArray:
        """Return the number of each row's list as a string; invalid lines count as members of a list."""
        bad = np.array([line for line, _ in block.bad], np.int64)
        places = self._data_lines + np.arange(len(block.lines)) + np.searchsorted(bad, block.lines)
        self._data_lines += len(block.lines) + len(bad)
        if self._data_lines > (self._ends[-1] if len(self._ends) else 0):
            self._disagree("more")
        numbers = self._first_list + np.searchsorted(self._ends, places, side="right")
        return pa.array(numbers).cast(pa.string())

    def finish(self) -> int:
        """Return the number of lists in the file of group sizes, after checking that it matches the lines."""
        if len(self._ends) and self._data_lines != self._ends[-1]:
            self._disagree(str(self._data_lines))
        return len(self._ends)

    def about(self) -> dict[str, str] | None:
        """Return the entry of the file of group sizes in the manifest."""
        return None if self._file is None else {"path": str(self._file), "sha256": checksum(self._file)}

    def _disagree(self, found: str) -> NoReturn:
        total = int(self._ends[-1]) if len(self._ends) else 0
        raise ValueError(f"{self._file}: the sizes add up to {total}, but {self._source} has {found} lines of data")


def _group_file_of(source: Path) -> Path:
    stem = source.with_suffix("") if source.suffix in {".gz", ".xz", ".zst"} else source
    beside = [stem.with_name(stem.name + ending) for ending in (".query", ".group")]
    for file in beside:
        if file.exists():
            return file
    raise ValueError(
        f"{source}: found lines without qid and no file of group sizes (give --groups, or put "
        f"{beside[0].name} beside it)"
    )


def _group_ends(file: Path) -> NDArray[np.int64]:
    sizes = array("q")
    lines = itertools.chain.from_iterable(block.splitlines() for block in TextFile(file).blocks())
    for number, line in enumerate(lines):
        text = line.strip()
        if not text:
            continue
        if not text.isdigit() or not 0 < int(text) < 2**40:
            shown = text[:40].decode(errors="replace")
            raise ValueError(f"{file}:{number + 1}: found the group size {shown!r}, expected a whole number above 0")
        sizes.append(int(text))
    return np.cumsum(np.array(sizes, np.int64))


def parsed_blocks(
    source: TextFile, grouping: Grouping, recipe: Recipe, threads: int
) -> Generator[tuple[int, ParsedBlock]]:
    """Yield the number of lines and the parsed rows of each block, in order, for any number of threads."""

    def parse(text: bytes, rules: Rules) -> tuple[int, ParsedBlock]:
        return text.count(b"\n"), parse_block(text, rules)

    waiting: deque[Any] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for text in source.blocks():
                rules = Rules(
                    with_qid=grouping.has_qids(text),
                    missing=recipe.missing_value is not None,
                    log1p=recipe.log1p,
                    max_id=recipe.features or MAX_ID,
                )
                waiting.append(pool.submit(parse, text, rules))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


class LetorSpool:
    """The rows of one split, in the order in which they were read: an Arrow file with a batch per block of text.

    The rows of a batch have lists of ids and values, or values alone if every row has all ids from a first one on.
    Once rows are read, none can be appended.
    """

    _SCHEMA = pa.schema(
        [
            ("label", pa.float32()),
            ("docid", pa.large_string()),
            ("ids", pa.large_list(pa.int32())),  # null where every row has all ids
            ("values", pa.large_list(pa.float32())),
        ]
    )

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self._path = directory / "rows.arrow"
        self._file = open_new(self._path)
        self._writer = pa.ipc.new_file(self._file, self._SCHEMA)
        self._starts = [0]  # the first row of each batch, and the number of rows
        self._first_ids: list[int] = []  # of each batch in which every row has all ids from this one on, else -1
        self.has_docids = False
        self.least_id = np.iinfo(np.int32).max
        self.largest_id = -1
        self.missing_ids: NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._starts[-1]

    def append(self, block: ParsedBlock) -> None:
        """Append the rows of a block."""
        rows = len(block.labels)
        if rows == 0:
            return
        offsets, width = pa.array(edges(block.counts)), int(block.counts[0])
        first_id = int(block.ids[0]) if len(block.ids) else 0
        dense = width > 0 and bool((block.counts == width).all())
        dense = dense and bool((block.ids.reshape(rows, width) == np.arange(first_id, first_id + width)).all())
        ids = pa.nulls(rows, pa.large_list(pa.int32()))
        docids = pa.nulls(rows, pa.large_string()) if block.docids is None else block.docids.cast(pa.large_string())
        columns = [
            pa.array(block.labels),
            pc.fill_null(docids, ""),
            ids if dense else pa.LargeListArray.from_arrays(offsets, pa.array(block.ids)),
            pa.LargeListArray.from_arrays(offsets, pa.array(block.values)),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._SCHEMA))
        self._starts.append(self.rows + rows)
        self._first_ids.append(first_id if dense else -1)
        self.has_docids |= block.docids is not None
        if len(block.ids):
            self.least_id = min(self.least_id, int(block.ids.min()))
            self.largest_id = max(self.largest_id, int(block.ids.max()))
        missing = np.isnan(block.values)
        if missing.any():
            self.missing_ids = np.union1d(self.missing_ids, block.ids[missing])

    def labels(self, start: int, stop: int) -> NDArray[np.float32]:
        """Read the labels of a span of rows."""
        return np.concatenate([batch["label"].to_numpy() for _, batch in self._batches(start, stop)])

    def docids(self, start: int, stop: int) -> pa.LargeStringArray:
        """Read the document ids of a span of rows, empty for rows without one."""
        return pa.concat_arrays([batch["docid"] for _, batch in self._batches(start, stop)])

    def features(self, start: int, stop: int, *, first_id: int, width: int) -> NDArray[np.float32]:
        """Read the features of a span of rows, (rows, width): 0 for absent features, NaN for missing values."""
        features = np.zeros((stop - start, width), np.float32)
        row = 0
        for first, batch in self._batches(start, stop):
            target, values = features[row : row + len(batch)], batch["values"].flatten().to_numpy()
            row += len(batch)
            if first >= 0:
                dense = values.reshape(len(batch), -1)
                target[:, first - first_id : first - first_id + dense.shape[1]] = dense
            else:
                rows = np.repeat(np.arange(len(batch)), batch["ids"].value_lengths())
                target[rows, batch["ids"].flatten().to_numpy() - first_id] = values
        return features

    def close(self) -> None:
        """Close the file, which then can only be read."""
        if not self._file.closed:
            with closing(self._file):
                self._writer.close()

    @functools.cached_property
    def _reader(self) -> Any:
        self.close()
        return pa.ipc.open_file(pa.memory_map(str(self._path)))

    def _batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows from `start` to `stop`, batch by batch, and the first id of each batch."""
        place = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            end = min(stop, self._starts[place + 1])
            yield self._first_ids[place], self._reader.get_batch(place).slice(start - self._starts[place], end - start)
            start, place = end, place + 1


_PARTICULAR = re.compile(r"b?'[^']*'|\b\d+\b")  # what differs between lines with the same problem


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
        split = _SplitCheck(recipe, found)
        for path in paths:
            split.read(TextFile(path, on_read), (groups or {}).get(path), threads)
        rows += split.rows
        for qid in split.queries if split.has_qids else ():
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


class _SplitCheck:
    """Checks the files of a split, which are read as one."""

    def __init__(self, recipe: Recipe, found: Findings) -> None:
        self.queries: dict[str, Place] = {}  # the first line of each query
        self.rows = 0
        self.has_qids = False
        self._recipe = recipe
        self._found = found
        self._current: str | None = None
        self._groups = 0

    def read(self, source: TextFile, group_file: Path | None, threads: int) -> None:
        """Check a file."""
        path, lines = str(source.path), 0
        try:
            grouping = Grouping(source.path, group_file, first_list=self._groups)
            with closing(parsed_blocks(source, grouping, self._recipe, threads)) as blocks:
                for text_lines, block in blocks:
                    for number, reason in block.bad:
                        problem = _PARTICULAR.sub("...", reason)
                        place = Place(path, found=reason, line=lines + number + 1)
                        self._found.add(Kind("error", None, problem, "lines", "line"), 1, [place])
                    qids = block.qids if grouping.with_qid else grouping.qids(block)
                    self._add_lists(qids, block.lines + lines + 1, path)
                    self.rows += len(block.labels)
                    lines += text_lines
            self._groups += grouping.finish()
            self.has_qids |= grouping.with_qid is True
        except (ValueError, OSError) as error:  # of the file, not of a line
            text = str(error).removeprefix(f"{path}: ")
            self._found.add(Kind("error", None, _PARTICULAR.sub("...", text), "files"), 1, [Place(path, found=text)])

    def _add_lists(self, qids: Any, lines: NDArray[np.int64], path: str) -> None:
        if len(lines) == 0:
            return
        firsts = _run_starts(qids)
        for qid, first in zip(qids.take(pa.array(firsts)).to_pylist(), firsts.tolist(), strict=True):
            place = Place(path, found=f"query {qid!r}", line=int(lines[first]))
            if qid != self._current and qid in self.queries and not self._recipe.regroup:
                problem = "found a query that starts again, with other queries in between (--regroup joins them)"
                self._found.add(Kind("error", None, problem, "lines"), 1, [place])
            self.queries.setdefault(qid, place)
            self._current = qid
