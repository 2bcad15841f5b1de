"""``rankfall methods``: every operator, loss, objective and metric with its paper, from the doc strings."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape
from rich.table import Table

from rankfall.commands.options import AsJson
from rankfall.commands.terminal import examples, print_json, print_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.component_docs import OptionDoc

EXAMPLES = examples(
    "rankfall methods",
    "rankfall methods lcron",
    "rankfall methods --kind loss",
    "rankfall methods ndcg",
    "rankfall methods joint_value",
    "rankfall methods --kind operator --json",
)

# References by the names under which doc strings cite them.
PAPERS = {
    "ARF": 'Wang et al. "Adaptive Neural Ranking Framework: Toward Maximized Business Goal for Cascade Ranking '
    'Systems". WWW 2024',
    "LLK": 'Jagerman et al. "On Optimizing Top-K Metrics for Neural Ranking Models". SIGIR 2022',
    "PIR": 'Swezey et al. "PiRank: Scalable Learning To Rank via Differentiable Sorting". NeurIPS 2021',
    "LCR": '"Learning Cascade Ranking as One Network". ICML 2025',
    "DFT": '"Differentiable Fast Top-K Selection for Large-Scale Recommendation"',
    "DFTopK": '"Differentiable Fast Top-K Selection for Large-Scale Recommendation"',
    "NeuralSort": 'Grover et al. "Stochastic Optimization of Sorting Networks via Continuous Relaxations". ICLR 2019',
    "SoftSort": 'Prillo, Eisenschlos. "SoftSort: A Continuous Relaxation for the argsort Operator". ICML 2020',
    "DiffSort": 'Petersen et al. "Differentiable Sorting Networks for Scalable Sorting and Ranking Supervision". '
    'ICML 2021; "Monotonic Differentiable Sorting Networks". ICLR 2022',
    "LapSum": 'Struski et al. "LapSum - One Method to Differentiate Them All: Ranking, Sorting and Top-k '
    'Selection". 2025',
    "Sparse top-k": 'Sander et al. "Fast, Differentiable and Sparse Top-k: a Convex Analysis Perspective". ICML 2023',
    "Bengio et al. 2013": '"Estimating or Propagating Gradients Through Stochastic Neurons for Conditional '
    'Computation". 2013',
    "Burges et al. 2005": '"Learning to Rank using Gradient Descent". ICML 2005',
    "Cao et al. 2007": '"Learning to Rank: From Pairwise Approach to Listwise Approach". ICML 2007',
    "Xia et al. 2008": '"Listwise Approach to Learning to Rank: Theory and Algorithm". ICML 2008',
    "Qin et al. 2010": '"A General Approximation Framework for Direct Optimization of Information Retrieval '
    'Measures". Information Retrieval 2010',
    "Burges 2010": '"From RankNet to LambdaRank to LambdaMART: An Overview". Microsoft Research 2010',
    "Wang et al. 2018": '"The LambdaLoss Framework for Ranking Metric Optimization". CIKM 2018',
    "Bruch et al. 2020": '"A Stochastic Treatment of Learning to Rank Scoring Functions". WSDM 2020',
    "NeuralNDCG": 'Pobrotyn, Białobrzeski. "NeuralNDCG: Direct Optimisation of a Ranking Metric via Differentiable '
    'Relaxation of Sorting". 2021',
    "Gallagher et al. 2019": '"Joint Optimization of Cascade Ranking Models". WSDM 2019',
    "Qin et al. 2022": '"RankFlow: Joint Optimization of Multi-Stage Cascade Ranking Systems as Flows". SIGIR 2022',
    "Zheng et al. 2024": '"Full Stage Learning to Rank: A Unified Framework for Multi-Stage Systems". WWW 2024',
    "Järvelin and Kekäläinen 2002": '"Cumulated Gain-Based Evaluation of IR Techniques". TOIS 2002',
    "McSherry and Najork 2008": '"Computing Information Retrieval Performance Measures Efficiently in the Presence '
    'of Tied Scores". ECIR 2008',
    "Voorhees 1999": '"The TREC-8 Question Answering Track Report". TREC 1999',
    "Student 1908": '"The Probable Error of a Mean". Biometrika 1908',
    "Welch 1947": "\"The Generalization of Student's Problem when Several Different Population Variances are "
    'Involved". Biometrika 1947',
    "Satterthwaite 1946": '"An Approximate Distribution of Estimates of Variance Components". Biometrics Bulletin 1946',
    "Efron and Tibshirani 1993": '"An Introduction to the Bootstrap". Chapman & Hall 1993',
    "Holm 1979": '"A Simple Sequentially Rejective Multiple Test Procedure". Scandinavian Journal of Statistics 1979',
    "Huang et al. 2013": '"Learning Deep Structured Semantic Models for Web Search using Clickthrough Data". CIKM 2013',
    "Zhou et al. 2018": '"Deep Interest Network for Click-Through Rate Prediction". KDD 2018',
    "rankfall": "introduced by rankfall, see the doc string",
}


class Kind(StrEnum):
    """Kind of a method."""

    OPERATOR = "operator"
    LOSS = "loss"
    OBJECTIVE = "objective"
    METRIC = "metric"


@dataclass(frozen=True)
class Method:
    """A public function, loss module, objective or model.

    Attributes:
        name: Name in Python.
        kind: A :class:`Kind`, or ``"model"``.
        line: Title of the doc string.
        citation: Citation in the title.
        papers: References of the citation.
        config: Name in configurations. Empty if configurations cannot name it, or if it is a metric.
        names: Names of a metric in configurations, such as ``ndcg@k``.
    """

    name: str
    kind: str
    line: str
    citation: str
    papers: list[str]
    config: str
    names: list[str] = field(default_factory=list)


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Method or model whose options are shown, e.g. lcron or din.", show_default=False
        ),
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="List the methods of one kind only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all methods (operators, losses, objectives, metrics) with their papers, or explain one.

    With NAME, prints the definition and the options of a method or model.
    """
    if name is not None:
        _show_one(name, kind, as_json)
        return
    listed = [method for one in ([kind] if kind else list(Kind)) for method in find_methods(one)]
    if as_json:
        print_json([asdict(method) for method in listed])
        return
    for one in Kind:
        of_kind = [method for method in listed if method.kind == one]
        if of_kind:
            print_result(_table(one, of_kind))
    if kind in (None, Kind.METRIC):
        print_result(_cascade_metrics_table())
    print_result(_references(listed))
    models = ", ".join(model.config for model in find_models())
    print_result(f"'rankfall methods NAME' shows the options of a method or of a model ({models}).")


