"""Checks of the options of losses, objectives, models and metrics before any of them is built; names of metrics.

Names, required options, types and ranges come from :mod:`rankfall.registry`. A configuration is validated twice: first
without importing any component, so that torch is not needed for most mistakes and code of users does not run; then
with their options. What depends on several options, or on the data, is checked by the component itself when a training
run builds it, before anything is written.
"""

from __future__ import annotations

import math
import re
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError, WithJsonSchema

from rankfall import registry
from rankfall._config import ConfigError, OptionError, explain, shown
from rankfall._errors import did_you_mean
from rankfall.registry import Option, metric_names
from rankfall.registry.references import UnresolvedError, absolute, find, is_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from rankfall.registry import Kind


TEMPERATURES = ("tau", "temperature", "steepness")
"""Options of losses, objectives and their operators that can follow a schedule."""

ScheduleName = Literal["constant", "linear", "exponential"]

# Options of a soft top-k besides those of its operator.
_TOPK_OPTIONS = {
    "normalised": Option("normalised", True, bool),
    "gradient": Option("gradient", None, Literal["rows", "exact", "one_minus"] | None),
}

Model = TypeVar("Model", bound=BaseModel)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_IMPORTS: ContextVar[bool] = ContextVar("whether components may be imported", default=True)


def imports_allowed() -> bool:
    """Return whether components may be imported: in the second of two validations."""
    return _IMPORTS.get()


