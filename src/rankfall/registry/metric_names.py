"""Names of metrics: the name of a component and its cutoffs, such as ``recall@20@10``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from pydantic import ValidationError

from rankfall import registry
from rankfall._errors import RankfallError, did_you_mean
from rankfall.register import registered
from rankfall.registry.references import is_reference, split_cutoffs
from rankfall.storage.trust import stored_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankfall.register import Registered
    from rankfall.registry import Option


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
    """Return the parts of a metric's name.

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
    check_word(name)
    word, cutoffs = split_cutoffs(name)
    given, about = _cutoff_options(word), _registered(word)
    needed = sum(one.required for one in given)
    if needed <= len(cutoffs) <= len(given):
        values = {one.name: _number(one, text) for one, text in zip(given, cutoffs, strict=False)}
        if None not in values.values():
            fixed = dict(about.options) if about else {}
            return MetricName(name, word, values | fixed, about is None or about.higher_is_better)
    whole = all(_accepts(one, int) and not _accepts(one, float) for one in given)
    kind = "whole numbers above 0" if whole else "numbers in the range of the signature"
    raise RankfallError(f"found {name!r}; expected {' or '.join(name_forms(word))}, where cutoffs are {kind}")


def check_word(name: str, others: Iterable[str] = ()) -> None:
    """Check that a metric of a name exists, or may exist, without importing it.

    Args:
        name: Name with cutoffs.
        others: Further names that are allowed, without cutoffs.
    """
    word, _ = split_cutoffs(name)
    allowed = [*registry.names("metric"), *others]
    if not is_reference(word) and word not in allowed:
        raise RankfallError(f"found {name!r}{did_you_mean(word, allowed)}; allowed are {', '.join(allowed)}")


def forms(function: str | None = None) -> list[str]:
    """Return the forms of all names, or of those of one built-in function.

    Entry points are listed without cutoffs, because these are unknown until their modules are imported.

    Args:
        function: Name of a function of :mod:`rankfall.metrics`.

    Examples:
        >>> forms("ndcg")
        ['ndcg', 'ndcg@k', 'ndcg_linear', 'ndcg_linear@k']
    """
    builtin = registry.builtins("metric")
    if function is not None:
        words = [word for word in builtin if registry.python_name("metric", word) == function]
        return [form for word in words for form in name_forms(word)]
    known = {*builtin, *registered("metric")}
    return [form for word in registry.names("metric") for form in (name_forms(word) if word in known else [word])]


def name_forms(word: str) -> list[str]:
    """Return the forms of a metric's name: without its optional cutoffs, and with them."""
    given = _cutoff_options(word)
    needed = sum(one.required for one in given)
    return ["@".join((word, *(one.name for one in given[:count]))) for count in range(needed, len(given) + 1)]


def higher_is_better(name: str) -> bool:
    """Return whether larger values of a metric are better.

    Args:
        name: Name of a metric, with or without cutoffs. Metrics that cannot be imported, such as those of a stored
            result whose code is gone, are taken to be better if larger.

    Examples:
        >>> higher_is_better("ndcg@10"), higher_is_better("arp")
        (True, False)
    """
    word, _ = split_cutoffs(name)
    if not is_reference(word) and word not in registry.names("metric"):
        return True
    try:
        with stored_code("a stored result"):
            about = _registered(word)
    except ValueError:
        return True
    return about is None or about.higher_is_better


def _registered(word: str) -> Registered | None:
    """Return what the decorator of a metric says, which a reference need not have."""
    component = registry.get("metric", word)
    by_name = registered("metric").get(word)
    if by_name is not None and by_name.component is component:
        return by_name
    return next((one for one in registered("metric").values() if one.component is component), None)


def _cutoff_options(word: str) -> list[Option]:
    """Return the options that cutoffs fill: numbers that the word does not fix."""
    about = _registered(word)
    fixed = about.options if about else {}
    return [
        one
        for name, one in registry.options("metric", word).items()
        if name not in fixed and (_accepts(one, int) or _accepts(one, float))
    ]


def _accepts(option: Option, number: type) -> bool:
    """Return whether an option takes numbers of a type. Without an annotation, its default decides."""
    expected = option.type
    if expected is Any:
        is_number = option.required or type(option.default) in (int, float)
        return is_number and option.annotation in (registry.REQUIRED, Any) and number is float
    return number in _members(expected)


def _members(expected: Any) -> set[Any]:
    """Return the types in unions and below marks."""
    inner = get_args(expected)
    if get_origin(expected) is Annotated:
        return _members(inner[0])
    return {one for part in inner for one in _members(part)} if inner else {expected}


def _number(option: Option, text: str) -> float | None:
    """Return a cutoff as the number that an option takes, or None if it takes no such number."""
    for number in (int, float):
        try:
            value = number(text)
            if number is int and text != str(value):  # such as 010 or +5
                return None
            option.check(value)
        except (ValueError, ValidationError):
            continue
        return value
    return None
