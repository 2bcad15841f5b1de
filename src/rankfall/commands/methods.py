"""``rankfall methods``: every operator, loss, objective, metric and model with its paper, from the doc strings."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.table import Column, Table
from rich.text import Text

from rankfall.commands.terminal import print_json, print_result, table
from rankfall.commands.verb import command
from rankfall.register import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.component_docs import OptionDoc

METHODS: tuple[Kind, ...] = ("operator", "loss", "objective", "metric")
"""The kinds of methods that papers describe."""
_KINDS: tuple[Kind, ...] = (*METHODS, "model", "source")  # in the order of the list
_WIDE: dict[str, Any] = {"title_style": "bold", "expand": True}


@dataclass(frozen=True)
class Method:
    """A public function, loss module, objective or model, or a component of a user.

    Attributes:
        name: Name in Python.
        kind: Kind of the component.
        line: Title of the doc string.
        citation: Citation in the title.
        papers: References of the citation.
        config: Name in configurations. Empty if configurations cannot name it, or if it is a metric.
        names: Names of a metric in configurations, such as ``ndcg@k``.
        place: File or reference of a component that is not built in.
    """

    name: str
    kind: Kind
    line: str
    citation: str
    papers: list[str]
    config: str
    names: list[str] = field(default_factory=list)
    place: str = ""


@command(name={"argument": "NAME"})
def methods(name: str | None = None, kind: Kind | None = None, as_json: bool = False) -> None:
    """List all methods (operators, losses, objectives, metrics) and models with their papers, or explain one.

    With NAME, prints the definition and the options of a component. Your own components are listed if installed
    packages declare them as entry points. Others are named by a reference, MODULE:ATTRIBUTE or ./FILE.py:ATTRIBUTE.

    Options:
        name: Component whose options are shown, e.g. lcron, din or ./my_loss.py:focal.
        kind: List the components of one kind only.

    Examples:
        rankfall methods
        rankfall methods lcron
        rankfall methods --kind loss
        rankfall methods ndcg
        rankfall methods joint_value
        rankfall methods --kind operator --json
        rankfall methods ./my_loss.py:focal
    """
    if name is not None:
        _show_one(name, kind, as_json)
        return
    listed = [method for one in ([kind] if kind else _KINDS) for method in (*find_methods(one), *find_own(one))]
    if as_json:
        print_json([asdict(method) for method in listed])
        return
    for one in _KINDS:
        of_kind = [method for method in listed if method.kind == one]
        if of_kind:
            print_result(_table(one, of_kind))
    if kind in (None, "metric"):
        columns: list[str | Column] = [Column("name in configurations", style="cyan", no_wrap=True)]
        columns.append(Column("description", ratio=1))
        print_result(table(columns, _metrics_of_cascades().items(), title="metrics of a cascade", **_WIDE))
    print_result(_references(listed))
    print_result("'rankfall methods NAME' shows the definition and the options of a component.")


def _show_one(name: str, kind: Kind | None, as_json: bool) -> None:
    if kind in (None, "metric") and (form := _form_of_cascades(name)):
        definition = _metrics_of_cascades()[form]
        if as_json:
            print_json([{"name": form, "kind": "metric", "line": definition}])
        else:
            print_result(f"{form} (metric of a cascade): {definition}")
        return
    matches = _find(name, kind)
    if as_json:
        print_json([asdict(method) | {"text": _text(method), "options": _json_options(method)} for method in matches])
        return
    for method in matches:
        others = _other_names(method)
        called = f", in configurations {', '.join(others)}" if others else ""
        print_result(f"{method.name} ({method.kind}{called}): {method.line}")
        if method.place:
            print_result(f"defined in {method.place}")
        for paragraph in _text(method):
            print_result(paragraph)
        if options := find_options(method):
            columns = [Column("option", style="cyan", no_wrap=True), Column("default", ratio=1)]
            rows = [(option.name, default_text(option), option.meaning) for option in options]
            print_result(table([*columns, Column("description", ratio=3)], rows, expand=True))
    if any(method.papers for method in matches):
        print_result(_references(matches))


def _find(name: str, kind: Kind | None) -> list[Method]:
    """Return the components of a name, in Python or in configurations. Components of users are imported."""
    from rankfall._errors import did_you_mean
    from rankfall.registry import guess_kind
    from rankfall.registry.references import is_reference, resolve, split_cutoffs

    if is_reference(name):
        reference, _ = split_cutoffs(name)
        return [_describe_own(kind or guess_kind(reference, resolve("component", reference)), reference)]
    kinds = [kind] if kind else _KINDS
    builtin = [method for one in kinds for method in find_methods(one)]
    own = [method for one in kinds for method in find_own(one)]
    word, _ = split_cutoffs(name)
    matches = [
        method
        for method in builtin
        if name in (method.name, method.config) or word in {split_cutoffs(form)[0] for form in method.names}
    ]
    matches += [_describe_own(method.kind, name) for method in own if name == method.config]
    if not matches:
        names = [one for method in (*builtin, *own) for one in (method.name, method.config, *method.names) if one]
        raise typer.BadParameter(
            f"unknown method {name!r}{did_you_mean(name, [*names, *_metrics_of_cascades()])}; 'rankfall methods' lists "
            "all methods",
            param_hint="NAME",
        )
    return matches


def _metrics_of_cascades() -> dict[str, str]:
    from rankfall.training.config.component_checks import METRICS_OF_CASCADES

    return METRICS_OF_CASCADES


def _form_of_cascades(name: str) -> str | None:
    """Return the form of the name of a metric of cascades, such as ``STAGE/alone/recall``."""
    own, _, rest = name.partition("/")
    forms = (name, f"STAGE/{rest}") if own and rest else (name,)
    return next((form for form in forms if form in _metrics_of_cascades()), None)


# --- what the package holds ---------------------------------------------------------------------------------------


def find_methods(kind: Kind) -> list[Method]:
    """Return the built-in components of one kind, by their names in Python.

    Metrics include the tests of significance, which configurations do not name.
    """
    from rankfall import metrics, registry
    from rankfall.metrics.named import forms

    if kind == "metric":
        members = {name: getattr(metrics, name) for name in metrics.__all__}
        return [_method(kind, name, one, names=forms(one)) for name, one in members.items() if inspect.isfunction(one)]
    by_name = {registry.python_name(kind, config): config for config in registry.builtins(kind)}
    return [_method(kind, name, registry.get(kind, config), config) for name, config in sorted(by_name.items())]


def find_own(kind: Kind) -> list[Method]:
    """Return the components of one kind that are not built in: registered ones, and entry points, not imported."""
    from rankfall import registry
    from rankfall.register import registered
    from rankfall.registry.references import entry_points

    own = [name for name, one in registered(kind).items() if not one.is_builtin]
    return [_describe_own(kind, name) for name in own] + [
        Method(name, kind, "", "", [], name, place=reference)
        for name, reference in entry_points(kind).items()
        if name not in own and not registry.is_builtin(kind, name)
    ]


def _describe_own(kind: Kind, name: str) -> Method:
    from rankfall import registry
    from rankfall.registry.metric_names import name_forms
    from rankfall.registry.references import source_of

    described = _method(kind, registry.python_name(kind, name), registry.get(kind, name), name)
    source = source_of(kind, name)
    return replace(described, place=source.file if source else "", names=name_forms(name) if kind == "metric" else [])


def _method(
    kind: Kind, name: str, component: Callable[..., Any], config: str = "", names: list[str] | None = None
) -> Method:
    from rankfall.component_docs import cited, documentation, papers

    docs = documentation(component)
    references = [papers()[one] for one in cited(docs.citation)]
    return Method(name, kind, docs.title, docs.citation, references, config, names or [])


def _component(method: Method) -> Callable[..., Any]:
    from rankfall import metrics, registry

    if method.config:
        return registry.get(method.kind, method.config)
    return cast("Callable[..., Any]", getattr(metrics, method.name))


def find_options(method: Method) -> list[OptionDoc]:
    """Return the options that a configuration can give, or the arguments of a metric, which its names fix."""
    from rankfall import registry
    from rankfall.component_docs import OptionDoc, documentation, option_docs

    if method.kind != "metric":
        return option_docs(method.kind, method.config)
    function = _component(method)
    described = documentation(function).arguments
    return [
        OptionDoc(one.name, registry.REQUIRED if one.default is one.empty else one.default, described.get(one.name, ""))
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name not in ("mask", "generator")
    ]


def _text(method: Method) -> list[str]:
    """Return the paragraphs of the doc string after its title."""
    from rankfall.component_docs import documentation

    return list(documentation(_component(method)).text)


# --- output -------------------------------------------------------------------------------------------------------


def _json_options(method: Method) -> list[dict[str, object]]:
    return [
        {"name": one.name, "needed": one.required, "meaning": one.meaning}
        | ({} if one.required else {"default": one.default})
        for one in find_options(method)
    ]


def default_text(option: OptionDoc) -> str:
    """Return a default as YAML writes it, or ``"needed"`` if the option is required."""
    import yaml

    if option.required:
        return "needed"
    text: str = yaml.safe_dump(option.default, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _table(kind: Kind, methods: list[Method]) -> Table:
    in_python = any(_other_names(method) for method in methods)
    name = Column("name\n[dim]in configurations[/]" if in_python else "name", style="cyan", no_wrap=True)
    rows = [
        (
            Text("\n").join([Text(method.name), *(Text(other, style="dim") for other in _other_names(method))]),
            method.line or (f"entry point {method.place}" if method.place else ""),
            method.citation,
        )
        for method in methods
    ]
    title = f"{len(methods)} {'losses' if kind == 'loss' else f'{kind}s'}"
    return table([name, Column("description", ratio=3), Column("paper", ratio=2)], rows, title=title, **_WIDE)


def _other_names(method: Method) -> list[str]:
    """Return the names in configurations that are not the name in Python."""
    config = "" if method.kind == "metric" and method.names else method.config
    return [name for name in (config, *method.names) if name not in ("", method.name)]


def _references(methods: list[Method]) -> Table:
    from rankfall.component_docs import cited, papers

    used = {name for method in methods for name in cited(method.citation)}
    rows = [(name, reference) for name, reference in papers().items() if name in used]
    settings: dict[str, Any] = {"title_style": "bold", "box": None, "show_header": False}
    return table([Column(style="cyan", no_wrap=True), ""], rows, title="papers", **settings)
