"""The description of a full-stage log: its columns, its stages and its features, in one YAML file.

.. code-block:: yaml

    request: request_id
    item: video_id
    user: user_id
    time: {column: request_timestamp, unit: ms, zone: Asia/Shanghai}
    stage: stage                  # a column with the name of the deepest stage an item reached
    rank: rank                    # its rank there, the best has the smallest
    stages:                       # in the order of the funnel: the first drops first
      - {name: prerank_neg, sample: 10}
      - {name: rank_neg, sample: 10}
      - {name: rank_pos, sample: 10}
    relevant: rank_pos            # a stage: who got there, or further; or {column: long_view}
    feedback: [effective_view, long_view]
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

Every categorical feature becomes ids of the rows of an embedding table. Row 0 is for what is missing and for padding,
row 1 for ids never seen, the others for what is known.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from rankfall._settings import KIND, ConfigError, Section, explain, read_yaml
from rankfall._suggest import did_you_mean
from rankfall.encoding import FIRST_KNOWN as FIRST_KNOWN
from rankfall.encoding import MISSING as MISSING
from rankfall.encoding import UNSEEN as UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Group = Literal["user", "context", "item"]
Unit = Literal["s", "ms", "us"]
Part = Literal["month", "weekday", "hour", "minute"]
PARTS: dict[Part, int] = {"month": 12, "weekday": 7, "hour": 24, "minute": 60}  # values from 0 on

Count = Annotated[int, Field(ge=1)]
Buckets = Annotated[int, Field(ge=1, lt=2**31 - FIRST_KNOWN)]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"found {name!r}, expected a name of letters, digits, '_' and '-'")
    return name


Name = Annotated[str, AfterValidator(_plain)]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"found {name!r}, expected the name of a time zone such as UTC or Asia/Shanghai") from None
    return name


# --- features ---------------------------------------------------------------------------------------------------


class Vocabulary(Section):
    """Ids for the values that occur in the days that are fitted on, the most frequent first."""

    min_count: Count = Field(default=1, description="Rarer values count as never seen.")
    max_size: Buckets | None = Field(default=None, description="Only so many of the most frequent values.")


def _vocabulary(value: object) -> object:
    if value is True:
        return {}
    return None if value is False else value


class Categorical(Section):
    """Something that is one of many: exactly one of `num_buckets`, `hash_bucket_size` and `vocabulary`."""

    kind: Literal["categorical"] = "categorical"
    column: str | None = Field(default=None, description="Where it stands in the log; by default under its own name.")
    num_buckets: Buckets | None = Field(default=None, description="Values are the whole numbers below this.")
    hash_bucket_size: Buckets | None = Field(default=None, description="Values are hashed into so many ids.")
    vocabulary: Annotated[Vocabulary | None, BeforeValidator(_vocabulary)] = None
    embedding: Name | None = Field(default=None, description="Features of one name here share ids and embeddings.")

    @model_validator(mode="after")
    def _has_one_kind_of_ids(self) -> Self:
        given = [name for name in ("num_buckets", "hash_bucket_size", "vocabulary") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"found {found}, expected one of num_buckets, hash_bucket_size, vocabulary")
        return self


def _edges(buckets: int | list[float] | None) -> int | list[float] | None:
    if isinstance(buckets, int) and buckets < 2:
        raise ValueError(f"found {buckets}, expected at least 2 buckets")
    if isinstance(buckets, list) and (not buckets or any(a >= b for a, b in pairwise(buckets))):
        raise ValueError(f"found {buckets}, expected numbers that rise")
    return buckets


class Dense(Section):
    """A number, or a vector of `size` numbers; with `bucketize` it becomes the id of the bucket it falls into.

    The order is `log1p` (sign(v) log(1 + abs(v))), `missing`, then `standardise` or `bucketize`.
    """

    kind: Literal["dense"] = "dense"
    column: str | None = None
    size: Count = 1
    log1p: bool = False
    missing: float | None = Field(default=None, description="What stands for null and NaN, which are errors otherwise.")
    standardise: bool = False
    bucketize: Annotated[int | list[float] | None, AfterValidator(_edges)] = Field(
        default=None, description="The inner edges of the buckets, or how many buckets of equal counts to fit."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.bucketize is not None and (self.standardise or self.size > 1):
            raise ValueError("bucketize is for single numbers and takes the place of standardise")
        return self


class Time(Section):
    """A part of a date and time, in the time zone of the log. Weekday 0 is Monday."""

    kind: Literal["time"] = "time"
    column: str | None = Field(default=None, description="By default the time of the request.")
    unit: Unit | None = Field(default=None, description="Of a column of whole numbers; dates need none.")
    part: Part
    embedding: Name | None = None

    @model_validator(mode="after")
    def _has_a_column_for_its_unit(self) -> Self:
        if self.unit is not None and self.column is None:
            raise ValueError("unit belongs to a column; without one it is the time of the request, which has its own")
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
    """Features of the user, of the request's context and of the items."""

    user: dict[Name, FeatureConfig] = Field(default={})
    context: dict[Name, FeatureConfig] = Field(default={})
    item: dict[Name, FeatureConfig] = Field(default={})

    def __iter__(self) -> Iterator[tuple[Group, str, FeatureConfig]]:  # type: ignore[override]
        """Every feature with its group and its name."""
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
                raise ValueError(f"{group}.{name} and {place} share the embedding {table!r}, but not how ids are made")
        return self


