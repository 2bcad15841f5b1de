"""A device that does not exist, whose tensors refuse what a GPU refuses.

On a machine without a GPU, wrong placement is invisible. Inside :func:`standin_device`, tensors can be on the device
type ``lazy``, which PyTorch reserves and which is empty in its CPU builds. Each of them keeps a CPU tensor inside, and
every operation runs on that, forward and backward, with the bits of a CPU. Like CUDA, the device

- refuses operations on tensors of two devices (:class:`MixedDevicesError`), except scalars on the CPU in pointwise
  operations, and copies. CPU indices, which CUDA would copy, are refused too;
- refuses generators of the CPU, and operations that have a kernel for the CPU only;
- knows what makes the host wait for the device: reading a value, shapes that depend on values, copies to the host, and
  blocking copies to the device. :meth:`StandinDevice.without_synchronisation` refuses them
  (:class:`SynchronisationError`); elsewhere they are recorded in :attr:`StandinDevice.synchronisations`.

Autograd of ``lazy`` runs in the calling thread. A device registered as PrivateUse1 would have to exist before the first
backward pass of the process, and would be the accelerator of all other tests.
"""

from __future__ import annotations

import functools
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rankfall import _checks
from support.torch_kernels import has_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

DEVICE = torch.device("lazy", 0)

aten = torch.ops.aten


class MixedDevicesError(RuntimeError):
    """An operation on tensors of two devices."""


class SynchronisationError(RuntimeError):
    """An operation that makes the host wait for the device."""


class StandinTensor(Tensor):
    """A tensor on the stand-in device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> StandinTensor:
        strided = held.layout == torch.strided
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride() if strided else None,
            storage_offset=held.storage_offset() if strided else None,
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StandinTensor({self.held!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new(self, *args: Any) -> Tensor:  # type: ignore[override]
        """Create a sparse tensor: SparseAdam's way, which knows the types of PyTorch's own devices only."""
        return torch.sparse_coo_tensor(*args, device=self.device, check_invariants=False)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _active().run(func, args, kwargs or {})


class StandinGenerator(torch.Generator):
    """What ``torch.Generator(device)`` creates for the stand-in device."""

    def __new__(cls) -> StandinGenerator:
        made: Any = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        # PyTorch passes another Python object of the same generator to operations. Kept, so that no later one has its
        # address.
        _active().generators[made._cdata] = made
        return cast("StandinGenerator", made)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


class StandinDevice:
    """The device while it exists; see :func:`standin_device`.

    Attributes:
        synchronisations: Each synchronisation of the host with the device, with the line that caused it.
        backend: PyTorch's name of the backend whose kernels the device has.
        refused_dtypes: Types that the device does not have.
        generators: Generators of the device by their address.
    """

    def __init__(self, like: Literal["cuda", "mps"]) -> None:
        self.synchronisations: list[str] = []
        self.backend = like.upper()
        self.refused_dtypes = (torch.float64, torch.complex128) if like == "mps" else ()
        self.generators: dict[int, torch.Generator] = {}
        self._synchronises = True

    @contextmanager
    def without_synchronisation(self) -> Iterator[None]:
        """Refuse everything that makes the host wait for the device."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on the CPU tensors inside, if the device allows it."""
        operation = _operation(func)
        _check_devices(operation, args, kwargs)
        for reason in _synchronisations(operation, args, kwargs):
            self._synchronise(f"{func}: {reason}")
        if operation.custom:
            return _run_custom(func, args, kwargs)
        if not has_kernel(func, self.backend):
            raise NotImplementedError(f"{func}: has no kernel for {self.backend}")
        device = kwargs.get("device")
        on_device = _any_here(args, kwargs) if device is None else _is_here(device)
        inside = {name: _map(_unwrap, value) for name, value in kwargs.items()}
        if device is not None:
            inside["device"] = torch.device("cpu")
        found = func(*[_map(_unwrap, value) for value in args], **inside)
        written = operation.written(args, kwargs)
        if torch.Tag.inplace_view in func.tags:  # such as squeeze_
            _reshape(args[0])
        _check_written(written)
        if len(operation.returns) == 1:
            return self._result(found, operation.returns[0], written, on_device=on_device)
        if operation.returns:
            pairs = zip(found, operation.returns, strict=True)
            return tuple(self._result(value, memory, written, on_device=on_device) for value, memory in pairs)
        return None

    def _result(self, value: Any, memory: str | None, written: dict[str, Any], *, on_device: bool) -> Any:
        if memory is not None:
            return written[memory]
        return _map(self._wrap_tensor, value) if on_device else value

    def _wrap_tensor(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, StandinTensor):
            return value
        if value.dtype in self.refused_dtypes:
            raise TypeError(f"the device has no {value.dtype}")
        return StandinTensor(value)

    def _synchronise(self, what: str) -> None:
        if not self._synchronises:
            raise SynchronisationError(what)
        self.synchronisations.append(f"{what} at {_caller()}")


