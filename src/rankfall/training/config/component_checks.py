"""Checks of the options of losses, objectives, models and metrics before any of them is built.

Names, required options, types and ranges come from the signatures in :mod:`rankfall.registry`. Those of built-in
components are checked without importing torch. What depends on several options, or on the data, is checked by the
component itself when a training run builds it, before anything is written.
"""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError, WithJsonSchema

from rankfall import registry
from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import ConfigError, OptionError, explain, shown
from rankfall.registry.metric_names import parse_name, split_cutoffs
from rankfall.registry.option_values import check_value, expected_type
from rankfall.registry.references import UnresolvedError, absolute, find, is_reference
from rankfall.registry.signatures import Option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from rankfall.registry import Kind

TEMPERATURES = ("tau", "temperature", "steepness")
"""Options of losses, objectives and their operators that can follow a schedule."""

ScheduleName = Literal["constant", "linear", "exponential"]

# Options of a soft top-k besides those of its operator.
_TOPK_OPTIONS = {
    "normalised": Option("normalised", bool, True),
    "gradient": Option("gradient", Literal["rows", "exact", "one_minus"] | None, None),
}

Model = TypeVar("Model", bound=BaseModel)


class Schedule(NamedTuple):
    """Values of a temperature over a training run."""

    start: float
    end: float
    schedule: ScheduleName


