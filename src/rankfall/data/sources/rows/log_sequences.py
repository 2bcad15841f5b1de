"""Behaviour sequences from the log itself: the events of a user before each request.

Events have the time of their request, so several of them may have the same time. These are ordered by position, or by
rank if the description names no position, then by the ids of request and item. A client of a service knows all of them,
so it can send the history that the log has.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall.data.impressions.history import EventHistory
from rankfall.data.impressions.requests import TIME, request_keys
from rankfall.data.impressions.spec import column_of
from rankfall.data.impressions.stage_depth import above_zero

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.data.impressions.spec import SequenceConfig, Spec

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
