"""The spec of a full-stage log: its columns, its stages and its features, in one YAML file.

.. code-block:: yaml

    request: request_id
    item: video_id
    user: user_id
    time: {column: request_timestamp, unit: ms, zone: Asia/Shanghai}
    stage: stage                  # a column with the name of the deepest stage that an item reached
    rank: rank                    # its rank in that stage, the smallest is the best
    stages:                       # in the order of the funnel: items dropped first come first
      - {name: prerank_neg, sample: 10}
      - {name: rank_neg, sample: 10}
      - {name: rank_pos, sample: 10}
    relevant: rank_pos            # a stage: items that reached it; or {column: long_view}
    feedback: [effective_view, long_view]
    position: shown_at            # the place at which an item was shown, from 0 for the first; null or -1: not shown
    inclusion: probability        # the probability with which an item was drawn for the log; null: 1
    features:
      user:
        user_id: {kind: categorical, num_buckets: 40000}
        age: {kind: dense, standardise: true, missing: 0}
      context:
        hour: {kind: time, part: hour}
      item:
        video_id: {kind: categorical, vocabulary: true, embedding: video}
        author_id: {kind: categorical, hash_bucket_size: 100000}
        duration: {kind: dense, log1p: true, bucketize: 10}
    sequences:
      history: {max_length: 50, features: [video_id, author_id], feedback: effective_view}

Every categorical feature becomes ids of the rows of an embedding table. Row 0 is for missing values and padding, row 1
for values never seen, the others are for known values.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from rankfall._config import KIND, MAX_COUNT, ConfigError, Section, explain, read_yaml, shown
from rankfall._errors import RankfallError, did_you_mean
from rankfall.encoding import FIRST_KNOWN as FIRST_KNOWN
from rankfall.encoding import MISSING as MISSING
from rankfall.encoding import UNSEEN as UNSEEN
from rankfall.option_types import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Group = Literal["user", "context", "item"]
Unit = Literal["s", "ms", "us"]
Part = Literal["month", "weekday", "hour", "minute"]
PARTS: dict[Part, int] = {"month": 12, "weekday": 7, "hour": 24, "minute": 60}  # the number of values, from 0 on

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Buckets = Annotated[int, Field(ge=1, lt=2**31 - FIRST_KNOWN)]
MAX_BUCKETS = 1_000_000  # of a number: the edges are stored with the log
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RankfallError(f"found {name!r}, expected a name of letters, digits, '_' and '-'")
    return name


Name = Annotated[str, AfterValidator(_plain)]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RankfallError(f"found {name!r}, expected the name of a time zone such as UTC or Asia/Shanghai") from None
    return name


# --- features ---------------------------------------------------------------------------------------------------


class Vocabulary(Section):
    """Ids for the values that occur on the days the encoding is fitted to, the most frequent first.

    Attributes:
        min_count: Values with fewer occurrences count as never seen.
        max_size: Keep only this many of the most frequent values.
    """

    min_count: Count = 1
    max_size: Buckets | None = None


def _vocabulary(value: object) -> object:
    if value is True:
        return {}
    return None if value is False else value


class Categorical(Section):
    """A feature with ids; exactly one of `num_buckets`, `hash_bucket_size` and `vocabulary` defines them.

    Attributes:
        column: The column of the log; by default the name of the feature.
        num_buckets: Values are whole numbers from 0 to below this.
        hash_bucket_size: Values are hashed into this many ids.
        vocabulary: Values are those that occur; true, or the options of the vocabulary.
        embedding: Features with the same name here share ids and embeddings.
    """

    kind: Literal["categorical"] = "categorical"
    column: str | None = None
    num_buckets: Buckets | None = None
    hash_bucket_size: Buckets | None = None
    vocabulary: Annotated[Vocabulary | None, BeforeValidator(_vocabulary)] = None
    embedding: Name | None = None

    @model_validator(mode="after")
    def _has_one_kind_of_ids(self) -> Self:
        given = [name for name in ("num_buckets", "hash_bucket_size", "vocabulary") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise RankfallError(f"found {found}, expected one of num_buckets, hash_bucket_size, vocabulary")
        return self


def _edges(buckets: int | list[float] | None) -> int | list[float] | None:
    if isinstance(buckets, int) and not 2 <= buckets <= MAX_BUCKETS:
        raise RankfallError(f"found {shown(buckets)}, expected 2 to {MAX_BUCKETS} buckets")
    if isinstance(buckets, list) and (not buckets or any(a >= b for a, b in pairwise(buckets))):
        raise RankfallError(f"found {shown(buckets)}, expected numbers in increasing order")
    return buckets


def _missing(value: object) -> object:
    if value is None or value == "indicator":
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        hint = did_you_mean(value, ["indicator"])
        raise RankfallError(f"found {shown(value)}{hint}, expected a finite number, or indicator")
    if not math.isfinite(value):
        raise RankfallError(f"found {value}, expected a finite number, or indicator")
    return float(value)


class Dense(Section):
    """A number, or a vector of `size` numbers; with `bucketize` it becomes the id of a bucket.

    The operations are applied in this order: `log1p` (sign(v) log(1 + abs(v))), `missing`, then `standardise` or
    `bucketize`.

    Attributes:
        column: The column of the log; by default the name of the feature.
        size: The number of values per row; above 1, the column holds lists.
        log1p: Replace a value v by sign(v) log(1 + abs(v)).
        missing: Replaces null and NaN, which are errors otherwise. indicator: they become 0, and the model also
            receives a number that is 1 where the value is missing; with bucketize they have their own id.
        standardise: Scale to mean 0 and variance 1, fitted to the first days.
        bucketize: The inner edges of the buckets, or the number of buckets of equal counts to fit.
    """

    kind: Literal["dense"] = "dense"
    column: str | None = None
    size: Count = 1
    log1p: bool = False
    missing: Annotated[float | Literal["indicator"] | None, BeforeValidator(_missing)] = None
    standardise: bool = False
    bucketize: Annotated[int | list[float] | None, AfterValidator(_edges)] = None

    @property
    def has_indicator(self) -> bool:
        """Whether a model also learns which numbers are missing."""
        return self.missing == "indicator"

    @property
    def replacement(self) -> float | None:
        """The number that replaces missing ones, or None if these are errors."""
        return 0.0 if self.missing == "indicator" else self.missing

    @property
    def width(self) -> int:
        """The number of numbers that a model receives, if the feature has no ids."""
        return 2 * self.size if self.has_indicator else self.size

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.bucketize is not None and (self.standardise or self.size > 1):
            raise RankfallError(
                "bucketize: found with standardise or size > 1, expected single numbers that are not standardised"
            )
        return self


class Time(Section):
    """A part of a date and time, in the time zone of the log. Weekday 0 is Monday.

    Attributes:
        column: The column of the log; by default the time of the request.
        unit: The unit of a column of whole numbers; dates need none.
        part: The part of the time that is the feature.
        embedding: Features with the same name here share ids and embeddings.
    """

    kind: Literal["time"] = "time"
    column: str | None = None
    unit: Unit | None = None
    part: Part
    embedding: Name | None = None

    @model_validator(mode="after")
    def _has_a_column_for_its_unit(self) -> Self:
        if self.unit is not None and self.column is None:
            raise RankfallError("unit: found without a column; the time of the request has its own unit")
        return self


def _kind(value: object) -> str:
    found = value.get("kind", "nothing") if isinstance(value, dict) else getattr(value, "kind", "nothing")
    return f"{KIND}{found}"


FeatureConfig = Annotated[
    Annotated[Categorical, Tag(KIND + "categorical")]
    | Annotated[Dense, Tag(KIND + "dense")]
    | Annotated[Time, Tag(KIND + "time")],
    Discriminator(_kind),
]


class FeatureGroups(Section):
    """The features of the user, of the context of the request and of the items.

    Attributes:
        user: Features of the user, by name.
        context: Features of the request, by name.
        item: Features of the items, by name.
    """

    user: dict[Name, FeatureConfig] = Field(default={})
    context: dict[Name, FeatureConfig] = Field(default={})
    item: dict[Name, FeatureConfig] = Field(default={})

    def __iter__(self) -> Iterator[tuple[Group, str, FeatureConfig]]:  # type: ignore[override]
        """Iterate over all features with their group and name."""
        groups: list[Group] = ["user", "context", "item"]
        for group in groups:
            for name, feature in getattr(self, group).items():
                yield group, name, feature

    @model_validator(mode="after")
    def _share_ids_that_agree(self) -> Self:
        seen: dict[str, tuple[str, object]] = {}
        for group, name, feature in self:
            if isinstance(feature, Dense):
                continue
            ids, table = _ids(feature), table_of(group, name, feature)
            place, other = seen.setdefault(table, (f"{group}.{name}", ids))
            if ids != other:
                raise RankfallError(
                    f"{group}.{name} and {place} share the embedding {table!r}, but define its ids differently"
                )
        return self


def table_of(group: Group, name: str, feature: Categorical | Time | Dense) -> str:
    """Return the name of the embedding table that the ids of a feature belong to."""
    shared = None if isinstance(feature, Dense) else feature.embedding
    return shared or f"{group}.{name}"


def column_of(spec: Spec, name: str, feature: Categorical | Time | Dense) -> str:
    """Return the column of the log that has the values of a feature."""
    if isinstance(feature, Time) and feature.column is None:
        assert spec.time is not None  # validated by the spec
        return spec.time.column
    return feature.column or name


def _ids(feature: Categorical | Time) -> object:
    if isinstance(feature, Time):
        return feature.part
    return feature.num_buckets, feature.hash_bucket_size, feature.vocabulary


# --- the log ----------------------------------------------------------------------------------------------------


class LoggedStage(Section):
    """A stage of the logged funnel: it contains the items dropped here, the last stage those that passed all others.

    Attributes:
        name: The name of the stage, as in the column `stage`.
        sample: The number of items sampled per request; by default all.
        flag: A column that is above 0 for the items that reached the stage.
    """

    name: Name
    sample: Count | None = None
    flag: str | None = None


class TimeColumn(Section):
    """The time of a request.

    Attributes:
        column: The column with the time of the request.
        unit: The unit of a column of whole numbers since 1970; dates need none.
        zone: The time zone of days.
    """

    column: str
    unit: Unit | None = None
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"


class Relevant(Section):
    """The relevant items: those that reached a stage, or those with a column above 0.

    Attributes:
        stage: Items that reached this stage are relevant.
        column: Items with a value above 0 in this column are relevant.
    """

    stage: str | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if (self.stage is None) == (self.column is None):
            raise RankfallError(f"found {'both' if self.stage else 'neither'}, expected either a stage or a column")
        return self


class EventRange(Section):
    """What events of a kind may add to the feedback of an item of one request.

    Attributes:
        least: The smallest value of an event.
        most: The largest value of an event, and of the sum for an item.
    """

    least: float = Field(default=0.0, ge=-LARGEST, le=LARGEST)
    most: float = Field(default=LARGEST, gt=0, le=LARGEST)

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        if self.least >= self.most:
            raise RankfallError(f"least: found {self.least:g}, expected less than most, {self.most:g}")
        return self


class SequenceConfig(Section):
    """The events of a user before the request, oldest first.

    Events are the items with a feedback above 0 earlier in the log, or are given with the request as columns of lists.

    Attributes:
        max_length: The number of events that are kept, the latest.
        features: The item features of events; they share their ids.
        feedback: Events are the items of the user with this feedback above 0.
        columns: The column of lists for each of the features.
    """

    max_length: Count = 50
    features: list[str] = Field(min_length=1)
    feedback: str | None = None
    columns: dict[str, str] | None = None

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.feedback is None) == (self.columns is None):
            raise RankfallError(f"found {'both' if self.feedback else 'neither'}, expected either feedback or columns")
        if self.columns is not None and set(self.columns) != set(self.features):
            raise RankfallError(f"columns: found {', '.join(self.columns)}, expected one for each of {self.features}")
        return self


def _mapping(key: str) -> BeforeValidator:
    """Let a text stand for a section whose other keys have their defaults."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _source(value: object) -> object:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and not isinstance(value.get("name"), str):
        raise RankfallError(f"name: found {shown(value.get('name'))}, expected a name or 'module:function'")
    return value


