"""What every format offers: named tensors, described at once and read one by one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.untrusted.source import Bytes, Directory, File
from memcurse_cli.errors import CheckpointError

Array = NDArray[Any]
Shape = tuple[int, ...]

# What `ml_dtypes` adds to NumPy's types, and the bytes of one element.
ML_DTYPES = {
    "bfloat16": 2, "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
# Two elements to a byte, the first in its low half; sign, two bits of exponent and one of mantissa.
FLOAT4 = "float4_e2m1fn"
FLOAT4_VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
NUMERIC_KINDS = "biufc"
# Every name that a file may give an element type; NumPy's parser sees no other text of a file.
ELEMENT_TYPES = frozenset(ML_DTYPES) | {
    *("bool", "complex64", "complex128", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
# The output of TensorFlow's variable: rnn/lstm_cell/kernel:0.
OUTPUT = ":0"
MAX_METADATA_LENGTH = 1_000_000
MAX_ELEMENTS = 2**63 // 16


def element_type(name: str) -> np.dtype[Any]:
    """NumPy's dtype of this name; ``ml_dtypes`` is imported for the names that only it knows."""
    if name in ML_DTYPES:
        import ml_dtypes

        scalar: type[np.generic] = getattr(ml_dtypes, name)
        return np.dtype(scalar)
    return np.dtype(name)


def element_bytes(name: str) -> int:
    """The size of one element in bytes, without importing ``ml_dtypes``."""
    return ML_DTYPES.get(name) or np.dtype(name).itemsize