@contextmanager
def standin_device(*, like: Literal["cuda", "mps"] = "cuda") -> Iterator[StandinDevice]:
    """Make :data:`DEVICE` exist, in the calling thread.

    Args:
        like: Device whose kernels and types it has. Apple's GPUs have no float64.
    """
    device = StandinDevice(like)
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    # As for CUDA, `module.to(device)` keeps parameters that modules share shared.
    torch.__future__.set_swap_module_params_on_conversion(True)
    _DEVICES.append(device)
    try:
        with (
            mock.patch.object(_checks, "WITHOUT_FLOAT64", (DEVICE.type,) if like == "mps" else ()),
            mock.patch.object(torch, "Generator", _Generators),
            mock.patch.object(torch, "autocast", _autocast),
            mock.patch.object(torch, DEVICE.type, SimpleNamespace(), create=True),  # which checkpoint() looks up
            _Functions(),
            _Factories(),  # type: ignore[no-untyped-call]
        ):
            yield device
    finally:
        _DEVICES.pop()
        torch.__future__.set_swap_module_params_on_conversion(swapped)


_DEVICES: list[StandinDevice] = []


def _active() -> StandinDevice:
    if not _DEVICES:
        raise RuntimeError("a tensor of the stand-in device is used after the device has gone")
    return _DEVICES[-1]


# --- what reaches the device without a tensor on it ---------------------------------------------------------------


class _Factories(TorchDispatchMode):
    """Sends operations to the device that name it, or a generator of it, without a tensor on it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_here(kwargs.get("device")) or _any_here(args, kwargs):
            return _active().run(func, args, kwargs)
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Functions of Python data, which PyTorch runs before it dispatches an operation; and autocast."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.new_tensor and isinstance(args[0], StandinTensor):
            kwargs = {"dtype": args[0].dtype, "device": DEVICE} | kwargs
            func, args = torch.tensor, args[1:]
        if func in _FROM_DATA and _is_here(kwargs.get("device")):
            requires_grad = kwargs.pop("requires_grad", False)
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE).requires_grad_(requires_grad)
        if func in _LOWERED and _AUTOCAST and _AUTOCAST[-1] is not None and _any_here(args, kwargs):
            args = tuple(_lower(value, _AUTOCAST[-1]) for value in args)
            kwargs = {name: _lower(value, _AUTOCAST[-1]) for name, value in kwargs.items()}
        return func(*args, **kwargs)


_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TORCH_GENERATOR)


class _Generators(metaclass=_AnyGenerator):
    """Stands for ``torch.Generator``, which cannot create generators of the device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return StandinGenerator() if _is_here(device) else _TORCH_GENERATOR(device)


_TORCH_GENERATOR = torch.Generator


# --- autocast -----------------------------------------------------------------------------------------------------

# Matrix products get the lower precision, as on every device. All other operations keep the type of their arguments.
_LOWERED = (
    torch.nn.functional.linear,
    torch.matmul,
    torch.mm,
    torch.mv,
    torch.bmm,
    torch.addmm,
    torch.baddbmm,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.mm,
    Tensor.mv,
    Tensor.bmm,
)
_AUTOCAST: list[torch.dtype | None] = []  # the types of nested contexts, None if disabled
_TORCH_AUTOCAST = torch.autocast


