"""What a pickle's calls stand for, as data: Python's containers, NumPy's and JAX's arrays, tensors.

Each constructor takes the arguments that the file passes and checks them: an array has as many
bytes as its shape needs (numpy/_core/multiarray.py, jax/_src/array.py); a view lies inside its
storage, and a storage inside the file (torch/_utils.py and torch/serialization.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from memcurse_cli.checkpoints.store import (
    ELEMENT_TYPES,
    ML_DTYPES,
    NUMERIC_KINDS,
    Array,
    LazyTensor,
    Shape,
    TensorSpec,
    decode,
    element_bytes,
)
from memcurse_cli.checkpoints.torch.pickle_machine import Constructor, EscapedBytes, Global, Record
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import Bytes, InlineBytes, naturals
from memcurse_cli.errors import CheckpointError


def _dictionary(*arguments: object) -> object:
    # OrderedDict(), dict(pairs), defaultdict(factory, entries)
    source = arguments[-1] if arguments else None
    if isinstance(source, dict):
        return dict(source)
    pairs = source if isinstance(source, list | tuple) else ()
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("it has a malformed dictionary")
    return {key: value for key, value in pairs if isinstance(key, str | bytes | int)}


def _listed(values: object = ()) -> list[object]:
    return list(values) if isinstance(values, list | tuple) else []


def _encoded(text: object, encoding: object = "latin1") -> object:
    # How protocols 0 to 2 write bytes: text in which each character is one of them.
    if isinstance(text, EscapedBytes) and encoding in ("latin1", "latin-1"):
        return text
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "utf8"):
        raise ValueError("it encodes what is not text")
    return text.encode("latin-1" if "latin" in str(encoding) else "utf-8", "replace")


def held_bytes(content: object, what: str) -> Bytes:
    """The bytes that a call was given, in the file or inline; ValueError: ``what`` has none."""
    if isinstance(content, bytes):
        return InlineBytes(content)
    if isinstance(content, Bytes):
        return content
    raise ValueError(f"it has {what} without bytes")


@dataclass(eq=False, repr=False)
class ElementType:
    """A NumPy dtype that the pickle describes: its name, and its byte order once that is set."""

    name: str
    big_endian: bool = False

    def build(self, state: object) -> None:
        """Take ``(version, byte order, …)``."""
        if isinstance(state, tuple) and len(state) > 1:
            self.big_endian = state[1] in (">", b">")


@dataclass(eq=False, repr=False)
class PickledArray:
    """A NumPy array: `tensor` is set once its state has come."""

    tensor: LazyTensor | None = None

    def build(self, state: object) -> PickledArray:
        """Take ``(version, shape, dtype, is Fortran-ordered, bytes)``, and return itself.

        Arrays of objects or texts stay without a tensor.
        """
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise ValueError("it has an array with a malformed state")
        shape, dtype, fortran, content = state[-4:]
        if not isinstance(dtype, ElementType) or not dtype.name:
            return self
        if isinstance(content, str):  # Python 2 wrote bytes as text
            content = content.encode("latin-1", "replace")
        elements = held_bytes(content, "an array")
        fault = "it has an array whose shape is not made of natural numbers"
        sizes = naturals(shape if isinstance(shape, list | tuple) else (shape,), fault)
        spec = TensorSpec.plain(sizes, dtype.name)
        spec.require(elements.size, "an array")
        self.tensor = LazyTensor.at(
            elements, 0, spec, big_endian=dtype.big_endian, fortran=fortran is True
        )
        return self


def _element_type(code: object, *_: object) -> ElementType:
    if isinstance(code, ElementType):
        return code
    if isinstance(code, Global):  # dtype(ml_dtypes.bfloat16), dtype(numpy.float32)
        code = code.name
    if code in ML_DTYPES:
        return ElementType(str(code))
    try:
        dtype = np.dtype(code) if isinstance(code, str) and len(code) < 32 else np.dtype("O")
    except TypeError as error:
        raise ValueError("it has an array of an unknown type") from error
    # An element type without a name: texts and objects, whose arrays are passed over.
    return ElementType(dtype.name if dtype.kind in NUMERIC_KINDS else "")


# An expanded view repeats few stored elements; this bounds what reading one may allocate.
MAX_EXPANDED_ELEMENTS = 1 << 24
STORAGE_ELEMENTS = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128", "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8", "QInt8Storage": "int8", "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}  # fmt: skip
TORCH_ALIASES = {"double": "float64", "float": "float32", "half": "float16"}


@dataclass(eq=False)
class Storage:
    """A run of elements in the file; where they lie is set once the container has said it."""

    dtype: str
    count: int
    content: Bytes | None = None
    big_endian: bool = False

    @property
    def bytes(self) -> int:
        """Their size."""
        return self.count * element_bytes(self.dtype)

    def place(self, content: Bytes) -> None:
        """Say where the elements lie."""
        if content.size < self.bytes:
            raise ValueError(f"a storage claims {self.bytes} bytes and has {content.size}")
        self.content = content


def described_storage(identity: object) -> tuple[str, str, int, tuple[object, ...]]:
    """Key, element type, count and the rest of ``("storage", type, key, device, count, …)``."""
    if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
        raise ValueError("it refers to something that is not a storage")
    _, kind, key, _, count, *rest = identity
    if not isinstance(key, str) or type(count) is not int or not 0 <= count < 2**62:
        raise ValueError("it has a malformed storage")
    dtype = None
    if isinstance(kind, Global) and kind.module.startswith("torch"):
        dtype = STORAGE_ELEMENTS.get(kind.name)
    if dtype is None:
        raise ValueError(f"it has a storage of the unknown type {printable(str(kind), 60)}")
    return key, dtype, count, tuple(rest)


class QuantisedTensor(LazyTensor, frozen=True):
    """A tensor that is stored as integers (aten/src/ATen/quantized)."""


def _unread(what: str, spec: TensorSpec) -> LazyTensor:
    """A tensor that is not a plain array of numbers, and refused when it is read."""

    def load() -> Array:
        remedy = "save it as a dense floating-point tensor"
        raise CheckpointError(f"{what} is not read", remedy=remedy)

    return LazyTensor(spec, load)


def view(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    dtype: str = "",
    flags: object = None,
) -> LazyTensor:
    """A tensor that views a storage."""
    if not isinstance(storage, Storage):
        raise ValueError("it has a tensor without a storage")
    sizes, steps = _naturals(shape), _naturals(stride)
    if len(sizes) != len(steps):
        raise ValueError("it has a tensor whose shape and stride do not fit together")
    (start,) = _naturals((offset,))
    element = dtype or storage.dtype
    size = element_bytes(element)
    extent = 1 + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    extent = 0 if 0 in sizes else extent
    if extent and (start + extent) * size > storage.bytes:
        held = storage.bytes // size
        raise ValueError(f"a tensor reaches element {start + extent} of a storage of {held}")
    bits = flags if isinstance(flags, dict) else {}
    conjugate, negative = (bits.get(bit) is True for bit in ("conj", "neg"))

    def load() -> Array:
        count = math.prod(sizes)
        if count > max(extent, MAX_EXPANDED_ELEMENTS):
            what = f"an expanded view of {extent} elements that claims {count}"
            raise CheckpointError(what, remedy="save the tensor with .contiguous()")
        if storage.content is None:
            raise ValueError("a tensor's storage is not in the file, which is truncated")
        content = storage.content.read(start * size, extent * size)
        flat = decode(content, element, (extent,), storage.big_endian)
        strides = tuple(step * flat.itemsize for step in steps)
        # The extent was computed from the same shape and stride, so the view stays inside.
        array = np.lib.stride_tricks.as_strided(flat, sizes, strides, writeable=False).copy()
        if conjugate:
            array = array.conj()
        return -array if negative else array

    identity = (storage, element, start, sizes, steps, conjugate, negative)
    return LazyTensor(TensorSpec.plain(sizes, element), load, identity)


def _naturals(values: object) -> Shape:
    return naturals(values, "it has a tensor whose shape, stride or offset is not a natural number")


def torch_type(dtype: object) -> str:
    """The element type that a name such as ``torch.float32`` stands for."""
    if isinstance(dtype, Global) and dtype.module == "torch":
        name = TORCH_ALIASES.get(dtype.name, dtype.name)
        if name in ELEMENT_TYPES:
            return name
    raise ValueError(f"it has a tensor of the unknown type {printable(str(dtype), 60)}")


def dequantised(stored: LazyTensor, quantiser: object) -> LazyTensor:
    """``(q - zero) scale``, with one scale and zero, or with one for each index of an axis.

    ``quantiser`` is the scheme and its parameters; a tensor of another one is refused when read.
    """
    scheme, *how = quantiser if isinstance(quantiser, tuple) and quantiser else (None,)
    spec = stored.spec
    if scheme == Global("torch", "per_tensor_affine") and len(how) == 2:
        scale, zero = how
        if isinstance(scale, float) and math.isfinite(scale) and type(zero) is int:
            return QuantisedTensor(spec, lambda: (stored.load() - zero) * scale)
    elif scheme == Global("torch", "per_channel_affine") and len(how) == 3:
        scales, zeros, axis = how
        if isinstance(scales, LazyTensor) and isinstance(zeros, LazyTensor) and type(axis) is int:
            sizes = spec.shape[axis : axis + 1] if axis >= 0 else ()
            if sizes and scales.spec.shape == zeros.spec.shape == sizes:
                along = [-1 if other == axis else 1 for other in range(len(spec.shape))]

                def load() -> Array:
                    zero, scale = (part.load().reshape(along) for part in (zeros, scales))
                    return np.asarray((stored.load() - zero) * scale)

                return QuantisedTensor(spec, load)
    return _unread("a tensor quantised in another way", spec)


def _without_elements(what: str, dtype: object, shape: object, *_: object) -> LazyTensor:
    return _unread(what, TensorSpec(_naturals(shape), torch_type(dtype), 0))


def _sparse(layout: object, data: object) -> LazyTensor:
    # (indices, values, size) or, compressed, (indices, indices, values, size)
    parts = data if isinstance(data, tuple) and len(data) in (3, 4, 5) else ()
    tensors = [part for part in parts if isinstance(part, LazyTensor)]
    sizes = [part for part in parts if isinstance(part, tuple | list)]
    if len(tensors) < 2 or len(sizes) != 1:
        raise ValueError("it has a malformed sparse tensor")
    values = tensors[-1].spec
    spec = TensorSpec(_naturals(sizes[0]), values.dtype, values.bytes)
    return _unread("a sparse tensor", spec)


def _first(*arguments: object) -> object:
    return arguments[0]


def _jax_array(call: object, arguments: object, state: object, *_: object) -> PickledArray:
    return PickledArray().build(state)


# By the names that the module has in newer and older versions.
_NAMED: dict[tuple[str, ...], dict[str, Constructor]] = {
    ("collections",): {"OrderedDict": _dictionary, "defaultdict": _dictionary},
    ("_codecs",): {"encode": _encoded},
    ("builtins", "__builtin__"): {
        "dict": _dictionary,
        **dict.fromkeys(("list", "set", "frozenset", "tuple"), _listed),
        "bytearray": lambda value=b"", *_: value,
    },
    ("copyreg", "copy_reg"): {"_reconstructor": lambda kind, *_: Record(kind)},
    ("numpy",): {"dtype": _element_type},
    ("numpy._core.multiarray", "numpy.core.multiarray"): {
        "_reconstruct": lambda *_: PickledArray(),
        # A training checkpoint's loss or learning rate: no tensor.
        "scalar": lambda dtype, content=b"": None,
    },
    ("numpy._core.numeric", "numpy.core.numeric"): {
        "_frombuffer": lambda content, dtype, shape, order: PickledArray().build(
            (shape, dtype, order == "F", content)
        )
    },
    ("jax._src.array",): {"_reconstruct_array": _jax_array},
    ("jax._src.device_array",): {"reconstruct_device_array": _jax_array},
    ("torch",): {"Size": lambda values=(): _naturals(values)},
    ("torch._utils",): {
        "_rebuild_tensor": view,
        # The gradient's flag and hooks come before the metadata; then the type as well.
        "_rebuild_tensor_v2": lambda data, at, shape, stride, g=None, h=None, flags=None, *_: view(
            data, at, shape, stride, "", flags
        ),
        "_rebuild_tensor_v3": lambda data, at, shape, stride, g, h, kind, flags=None, *_: view(
            data, at, shape, stride, torch_type(kind), flags
        ),
        "_rebuild_parameter": _first,
        "_rebuild_parameter_with_state": _first,
        "_rebuild_device_tensor_from_cpu_tensor": _first,
        "_rebuild_device_tensor_from_numpy": _first,
        "_rebuild_xla_tensor": _first,
        "_rebuild_qtensor": lambda *a: dequantised(view(*a[:4]), (*a[4:5], None)[0]),
        "_rebuild_sparse_tensor": _sparse,
        "_rebuild_sparse_csr_tensor": _sparse,
        "_rebuild_meta_tensor_no_storage": partial(_without_elements, "a meta tensor without data"),
        "_rebuild_wrapper_subclass": lambda kind, *a: _without_elements("a tensor subclass", *a),
    },
    ("torch.jit._pickle",): {
        "restore_type_tag": _first,
        **{f"build_{kind}list": _first for kind in ("int", "double", "bool", "tensor")},
    },
}
CONSTRUCTORS = {
    Global(module, name): build
    for modules, names in _NAMED.items()
    for module in modules
    for name, build in names.items()
}
"""How to build what pickles of Python, NumPy, JAX and PyTorch name."""
