"""Doc strings of the library: every parameter is documented, and the parts are read correctly."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rankfall as rf
from rankfall import losses, metrics, models, objectives, ops
from rankfall.component_docs import documentation, option_docs, plain
from rankfall.registry import KINDS, names

if TYPE_CHECKING:
    from collections.abc import Callable


def is_documented_by_arguments(component: object) -> bool:
    """Whether a public name is a function or a module, not a dataclass of results, a protocol or a constant."""
    return inspect.isfunction(component) or (inspect.isclass(component) and issubclass(component, torch.nn.Module))


PUBLIC: dict[str, Callable[..., Any]] = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (ops, losses, objectives, metrics, models)
    for name in package.__all__
    if is_documented_by_arguments(getattr(package, name))
} | {"rankfall.Cascade": rf.Cascade, "rankfall.Ranker": rf.Ranker}
every_component = pytest.mark.parametrize("name", PUBLIC)


def undocumented(component: Callable[..., Any]) -> set[str]:
    """The parameters that a doc string lacks, and those that it has beyond the signature."""
    return set(documentation(component).arguments) ^ set(inspect.signature(component).parameters)


@every_component
def test_exactly_the_parameters_of_the_signature_are_documented(name: str) -> None:
    assert undocumented(PUBLIC[name]) == set()


@every_component
def test_every_description_is_a_sentence_with_the_shape_of_tensors(name: str) -> None:
    parameters = inspect.signature(PUBLIC[name]).parameters
    for argument, text in documentation(PUBLIC[name]).arguments.items():
        assert text.endswith("."), argument
        assert len(text) > 10, argument
        if "[Tensor" in str(parameters[argument].annotation):
            assert "(" in text, f"{argument} has no shape: {text}"


@every_component
def test_every_component_has_a_title(name: str) -> None:
    assert documentation(PUBLIC[name]).title


def test_a_missing_and_an_unknown_parameter_are_found() -> None:
    def double(value: float, *, factor: float = 2.0) -> float:
        """Double a number.

        Args:
            value: The number.
            facto: What it is multiplied with.
        """
        return value * factor

    assert undocumented(double) == {"factor", "facto"}


def test_the_parts_of_a_doc_string() -> None:
    docs = documentation(ops.sparse_topk)
    assert docs.title == "Soft top-k by projection, with exact zeros and ones, whose values sum to k"
    assert docs.citation == "Sparse top-k"
    assert docs.arguments["p"] == "Norm of the regulariser: 2 (Euclidean projection) or 4/3 (smoother)."
    assert plain(":class:`~a.B` and ``c``\n   in `d`.") == "a.B and c in d."


def test_a_loss_module_shares_the_descriptions_of_its_function() -> None:
    assert documentation(losses.RelaxLoss).arguments == {
        name: text
        for name, text in documentation(losses.relax_loss).arguments.items()
        if name not in ("scores", "labels", "mask", "weight")
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_configuration_has_a_description(kind: Any) -> None:
    without = [(name, one.name) for name in names(kind) for one in option_docs(kind, name) if not one.meaning]
    assert without == []
