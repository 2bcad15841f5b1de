"""From ranking text to prepared ranking data, in constant memory.

The text is read in blocks, parsed by threads and put down in a :class:`~rankfall.data.spool.Spool`; then
lists are chosen, features completed and everything is written (:mod:`rankfall.data.ranking` says what). What
grows in memory is a few words for each list, nothing for a row. The directory gets its name when all of it
is on disk.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import tempfile
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall._files import sync
from rankfall.data.letor import MAX_ID, Block, Rules, parse_block
from rankfall.data.ranking import (
    FORMAT,
    MANIFEST,
    VERSION,
    Moments,
    RankingData,
    Scaling,
    checksum,
    is_prepared,
)
from rankfall.data.source import Source
from rankfall.data.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CHUNK_ROWS = 1 << 16  # rows whose labels are looked at together
CHUNK_BYTES = 16 << 20  # of features written at once
BAD_LINES_SHOWN = 20
LABELS_SHOWN = 32  # a histogram of more different labels gets bins
LABEL_BINS = 20

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DATA_LINE = re.compile(rb"^[ \t\r\v\f]*[^#\s].*", re.MULTILINE)
_QID_LINE = re.compile(rb"^[ \t\r\v\f]*[^#\s]+[ \t\r\v\f]+qid:", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done with the lists; the manifest keeps it.

    Lists shorter than `min_list` are dropped. Lists longer than `max_list` are cut to a sample that holds
    at least `keep_positives` documents with a label above 0, as far as there are so many (ARF, B.2: 41, 200
    and 15); the sample depends on `seed` and the query's id alone. With `log1p` a feature v becomes sign(v)
    log(1 + abs(v)). Values that are missing or not finite become `missing_value` after that, and with
    `missing_indicator` each feature that misses a value anywhere gets a column which is 1 where it does.
    `standardise` names the splits whose mean and deviation standardise all of them. `features` and
    `first_id` say how many columns there are and which feature id is the first; otherwise the data decide.
    """

    min_list: int = 1
    max_list: int | None = None
    keep_positives: int = 15
    log1p: bool = False
    missing_value: float | None = None
    missing_indicator: bool = False
    standardise: tuple[str, ...] = ()
    regroup: bool = False
    skip_bad_lines: bool = False
    features: int | None = None
    first_id: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        _check(self.min_list >= 1, "min_list", self.min_list, "at least 1")
        _check(self.keep_positives >= 0, "keep_positives", self.keep_positives, "at least 0")
        _check(self.first_id in (None, 0, 1), "first_id", self.first_id, "0, 1 or None")
        _check(self.seed >= 0, "seed", self.seed, "at least 0")
        if self.max_list is not None:
            _check(
                self.max_list >= self.min_list,
                "max_list",
                self.max_list,
                f"at least min_list, {self.min_list}",
            )
        if self.features is not None:
            _check(1 <= self.features < 10**8, "features", self.features, "from 1 to 99999999")
        if self.missing_value is None:
            _check(not self.missing_indicator, "missing_indicator", True, "given together with missing_value")
        else:
            finite = bool(np.isfinite(np.float32(self.missing_value)))
            _check(finite, "missing_value", self.missing_value, "a finite number")


@dataclass(frozen=True, slots=True)
class _Columns:
    """The features of the whole data set: ids from `first_id` on, then the indicators."""

    first_id: int
    ids: int
    indicators: NDArray[np.int64]  # columns that get one

    @property
    def total(self) -> int:
        return self.ids + len(self.indicators)


def prepare_letor(
    sources: Mapping[str, Sequence[Path]],
    out: Path,
    recipe: Recipe,
    *,
    groups: Mapping[Path, Path] | None = None,
    threads: int = 1,
    force: bool = False,
    on_read: Callable[[int], None] = lambda n: None,
) -> RankingData:
    """Read the files of each split as if they were one and write prepared data to `out`.

    Lists are told by qid or by the sizes in a file, which `groups` names for a source; a source without qid
    takes the file beside it that ends in ``.query`` or ``.group``. `on_read` hears how many bytes were
    read, as stored.
    """
    _check_splits(sources, recipe)
    _check(threads >= 1, "threads", threads, "at least 1")
    with _fresh_directory(out, force) as directory, ExitStack() as stack:
        splits = {}
        for name, paths in sources.items():
            spool = stack.enter_context(closing(Spool(directory / f"spool-{name}")))
            splits[name] = _Split(name, spool, recipe)
            for path in paths:
                splits[name].read(Source(path, on_read), (groups or {}).get(path), threads)
        _write(splits, recipe, directory)
    return RankingData.load(out)


