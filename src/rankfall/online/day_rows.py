"""The rows of a day, one per request and item, as files from which a log is prepared."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pa_parquet

from rankfall._errors import RankfallError
from rankfall.data.impressions.spec import Time, column_of
from rankfall.data.sources.rows.row_files import find_row_files, text_type, to_type
from rankfall.online.join_state import in_future
from rankfall.online.request_columns import HASH, BodyColumns
from rankfall.online.window_records import (
    EVENT_VALUE,
    OF_APART,
    OTHER_ITEM,
    REQUEST_ID,
    REQUEST_STAGES,
    REQUEST_TIME,
    REQUEST_VALUE,
    USER_REQUESTS,
)
from rankfall.serving.request_encoder import NO_ITEM
from rankfall.storage.disk import make_directory, open_new

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import FeatureConfig, Spec
    from rankfall.data.sources.rows.raw_log import Origin, Types
    from rankfall.online.parity import ParityCheck
    from rankfall.online.request_columns import BundleFinder
    from rankfall.online.window_records import DayCounts, MatchedPart, Quarantine, Reasons

    Integers = NDArray[np.int64]

_ID = "\1id"


class ItemLookup:
    """Values of items by their ids.

    Args:
        path: The table, or None for no table.
        spec: The spec of the log.
        columns: The columns that are looked up.
    """

    def __init__(self, path: Path | None, spec: Spec, columns: Sequence[str]) -> None:
        self._path = path
        self._frame = pl.DataFrame(schema={_ID: pl.String, **dict.fromkeys(columns, pl.Null)})
        if path is None:
            return
        names = list(dict.fromkeys([spec.item, *columns]))
        files = find_row_files([path])
        parts = [frame for file in files for frame in file.batches(names)]
        whole = pl.concat(parts, how="vertical_relaxed")
        if any(file.is_text for file in files):  # values that are numbers are read as numbers
            texts = [whole[name] for name in columns if whole.schema[name] == pl.String]
            whole = whole.with_columns(to_type(of, text_type(of, pl.Null(), {"id"}), spec.zone) for of in texts)
        ids = whole[spec.item]
        ids = ids.cast(pl.Int64) if ids.dtype.is_float() else ids
        self._frame = whole.select(ids.cast(pl.String).alias(_ID), *columns).unique(_ID, keep="first")

    def check(self, ids: pl.Series) -> None:
        """Check that the table has items.

        Raises:
            ValueError: If it lacks one.
        """
        if self._path is None:
            return
        wanted = ids.cast(pl.String).unique().alias(_ID).to_frame()
        lacking = wanted.join(self._frame, on=_ID, how="anti")
        if len(lacking):
            more = f" and {len(lacking) - 1:,} others" if len(lacking) > 1 else ""
            raise RankfallError(
                f"items: {self._path} has no item {lacking[_ID].min()!r}{more}, which a service has recorded; add "
                "the items to the table, with the features that they had when they were served"
            )

    def columns(self, ids: pl.Series, names: Sequence[str]) -> list[pl.Series]:
        """Return columns of items, null for unknown ones."""
        wanted = ids.cast(pl.String).alias(_ID).to_frame()
        return wanted.join(self._frame, on=_ID, how="left", maintain_order="left").select(names).get_columns()

    def values(self, column: str, ids: Sequence[Any]) -> list[Any]:
        """Return a column of items, None for unknown ones."""
        texts = pl.Series([None if value is None else str(value) for value in ids], dtype=pl.String)
        (found,) = self.columns(texts, [column])
        return found.to_list()


_PLACE, _ROW, _ITEM, _USER, _COUNT = "\1place", "\1row", "\1item", "\1user", "\1count"


class DayRows:
    """Writes the rows of a day, part by part.

    Args:
        layout: The columns.
        directory: A directory for the files, which is created.
        apart: Receives the requests and events that the log does not get.
        finder: Finds the bundles that answered.
        parity: Compares what the log gets with what the service computed.
        counts: Receives the numbers of rows and events.
        logged: Hashes of ids of requests that the log has and that no service answered, sorted.
        of_user: The largest number of requests of one user.

    Attributes:
        log: The directory of the rows.
        requests: The directory of the table of requests, None if the rows have all columns.
    """

    def __init__(
        self,
        layout: RowLayout,
        directory: Path,
        apart: Quarantine,
        finder: BundleFinder,
        parity: ParityCheck,
        counts: DayCounts,
        *,
        logged: NDArray[np.uint64],
        of_user: int,
    ) -> None:
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
        self._bodies = BodyColumns(layout, self._items.values, self._served_items, self._kind_of)
        self._directory, self.apart, self._finder = directory, apart, finder
        self.parity, self._logged, self._of_user = parity, logged, of_user
        self._number = 0
        self._of_users = pl.DataFrame(schema={_USER: pl.String, _COUNT: pl.UInt32})
        self._counts = counts
        for origin in ("log", "requests"):
            make_directory(directory / origin)
        self.log, self.requests = directory / "log", directory / "requests" if self._of("requests") else None

    def write(self, part: MatchedPart) -> None:
        """Write the rows of a part, and set apart what the log cannot have.

        Raises:
            ValueError: If the table of items lacks an item.
        """
        samples = part.samples
        columns, refused = self._bodies.make(samples)
        reasons = {place: (REQUEST_VALUE, why) for place, why in refused.items()}
        reasons |= self._unfit(samples)
        samples, columns = self._without(samples, columns, reasons)
        samples, columns = self._without(samples, columns, self._excess(columns))
        samples, columns = self._without(samples, columns, self.parity.check_scores(samples))
        rows, place = _rows(samples)
        # the row of the item of each event, null if the sample of its request does not have the item
        keys = pl.DataFrame({_PLACE: place, _ITEM: rows["item"].cast(pl.String)}).with_row_index(_ROW)
        places = samples.select("request").with_row_index(_PLACE).with_columns(pl.col(_PLACE).cast(pl.Int64))
        events = part.events.join(places, on="request", how="left", maintain_order="left")
        named = events.with_columns(pl.col("item").alias(_ITEM))
        found = named.join(keys, on=[_PLACE, _ITEM], how="left", maintain_order="left")
        found = self._usable(found.with_columns(pl.col(_ROW).cast(pl.Int64)))
        self._counts.items += len(rows)
        self._counts.models.update(dict(samples["model"].value_counts().rows()))
        of_rows = found.filter(pl.col(_ROW).is_not_null())
        is_used = of_rows["kind"].is_in(self._kinds)
        self._counts.events += int(is_used.sum())
        self._counts.unused_events.update(dict(of_rows.filter(~is_used)["kind"].value_counts().rows()))
        spec, layout = self._spec, self.layout
        self._items.check(rows["item"])
        answered = rows["stage"] == len(spec.stages) - 1
        made: dict[str, Any] = {
            spec.request: samples["request"].gather(place),
            spec.item: rows["item"],
            **self._feedback(found, len(rows)),
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
            of_log = {spec.request: samples["request"], **{name: columns[name] for name in of_requests}}
            self._write("requests", pl.DataFrame(of_log))
        self._number += 1

    def _unfit(self, samples: pl.DataFrame) -> Reasons:
        """Return the requests that the log cannot have, whatever their values are."""
        spec, expected = self._spec, len(self._spec.stages) - 1
        found: Reasons = {}
        ids = samples["request"]
        is_wrong = pl.Series(np.isin(samples[HASH].to_numpy(), self._logged))
        if self.layout.request_kind == pl.Int64:
            is_wrong |= ~ids.eq_missing(ids.str.to_integer(strict=False).cast(pl.String))
        for place in is_wrong.arg_true():
            found[place] = REQUEST_ID, "an earlier day of the log has it, or the ids of the log are numbers"
        for place in samples.select(in_future()).to_series().arg_true():
            found[place] = REQUEST_TIME, f"{samples['time'][place]}, received at {samples['received'][place]}"
        depths = samples["stage"].list.max()  # that of the answered items is the number of stages of the model
        for place in (depths != expected).arg_true():
            model, stages = samples["model"][place], ", ".join(spec.stage_names)
            found[place] = REQUEST_STAGES, f"model {model} has {depths[place]} stages, and the log the stages {stages}"
        return found

    def _excess(self, columns: dict[str, pl.Series]) -> Reasons:
        """Return the requests of users that have more of them than a day may have, in the order of hashes."""
        if self._spec.user not in columns:
            return {}
        users = columns[self._spec.user].cast(pl.String).to_frame(_USER)
        counted = users.with_columns(pl.int_range(pl.len()).over(_USER).alias(_PLACE))
        before = counted.join(self._of_users, on=_USER, how="left", maintain_order="left")
        excess = before.select(
            pl.col(_USER).is_not_null() & (pl.col(_PLACE) + pl.col(_COUNT).fill_null(0) >= self._of_user)
        ).to_series()
        added = users.filter(~excess).drop_nulls().group_by(_USER).len(_COUNT)
        self._of_users = pl.concat([self._of_users, added]).group_by(_USER).sum()
        return {
            place: (USER_REQUESTS, f"more than {self._of_user:,} of {users[_USER][place]!r}")
            for place in excess.arg_true()
        }

    def _without(
        self, samples: pl.DataFrame, columns: dict[str, pl.Series], reasons: Reasons
    ) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
        """Set requests apart."""
        if not reasons:
            return samples, columns
        for reason in sorted({reason for reason, _ in reasons.values()}):
            places = sorted(place for place, (of, _) in reasons.items() if of == reason)
            self.apart.add(reason, samples[places], [reasons[place][1] for place in places])
        kept = np.ones(len(samples), np.bool_)
        kept[list(reasons)] = False
        good = pl.Series(kept)
        return samples.filter(good), {name: values.filter(good) for name, values in columns.items()}

    def _usable(self, events: pl.DataFrame) -> pl.DataFrame:
        """Set apart events of requests that are set apart, of other items, and with values that their kind excludes."""
        low, high = (
            pl.col("kind").replace_strict(
                {kind: getattr(self._spec.event_range(kind), name) for kind in self._kinds},
                default=None,
                return_dtype=pl.Float64,
            )
            for name in ("least", "most")
        )
        is_outside = ~pl.col("value").is_between(low, high) | pl.col("value").is_nan()
        reason = (
            pl.when(pl.col(_PLACE).is_null())
            .then(pl.lit(OF_APART))
            .when(pl.col(_ROW).is_null())
            .then(pl.lit(OTHER_ITEM))
            .when(pl.col("kind").is_in(self._kinds) & is_outside)
            .then(pl.lit(EVENT_VALUE))
        )
        marked = events.with_columns(reason.alias(_COUNT))
        for (why,), some in marked.drop_nulls(_COUNT).sort(_COUNT).group_by(_COUNT, maintain_order=True):
            details = [f"{value:g}" for value in some["value"]] if why == EVENT_VALUE else None
            self.apart.add(str(why), some, details)
        return events.filter(marked[_COUNT].is_null())

    def _served_items(self, samples: pl.DataFrame, places: Integers, ids: list[Any]) -> list[Any]:
        """Return the ids of items as the bundles that answered have them, None for items that they lack."""
        found = list(ids)
        owners = samples.select("model", "bundle")[places].with_row_index(_PLACE)
        for (model, path), some in owners.group_by("model", "bundle"):
            if (bundle := self._finder.if_present(str(model), str(path))) is not None:
                at = some[_PLACE].to_list()
                rows = bundle.items.find([ids[place] for place in at])
                known = iter(bundle.items.ids(rows[rows != NO_ITEM]))
                for place, row in zip(at, rows.tolist(), strict=True):
                    found[place] = None if row == NO_ITEM else next(known)
        return found

    def _kind_of(self, samples: pl.DataFrame, features: Sequence[Sequence[str]]) -> pl.DataType | None:
        """Return the type of ids in the log that a bundle was trained on: 7 and "7" have different hashes.

        The values of the first day of a new log must not decide it, as clients may send either.
        """
        for model, path in samples.select("model", "bundle").unique().sort("model", "bundle").rows():
            if (bundle := self._finder.if_present(model, path)) is not None:
                for feature in features:
                    rule = reduce(lambda rules, key: rules.get(key, {}), feature, bundle.manifest["request"])
                    if rule.get("text") is not None:
                        return pl.String() if rule["text"] else pl.Int64()
        return None

    def _feedback(self, found: pl.DataFrame, count: int) -> dict[str, pl.Series]:
        """Return the sums of the values of events by kind, added in a fixed order, within the bounds of the kind."""
        sums = {}
        for kind in self._kinds:
            of_kind = found.filter(pl.col("kind") == kind)
            values = np.bincount(of_kind[_ROW].to_numpy(), of_kind["value"].to_numpy(), minlength=count)
            allowed = self._spec.event_range(kind)
            within = np.clip(values, min(0.0, allowed.least), allowed.most)
            self._counts.capped += int((within != values).sum())
            sums[kind] = pl.Series(kind, within)
        return sums

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
            raise RankfallError(f"the sample of request {request!r} has not one {name} for each item")
    rows = pl.DataFrame([samples[name].explode(empty_as_null=False, keep_nulls=False).alias(name) for name in names])
    return rows, np.repeat(np.arange(len(samples)), lengths)


_RENAMED = " (as "  # a column that is used in several ways, see find_columns


@dataclass(frozen=True)
class RequestColumn:
    """A column that describes requests.

    Attributes:
        name: The column.
        origin: ``"log"`` or ``"requests"``.
        kind: Its type in the log, None if that is not decided yet.
        fields: The features of the body whose values it has, as group and name.
        feature: The first of these features, None for time and day.
    """

    name: str
    origin: Origin
    kind: pl.DataType | None
    fields: tuple[tuple[str, str], ...] = ()
    feature: FeatureConfig | None = None


@dataclass(frozen=True)
class SequenceColumn:
    """A column with the values of a feature of the events of a sequence."""

    name: str
    origin: Origin
    kind: pl.DataType | None
    sequence: str
    feature: str


@dataclass(frozen=True)
class RowLayout:
    """The columns of joined rows.

    Attributes:
        spec: The spec of the log.
        requests: Columns that come from bodies.
        sequences: Columns of sequences, which come from bodies, too.
        item_columns: Columns of items that the rows have, from the table of items.
        request_kind: The type of ids of requests in the log, None if it is not decided yet.
        stage_kind: The type of the column of stages.
        tables: The tables that are joined when the rows are encoded.
        scalings: Mean and deviation of features that are standardised, if the log exists.
    """

    spec: Spec
    requests: list[RequestColumn]
    sequences: list[SequenceColumn]
    item_columns: list[str]
    request_kind: pl.DataType | None
    stage_kind: pl.DataType | None
    tables: dict[Origin, Path]
    scalings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def make_layout(spec: Spec, types: Types | None, items: Path | None, users: Path | None) -> RowLayout:
    """Decide where columns are.

    Args:
        spec: The spec of the log.
        types: The columns of a log that exists, with their types.
        items: The table of items.
        users: The table of users.

    Raises:
        ValueError: If requests cannot have a column that the spec names, or a table is missing.
    """
    if spec.time is None:
        raise RankfallError("spec: time: missing; the days of joined logs are dates of the time of requests")
    given: dict[Origin, Path | None] = {"items": items, "users": users}
    columns = {
        origin: list(dict.fromkeys(name for file in find_row_files([path]) for name in file.columns()))
        for origin, path in given.items()
        if path is not None
    }
    origins = _Origins(types, columns)
    requests = {spec.time.column: RequestColumn(spec.time.column, *origins.of(spec.time.column, ("log", "requests")))}
    if spec.day is not None:
        requests[spec.day] = RequestColumn(spec.day, *origins.of(spec.day, ("log", "requests")))
    for group, name, feature in spec.features:
        follows_time = isinstance(feature, Time) and feature.column is None
        if group == "item" or follows_time:
            continue
        column = column_of(spec, name, feature)
        allowed: tuple[Origin, ...] = ("log", "requests") if column == spec.user else ("log", "users", "requests")
        origin, kind = origins.of(column, allowed if group == "user" else ("log", "requests"))
        if origin == "users":
            continue
        known = requests.get(column)
        fields = ((group, name),) if known is None else (*known.fields, (group, name))
        requests[column] = RequestColumn(column, origin, kind, fields, known.feature if known else feature)
    if spec.user is not None and spec.user not in requests:
        raise RankfallError(
            f"spec: user: no feature of users has the column {spec.user!r}, so that requests do not have its values"
        )
    sequences = [
        SequenceColumn(column, *origins.of(column, ("log", "requests")), name, feature_name)
        for name, sequence in spec.sequences.items()
        for feature_name, column in (sequence.columns or {}).items()
    ]
    places = {
        column: origins.of(column, ("log", "items"))[0]
        for name, feature in spec.features.item.items()
        if (column := column_of(spec, name, feature)) != spec.item
    }
    for column in places:
        if given["items"] is None:
            raise RankfallError(f"items: missing, expected a table of items with the column {column!r} of the spec")
        if column not in columns["items"]:
            raise RankfallError(
                f"items: {given['items']} has no column {column!r}, which the spec names; it has "
                f"{', '.join(columns['items'])}"
            )
    if places and spec.item not in columns["items"]:
        raise RankfallError(f"items: {given['items']} has no column {spec.item!r}, the ids of items")
    if given["users"] is None and types is not None and any(place == "users" for place, _ in types):
        raise RankfallError("users: missing, expected a table of users as the one that the log was prepared with")
    used: set[Origin] = {use for use in origins.used if use in given}
    return RowLayout(
        spec,
        list(requests.values()),
        sequences,
        [column for column, origin in places.items() if origin == "log"],
        origins.kind("log", spec.request),
        None if spec.stage is None else origins.kind("log", spec.stage),
        {origin: path for origin, path in given.items() if path is not None and origin in used},
    )


class _Origins:
    """Decides on places: those of a log that exists, or those of a new one."""

    def __init__(self, types: Types | None, columns: dict[Origin, list[str]]) -> None:
        self._types = None
        if types is not None:
            self._types = {(place, name.partition(_RENAMED)[0]): kind for (place, name), kind in types.items()}
        self._columns = columns
        self.used: set[Origin] = set()

    def of(self, column: str, allowed: tuple[Origin, ...]) -> tuple[Origin, pl.DataType | None]:
        """Return the place and the type of a column, if it is known."""
        if self._types is not None:
            found = next((place for place in allowed if (place, column) in self._types), allowed[0])
        else:
            tables: list[Origin] = [place for place in allowed if place in ("items", "users")]
            in_table = next((place for place in tables if column in self._columns.get(place, ())), None)
            found = in_table or ("requests" if "requests" in allowed else "items")
        self.used.add(found)
        return found, self.kind(found, column)

    def kind(self, place: Origin, column: str) -> pl.DataType | None:
        """Return the type of a column, None if it is not decided yet."""
        return None if self._types is None else self._types.get((place, column))
