"""Prepare ranking data from ranking text, in constant memory.

The text is read in blocks, parsed by threads and written to a `LetorSpool`. Then lists are chosen, features are
completed and the files described in `ranking_data` are written. Memory grows with the number of lists, by a few words
for each, but not with rows. The directory is renamed when all files are on disk.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from rankfall._argument_types import checked
from rankfall._files import fresh_directory
from rankfall._manifest import MANIFEST
from rankfall.data.lists.ranking_data import (
    RankingData,
    is_prepared,
)
from rankfall.data.sources.letor.letor_spool import LetorSpool
from rankfall.data.sources.letor.recipe import Recipe, check
from rankfall.data.sources.letor.split_reader import SplitReader
from rankfall.data.sources.letor.text_files import TextFile
from rankfall.data.sources.letor.write_splits import write_splits
from rankfall.data.sources.problems import pointing_to_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


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
            spool = stack.enter_context(closing(LetorSpool(directory / f"spool-{name}")))
            splits[name] = SplitReader(name, spool, recipe)
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
        raise ValueError("\n".join([f"skip_bad: found more than {limit:,} invalid lines; the first are", *lines[:3]]))


def _check_splits(sources: Mapping[str, Sequence[Path]], recipe: Recipe) -> None:
    check(len(sources) > 0, "sources", "none", "at least one file")
    for name, paths in sources.items():
        fits = _SPLIT_NAME.fullmatch(name) is not None and name not in {MANIFEST, "scaling.npy"}
        check(fits, "split", repr(name), "a name of letters, digits, '_', '-' and '.'")
        check(len(paths) > 0, f"split {name}", "no file", "at least one file")
    for name in recipe.standardise:
        check(name in sources, "standardise", repr(name), f"one of the splits {', '.join(sources)}")
