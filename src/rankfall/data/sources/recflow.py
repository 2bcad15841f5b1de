"""RecFlow's published layout: a full-stage log of a video platform.

::

    SRC/all_stage/2024-01-13.feather            one row per request and item: everything except sequences
    SRC/seq_effective_50_dict/2024-01-13.pkl    {request: array (50, 10)}: the videos watched before
    SRC/others/id_cnt.pkl                       {feature: number of ids}

The pickles are read with `safe_pickle`, which runs no code. ``request_id_dict`` repeats the items of ``all_stage``
without users and times, and is not read.

Items that are in none of the stages of the cascade are left out: the two-stage cascade has no stage for items that only
the rerank stages logged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa

from rankfall._config import shown
from rankfall._engine import LOCAL
from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.assemble import EventHistory
from rankfall.data.impressions.encoding import hash_values, to_times
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.requests import above_zero, check_seed
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import Step, append_rows, check_rows, prepare_rows
from rankfall.data.sources.rows.raw_log import RowBatch, column_uses
from rankfall.data.sources.rows.row_files import ROW, RowFile, to_type
from rankfall.data.sources.safe_pickle import read_dict, read_pairs
from rankfall.encoding import combine
from rankfall.storage.disk import delete_tree, make_directory, open_new, rename
from rankfall.storage.files import about_file, fresh_directory, new_content, scratch_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import DataCheck
    from rankfall.data.sources.rows.row_files import InvalidRow

    OnProgress = Callable[[str, int, int | None], None]

USER_IDS = ("user_id", "device_id", "age", "gender", "province")
ITEM_IDS = ("video_id", "author_id", "category_level_two", "category_level_one", "upload_type")
FEEDBACK = (
    "realshow",
    "effective_view",
    "long_view",
    "like",
    "follow",
    "forward",
    "comment",
    "playing_time",
)
FLAGS = ("rerank_pos", "rerank_neg", "rank_pos", "rank_neg", "coarse_neg", "prerank_neg")  # deepest first
STAGES: dict[int, tuple[str, ...]] = {
    2: ("prerank_neg", "coarse_neg", "rank_neg", "rank_pos"),
    3: ("prerank_neg", "coarse_neg", "rank_neg", "rerank_neg", "rerank_pos"),
}
HISTORY = "history"  # the sequence of effective views
HISTORY_LENGTH = 50
RANK = "rank"  # the column computed by `rank_expression`
POSITION = "position"  # the column computed by `position_expression`
TRUTH = "truth"  # the column of true relevance in simulated logs
ZONE = "Asia/Shanghai"
SAMPLE = 10  # items per stage in the published experiments

_UPLOAD = {"column": "upload_timestamp", "unit": "s"}
_PARTS = ("weekday", "hour", "minute")


def sequence_column(feature: str) -> str:
    """Return the column of lists with a feature of the events."""
    return f"sequence.{HISTORY}.{feature}"


def recflow_spec(
    id_counts: Mapping[str, int], *, stages: Literal[2, 3] = 2, sample: int | Sequence[int] | None = SAMPLE
) -> Spec:
    """Return the features and stages of the published experiments.

    As in the published models, request and upload share the embeddings of weekday, hour and minute.

    Args:
        id_counts: The number of ids of each of `USER_IDS` and `ITEM_IDS`.
        stages: The number of stages of the cascade.
        sample: The number of items sampled per stage: one for all stages or one for each, first stage first.
    """
    samples = sample if isinstance(sample, Sequence) else [sample] * len(STAGES[stages])
    ids = {name: {"kind": "categorical", "num_buckets": id_counts[name]} for name in (*USER_IDS, *ITEM_IDS)}
    times = {part: {"kind": "time", "part": part, "embedding": part} for part in _PARTS}
    content: dict[str, Any] = {
        "request": "request_id",
        "item": "video_id",
        "user": "user_id",
        "time": {"column": "request_timestamp", "unit": "ms", "zone": ZONE},
        "rank": RANK,
        "stages": [
            {"name": name, "flag": name, "sample": count} for name, count in zip(STAGES[stages], samples, strict=True)
        ],
        "relevant": STAGES[stages][-1],
        "feedback": list(FEEDBACK),
        "features": {
            "user": {name: ids[name] for name in USER_IDS},
            "context": times,
            "item": {
                **{name: ids[name] for name in ITEM_IDS},
                **{f"upload_{part}": {**times[part], **_UPLOAD} for part in _PARTS},
            },
        },
        "sequences": {
            HISTORY: {
                "max_length": HISTORY_LENGTH,
                "features": list(ITEM_IDS),
                "columns": {name: sequence_column(name) for name in ITEM_IDS},
            }
        },
    }
    return validate_spec(content)


def rank_expression(stages: Literal[2, 3]) -> pl.Expr:
    """Return the rank of an item in the deepest stage that ranked it, null if none did.

    RecFlow has one column of ranks per stage.
    """
    in_rank = (pl.col("rank_pos") > 0) | (pl.col("rank_neg") > 0)
    in_rerank = (pl.col("rerank_pos") > 0) | (pl.col("rerank_neg") > 0)
    rank = pl.when(in_rank).then(pl.col("rank_index")).otherwise(None)
    if stages == 3:
        rank = pl.when(in_rerank).then(pl.col("rerank_index")).otherwise(rank)
    return rank.alias(RANK)


def position_expression() -> pl.Expr:
    """Return the place at which an item was shown: its rank in mix-ranking if the user saw it, else null."""
    shown = pl.col("realshow").cast(pl.Float64).fill_nan(0) > 0
    return pl.when(shown & (pl.col("rerank_index") >= 0)).then(pl.col("rerank_index")).otherwise(None).alias(POSITION)


Sequences = Literal["pickle", "log", "none"]

ROWS, PICKLES, ID_COUNTS = "all_stage", "seq_effective_50_dict", "others/id_cnt.pkl"
# Columns of the arrays in the pickles. A row is an event if the time of its request is above 0, otherwise padding.
EVENT_COLUMNS = ("video_id", "author_id", "category_level_two", "category_level_one", "upload_type")
EVENT_TIME, EVENT_WIDTH = 7, 10

NO_STAGE = "rows of no stage of the cascade"
_REQUEST, _USER, _TIME, _VIEW = "request_id", "user_id", "request_timestamp", "effective_view"
_TOO_LARGE = 2**63  # for Int64
_LISTS = [sequence_column(name) for name in ITEM_IDS]


def prepare_recflow(
    source: Path,
    out: Path,
    *,
    stages: Literal[2, 3] = 2,
    days: str | None = None,
    sequences: Sequences | None = None,
    seed: int = 0,
    force: bool = False,
    skip_bad: int | None = None,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, done, total: None,
) -> ImpressionLog:
    """Prepare an impression log from a directory in RecFlow's layout.

    Args:
        source: The directory.
        out: The directory to write.
        stages: The number of stages of the cascade.
        days: One day or a range ``FIRST..LAST``; by default all days.
        sequences: The origin of behaviour sequences: the pickles, the views of the chosen days in the log itself, or
            none; by default the pickles if they exist, otherwise the log.
        seed: Seed of the sample.
        force: Replace an existing impression log.
        skip_bad: Check the rows first and drop bad ones, at most this many; by default the first one is an error.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the amount done, and the total if it is known.

    Raises:
        ValueError: If a file is missing or damaged, or has wrong columns or values.
    """
    check_seed(seed)
    with fresh_directory(out, is_log, force=force) as directory:
        found = _find_days(source, stages, days, sequences, engine)
        rows, spooled = _read_days(found, directory, {}, engine, on_progress)
        prepare_rows(
            rows,
            directory / "log",
            found.spec,
            requests=spooled,
            seed=seed,
            fit_days=1,  # nothing is fitted; days that are appended later do not change this number
            skip_bad=skip_bad,
            about={
                "command": "prepare recflow",
                "sequences": found.origin,
                "tables": _tables(found.pickles),
                "left_out": {NO_STAGE: _rows_without_stage(found.files, found.spec, engine)},
            },
            engine=engine,
            on_progress=on_progress,
        )
        delete_tree(directory / "sequences", missing_ok=True)
        for path in list((directory / "log").iterdir()):
            rename(path, directory / path.name)
        delete_tree(directory / "log")
    return ImpressionLog.load(out)


def append_recflow(
    source: Path,
    path: Path,
    *,
    days: str | None = None,
    skip_bad: int | None = None,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, done, total: None,
) -> ImpressionLog:
    """Append new days to a log that :func:`prepare_recflow` wrote; stages and sequences are those of the log.

    Args:
        source: The directory in RecFlow's layout. If sequences are made of the log itself, it must have the earlier
            days too.
        path: The log.
        days: One day or a range ``FIRST..LAST``; by default all days after the newest day of the log.
        skip_bad: Check the rows first and drop bad ones, at most this many; by default the first one is an error.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the amount done, and the total if it is known.

    Raises:
        ValueError: If the log has one of the days or was prepared by another command, a file is missing or damaged, or
            has wrong columns or values.
    """
    log = ImpressionLog.load(path)
    about = log.manifest["about"]
    if about.get("command") != "prepare recflow":
        raise RankfallError(
            f"append: {path} was not written by 'rankfall prepare recflow'; prepare the new days with it"
        )
    files = _new_files(_day_files(source), days, log)
    with scratch_directory("rankfall-recflow") as directory:
        earlier = {} if about["sequences"] != "log" else _earlier_files(source, log)
        pickles = _pickles(source, files) if about["sequences"] == "pickle" else []
        new = _Days(files, log.spec, about["sequences"], pickles)
        rows, spooled = _read_days(new, directory, earlier, engine, on_progress)
        left_out = about["left_out"][NO_STAGE] + _rows_without_stage(files, log.spec, engine)
        return append_rows(
            rows,
            path,
            requests=spooled,
            skip_bad=skip_bad,
            about={"tables": _tables(pickles), "left_out": {NO_STAGE: left_out}},
            engine=engine,
            on_progress=on_progress,
        )


def check_recflow(
    source: Path,
    *,
    stages: Literal[2, 3] = 2,
    days: str | None = None,
    sequences: Sequences | None = None,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, done, total: None,
) -> DataCheck:
    """Check a directory in RecFlow's layout: read everything, and write nothing.

    Args:
        source: The directory.
        stages: The number of stages of the cascade.
        days: One day or a range ``FIRST..LAST``; by default all days.
        sequences: The origin of behaviour sequences, as in :func:`prepare_recflow`.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the amount done, and the total if it is known.

    Returns:
        All problems of the rows, with their number and first places.

    Raises:
        ValueError: If a file is missing or damaged, or has wrong columns.
    """
    with scratch_directory("rankfall-recflow") as directory:
        found = _find_days(source, stages, days, sequences, engine)
        rows, spooled = _read_days(found, directory, {}, engine, on_progress)
        return check_rows(rows, found.spec, requests=spooled, engine=engine, on_progress=on_progress)


class _Days(NamedTuple):
    """The files of days, the spec of their rows and the origin of their sequences."""

    files: dict[str, Path]
    spec: Spec
    origin: Sequences
    pickles: list[Path]


def _find_days(
    source: Path, stages: Literal[2, 3], days: str | None, sequences: Sequences | None, engine: Engine
) -> _Days:
    files = _chosen(_day_files(source), days)
    origin: Sequences = sequences or ("pickle" if (source / PICKLES).is_dir() else "log")
    pickles = _pickles(source, files) if origin == "pickle" else []
    spec = recflow_spec(_id_counts(source, files, engine), stages=stages)
    found = [RowFile(path).columns() for path in files.values()]
    if all(TRUTH in columns for columns in found):
        spec = spec.model_copy(update={"truth": TRUTH})
    if all(name in columns for columns in found for name in position_expression().meta.root_names()):
        spec = spec.model_copy(update={"position": POSITION})
    if origin == "none":
        spec = spec.model_copy(update={"sequences": {}})
    return _Days(files, spec, origin, pickles)


def _read_days(
    days: _Days, directory: Path, earlier: Mapping[str, Path], engine: Engine, on_progress: OnProgress
) -> tuple[list[RowFile], Path | None]:
    """Check the columns of days; return their rows, and the subdirectory of `directory` with their sequences.

    Args:
        days: The days.
        directory: A temporary directory.
        earlier: Files of earlier days, with which sequences from the log itself begin.
        engine: Runs the work on files.
        on_progress: Receives the progress of each step.
    """
    files, spec, origin, pickles = days
    stages: Literal[2, 3] = 2 if spec.stage_names == list(STAGES[2]) else 3
    needed = [use.column for use in column_uses(spec) if use.role != "sequence" and use.column not in (RANK, POSITION)]
    for path in files.values():
        _check_columns(path, [*needed, *rank_expression(stages).meta.root_names()])
        _check_marks(path)
    rows: list[RowFile] = [_DayFile(path, stages) for path in files.values()]
    if origin == "none":
        return rows, None
    spooled = directory / "sequences"
    make_directory(spooled)
    reading = Step("reading sequences", None, on_progress)
    if origin == "pickle":
        with closing(engine.map(partial(_spool_pickle, spooled), zip(files, pickles, strict=True), reading)) as done:
            deque(done, maxlen=0)
    else:  # the videos watched before each request, as far as the chosen days and earlier ones have them
        history = EventHistory(HISTORY_LENGTH, ITEM_IDS)
        for path in earlier.values():
            reading(len(_views_before(path, history)))
        for day, path in files.items():
            _spool(spooled / f"{day}.arrow", [_views_before(path, history)], reading)
    _check_once(dict(zip(files, pickles or files.values(), strict=True)), spooled)
    return rows, spooled


# --- files ------------------------------------------------------------------------------------------------------


def _day_files(source: Path) -> dict[str, Path]:
    files = {path.stem: path for path in sorted((source / ROWS).glob("*.feather"))}
    if not files:
        has_dict = any((source / "request_id_dict").glob("*.pkl"))
        only = " (request_id_dict is not enough: it has no users and no times)" if has_dict else ""
        raise RankfallError(f"{source / ROWS}: found no file DATE.feather{only}")
    return files


def _chosen(files: dict[str, Path], days: str | None) -> dict[str, Path]:
    if days is None:
        return files
    first, dots, last = days.partition("..")
    last = last if dots else first
    for name in filter(None, (first, last)):
        if name not in files:
            available = f"the days are {next(iter(files))} to {list(files)[-1]}"
            raise RankfallError(f"days: found {name!r}{did_you_mean(name, files)}; {available}")
    chosen = {day: path for day, path in files.items() if (first or day) <= day <= (last or day)}
    if not chosen:
        raise RankfallError(f"days: {days!r} ends before it begins")
    return chosen


def _new_files(files: dict[str, Path], days: str | None, log: ImpressionLog) -> dict[str, Path]:
    """Return the chosen files, by default those after the newest day of a log."""
    if days is not None:
        return _chosen(files, days)
    newest = list(log.days)[-1]
    new = {day: path for day, path in files.items() if day > newest}
    if not new:
        raise RankfallError(f"append: found no day after {newest}, the newest day of {log.path}; nothing was changed")
    return new


def _earlier_files(source: Path, log: ImpressionLog) -> dict[str, Path]:
    """Return the files of the days of a log, whose views are in the sequences of later requests."""
    files = _day_files(source)
    for day in log.days:
        if day not in files:
            raise RankfallError(
                f"{source / ROWS}: found no {day}.feather, a day of {log.path}; sequences of views need the files of "
                "its days"
            )
    return {day: files[day] for day in log.days}


def _tables(pickles: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Describe the pickles for the provenance of a log."""
    return {"requests": [about_file(path) for path in pickles]} if pickles else {}


