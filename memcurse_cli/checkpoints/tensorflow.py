"""TensorFlow's checkpoints: an index of tensors, and their elements in files beside it.

``model.ckpt-1000.index`` is a sorted table of BundleEntryProto by the tensors' names, whose first
entry, of the empty name, is a BundleHeaderProto; the elements lie in
``model.ckpt-1000.data-00000-of-00001`` and the like (tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/util/tensor_bundle). TensorFlow is not needed, and nothing is built or run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from memcurse_cli.checkpoints.onnx.protobuf import LENGTH, Field, Messages
from memcurse_cli.checkpoints.select import (
    OPTIMIZER_SLOTS,
    TENSORFLOW_SLOT,
    select_flat,
)
from memcurse_cli.checkpoints.store import (
    LazyTensor,
    TensorSpec,
    TensorStore,
    element_bytes,
    element_count,
    elements_at,
)
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import (
    Bytes,
    DataFile,
    File,
    InlineBytes,
    LocalDirectory,
)
from memcurse_cli.errors import CheckpointError

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
FOOTER_BYTES = 48
MAX_TABLE_BYTES = 1 << 24
MAX_ENTRIES = 500_000
MAX_KEY_BYTES = 1 << 26
RAW, SNAPPY = 0, 1
_TRAILER_BYTES = 5
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78


def table_entries(file: File) -> list[tuple[bytes, bytes]]:
    """Every key of the table with its value, in order."""
    if file.size > MAX_TABLE_BYTES:
        raise ValueError(f"its index has {file.size} bytes, more than {MAX_TABLE_BYTES}")
    content = bytes(file.read(0, file.size))
    footer = len(content) - FOOTER_BYTES
    if footer < 0 or content[-8:] != MAGIC:
        raise ValueError("it does not end as a table does")
    position = footer
    handle = [0, 0, 0, 0]
    for i in range(4):
        handle[i], position = varint(content, position, len(content) - 8)
    found: list[tuple[bytes, bytes]] = []
    # Blocks that follow one another cannot be read twice, so that no table is larger than its file.
    free = key_bytes = 0
    for _, value in _entries(_block(content[:footer], handle[2], handle[3])):
        offset, position = varint(value, 0, len(value))
        size, _ = varint(value, position, len(value))
        if offset < free:
            raise ValueError("two of its blocks overlap")
        free = offset + size
        for entry in _entries(_block(content[:footer], offset, size)):
            key_bytes += len(entry[0])
            if found and entry[0] <= found[-1][0]:
                raise ValueError("its keys are not in order")
            found.append(entry)
            if len(found) > MAX_ENTRIES or key_bytes > MAX_KEY_BYTES:
                raise ValueError(f"it has more than {MAX_ENTRIES} table_entries or too long keys")
    return found


def varint(content: bytes, position: int, end: int) -> tuple[int, int]:
    """A number in base 128, and where the next field begins."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError(f"there is no number before byte {position}")


def masked_crc(content: bytes) -> int:
    """The CRC-32C of the bytes as LevelDB stores it: rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def _block(content: bytes, offset: int, size: int) -> bytes:
    if offset + size + _TRAILER_BYTES > len(content):
        raise ValueError(f"a block of {size} bytes at byte {offset} reaches beyond its end")
    kind = content[offset + size]
    stored = int.from_bytes(content[offset + size + 1 : offset + size + _TRAILER_BYTES], "little")
    if masked_crc(content[offset : offset + size + 1]) != stored:
        raise ValueError(f"the block at byte {offset} does not have its checksum")
    if kind == SNAPPY:
        raise ValueError("its index is compressed with Snappy, which is not read")
    if kind != RAW:
        raise ValueError(f"a block is compressed in an unknown way ({kind})")
    return content[offset : offset + size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else -1
    end = len(block) - 4 - 4 * restarts
    if restarts < 0 or end < 0:
        raise ValueError("a block is too short for what it holds")
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position, end)
        own, position = varint(block, position, end)
        size, position = varint(block, position, end)
        if shared > len(key) or own + size > end - position:
            raise ValueError("an entry reaches beyond its block")
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + size]
        position += size


Leaf = TypeVar("Leaf")

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
SLOT = "/.OPTIMIZER_SLOT/"
# What Keras's export keeps a second copy of every variable in.
COPIES = "_all_variables/"
# An optimiser is known by what it has beside its moments; the weights that it trains are in a list.
OPTIMIZER_MARKS = ("_learning_rate", "learning_rate", "_iterations", "iter", "beta_1")
TRAINED = "_trainable_variables"


def name_tensorflow(
    tensors: Mapping[str, Leaf], graph: Messages, size: int
) -> tuple[dict[str, Leaf], list[str]]:
    """The weights by readable names, and notes on what is left out.

    Args:
        tensors: every tensor by its key.
        graph: the graph of objects, of ``size`` bytes; none where that is 0.
    """
    given = _given_names(graph, size)
    optimizers = {
        prefix
        for key in tensors
        if key.endswith(VALUE)
        for prefix, _, last in [key.removesuffix(VALUE).rpartition("/")]
        if prefix and last in OPTIMIZER_MARKS
    }
    state = {key for key in tensors if _is_state(key, optimizers, tensors)}
    rest = {key: tensor for key, tensor in tensors.items() if key not in state}
    owned = {given.get(key) for key in rest if not key.startswith(COPIES)}
    rest = {
        key: tensor
        for key, tensor in rest.items()
        if not (key.startswith(COPIES) and given.get(key) in owned)
    }
    counted = Counter(given.get(key, "") for key in rest)
    plain = {key.removesuffix(VALUE) for key in rest}
    named = {}
    for key, tensor in rest.items():
        own, path = given.get(key, ""), key.removesuffix(VALUE)
        unique = own and counted[own] == 1 and (own == path or own not in plain)
        named[own if unique else path] = tensor
    notes = []
    if state:
        shown = printable(min(state).removesuffix(VALUE), 80)
        notes = [f"{len(state)} tensors of optimiser state (such as {shown}): left out"]
    weights, others = select_flat(named)
    return weights, [*notes, *others]


def _is_state(key: str, optimizers: set[str], known: Iterable[str]) -> bool:
    if SLOT in key:
        return True
    if key.endswith(VALUE):
        parts = key.split("/")
        return any(
            "/".join(parts[:depth]) in optimizers and parts[depth] != TRAINED
            for depth in range(1, len(parts))
        )
    # A slot made in a scope has the scope before its variable: OptimizeLoss/rnn/kernel/Adam.
    variable, _, last = key.rpartition("/")
    if not TENSORFLOW_SLOT.fullmatch(last):
        return last in OPTIMIZER_SLOTS
    while variable:
        if variable in known:
            return True
        variable = variable.partition("/")[2]
    return False


def _given_names(graph: Messages, size: int) -> dict[str, str]:
    """The full name of each variable by its key; nodes=1, attributes=2, full_name=2, key=3."""
    names: dict[str, str] = {}
    for node in graph.fields(0, size):
        if node.number != 1 or node.wire != LENGTH:
            continue
        for attribute in graph.fields(node.start, node.size):
            if attribute.number != 2 or attribute.wire != LENGTH:
                continue
            texts = {
                field.number: graph.text(field)
                for field in graph.fields(attribute.start, attribute.size)
                if field.wire == LENGTH and field.number in (2, 3)
            }
            if texts.get(2) and texts.get(3):
                names[texts[3]] = texts[2]
    return names


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


def open_file(file: File) -> TensorStore:
    """Read the index and the graph of the objects that were saved."""
    table = table_entries(file)
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
    return TensorStore(
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
