"""The stand-in device refuses what a GPU refuses, and computes what a CPU computes."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from support.standin_device import DEVICE, MixedDevicesError, StandinTensor, SynchronisationError, standin_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.standin_device import StandinDevice


@pytest.fixture
def device() -> Iterator[StandinDevice]:
    with standin_device() as made:
        yield made


def scores() -> Tensor:
    return torch.tensor([[1.0, 3.0, 2.0], [0.5, -1.0, 4.0]]).to(DEVICE)


# --- what it refuses --------------------------------------------------------------------------------------------

MIXES: dict[str, Callable[[Tensor], object]] = {
    "arange without a device": lambda x: x * torch.arange(3),
    "a constant on the CPU": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
    "a mask on the CPU": lambda x: x.masked_fill(torch.tensor([True, False, True]), 0.0),
    "a condition on the CPU": lambda x: torch.where(torch.ones(2, 3, dtype=torch.bool), x, 0.0),
    "an index on the CPU": lambda x: x[:, torch.tensor([0, 2])],
    "an index of gather on the CPU": lambda x: x.gather(-1, torch.zeros(2, 1, dtype=torch.long)),
    "a scalar on the CPU in a stack": lambda x: torch.stack([x.sum(), torch.tensor(0.0)]),
    "an eye without a device": lambda x: x @ torch.eye(3),
    "a result on the CPU": lambda x: torch.add(x, 1.0, out=torch.empty(2, 3)),
    "a scalar on the CPU that is added to": lambda x: torch.zeros(()).add_(x.sum()),
    "a generator of the CPU": lambda x: torch.empty_like(x).exponential_(generator=torch.Generator()),
    "a generator of the CPU in a factory": lambda x: torch.rand(2, device=x.device, generator=torch.Generator()),
    "a generator of the device on the CPU": lambda x: torch.rand(2, generator=torch.Generator(x.device)),
    "a layer on the CPU": lambda x: nn.Linear(3, 1)(x),
    "a table on the CPU": lambda x: nn.Embedding(5, 2)(x.long().clamp(min=0)),
    "an operator with a kernel for the CPU only": lambda x: torch.ops.rankfall.kth_largest(x, 1),
    "half of a backward pass on the CPU": lambda x: _mixed_backward(x),
}


class _CPUBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] * torch.arange(3.0)


def _mixed_backward(x: Tensor) -> None:
    y: Tensor = _CPUBackward.apply(x.requires_grad_())  # type: ignore[no-untyped-call]
    y.sum().backward()


@pytest.mark.parametrize("mistake", MIXES)
def test_tensors_of_two_devices_are_refused(device: StandinDevice, mistake: str) -> None:
    import rankfall._lists  # noqa: F401  (registers operators)

    with pytest.raises(MixedDevicesError):
        MIXES[mistake](scores())


ALLOWED: dict[str, Callable[[Tensor], object]] = {
    "numbers": lambda x: 2 * x + 1,
    "a scalar on the CPU": lambda x: x / torch.tensor(2.0),
    "a scalar on the CPU to fill with": lambda x: x.fill_(torch.tensor(2.0)),
    "a number for a condition": lambda x: torch.where(x > 0, x, 0.5),
    "factories with its device": lambda x: torch.zeros(3, device=x.device) + x.new_full((), 2.0) + torch.ones_like(x),
    "its own generator": lambda x: torch.rand(3, device=x.device, generator=torch.Generator(x.device)) + x,
    "a copy that does not wait": lambda x: x.copy_(torch.ones(2, 3), non_blocking=True),
    "an index of its own": lambda x: x[:, x.argsort(-1)[0, :2]],
    "a shape that is known": lambda x: x.repeat_interleave(torch.ones_like(x[0]).long(), dim=1, output_size=3),
}


@pytest.mark.parametrize("use", ALLOWED)
def test_what_a_gpu_allows_needs_no_synchronisation(device: StandinDevice, use: str) -> None:
    x = scores()
    with device.without_synchronisation():
        assert isinstance(ALLOWED[use](x), StandinTensor)


SYNCHRONISATIONS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "a condition": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "rows of a mask": lambda x: x[x > 0],
    "assignment to a mask": lambda x: x.__setitem__(x > 0, x.new_zeros(())),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "bincount": lambda x: x.long().abs().flatten().bincount(),
    "unknown repeats": lambda x: x.repeat_interleave(torch.ones_like(x[0]).long(), dim=1),
    "a copy to the host": lambda x: x.cpu(),
    "a copy into a tensor on the host": lambda x: torch.empty(2, 3).copy_(x),
    "a copy to the device": lambda x: torch.ones(2, 3).to(x.device),
    "a copy into a tensor on the device": lambda x: x.copy_(torch.ones(2, 3)),
    "a constant of Python data": lambda x: torch.tensor(1.0, device=x.device),
    "a constant like another": lambda x: x.new_tensor([1.0]),
    "a scalar on the CPU for a condition": lambda x: torch.where(x > 0, x, torch.tensor(0.5)),
    "coalesced rows": lambda x: _sparse(x).coalesce(),
}


def _sparse(x: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(x[:, :2].long().abs(), x[0, :2], (5, 5), check_invariants=False)


@pytest.mark.parametrize("use", SYNCHRONISATIONS)
def test_synchronisations_are_recorded_or_refused(device: StandinDevice, use: str) -> None:
    x = scores()
    device.synchronisations.clear()
    SYNCHRONISATIONS[use](x)
    assert __file__ in device.synchronisations[0]
    with device.without_synchronisation(), pytest.raises(SynchronisationError):
        SYNCHRONISATIONS[use](x)


def test_numpy_is_refused(device: StandinDevice) -> None:
    with pytest.raises(RuntimeError, match="numpy"):
        scores().numpy()


def test_operations_without_a_kernel_for_the_device_are_refused() -> None:
    """Apple's GPUs have no inverse of the normal distribution, and no GPU has the layers of MKL-DNN."""
    with standin_device() as device:
        assert device.backend == "CUDA"
        torch.special.ndtri(scores())
        with pytest.raises(NotImplementedError, match=r"mkldnn_linear\.default: has no kernel for CUDA"):
            torch.ops.aten.mkldnn_linear(scores(), scores())
    with standin_device(like="mps"), pytest.raises(NotImplementedError, match="has no kernel for MPS"):
        torch.special.ndtri(scores())


