"""One signature per verb: a command has the parameters of the function of the API behind it, and those of its body.

Types, ranges and defaults are those of the signatures, help texts those of the doc strings. :func:`verb` adds what only
the terminal has: which parameters are positional, other names and texts.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le
from docstring_parser import DocstringStyle, parse

from rankfall import api, option_types
from rankfall._errors import RankfallError
from rankfall.api.shared import Display
from rankfall.commands.terminal import examples, print_message

# What a command line gives for the types of the API that have several forms, and for ranges.
_TYPES: dict[str, Any] = {
    **{name: getattr(option_types, name) for name in option_types.__all__},
    **dict.fromkeys(("PathLike", "RunLike", "ConfigLike"), Path),
    "Overrides": Sequence[str],
    "Sources": Sequence[str],
    "EngineName": Literal["local", "ray"],
    "Any": Any,
    "Callable": Callable,
    "Literal": Literal,
    "Mapping": Mapping,
    "Sequence": Sequence,
}
# Texts and settings of parameters that several functions have, where the command line differs from the API.
_TEXTS = {
    "config": "YAML configuration file.",
    "overrides": "Values that replace those of CONFIG, for example training.seed=1.",
    "spec": "Columns, stages and features of the log, a YAML file.",
    "run": "Directory of a training run.",
    "out": "Output directory.",
    "force": "Replace existing output.",
    "resume": "Continue after an interruption.",
    "engine": "Run on this machine (local), or with Ray on all processors of this machine or of the cluster at "
    "RAY_ADDRESS (pip install 'rankfall\\[ray]'). The result is the same.",
    "seed": "Random seed; equal seeds give equal results.",
    "jobs": "Number of training runs in parallel.",
    "verify": "Do not compare the data and the run with their checksums before reading them.",
    "as_json": "Print the result as JSON on standard output.",
    "figures": "Also write every figure of the page to this directory, as SVG and PNG.",
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "config": {"argument": "CONFIG"},
    "overrides": {"argument": "KEY=VALUE", "show_default": False},
    "run": {"argument": "RUN"},
    "as_json": {"flag": "json"},
    "figures": {"metavar": "DIR"},
}
_PYTHON_ONLY = ("call", "progress", "on_notice", "on_day", "stop")


@dataclass(frozen=True)
class Call:
    """The function of the API behind a command, and the arguments that the command line gives it."""

    function: Callable[..., Any]
    given: dict[str, Any]
    spelled: Mapping[str, str]  # how the command line names the arguments

    def __getitem__(self, name: str) -> Any:
        """Return an argument, or its default; None for one without a default that was not given."""
        default = inspect.signature(self.function).parameters[name].default
        return self.given.get(name, None if default is inspect.Parameter.empty else default)

    def __call__(self, display: Display | None = None, **others: Any) -> Any:
        """Call the function with the given and further arguments; progress and notices are shown.

        Raises:
            BadParameter: If an argument is wrong.
        """
        if display is None:
            with Display() as display:
                return self(display, **others)
        if self.given.get("engine") == "ray":
            print_message("starting Ray")
        parameters = inspect.signature(self.function).parameters
        shown = {"progress": display.show, "on_notice": display.note}
        arguments = {name: value for name, value in shown.items() if name in parameters} | self.given | others
        several = [name for name, one in parameters.items() if one.kind is one.VAR_POSITIONAL]
        words = [word for name in several for word in arguments.pop(name, ())]
        try:  # the attribute of the package, which is what programs call
            return getattr(api, self.function.__name__, self.function)(*words, **arguments)
        except RankfallError as error:
            if error.path not in self.spelled:
                raise
            text = re.sub(r"`(\w+)`", lambda found: self.spelled.get(found[1], found[0]), error.text)
            raise typer.BadParameter(text, param_hint=self.spelled[error.path]) from None


def verb(
    function: Callable[..., Any] | None, **terminal: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a command of its body, which receives a :class:`Call` and its own options.

    The doc string of the body is the help page: its text, below `Options` texts that replace those of the function and
    of `_TEXTS`, and below `Examples` one command per line.

    Args:
        function: Function of the API whose parameters are options, too. With None the body receives no :class:`Call`.
        **terminal: By parameter, what the command line has in its own way: `argument`, the name of a positional
            parameter, `flag`, another name of an option, `kind` and `default`, another type and default, and settings
            of :class:`typer.Option`.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        text, _, lines = inspect.cleandoc(body.__doc__ or "").partition("\n\nExamples:\n")
        texts = _described(text.replace("\n\nOptions:\n", "\n\nArgs:\n"))
        of_function, spelled = _parameters(function, terminal, texts) if function else ({}, {})
        of_body, _ = _parameters(body, terminal, texts)
        assert texts.keys() <= of_function.keys() | of_body.keys(), f"{body.__name__}: a text of no option"
        negated = [
            name
            for one in filter(None, (function, body))
            for name, parameter in inspect.signature(one).parameters.items()
            if parameter.default is True
        ]

        def command(**values: Any) -> None:
            given = {
                name: not value if name in negated else value for name, value in values.items() if value is not None
            }
            own = {name: given.pop(name) for name in of_body if name in given}
            if function is None:
                body(**own)
            else:
                body(Call(function, given, spelled), **own)

        command.__name__, command.__doc__ = body.__name__, text.partition("\n\nOptions:\n")[0]
        command.__signature__ = inspect.Signature([*(of_function | of_body).values()])  # type: ignore[attr-defined]
        command.__annotations__ = {}
        command.epilog = examples(*map(str.strip, lines.splitlines()))  # type: ignore[attr-defined]
        return command

    return decorate


command = partial(verb, None)
"""Return a decorator that makes a command of a function; its arguments are those of :func:`verb`."""


def group(
    name: str, help: str, lines: Sequence[str], *commands: Callable[..., None], no_args_is_help: bool = True
) -> typer.Typer:
    """Return a command with subcommands; `lines` are examples for its help page."""
    app = typer.Typer(name=name, help=help, no_args_is_help=no_args_is_help, epilog=examples(*lines))
    for one in commands:
        app.command(one.__name__, epilog=one.epilog)(one)  # type: ignore[attr-defined]
    return app


def _described(doc: str | None) -> dict[str, str]:
    """Return the descriptions of arguments in a doc string."""
    return {one.arg_name: one.description or "" for one in parse(doc or "", DocstringStyle.GOOGLE).params}


def _parameters(
    function: Callable[..., Any], terminal: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str]
) -> tuple[dict[str, inspect.Parameter], dict[str, str]]:
    """Return the parameters of a function as typer declares them, and their names on a command line."""
    parameters = {
        name: one
        for name, one in inspect.signature(function).parameters.items()
        if name not in _PYTHON_ONLY and one.kind is not one.VAR_KEYWORD
    }
    annotations = SimpleNamespace(__annotations__={name: one.annotation for name, one in parameters.items()})
    hints = get_type_hints(annotations, inspect.unwrap(function).__globals__, _TYPES, include_extras=True)
    described = _described(function.__doc__)
    texts = {**described, **_TEXTS, **texts}
    settings = {name: {**_SETTINGS.get(name, {}), **terminal.get(name, {})} for name in parameters}
    spelled = {name: settings[name].get("argument") or _flag(settings[name].get("flag", name)) for name in parameters}
    made = {}
    for name, one in parameters.items():
        text = texts.get(name, "")
        if " Default: " not in text:
            text = "".join((text, *described.get(name, "").partition(" Default: ")[1:]))
        text = re.sub(r"`(\w+)`", lambda found: spelled.get(found[1], found[0]), text)
        made[name] = _parameter(one, hints[name], _plain(text), settings[name])
    return made, spelled


def _parameter(one: inspect.Parameter, hint: Any, text: str, settings: dict[str, Any]) -> inspect.Parameter:
    """Return a parameter as typer declares it; `settings` are the terminal's own."""
    kind, limits = _type(list[hint] if one.kind is one.VAR_POSITIONAL else hint)
    kind = settings.pop("kind", kind)
    default = settings.pop("default", one.default)
    help_text, _, shown = text.partition(" Default: ")
    flag, argument = _flag(settings.pop("flag", one.name)), settings.pop("argument", None)
    options = {"help": help_text, **limits, **settings}
    if kind is float:
        options.setdefault("callback", _not_nan)
    if default is one.empty and one.kind is not one.VAR_POSITIONAL:
        default = ...
    elif default in (None, (), one.empty):
        default, kind = None, kind | None
    if kind is bool and default is True:
        default, flag = False, f"--no-{flag[2:]}"
    if default in (None, ...):
        options.setdefault("show_default", shown.removesuffix(".") or False)
    info = typer.Argument(metavar=argument, **options) if argument else typer.Option(flag, **options)
    made = inspect.Parameter(one.name, one.KEYWORD_ONLY, annotation=Annotated[kind, info])
    return made if default is ... else made.replace(default=default)


def _not_nan(number: float | None) -> float | None:
    """Refuse NaN, which no range of an option excludes."""
    if number is not None and math.isnan(number):
        raise typer.BadParameter(f"{number} is not a number")
    return number


def _type(hint: Any) -> tuple[Any, dict[str, Any]]:
    """Return the type of a parameter on a command line, of several the one that a text can give, and its range."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [_type(one) for one in get_args(hint) if one is not NoneType]
        origins = [get_origin(one[0]) or one[0] for one in kinds]
        chosen = next((wanted for wanted in (list, Literal, Path, str) if wanted in origins), origins[0])
        return kinds[origins.index(chosen)]
    if get_origin(hint) is Annotated:
        base, *ranges = get_args(hint)
        limits = [
            ("min", one.ge) if isinstance(one, Ge) else ("max", one.le) for one in ranges if isinstance(one, Ge | Le)
        ]
        return base, dict(limits)
    if get_origin(hint) in (Sequence, list):
        return list[get_args(hint)[0]], {}  # type: ignore[misc]
    return hint, {}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain(text: str) -> str:
    """Return a description without the marks of doc strings."""
    return re.sub(r":\w+:`~?([^`]*)`|`", r"\1", " ".join(text.split()))
