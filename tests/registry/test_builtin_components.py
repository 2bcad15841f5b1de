"""Built-in components are found in their sources exactly as Python finds them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, Literal

import pytest

from rankfall import losses, metrics, models, objectives, ops, registry
from rankfall.component_docs import documentation, documentation_of, option_docs
from rankfall.register import registered
from rankfall.registry.option_values import expected_type
from rankfall.registry.signatures import PACKAGES, Option, export_others

EVERY = [(kind, name) for kind in PACKAGES for name in registry.builtins(kind)]
every_component = pytest.mark.parametrize(("kind", "name"), EVERY)


@every_component
def test_the_source_tells_what_python_knows(kind: registry.Kind, name: str) -> None:
    found, component = registry.builtins(kind)[name], registry.get(kind, name)
    assert (component.__module__, component.__name__) == (found.module, found.attribute)
    assert found.doc == (component.__doc__ or "")
    assert found.is_class is inspect.isclass(component)
    parameters = inspect.signature(component).parameters
    assert [one.name for one in found.parameters] == list(parameters)
    for one in found.parameters:
        known = parameters[one.name]
        assert one.kind is known.kind
        assert one.annotation == known.annotation
    for option in registry.options(kind, name).values():
        if option.name != "quotas":  # the stages supply it
            assert option.default == parameters[option.name].default


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_is_decorated_is_what_is_found(kind: registry.Kind) -> None:
    decorated = {name: one for name, one in registered(kind).items() if one.is_builtin}
    found = registry.builtins(kind)
    assert set(decorated) == set(found)
    for name, one in decorated.items():
        assert one.component is registry.get(kind, name)
        assert (one.higher_is_better, dict(one.options)) == (found[name].higher_is_better, dict(found[name].options))


@every_component
def test_documentation_is_read_without_the_component(kind: registry.Kind, name: str) -> None:
    assert documentation_of(kind, name) == documentation(registry.get(kind, name))


def test_everything_that_a_configuration_needs_is_known_without_torch() -> None:
    code = """
import sys
from rankfall import registry
from rankfall.component_docs import option_docs
from rankfall.registry.option_values import forms, parse_name
from rankfall.registry.option_values import expected_type
for kind in registry.KINDS:
    for name in registry.names(kind):
        option_docs(kind, name)
        for option in registry.options(kind, name).values():
            expected_type(option)
assert parse_name("recall@20@10").options == {"m": 20, "k": 10}
assert "ndcg@k" in forms()
assert registry.explicit_operator("dftopk") == {"name": "dftopk", "tau": 1.0}
assert not {"torch", "numpy", "polars"} & set(sys.modules), "too much was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", [ops, losses, objectives, metrics, models])
def test_a_package_exports_the_components_of_its_files(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = next(kind for kind, name in PACKAGES.items() if package.__name__ == f"rankfall.{name}")
    assert {one.attribute for one in registry.builtins(kind).values()} <= set(package.__all__)
    exported = {name: getattr(package, name) for name in package.__all__}
    for name in exported:  # as if the package had imported nothing itself, and modules had the names of functions
        monkeypatch.setattr(package, name, package)
    listed: list[str] = []
    export_others(package.__name__, listed)
    assert {one.attribute for one in registry.builtins(kind).values()} <= set(listed)
    assert {name: getattr(package, name) for name in listed} == {name: exported[name] for name in listed}


@pytest.mark.parametrize("name", registry.sorts())
def test_sorts_are_known_by_what_they_return(name: str) -> None:
    import torch

    assert registry.get("operator", name)(torch.zeros(4), k=2).shape == (2, 4)


def test_the_other_operators_return_one_number_per_item() -> None:
    import torch

    for name in set(registry.names("operator")) - set(registry.sorts()):
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
        (inspect.Parameter.empty, [object(), 1, "a"], []),
        (dict[str, int], [{"a": 1}], [[1]]),
        ("bool", [True], [1, "yes"]),
    ],
)
def test_types_of_options(annotation: Any, accepted: list[Any], refused: list[Any]) -> None:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    expected = expected_type(Option("option", annotation, None))
    adapter = TypeAdapter(expected, config=ConfigDict(strict=True, allow_inf_nan=False))
    for value in accepted:
        adapter.validate_python(value)
    for value in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


def test_defaults_that_are_operators_are_written_by_name() -> None:
    (sort,) = (one for one in option_docs("loss", "relax_loss") if one.name == "sort")
    assert sort.default == "neural_sort"