def test_types_that_the_device_does_not_have() -> None:
    with standin_device(like="mps"):
        x = scores()
        for make in (x.double, partial(torch.zeros, 2, dtype=torch.float64, device=DEVICE)):
            with pytest.raises(TypeError, match=r"no torch\.float64"):
                make()


def test_tensors_end_with_the_device() -> None:
    with standin_device():
        x = scores()
    with pytest.raises(RuntimeError, match="has gone"):
        x + 1


# --- what it computes -------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Embeddings, batch norm, dropout and a table that two modules share."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, sparse=sparse)
        self.same = self.table
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(0.2), nn.Linear(3, 1))

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.layers(self.table(ids) + self.same(ids))
        return scores.squeeze(-1)


def _train(device: torch.device, *, sparse: bool, foreach: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = Net(sparse=sparse).to(device)
    assert net.same.weight is net.table.weight
    of_table = [net.table.weight]
    tables: Any = torch.optim.SparseAdam(of_table) if sparse else torch.optim.Adagrad(of_table, foreach=foreach)
    layers = torch.optim.Adam(net.layers.parameters(), foreach=foreach)
    ids = torch.tensor([0, 3, 3, 6, 1]).to(device)
    for _ in range(3):
        loss = nn.functional.binary_cross_entropy_with_logits(net(ids), (ids > 2).to(torch.float32))
        for optimizer in (tables, layers):
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.layers.parameters(), 0.5)
        for optimizer in (tables, layers):
            optimizer.step()
    copied = copy.deepcopy(net)
    copied.load_state_dict(net.state_dict())
    return {name: tensor.cpu() for name, tensor in copied.state_dict().items()}


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_training_gives_the_weights_of_a_cpu(device: StandinDevice, sparse: bool, foreach: bool) -> None:
    found = _train(DEVICE, sparse=sparse, foreach=foreach)
    expected = _train(torch.device("cpu"), sparse=sparse, foreach=foreach)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert type(found[name]) is Tensor
        assert torch.equal(found[name], tensor), name


def test_generators_give_the_numbers_of_a_cpu(device: StandinDevice) -> None:
    found = torch.rand(3, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(4))
    assert torch.equal(found.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(4)))
    assert isinstance(torch.default_generator, torch.Generator)


def test_autocast_lowers_matrix_products(device: StandinDevice) -> None:
    layer, x = nn.Linear(3, 2).to(DEVICE), scores().requires_grad_()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        with torch.autocast(DEVICE.type, enabled=False):
            assert layer(x).dtype == torch.float32
        layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer(x).dtype == layer.weight.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.Linear(3, 2)(torch.ones(3)).dtype == torch.bfloat16
