"""TensorFlow's checkpoints: an index of tensors, and their elements in files beside it.

``model.ckpt-1000.index`` is a sorted table of BundleEntryProto by the tensors' names, whose first
entry, of the empty name, is a BundleHeaderProto; the elements lie in
``model.ckpt-1000.data-00000-of-00001`` and the like (tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/util/tensor_bundle). TensorFlow is not needed, and nothing is built or run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from itertools import pairwise

from memcurse_cli.checkpoints.onnx.graph import LENGTH, message_of
from memcurse_cli.checkpoints.open import INDEX_SUFFIX
from memcurse_cli.checkpoints.select import (
    OPTIMIZER_SLOTS,
    TENSORFLOW_SLOT,
    Leaf,
    counted,
    select_flat,
)
from memcurse_cli.checkpoints.store import LazyTensor, TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import Bytes, Cursor, File, FilesBeside, naturals
from memcurse_cli.errors import CheckpointError

FOOTER_BYTES = 48
MAX_TABLE_BYTES = 1 << 24
MAX_ENTRIES = 500_000
MAX_KEY_BYTES = 1 << 26
_TRAILER_BYTES = 5
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
SLOT = "/.OPTIMIZER_SLOT/"
# What Keras's export keeps a second copy of every variable in.
COPIES = "_all_variables/"
# An optimiser is known by what it has beside its moments; the weights that it trains are in a list.
OPTIMIZER_MARKS = ("_learning_rate", "learning_rate", "_iterations", "iter", "beta_1")
TRAINED = "_trainable_variables"

MAX_SHARDS = 10_000
MAX_KEY_LENGTH = 4096
MAX_GRAPH_BYTES = 1 << 26
# DataType of tensorflow/core/framework/types.proto; the others are not numbers.
TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16",
    22: "uint32", 23: "uint64", 24: "float8_e5m2", 25: "float8_e4m3fn",
}  # fmt: skip


def table_entries(file: File) -> list[tuple[bytes, bytes]]:
    """Every key of a sorted table with its value, in order.

    The table is LevelDB's (https://github.com/google/leveldb/blob/main/doc/table_format.md): blocks
    of entries whose keys leave out what they share with the key before, and in the footer of 48
    bytes the handles (offset, size) of an index of meta blocks and of an index of data blocks.
    """
    content = file.whole(MAX_TABLE_BYTES, "its index")
    if len(content) < FOOTER_BYTES:  # its last bytes were what told the format
        raise ValueError("it does not end as a table does")
    table, handles = content[:-FOOTER_BYTES], Cursor(content[-FOOTER_BYTES:-8])
    _, _, offset, size = (handles.varint() for _ in range(4))
    found: list[tuple[bytes, bytes]] = []
    # Blocks that follow one another cannot be read twice, so that no table is larger than its file.
    free = key_bytes = 0
    for _, value in _entries(_block(table, offset, size)):
        handle = Cursor(value)
        offset, size = handle.varint(), handle.varint()
        if offset < free:
            raise ValueError("two of its blocks overlap")
        free = offset + size
        for entry in _entries(_block(table, offset, size)):
            key_bytes += len(entry[0])
            if found and entry[0] <= found[-1][0]:
                raise ValueError("its keys are not in order")
            found.append(entry)
            if len(found) > MAX_ENTRIES or key_bytes > MAX_KEY_BYTES:
                raise ValueError(f"it has more than {MAX_ENTRIES} entries or too long keys")
    return found


_TABLE = list(range(256))
for _ in range(8):
    _TABLE = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in _TABLE]


def masked_crc(content: bytes) -> int:
    """The CRC-32C of the bytes as LevelDB stores it: rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _block(content: bytes, offset: int, size: int) -> bytes:
    if offset + size + _TRAILER_BYTES > len(content):
        raise ValueError(f"a block of {size} bytes at byte {offset} reaches beyond its end")
    kind = content[offset + size]
    stored = int.from_bytes(content[offset + size + 1 : offset + size + _TRAILER_BYTES], "little")
    if masked_crc(content[offset : offset + size + 1]) != stored:
        raise ValueError(f"the block at byte {offset} does not have its checksum")
    if kind == 1:
        raise ValueError("its index is compressed with Snappy, which is not read")
    if kind:
        raise ValueError(f"a block is compressed in an unknown way ({kind})")
    return content[offset : offset + size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else -1
    end = len(block) - 4 - 4 * restarts
    if restarts < 0 or end < 0:
        raise ValueError("a block is too short for what it holds")
    cursor, key = Cursor(block[:end]), b""
    while cursor.left:
        shared, own, size = (cursor.varint() for _ in range(3))
        if shared > len(key) or own + size > cursor.left:
            raise ValueError("an entry reaches beyond its block")
        key = key[:shared] + cursor.take(own)
        yield key, cursor.take(size)


def name_tensorflow(tensors: Mapping[str, Leaf], graph: bytes) -> tuple[dict[str, Leaf], list[str]]:
    """The weights by readable names, and notes on what is left out.

    TensorFlow 1 saves variables by their names. TensorFlow 2 saves objects: a key is the path of
    attributes that leads to a variable, ``opt/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE``,
    and a TrackableObjectGraph beside the tensors has each variable's own name
    (tensorflow/core/protobuf/trackable_object_graph.proto).
    """
    given = _given_names(graph)
    paths = (key.removesuffix(VALUE).rpartition("/") for key in tensors if key.endswith(VALUE))
    optimizers = {prefix for prefix, _, last in paths if prefix and last in OPTIMIZER_MARKS}
    state = {key for key in tensors if _is_state(key, optimizers, tensors)}
    kept = tensors.keys() - state
    owned = {given.get(key) for key in kept if not key.startswith(COPIES)}
    rest = {
        key: tensor
        for key, tensor in tensors.items()
        if key in kept and not (key.startswith(COPIES) and given.get(key) in owned)
    }
    uses = Counter(given.get(key, "") for key in rest)
    plain = {key.removesuffix(VALUE) for key in rest}
    named = {}
    for key, tensor in rest.items():
        own, path = given.get(key, ""), key.removesuffix(VALUE)
        unique = own and uses[own] == 1 and (own == path or own not in plain)
        named[own if unique else path] = tensor
    weights, others = select_flat(named)
    states = [key.removesuffix(VALUE) for key in sorted(state)]
    return weights, [*counted(states, "of optimiser state", "left out"), *others]


def _is_state(key: str, optimizers: set[str], known: Container[str]) -> bool:
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
    parts = variable.split("/")
    return any("/".join(parts[start:]) in known for start in range(len(parts)))


def _given_names(content: bytes) -> dict[str, str]:
    """The full name of each variable by its key; nodes=1, attributes=2, full_name=2, key=3."""
    return {
        attribute.text(3): attribute.text(2)
        for node in message_of(content).inside(1)
        for attribute in node.inside(2)
        if attribute.text(2) and attribute.text(3)
    }


def open_file(file: File) -> TensorStore:
    """Read the index and the graph of the objects that were saved."""
    table = table_entries(file)
    if not table or table[0][0]:
        raise ValueError("its index has no header")
    shards, count = FilesBeside(file.directory()), _shard_count(table[0][1])
    stem = file.path.rpartition("/")[2].removesuffix(INDEX_SUFFIX)
    tensors: dict[str, LazyTensor] = {}
    claims: list[tuple[int, int, int]] = []
    other: list[str] = []
    parts: list[str] = []
    graph = b""
    for key, value in table[1:]:
        # dtype=1, shape=2, shard=3, offset=4, size=5, slices=7
        name, entry = key.decode("utf-8", "replace"), message_of(value)
        place = [entry.value(field) for field in (3, 4, 5)]
        number, offset, size = naturals(place, "a tensor has a negative size or offset")
        sizes = [axis.value(1) for shape in entry.inside(2) for axis in shape.inside(2)]
        shape = naturals(sizes, "a tensor has a negative size or more than 64 dimensions")
        if len(name) > MAX_KEY_LENGTH:
            raise ValueError(f"a key of its index has {len(name)} characters")
        if name.startswith("\0"):  # a slice of a tensor, under a key of its own
            continue
        if number >= count:
            raise ValueError(f"a tensor lies in file {number} of {count}")
        shard = f"{stem}.data-{number:05d}-of-{count:05d}"
        if name == OBJECT_GRAPH and size <= MAX_GRAPH_BYTES:
            graph = _text(shards[shard], offset, size)
        elif entry[7]:
            parts.append(name)
        elif entry.value(1) not in TYPES:
            other += [] if name == OBJECT_GRAPH else [name]
        else:
            label = f"the tensor {printable(name, 60)}"
            spec = TensorSpec.plain(shape, TYPES[entry.value(1)])
            spec.require(size, label)
            tensors[name] = LazyTensor.at(shards[shard], offset, spec, label)
            if size:
                claims.append((number, offset, offset + size))
    # A small file would claim any amount by tensors that share bytes.
    for (shard_before, _, end), (next_shard, start, _) in pairwise(sorted(claims)):
        if shard_before == next_shard and start < end:
            raise ValueError("two of its tensors overlap")
    named, notes = name_tensorflow(tensors, graph)
    notes += counted(other, "that are not numbers", "left out")
    notes += counted(parts, "that are stored in slices", "left out")
    return TensorStore(file, named, notes, size=file.size + shards.size)


def _shard_count(value: bytes) -> int:
    """How many files of elements the header says there are."""
    header = message_of(value)
    if any(field.wire == LENGTH for field in header[1]):
        what = "this is a checkpoint of TensorFlow's first format, of before version 0.12"
        remedy = "load it in TensorFlow 1 and save it again with tf.train.Saver"
        raise CheckpointError(what, remedy=remedy)
    if header.value(2):
        what = "its numbers are big-endian, which is not read"
        raise CheckpointError(what, remedy="save it elsewhere")
    count = header.value(1, default=1)
    if not 0 < count <= MAX_SHARDS:
        raise ValueError(f"it has {count} files of elements")
    return count


def _text(file: Bytes, offset: int, size: int) -> bytes:
    """The only text of a scalar: its length, the sum of the lengths, and its bytes."""
    if size > file.size - offset:
        raise ValueError("its graph of objects reaches beyond its file")
    content = Cursor(file, offset)
    length = content.varint()
    content.take(4)
    return content.take(max(0, min(length, offset + size - content.position)))
