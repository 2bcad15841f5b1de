"""Built-in components are found by a table of names, which has exactly the components that are decorated."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module
from typing import Any, Literal

import pytest
import torch

from rankfall import losses, metrics, models, objectives, ops, registry
from rankfall.component_docs import option_docs
from rankfall.losses._module import LossModule
from rankfall.register import registered
from rankfall.registry import REQUIRED, Option, _evaluated, _namespace

PACKAGES: dict[registry.Kind, Any] = {
    "operator": ops,
    "loss": losses,
    "objective": objectives,
    "model": models,
    "metric": metrics,
}


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_is_decorated_is_in_the_table(kind: registry.Kind) -> None:
    package = PACKAGES[kind]
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    decorated = {
        name: f"{one.component.__module__}:{one.component.__name__}"
        for name, one in registered(kind).items()
        if one.is_builtin
    }
    for name, place in decorated.items():
        assert registry.builtins(kind).get(name) == place, f'add "{name}": "{place}" to registry/builtin.py'
    unknown = set(registry.builtins(kind)) - set(decorated)
    assert not unknown, f"registry/builtin.py has {unknown}, which no function or class is decorated as"
    assert list(registry.builtins(kind)) == sorted(registry.builtins(kind))


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_package_exports_its_components(kind: registry.Kind) -> None:
    package = PACKAGES[kind]
    components = {registry.python_name(kind, name) for name in registry.builtins(kind)}
    if kind == "loss":
        modules = [import_module(one.name) for one in pkgutil.iter_modules(losses.__path__, "rankfall.losses.")]
        components |= {
            name
            for module in modules
            for name, one in vars(module).items()
            if inspect.isclass(one) and issubclass(one, LossModule) and one is not LossModule and name[0] != "_"
        }
    for name in components:
        assert name in package.__all__, f"import {name} in {package.__name__} and list it in __all__"
        assert callable(getattr(package, name))


def test_names_are_known_without_torch() -> None:
    code = """
import sys
from rankfall import registry
from rankfall.registry.metric_names import check_word
for kind in registry.KINDS:
    assert all(registry.is_builtin(kind, name) for name in registry.builtins(kind))
    registry.names(kind)
check_word("recall@20@10")
assert registry.python_name("objective", "lcron") == "LCRON"
assert not {"torch", "numpy", "polars"} & set(sys.modules), "too much was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", registry.SORTS)
def test_sorts_are_known_by_what_they_return(name: str) -> None:
    assert registry.get("operator", name)(torch.zeros(4), k=2).shape == (2, 4)


def test_the_other_operators_return_one_number_per_item() -> None:
    for name in set(registry.names("operator")) - set(registry.SORTS):
        assert registry.get("operator", name)(torch.zeros(4), 2).shape == (4,)


@pytest.mark.parametrize(
    ("annotation", "accepted", "refused"),
    [
        ("Positive | Tensor | None", [0.5, 1, None], [0, -1.0, "a", True]),
        ("Sequence[Count]", [[1, 2], []], [[0], [1.5], 3]),
        ("Fraction", [0, 1, 0.5], [1.1, -0.1]),
        ("Depth | Sequence[Depth] | None", [1, "ranking", [0, "ranking"], None], [1.5, [None]]),
        (tuple[int, ...], [[1, 2]], [["a"], 1]),
        (Literal["a", "b"] | None, ["a", None], ["c"]),
        ("NameThatOnlyATypeCheckerSees", [object(), 1, "a"], []),
        (REQUIRED, [object(), 1, "a"], []),
        (dict[str, int], [{"a": 1}], [[1]]),
        ("bool", [True], [1, "yes"]),
    ],
)
def test_types_of_options(annotation: Any, accepted: list[Any], refused: list[Any]) -> None:
    from pydantic import ValidationError

    def loss(scores: object, labels: object) -> None: ...

    option = Option("option", None, _evaluated(annotation, _namespace("loss", loss)))
    for value in accepted:
        option.check(value)
    for value in refused:
        with pytest.raises(ValidationError):
            option.check(value)


def test_defaults_that_are_operators_are_written_by_name() -> None:
    (sort,) = (one for one in option_docs("loss", "relax_loss") if one.name == "sort")
    assert sort.default == "neural_sort"
