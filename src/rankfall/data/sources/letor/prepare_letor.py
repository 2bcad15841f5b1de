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
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._errors import RankfallError, checked
from rankfall.data.arrays import Moments, Scaling, edges
from rankfall.data.lists.ranking_data import FORMAT, VERSION, RankingData, is_prepared
from rankfall.data.sources.letor.parse import Recipe, TextFile, check
from rankfall.data.sources.letor.split_reader import LetorSpool, SplitReader
from rankfall.data.sources.problems import pointing_to_check
from rankfall.storage.disk import delete, make_directory, open_new
from rankfall.storage.files import checksum, fresh_directory
from rankfall.storage.manifests import MANIFEST, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


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
    _write_manifest(directory, recipe, columns, about, _shared_queries(splits))


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
    rows = np.repeat(order, _copies(labels[order], sizes, kept, qids, recipe))
    is_kept, offsets = kept > 0, edges(kept[kept > 0])
    make_directory(directory)
    moments = Moments.of(np.zeros((0, columns.total)))
    step = max(1, CHUNK_BYTES // (4 * columns.total))
    with (
        _open_array(directory / "features.npy", "<f4", (len(rows), columns.total)) as file,
        _open_strings(directory / "docids.arrow", split.has_docids) as write_docids,
    ):
        for first in range(0, len(rows), step):
            raw, docids = spool.take(rows[first : first + step], first_id=columns.first_id, width=columns.ids)
            features = _completed(raw, columns, recipe)
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


def _copies(
    labels: NDArray[np.float32],
    sizes: NDArray[np.int64],
    kept: NDArray[np.int64],
    qids: NDArray[np.object_],
    recipe: Recipe,
) -> NDArray[np.int64]:
    """Return how often each row is written; the rows of a list follow each other."""
    copies = np.repeat((kept > 0).astype(np.int64), sizes)
    bounds = edges(sizes)
    draw = sample_with_replacement if recipe.replacement else sample
    for i in np.flatnonzero((kept > 0) & (kept < sizes)):
        of_list = slice(bounds[i], bounds[i + 1])
        copies[of_list] = draw(labels[of_list], int(kept[i]), recipe.keep_positives, recipe.seed, qids[i])
    return copies


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


def _shared_queries(splits: dict[str, SplitReader]) -> dict[str, int]:
    """Count the qids that two splits have in common: a query in train and test invalidates the test."""
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
    write_manifest(directory / MANIFEST, manifest)


@contextmanager
def _open_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """Open a .npy file of that shape, to which the items are written one after the other."""
    with open_new(path) as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file


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
                    splits[name].read(TextFile(path, on_read), (groups or {}).get(path), threads)
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