def table_of(group: Group, name: str, feature: Categorical | Time | Dense) -> str:
    """The name of the embedding table a feature's ids belong to."""
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
    """Where items of the log ended: those dropped here, or, for the last one, those that came through."""

    name: Name
    sample: Count | None = Field(default=None, description="Items kept of each request; by default all.")
    flag: str | None = Field(default=None, description="A column that is above 0 for the items that got here.")


class TimeColumn(Section):
    """When a request was made."""

    column: str
    unit: Unit | None = Field(default=None, description="Of a column of whole numbers since 1970; dates need none.")
    zone: Annotated[str, AfterValidator(_zone)] = Field(default="UTC", description="In which days begin and end.")


class Relevant(Section):
    """What the relevant items are: those of a stage and deeper, or those for which a column is above 0."""

    stage: str | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if (self.stage is None) == (self.column is None):
            raise ValueError("expected either a stage or a column")
        return self


class SequenceConfig(Section):
    """What a user did before the request, oldest first.

    Events are items with a feedback above 0 earlier in the log, or come with the request as columns of lists.
    """

    max_length: Count = 50
    features: list[str] = Field(min_length=1, description="Item features that events keep; they share their ids.")
    feedback: str | None = Field(default=None, description="Events are the user's items with this feedback above 0.")
    columns: dict[str, str] | None = Field(default=None, description="The column of lists for each of the features.")

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.feedback is None) == (self.columns is None):
            raise ValueError("expected either feedback or columns")
        if self.columns is not None and set(self.columns) != set(self.features):
            raise ValueError(f"columns: found {', '.join(self.columns)}, expected one for each of {self.features}")
        return self


def _stage_name(value: object) -> object:
    return {"stage": value} if isinstance(value, str) else value


