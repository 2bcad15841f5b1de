"""The options of models, operators, losses and objectives as configurations write them.

Names and defaults are read from signatures, what they mean from doc strings, where an option stands as ``name: text.``
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rankfall import losses, models, objectives, ops
from rankfall.models.embedding import FeatureEmbedding
from rankfall.models.layers import Layers
from rankfall.ops import Operator
from rankfall.training.build import GIVEN_BY_THE_LOOP, TRAINED
from rankfall.training.build_cascade import GIVEN, OBJECTIVES, make_objective, try_depths
from rankfall.training.config.cascade_config import CascadeConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rankfall.training.config.ranker_config import RankerConfig

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    default: Any  # as YAML has it, or REQUIRED
    meaning: str


# --- of one thing -------------------------------------------------------------------------------------------------


def model_options(kind: str) -> list[Option]:
    """The options of a model of a cascade."""
    model = models.KINDS[kind]
    return _options(model, ("features", "tables"), [model, Layers, FeatureEmbedding])


def operator_options(name: str) -> list[Option]:
    """The options of an operator."""
    operator = getattr(ops, name)
    return _options(operator, ("scores", "k", "mask", "generator"), [operator, ops])


def loss_options(name: str) -> list[Option]:
    """The options of a loss."""
    loss = TRAINED.get(name) or getattr(losses, name)
    return _options(loss, ("scores", "logits", "labels", *GIVEN_BY_THE_LOOP), [loss, losses])


def objective_options(name: str) -> list[Option]:
    """The options of an objective."""
    objective = OBJECTIVES[name]
    options = _options(objective, GIVEN, [objective, objectives, losses])
    return [replace(one, default=None) if one.name == "quotas" else one for one in options]  # the stages have them


# What doc strings say in other words, or not at all because it is clear to those who read code.
_MEANINGS = {
    "activation": f"one of {', '.join(models.ACTIVATIONS)}",
    "alpha": "share of the ranking term in the distillation, from 0 to 1",
    "batch_norm": "normalise every layer over the real items of a batch",
    "beta": "scale of the Gumbel noise",
    "depth": "levels of the tree, by default 1",
    "gumbel_samples": "draws of Gumbel noise, 0 for none",
    "label_tau": "null for the hard order of the labels, or the temperature at which they are sorted too",
    "min_depth": "what a stage sees: items that got at least so far in the log, to the stage of this number or name; "
    "one for all stages or a list, by default -1 (everything), 1, 2, ...",
    "network": "odd_even or bitonic",
    "p": "norm of the projection, 2 or 4/3",
    "power": "of the distance, 1 or 2",
    "quotas": "numbers of items that the stages keep, by default their own",
    "sort": "any soft sort",
    "std": "deviation of the first weights of tables",
    "steepness": "of the comparators, by default twice the number of items",
    "swap": "distribution function of a comparator: cauchy, logistic, reciprocal or optimal",
    "tau": "temperature: the smaller, the harder",
    "temperature": "of the soft cut-offs: the smaller, the harder",
    "topk": "any operator, by default neural_sort at tau",
    "version": "what k does to the weights of pairs: sound or heuristic",
}


def _options(what: Callable[..., Any], known: Iterable[str], documents: list[Any]) -> list[Option]:
    parameters = {name: one for name, one in inspect.signature(what).parameters.items() if name not in known}
    own, *shared = [inspect.cleandoc(document.__doc__ or "") for document in documents]

    def meaning(name: str) -> str:
        found = [_entry(name, own), _MEANINGS.get(name, ""), *(_entry(name, text) for text in shared)]
        return next((text for text in found if text), "")

    return [Option(name, written(one.default), meaning(name)) for name, one in parameters.items()]


_ENTRY = re.compile(r"(?:^|(?<=[.;]\s)|(?<=\s\s))(?P<names>[a-z_0-9]+(?:, [a-z_0-9]+)*):\s", re.MULTILINE)


def _entry(name: str, text: str) -> str:
    """The first sentence behind ``name:``.

    >>> _entry("beta", "Smooth ranks. tau, beta: temperatures; k: cut-off. It is an int.")
    'temperatures'
    """
    for paragraph in text.split("\n\n"):
        entries = list(_ENTRY.finditer(paragraph))
        ends = [entry.start() for entry in entries[1:]] + [len(paragraph)]
        for entry, end in zip(entries, ends, strict=False):
            if name in entry["names"].split(", "):
                text = plain(" ".join(paragraph[entry.end() : end].split()))
                return re.split(r"\.(?=\s+[A-Z\[]|$)", text, maxsplit=1)[0].rstrip(" ;")
    return ""


def plain(text: str) -> str:
    """A doc string's text without its markup."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("\\", "").replace("`", "")


def written(value: Any) -> Any:
    """A value as YAML has it: functions by their names, operators by name and options."""
    if isinstance(value, Operator):
        if any(isinstance(option, Tensor) for option in value.options.values()):
            return None  # a temperature with a schedule, which it has from another option
        return _operator({"name": value.name, **value.options})
    if isinstance(value, partial):
        return _operator({"name": value.func.__name__, **value.keywords})
    if inspect.isfunction(value):
        return value.__name__
    return [written(one) for one in value] if isinstance(value, list | tuple) else value


def _operator(value: Any) -> Any:
    """An operator with all its options; just its name is also understood."""
    given = {"name": value} if isinstance(value, str) else dict(value)
    return {**given, **_missing(operator_options(given["name"]), given)}


def _missing(options: Iterable[Option], given: Iterable[str]) -> dict[str, Any]:
    return {one.name: one.default for one in options if one.name not in given and one.default is not REQUIRED}


# --- of a configuration -------------------------------------------------------------------------------------------


def with_defaults(config: RankerConfig | CascadeConfig) -> dict[str, Any]:
    """A configuration in which every option of its models, loss or objective is written out."""
    content = config.model_dump(mode="json")
    if not isinstance(config, CascadeConfig):
        content["loss"] = _filled(content["loss"], loss_options(config.loss.name))
        return content
    for stage in content["stages"]:
        stage["model"] |= _missing(model_options(stage["model"]["kind"]), stage["model"])
    content["objective"] = _filled(content["objective"], _objective_defaults(config))
    return content


def _filled(section: dict[str, Any], options: Iterable[Option]) -> dict[str, Any]:
    filled = section | _missing(options, section)
    return filled | ({"topk": _operator(filled["topk"])} if filled.get("topk") else {})


def _objective_defaults(config: CascadeConfig) -> list[Option]:
    """The options with what the objective makes of a default of None. What the stages say is not said again."""
    objective, _ = make_objective(try_depths(config))
    said = {"quotas"} if config.objective.name != "lcron" else set()
    said |= {"min_depth"} if any(stage.min_depth is not None for stage in config.stages) else set()
    return [
        Option(one.name, written(getattr(objective, one.name, None)) if one.default is None else one.default, "")
        for one in objective_options(config.objective.name)
        if one.name not in said
    ]
