"""The sequences of a log that come from the log itself: what users did before each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall.data.impressions.assemble import column_of
from rankfall.data.impressions.encoding import to_times
from rankfall.data.impressions.hashing import combine, hash_values
from rankfall.data.impressions.history import History
from rankfall.data.impressions.stage_depth import above_zero

if TYPE_CHECKING:
    from rankfall.data.impressions.spec import SequenceConfig, Spec


class Events(NamedTuple):
    """What happened in a portion: user and time of each of its requests, and the events of each sequence."""

    requests: pl.DataFrame
    of_sequence: dict[str, pl.DataFrame]


class Histories:
    """One history for each sequence that is made of feedback. Portions go through :meth:`advance` in their order."""

    def __init__(self, spec: Spec) -> None:
        self._histories = {
            name: History(sequence.max_length, [f"sequence.{name}.{feature}" for feature in sequence.features])
            for name, sequence in _of_feedback(spec).items()
        }

    def advance(self, events: Events) -> list[pl.Series]:
        """The columns ``sequence.NAME.FEATURE`` of the requests of a portion, which follows those before in time."""
        columns: list[pl.Series] = []
        for name, history in self._histories.items():
            everyone = events.requests.with_row_index("place")
            asked = everyone.drop_nulls()  # a visitor nobody knows has no past
            found = history.advance(asked["user"], asked["time"], events.of_sequence[name])
            found = everyone.join(found.with_columns(asked["place"]), on="place", how="left", maintain_order="left")
            columns += found.select(history.columns).get_columns()
        return columns


def event_columns(spec: Spec) -> list[str]:
    """The columns of which events are made; none if no sequence is made of feedback."""
    columns: list[str] = []
    for sequence in _of_feedback(spec).values():
        assert sequence.feedback is not None
        assert spec.time is not None  # the description was checked
        columns += [spec.time.column, sequence.feedback]
        columns += [column_of(spec, name, spec.features.item[name]) for name in sequence.features]
    return list(dict.fromkeys(columns))


def find_events(spec: Spec, rows: pl.DataFrame, requests: pl.DataFrame) -> Events:
    """The events in the rows of a portion, of which `requests` has one for each request."""
    asked = requests.select(user=_user(spec), time=_times(spec, requests))
    return Events(asked, {name: _events(spec, rows, name) for name in _of_feedback(spec)})


def _events(spec: Spec, rows: pl.DataFrame, name: str) -> pl.DataFrame:
    sequence = spec.sequences[name]
    assert sequence.feedback is not None
    rows = rows.filter(above_zero(rows[sequence.feedback]) & _user(spec).is_not_null())
    values = {
        f"sequence.{name}.{feature}": pl.col(column_of(spec, feature, spec.features.item[feature]))
        for feature in sequence.features
    }
    order = combine(hash_values(rows[spec.request]), hash_values(rows[spec.item]))
    return rows.select(user=_user(spec), time=_times(spec, rows), order=pl.Series(order), **values)


def _of_feedback(spec: Spec) -> dict[str, SequenceConfig]:
    return {name: sequence for name, sequence in spec.sequences.items() if sequence.feedback is not None}


def _user(spec: Spec) -> pl.Expr:
    assert spec.user is not None  # the description was checked
    return pl.col(spec.user)


def _times(spec: Spec, rows: pl.DataFrame) -> pl.Series:
    assert spec.time is not None  # the description was checked
    return to_times(rows[spec.time.column], spec.time.unit, spec.zone).dt.epoch("ms")