class Spec(Section):
    """The columns, stages and features of a full-stage log.

    Attributes:
        request: The column with the id of the request.
        item: The column with the id of the item.
        user: The column with the id of the user.
        time: The column with the time of the request, or the column, its unit and the time zone.
        day: A column with the names of days; by default the date of `time`.
        stage: A column with the name, or the index from 0, of an item's stage.
        rank: A column with the rank in that stage, the smallest is the best.
        stages: The stages in the order of the funnel; by default one, which contains every item.
        feedback: Columns with feedback of users, such as clicks or revenue.
        events: The range of the values of events by feedback, for `rankfall join`; 0 to 1e10.
        position: A column with the place at which an item was shown, 0 for the first; null or -1 if it was not.
        inclusion: A column with the probability with which an item was drawn for the log, above 0 and at most 1.
        truth: A column with the true relevance, in simulated logs.
        negatives: The number of random items of the log added to each request.
        sequences: Sequences of events, by name.
        source: A function that yields tables of rows, instead of files: its name or reference, such as
            ./my_source.py:read, and its options. It is called by 'rankfall prepare rows' only.
    """

    request: str = "request_id"
    item: str = "item_id"
    user: str | None = None
    time: Annotated[TimeColumn | None, _mapping("column")] = None
    day: str | None = None
    stage: str | None = None
    rank: str | None = None
    stages: list[LoggedStage] = Field(default=[LoggedStage(name="logged")], min_length=1)
    relevant: Annotated[Relevant, _mapping("stage")]
    feedback: list[str] = Field(default=[])
    events: dict[str, EventRange] = Field(default={})
    position: str | None = None
    inclusion: str | None = None
    truth: str | None = None
    negatives: int = Field(default=0, ge=0, le=MAX_COUNT)
    features: FeatureGroups = FeatureGroups()
    sequences: dict[Name, SequenceConfig] = Field(default={})
    source: Annotated[dict[str, Any] | None, BeforeValidator(_source)] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = self.stage_names
        _all_different("stages", names)
        _all_different("feedback", self.feedback)
        for kind in self.events:
            _one_of("events", kind, [*self.feedback, *filter(None, [self.relevant.column, self.truth])])
        if self.time is None and self.day is None:
            raise RankfallError("time: missing; without it the column `day` must name the days of the log")
        flags = [stage.flag for stage in self.stages if stage.flag is not None]
        if self.stage is not None and "stages" not in self.model_fields_set:
            raise RankfallError(f"stages: missing; expected the stages that the column {self.stage!r} names")
        if self.stage is None and len(flags) < len(names) and len(names) > 1:
            raise RankfallError("stage: missing; without this column every stage needs a flag")
        if self.stage is not None and flags:
            raise RankfallError("stage: found this column and flags of stages, expected one of them")
        if self.relevant.stage is not None:
            _one_of("relevant", self.relevant.stage, names)
        for name, sequence in self.sequences.items():
            self._check_sequence(f"sequences.{name}", sequence)
        if self.time is None and any(isinstance(f, Time) and f.column is None for _, _, f in self.features):
            raise RankfallError(
                "features: a time feature without a column uses the time of the request, but `time` is missing"
            )
        return self

    def _check_sequence(self, where: str, sequence: SequenceConfig) -> None:
        _all_different(f"{where}.features", sequence.features)
        for feature in sequence.features:
            _one_of(f"{where}.features", feature, list(self.features.item))
            if is_dense(self.features.item[feature]):
                raise RankfallError(f"{where}.features: found {feature}, which is a number; sequences have ids only")
        if sequence.feedback is not None:
            _one_of(f"{where}.feedback", sequence.feedback, self.feedback)
            if self.user is None or self.time is None:
                raise RankfallError(f"{where}: sequences of feedback need both `user` and `time`")

    def event_range(self, kind: str) -> EventRange:
        """Return the range of the values of events of a kind."""
        return self.events.get(kind, EventRange())

    @property
    def stage_names(self) -> list[str]:
        """The names of the stages, in the order of the funnel."""
        return [stage.name for stage in self.stages]

    @property
    def has_funnel(self) -> bool:
        """Whether items reached different stages. Without a funnel, grades come from the relevance."""
        return len(self.stages) > 1

    @property
    def zone(self) -> str:
        """The time zone of days and of parts of times; UTC if the log has no times."""
        return self.time.zone if self.time else "UTC"


