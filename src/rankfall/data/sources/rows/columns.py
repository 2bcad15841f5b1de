"""The columns that the description of a log names, and the file or table that each of them is read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.spec import Categorical, Time, column_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rankfall.data.impressions.spec import FeatureConfig, Group, Spec, Unit

Origin = Literal["log", "items", "users", "requests"]  # the rows of the log, or one of the tables joined to them
Role = Literal["id", "whole", "number", "vector", "time", "day", "sequence"]
_OF_ROW: tuple[Origin, ...] = ("log",)
_OF_REQUEST: tuple[Origin, ...] = ("log", "requests")
_OF_GROUP: dict[Group, tuple[Origin, ...]] = {
    "user": ("log", "users", "requests"),
    "context": _OF_REQUEST,
    "item": ("log", "items"),
}


class ColumnUse(NamedTuple):
    """A column that one key of the description needs."""

    key: str
    column: str
    role: Role
    origins: tuple[Origin, ...]  # where the column may be, in the order of the search


def column_uses(spec: Spec) -> Iterator[ColumnUse]:
    """Iterate over everything that a description needs."""
    yield ColumnUse("request", spec.request, "id", _OF_ROW)
    yield ColumnUse("item", spec.item, "id", _OF_ROW)
    if spec.user is not None:
        yield ColumnUse("user", spec.user, "id", _OF_REQUEST)
    if spec.time is not None:
        yield ColumnUse("time", spec.time.column, "time", _OF_REQUEST)
    if spec.day is not None:
        yield ColumnUse("day", spec.day, "day", _OF_REQUEST)
    if spec.stage is not None:
        yield ColumnUse("stage", spec.stage, "id", _OF_ROW)
    if spec.rank is not None:
        yield ColumnUse("rank", spec.rank, "whole", _OF_ROW)
    for stage in spec.stages:
        if stage.flag is not None:
            yield ColumnUse(f"stages.{stage.name}", stage.flag, "number", _OF_ROW)
    if spec.relevant.column is not None:
        yield ColumnUse("relevant", spec.relevant.column, "number", _OF_ROW)
    if spec.position is not None:
        yield ColumnUse("position", spec.position, "whole", _OF_ROW)
    if spec.inclusion is not None:
        yield ColumnUse("inclusion", spec.inclusion, "number", _OF_ROW)
    if spec.truth is not None:
        yield ColumnUse("truth", spec.truth, "number", _OF_ROW)
    for column in spec.feedback:
        yield ColumnUse("feedback", column, "number", _OF_ROW)
    for group, name, feature in spec.features:
        column = column_of(spec, name, feature)
        of_request = isinstance(feature, Time) and feature.column is None
        yield ColumnUse(f"{group}.{name}", column, _role(feature), _OF_REQUEST if of_request else _OF_GROUP[group])
    for name, sequence in spec.sequences.items():
        for feature_name, column in (sequence.columns or {}).items():
            yield ColumnUse(f"sequences.{name}.{feature_name}", column, "sequence", _OF_REQUEST)


def _role(feature: FeatureConfig) -> Role:
    if isinstance(feature, Time):
        return "time"
    if isinstance(feature, Categorical):
        return "id" if feature.num_buckets is None else "whole"
    return "number" if feature.size == 1 else "vector"


def time_units(spec: Spec) -> dict[str, Unit | None]:
    """Return the columns of times, and the unit of those that are whole numbers."""
    units = {} if spec.time is None else {spec.time.column: spec.time.unit}
    for _, _, feature in spec.features:
        if isinstance(feature, Time) and feature.column is not None:
            units[feature.column] = feature.unit
    return units


def columns_sharing_ids(spec: Spec) -> list[set[str]]:
    """Return sets of columns whose values get their ids in one embedding table and must have one type."""
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


class Columns(NamedTuple):
    """The columns of a log by the names that its description uses.

    A column that is used in several ways has one name for each of them: ``price``, and ``price (as number)``.
    """

    spec: Spec  # with these names
    origins: dict[str, Origin]  # the log or the table that each is read from
    stored: dict[str, str]  # the name in the files, if it is another one


def find_columns(
    spec: Spec,
    found: Mapping[Origin, Sequence[str]],
    names: Mapping[Origin, str],
    on_missing: Callable[[ColumnUse, str], None] | None = None,
) -> Columns:
    """Find every column that a description needs.

    Args:
        spec: The description of the log.
        found: The columns of the log and of each table.
        names: The names of the log and of each table in error messages.
        on_missing: Receives what the description needs and no file has; these keys are then left out. By default this
            is an error.

    Raises:
        ValueError: If a column is missing, or a key and another column of the same name would be read from two origins.
    """
    ways: dict[str, tuple[_Way, Origin]] = {}
    origins: dict[str, Origin] = {}
    stored: dict[str, str] = {}
    changes: dict[tuple[str, str], str | None] = {}
    for use in sorted(column_uses(spec), key=_can_be_renamed):  # those that cannot keep the names of the files
        _, known = ways.get(use.column, (None, None))
        origin = known if known in use.origins else _first_origin(use, found)
        if origin is None:
            message = _missing(use, found, names)
            if on_missing is None:
                raise ValueError(message)
            on_missing(use, message)
            changes[use.key, use.column] = None
            continue
        way, first = ways.setdefault(use.column, (_WAYS[use.role], origin))
        if first == origin and _share_a_type(way, _WAYS[use.role]):
            origins[use.column] = origin
            continue
        if not _can_be_renamed(use):
            if first == origin:
                continue  # the type of the key decides
            raise ValueError(
                f"the column {use.column!r} is needed from {names[first]} and from {names[origin]} ({use.key}); "
                "rename one of them"
            )
        name = f"{use.column} (as {_WAYS[use.role]}{'' if first == origin else f', of {origin}'})"
        changes[use.key, use.column] = name
        origins[name], stored[name] = origin, use.column
    return Columns(with_columns(spec, changes) if changes else spec, origins, stored)


_Way = Literal["id", "whole number", "number", "vector", "time", "sequence"]
_WAYS: dict[Role, _Way] = {
    "id": "id",
    "day": "id",
    "whole": "whole number",
    "number": "number",
    "vector": "vector",
    "time": "time",
    "sequence": "sequence",
}


def _share_a_type(one: _Way, other: _Way) -> bool:
    """Return whether a column that is used in both ways is read once; whole numbers are ids and numbers, too."""
    return one == other or {one, other} in ({"whole number", "id"}, {"whole number", "number"})


def _can_be_renamed(use: ColumnUse) -> bool:
    """Return whether a column may have another name here: keys join tables, and feedback is written by its name."""
    fixed = ("request", "item", "user", "stage", "feedback")
    return use.key not in fixed and use.role != "sequence" and not use.key.startswith("stages.")


def _first_origin(use: ColumnUse, found: Mapping[Origin, Sequence[str]]) -> Origin | None:
    return next((origin for origin in use.origins if use.column in found.get(origin, ())), None)


def with_columns(spec: Spec, changes: Mapping[tuple[str, str], str | None]) -> Spec:
    """Return a description that uses other columns, which is not validated again.

    Args:
        spec: The description.
        changes: The new column by the key and the column of a use; None removes the key.
    """
    new: dict[str, Any] = {}
    for (key, column), name in changes.items():
        if key in ("user", "day", "stage", "rank", "position", "inclusion", "truth"):
            new[key] = name
        elif key == "time":
            new[key] = name and spec.time and spec.time.model_copy(update={"column": name})
        elif key == "relevant":
            new[key] = spec.relevant.model_copy(update={"column": name})
        elif key == "feedback":
            new[key] = [other for other in new.get(key, spec.feedback) if other != column]
    flagless = {key for (key, _) in changes if key.startswith("stages.")}
    if flagless:
        new["stages"] = [
            stage.model_copy(update={"flag": None}) if f"stages.{stage.name}" in flagless else stage
            for stage in spec.stages
        ]
    groups: dict[str, dict[str, FeatureConfig]] = {"user": {}, "context": {}, "item": {}}
    for group, feature_name, feature in spec.features:
        place = f"{group}.{feature_name}", column_of(spec, feature_name, feature)
        follows_time = isinstance(feature, Time) and feature.column is None and changes.get(place)
        if place not in changes or follows_time:
            groups[group][feature_name] = feature
        elif changes[place] is not None:
            groups[group][feature_name] = feature.model_copy(update={"column": changes[place]})
    new["features"] = spec.features.model_copy(update={**groups})
    new["sequences"] = {
        name: sequence
        for name, sequence in spec.sequences.items()
        if all((f"sequences.{name}.{one}", column) not in changes for one, column in (sequence.columns or {}).items())
        and all(feature in groups["item"] for feature in sequence.features)
        and (sequence.feedback is None or sequence.feedback in new.get("feedback", spec.feedback))
    }
    return spec.model_copy(update=new)


def _missing(use: ColumnUse, found: Mapping[Origin, Sequence[str]], names: Mapping[Origin, str]) -> str:
    searched = [origin for origin in use.origins if origin in found]
    available = [column for origin in searched for column in found[origin]]
    return (
        f"{' and '.join(names[origin] for origin in searched)}: found no column {use.column!r} ({use.key} of the "
        f"description){did_you_mean(use.column, available)}; the columns are {', '.join(dict.fromkeys(available))}"
    )