# --- reading ------------------------------------------------------------------------------------------------


class _Split:
    """The rows of a split and where its lists are: spans of rows, several a list if they were apart."""

    def __init__(self, name: str, spool: Spool, recipe: Recipe) -> None:
        self.name = name
        self.spool = spool
        self.recipe = recipe
        self.sources: list[dict[str, Any]] = []
        self.lists: dict[str, int] = {}  # number of each list by its qid
        self.has_qids = False
        self._numbers = array("q")  # the list of each span,
        self._starts = array("q")  # its first row,
        self._first_lines = array("q")  # its first line,
        self._last_lines = array("q")  # its last line,
        self._origins = array("q")  # and the source of those
        self._groups = 0  # lists told by sizes so far
        self._current: str | None = None

    def read(self, source: Source, group_file: Path | None, threads: int) -> None:
        lines = rows = bad_lines = 0
        shown: list[dict[str, Any]] = []
        grouping = _Grouping(source.path, group_file, first_list=self._groups)
        about: dict[str, Any] = {"path": str(source.path)}
        self.sources.append(about)
        with closing(_parsed(source, grouping, self.recipe, threads)) as blocks:
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
        """The first row of each span, the row after its last and the number of its list, by lists."""
        starts = np.array(self._starts)
        ends = np.append(starts[1:], self.spool.rows)
        numbers = np.array(self._numbers)
        order = np.argsort(numbers, kind="stable")
        return starts[order], ends[order], numbers[order]

    def _add_lists(self, qids: Any, lines: NDArray[np.int64]) -> None:
        if len(lines) == 0:
            return
        changes = np.flatnonzero(pc.not_equal(qids[1:], qids[:-1]).to_numpy(zero_copy_only=False)) + 1
        firsts = np.concatenate([np.zeros(1, np.int64), changes])
        lasts = np.append(changes, len(lines)) - 1
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
            f"{self.sources[-1]['path']}:{line}: query {qid!r} starts again here; it stands in lines "
            f"{self._first_lines[before]} to {self._last_lines[before]} of {origin}, with other queries "
            "between (--regroup brings its lines together)"
        )


class _Grouping:
    """How the lines of one source form lists: by qid, or by the sizes in a file of their own."""

    def __init__(self, source: Path, file: Path | None, first_list: int) -> None:
        self._source = source
        self._file = file
        self._first_list = first_list
        self._ends: NDArray[np.int64] = np.empty(0, np.int64)
        self._data_lines = 0
        self.with_qid: bool | None = None if file is None else False
        if file is not None:
            self._ends = _group_ends(file)

    def look(self, text: bytes) -> bool:
        """Decide by the first block with data in it whether lines have a qid."""
        if self.with_qid is None and _DATA_LINE.search(text):
            self.with_qid = _QID_LINE.search(text) is not None
            if not self.with_qid:
                self._file = _group_file_of(self._source)
                self._ends = _group_ends(self._file)
        return self.with_qid is True

    def qids(self, block: Block) -> pa.StringArray:
        """The number of each row's list as a string; a broken line takes its place in a list too."""
        bad = np.array([line for line, _ in block.bad], np.int64)
        places = self._data_lines + np.arange(len(block.lines)) + np.searchsorted(bad, block.lines)
        self._data_lines += len(block.lines) + len(bad)
        if self._data_lines > (self._ends[-1] if len(self._ends) else 0):
            self._disagree("more")
        numbers = self._first_list + np.searchsorted(self._ends, places, side="right")
        return pa.array(numbers).cast(pa.string())

    def finish(self) -> int:
        """The number of lists in the file of sizes, which must not speak of more lines than there are."""
        if len(self._ends) and self._data_lines != self._ends[-1]:
            self._disagree(str(self._data_lines))
        return len(self._ends)

    def about(self) -> dict[str, str] | None:
        """What the manifest says of the file of sizes."""
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
        f"{source}: its lines have no qid, and there is no file of group sizes (give --groups, or put "
        f"{beside[0].name} beside it)"
    )


def _group_ends(file: Path) -> NDArray[np.int64]:
    sizes = array("q")
    lines = itertools.chain.from_iterable(block.splitlines() for block in Source(file).blocks())
    for number, line in enumerate(lines):
        text = line.strip()
        if not text:
            continue
        if not text.isdigit() or not 0 < int(text) < 2**40:
            shown = text[:40].decode(errors="replace")
            raise ValueError(f"{file}:{number + 1}: a group size is a whole number above 0, not {shown!r}")
        sizes.append(int(text))
    return np.cumsum(np.array(sizes, np.int64))