def _show_one(name: str, kind: Kind | None, as_json: bool) -> None:
    from rankfall._suggestions import did_you_mean
    from rankfall.training.config.cascade_metric_names import METRICS_OF_CASCADES

    everything = [method for one in Kind for method in find_methods(one) if kind in (None, one)]
    everything += find_models() if kind is None else []
    if kind in (None, Kind.METRIC) and (definition := _cascade_metric(name)):
        _show_cascade_metric(*definition, as_json)
        return
    matches = [method for method in everything if name in (method.name, method.config) or _is_named(method, name)]
    if not matches:
        names = [one for method in everything for one in (method.name, method.config, *method.names) if one]
        names += METRICS_OF_CASCADES
        raise typer.BadParameter(
            f"unknown method {name!r}{did_you_mean(name, names)}; 'rankfall methods' lists all methods",
            param_hint="NAME",
        )
    if as_json:
        print_json([asdict(method) | {"text": _text(method), "options": _json_options(method)} for method in matches])
        return
    for method in matches:
        others = _other_names(method)
        called = f", in configurations {', '.join(others)}" if others else ""
        print_result(f"{method.name} ({method.kind}{called}): {method.line}")
        for paragraph in _text(method):
            print_result(escape(paragraph))
        if options := find_options(method):
            print_result(_options_table(options))
    if any(method.papers for method in matches):
        print_result(_references(matches))


def _cascade_metric(name: str) -> tuple[str, str] | None:
    """Return the form of a name and the definition of a metric of cascades, such as ``ranking/alone/recall``."""
    from rankfall.training.config.cascade_metric_names import METRICS_OF_CASCADES

    for form, definition in METRICS_OF_CASCADES.items():
        stage, slash, metric = form.partition("/")
        own, _, rest = name.partition("/")
        if name == form or (stage == "STAGE" and slash and own and rest in (metric, metric.removeprefix("alone/"))):
            return form, definition
    return None


def _show_cascade_metric(form: str, definition: str, as_json: bool) -> None:
    if as_json:
        print_json([{"name": form, "kind": str(Kind.METRIC), "line": definition}])
    else:
        print_result(escape(f"{form} (metric of a cascade): {definition}"))


def _is_named(method: Method, name: str) -> bool:
    """Whether a name in configurations is that of a metric, with numbers or letters as cutoffs."""
    return name.partition("@")[0] in {form.partition("@")[0] for form in method.names}


# --- what the package holds ---------------------------------------------------------------------------------------


def find_methods(kind: Kind) -> list[Method]:
    """Return the public methods of one kind, in the order of their package's ``__all__``."""
    from rankfall import losses, metrics, objectives, ops, registry
    from rankfall.metrics.named import forms

    package = {Kind.OPERATOR: ops, Kind.LOSS: losses, Kind.OBJECTIVE: objectives, Kind.METRIC: metrics}[kind]
    members = {name: getattr(package, name) for name in package.__all__}
    if kind is Kind.METRIC:
        functions = {name: one for name, one in members.items() if inspect.isfunction(one)}
        return [replace(_describe(kind, name, one, ""), names=forms(one)) for name, one in functions.items()]
    registered = cast("registry.Kind", kind.value)
    configs = {registry.get(registered, config): config for config in registry.names(registered)}
    return [_describe(kind, name, one, configs[one]) for name, one in members.items() if one in configs]