def check_loss(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of a loss, of which temperatures can follow a schedule.

    Raises:
        OptionError: If an option is unknown, missing or has a wrong value.
    """
    _check("loss", name, options)


def check_objective(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of an objective, of which temperatures can follow a schedule.

    Raises:
        OptionError: If an option is unknown, missing or has a wrong value.
    """
    _check("objective", name, options)


def check_model(config: Mapping[str, Any]) -> None:
    """Check the kind of the model of a stage and its options.

    Raises:
        OptionError: If the kind or an option is unknown, or an option has a wrong value.
    """
    options = dict(config)
    kind = options.pop("kind", None)
    check_name("model", kind, "kind")
    _check("model", kind, options)


def check_metric(name: str) -> str:
    """Return the name of a metric, with the absolute path of its file if it has one.

    Raises:
        ValueError: If no metric has the name, or its cutoffs do not fit.
    """
    name = absolute(name)
    word, _ = split_cutoffs(name)
    if not _imports_allowed("metric", word):
        return name
    parse_name(name)
    return name


def read_schedule(name: str, value: Mapping[str, Any]) -> Schedule:
    """Read the schedule of a temperature: ``{start: 10, end: 1, schedule: exponential}``.

    Args:
        name: Name of the option.
        value: The mapping. `schedule` is exponential by default. A constant schedule needs no `end`.

    Raises:
        OptionError: If a key is unknown or missing, or a value is wrong.
    """
    schedule = value.get("schedule", "exponential")
    if schedule not in get_args(ScheduleName):
        raise OptionError(f"found {schedule!r}, expected constant, linear or exponential", name, "schedule")
    if schedule == "constant":
        value = {"end": value.get("start"), **value}
    if set(value) - {"schedule"} != {"start", "end"}:
        raise OptionError(f"found {value!r}, expected a number or start, end and schedule", name)
    for key in ("start", "end"):
        number = value[key]
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise OptionError(f"found {number!r}, expected a positive number", name, key)
    start, end = value["start"], value["end"]
    if schedule == "constant" and start != end:
        raise OptionError(f"found {end!r}, but the schedule is constant and starts at {start!r}", name, "end")
    return Schedule(float(start), float(end), schedule)


def has_schedule(options: Mapping[str, Any]) -> bool:
    """Return whether a temperature in the options changes over the training run, whose length must then be known."""
    for name, value in options.items():
        if not isinstance(value, dict):
            continue
        if name in TEMPERATURES:
            found = read_schedule(name, value)
            if found.start != found.end:
                return True
        elif has_schedule(value):
            return True
    return False


# --- code of users ------------------------------------------------------------------------------------------------

_SKIPPED: ContextVar[list[str] | None] = ContextVar("components that were not imported", default=None)


@contextmanager
def without_imports() -> Iterator[list[str]]:
    """Check configurations without importing components of users, whose options are then not checked.

    Yields:
        The names of the components that were not imported. It is filled by the checks.
    """
    outer = _SKIPPED.get()
    skipped: list[str] = []
    token = _SKIPPED.set(skipped)
    try:
        yield skipped
    finally:
        _SKIPPED.reset(token)
        if outer is not None:
            outer.extend(skipped)


def validate_model(model: type[Model], content: Mapping[str, Any], where: str) -> Model:
    """Validate a mapping. Code of users is imported only if everything that does not need it is right.

    Args:
        model: Class of the configuration.
        content: The mapping.
        where: Prefix of error messages, such as the path of the file.

    Raises:
        ConfigError: If a key or value is wrong. The message names every wrong key.
    """
    already_without = _SKIPPED.get() is not None
    try:
        with without_imports() as skipped:
            found = model.model_validate(dict(content))
        if skipped and not already_without:
            found = model.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
    return found


def _imports_allowed(kind: Kind, name: str) -> bool:
    """Return whether the options of a component can be checked now, which needs an import unless it is built in."""
    skipped = _SKIPPED.get()
    if skipped is None or not is_own(kind, name):
        return True
    skipped.append(name)
    return False


def is_own(kind: Kind, name: str) -> bool:
    """Return whether a name is that of a component of a user: registered, an entry point, or a reference."""
    return not registry.is_builtin(kind, name) and (is_reference(name) or registry.is_known(kind, name))


# --- names and values ---------------------------------------------------------------------------------------------


def component_name(kind: Kind) -> Any:
    """Return the type of a key that names a component of one kind."""
    schema = {
        "anyOf": [
            {"enum": list(registry.builtins(kind))},
            {"type": "string", "description": "A registered name, MODULE:ATTRIBUTE or ./FILE.py:ATTRIBUTE."},
        ]
    }
    return Annotated[str, BeforeValidator(partial(_checked_name, kind)), WithJsonSchema(schema)]


def _checked_name(kind: Kind, name: object) -> str:
    check_name(kind, name)
    assert isinstance(name, str)
    return absolute(name)


def check_name(kind: Kind, name: object, *path: str, allowed: Sequence[str] | None = None) -> None:
    """Check that a component of a name may exist, without importing it.

    Args:
        kind: Kind of the component.
        name: Name or reference in the configuration.
        path: Key of the name, for the error.
        allowed: Built-in names that are allowed. Default: all.

    Raises:
        OptionError: If no component has the name, or the module or file of a reference does not exist.
    """
    if isinstance(name, str) and is_own(kind, name):
        if is_reference(name):
            try:
                find(kind, name)
            except UnresolvedError as error:
                raise OptionError(str(error), *path) from None
        return
    builtin = registry.builtins(kind) if allowed is None else allowed
    if not isinstance(name, str) or name not in builtin:
        names = [one for one in registry.names(kind) if one in builtin or is_own(kind, one)]
        hint = like_reference(name) or did_you_mean(name, names)
        raise OptionError(f"found {shown(name)}{hint}; allowed are {', '.join(names)}", *path)


def like_reference(name: object) -> str:
    """Return the hint for a name that would be a reference if it had a colon; empty for every other name.

    >>> like_reference("my_package.losses.focal"), like_reference("./my_loss.py"), like_reference("focal")
    (", did you mean 'my_package.losses:focal'", ", did you mean './my_loss.py:NAME', with a name of that file", '')
    """
    if not isinstance(name, str):
        return ""
    if name.endswith(".py"):
        return f", did you mean '{name}:NAME', with a name of that file"
    module, dot, attribute = name.rpartition(".")
    is_path = dot and all(part.isidentifier() for part in name.split("."))
    return f", did you mean '{module}:{attribute}'" if is_path else ""


def _check(kind: Kind, name: str, options: Mapping[str, Any]) -> None:
    if not _imports_allowed(kind, name):
        return
    try:
        registry.check_options(kind, name, options)
        known = registry.options(kind, name)
    except UnresolvedError as error:
        raise OptionError(str(error), "kind" if kind == "model" else "name") from None
    except ValueError as error:
        example = ", such as {name: ranknet_loss}" if name == "per_stage" and "loss" not in options else ""
        raise OptionError(f"{error}{example}") from None
    for option, value in options.items():
        if option in known:  # others go to **options of a user's component
            _check_value(known[option], value)


def _check_value(option: Option, value: Any) -> None:
    expected = expected_type(option)
    if value is None and (type(None) in get_args(expected) or _may_be_none(option)):
        return
    if option.part in ("sort", "topk"):
        _check_operator(option, value)
    elif option.part == "loss":
        check_stage_loss(option.name, value)
    elif option.name in TEMPERATURES and isinstance(value, dict):
        read_schedule(option.name, value)
    else:
        try:
            check_value(option, value)
        except ValidationError as error:
            raise _wrong_value(option.name, error.errors()) from None


def _may_be_none(option: Option) -> bool:
    """Return whether an option that takes a component may be left empty."""
    if option.given is None:
        return True
    if isinstance(option.annotation, str):
        return re.search(r"\bNone\b|\bOptional\b", option.annotation) is not None
    return type(None) in get_args(option.annotation)


def _check_operator(option: Option, value: Any) -> None:
    """Check an operator's name, or a mapping of its name and options."""
    name = option.name
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise OptionError(f"found {shown(value)}, expected an operator's name or {{name: ..., its options}}", name)
    operator = given["name"]
    path = (name,) if isinstance(value, str) else (name, "name")
    check_name("operator", operator, *path, allowed=registry.sorts() if option.part == "sort" else None)
    options = {key: one for key, one in given.items() if key != "name"}
    own = _TOPK_OPTIONS if option.part == "topk" else {}
    try:
        for key in own.keys() & options.keys():
            _check_value(own[key], options.pop(key))
        _check("operator", operator, options)
    except OptionError as error:
        raise error.inside(name) from None


def check_stage_loss(name: str, value: Any) -> None:
    """Check a loss that an objective applies to each stage, given by its name or by name and options."""
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise OptionError(f"found {shown(value)}, expected a loss's name or {{name: ..., its options}}", name)
    loss = given["name"]
    check_name("loss", loss, *((name,) if isinstance(value, str) else (name, "name")))
    try:
        check_loss(loss, {key: option for key, option in given.items() if key != "name"})
    except OptionError as error:
        raise error.inside(name) from None


def _wrong_value(name: str, errors: Sequence[ErrorDetails]) -> OptionError:
    """Describe the error of the alternative that fits best: the one that fails deepest inside the value."""
    depth = max(len(error["loc"]) for error in errors)
    deepest = [error for error in errors if len(error["loc"]) == depth]
    expected = dict.fromkeys(error["msg"].removeprefix("Input should be ") for error in deepest)
    found = deepest[0]["input"]
    words = re.findall(r"'([^']*)'", " ".join(expected))
    place = [str(part) for part in deepest[0]["loc"] if isinstance(part, int)]
    return OptionError(
        f"found {shown(found)}{did_you_mean(found, words)}, expected {' or '.join(expected)}", name, *place
    )
