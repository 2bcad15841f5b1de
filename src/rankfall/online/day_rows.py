"""The rows of a day, one per request and item, as files from which a log is prepared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pa_parquet

from rankfall._disk import make_directory, open_new
from rankfall.online.item_lookup import ItemLookup
from rankfall.online.match_records import NOT_IN_SAMPLE, REASON
from rankfall.online.request_columns import BodyColumns

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.online.match_records import MatchedPart
    from rankfall.online.row_layout import RowLayout

    Integers = NDArray[np.int64]

_PLACE, _ROW, _ITEM = "\1place", "\1row", "\1item"
MOST_REASONS = 5


@dataclass
class RowCounts:
    """Counts of the rows of a day."""

    rows: int = 0
    events: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)  # of the first requests that were refused
    unused: Counter[str] = field(default_factory=Counter)  # events by kinds that the description does not name
    models: Counter[str] = field(default_factory=Counter)  # requests by model


class DayRows:
    """Writes the rows of a day, part by part.

    Args:
        layout: The columns.
        directory: A directory for the files, which is created.
    """

    def __init__(self, layout: RowLayout, directory: Path) -> None:
        self.layout, spec = layout, layout.spec
        self._spec = spec
        self._kinds = list(
            dict.fromkeys(kind for kind in (*spec.feedback, spec.relevant.column, spec.truth) if kind is not None)
        )
        of_events = [
            spec.features.item[name].column or name for one in spec.sequences.values() for name in one.features
        ]
        looked_up = [*layout.item_columns, *(name for name in of_events if name != spec.item)]
        table = layout.tables.get("items")
        self._items = ItemLookup(table, spec, list(dict.fromkeys(looked_up)) if table is not None else looked_up)
        self._bodies = BodyColumns(layout, self._items.values)
        self._directory = directory
        self._number = 0
        self._deepest: dict[str, int] = {}
        self.counts = RowCounts()
        for origin in ("log", "requests"):
            make_directory(directory / origin)

    @property
    def log(self) -> Path:
        """The directory of the rows."""
        return self._directory / "log"

    @property
    def requests(self) -> Path | None:
        """The directory of the table of requests, None if the rows have all columns."""
        return self._directory / "requests" if self._of("requests") else None

    def write(self, part: MatchedPart) -> pl.DataFrame:
        """Write the rows of a part; return the events that are about other items than those of the samples.

        Raises:
            ValueError: If samples have other stages than the description, or the table of items lacks an item.
        """
        samples = part.samples
        columns, reasons = self._bodies.make(samples["body"], samples["time"])
        refused = samples["request"].gather(sorted(reasons))
        if reasons:
            samples, columns = self._without(samples, columns, reasons)
        self._check_stages(samples)
        rows, place = _rows(samples)
        found = _find_rows(part.events, samples, rows, place)
        self._write_rows(rows, place, samples, columns, self._feedback(found, len(rows)))
        counts = self.counts
        counts.rows += len(rows)
        counts.models.update(dict(samples["model"].value_counts().rows()))
        of_rows = found.filter(pl.col(_ROW).is_not_null())
        is_used = of_rows["kind"].is_in(self._kinds)
        counts.events += int(is_used.sum())
        counts.unused.update(dict(of_rows.filter(~is_used)["kind"].value_counts().rows()))
        self._number += 1
        elsewhere = found.filter(pl.col(_ROW).is_null() & ~pl.col("request").is_in(refused.implode()))
        return elsewhere.drop(_ROW, _PLACE, _ITEM).with_columns(pl.lit(NOT_IN_SAMPLE).alias(REASON))

    def check_depth(self) -> None:
        """Check that every model has as many stages as the description expects.

        Raises:
            ValueError: If one has another number.
        """
        expected = len(self._spec.stages) - 1
        for model, deepest in self._deepest.items():
            if deepest != expected:
                raise ValueError(
                    f"spec: stages: found {', '.join(self._spec.stage_names)}, expected {deepest + 1} stages: "
                    f"one for the items that each of the {deepest} stages of model {model} dropped, and one for those "
                    "that were answered"
                )

    def _check_stages(self, samples: pl.DataFrame) -> None:
        deepest = samples.group_by("model").agg(pl.col("stage").list.max().max())
        for model, found in deepest.sort("model").rows():
            if found is None:  # its answers were empty, and it had nothing to drop
                continue
            self._deepest[model] = max(self._deepest.get(model, 0), found)
            if found >= len(self._spec.stages):
                self.check_depth()

    def _without(
        self, samples: pl.DataFrame, columns: dict[str, pl.Series], refused: dict[int, str]
    ) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
        """Leave out requests that cannot be logged."""
        counts = self.counts
        for place in sorted(refused)[: MOST_REASONS - len(counts.reasons)]:
            counts.reasons.append(f"request {samples['request'][place]!r}: {refused[place]}")
        counts.refused += len(refused)
        kept = np.ones(len(samples), np.bool_)
        kept[list(refused)] = False
        good = pl.Series(kept)
        return samples.filter(good), {name: values.filter(good) for name, values in columns.items()}

    def _feedback(self, found: pl.DataFrame, count: int) -> dict[str, pl.Series]:
        """Return the sums of the values of events by kind, added in a fixed order."""
        known = found.filter(pl.col(_ROW).is_not_null())
        sums = {}
        for kind in self._kinds:
            of_kind = known.filter(pl.col("kind") == kind)
            values = np.bincount(of_kind[_ROW].to_numpy(), of_kind["value"].to_numpy(), minlength=count)
            sums[kind] = pl.Series(kind, values)
        return sums

    def _write_rows(
        self,
        rows: pl.DataFrame,
        place: Integers,
        samples: pl.DataFrame,
        columns: dict[str, pl.Series],
        feedback: dict[str, pl.Series],
    ) -> None:
        spec, layout = self._spec, self.layout
        self._items.check(rows["item"])
        answered = rows["stage"] == len(spec.stages) - 1
        made: dict[str, Any] = {
            spec.request: samples["request"].gather(place),
            spec.item: rows["item"],
            **feedback,
        }
        if spec.stage is not None:
            names = pl.Series(spec.stage_names, dtype=pl.String)
            made[spec.stage] = rows["stage"] if layout.stage_kind == pl.Int64 else names.gather(rows["stage"])
        for depth, stage in enumerate(spec.stages):
            if stage.flag is not None:
                made[stage.flag] = (rows["stage"] >= depth).cast(pl.Int64)
        if spec.rank is not None:
            made[spec.rank] = rows["rank"]
        if spec.position is not None:
            made[spec.position] = pl.select(pl.when(answered).then(rows["rank"])).to_series()
        if spec.inclusion is not None:
            made[spec.inclusion] = rows["inclusion"]
        of_items = self._items.columns(rows["item"], layout.item_columns)
        made |= dict(zip(layout.item_columns, of_items, strict=True))
        made |= {name: columns[name].gather(place) for name in self._of("log")}
        self._write("log", pl.DataFrame({name: values.alias(name) for name, values in made.items()}))
        if of_requests := self._of("requests"):
            named = {spec.request: samples["request"], **{name: columns[name] for name in of_requests}}
            self._write("requests", pl.DataFrame(named))

    def _of(self, origin: str) -> list[str]:
        names = [column.name for column in self.layout.requests if column.origin == origin]
        return names + [column.name for column in self.layout.sequences if column.origin == origin]

    def _write(self, origin: str, frame: pl.DataFrame) -> None:
        with open_new(self._directory / origin / f"{self._number:04d}.parquet") as file:
            pa_parquet.write_table(frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()), file)


def _rows(samples: pl.DataFrame) -> tuple[pl.DataFrame, Integers]:
    """Return one row per item of samples, and the place of its sample."""
    names = ("item", "stage", "rank", "inclusion")
    lengths = samples["item"].list.len().fill_null(0).to_numpy()
    for name in names:
        if (bad := samples[name].list.len().fill_null(0).to_numpy() != lengths).any():
            request = samples["request"][int(bad.argmax())]
            raise ValueError(f"the sample of request {request!r} has not one {name} for each item")
    rows = pl.DataFrame([samples[name].explode(empty_as_null=False, keep_nulls=False).alias(name) for name in names])
    return rows, np.repeat(np.arange(len(samples)), lengths)


def _find_rows(events: pl.DataFrame, samples: pl.DataFrame, rows: pl.DataFrame, place: Integers) -> pl.DataFrame:
    """Add the row of its item to each event, null if the sample of its request does not have the item."""
    keys = pl.DataFrame({_PLACE: place, _ITEM: rows["item"].cast(pl.String)}).with_row_index(_ROW)
    places = samples.select("request").with_row_index(_PLACE).with_columns(pl.col(_PLACE).cast(pl.Int64))
    of_samples = events.join(places, on="request", how="left", maintain_order="left")
    named = of_samples.with_columns(pl.col("item").alias(_ITEM))
    return named.join(keys, on=[_PLACE, _ITEM], how="left", maintain_order="left").with_columns(
        pl.col(_ROW).cast(pl.Int64)
    )