def _column_name(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


class Spec(Section):
    """The columns, stages and features of a full-stage log."""

    request: str = "request_id"
    item: str = "item_id"
    user: str | None = None
    time: Annotated[TimeColumn | None, BeforeValidator(_column_name)] = None
    day: str | None = Field(default=None, description="A column that names the parts; by default the date of `time`.")
    stage: str | None = Field(default=None, description="A column: the name, or the number from 0, of an item's stage.")
    rank: str | None = Field(default=None, description="A column: the rank in that stage, the best has the smallest.")
    stages: list[LoggedStage] = Field(min_length=1)
    relevant: Annotated[Relevant, BeforeValidator(_stage_name)]
    feedback: list[str] = Field(default=[])
    truth: str | None = Field(default=None, description="A column: the true relevance, which simulated logs may have.")
    negatives: int = Field(default=0, ge=0, description="Items of the whole log added to each request at random.")
    features: FeatureGroups = FeatureGroups()
    sequences: dict[Name, SequenceConfig] = Field(default={})

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = self.stage_names
        _all_different("stages", names)
        _all_different("feedback", self.feedback)
        if self.time is None and self.day is None:
            raise ValueError("time is missing; without it the column `day` must name the parts of the log")
        flags = [stage.flag for stage in self.stages if stage.flag is not None]
        if self.stage is None and len(flags) < len(names) and len(names) > 1:
            raise ValueError("stage is missing; without that column every one of the stages needs a flag")
        if self.stage is not None and flags:
            raise ValueError("stage: expected either this column or the flags of the stages, found both")
        if self.relevant.stage is not None:
            _one_of("relevant", self.relevant.stage, names)
        for name, sequence in self.sequences.items():
            self._check_sequence(f"sequences.{name}", sequence)
        if self.time is None and any(isinstance(f, Time) and f.column is None for _, _, f in self.features):
            raise ValueError("features: a time without a column is that of the request, but there is no `time`")
        return self

    def _check_sequence(self, where: str, sequence: SequenceConfig) -> None:
        _all_different(f"{where}.features", sequence.features)
        for feature in sequence.features:
            _one_of(f"{where}.features", feature, list(self.features.item))
            if is_dense(self.features.item[feature]):
                raise ValueError(f"{where}.features: {feature} is a number; sequences keep ids")
        if sequence.feedback is not None:
            _one_of(f"{where}.feedback", sequence.feedback, self.feedback)
            if self.user is None or self.time is None:
                raise ValueError(f"{where}: past feedback is found by `user` and `time`, which are both needed")

    @property
    def stage_names(self) -> list[str]:
        """The stages in the order of the funnel."""
        return [stage.name for stage in self.stages]

    @property
    def zone(self) -> str:
        """The time zone of days and of parts of times."""
        return self.time.zone if self.time else "UTC"


def is_dense(feature: Categorical | Dense | Time) -> bool:
    """Whether a model sees a number, not an id."""
    return isinstance(feature, Dense) and feature.bucketize is None


def load_spec(path: Path) -> Spec:
    """The description in a YAML file."""
    return validate_spec(read_yaml(path), where=str(path))


def validate_spec(content: Mapping[str, Any], *, where: str = "spec") -> Spec:
    """A checked description; `where` stands before what is wrong with it."""
    try:
        return Spec.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def _all_different(where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name!r} stands there twice")


def _one_of(where: str, found: str, allowed: list[str]) -> None:
    if found not in allowed:
        raise ValueError(f"{where}: found {found!r}{did_you_mean(found, allowed)}; allowed are {', '.join(allowed)}")


# --- what a model sees ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature as it stands in an impression: an id, or `size` numbers if it has no embedding."""

    name: str
    group: Group
    embedding: str | None = None  # the table that its ids are rows of
    rows: int = 0  # of that table
    size: int = 1  # numbers of a feature without ids


@dataclass(frozen=True, slots=True)
class Sequence:
    """A behaviour sequence: the item features its events keep."""

    name: str
    max_length: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """Everything a model may look at."""

    features: tuple[Feature, ...]
    sequences: tuple[Sequence, ...] = ()

    def of(self, group: Group) -> tuple[Feature, ...]:
        """The features of the user, of the context or of the items."""
        return tuple(feature for feature in self.features if feature.group == group)

    def item(self, name: str) -> Feature:
        """The item feature of that name."""
        return next(feature for feature in self.of("item") if feature.name == name)

    @property
    def tables(self) -> dict[str, int]:
        """The number of rows of each embedding table."""
        return {feature.embedding: feature.rows for feature in self.features if feature.embedding is not None}

    def to_json(self) -> dict[str, Any]:
        """As stored in manifests and checkpoints."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Features:
        """As stored in manifests and checkpoints."""
        return cls(
            tuple(Feature(**feature) for feature in content["features"]),
            tuple(
                Sequence(sequence["name"], sequence["max_length"], tuple(sequence["features"]))
                for sequence in content["sequences"]
            ),
        )


def features_of(spec: Spec, rows: Mapping[str, int]) -> Features:
    """What a model sees of a log with this description, given the number of rows of each embedding table."""
    features = []
    for group, name, config in spec.features:
        if is_dense(config):
            assert isinstance(config, Dense)
            features.append(Feature(name, group, size=config.size))
        else:
            table = table_of(group, name, config)
            features.append(Feature(name, group, table, rows[table]))
    sequences = [
        Sequence(name, sequence.max_length, tuple(sequence.features)) for name, sequence in spec.sequences.items()
    ]
    return Features(tuple(features), tuple(sequences))
