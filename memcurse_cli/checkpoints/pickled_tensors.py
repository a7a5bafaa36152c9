"""The tensors of a pickle: PyTorch's rebuild functions, as data.

Each constructor takes the arguments that the file passes and checks them: a view must lie inside
its storage, and a storage inside the file (torch/_utils.py and torch/serialization.py define what
the arguments mean).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import decode, element_bytes, element_count
from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.names import printable
from memcurse_cli.checkpoints.pickle_machine import Constructor
from memcurse_cli.checkpoints.pickle_values import Bytes, Global, PickleError
from memcurse_cli.checkpoints.quantised import dequantised
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import CheckpointError

MAX_DIMENSIONS = 64
# An expanded view repeats few stored elements; this bounds what reading one may allocate.
MAX_EXPANDED_ELEMENTS = 1 << 24
STORAGE_ELEMENTS = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}
TORCH_ALIASES = {"double": "float64", "float": "float32", "half": "float16"}
TORCH_ELEMENTS = frozenset(
    {
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
        "complex128",
        "complex64",
    }
)


@dataclass(eq=False)
class Storage:
    """A run of elements in the file.

    Attributes:
        dtype: their type by NumPy's name.
        count: how many.
        content: where they lie; set once the container has said it.
        big_endian: their byte order.
    """

    dtype: str
    count: int
    content: Bytes | None = None
    big_endian: bool = False

    @property
    def bytes(self) -> int:
        """Their size."""
        return self.count * element_bytes(self.dtype)

    def place(self, content: Bytes) -> None:
        """Say where the elements lie.

        Raises:
            PickleError: there is less room than the storage claims.
        """
        if content.size < self.bytes:
            raise PickleError(f"a storage claims {self.bytes} bytes and has {content.size}")
        self.content = content


def storage_type(kind: object) -> str:
    """The element type that a storage class such as ``torch.FloatStorage`` stands for."""
    if isinstance(kind, Global) and kind.module.startswith("torch"):
        known = STORAGE_ELEMENTS.get(kind.name)
        if known:
            return known
    raise PickleError(f"it has a storage of the unknown type {printable(str(kind), 60)}")


@dataclass(frozen=True)
class _View:
    """A strided view of a storage, in elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool = False
    negative: bool = False
    extent: int = field(init=False)

    def __post_init__(self) -> None:
        steps = ((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        extent = 0 if 0 in self.shape else 1 + sum(steps)
        object.__setattr__(self, "extent", extent)
        size = element_bytes(self.dtype)
        if extent and (self.offset + extent) * size > self.storage.bytes:
            raise PickleError(
                f"a tensor reaches element {self.offset + extent} of a storage of "
                f"{self.storage.bytes // size}"
            )

    def __call__(self) -> NDArray[Any]:
        size = element_bytes(self.dtype)
        count = element_count(self.shape)
        if count > max(self.extent, MAX_EXPANDED_ELEMENTS):
            raise CheckpointError(
                f"an expanded view of {self.extent} elements that claims {count}",
                remedy="save the tensor with .contiguous()",
            )
        if self.storage.content is None:
            raise CheckpointError(
                "a tensor whose storage is not in the file",
                remedy="the file is truncated: copy or download it again",
            )
        try:
            content = self.storage.content.read(self.offset * size, self.extent * size)
        except PickleError as error:
            raise CheckpointError(
                f"a corrupt storage: {error}", remedy="download the file again"
            ) from error
        flat = decode(content, self.dtype, (self.extent,), self.storage.big_endian)
        strides = tuple(step * flat.itemsize for step in self.stride)
        # The extent was computed from the same shape and stride, so the view stays inside.
        array = np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False).copy()
        if self.conjugate:
            array = array.conj()
        return -array if self.negative else array


class Unreadable:
    """Refuses to read a tensor that is not a plain array of numbers."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self) -> NDArray[Any]:
        """Raise the reason."""
        raise CheckpointError(
            f"{self._what} is not read",
            remedy="save it as a dense floating-point tensor",
        )


def view(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    dtype: str = "",
    flags: object = None,
) -> LazyTensor:
    """A tensor that views a storage.

    Raises:
        PickleError: an argument is not what its place needs, or the view leaves the storage.
    """
    if not isinstance(storage, Storage):
        raise PickleError("it has a tensor without a storage")
    sizes, steps = _naturals(shape), _naturals(stride)
    if len(sizes) != len(steps) or len(sizes) > MAX_DIMENSIONS:
        raise PickleError("it has a tensor whose shape and stride do not fit together")
    (start,) = _naturals((offset,))
    bits = flags if isinstance(flags, dict) else {}
    element = dtype or storage.dtype
    seen = _View(
        storage, element, start, sizes, steps, bits.get("conj") is True, bits.get("neg") is True
    )
    size = element_count(sizes) * element_bytes(element)
    return LazyTensor(TensorSpec(sizes, element, size), seen, identity=seen)


def _naturals(values: object) -> tuple[int, ...]:
    if isinstance(values, list):
        values = tuple(values)
    if not isinstance(values, tuple) or not all(type(v) is int and 0 <= v < 2**62 for v in values):
        raise PickleError("it has a tensor whose shape, stride or offset is not a natural number")
    return values


def _tensor_v2(*arguments: object) -> LazyTensor:
    storage, offset, shape, stride = arguments[:4]
    return view(storage, offset, shape, stride, flags=arguments[6] if len(arguments) > 6 else None)


def _tensor_v3(*arguments: object) -> LazyTensor:
    storage, offset, shape, stride, _, _, dtype = arguments[:7]
    flags = arguments[7] if len(arguments) > 7 else None
    return view(storage, offset, shape, stride, torch_type(dtype), flags)


def torch_type(dtype: object) -> str:
    """The element type that a name such as ``torch.float32`` stands for."""
    if isinstance(dtype, Global) and dtype.module == "torch":
        name = TORCH_ALIASES.get(dtype.name, dtype.name)
        if name in TORCH_ELEMENTS:
            return name
    raise PickleError(f"it has a tensor of the unknown type {printable(str(dtype), 60)}")


def _first(*arguments: object) -> object:
    return arguments[0]


def _quantised(
    storage: object, offset: object, shape: object, stride: object, *rest: object
) -> LazyTensor:
    stored = view(storage, offset, shape, stride)
    read = dequantised(stored, rest[0] if rest else None)
    return read or LazyTensor(stored.spec, Unreadable("a tensor quantised in another way"))


def _without_storage(dtype: object, shape: object, *_: object) -> LazyTensor:
    return LazyTensor(
        TensorSpec(_naturals(shape), torch_type(dtype), 0), Unreadable("a meta tensor without data")
    )


def _wrapper(_: object, dtype: object, shape: object, *rest: object) -> LazyTensor:
    return LazyTensor(
        TensorSpec(_naturals(shape), torch_type(dtype), 0), Unreadable("a tensor subclass")
    )


def _sparse(layout: object, data: object) -> LazyTensor:
    shape, values = _sparse_parts(data)
    return LazyTensor(
        TensorSpec(shape, values.spec.dtype, values.spec.bytes), Unreadable("a sparse tensor")
    )


def _sparse_parts(data: object) -> tuple[tuple[int, ...], LazyTensor]:
    # (indices, values, size) or, compressed, (indices, indices, values, size)
    if not isinstance(data, tuple) or len(data) not in (3, 4, 5):
        raise PickleError("it has a malformed sparse tensor")
    tensors = [part for part in data if isinstance(part, LazyTensor)]
    sizes = [part for part in data if isinstance(part, tuple | list)]
    if len(tensors) < 2 or len(sizes) != 1:
        raise PickleError("it has a malformed sparse tensor")
    return _naturals(sizes[0]), tensors[-1]


def _size(values: object = ()) -> tuple[int, ...]:
    return _naturals(values)


def _from_type(construct: Callable[[object, object], object]) -> Constructor:
    def rebuild(function: object, kind: object, arguments: object, *state: object) -> object:
        return construct(function, arguments)

    return rebuild


def torch_constructors(construct: Callable[[object, object], object]) -> dict[Global, Constructor]:
    """How to build what PyTorch's pickles name.

    Args:
        construct: the machine's `construct`, for calls that wrap another.
    """
    table: dict[Global, Constructor] = {
        Global("torch", "Size"): _size,
        Global("torch._utils", "_rebuild_tensor"): view,
        Global("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
        Global("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
        Global("torch._utils", "_rebuild_parameter"): _first,
        Global("torch._utils", "_rebuild_parameter_with_state"): _first,
        Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _first,
        Global("torch._utils", "_rebuild_device_tensor_from_numpy"): _first,
        Global("torch._utils", "_rebuild_xla_tensor"): _first,
        Global("torch._utils", "_rebuild_qtensor"): _quantised,
        Global("torch._utils", "_rebuild_sparse_tensor"): _sparse,
        Global("torch._utils", "_rebuild_sparse_csr_tensor"): _sparse,
        Global("torch._utils", "_rebuild_meta_tensor_no_storage"): _without_storage,
        Global("torch._utils", "_rebuild_wrapper_subclass"): _wrapper,
        Global("torch._tensor", "_rebuild_from_type"): _from_type(construct),
        Global("torch._tensor", "_rebuild_from_type_v2"): _from_type(construct),
        Global("torch.jit._pickle", "restore_type_tag"): _first,
    }
    for kind in ("int", "double", "bool", "tensor"):
        table[Global("torch.jit._pickle", f"build_{kind}list")] = _first
    return table