def to_double(array: Array) -> Array:
    """The array as float64, or as complex128 where it is complex."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def decode(
    content: bytes | bytearray,
    name: str,
    shape: Shape,
    big_endian: bool = False,
    fortran: bool = False,
) -> Array:
    """Elements in C order, little-endian unless said otherwise, as float64 or complex128."""
    if fortran:
        return decode(content, name, shape[::-1], big_endian).T
    if name == FLOAT4:
        packed = np.frombuffer(content, np.uint8)
        return np.array(FLOAT4_VALUES)[np.stack((packed & 15, packed >> 4), -1)].reshape(shape)
    dtype = element_type(name)
    if name not in ML_DTYPES:
        dtype = dtype.newbyteorder(">" if big_endian else "<")
    elif big_endian and dtype.itemsize > 1:
        swapped = np.frombuffer(content, dtype=f">u{dtype.itemsize}")
        content = swapped.astype(f"<u{dtype.itemsize}").tobytes()
    return to_double(np.frombuffer(content, dtype=dtype).reshape(shape))


class TensorSpec(Struct, frozen=True):
    """A stored tensor before it is read."""

    shape: Shape
    dtype: str  # the stored type by NumPy's name: ``float32``, ``bfloat16``, ``float8_e4m3fn``, …
    bytes: int  # the size of its elements in the file

    def require(self, size: int, label: str = "it") -> None:
        """Refuse elements of so many bytes, where the shape needs another number."""
        if size != self.bytes:
            needed = printable(str(self.bytes), 40)
            raise ValueError(f"{label} needs {needed} bytes for its shape and has {size}")

    @staticmethod
    def plain(shape: Shape, dtype: str) -> TensorSpec:
        """The spec of a tensor whose elements are of whole bytes and not compressed."""
        return TensorSpec(shape, dtype, math.prod(shape) * element_bytes(dtype))


class LazyTensor(Struct, frozen=True):
    """A spec and the function that reads its elements as float64 or complex128."""

    spec: TensorSpec
    load: Callable[[], Array]
    # what only entries of one stored tensor share; None where no other name can stand for it
    identity: Hashable | None = None

    @staticmethod
    def at(
        source: Bytes,
        offset: int,
        spec: TensorSpec,
        label: str = "an array",
        *,
        big_endian: bool = False,
        fortran: bool = False,
    ) -> LazyTensor:
        """One whose elements follow one another from a byte on; ValueError beyond the end."""
        content = source.part(offset, spec.bytes, label)

        def load() -> Array:
            elements = content.read(0, spec.bytes)
            return decode(elements, spec.dtype, spec.shape, big_endian, fortran)

        return LazyTensor(spec, load)


def assembled(spec: TensorSpec, parts: Iterable[tuple[Shape, Array]], fill: complex = 0) -> Array:
    """A tensor of parts by the corners that they begin at; the last may reach beyond its edge."""
    kind = np.complex128 if spec.dtype.startswith("complex") else np.float64
    array = np.full(spec.shape, fill, kind)
    for corner, part in parts:
        inside = tuple(slice(at, at + n) for at, n in zip(corner, part.shape, strict=True))
        array[inside] = part[tuple(slice(n) for n in array[inside].shape)]
    return array


@dataclass
class Transfer:
    """The bytes that were fetched for one remote checkpoint, all its files together."""

    size: int = 0

    def count(self, content: bytes) -> bytes:
        """Count one answer, and return it."""
        self.size += len(content)
        return content


class TensorStore(AbstractContextManager["TensorStore"]):
    """An open checkpoint: a mapping from tensor names to specs, with reads that are counted.

    Opening one reads headers only. Nothing that the file holds is ever executed. Names, metadata
    and notes are made printable here, once for every format. It is made of a file, which it owns
    with what else is ``owned``, or called by a name; ``size`` is that of all where it has more.

    Attributes:
        path: the path as the user gave it.
        format: the format's name as `memcurse formats` lists it.
        bytes: the size of the checkpoint on disk, all its shards included.
        metadata: string metadata stored beside the tensors.
        config: the model's configuration, from a file beside the weights, or empty. It is as
            untrusted as the weights, and its values may have any type that JSON has.
        notes: how the file was opened, e.g. that an EMA copy was left out.
        tensors: every tensor by its full name, in the file's order.
        entries: the same with their readers, for a rewrite and for a store that is made of others.
        stored: the tensors as in the file, each once, before parts of a weight became the weight.
        aliases: for every further name of one of ``tensors`` the name that holds it.
        transfer: what has been fetched, where the checkpoint is remote.
        contents: all that the file holds, optimiser state included: containers of `LazyTensor`, or
            a mapping from paths to them. None where that is the tensors alone.
        beside: the directory of the file, where a trainer's records lie in it.
        listed_names: for names that the metadata list without storing them, the name stored.

    Raises CheckpointError: a name too long or, when printed, another's; a shape of no array.
    """

    def __init__(
        self,
        place: File | str,
        tensors: Mapping[str, LazyTensor],
        notes: Iterable[str] = (),
        *,
        size: int | None = None,
        format: str = "",
        metadata: Mapping[str, str] | None = None,
        owned: Iterable[Any] = (),
        contents: object = None,
        listed_names: Mapping[str, str] | None = None,
    ) -> None:
        self._resources: tuple[Any, ...] = ()
        if isinstance(place, str):
            self.path, self.bytes = place, size or 0
        else:
            self.path, self.bytes = place.path, place.size if size is None else size
            self._resources = (place, *owned)
        self.format, self.contents = format, contents
        self.transfer: Transfer | None = None
        self.config: Mapping[str, Any] = {}
        self.beside: Directory | None = None
        self.notes: tuple[str, ...] = ()
        self.metadata = {
            printable(key): printable(value, MAX_METADATA_LENGTH, keep="\n\t")
            for key, value in (metadata or {}).items()
        }
        self.listed_names = dict(listed_names or {})
        self._bytes_read: dict[Hashable, int] = {}
        self._lock = threading.RLock()
        self.replace_entries(tensors, notes)
        self.stored = {
            name: spec for name, spec in self.tensors.items() if name not in self.aliases
        }

    def replace_entries(self, entries: Mapping[str, LazyTensor], notes: Iterable[str] = ()) -> None:
        """Take other entries for what is stored, as a rewrite makes them, and add notes."""
        self.entries = self._named(entries)
        self.tensors = {name: tensor.spec for name, tensor in self.entries.items()}
        # The first name of a stored tensor holds it.
        first: dict[Hashable, str] = {}
        self.aliases: dict[str, str] = {}
        for name, entry in self.entries.items():
            if entry.identity is not None and (first.setdefault(entry.identity, name) != name):
                self.aliases[name] = first[entry.identity]
        self.notes += tuple(printable(note, 500) for note in notes)

    def _named(self, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
        """The tensors by names that can be printed, where each has one that no other has."""
        entries: dict[str, LazyTensor] = {}
        for name, tensor in tensors.items():
            shown, what, fault = printable(name, MAX_NAME_LENGTH), "the tensor name", ""
            if shown.endswith(OUTPUT) and name.removesuffix(OUTPUT) not in tensors:
                shown = shown.removesuffix(OUTPUT)
            # NumPy counts the elements of an empty array as if no dimension were zero; those of
            # any other are bounded by the bytes that are stored.
            shape = tensor.spec.shape
            if len(name) > MAX_NAME_LENGTH:
                fault = f"has {len(name)} characters, more than {MAX_NAME_LENGTH}"
            elif shown in entries:
                fault = "stands twice in the file"
            elif 0 in shape and math.prod(size for size in shape if size) > MAX_ELEMENTS:
                what, fault = "the tensor", "has a shape that no array can have"
            if fault:
                what = f"{what} {printable(name, 60)} {fault}"
                remedy = "the file is corrupt or hostile: use another copy"
                raise CheckpointError(what, where=self.path, remedy=remedy)
            entries[shown] = tensor
        return entries

    @property
    def bytes_read(self) -> int:
        """The bytes of the tensors that were read, each counted once; or all that were fetched."""
        return sum(self._bytes_read.values()) if self.transfer is None else self.transfer.size

    def read(self, name: str) -> Array:
        """The tensor as float64, or complex128 where it is stored complex.

        Raises CheckpointError: the file ends early, or the tensor is of a kind that is not read;
        KeyError: no tensor has this name.
        """
        return self.load(self.entries[name], name)

    def load(self, tensor: LazyTensor, name: str) -> Array:
        """As `read`, of an entry that need not be a weight, which messages call ``name``."""
        where = f"{self.path}: {name}"
        try:
            # What is not finite is refused where it is used. A file is at one place at a time.
            with self._lock, np.errstate(all="ignore"):
                array = tensor.load()
        except CheckpointError as error:
            error.where = where
            raise
        except ValueError as error:
            raise CheckpointError(f"its elements are corrupt: {error}", where=where) from error
        except MemoryError as error:
            what = f"its {tensor.spec.bytes} bytes do not fit into memory as float64"
            remedy = "use a machine with more memory"
            raise CheckpointError(what, where=where, remedy=remedy) from error
        # A moment of the optimiser's has the name of its weight.
        key = (name, id(tensor)) if tensor.identity is None else tensor.identity
        self._bytes_read[key] = tensor.spec.bytes
        return array

    def close(self) -> None:
        """Release the file."""
        for resource in self._resources:
            resource.close()

    def __exit__(self, *_: object) -> None:
        self.close()
