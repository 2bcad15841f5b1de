"""Models on the stand-in device: values and gradients of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import rankfall as rf
from rankfall import registry
from rankfall.models import MLP, FeatureScaling, Linear
from rankfall.models import layers as attention
from rankfall.models.layers import RowNorm
from support.batches import FEATURES, Impressions, random_batch
from support.standin_device import DEVICE, SynchronisationError, standin_device
from support.variants import Options, compare, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

every_model = pytest.mark.parametrize("name", registry.names("model"))

# Options that run different code, for the models that have them.
OTHERS: list[Options] = [
    {"batch_norm": True, "dropout": 0.2, "residual": True, "hidden": [6, 6]},
    {"activation": "prelu"},
    {"activation": "selu", "dropout": 0.2},
    {"attention_activation": "gelu"},
    {"attention_activation": "prelu"},
    {"grades": 3},
]


def options_of(name: str) -> Iterator[Options]:
    """Yield small models of a kind."""
    allowed = inspect.signature(registry.get("model", name)).parameters
    small = {key: value for key, value in {"dim": 3, "hidden": [6, 5], "attention": 7}.items() if key in allowed}
    yield small
    yield from (small | others for others in OTHERS if set(others) <= set(allowed))


def train(model: nn.Module, batch: Impressions) -> list[Tensor]:
    """Return the scores and the gradients of one step, and what evaluation returns after it."""
    torch.manual_seed(1)
    scores = model(batch)
    (scores * batch.mask).sum().backward()
    model.eval()
    return [scores, *(parameter.grad for parameter in model.parameters()), model(batch), *model.buffers()]


def check(call: Callable[[Any, Any], list[Tensor]], model: nn.Module, batch: Any) -> None:
    def run(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        return call(copy.deepcopy(model).to(device, dtype, non_blocking=True), place(batch, device, dtype))

    compare(run, model)
    compare(run, model, like="mps")


@every_model
def test_computes_what_a_cpu_computes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(attention, "_BLOCK_ON_ACCELERATOR", 200)  # several blocks, as of long lists
    for options in options_of(name):
        check(train, registry.get("model", name)(FEATURES, **options), random_batch(dtype=torch.float64))


@pytest.mark.parametrize(
    "model",
    [MLP(4, [5, 5], dropout=0.2, residual=True), MLP(4, [5], grades=3), Linear(4), Linear(4, grades=3)],
    ids=str,
)
def test_models_of_rows(model: nn.Module) -> None:
    def step(model: nn.Module, rows: Tensor) -> list[Tensor]:
        torch.manual_seed(1)
        scores = model(rows)
        scores.sum().backward()
        return [scores, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    check(step, model, torch.randn(6, 4, dtype=torch.float64))


def test_scaling() -> None:
    scaling = FeatureScaling(torch.arange(4.0), torch.full((4,), 2.0), log1p=True)
    check(lambda model, rows: [model(rows)], scaling, torch.randn(6, 4, dtype=torch.float64))


def test_a_cascade_recommends() -> None:
    stages = [rf.Stage("first", rf.models.TwoTower(FEATURES), 5), rf.Stage("second", rf.models.DIN(FEATURES), 3)]

    def recommend(cascade: rf.Cascade, batch: Impressions) -> list[Tensor]:
        found = cascade.recommend(batch)
        return [*found.places, *found.scores, *found.items(batch.items["video"])]

    check(recommend, rf.Cascade(stages), random_batch(dtype=torch.float64))


def test_stages_share_tables_on_a_device() -> None:
    with standin_device():
        first = rf.models.TwoTower(FEATURES)
        second = rf.models.DIN(FEATURES, tables=first.embedding.tables)
        cascade = rf.Cascade([rf.Stage("first", first, 5), rf.Stage("second", second, 3)]).to(DEVICE)
        tables = [model.embedding.tables["video"].weight for model in (first, second)]
        assert tables[0] is tables[1]
        assert len({id(parameter) for parameter in cascade.parameters()}) == len(list(cascade.parameters()))


def test_only_sparse_gradients_wait_for_the_device() -> None:
    """PyTorch leaves the rows of padding out of a sparse gradient, so its shape depends on the ids."""
    with standin_device() as device:
        model = rf.models.TwoTower(FEATURES, sparse=True).to(DEVICE)
        batch = place(random_batch(), DEVICE)
        with device.without_synchronisation():
            loss = (model(batch) * batch.mask).sum()
            with pytest.raises(SynchronisationError, match=r"index\.Tensor"):
                loss.backward()
        device.synchronisations.clear()
        (model(batch) * batch.mask).sum().backward()
        assert device.synchronisations
        assert all("index.Tensor" in one for one in device.synchronisations)


def test_batch_norm_takes_its_mean_in_full_precision_under_autocast() -> None:
    """Rows far from 0: with eight bits, the mean would be off by more than the spread of the rows."""
    rows = 100 + torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(300) < 290
    norms = [RowNorm(4) for _ in range(2)]
    expected = norms[0](rows, mask)
    with torch.autocast("cpu", torch.bfloat16):
        found = norms[1](rows, mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert norms[0].running_mean is not None
    torch.testing.assert_close(norms[1].running_mean, norms[0].running_mean, rtol=0, atol=0)
    torch.testing.assert_close(expected[mask].mean(0), torch.zeros(4), rtol=0, atol=1e-4)


@every_model
def test_autocast_on_the_device(name: str) -> None:
    """Matrix products in bfloat16, gradients in float32."""
    options = {"batch_norm": True} if "batch_norm" in inspect.signature(registry.get("model", name)).parameters else {}
    model = registry.get("model", name)(FEATURES, **options)
    expected = copy.deepcopy(model)(random_batch())
    with standin_device() as device:
        moved, batch = model.to(DEVICE), place(random_batch(), DEVICE)
        with device.without_synchronisation():
            with torch.autocast(DEVICE.type, torch.bfloat16):
                scores = moved(batch)
            (scores.float() * batch.mask).sum().backward()
        assert all(parameter.grad is not None for parameter in moved.parameters())
        torch.testing.assert_close(scores.float().cpu(), expected, rtol=0.1, atol=0.1)