def _pickles(source: Path, days: Iterable[str]) -> list[Path]:
    paths = [source / PICKLES / f"{day}.pkl" for day in days]
    for path in paths:
        if not path.is_file():
            raise RankfallError(f"{path} does not exist (--sequences log makes sequences from the log itself)")
    return paths


def _id_counts(source: Path, files: Mapping[str, Path], engine: Engine) -> dict[str, int]:
    """Return the number of ids of each feature: the published number, otherwise the largest id that occurs."""
    path = source / ID_COUNTS
    published = {}
    if path.is_file():
        for key, count in read_dict(path).items():
            if not isinstance(key, str) or type(count) is not int or not 1 <= count < _TOO_LARGE:
                found = f"{_quoted(key)} with {_quoted(count)}"
                raise RankfallError(f"{path}: found {found}, expected names of features with numbers of ids")
            published[key.strip()] = count  # one release has a space before a name
    missing = [name for name in (*USER_IDS, *ITEM_IDS) if name not in published]
    if missing:
        with closing(engine.map(partial(_largest_of_day, missing), files.values())) as found_ids:
            largest = [max(of_day) for of_day in zip(*found_ids, strict=True)]
        published |= {name: value + 1 for name, value in zip(missing, largest, strict=True)}
    return {name: published[name] for name in (*USER_IDS, *ITEM_IDS)}


