"""Checks of the options of losses, objectives and models before any of them is built.

Names, required options and types come from the signatures in :mod:`rankfall.registry`; ranges are declared here, by
the name of the option, which means the same everywhere in the library. What depends on several options, or on the
data, is checked by the component itself when a training run builds it, before anything is written.
"""

from __future__ import annotations

import inspect
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rankfall import registry
from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import OptionError, shown
from rankfall.training.config.sections import Activation, Count, Init, Share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

    from rankfall.registry import Kind

TEMPERATURES = ("tau", "temperature", "steepness")
"""Options of losses, objectives and their operators that can follow a schedule."""

ScheduleName = Literal["constant", "linear", "exponential"]

# What the types in the annotation of an option stand for: a narrower type, or a wider one that YAML needs.
_COUNT = {"int": Count}
_POSITIVE = dict.fromkeys(("float", "Tensor"), Annotated[float, Field(gt=0)])
_NOT_NEGATIVE = {"float": Annotated[float, Field(ge=0)]}
_FRACTION = {"float": Annotated[float, Field(ge=0, le=1)]}
_ACTIVATION = {"str": Activation}
_OPTION_TYPES: dict[str, dict[str, Any]] = {
    "activation": _ACTIVATION,
    "alpha": _FRACTION,
    "attention": _COUNT,
    "attention_activation": _ACTIVATION,
    "beta": _POSITIVE,
    "branches": _COUNT,
    "depth": _COUNT,
    "dim": _COUNT,
    "dropout": {"float": Share | list[Share]},
    "e2e_weight": _NOT_NEGATIVE,
    "grades": {"int": Annotated[int, Field(ge=2)]},
    "gumbel_samples": {"int": Annotated[int, Field(ge=0)]},
    "hidden": _COUNT,
    "init": {"str": Init},
    "k": _COUNT,
    "kept": _COUNT,
    "label_tau": _POSITIVE,
    "m": _COUNT,
    "min_depth": {"int": int | str},  # a number or the name of a logged stage
    "mix": _FRACTION,
    "network": {"str": Literal["odd_even", "bitonic"]},
    "norm_momentum": {"float": Annotated[float, Field(gt=0, le=1)]},
    "power": {"int": Literal[1, 2]},
    "quotas": _COUNT,
    "sigma": _POSITIVE,
    "single_weight": _NOT_NEGATIVE,
    "std": _NOT_NEGATIVE,
    "steepness": _POSITIVE,
    "swap": {"str": Literal["cauchy", "logistic", "reciprocal", "optimal"]},
    "tau": _POSITIVE,
    "tau_shares": _FRACTION,
    "temperature": _POSITIVE,
}
_TYPES: dict[str, Any] = {
    **{one.__name__: one for one in (int, float, bool, str)},
    "Literal": Literal,
    "Sequence": list,
    "Iterable": list,
    "Tensor": float,
}
_TOPK_ANNOTATIONS = {"normalised": "bool", "gradient": "Literal['rows', 'exact', 'one_minus'] | None"}


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
    _check_name(kind, registry.names("model"), ("kind",))
    _check("model", kind, options)


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


# --- names and values ---------------------------------------------------------------------------------------------


def _check(kind: Kind, name: str, options: Mapping[str, Any]) -> None:
    try:
        registry.check_options(kind, name, options)
    except ValueError as error:
        example = ", such as {name: ranknet_loss}" if name == "per_stage" and "loss" not in options else ""
        raise OptionError(f"{error}{example}") from None
    for option, value in options.items():
        _check_value(option, value, _annotations(kind, name)[option])


def _check_value(name: str, value: Any, annotation: str) -> None:
    optional = annotation.endswith("| None")
    if value is None and optional:
        return
    match annotation.removesuffix(" | None"):
        case "SoftSort" | "TopK":
            _check_operator(name, value)
        case "nn.Module":
            check_stage_loss(name, value)
        case _ if name in TEMPERATURES and isinstance(value, dict):
            read_schedule(name, value)
        case _:
            try:
                _adapter(name, annotation).validate_python(value)
            except ValidationError as error:
                raise _wrong_value(name, error.errors()) from None


def _check_operator(name: str, value: Any) -> None:
    """Check an operator's name, or a mapping of its name and options."""
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise OptionError(f"found {shown(value)}, expected an operator's name or {{name: ..., its options}}", name)
    operator = given["name"]
    allowed = registry.SORTS if name == "sort" else registry.names("operator")
    _check_name(operator, allowed, (name,) if isinstance(value, str) else (name, "name"))
    options = {key: option for key, option in given.items() if key != "name"}
    own = _TOPK_ANNOTATIONS if name == "topk" else {}
    try:
        for key in own.keys() & options.keys():
            _check_value(key, options.pop(key), own[key])
        _check("operator", operator, options)
    except OptionError as error:
        raise error.inside(name) from None


def check_stage_loss(name: str, value: Any) -> None:
    """Check a loss that an objective applies to each stage, given by its name or by name and options."""
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise OptionError(f"found {shown(value)}, expected a loss's name or {{name: ..., its options}}", name)
    loss = given["name"]
    _check_name(loss, registry.names("loss"), (name,) if isinstance(value, str) else (name, "name"))
    try:
        check_loss(loss, {key: option for key, option in given.items() if key != "name"})
    except OptionError as error:
        raise error.inside(name) from None


def _check_name(name: Any, allowed: Sequence[str], path: tuple[str, ...]) -> None:
    if name not in allowed:
        raise OptionError(f"found {name!r}{did_you_mean(name, allowed)}; allowed are {', '.join(allowed)}", *path)


# --- types --------------------------------------------------------------------------------------------------------


@cache
def _annotations(kind: Kind, name: str) -> dict[str, str]:
    parameters = inspect.signature(registry.get(kind, name)).parameters
    annotations = {option: parameters[option].annotation for option in registry.options(kind, name)}
    # modules with postponed annotations have strings
    return {name: one if isinstance(one, str) else inspect.formatannotation(one) for name, one in annotations.items()}


@cache
def _adapter(name: str, annotation: str) -> TypeAdapter[Any]:
    """Return the validator of an annotation, in which unknown types accept everything."""
    try:
        expected = eval(annotation, {"__builtins__": {}}, _TYPES | _OPTION_TYPES.get(name, {}))
    except (NameError, AttributeError, SyntaxError, TypeError):
        expected = Any
    return TypeAdapter(expected, config=ConfigDict(strict=True, allow_inf_nan=False))


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
