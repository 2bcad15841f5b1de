"""Types of the values that a configuration may give for an option, from its annotation."""

from __future__ import annotations

import ast
import collections.abc
import types
import typing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rankfall import option_types, registry
from rankfall._errors import RankfallError
from rankfall.register import registered
from rankfall.registry.references import UnresolvedError, entry_points, find, is_reference, split_cutoffs
from rankfall.registry.signatures import REQUIRED, builtins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankfall.registry.signatures import Option


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_PLAIN = (int, float, bool, str, type(None))


class _Tensor:
    """Stands for a tensor, which a configuration writes as a number."""


_NAMESPACE: dict[str, Any] = {
    **{name: getattr(option_types, name) for name in option_types.__all__},
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "Literal", "Optional", "Union")},
    **{name: getattr(collections.abc, name) for name in ("Iterable", "Mapping", "Sequence")},
    "Tensor": _Tensor,
}


def expected_type(option: Option) -> Any:
    """Return the type that the value of an option must have in a configuration.

    Tensors are written as numbers, and sequences as lists. Types that no configuration can write accept everything, as
    do annotations that cannot be read.

    Args:
        option: An option of :func:`rankfall.registry.options`.
    """
    annotation = option.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, dict(_NAMESPACE | dict(option.namespace)))  # the text of a signature
        except (NameError, AttributeError, SyntaxError, TypeError):  # a name that only a type checker sees
            return Any
    return _in_configurations(annotation)


def check_value(option: Option, value: Any) -> None:
    """Check the value that a configuration gives to an option.

    Args:
        option: An option of :func:`rankfall.registry.options`.
        value: The value. Numbers must be finite, and nothing is converted: ``"1"`` is no number.

    Raises:
        pydantic.ValidationError: If the value is not of the type of the option.
    """
    TypeAdapter(expected_type(option), config=_STRICT).validate_python(value)


def _in_configurations(annotation: Any) -> Any:
    """Return what stands for a type in a configuration."""
    if annotation is None or annotation in _PLAIN:
        return annotation
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        return _union(inner)
    if origin is Annotated:
        return _annotated(_in_configurations(inner[0]), inner[1:])
    if origin in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable):
        elements = [_in_configurations(one) for one in inner if one is not Ellipsis]
        return list[_union(elements)] if elements else list  # type: ignore[misc]
    if annotation in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable):
        return list
    if origin in (dict, collections.abc.Mapping) or annotation in (dict, collections.abc.Mapping):
        return dict
    if _is_tensor(annotation):
        return float
    return Any


def _union(members: typing.Iterable[Any]) -> Any:
    """Return a union without tensors, for which the numbers beside them stand."""
    members = list(members)
    known = [one for one in members if not _is_tensor(one)] or members
    return Union[tuple(_in_configurations(one) for one in known)]  # noqa: UP007  # of a list


def _annotated(base: Any, marks: tuple[Any, ...]) -> Any:
    if any(isinstance(mark, option_types.OrName) for mark in marks):
        base, marks = base | str, tuple(mark for mark in marks if not isinstance(mark, option_types.OrName))
    return Annotated[(base, *marks)] if marks else base


def _is_tensor(annotation: Any) -> bool:
    return annotation is _Tensor or (getattr(annotation, "__module__", ""), getattr(annotation, "__name__", "")) == (
        "torch",
        "Tensor",
    )


@dataclass(frozen=True, slots=True)
class MetricName:
    """The parts of a metric's name.

    Attributes:
        name: Name with cutoffs, such as ``"recall@20@10"``.
        word: Name of the component, such as ``"recall"``.
        options: Arguments that the name fixes: the cutoffs, and those of the word.
        higher_is_better: False for metrics that should be small.
    """

    name: str
    word: str
    options: Mapping[str, Any]
    higher_is_better: bool


def parse_name(name: str) -> MetricName:
    """Return the parts of a metric's name. A metric that is not built in is imported.

    Args:
        name: Name with cutoffs.

    Raises:
        ValueError: If no metric has the name, or the cutoffs do not fit.

    Examples:
        >>> parse_name("recall@20@10").options
        {'m': 20, 'k': 10}
        >>> parse_name("recall@20")
        Traceback (most recent call last):
        rankfall.RankfallError: found 'recall@20'; expected recall@m@k, where cutoffs are whole numbers above 0
    """
    word, cutoffs = split_cutoffs(name)
    if not is_reference(word) and not registry.is_known("metric", word):
        raise unknown_metric(name, forms())
    given = _cutoff_options(word)
    needed = sum(one.required for one in given)
    if needed <= len(cutoffs) <= len(given):
        values = {one.name: _number(one, text) for one, text in zip(given, cutoffs, strict=False)}
        if REQUIRED not in values.values():
            return MetricName(name, word, values | dict(_fixed(word)), higher_is_better(word))
    whole = all(_accepts(one, int) and not _accepts(one, float) for one in given)
    kind = "whole numbers above 0" if whole else "numbers in the range of the signature"
    raise RankfallError(f"found {name!r}; expected {' or '.join(name_forms(word))}, where cutoffs are {kind}")


