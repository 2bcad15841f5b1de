"""Options of a component that run different code, found from its signature, so that tests cover new components too."""

from __future__ import annotations

import ast
import inspect
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rankfall import losses, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Options = dict[str, Any]

SORTS = ("neural_sort", "soft_sort", "diff_sort", "pirank_sort")

# Values of options that have no default, for lists of seven items and two stages.
NEEDED: Options = {"k": 2, "m": 3, "relevant": 2, "quotas": [4, 3], "loss": losses.RankNetLoss()}

# Other values than the default, of options whose type does not list them. A mapping changes several options.
OTHERS: dict[str, list[Any]] = {
    "tau": [torch.tensor(0.5), torch.full((5, 1), 0.5)],
    "label_tau": [0.5],
    "steepness": [2.0, torch.tensor(0.5)],
    "power": [2],
    "p": [4 / 3],
    "network": ["bitonic"],
    "swap": ["logistic", "reciprocal", "optimal"],
    "depth": [2, 3],
    "branches": [[2, 5, 4]],
    "gumbel_samples": [2, {"gumbel_samples": 2, "generator": torch.Generator}],
    "generator": [torch.Generator],
    "ties": ["average", "position", "correct"],
    "reduction": ["sum", "none"],
    "k": [None, 20],
    "m": [20],
    "mix": [0.5],
    "sigma": [2.0],
    "threshold": [None],
    "min_depth": [1],
    "quotas": [[4, 3]],
    "e2e_weight": ["learned", 0.5],
    "single_weight": [0.5],
    "sort": [getattr(ops, name) for name in SORTS[1:-1]] + [partial(ops.pirank_sort, depth=2)],
    "topk": [ops.topk(name) for name in ("dftopk", "lapsum_topk", "sigmoid_topk", "hard_topk")]
    + [ops.topk("sparse_topk", tau=5.0), ops.topk("diff_sort"), ops.topk("pirank_sort", depth=2)]
    + [ops.topk("soft_sort", gradient="exact"), ops.topk("neural_sort", gradient="one_minus")],
}


def variants(function: Callable[..., Any], *, given: tuple[str, ...]) -> Iterator[Options]:
    """Yield the needed options of a function, then the same with one option changed.

    Args:
        function: Function, or class, that has the options.
        given: Names of arguments that are no options.
    """
    parameters = {
        name: parameter for name, parameter in inspect.signature(function).parameters.items() if name not in given
    }
    needed = {name: NEEDED[name] for name, parameter in parameters.items() if parameter.default is parameter.empty}
    yield needed
    for name, parameter in parameters.items():
        for value in _values(name, parameter):
            if (name, value) == ("ties", "correct") and "correct" not in str(parameter.annotation):
                continue
            yield needed | (value if isinstance(value, dict) else {name: value})


def _values(name: str, parameter: inspect.Parameter) -> list[Any]:
    listed = re.findall(r"Literal(\[.*?\])", str(parameter.annotation))
    choices = [choice for found in listed for choice in ast.literal_eval(found)]
    if parameter.annotation == "bool":
        choices = [not parameter.default]
    return [value for value in choices if value != parameter.default] + OTHERS.get(name, [])