def _autocast(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> AbstractContextManager[Any]:
    """Stand for ``torch.autocast``, which does not know the device."""
    if device_type != DEVICE.type:
        return _TORCH_AUTOCAST(device_type, dtype, enabled, cache_enabled)
    return _lowered((dtype or torch.bfloat16) if enabled else None)


@contextmanager
def _lowered(dtype: torch.dtype | None) -> Iterator[None]:
    _AUTOCAST.append(dtype)
    try:
        yield
    finally:
        _AUTOCAST.pop()


def _lower(value: Any, dtype: torch.dtype | None) -> Any:
    lowered = isinstance(value, StandinTensor) and value.is_floating_point() and value.dtype != torch.float64
    return value.to(dtype) if lowered else value


# --- rules --------------------------------------------------------------------------------------------------------

_COPIES = (aten.copy_.default, aten._to_copy.default)
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
# Operations that wait on CUDA, besides those whose tags say so.
_WAITING = ("_coalesce", "histc", "embedding_renorm_", "_embedding_bag")


@dataclass(frozen=True)
class _Operation:
    """What the schema and the tags of an operation say.

    Attributes:
        func: The operation.
        name: Its name, without an overload.
        custom: Whether it is not one of PyTorch's own.
        writes: Place, name and memory of each argument that it writes to.
        returns: Memory of each result that is such an argument, else None.
        takes_scalars: Whether it takes scalars on the CPU.
        reads: Whether it reads a value.
        dynamic: Whether the shape of its result depends on values.
    """

    func: Any
    name: str
    custom: bool
    writes: tuple[tuple[int, str, str], ...]
    returns: tuple[str | None, ...]
    takes_scalars: bool
    reads: bool
    dynamic: bool

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that it writes to, by the name of their memory."""
        return {memory: args[place] if place < len(args) else kwargs.get(name) for place, name, memory in self.writes}


@functools.cache
def _operation(func: Any) -> _Operation:
    writes = tuple(
        (place, argument.name, min(argument.alias_info.before_set, default=argument.name))
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliases = [returned.alias_info for returned in func._schema.returns]
    return _Operation(
        func,
        func._schema.name.partition("::")[2],
        func.namespace not in ("aten", "prim"),
        writes,
        tuple(min(alias.before_set) if alias is not None and alias.is_write else None for alias in aliases),
        torch.Tag.pointwise in func.tags or func is aten.fill_.Tensor,
        torch.Tag.data_dependent_output in func.tags,
        torch.Tag.dynamic_output_shape in func.tags,
    )


def _check_devices(operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leaves = [*_leaves(args), *_leaves(kwargs.values())]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    here = _is_here(kwargs.get("device")) or any(isinstance(tensor, StandinTensor) for tensor in tensors)
    for leaf in leaves:
        if isinstance(leaf, _TORCH_GENERATOR) and _is_generator_here(leaf) != here:
            raise MixedDevicesError(f"{operation.func}: a generator of another device than that of the tensors")
    if operation.func in _COPIES or (kwargs.get("device") is not None and len(tensors) == 1):  # such as zeros_like
        return
    for tensor in tensors:
        if isinstance(tensor, StandinTensor):
            continue
        written = any(tensor is one for one in _leaves(operation.written(args, kwargs).values()))
        if written or tensor.ndim > 0 or not operation.takes_scalars:
            raise MixedDevicesError(f"{operation.func}: a tensor of shape {tuple(tensor.shape)} on {tensor.device}")


def _synchronisations(operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    if operation.func in _COPIES:
        yield from _blocking_copies(operation.func, args, kwargs)
    if operation.reads:
        yield "reads a value"
    if operation.name in _WAITING:
        yield "waits for values"
    if operation.name in _INDEXING:
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
            yield "has a shape that depends on a mask"
    elif operation.dynamic and kwargs.get("output_size") is None:
        yield "has a shape that depends on values"
    if operation.func is aten.where.self and not all(isinstance(tensor, StandinTensor) for tensor in args):
        yield "copies a scalar to the device"


def _blocking_copies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    if func is aten.copy_.default:
        target, source = _is_here(args[0].device), _is_here(args[1].device)
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        source = _is_here(args[0].device)
        target = source if kwargs.get("device") is None else _is_here(kwargs["device"])
        non_blocking = kwargs.get("non_blocking", False)
    if source and not target:
        yield "copies to the host"
    elif target and not source and not non_blocking:
        yield "copies to the device and waits"


def _run_custom(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the kernel that an operator has for all devices."""
    if not any(func.has_kernel_for_dispatch_key(key) for key in _ANY_DEVICE):
        raise MixedDevicesError(f"{func}: has no kernel for the device")
    with _Factories():  # type: ignore[no-untyped-call]
        return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.Lazy), *args, **kwargs)


_ANY_DEVICE = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)


def _reshape(tensor: StandinTensor) -> None:
    """Give a tensor the shape of the tensor inside. The kernel of the meta device changes the shape alone."""
    held = tensor.held
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    aten.as_strided_.default.redispatch(key, tensor, held.shape, held.stride(), held.storage_offset())


def _check_written(written: dict[str, Any]) -> None:
    for tensor in _leaves(written.values()):
        if isinstance(tensor, StandinTensor) and (
            tensor.held.shape != tensor.shape
            or (tensor.layout == torch.strided and tensor.held.stride() != tensor.stride())
        ):
            raise NotImplementedError("the stand-in device cannot change the shape of a tensor in place")


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Iterate over values and what lists and tuples among them hold."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to what a list or tuple holds."""
    if isinstance(value, list | tuple):
        return type(value)([_map(function, one) for one in value])
    return function(value)


def _unwrap(value: Any) -> Any:
    return value.held if isinstance(value, StandinTensor) else value


def _is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _any_here(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    leaves = (*_leaves(args), *_leaves(kwargs.values()))
    return any(isinstance(leaf, StandinTensor) or _is_generator_here(leaf) for leaf in leaves)


def _is_generator_here(value: Any) -> bool:
    return isinstance(value, _TORCH_GENERATOR) and cast("Any", value)._cdata in _active().generators


def _caller() -> str:
    """Return the line of the code that called PyTorch."""
    outside = [
        frame
        for frame in traceback.extract_stack()
        if frame.filename != __file__ and Path(torch.__file__).parent not in Path(frame.filename).parents
    ]
    return f"{outside[-1].filename}:{outside[-1].lineno}"