def forms(function: str | None = None) -> list[str]:
    """Return the forms of all names, or of those of one built-in function.

    Entry points are listed without cutoffs, because these are unknown until their modules are imported.

    Args:
        function: Name of a function of :mod:`rankfall.metrics`.

    Examples:
        >>> forms("ndcg")
        ['ndcg', 'ndcg@k', 'ndcg_linear', 'ndcg_linear@k']
    """
    own = [word for word, one in builtins("metric").items() if function in (None, one.attribute)]
    if function is None:
        own += [word for word, one in registered("metric").items() if not one.is_builtin]
    points = [] if function else [word for word in entry_points("metric") if word not in own]
    return [*(form for word in own for form in name_forms(word)), *points]


def unknown_metric(name: str, allowed: Sequence[str]) -> ValueError:
    """Return the error for a name that is none of the allowed forms, with the closest of them.

    >>> unknown_metric("ndgc@10", ["ndcg", "ndcg@k", "mrr"])
    RankfallError("found 'ndgc@10', did you mean ndcg@k; allowed are ndcg, ndcg@k, mrr")
    """
    by_word = {form.partition("@")[0]: form for form in allowed}  # of several forms, the last one has the cutoff
    close = get_close_matches(name.partition("@")[0], by_word, n=1)
    hint = f", did you mean {by_word[close[0]]}" if close else ""
    return RankfallError(f"found {name!r}{hint}; allowed are {', '.join(allowed)}")


def higher_is_better(name: str) -> bool:
    """Return whether larger values of a metric are better. Nothing is imported, so any stored name may be asked for.

    Args:
        name: Name of a metric, with or without cutoffs. Unknown metrics are taken to be better if larger.

    Examples:
        >>> higher_is_better("ndcg@10"), higher_is_better("arp")
        (True, False)
    """
    word, _ = split_cutoffs(name)
    if found := builtins("metric").get(word) or registered("metric").get(word):
        return found.higher_is_better
    installed = not is_reference(word)
    reference = entry_points("metric").get(word) if installed else word
    try:
        file = find("metric", reference, installed=installed) if reference else None
    except UnresolvedError:
        return True
    attribute = reference.rpartition(":")[2] if reference else ""
    return file is None or _declared_better(file, attribute)


# --- cutoffs ------------------------------------------------------------------------------------------------------


def name_forms(word: str) -> list[str]:
    """Return the forms of a metric's name: without its optional cutoffs, and with them."""
    given = _cutoff_options(word)
    needed = sum(one.required for one in given)
    return ["@".join((word, *(one.name for one in given[:count]))) for count in range(needed, len(given) + 1)]


def _cutoff_options(word: str) -> list[Option]:
    """Return the options that cutoffs fill: numbers that the word does not fix."""
    fixed = _fixed(word)
    return [
        one
        for name, one in registry.options("metric", word).items()
        if name not in fixed and (_accepts(one, int) or _accepts(one, float))
    ]


def _fixed(word: str) -> Mapping[str, Any]:
    """Return the arguments that the name of a metric stands for besides its cutoffs."""
    if found := builtins("metric").get(word):
        return found.options
    component = registry.get("metric", word)
    return next((one.options for one in registered("metric").values() if one.component is component), {})


def _accepts(option: Option, number: type) -> bool:
    """Return whether an option takes numbers of a type. Without an annotation, its default decides."""
    expected = expected_type(option)
    if expected is Any:
        is_number = option.given is REQUIRED or type(option.given) in (int, float)
        return is_number and option.annotation in (REQUIRED, Any) and number is float
    return number in _members(expected)


def _members(expected: Any) -> set[Any]:
    origin, inner = get_origin(expected), get_args(expected)
    if origin is Annotated:
        return _members(inner[0])
    if origin in (Union, types.UnionType):
        return {one for part in inner for one in _members(part)}
    return {expected}


def _number(option: Option, text: str) -> Any:
    """Return a cutoff as the number that an option takes, or :data:`REQUIRED` if it takes no such number."""
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        if number is int and text != str(value):  # such as 010 or +5
            return REQUIRED
        if number is int and not _accepts(option, int) and not _accepts(option, float):
            continue
        try:
            check_value(option, value)
        except ValidationError:
            continue
        return value
    return REQUIRED


def _declared_better(file: Path, attribute: str) -> bool:
    """Read from a source whether the decorator of a metric says that larger values are better."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return True
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
            marks = [one.value for call in calls for one in call.keywords if one.arg == "higher_is_better"]
            return not any(isinstance(one, ast.Constant) and one.value is False for one in marks)
    return True
