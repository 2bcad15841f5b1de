"""Operators, losses, objectives and models by the names that configurations use.

The registry maps a kind and a name to a function or class, and reads the options of a component from its signature.
It builds nothing. Importing this module does not import torch; :func:`get` and :func:`options` import the package of
the component they are asked for.

>>> names("model")
('two_tower', 'din', 'mlp')
>>> list(options("operator", "sparse_topk"))
['tau', 'p', 'variant']
>>> check_options("loss", "lambda_recall_loss", ["m", "k", "sigm"])
Traceback (most recent call last):
ValueError: lambda_recall_loss has no option 'sigm', did you mean 'sigma'; its options are m, k, positive_only, sigma
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from rankfall._suggestions import did_you_mean
from rankfall.register import KINDS as KINDS
from rankfall.register import Kind as Kind
from rankfall.register import registered
from rankfall.registry.references import entry_points, is_reference, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


REQUIRED = inspect.Parameter.empty
"""The default of an option that has none."""

SORTS = ("neural_sort", "soft_sort", "diff_sort", "pirank_sort")
"""The operators that return rows of a soft permutation. The others return inclusion probabilities."""

_PACKAGES: dict[Kind, str] = {
    "operator": "rankfall.ops",
    "loss": "rankfall.losses",
    "objective": "rankfall.objectives",
    "model": "rankfall.models",
}

_ATTRIBUTES: dict[Kind, dict[str, str]] = {
    "operator": {name: name for name in (*SORTS, "dftopk", "lapsum_topk", "sparse_topk", "sigmoid_topk", "hard_topk")},
    "loss": {
        **{
            name: name
            for name in (
                "mse_loss",
                "bce_loss",
                "grade_softmax_loss",
                "softmax_loss",
                "listmle_loss",
                "ranknet_loss",
                "lambdarank_loss",
                "lambda_loss",
                "lambda_recall_loss",
                "approx_ndcg_loss",
                "pirank_ndcg_loss",
                "pirank_arp_loss",
                "sort_cross_entropy_loss",
                "relax_loss",
                "topk_bce_loss",
            )
        },
        "arf": "ARFLoss",
        "arf_v2": "ARFv2Loss",
    },
    "objective": {
        "bce": "BCE",
        "icc": "ICC",
        "rankflow": "RankFlow",
        "fs_ranknet": "FSRankNet",
        "fs_lambda_loss": "FSLambdaLoss",
        "sort_ce": "SortCE",
        "arf": "ARF",
        "arf_v2": "ARFv2",
        "lcron": "LCRON",
        "per_stage": "PerStage",
    },
    "model": {"two_tower": "TwoTower", "din": "DIN", "mlp": "EmbeddingMLP"},
    "metric": {},
    "source": {},
}

# Parameters that the caller supplies: the training loop, or other sections of the configuration.
_SUPPLIED: dict[Kind, frozenset[str]] = {
    "operator": frozenset({"scores", "k", "mask", "generator"}),
    "loss": frozenset({"scores", "logits", "labels", "mask", "weight", "reduction", "generator"}),
    "objective": frozenset({"relevant", "stages"}),
    "model": frozenset({"features", "tables"}),
    "metric": frozenset({"scores", "labels", "mask", "empty"}),
    "source": frozenset(),
}

# Parameters without a default that the caller supplies unless the configuration gives them.
_OVERRIDABLE: dict[Kind, frozenset[str]] = {
    "operator": frozenset(),
    "loss": frozenset(),
    "objective": frozenset({"quotas"}),  # those of the stages
    "model": frozenset(),
    "metric": frozenset(),
    "source": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a component.

    Attributes:
        name: Name of the parameter.
        default: Default in the signature, a Python value, or :data:`REQUIRED`.
    """

    name: str
    default: Any

    @property
    def required(self) -> bool:
        """Whether a configuration must give this option."""
        return self.default is REQUIRED


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of all components of one kind, without importing them."""
    own = [name for name, one in registered(kind).items() if not one.is_builtin]
    return tuple(dict.fromkeys([*_ATTRIBUTES[kind], *own, *entry_points(kind)]))


def get(kind: Kind, name: str) -> Callable[..., Any]:
    """Return a component by its name.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"`` or ``"model"``.
        name: Name in configurations, one of :func:`names`.

    Returns:
        A function for operators and losses, a class for objectives, models and the losses with trained weights
        (``arf``, ``arf_v2``).

    Raises:
        ValueError: If no component of this kind has the name.
    """
    if is_reference(name):
        return cast("Callable[..., Any]", resolve(kind, name))
    if name in registered(kind):
        return registered(kind)[name].component
    if name not in _ATTRIBUTES[kind] and name in (points := entry_points(kind)):
        return cast("Callable[..., Any]", resolve(kind, points[name]))
    if name not in _ATTRIBUTES[kind]:
        raise ValueError(
            f"{kind}: found {name!r}{did_you_mean(name, names(kind))}; allowed are {', '.join(names(kind))}"
        )
    component: Callable[..., Any] = getattr(import_module(_PACKAGES[kind]), _ATTRIBUTES[kind][name])
    return component


def options(kind: Kind, name: str) -> Mapping[str, Option]:
    """Return the options that a configuration can give to a component, by name and in the order of the signature.

    Parameters that the training loop or other sections of the configuration supply (scores, mask, the features of the
    log, the number of stages, ...) are not options.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"`` or ``"model"``.
        name: Name in configurations, one of :func:`names`.

    Raises:
        ValueError: If no component of this kind has the name.
    """
    parameters = inspect.signature(get(kind, name)).parameters.values()
    return MappingProxyType(
        {
            one.name: Option(one.name, None if one.name in _OVERRIDABLE[kind] else one.default)
            for one in parameters
            if one.name not in _SUPPLIED[kind]
        }
    )


def check_options(kind: Kind, name: str, given: Iterable[str]) -> None:
    """Check the names of the options that a configuration gives to a component; values are not checked.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"`` or ``"model"``.
        name: Name in configurations, one of :func:`names`.
        given: Names of the options that are given.

    Raises:
        ValueError: If the component is unknown, has no option of a given name, or lacks a required one.
    """
    allowed, given = options(kind, name), list(given)
    for option in given:
        if option not in allowed:
            hint = did_you_mean(option, list(allowed))
            raise ValueError(f"{name} has no option {option!r}{hint}; its options are {', '.join(allowed) or 'none'}")
    for required in (one.name for one in allowed.values() if one.required):
        if required not in given:
            raise ValueError(f"{name} needs the option {required!r}")


def config_value(value: Any) -> Any:
    """Return a default as a configuration writes it.

    Functions become their names, operators a mapping of their name and all their options, tuples become lists. A
    temperature with a schedule (a tensor) becomes None, since another option of the configuration describes it.

    >>> config_value(get("loss", "relax_loss"))
    'relax_loss'
    """
    if type(value).__module__ == "rankfall.ops.inclusion":  # an operator with options
        if any(type(option).__module__.startswith("torch") for option in value.options.values()):
            return None
        return explicit_operator({"name": value.name, **value.options})
    if isinstance(value, partial):
        return explicit_operator({"name": value.func.__name__, **value.keywords})
    if inspect.isfunction(value):
        return value.__name__
    return [config_value(one) for one in value] if isinstance(value, list | tuple) else value


def explicit_operator(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's name and options with the defaults filled in.

    >>> explicit_operator("soft_sort")
    {'name': 'soft_sort', 'tau': 1.0, 'power': 1}
    """
    given = {"name": value} if isinstance(value, str) else dict(value)
    defaults = {
        one.name: config_value(one.default) for one in options("operator", given["name"]).values() if not one.required
    }
    return given | {name: default for name, default in defaults.items() if name not in given}