def _parsed(source: Source, grouping: _Grouping, recipe: Recipe, threads: int) -> Generator[tuple[int, Block]]:
    """The number of lines and the rows of each block, in order, whatever number of threads parses them."""

    def parse(text: bytes, rules: Rules) -> tuple[int, Block]:
        return text.count(b"\n"), parse_block(text, rules)

    waiting: deque[Any] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for text in source.blocks():
                rules = Rules(
                    with_qid=grouping.look(text),
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


# --- writing ------------------------------------------------------------------------------------------------


def _write(splits: dict[str, _Split], recipe: Recipe, directory: Path) -> None:
    for split in splits.values():
        if split.spool.rows == 0:
            raise ValueError(f"{split.sources[-1]['path']}: split {split.name!r} has no rows")
    columns = _columns(list(splits.values()), recipe)
    about: dict[str, Any] = {}
    moments: dict[str, Moments] = {}
    for name, split in splits.items():
        about[name], moments[name] = _write_split(split, columns, directory / name)
        shutil.rmtree(directory / f"spool-{name}")
    if recipe.standardise:
        fitted = [moments[name] for name in recipe.standardise]
        scaling = sum(fitted[1:], start=fitted[0]).scaling()
        _save(directory / "scaling.npy", np.stack([scaling.mean, scaling.deviation]))
        for name in splits:
            _standardise(directory / name / "features.npy", scaling)
            moments[name] = moments[name].scaled(scaling)
    for name in splits:
        _save(directory / name / "moments.npy", moments[name].to_array())
    _write_manifest(directory, recipe, columns, about, _shared_queries(splits))


def _columns(splits: list[_Split], recipe: Recipe) -> _Columns:
    """The columns all splits have in common; ids count from 1 unless an id 0 stands somewhere."""
    largest = max(split.spool.largest_id for split in splits)
    least = min(split.spool.least_id for split in splits)
    if largest < 0:
        raise ValueError("no line of any source has a feature")
    first_id = min(least, 1) if recipe.first_id is None else recipe.first_id
    if least < first_id:
        raise ValueError(f"first_id: expected ids from {first_id} on, but feature id {least} occurs")
    ids = recipe.features or largest + 1 - first_id
    if largest + 1 - first_id > ids:
        raise ValueError(f"features: expected {ids} from id {first_id} on, but feature id {largest} occurs")
    missing = np.unique(np.concatenate([split.spool.missing_ids for split in splits])).astype(np.int64) - first_id
    return _Columns(first_id, ids, missing if recipe.missing_indicator else missing[:0])


def _write_split(split: _Split, columns: _Columns, directory: Path) -> tuple[dict[str, Any], Moments]:
    recipe = split.recipe
    starts, ends, numbers = split.spans_of_lists()
    sizes = np.bincount(numbers, ends - starts).astype(np.int64)
    kept = np.minimum(sizes, recipe.max_list or sizes)
    kept[sizes < recipe.min_list] = 0
    if not kept.any():
        raise ValueError(
            f"min_list: every list of split {split.name!r} is shorter than {recipe.min_list}; the longest "
            f"has {sizes.max()} documents"
        )
    directory.mkdir()
    rows = int(kept.sum())
    qids = np.array(list(split.lists), dtype=object)
    moments = Moments.of(np.zeros((0, columns.total)))
    has_positive = np.zeros(len(sizes), np.bool_)
    with (
        _open_array(directory / "features.npy", "<f4", (rows, columns.total)) as features_file,
        _open_array(directory / "labels.npy", "<f4", (rows,)) as labels_file,
        _open_strings(directory / "docids.arrow", split.spool.has_docids) as write_docids,
    ):
        for low, high in _chunks_of_lists(sizes):
            span_low, span_high = np.searchsorted(numbers, [low, high])
            parts = _joined(starts[span_low:span_high], ends[span_low:span_high])
            labels = np.concatenate([split.spool.labels(start, end) for start, end in parts])
            keep = _keep(labels, sizes[low:high], kept[low:high], qids[low:high], recipe)
            labels_file.write(labels[keep].data)
            has_positive[low:high] = np.logical_or.reduceat(keep & (labels > 0), _edges(sizes[low:high])[:-1])
            for start, end, keep_part in _pieces_of(parts, keep, columns.total):
                features = split.spool.features(start, end, first_id=columns.first_id, width=columns.ids)
                features = _completed(features[keep_part], columns, recipe)
                features_file.write(features.data)
                moments += Moments.of(features)
                if split.spool.has_docids:
                    write_docids(split.spool.docids(start, end).filter(pa.array(keep_part)))
    is_kept = kept > 0
    _save(directory / "offsets.npy", _edges(kept[is_kept]))
    with _open_strings(directory / "qids.arrow") as write_qids:
        write_qids(pa.array(qids[is_kept], pa.large_string()))
    about = {
        "lists": int(is_kept.sum()),
        "rows": rows,
        "docids": split.spool.has_docids,
        "list_length": _range(kept[is_kept]),
        "labels": _label_histogram(directory / "labels.npy"),
        "lists_without_positive": int((is_kept & ~has_positive).sum()),
        "short_lists": _lists_and_rows(sizes[~is_kept], 0),
        "cut_lists": _lists_and_rows(sizes[is_kept & (kept < sizes)], recipe.max_list or 0),
        "sources": split.sources,
    }
    return about, moments


def _chunks_of_lists(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of lists that hold about `CHUNK_ROWS` rows each."""
    edges = _edges(sizes)
    low = 0
    while low < len(sizes):
        high = max(low + 1, int(np.searchsorted(edges, edges[low] + CHUNK_ROWS, side="right")) - 1)
        yield low, high
        low = high


def _joined(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The same rows in as few spans as possible."""
    apart = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    first = np.concatenate([np.zeros(1, np.int64), apart])
    last = np.append(apart, len(starts)) - 1
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))