def _largest_of_day(columns: Sequence[str], path: Path, report: Report) -> list[int]:
    largest = dict.fromkeys(columns, 0)
    for batch in _rows(path, columns):
        for name in columns:
            ids = _whole(path, batch[name]).drop_nulls().to_numpy()
            largest[name] = max(largest[name], int(ids.max(initial=0)))
    return list(largest.values())


def _rows(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Iterate over columns of a day, a bounded number of rows at a time."""
    _check_columns(path, columns)
    return RowFile(path).batches(columns)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    found = RowFile(path).columns()
    for name in columns:
        if name not in found and name != ROW:
            raise RankfallError(f"{path}: found no column {name!r}{did_you_mean(name, found)}")


def _check_marks(path: Path) -> None:
    """Check that flags and views are numbers; they are compared with 0 before the types of columns are decided."""
    found = RowFile(path).columns()
    for name in (*FLAGS, _VIEW):
        if name in found and not (found[name].is_numeric() or found[name] in (pl.Boolean(), pl.Null())):
            raise RankfallError(f"{path}: column {name!r}: found {found[name]}, expected numbers")


def _whole(path: Path, values: pl.Series) -> pl.Series:
    """Convert ids and times to Int64; the files of different days may have different integer types."""
    try:
        if isinstance(values.dtype, pl.Date | pl.Datetime):
            return to_times(values, None, ZONE).dt.epoch("ms")
        if values.dtype.is_numeric() or values.dtype in (pl.Boolean(), pl.Null()):
            return to_type(values, pl.Int64(), ZONE)
    except ValueError as error:
        raise RankfallError(f"{path}: {error}") from None
    raise RankfallError(f"{path}: column {values.name!r}: found {values.dtype}, expected whole numbers")


def _rows_without_stage(files: Mapping[str, Path], spec: Spec, engine: Engine) -> int:
    flags = [name for stage in spec.stages if (name := stage.flag) is not None]
    with closing(engine.map(partial(_without_stage, flags), files.values())) as found:
        return sum(found)


def _without_stage(flags: Sequence[str], path: Path, report: Report) -> int:
    return sum(int((~_in_a_stage(batch, flags)).sum()) for batch in _rows(path, flags))


def _in_a_stage(rows: pl.DataFrame, flags: Sequence[str]) -> pl.Series:
    marks = rows.select(above_zero(rows[name]) for name in flags)
    return marks.select(pl.any_horizontal(pl.all())).to_series()


@dataclass(frozen=True)
class _DayFile(RowFile):
    """A file of a day, restricted to the rows of the cascade, with columns of their ranks and shown positions."""

    stages: Literal[2, 3]

    def columns(self) -> dict[str, pl.DataType]:
        return {**super().columns(), RANK: pl.Int64(), POSITION: pl.Int64()}

    def batches(
        self, columns: Sequence[str], on_invalid: Callable[[InvalidRow], None] | None = None
    ) -> Iterator[pl.DataFrame]:
        flags = STAGES[self.stages]
        computed = {RANK: rank_expression(self.stages), POSITION: position_expression()}
        computed = {name: values for name, values in computed.items() if name in columns}
        needed = [name for values in computed.values() for name in values.meta.root_names()]
        read = [name for name in dict.fromkeys([*columns, *flags, *needed]) if name not in computed]
        for raw in super().batches(read, on_invalid):
            # polars treats NaN as above 0, so NaN flags become 0 before the rank is computed
            batch = raw.with_columns((cs.by_name(*FLAGS, require_all=False) & cs.float()).fill_nan(0))
            yield batch.filter(_in_a_stage(batch, flags)).with_columns(*computed.values()).select(columns)


# --- sequences --------------------------------------------------------------------------------------------------


def _spool(path: Path, portions: Iterable[pl.DataFrame], report: Report) -> None:
    """Write the sequences of a day's requests to a file."""
    schema = pa.schema([(_REQUEST, pa.int64()), *((name, pa.large_list(pa.int64())) for name in _LISTS)])
    with (
        new_content(path) as temporary,
        open_new(temporary) as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        for portion in portions:
            writer.write_table(portion.to_arrow().cast(schema))
            report(len(portion))


def _check_once(sources: Mapping[str, Path], directory: Path) -> None:
    """Check that no request has two sequences, while the source of each sequence is still known."""
    requests = pl.concat(
        pl.read_ipc(directory / f"{day}.arrow", columns=[_REQUEST]).with_columns(source=pl.lit(number, pl.Int32))
        for number, day in enumerate(sources)
    )
    again = requests.filter(pl.col(_REQUEST).is_duplicated()).sort(_REQUEST, "source")
    if len(again):
        first, second = (list(sources.values())[number] for number in again["source"][:2])
        where = "twice" if first == second else f"here and in {first}"
        raise RankfallError(f"{second}: the request {again[_REQUEST][0]} occurs {where}")


def _spool_pickle(directory: Path, part: tuple[str, Path], report: Report) -> None:
    day, path = part
    _spool(directory / f"{day}.arrow", (_lists_of(path, pairs) for pairs in read_pairs(path)), report)


def _lists_of(path: Path, pairs: Sequence[tuple[str | int, Any]]) -> pl.DataFrame:
    for request, events in pairs:
        if type(request) is not int or not -_TOO_LARGE <= request < _TOO_LARGE:
            raise RankfallError(f"{path}: found the request {_quoted(request)}, expected whole numbers below 2^63")
        if not _is_events(events):
            raise RankfallError(
                f"{path}: found {_shape(events)} for the request {request}, expected arrays of whole numbers with "
                f"{EVENT_WIDTH} columns"
            )
    rows = np.concatenate([events for _, events in pairs]).astype(np.int64, copy=False)
    owner = np.repeat(np.arange(len(pairs)), [len(events) for _, events in pairs])
    real = rows[:, EVENT_TIME] > 0
    lengths = np.bincount(owner[real], minlength=len(pairs))
    columns = [rows[real, EVENT_COLUMNS.index(name)] for name in ITEM_IDS]
    edges = pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))
    lists = [pa.LargeListArray.from_arrays(edges, pa.array(np.ascontiguousarray(values))) for values in columns]
    requests = pa.array([request for request, _ in pairs], pa.int64())
    return pl.DataFrame(pa.table([requests, *lists], names=[_REQUEST, *_LISTS]))


