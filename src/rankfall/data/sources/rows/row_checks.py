"""What can be wrong in a row by itself: missing keys, unknown stages, and values that a feature does not accept.

Each check receives rows whose columns have their types, with null in place of what could not be converted, and yields
the rows that are wrong. The conditions are those under which the preparation stops, or reads a value as another one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall.data.impressions.assemble import EventHistory
from rankfall.data.impressions.log_writer import DAY_NAME
from rankfall.data.impressions.requests import TIME, BadRows, above_zero, bad_inclusions, bad_places, request_keys
from rankfall.data.impressions.spec import Categorical, Dense, column_of
from rankfall.data.sources.problems import USE_MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankfall.data.impressions.spec import SequenceConfig, Spec


_FIRST_YEAR, _LAST_YEAR = 631_152_000_000, 4_102_444_800_000  # 1990 and 2100; other years may be due to a wrong unit


def check_rows(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    """Yield what is wrong in rows of a log, to which the columns of the tables are joined.

    Args:
        rows: The rows, with `TIME` if the log has times.
        spec: The description; columns that it names and the rows have not are not checked.
    """
    yield from _keys(rows, spec)
    yield from _stages(rows, spec)
    yield from bad_places(rows, (spec.rank, spec.position))
    yield from bad_inclusions(rows, spec)
    yield from _labels(rows, spec)
    yield from _features(rows, spec)
    yield from check_sequences(rows, spec)


def _keys(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    for column in (spec.request, spec.item):
        yield BadRows(column, "found no value, expected an id", rows[column].is_null())
    if spec.day is not None and spec.day in rows.columns:
        days = rows[spec.day].cast(pl.String)
        yield BadRows(spec.day, "found no value, expected the name of a day", days.is_null())
        named = days.str.contains(f"^(?:{DAY_NAME.pattern})$").fill_null(True)
        yield BadRows(spec.day, "found another name, expected letters, digits, '_' and '-'", ~named, days)
    if spec.time is not None and TIME in rows.columns:
        yield BadRows(spec.time.column, "found no value, expected a time", rows[TIME].is_null())
        far = (rows[TIME] < _FIRST_YEAR) | (rows[TIME] >= _LAST_YEAR)
        problem = "found years before 1990 or after 2099; is the unit right"
        yield BadRows(spec.time.column, problem, far.fill_null(False), _shown_times(rows[TIME]), "warning")
    if spec.user is not None and spec.user in rows.columns:
        yield BadRows(
            spec.user, "found no user; such requests have no history", rows[spec.user].is_null(), None, "warning"
        )


def _shown_times(times: pl.Series) -> pl.Series:
    return pl.from_epoch(times, "ms").dt.strftime("%Y-%m-%d %H:%M")


def _stages(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    names = spec.stage_names
    if spec.stage is not None and spec.stage in rows.columns:
        raw = rows[spec.stage]
        is_text = raw.dtype == pl.String
        known = raw.is_in(names) if is_text else raw.is_between(0, len(names) - 1)
        allowed = ", ".join(names) if is_text else f"0 to {len(names) - 1} ({', '.join(names)})"
        yield BadRows(spec.stage, f"found an unknown stage, expected one of {allowed}", ~known.fill_null(False), raw)
        return
    flags = [stage.flag for stage in spec.stages if stage.flag is not None]
    if flags and len(flags) == len(names):
        reached = pl.Series([False]).new_from_index(0, len(rows))
        for flag in flags:
            reached = reached | above_zero(rows[flag])
        yield BadRows(", ".join(flags), "found none above 0, expected the stage that the item reached", ~reached)


def _labels(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    relevant = spec.relevant.column
    for column in dict.fromkeys((relevant, *spec.feedback, spec.truth)):
        if column is None or column not in rows.columns:
            continue
        numbers = rows[column].cast(pl.Float64)
        infinite = numbers.cast(pl.Float32, strict=False).is_infinite().fill_null(False)
        yield BadRows(column, "found an infinite number, expected finite numbers", infinite, rows[column])
        missing = numbers.is_nan().fill_null(False)
        yield BadRows(column, "found NaN, which is read as 0", missing, rows[column], "warning")
    if relevant is not None and relevant in rows.columns:
        values = rows[relevant]
        yield BadRows(relevant, "found no value, which is read as 0", values.is_null(), None, "warning")
        negative = (values < 0).fill_null(False)
        yield BadRows(relevant, "found a negative relevance, which is read as 0", negative, values, "warning")


def _features(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    for _, name, feature in spec.features:
        column = column_of(spec, name, feature)
        if column not in rows.columns:
            continue
        values = rows[column]
        if isinstance(feature, Dense):
            yield from _numbers(values, feature)
        elif isinstance(feature, Categorical) and feature.num_buckets is not None:
            yield _negative(values, feature.num_buckets)


def _numbers(values: pl.Series, feature: Dense) -> Iterator[BadRows]:
    if feature.size > 1:
        wrong = (values.list.len() != feature.size).fill_null(False)
        yield BadRows(values.name, f"found another number of values, expected lists of {feature.size}", wrong, values)
        finite = values.list.eval(pl.element().is_finite().fill_null(False)).list.all()
        missing = ~finite.fill_null(False) & ~wrong
    else:
        missing = ~values.cast(pl.Float64).is_finite().fill_null(False)
    if feature.missing is None:
        problem = f"found no number, NaN or infinity, expected numbers, or {USE_MISSING} in the description"
        yield BadRows(values.name, problem, missing, values)


def _negative(values: pl.Series, buckets: int) -> BadRows:
    problem = f"found a negative number, expected whole numbers from 0 to {buckets - 1}"
    mask = (values.cast(pl.Int64) < 0).fill_null(False)
    return BadRows(values.name, problem, mask, values)


def check_sequences(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    """Yield the rows whose sequences are wrong, as far as the rows have their columns."""
    for name, sequence in spec.sequences.items():
        lengths: dict[str, pl.Series] = {}
        for feature_name, column in (sequence.columns or {}).items():
            if column not in rows.columns:
                continue
            lists = rows[column].list.tail(sequence.max_length)
            lengths[column] = lists.list.len().fill_null(0)
            feature = spec.features.item[feature_name]
            if isinstance(feature, Categorical) and feature.num_buckets is not None:
                negative = (lists.list.min() < 0).fill_null(False)
                problem = f"found a negative number, expected whole numbers from 0 to {feature.num_buckets - 1}"
                yield BadRows(column, problem, negative, rows[column])
        first, *others = list(lengths.values()) or [pl.Series([], dtype=pl.UInt32)]
        for column, length in list(zip(lengths, [first, *others], strict=False))[1:]:
            problem = f"found another number of events than in {next(iter(lengths))!r} (sequences.{name})"
            yield BadRows(column, problem, length != first, length)


_NO_PLACE = 2**62  # of items without a position or rank, which come last


class PortionEvents(NamedTuple):
    """The user and time of each request of a portion, and the events of each sequence."""

    requests: pl.DataFrame
    of_sequence: dict[str, pl.DataFrame]


class SequenceHistories:
    """One history per sequence of feedback. Portions go through :meth:`advance` in their order.

    Args:
        spec: The description of the log.
        events: The events of earlier days by sequence, as :meth:`events` returned them.
    """

    def __init__(self, spec: Spec, events: Mapping[str, pl.DataFrame] = MappingProxyType({})) -> None:
        self._histories = {
            name: EventHistory(
                sequence.max_length,
                [f"sequence.{name}.{feature}" for feature in sequence.features],
                events.get(name),
                ties=["request", "item"],
            )
            for name, sequence in _of_feedback(spec).items()
        }

    def events(self) -> dict[str, pl.DataFrame]:
        """Return the events of each sequence that later requests may need."""
        found = {name: history.events for name, history in self._histories.items()}
        return {name: events for name, events in found.items() if events is not None}

    def advance(self, events: PortionEvents) -> list[pl.Series]:
        """Return the columns ``sequence.NAME.FEATURE`` of the requests of the next portion."""
        columns: list[pl.Series] = []
        for name, history in self._histories.items():
            requests = events.requests.with_row_index("place")
            known = requests.drop_nulls()  # requests without a user have no history
            found = history.advance(known["user"], known["time"], events.of_sequence[name])
            found = requests.join(found.with_columns(known["place"]), on="place", how="left", maintain_order="left")
            columns += found.select(history.columns).get_columns()
        return columns


def event_columns(spec: Spec) -> list[str]:
    """Return the columns from which events are made; none if no sequence is made of feedback."""
    columns: list[str] = []
    for sequence in _of_feedback(spec).values():
        assert sequence.feedback is not None
        assert spec.time is not None  # validated by the spec
        columns += [spec.time.column, sequence.feedback, *_place_columns(spec)]
        columns += [column_of(spec, name, spec.features.item[name]) for name in sequence.features]
    return list(dict.fromkeys(columns))


def find_events(spec: Spec, rows: pl.DataFrame, requests: pl.DataFrame) -> PortionEvents:
    """Find the events in the rows of a portion.

    Args:
        spec: The description of the log.
        rows: The rows, with the columns of :func:`event_columns`.
        requests: The first row of each request.
    """
    keys = requests.select(user=_user(spec), time=_times(spec, requests))
    return PortionEvents(keys, {name: _events(spec, rows, name) for name in _of_feedback(spec)})


def _events(spec: Spec, rows: pl.DataFrame, name: str) -> pl.DataFrame:
    sequence = spec.sequences[name]
    assert sequence.feedback is not None
    rows = rows.filter(above_zero(rows[sequence.feedback]) & _user(spec).is_not_null())
    values = {
        f"sequence.{name}.{feature}": pl.col(column_of(spec, feature, spec.features.item[feature]))
        for feature in sequence.features
    }
    place = pl.lit(0, pl.Int64)
    for column in _place_columns(spec):
        place = pl.when(pl.col(column) >= 0).then(pl.col(column)).otherwise(_NO_PLACE)
    keys = {"order": place, "request": pl.col(spec.request), "item": pl.col(spec.item)}
    return rows.select(user=_user(spec), time=_times(spec, rows), **keys, **values)


def _place_columns(spec: Spec) -> list[str]:
    """Return the column that orders the items of a request, if the log has one."""
    return [column for column in (spec.position, spec.rank) if column is not None][:1]


def _of_feedback(spec: Spec) -> dict[str, SequenceConfig]:
    return {name: sequence for name, sequence in spec.sequences.items() if sequence.feedback is not None}


def _user(spec: Spec) -> pl.Expr:
    assert spec.user is not None  # validated by the spec
    return pl.col(spec.user)


def _times(spec: Spec, rows: pl.DataFrame) -> pl.Series:
    return request_keys(rows, spec)[TIME]