def is_dense(feature: Categorical | Dense | Time) -> bool:
    """Return whether a model receives numbers instead of ids."""
    return isinstance(feature, Dense) and feature.bucketize is None


def load_spec(path: Path) -> Spec:
    """Load the spec of a log from a YAML file.

    Raises:
        ConfigError: If the file cannot be read or is not a valid spec.
    """
    return validate_spec(read_yaml(path), where=str(path))


def validate_spec(content: Mapping[str, Any], *, where: str = "spec") -> Spec:
    """Validate the spec of a log.

    Args:
        content: The keys and values of the spec.
        where: The prefix of error messages.

    Raises:
        ConfigError: If the spec is not valid; the message names all wrong keys.
    """
    try:
        return Spec.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def _all_different(where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RankfallError(f"{where}: {name!r} occurs twice")


def _one_of(where: str, found: str, allowed: list[str]) -> None:
    if found not in allowed:
        raise RankfallError(f"{where}: found {found!r}{did_you_mean(found, allowed)}; allowed are {', '.join(allowed)}")


# --- what a model sees ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of an impression: an id, or `size` numbers if it has no embedding."""

    name: str
    group: Group
    embedding: str | None = None  # the embedding table of its ids
    rows: int = 0  # the number of rows of that table
    size: int = 1  # the number of numbers of a feature without ids


@dataclass(frozen=True, slots=True)
class Sequence:
    """A behaviour sequence and the item features of its events."""

    name: str
    max_length: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """The features and sequences that a model receives."""

    features: tuple[Feature, ...]
    sequences: tuple[Sequence, ...] = ()

    def of(self, group: Group) -> tuple[Feature, ...]:
        """Return the features of the user, of the context or of the items."""
        return tuple(feature for feature in self.features if feature.group == group)

    def item(self, name: str) -> Feature:
        """Return the item feature of that name."""
        return next(feature for feature in self.of("item") if feature.name == name)

    @property
    def tables(self) -> dict[str, int]:
        """The number of rows of each embedding table."""
        return {feature.embedding: feature.rows for feature in self.features if feature.embedding is not None}

    def with_rows(self, rows: Mapping[str, int]) -> Features:
        """Return the features with other numbers of rows of some embedding tables."""
        changed = (replace(feature, rows=rows.get(feature.embedding or "", feature.rows)) for feature in self.features)
        return replace(self, features=tuple(changed))

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in manifests and checkpoints."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Features:
        """Read the form that is stored in manifests and checkpoints."""
        return cls(
            tuple(Feature(**feature) for feature in content["features"]),
            tuple(
                Sequence(sequence["name"], sequence["max_length"], tuple(sequence["features"]))
                for sequence in content["sequences"]
            ),
        )


def features_of(spec: Spec, rows: Mapping[str, int]) -> Features:
    """Return the features that a model receives from a log.

    Args:
        spec: The spec of the log.
        rows: The number of rows of each embedding table.
    """
    features = []
    for group, name, config in spec.features:
        if is_dense(config):
            assert isinstance(config, Dense)
            features.append(Feature(name, group, size=config.width))
        else:
            table = table_of(group, name, config)
            features.append(Feature(name, group, table, rows[table]))
    sequences = [
        Sequence(name, sequence.max_length, tuple(sequence.features)) for name, sequence in spec.sequences.items()
    ]
    return Features(tuple(features), tuple(sequences))
