"""What components of users must look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import rankfall as rf
from rankfall import registry
from rankfall.registry import CONTRACTS, check_component, guess_kind
from rankfall.registry.references import UnresolvedError

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = [(kind, name) for kind in registry.KINDS for name in registry.builtins(kind)]


class Module(torch.nn.Module):
    def __init__(self, features: object, width: int = 3) -> None:
        super().__init__()


class LossModule(torch.nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()

    def forward(self, scores: object, labels: object, *, mask: object = None, weight: object = None) -> None: ...


class Objective(rf.objectives.Objective):
    def __init__(self, *, relevant: int, quotas: list[int], share: float = 0.5) -> None:
        super().__init__(len(quotas))

    def terms(self, batch: object) -> dict[str, torch.Tensor]:
        return {}


class Unfinished(rf.objectives.Objective):
    pass


class Plain:
    pass


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_built_in_components_keep_the_contract(kind: registry.Kind, name: str) -> None:
    check_component(kind, name, registry.get(kind, name))


@pytest.mark.parametrize(
    ("kind", "component"),
    [
        ("operator", lambda scores, k, *, mask=None, tau=1.0: scores),
        ("operator", lambda scores, *, k, mask=None: scores),
        ("operator", lambda scores, **options: scores),
        ("loss", lambda predictions, target, *, mask=None, gamma: predictions),
        ("loss", lambda *tensors, **options: tensors),
        ("loss", LossModule),
        ("objective", Objective),
        ("model", Module),
        ("metric", lambda scores, labels, *, mask=None, p=0.5: scores),
        ("source", lambda path: []),
    ],
)
def test_components_of_users(kind: registry.Kind, component: Callable[..., Any]) -> None:
    assert check_component(kind, "own.py:part", component) is component


@pytest.mark.parametrize(
    ("kind", "component", "message"),
    [
        ("loss", 3, "which is of type int"),
        ("loss", torch, "which is a module"),
        ("loss", Plain, "which is the class Plain"),
        ("loss", Module, "does not take these .*unexpected keyword argument 'mask'"),
        (
            "loss",
            lambda scores, labels: scores,
            "does not take these .*unexpected keyword argument 'mask'",
        ),
        ("loss", lambda scores, *, mask: scores, "which does not take these arguments .too many positional arguments"),
        ("loss", lambda s, y, *, mask=None, reduction: s, "needs the parameter 'reduction', which cannot be supplied"),
        ("loss", lambda s, y, gamma, /, *, mask=None: s, "needs the parameter 'gamma', which cannot be supplied"),
        (
            "operator",
            lambda scores, mask=None: scores,
            "does not take these .*unexpected keyword argument 'k'",
        ),
        ("operator", Module, "which is the class Module"),
        ("objective", lambda batch: batch, "which is the function <lambda>"),
        ("objective", Module, "which is the class Module"),
        ("objective", Unfinished, r"which has no method terms\(batch\)"),
        ("model", lambda features: features, "which is the function <lambda>"),
        ("model", Plain, "which is the class Plain"),
        (
            "metric",
            lambda scores, labels: scores,
            "does not take these .*unexpected keyword argument 'mask'",
        ),
        ("source", Plain, "which is the class Plain"),
    ],
)
def test_what_is_no_component(kind: registry.Kind, component: object, message: str) -> None:
    with pytest.raises(UnresolvedError, match=message) as error:
        check_component(kind, "own.py:part", component)
    assert str(error.value).startswith("found 'own.py:part', which ")
    assert str(error.value).endswith(f"; expected {CONTRACTS[kind]}")


def test_options_of_components_of_users(here: object) -> None:
    rf.register.loss("own_module")(LossModule)
    rf.register.objective("own_objective")(Objective)
    assert list(registry.options("loss", "own_module")) == ["weight"]  # of the constructor, no weights of items
    quotas, share = registry.options("objective", "own_objective").values()
    assert (quotas.name, quotas.required) == ("quotas", False)  # of the stages
    assert (share.name, share.default) == ("share", 0.5)


def test_any_option_goes_to_a_signature_that_takes_all(here: object) -> None:
    rf.register.loss("own_any")(lambda s, y, *, mask=None, known=1, **options: s)
    registry.check_options("loss", "own_any", ["known", "anything"])
    rf.register.loss("own_some")(lambda s, y, *, mask=None, known=1: s)
    with pytest.raises(ValueError, match="own_some has no option 'knwon', did you mean 'known'; its options are known"):
        registry.check_options("loss", "own_some", ["knwon"])


@pytest.mark.parametrize(
    ("component", "kind"),
    [
        (Objective, "objective"),
        (LossModule, "loss"),
        (Module, "model"),
        (lambda scores, k, *, mask=None: scores, "operator"),
        (lambda scores, labels, *, mask=None: scores, "loss"),
        (lambda scores, labels, *, mask=None, empty=0.0: scores, "metric"),
    ],
)
def test_the_kind_of_a_component_follows_from_its_form(component: object, kind: str) -> None:
    assert guess_kind("own.py:part", component) == kind


def test_a_decorator_tells_the_kind(here: object) -> None:
    @rf.register.metric
    def looks_like_a_loss(scores: object, labels: object, *, mask: object = None) -> None: ...

    assert guess_kind("own.py:part", looks_like_a_loss) == "metric"
    with pytest.raises(UnresolvedError, match="expected one of: a function"):
        guess_kind("own.py:part", 3)
