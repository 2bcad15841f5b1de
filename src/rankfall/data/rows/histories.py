"""The sequences of a log that come from the log itself: what users did before each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rankfall.data.assemble import column_of
from rankfall.data.encoding import to_times
from rankfall.data.hashing import combine, hash_values
from rankfall.data.history import History
from rankfall.data.stages import above_zero

if TYPE_CHECKING:
    from rankfall.data.spec import Spec


class Histories:
    """One history for each sequence that is made of feedback."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._histories = {
            name: History(sequence.max_length, [f"sequence.{name}.{feature}" for feature in sequence.features])
            for name, sequence in spec.sequences.items()
            if sequence.feedback is not None
        }

    def advance(self, rows: pl.DataFrame, requests: pl.DataFrame) -> list[pl.Series]:
        """The columns ``sequence.NAME.FEATURE`` of the requests of a portion, which follows those before in time."""
        columns: list[pl.Series] = []
        for name, history in self._histories.items():
            everyone = requests.select(user=self._user, time=self._times(requests)).with_row_index("place")
            asked = everyone.drop_nulls()  # a visitor nobody knows has no past
            found = history.advance(asked["user"], asked["time"], self._events(rows, name))
            found = everyone.join(found.with_columns(asked["place"]), on="place", how="left", maintain_order="left")
            columns += found.select(history.columns).get_columns()
        return columns

    def _events(self, rows: pl.DataFrame, name: str) -> pl.DataFrame:
        spec, sequence = self.spec, self.spec.sequences[name]
        assert sequence.feedback is not None  # of those that have a history
        rows = rows.filter(above_zero(rows[sequence.feedback]) & self._user.is_not_null())
        values = {
            f"sequence.{name}.{feature}": pl.col(column_of(spec, feature, spec.features.item[feature]))
            for feature in sequence.features
        }
        order = combine(hash_values(rows[spec.request]), hash_values(rows[spec.item]))
        return rows.select(user=self._user, time=self._times(rows), order=pl.Series(order), **values)

    @property
    def _user(self) -> pl.Expr:
        assert self.spec.user is not None  # the description was checked
        return pl.col(self.spec.user)

    def _times(self, rows: pl.DataFrame) -> pl.Series:
        assert self.spec.time is not None  # the description was checked
        return to_times(rows[self.spec.time.column], self.spec.time.unit, self.spec.zone).dt.epoch("ms")
