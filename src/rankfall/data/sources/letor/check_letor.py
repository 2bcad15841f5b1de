"""Check ranking text: read everything, write nothing, and list every problem with its number and first lines."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall.data.sources.letor.split_reader import Grouping, parsed_blocks
from rankfall.data.sources.letor.text_files import TextFile
from rankfall.data.sources.problems import DataCheck, Findings, Kind, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from rankfall.data.sources.letor.recipe import Recipe

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
        changes = np.flatnonzero(pc.not_equal(qids[1:], qids[:-1]).to_numpy(zero_copy_only=False)) + 1
        firsts = np.concatenate([np.zeros(1, np.int64), changes])
        for qid, first in zip(qids.take(pa.array(firsts)).to_pylist(), firsts.tolist(), strict=True):
            place = Place(path, found=f"query {qid!r}", line=int(lines[first]))
            if qid != self._current and qid in self.queries and not self._recipe.regroup:
                problem = "found a query that starts again, with other queries in between (--regroup joins them)"
                self._found.add(Kind("error", None, problem, "lines"), 1, [place])
            self.queries.setdefault(qid, place)
            self._current = qid