def _is_events(events: object) -> bool:
    return (
        isinstance(events, np.ndarray)
        and events.ndim == 2
        and events.shape[1] == EVENT_WIDTH
        and np.issubdtype(events.dtype, np.integer)
    )


def _shape(events: object) -> str:
    if isinstance(events, np.ndarray):
        return f"an array of {events.dtype} of shape {events.shape}"
    return f"a {type(events).__name__}"


def _quoted(value: object) -> str:
    """Return a value of a pickle for messages; nested or long values are described instead."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    return shown(value) if value is None or isinstance(value, str | int | float) else _shape(value)


def _views_before(path: Path, history: EventHistory) -> pl.DataFrame:
    ids = list(dict.fromkeys([_REQUEST, _USER, _TIME, *ITEM_IDS]))
    nothing = pl.DataFrame(schema=dict.fromkeys(ids, pl.Int64))  # a day may be empty
    requests, events = [nothing.select(_REQUEST, _USER, _TIME)], [nothing]
    for rows in _rows(path, [*ids, _VIEW, ROW]):
        batch = RowBatch(RowFile(path), rows[ROW], rows.select(_whole(path, rows[name]) for name in ids))
        for column in (_REQUEST, _TIME, "video_id"):
            batch.check_not_null(column)
        requests.append(batch.rows.select(_REQUEST, _USER, _TIME).unique())
        events.append(batch.rows.filter(above_zero(rows[_VIEW])))
    asked = pl.concat(requests).unique(_REQUEST).sort(_TIME, _REQUEST)
    views = pl.concat(events)
    order = combine(hash_values(views[_REQUEST]), hash_values(views["video_id"]))
    happened = views.select(*ITEM_IDS, user=_USER, time=_TIME).with_columns(pl.Series("order", order))
    found = history.advance(asked[_USER], asked[_TIME], happened).rename(sequence_column)
    return pl.concat([asked.select(_REQUEST), found], how="horizontal")
