"""TensorFlow's checkpoints: an index of tensors, and their elements in files beside it.

``model.ckpt-1000.index`` is a sorted table of BundleEntryProto by the tensors' names, whose first
entry, of the empty name, is a BundleHeaderProto; the elements lie in
``model.ckpt-1000.data-00000-of-00001`` and the like (tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/util/tensor_bundle). TensorFlow is not needed, and nothing is built or run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memcurse_cli.checkpoints.elements import element_bytes, element_count
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor, elements_at
from memcurse_cli.checkpoints.onnx.protobuf import LENGTH, Field, Messages
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.tensorflow.names import OBJECT_GRAPH, name_tensorflow
from memcurse_cli.checkpoints.tensorflow.table import entries
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import Bytes, InlineBytes
from memcurse_cli.checkpoints.untrusted.source import DataFile, File, LocalDirectory
from memcurse_cli.errors import CheckpointError

INDEX_SUFFIX = ".index"
MAX_SHARDS = 10_000
MAX_KEY_LENGTH = 4096
MAX_DIMENSIONS = 64
MAX_GRAPH_BYTES = 1 << 26
# DataType of tensorflow/core/framework/types.proto; the others are not numbers.
TYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
}


@dataclass
class _Entry:
    """A BundleEntryProto."""

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    sliced: bool = False


def open_file(file: File) -> LazyStore:
    """Read the index and the graph of the objects that were saved."""
    table = entries(file)
    if not table or table[0][0]:
        raise ValueError("its index has no header")
    count = _header(table[0][1], file)
    stored = {key.decode("utf-8", "replace"): _entry(value) for key, value in table[1:]}
    shards = _Shards(file, count)
    tensors: dict[str, LazyTensor] = {}
    other: list[str] = []
    parts: list[str] = []
    graph = b""
    for name, entry in stored.items():
        if len(name) > MAX_KEY_LENGTH:
            raise ValueError(f"a key of its index has {len(name)} characters")
        if name.startswith("\0"):  # a slice of a tensor, under a key of its own
            continue
        if name == OBJECT_GRAPH and entry.size <= MAX_GRAPH_BYTES:
            graph = _text(shards.range(entry.shard), entry)
        elif entry.sliced:
            parts.append(name)
        elif entry.dtype not in TYPES:
            other += [] if name == OBJECT_GRAPH else [name]
        else:
            tensors[name] = _tensor(name, entry, shards)
    shards.check()
    named, notes = name_tensorflow(tensors, Messages(InlineBytes(graph)), len(graph))
    file.close()
    return LazyStore(
        path=file.path,
        bytes=file.size + shards.bytes,
        tensors=named,
        notes=[
            *notes,
            *_left_out(other, "that are not numbers"),
            *_left_out(parts, "that are stored in slices"),
        ],
    )


class _Shards:
    """The files of elements, found by the name of the index."""

    def __init__(self, index: File, count: int) -> None:
        self._directory = index.directory()
        self._prefix = index.path.rpartition("/")[2].removesuffix(INDEX_SUFFIX)
        self._count = count
        self._files: dict[int, Bytes] = {}
        self._claimed: dict[int, list[tuple[int, int]]] = {}

    def range(self, shard: int) -> Bytes:
        """The file of a shard."""
        if not 0 <= shard < self._count:
            raise ValueError(f"a tensor lies in file {shard} of {self._count}")
        if shard not in self._files:
            name = f"{self._prefix}.data-{shard:05d}-of-{self._count:05d}"
            self._files[shard] = (
                DataFile(self._directory, name)
                if isinstance(self._directory, LocalDirectory)
                else self._directory.open(name)
            )
        return self._files[shard]

    def claim(self, name: str, entry: _Entry) -> Bytes:
        """The file that holds an entry's elements."""
        file = self.range(entry.shard)
        if entry.offset + entry.size > file.size:
            raise ValueError(
                f"the tensor {printable(name, 60)} reaches byte {entry.offset + entry.size} of a "
                f"file of {file.size}"
            )
        self._claimed.setdefault(entry.shard, []).append((entry.offset, entry.size))
        return file

    def check(self) -> None:
        """Refuse tensors that share bytes, by which a small file would claim any amount."""
        for claims in self._claimed.values():
            end = 0
            for offset, size in sorted(claims):
                if size and offset < end:
                    raise ValueError("two of its tensors overlap")
                end = max(end, offset + size)

    @property
    def bytes(self) -> int:
        """What the files that were found have together."""
        return sum(file.size for file in self._files.values())


def _header(value: bytes, file: File) -> int:
    """How many files of elements there are."""
    count = 1
    for field in Messages(InlineBytes(value)).fields(0, len(value)):
        if field.number == 1 and field.wire == LENGTH:
            raise CheckpointError(
                "this is a checkpoint of TensorFlow's first format, of before version 0.12",
                where=file.path,
                remedy="load it in TensorFlow 1 and save it again with tf.train.Saver",
            )
        if field.number == 1:
            count = field.value
        elif field.number == 2 and field.value:
            raise CheckpointError(
                "its numbers are big-endian, which is not read",
                where=file.path,
                remedy="save it elsewhere",
            )
    if not 0 < count <= MAX_SHARDS:
        raise ValueError(f"it has {count} files of elements")
    return count


def _entry(value: bytes) -> _Entry:
    messages, entry = Messages(InlineBytes(value)), _Entry()
    for field in messages.fields(0, len(value)):
        if field.number == 1:
            entry.dtype = field.value
        elif field.number == 2 and field.wire == LENGTH:
            entry.shape = tuple(_shape(messages, field))
        elif field.number == 3:
            entry.shard = field.signed
        elif field.number == 4:
            entry.offset = field.signed
        elif field.number == 5:
            entry.size = field.signed
        elif field.number == 7:
            entry.sliced = True
    if min(entry.offset, entry.size, entry.shard, *entry.shape) < 0:
        raise ValueError("a tensor has a negative size or offset")
    return entry


def _shape(messages: Messages, shape: Field) -> Iterable[int]:
    sizes = [
        next((size.signed for size in messages.fields(d.start, d.size) if size.number == 1), 0)
        for d in messages.fields(shape.start, shape.size)
        if d.number == 2 and d.wire == LENGTH
    ]
    if len(sizes) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor has {len(sizes)} dimensions")
    return sizes


def _tensor(name: str, entry: _Entry, shards: _Shards) -> LazyTensor:
    dtype = TYPES[entry.dtype]
    if element_count(entry.shape) * element_bytes(dtype) != entry.size:
        raise ValueError(f"the tensor {printable(name, 60)} has a shape that its bytes do not fit")
    spec = TensorSpec(entry.shape, dtype, entry.size)
    return elements_at(shards.claim(name, entry), entry.offset, spec)


def _text(file: Bytes, entry: _Entry) -> bytes:
    """The only text of a scalar: its length, the sum of the lengths, and its bytes."""
    if entry.size > file.size - entry.offset:
        raise ValueError("its graph of objects reaches beyond its file")
    content = bytes(file.read(entry.offset, entry.size))
    length = shift = position = 0
    while position < min(10, len(content)):
        byte = content[position]
        length, shift, position = length | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            break
    return content[position + 4 : position + 4 + length]


def _left_out(names: list[str], what: str) -> list[str]:
    if not names:
        return []
    return [f"{len(names)} tensors {what} (such as {printable(min(names), 80)}): left out"]