def find_models() -> list[Method]:
    """Return the models of cascades."""
    from rankfall import registry

    models = {name: registry.get("model", name) for name in registry.names("model")}
    return [_describe("model", model.__name__, model, name) for name, model in models.items()]


def _describe(kind: str, name: str, member: Any, config: str) -> Method:
    from rankfall.component_docs import documentation

    docs = documentation(member)
    return Method(name, str(kind), docs.title, docs.citation, [PAPERS[one] for one in cited(docs.citation)], config)


def find_options(method: Method) -> list[OptionDoc]:
    """Return the options that a configuration can give, or the arguments of a metric, which its names fix."""
    from rankfall.component_docs import option_docs

    match method.kind:
        case "operator" | "loss" | "objective" | "model":
            return option_docs(method.kind, method.config)
        case _:
            return _arguments(_function(method))


def _arguments(function: Callable[..., Any]) -> list[OptionDoc]:
    """Return the keyword arguments of a metric."""
    from rankfall import registry
    from rankfall.component_docs import OptionDoc, documentation

    described = documentation(function).arguments
    return [
        OptionDoc(one.name, registry.REQUIRED if one.default is one.empty else one.default, described[one.name])
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name not in ("mask", "generator")
    ]


def _function(method: Method) -> Callable[..., Any]:
    from rankfall import metrics, registry

    if method.kind == Kind.METRIC:
        return cast("Callable[..., Any]", getattr(metrics, method.name))
    return registry.get(cast("registry.Kind", method.kind), method.config)


def _text(method: Method) -> list[str]:
    """Return the paragraphs of the doc string after its title."""
    from rankfall.component_docs import documentation

    return list(documentation(_function(method)).text)


def cited(citation: str) -> list[str]:
    """Return the names of the papers in a citation, whose parts are separated by semicolons.

    >>> cited("NeuralSort; ARF, eq. 10; the weather report")
    ['NeuralSort', 'ARF']
    """
    candidates = [
        [name for name in PAPERS if re.search(rf"\b{re.escape(name)}\b", part)] for part in citation.split(";")
    ]
    return [max(names, key=len) for names in candidates if names]


# --- output -------------------------------------------------------------------------------------------------------


def _json_options(method: Method) -> list[dict[str, object]]:
    return [
        {"name": one.name, "needed": one.required, "meaning": one.meaning}
        | ({} if one.required else {"default": one.default})
        for one in find_options(method)
    ]


def _options_table(options: list[OptionDoc]) -> Table:
    table = Table(expand=True)
    table.add_column("option", style="cyan", no_wrap=True)
    table.add_column("default", ratio=1)
    table.add_column("description", ratio=3)
    for option in options:
        table.add_row(option.name, escape(default_text(option)), escape(option.meaning))
    return table


def default_text(option: OptionDoc) -> str:
    """Return a default as YAML writes it, or ``"needed"`` if the option is required."""
    import yaml

    if option.required:
        return "needed"
    text: str = yaml.safe_dump(option.default, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _table(kind: Kind, methods: list[Method]) -> Table:
    plural = "losses" if kind is Kind.LOSS else f"{kind}s"
    table = Table(title=f"{len(methods)} {plural}", title_justify="left", title_style="bold", expand=True)
    in_python = any(_other_names(method) for method in methods)
    table.add_column("name\n[dim]in configurations[/]" if in_python else "name", style="cyan", no_wrap=True)
    table.add_column("description", ratio=3)
    table.add_column("paper", ratio=2)
    for method in methods:
        name = "\n".join([method.name, *(f"[dim]{other}[/]" for other in _other_names(method))])
        table.add_row(name, escape(method.line), escape(method.citation))
    return table


def _cascade_metrics_table() -> Table:
    from rankfall.training.config.cascade_metric_names import METRICS_OF_CASCADES

    table = Table(title="metrics of a cascade", title_justify="left", title_style="bold", expand=True)
    table.add_column("name in configurations", style="cyan", no_wrap=True)
    table.add_column("description", ratio=1)
    for form, definition in METRICS_OF_CASCADES.items():
        table.add_row(form, escape(definition))
    return table


def _other_names(method: Method) -> list[str]:
    """Return the names in configurations that are not the name in Python."""
    return [name for name in (method.config, *method.names) if name not in ("", method.name)]


def _references(methods: list[Method]) -> Table:
    table = Table(title="papers", title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    used = {name for method in methods for name in cited(method.citation)}
    for name in PAPERS:
        if name in used:
            table.add_row(name, PAPERS[name])
    return table
