"""Which columns the description of a log asks for, and in which file each of them stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from rankfall._suggest import did_you_mean
from rankfall.data.impressions.assemble import column_of
from rankfall.data.impressions.spec import Categorical, Time, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankfall.data.impressions.spec import FeatureConfig, Group, Spec

Place = Literal["log", "items", "users", "requests"]
Role = Literal["id", "whole", "number", "vector", "time", "day", "sequence"]
_OF_ROW: tuple[Place, ...] = ("log",)
_OF_REQUEST: tuple[Place, ...] = ("log", "requests")
_OF_GROUP: dict[Group, tuple[Place, ...]] = {
    "user": ("log", "users", "requests"),
    "context": _OF_REQUEST,
    "item": ("log", "items"),
}


class Use(NamedTuple):
    """What one key of the description needs."""

    key: str
    column: str
    role: Role
    places: tuple[Place, ...]  # where the column may stand, in the order in which it is looked for


def uses(spec: Spec) -> Iterator[Use]:
    """Everything that a description needs."""
    yield Use("request", spec.request, "id", _OF_ROW)
    yield Use("item", spec.item, "id", _OF_ROW)
    if spec.user is not None:
        yield Use("user", spec.user, "id", _OF_REQUEST)
    if spec.time is not None:
        yield Use("time", spec.time.column, "time", _OF_REQUEST)
    if spec.day is not None:
        yield Use("day", spec.day, "day", _OF_REQUEST)
    if spec.stage is not None:
        yield Use("stage", spec.stage, "id", _OF_ROW)
    if spec.rank is not None:
        yield Use("rank", spec.rank, "whole", _OF_ROW)
    for stage in spec.stages:
        if stage.flag is not None:
            yield Use(f"stages.{stage.name}", stage.flag, "number", _OF_ROW)
    if spec.relevant.column is not None:
        yield Use("relevant", spec.relevant.column, "number", _OF_ROW)
    if spec.truth is not None:
        yield Use("truth", spec.truth, "number", _OF_ROW)
    for column in spec.feedback:
        yield Use("feedback", column, "number", _OF_ROW)
    for group, name, feature in spec.features:
        column = column_of(spec, name, feature)
        of_request = isinstance(feature, Time) and feature.column is None
        yield Use(f"{group}.{name}", column, _role(feature), _OF_REQUEST if of_request else _OF_GROUP[group])
    for name, sequence in spec.sequences.items():
        for feature_name, column in (sequence.columns or {}).items():
            yield Use(f"sequences.{name}.{feature_name}", column, "sequence", _OF_REQUEST)


def _role(feature: FeatureConfig) -> Role:
    if isinstance(feature, Time):
        return "time"
    if isinstance(feature, Categorical):
        return "id" if feature.num_buckets is None else "whole"
    return "number" if feature.size == 1 else "vector"


def shared_ids(spec: Spec) -> list[set[str]]:
    """Columns whose values get their ids in one table, so they must be of one type."""
    tables: dict[str, set[str]] = {}
    for group, name, feature in spec.features:
        if isinstance(feature, Categorical):
            tables.setdefault(table_of(group, name, feature), set()).add(column_of(spec, name, feature))
    for sequence in spec.sequences.values():
        for name, column in (sequence.columns or {}).items():
            feature = spec.features.item[name]
            if isinstance(feature, Categorical):
                tables[table_of("item", name, feature)].add(column)
    return list(tables.values())


def locate(spec: Spec, found: Mapping[Place, Sequence[str]], names: Mapping[Place, str]) -> dict[str, Place]:
    """The file of every column that is needed; `names` is how messages call the files."""
    places: dict[str, Place] = {}
    for use in uses(spec):
        if places.get(use.column) in use.places:
            continue
        place = next((place for place in use.places if use.column in found.get(place, ())), None)
        if place is None:
            raise ValueError(_missing(use, found, names))
        if (other := places.setdefault(use.column, place)) != place:
            raise ValueError(
                f"the column {use.column!r} means one thing in {names[other]} and another in {names[place]} "
                f"({use.key}); give one of them another name"
            )
    return places


def _missing(use: Use, found: Mapping[Place, Sequence[str]], names: Mapping[Place, str]) -> str:
    searched = [place for place in use.places if place in found]
    allowed = [column for place in searched for column in found[place]]
    return (
        f"{' and '.join(names[place] for place in searched)}: there is no column {use.column!r} ({use.key} of the "
        f"description){did_you_mean(use.column, allowed)}; there are {', '.join(dict.fromkeys(allowed))}"
    )