def _pieces_of(
    parts: list[tuple[int, int]], keep: NDArray[np.bool_], width: int
) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Spans of rows that fit into memory, with what is kept of them; spans without any are left out."""
    step = max(1, CHUNK_BYTES // (4 * width))
    place = 0
    for start, end in parts:
        for low in range(start, end, step):
            high = min(end, low + step)
            keep_part = keep[place : place + high - low]
            place += high - low
            if keep_part.any():
                yield low, high, keep_part


def _keep(
    labels: NDArray[np.float32],
    sizes: NDArray[np.int64],
    kept: NDArray[np.int64],
    qids: NDArray[np.object_],
    recipe: Recipe,
) -> NDArray[np.bool_]:
    """Which rows of some whole lists stay."""
    keep = np.repeat(kept > 0, sizes)
    edges = _edges(sizes)
    for i in np.flatnonzero((kept > 0) & (kept < sizes)):
        of_list = slice(edges[i], edges[i + 1])
        keep[of_list] = sample(labels[of_list], int(kept[i]), recipe.keep_positives, recipe.seed, qids[i])
    return keep


def sample(labels: NDArray[np.float32], size: int, keep_positives: int, seed: int, qid: str) -> NDArray[np.bool_]:
    """Mark `size` documents of a list, drawn evenly, of which at least `keep_positives` have a label above 0.

    If the draw holds too few of them, and the list more, the positives next in the draw replace the others
    last in it. Seed and qid decide the draw, not the place of the list in the data.

    >>> sample(np.array([0, 0, 1, 0, 0, 1]), 2, keep_positives=2, seed=0, qid="7")
    array([False, False,  True, False, False,  True])
    """
    key = hashlib.sha256(qid.encode()).digest()
    bits = np.random.PCG64(np.random.SeedSequence([seed, *np.frombuffer(key, "<u4").tolist()]))
    drawn = np.argsort(bits.random_raw(len(labels)), kind="stable")
    first_positives = drawn[labels[drawn] > 0][: min(keep_positives, size)]
    chosen = np.zeros(len(labels), np.bool_)
    chosen[first_positives] = True
    others = drawn[~chosen[drawn]]
    chosen[others[: size - len(first_positives)]] = True
    return chosen


def _completed(features: NDArray[np.float32], columns: _Columns, recipe: Recipe) -> NDArray[np.float32]:
    """Fill missing values and append their indicators."""
    if recipe.missing_value is None:
        return features
    missing = np.isnan(features)
    features[missing] = recipe.missing_value
    return np.concatenate([features, missing[:, columns.indicators].astype(np.float32)], axis=1)


def _standardise(path: Path, scaling: Scaling) -> None:
    """Standardise a file of features in place, without mapping all of it into memory."""
    stored = np.load(path, mmap_mode="r")
    (rows, width), place = stored.shape, stored.offset
    del stored
    step = max(1, CHUNK_BYTES // (4 * width))
    with path.open("r+b") as file:
        for row in range(0, rows, step):
            file.seek(place + row * width * 4)
            chunk = np.fromfile(file, "<f4", min(step, rows - row) * width)
            file.seek(place + row * width * 4)
            file.write(scaling(chunk.reshape(-1, width)).data)


def _label_histogram(path: Path) -> dict[str, int]:
    """How often each label occurs, or each of some ranges where there are many different ones."""
    labels = np.load(path, mmap_mode="r")
    chunks = [labels[i : i + CHUNK_ROWS] for i in range(0, len(labels), CHUNK_ROWS)]
    counts: dict[float, int] = {}
    for chunk in chunks:
        for label, count in zip(*np.unique(chunk, return_counts=True), strict=True):
            counts[float(label)] = counts.get(float(label), 0) + int(count)
        if len(counts) > LABELS_SHOWN:
            break
    else:
        return {f"{label:g}": counts[label] for label in sorted(counts)}
    ends = (float(labels.min()), float(labels.max()))
    edges = np.histogram_bin_edges(labels[:0], LABEL_BINS, ends)
    total = sum(np.histogram(chunk, edges)[0] for chunk in chunks)
    names = (f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges))
    return dict(zip(names, np.asarray(total).tolist(), strict=True))


def _shared_queries(splits: dict[str, _Split]) -> dict[str, int]:
    """How many qids two splits have in common: a query in train and test would make the test worthless."""
    shared = {}
    for one, other in itertools.combinations((split for split in splits.values() if split.has_qids), 2):
        if common := len(one.lists.keys() & other.lists.keys()):
            shared[f"{one.name} and {other.name}"] = common
    return shared


def _write_manifest(
    directory: Path, recipe: Recipe, columns: _Columns, about: dict[str, Any], shared: dict[str, int]
) -> None:
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
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


# --- files --------------------------------------------------------------------------------------------------


@contextmanager
def _fresh_directory(out: Path, force: bool) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` if all goes well and disappears if not."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not is_prepared(out):
            raise ValueError(f"out: {out} exists and is not prepared ranking data; choose another name")
        if not force:
            raise ValueError(f"out: {out} exists already; --force replaces it")
    out.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".unfinished", dir=out.parent))
    try:
        yield directory
        _make_readable(directory)
        for path in (*directory.rglob("*"), directory):
            sync(path)
        replaced = _moved_aside(out) if is_prepared(out) else None
        directory.rename(out)
        sync(out.parent)
        if replaced:
            shutil.rmtree(replaced)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _moved_aside(out: Path) -> Path:
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".replaced", dir=out.parent))
    return out.rename(aside)


def _make_readable(directory: Path) -> None:
    """Temporary directories are for their owner alone; this one becomes an ordinary one."""
    mask = os.umask(0)
    os.umask(mask)
    directory.chmod(0o777 & ~mask)


@contextmanager
def _open_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """A .npy file of that shape, whose items are to be written one after the other."""
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file


def _save(path: Path, values: NDArray[Any]) -> None:
    np.save(path, values, allow_pickle=False)


@contextmanager
def _open_strings(path: Path, wanted: bool = True) -> Iterator[Callable[[Any], None]]:
    if not wanted:
        yield lambda strings: None
        return
    schema = pa.schema([("text", pa.large_string())])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        yield lambda strings: writer.write_batch(pa.record_batch([strings], schema=schema))


# --- small things -------------------------------------------------------------------------------------------


def _check_splits(sources: Mapping[str, Sequence[Path]], recipe: Recipe) -> None:
    _check(len(sources) > 0, "sources", "none", "at least one file")
    for name, paths in sources.items():
        fits = _SPLIT_NAME.fullmatch(name) is not None and name not in {MANIFEST, "scaling.npy"}
        _check(fits, "split", repr(name), "a name of letters, digits, '_', '-' and '.'")
        _check(len(paths) > 0, f"split {name}", "no file", "at least one file")
    for name in recipe.standardise:
        _check(name in sources, "standardise", repr(name), f"one of the splits {', '.join(sources)}")


def _check(holds: bool, name: str, found: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {allowed}, got {found}")


def _edges(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _range(lengths: NDArray[np.int64]) -> dict[str, float]:
    return {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())}


def _lists_and_rows(sizes: NDArray[np.int64], stay: int) -> dict[str, int]:
    return {"lists": len(sizes), "rows": int((sizes - stay).sum())}