def validate_model(model: type[Model], content: Mapping[str, Any], where: str) -> Model:
    """Validate a mapping. Components are imported only if everything that does not need it is right.

    Args:
        model: Class of the configuration.
        content: The mapping.
        where: Prefix of error messages, such as the path of the file.

    Raises:
        ConfigError: If a key or value is wrong. The message names every wrong key.
    """
    try:
        return names_first(model.model_validate)(dict(content))
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def names_first(validate: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function that validates configurations run first without importing components, then with their options."""

    @wraps(validate)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if imports_allowed():
            token = _IMPORTS.set(False)
            try:
                validate(*args, **kwargs)
            finally:
                _IMPORTS.reset(token)
        return validate(*args, **kwargs)

    return call


class Schedule(NamedTuple):
    """Values of a temperature over a training run."""

    start: float
    end: float
    schedule: ScheduleName


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


# --- components ---------------------------------------------------------------------------------------------------


def component_name(kind: Kind) -> Any:
    """Return the type of a key that names a component of one kind."""
    schema = {
        "anyOf": [
            {"enum": list(registry.builtins(kind))},
            {"type": "string", "description": "A registered name, MODULE:ATTRIBUTE or ./FILE.py:ATTRIBUTE."},
        ]
    }
    return Annotated[str, BeforeValidator(partial(check_name, kind)), WithJsonSchema(schema)]


def check_name(kind: Kind, name: object, *path: str, allowed: Sequence[str] | None = None) -> str:
    """Check that a component of a name may exist, without importing it.

    Args:
        kind: Kind of the component.
        name: Name or reference in the configuration.
        path: Key of the name, for the error.
        allowed: Built-in names that are allowed. Default: all.

    Returns:
        The name, with the absolute path of its file if it has one.

    Raises:
        OptionError: If no component has the name, or the module or file of a reference does not exist.
    """
    builtin = registry.builtins(kind) if allowed is None else allowed
    if isinstance(name, str) and (name in builtin or registry.is_own(kind, name)):
        try:
            if is_reference(name):
                find(kind, name)
        except UnresolvedError as error:
            raise OptionError(str(error), *path) from None
        return absolute(name)
    names = [one for one in registry.names(kind) if one in builtin or registry.is_own(kind, one)]
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


def check_model(config: Mapping[str, Any]) -> None:
    """Check the kind of the model of a stage and its options.

    Raises:
        OptionError: If the kind or an option is unknown, or an option has a wrong value.
    """
    options = dict(config)
    kind = options.pop("kind", None)
    check_name("model", kind, "kind")
    check_component("model", kind, options)


def check_metric(name: str) -> str:
    """Return the name of a metric, with the absolute path of its file if it has one.

    Raises:
        ValueError: If no metric has the name, or its cutoffs do not fit.
    """
    name = absolute(name)
    if imports_allowed():
        metric_names.parse_name(name)
    else:
        metric_names.check_word(name)
    return name


def check_component(kind: Kind, name: str, options: Mapping[str, Any]) -> None:
    """Check the options of a component. Temperatures of losses and objectives can follow a schedule.

    Raises:
        OptionError: If an option is unknown, missing or has a wrong value.
    """
    if not imports_allowed():
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
    if value is None and option.optional:
        return
    if option.part is not None:
        _check_part(option, value)
    elif option.name in TEMPERATURES and isinstance(value, dict):
        read_schedule(option.name, value)
    else:
        try:
            option.check(value)
        except ValidationError as error:
            raise _wrong_value(option.name, error) from None


def _check_part(option: Option, value: Any) -> None:
    """Check the name of an operator or loss, or a mapping of its name and options."""
    name = option.name
    kind: Kind = "loss" if option.part == "loss" else "operator"
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        what = "a loss's name" if kind == "loss" else "an operator's name"
        raise OptionError(f"found {shown(value)}, expected {what} or {{name: ..., its options}}", name)
    path = (name,) if isinstance(value, str) else (name, "name")
    check_name(kind, given["name"], *path, allowed=registry.SORTS if option.part == "sort" else None)
    options = {key: one for key, one in given.items() if key != "name"}
    own = _TOPK_OPTIONS if option.part == "topk" else {}
    try:
        for key in own.keys() & options.keys():
            _check_value(own[key], options.pop(key))
        check_component(kind, given["name"], options)
    except OptionError as error:
        raise error.inside(name) from None


def _wrong_value(name: str, error: ValidationError) -> OptionError:
    """Describe the error of the alternative that fits best: the one that fails deepest inside the value."""
    errors = error.errors()
    depth = max(len(one["loc"]) for one in errors)
    deepest = [one for one in errors if len(one["loc"]) == depth]
    expected = dict.fromkeys(one["msg"].removeprefix("Input should be ") for one in deepest)
    found = deepest[0]["input"]
    words = re.findall(r"'([^']*)'", " ".join(expected))
    place = [str(part) for part in deepest[0]["loc"] if isinstance(part, int)]
    return OptionError(
        f"found {shown(found)}{did_you_mean(found, words)}, expected {' or '.join(expected)}", name, *place
    )


# --- metrics of cascades ------------------------------------------------------------------------------------------

JOINT = "joint_recall"

JOINT_VALUE = "joint_value"
"""Share of the relevance of the ground truth that survives all stages."""

PUBLISHED_NDCG = "ndcg_published"
"""NDCG with the gains of the published code of LCRON."""

VALUE_NDCG = "ndcg_value"
"""NDCG with the relevance as linear gain."""

ALONE, SHOWN = "alone", "shown"
_ALONE_ALWAYS = ("recall", "ndcg")
_OF_LISTS = ("ndcg_linear", "precision", "hit_rate", "mrr", "map", "opa", "opa_all", "arp", PUBLISHED_NDCG, VALUE_NDCG)
_OF_ALONE = frozenset((*_ALONE_ALWAYS, *_OF_LISTS))

RESERVED = frozenset((*_OF_ALONE, "lost", "survived", "value", ALONE))
"""Words that name metrics of a stage, so that feedback cannot be measured under them."""


METRICS_OF_CASCADES = {
    "joint_recall": "share of the ground truth that survives all stages; the ground truth is the best `relevant` of "
    "the relevant items, by relevance, then by grade",
    "joint_value": "share of the relevance of the ground truth that survives all stages; measured if items of a ground "
    "truth differ in relevance",
    "joint/FEEDBACK": "share of a feedback that survives all stages, for the key `feedback`: pooled over all requests "
    "(sum), or the mean over requests that have some (rate)",
    "STAGE/survived": "share of the ground truth that is left after the stage",
    "STAGE/lost": "share of the ground truth that the stage drops; lower is better",
    "STAGE/value": "share of the relevance of the ground truth that is left after the stage",
    "STAGE/FEEDBACK": "share of a feedback that is left after the stage",
    "STAGE/alone/recall": "recall of the stage by itself, over the whole list",
    "STAGE/alone/ndcg": "NDCG of the stage by itself, over the whole list, with gain 1 for the ground truth",
    "STAGE/shown/auc": "share of the pairs of a relevant and an irrelevant item that the stage orders correctly, "
    "within the items that reached the last stage of the log; measured if relevance is a column",
    "STAGE/shown/ndcg": "NDCG of the stage within the same items, with gain 1 for relevant ones",
}
"""Definitions of the metrics of a cascade, by the form of their names."""


def measures(
    stages: Sequence[str], further: Sequence[str] = (), feedback: Iterable[str] = (), *, complete: bool = True
) -> list[str]:
    """Return the names of all metrics of a cascade that are measured on every log.

    Args:
        stages: Names of the stages.
        further: Names of further metrics of every stage alone.
        feedback: Names of feedback whose survival is measured. What is left after the last stage is ``joint/FEEDBACK``.
        complete: Whether all stages score the whole list. If they do not, only the first stage has a recall by itself.

    >>> measures(["ranking"], ["ndcg_linear@10"])
    ['joint_recall', 'ranking/alone/recall', 'ranking/alone/ndcg', 'ranking/lost', 'ranking/alone/ndcg_linear@10']
    >>> measures(["retrieval", "ranking"], feedback=["revenue"], complete=False)
    ['joint_recall', 'joint/revenue', 'retrieval/alone/recall', 'retrieval/lost', 'retrieval/revenue', 'ranking/lost']
    """
    names = [JOINT, *(f"joint/{name}" for name in feedback)]
    for place, stage in enumerate(stages):
        always = [*_ALONE_ALWAYS] if complete else ["recall"] if place == 0 else []
        names += [alone_name(stage, metric) for metric in always]
        names.append(f"{stage}/lost")
        names += [alone_name(stage, metric) for metric in dict.fromkeys(further if complete else ())]
        names += [f"{stage}/{name}" for name in feedback if place < len(stages) - 1]
    return names


def with_value(metrics: Sequence[str], measured: Iterable[Container[str]]) -> list[str]:
    """Return metrics, and ``joint_value`` after ``joint_recall`` if all results have it: not every log does.

    Args:
        metrics: Names of metrics.
        measured: The metrics of each result.

    >>> with_value(["joint_recall", "ranking/lost"], [{"joint_recall", "joint_value", "ranking/lost"}])
    ['joint_recall', 'joint_value', 'ranking/lost']
    """
    measured = list(measured)
    everywhere = bool(measured) and all(JOINT_VALUE in names for names in measured)
    return [*metrics[:1], *([JOINT_VALUE] if everywhere else []), *metrics[1:]]


def list_metric(name: str) -> str:
    """Return the metric of lists that a further metric of a stage applies, to labels of its own.

    >>> list_metric("ndcg_published@10"), list_metric("opa")
    ('ndcg_linear@10', 'opa')
    """
    word, at, cutoffs = name.partition("@")
    return f"ndcg_linear{at}{cutoffs}" if word in (PUBLISHED_NDCG, VALUE_NDCG) else name


def higher_is_better(metric: str) -> bool:
    """Return whether higher values of a metric are better: not for shares of items lost and for mean positions.

    >>> [higher_is_better(metric) for metric in ("joint_recall", "ranking/lost", "ranking/alone/arp", "arp")]
    [True, False, False, False]
    """
    _, name = split_stage(metric)
    return name != "lost" and metric_names.higher_is_better(name.removeprefix(f"{ALONE}/"))


def split_stage(metric: str) -> tuple[str, str]:
    """Return the stage and the metric of a name. Metrics that are references to files have slashes themselves.

    >>> split_stage("ranking/lost"), split_stage("ndcg@10"), split_stage("ranking/alone//home/ada/own.py:rbp@0.8")
    (('ranking', 'lost'), ('', 'ndcg@10'), ('ranking', 'alone//home/ada/own.py:rbp@0.8'))
    """
    stage, slash, name = metric.partition("/")
    return (stage, name) if slash and stage.isidentifier() else ("", metric)


def alone_name(stage: str, metric: str) -> str:
    """Return the name of a metric of a stage by itself.

    >>> alone_name("ranking", "recall")
    'ranking/alone/recall'
    """
    return f"{stage}/{ALONE}/{metric}"


def shown_name(metric: str) -> str:
    """Return the name under which tables show a metric: references to files are shown without their folders.

    >>> shown_name("ranking/alone/recall"), shown_name("joint_recall")
    ('ranking/alone/recall', 'joint_recall')
    >>> shown_name("ranking/alone//home/ada/own.py:rbp@0.8"), shown_name("/home/ada/own.py:rbp@0.8")
    ('ranking/alone/own.py:rbp@0.8', 'own.py:rbp@0.8')
    """
    place, colon, own = metric.rpartition(":")
    if not colon:
        return metric
    stage, _ = split_stage(metric)
    short = f"{place.rpartition('/')[2]}:{own}"
    return alone_name(stage, short) if stage else short


def absolute_metric(metric: str) -> str:
    """Return the name of a metric of a cascade with the absolute path of a reference to a file."""
    stage, name = split_stage(metric)
    own = name.removeprefix(f"{ALONE}/")
    return alone_name(stage, absolute(own)) if stage and own != name else metric
