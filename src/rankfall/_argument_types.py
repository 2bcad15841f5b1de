"""Types of the arguments of public functions: a wrong one is an error that names the argument."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rankfall._failures import shortened

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_number(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")  # also of NumPy


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_overrides(value: Any) -> bool:
    return isinstance(value, str | Mapping) or (_is_sequence(value) and all(isinstance(one, str) for one in value))


# Parts of annotations, by their beginning: what is allowed, and its name in messages. An annotation with another part
# is not checked. Functions that need one of several words, or cannot use one string of overrides, say so themselves.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "bool": (_is_flag, "True or False"),
    "int": (_is_number(numbers.Integral), "an integer"),
    "float": (_is_number(numbers.Real), "a number"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "EngineName": (lambda value: isinstance(value, str), "a string"),
    "Layout": (lambda value: isinstance(value, str), "a string"),
    "Metric": (lambda value: isinstance(value, str), "a string"),
    "PathLike": (_is_path, "a path"),
    "RunLike": (lambda value: _is_path(value) or hasattr(value, "directory"), "the path of a directory, or a result"),
    "ConfigLike": (lambda value: True, "a configuration"),  # which its reader checks
    "Sources": (lambda value: _is_path(value) or _is_sequence(value) or _is_mapping(value), "paths"),
    "Overrides": (_is_overrides, "a list of strings or a dictionary"),
    "ProgressLike": (lambda value: _is_flag(value) or callable(value), "True, False or a function"),
    "OnNotice": (callable, "a function"),
    "Callable": (callable, "a function"),
    "Mapping": (_is_mapping, "a dictionary"),
    "Sequence": (_is_sequence, "a list"),
    "tuple": (lambda value: isinstance(value, tuple), "a tuple"),
    "Iterable": (lambda value: hasattr(value, "__iter__") and not isinstance(value, bytes), "a list"),
    "Path": (lambda value: isinstance(value, Path), "a pathlib.Path"),
    "ImpressionLog": (lambda value: type(value).__name__ == "ImpressionLog", "an ImpressionLog"),
    "Recipe": (lambda value: type(value).__name__ == "Recipe", "a Recipe"),
    "Source": (lambda value: isinstance(value, str), "a string"),
    "Labels": (lambda value: isinstance(value, str), "a string"),
    "NDArray": (lambda value: getattr(value, "ndim", 0) == 2, "an array of two dimensions"),
}
_PATHS = ("PathLike", "RunLike", "ConfigLike", "Sources", "Path")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function check the types of its arguments by its annotations.

    >>> @checked
    ... def halve(number: "int | None", *paths: "PathLike") -> None: ...
    >>> halve("one")
    Traceback (most recent call last):
    TypeError: number: found 'one', expected an integer or None
    >>> halve(2, "a", chr(0))
    Traceback (most recent call last):
    ValueError: paths: found '\\x00', which has a NUL character and can be no path
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            parameter = signature.parameters[name]
            for one in value if parameter.kind is parameter.VAR_POSITIONAL else [value]:
                _check(name, one, str(parameter.annotation))
        return function(*args, **kwargs)

    return call


def _check(name: str, value: Any, annotation: str) -> None:
    parts = [part.partition("[")[0] for part in _alternatives(annotation.strip("'"))]
    if not all(part in _KINDS for part in parts):
        return
    of_strings = not isinstance(value, Collection) or all(isinstance(one, str) for one in value)
    if not any(_KINDS[part][0](value) for part in parts) or (annotation.endswith("[str]") and not of_strings):
        allowed = " or ".join(dict.fromkeys(_KINDS[part][1] for part in parts))
        raise TypeError(f"{name}: found {shortened(repr(value), 200)}, expected {allowed}")
    if isinstance(value, str) and "\0" in value and any(part in _PATHS for part in parts):
        raise ValueError(f"{name}: found {shortened(repr(value), 200)}, which has a NUL character and can be no path")


def _alternatives(annotation: str) -> list[str]:
    """Return the parts of a union, without splitting what is in brackets.

    >>> _alternatives("Mapping[str, str | float] | None")
    ['Mapping[str, str|float]', 'None']
    """
    parts, depth = [""], 0
    for letter in annotation.replace(" | ", "|"):
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
