"""Orbax directories: ``_METADATA`` names the arrays of a tree, zarr holds them.

The arrays lie in one OCDBT store (``manifest.ocdbt`` and ``d/``) or, in the older layout, in one
subdirectory each; their names join the keys of the tree with dots
(orbax/checkpoint/_src/handlers/base_pytree_checkpoint_handler.py).

OCDBT is a B+ tree of keys and values: ``manifest.ocdbt`` names the root of the latest version;
nodes and long values lie in data files that the nodes name relative to the directory
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html, "Storage format"). No path leads
outside it; CRC-32C sums are not verified.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, product
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np

from memcurse_cli.checkpoints.open import holds
from memcurse_cli.checkpoints.select import (
    MAX_DEPTH,
    MAX_TENSORS,
    OPTIMIZER_CONTAINERS,
    Path,
    name_jax,
    unique,
)
from memcurse_cli.checkpoints.store import (
    ELEMENT_TYPES,
    Array,
    LazyTensor,
    Shape,
    TensorSpec,
    TensorStore,
    assembled,
    decode,
    element_bytes,
)
from memcurse_cli.checkpoints.untrusted.archive import check_ratio, decompress_zstd, inflate
from memcurse_cli.checkpoints.untrusted.names import MAX_JSON_BYTES, about, parse_object, printable
from memcurse_cli.checkpoints.untrusted.source import (
    ByteRange,
    Bytes,
    Cursor,
    DataFile,
    File,
    FilesBeside,
    InlineBytes,
    LocalDirectory,
    directory_here,
    naturals,
)
from memcurse_cli.errors import CheckpointError

# Zarr arrays of version 2 and 3, a JSON description and one value for each chunk of the grid, as
# far as TensorStore writes them for Orbax; in version 3 also several chunks in one value:
# https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html and …/v3/core/index.html.
MAX_CHUNKS = 1_000_000
# A chunk that is not stored has the fill value; this bounds what such chunks may allocate.
MAX_FILLED_ELEMENTS = 1 << 24
VERSION_2, VERSION_3 = ".zarray", "zarr.json"
DECOMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "zstd": decompress_zstd,
    "gzip": inflate,
    "zlib": inflate,
}
_TYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16)")
_ABSENT = [2**64 - 1, 2**64 - 1]


class _Encoding(NamedTuple):
    """How the elements of one chunk become bytes."""

    dtype: str
    big_endian: bool = False
    fortran: bool = False
    compression: str = ""
    checksum: bool = False

    def decode(self, content: bytes, shape: Shape) -> Array:
        size = math.prod(shape) * element_bytes(self.dtype)
        if self.checksum:
            content = content[:-_CHECKSUM_BYTES]
        if self.compression:
            content = DECOMPRESSORS[self.compression](content, size)
        if len(content) != size:
            raise ValueError(f"a chunk has {len(content)} bytes and needs {size}")
        return decode(content, self.dtype, shape, self.big_endian, self.fortran)


# What the names of chunks begin with, what joins their parts, the chunks' shape and encoding.
_Layout = tuple[str, Any, Shape, _Encoding]


class ZarrArray:
    """One array: its description, and what finds the bytes of a key, None where there are none."""

    def __init__(self, description: dict[str, Any], find: Find) -> None:
        version = description.get("zarr_format")
        if version not in (2, 3):
            raise ValueError(f"it has the unknown zarr_format {printable(str(version), 40)}")
        self._find, self._fill = find, description.get("fill_value")
        shape = naturals(description.get("shape"), "it has no valid shape")
        self._inner: Shape | None = None  # the chunks of a shard
        self._prefix, self._separator, self._chunk, self._encoding = (
            _version_2(description) if version == 2 else self._version_3(description)
        )
        if self._separator not in (".", "/"):
            raise ValueError("its chunks have names that are not read")
        # Larger ones than the array would let a short description claim any amount of memory.
        if len(self._chunk) != len(shape) or any(
            n > max(1, size) for n, size in zip(self._chunk, shape, strict=True)
        ):
            raise ValueError("its chunks do not fit its shape")
        self.spec = TensorSpec.plain(shape, self._encoding.dtype)

    def _version_3(self, description: dict[str, Any]) -> _Layout:
        dtype, _ = _element_type(description.get("data_type"))
        grid, settings = _named(description.get("chunk_grid"))
        if grid != "regular":
            raise ValueError("its chunks do not form a regular grid")
        chunk = _chunk_shape(settings.get("chunk_shape"))
        keys, how = _named(description.get("chunk_key_encoding"))
        prefix, separator = ("c", "/") if keys == "default" else ("", ".")
        separator = how.get("separator", separator)
        codecs = description.get("codecs")
        names = [_named(codec) for codec in codecs] if isinstance(codecs, list) else []
        if len(names) == 1 and names[0][0] == "sharding_indexed":
            settings = names[0][1]
            codecs = settings.get("codecs")
            self._inner = inner = _chunk_shape(settings.get("chunk_shape"))
            if len(inner) != len(chunk) or any(a % b for a, b in zip(chunk, inner, strict=True)):
                raise ValueError("the chunks of a shard do not fill it")
            index = _codecs(settings.get("index_codecs"), "uint64")
            if index.big_endian or index.compression:
                raise ValueError("the index of a shard is encoded in a way that is not read")
            self._index_first = settings.get("index_location", "end") == "start"
            self._index_checksum = index.checksum
        return prefix, separator, chunk, _codecs(codecs, dtype)

    def __call__(self) -> Array:
        """The elements; ValueError where a chunk of them is corrupt."""
        size = self._chunk if self._inner is None else self._inner
        found = list(self._chunks())
        stored = len(found) * math.prod(size)
        count = math.prod(self.spec.shape)
        if count - stored > MAX_FILLED_ELEMENTS:
            raise ValueError(f"it claims {printable(str(count), 40)} elements and stores {stored}")
        check_ratio(self.spec.bytes, sum(content.size for _, content in found))
        blocks = (
            (start, self._encoding.decode(content.first(content.size), size))
            for start, content in found
        )
        # Orbax may leave out chunks whose elements all have the fill value.
        return assembled(self.spec, blocks, _filled(self._fill) if stored < count else 0)

    def _chunks(self) -> Iterator[tuple[Shape, Bytes]]:
        """Where each stored chunk begins, and its bytes."""
        names = [self._prefix] if self._prefix else []
        for index, start in _grid(self.spec.shape, self._chunk):
            content = self._find(self._separator.join([*names, *map(str, index)]) or "0")
            if content is not None and self._inner is None:
                yield start, content
            elif content is not None and self._inner is not None:
                for inside, part in self._parts(content, self._inner):
                    yield tuple(a + b for a, b in zip(start, inside, strict=True)), part

    def _parts(self, shard: Bytes, inner: Shape) -> Iterator[tuple[Shape, Bytes]]:
        starts = [start for _, start in _grid(self._chunk, inner)]
        size = 16 * len(starts)
        total = size + (_CHECKSUM_BYTES if self._index_checksum else 0)
        if shard.size < total:
            raise ValueError("a shard is shorter than its index")
        table = shard.read(0 if self._index_first else shard.size - total, size)
        pairs = np.frombuffer(table, "<u8").reshape(-1, 2).tolist()
        stored = [(at, *pair) for at, pair in zip(starts, pairs, strict=True) if pair != _ABSENT]
        if sum(length for *_, length in stored) > shard.size:
            raise ValueError("the chunks of a shard overlap or reach beyond it")
        for start, offset, length in stored:
            # A chunk beyond the array's edge belongs to no element.
            yield start, shard.part(offset, length, "a chunk of a shard")


def _grid(shape: Shape, chunk: Shape) -> Iterator[tuple[Shape, Shape]]:
    """The number of each chunk along each axis, and where it begins."""
    counts = [-(-size // part) for size, part in zip(shape, chunk, strict=True)]
    if math.prod(counts) > MAX_CHUNKS:
        raise ValueError(f"it has more than {MAX_CHUNKS} chunks")
    for index in product(*map(range, counts)):
        yield index, tuple(i * n for i, n in zip(index, chunk, strict=True))


def _version_2(description: dict[str, Any]) -> _Layout:
    chunk = _chunk_shape(description.get("chunks"))
    if description.get("filters"):
        raise ValueError("its elements are filtered, which is not read")
    dtype, big_endian = _element_type(description.get("dtype"))
    compressor = description.get("compressor")
    name = compressor.get("id") if isinstance(compressor, dict) else None
    compression = "" if compressor is None else _known_compression(name)
    encoding = _Encoding(dtype, big_endian, description.get("order") == "F", compression)
    return "", description.get("dimension_separator", "."), chunk, encoding


def _codecs(codecs: object, dtype: str) -> _Encoding:
    names = [_named(codec) for codec in codecs] if isinstance(codecs, list) else []
    if not names or names[0][0] != "bytes":
        raise ValueError("its codecs do not begin with bytes, which is not read")
    big_endian = names[0][1].get("endian") == "big"
    checksum = names[-1][0] == "crc32c"
    middle = [name for name, _ in (names[1:-1] if checksum else names[1:])]
    if len(middle) > 1:
        raise ValueError("its chunks are compressed twice, which is not read")
    compression = _known_compression(middle[0]) if middle else ""
    return _Encoding(dtype, big_endian, compression=compression, checksum=checksum)


def _named(entry: object) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        configuration = entry.get("configuration", {})
        if isinstance(configuration, dict):
            return entry["name"], configuration
    raise ValueError("its description is malformed")


def _element_type(dtype: object) -> tuple[str, bool]:
    """The name of a type, as NumPy writes it or in full, and whether it is big-endian."""
    if isinstance(dtype, str):
        if _TYPE.fullmatch(dtype):
            return np.dtype(dtype).name, dtype.startswith(">")
        if dtype in ELEMENT_TYPES:  # TensorStore's extension: bfloat16, float8_e4m3fn
            return dtype, False
    raise ValueError(f"it has the element type {printable(str(dtype), 40)}, which is not read")


def _known_compression(name: object) -> str:
    if not isinstance(name, str) or name not in DECOMPRESSORS:
        what = f"its chunks are compressed by {printable(str(name), 40)}"
        raise ValueError(f"{what}; {', '.join(DECOMPRESSORS)} are read")
    return name


def _chunk_shape(values: object) -> Shape:
    chunk = naturals(values, "its chunks have no valid shape")
    if 0 in chunk:
        raise ValueError("it has chunks without elements")
    return chunk


def _filled(value: object) -> complex:
    if value is None:
        return 0
    if isinstance(value, list) and len(value) == 2:
        return complex(_real(value[0]), _real(value[1]))
    return _real(value)


def _real(value: object) -> float:
    # Python's float knows the three texts that stand for numbers which JSON has not.
    if isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise ValueError(f"it has the fill value {printable(str(value), 40)}, which is not read")


MANIFEST = "manifest.ocdbt"
MANIFEST_MAGIC = b"\x0c\xdb\x3a\x2a"
NODE_MAGIC = b"\x0c\xdb\x20\xde"
MAX_MANIFEST_BYTES = 1 << 24
# What all nodes that are visited may have together.
MAX_TREE_BYTES = 1 << 28
MAX_TREE_NODES = 100_000
MAX_KEYS = 1_000_000
MAX_KEY_LENGTH = 4096
MAX_KEY_BYTES = 1 << 26
_CHECKSUM_BYTES = 4
Find = Callable[[str], Bytes | None]


class _Node(NamedTuple):
    """A B+ tree node that is still to be read."""

    path: str
    base: str
    offset: int
    length: int
    height: int
    prefix: bytes


class Ocdbt:
    """The keys of the latest version and where their values lie."""

    def __init__(self, directory: LocalDirectory) -> None:
        self._directory = directory
        self._files = FilesBeside(directory)
        self._claimed: Counter[str] = Counter()  # the bytes of all values in each of the files
        self.values: dict[str, Bytes] = {}
        self._tree_bytes = 0
        pending = [self._root()]
        visited = 0
        while pending:
            visited += 1
            if visited > MAX_TREE_NODES:
                raise ValueError(f"its tree has more than {MAX_TREE_NODES} nodes")
            pending.extend(self._children(pending.pop()))

    def _root(self) -> _Node:
        manifest = DataFile(self._directory, MANIFEST)
        content = manifest.whole(MAX_MANIFEST_BYTES, MANIFEST)
        body = _body(content, MANIFEST_MAGIC, MAX_MANIFEST_BYTES)
        body.take(16)  # the store's identity
        if body.varint():
            raise ValueError("its versions are spread over numbered manifests, which is not read")
        _varints(body, 2)
        body.take(1)
        if body.varint():
            body.take(4)  # the level of compression
        files = _data_files(body)
        count = _count(body)
        _varints(body, count)  # generations, the latest last
        heights = list(body.take(count))
        places = _places(body, count, files)
        if not count:
            raise ValueError("it has no version")
        return _Node(*places[-1], heights[-1], b"")

    def _children(self, node: _Node) -> Iterator[_Node]:
        content = self._files[node.path].read(node.offset, self._charged(node.length))
        body = _body(content, NODE_MAGIC, MAX_TREE_BYTES - self._tree_bytes)
        self._charged(body.left)
        if body.number(1) != node.height:
            raise ValueError("a node of its tree is not of the height that its parent says")
        files = [(node.base + path, node.base + base) for path, base in _data_files(body)]
        count, pieces = _pieces(body)
        common = _varints(body, count) if node.height else []
        keys = _keys(body, pieces)
        if node.height:
            for key, length, place in zip(keys, common, _places(body, count, files), strict=True):
                yield _Node(*place, node.height - 1, node.prefix + key[:length])
            return
        lengths, kinds = _varints(body, count), _varints(body, count)
        stored = [i for i in range(count) if kinds[i]]
        indices, offsets = _varints(body, len(stored)), _varints(body, len(stored))
        for i, index, offset in zip(stored, indices, offsets, strict=True):
            path, _ = _chosen(files, index)
            file = self._files[path]
            # Were the same bytes a million values, a small file could claim any amount of memory.
            self._claimed[path] += lengths[i]
            if self._claimed[path] > file.size:
                raise ValueError("its values overlap or reach beyond their data file")
            self._keep(node.prefix + keys[i], ByteRange(file, offset, lengths[i]))
        for i in range(count):
            if not kinds[i]:
                self._keep(node.prefix + keys[i], InlineBytes(body.take(lengths[i])))

    def _keep(self, key: bytes, value: Bytes) -> None:
        name = key.decode("utf-8", "replace")
        if name in self.values:
            raise ValueError(f"the key {printable(name, 60)} stands twice")
        self._charged(len(name))
        if len(self.values) >= MAX_KEYS:
            raise ValueError(f"it has more than {MAX_KEYS} keys")
        self.values[name] = value

    def _charged(self, size: int) -> int:
        self._tree_bytes += size
        if self._tree_bytes > MAX_TREE_BYTES:
            raise ValueError(f"its tree has more than {MAX_TREE_BYTES} bytes")
        return size


def _body(content: bytes | bytearray, magic: bytes, limit: int) -> Cursor:
    """What stands between a node's header and its checksum, decompressed."""
    header = Cursor(content)
    if header.take(4) != magic:
        raise ValueError("a node or the manifest does not begin with its mark")
    length, version, compression = header.number(8), header.varint(), header.varint()
    if length != len(content):
        raise ValueError(f"a node or the manifest claims {length} bytes and has {len(content)}")
    if version or compression > 1:
        raise ValueError("a node or the manifest is of an unknown version or compression")
    body = bytes(content[header.position : -_CHECKSUM_BYTES])
    return Cursor(decompress_zstd(body, limit) if compression else body)


def _varints(cursor: Cursor, count: int) -> list[int]:
    return [cursor.varint() for _ in range(count)]


def _count(cursor: Cursor) -> int:
    """The number of rows of a table, each of which has a byte at least."""
    count = cursor.varint()
    if count > cursor.left:
        raise ValueError(f"a table claims {count} rows in {cursor.left} bytes")
    return count


def _places(
    cursor: Cursor, count: int, files: list[tuple[str, str]]
) -> list[tuple[str, str, int, int]]:
    """Path, base, offset and length of each row's node."""
    indices, offsets, lengths = (_varints(cursor, count) for _ in range(3))
    rows = zip(indices, offsets, lengths, strict=True)
    return [(*_chosen(files, index), offset, length) for index, offset, length in rows]


def _pieces(cursor: Cursor) -> tuple[int, Iterable[tuple[int, int]]]:
    """How many texts follow, and of each what it shares with the one before, and what it adds."""
    count = _count(cursor)
    shared = [0, *_varints(cursor, count - 1)] if count else []
    return count, zip(shared, _varints(cursor, count), strict=True)


def _keys(cursor: Cursor, pieces: Iterable[tuple[int, int]]) -> list[bytes]:
    """Texts of which each shares the first bytes of the one before."""
    keys: list[bytes] = []
    previous, total = b"", 0
    for prefix, suffix in pieces:
        if prefix > len(previous) or prefix + suffix > MAX_KEY_LENGTH:
            raise ValueError("a key or path is longer than allowed or shares more than there is")
        previous = previous[:prefix] + cursor.take(suffix)
        total += len(previous)
        if total > MAX_KEY_BYTES:
            raise ValueError(f"the keys of a node have more than {MAX_KEY_BYTES} bytes")
        keys.append(previous)
    return keys


def _data_files(cursor: Cursor) -> list[tuple[str, str]]:
    """The data files that a node names, each with the part that its own nodes' paths begin with."""
    count, pieces = _pieces(cursor)
    bases = _varints(cursor, count)
    return [
        (path.decode("utf-8", "replace"), path[:base].decode("utf-8", "replace"))
        for path, base in zip(_keys(cursor, pieces), bases, strict=True)
    ]


def _chosen(files: list[tuple[str, str]], index: int) -> tuple[str, str]:
    if index >= len(files):
        raise ValueError(f"it refers to data file {index} of {len(files)}")
    return files[index]


TREE = "_METADATA"
MAX_DESCRIPTION_BYTES = 1 << 20
MAX_FILES = 1_000_000
# What Orbax notes of leaves that it does not store as arrays.
NO_ARRAYS = ("None", "Dict", "List", "Tuple", "NamedTuple", "string", "")


def open_file(file: File) -> TensorStore:
    """Read the metadata and the descriptions of the arrays."""
    directory, metadata = _located(file)
    if MANIFEST in directory.names:
        keys = Ocdbt(directory).values
        find: Find = keys.get
    else:
        # The file of a key such as ``params.cell.kernel/.zarray``.
        keys, find = {}, lambda key: DataFile(directory, key) if directory.has(key) else None
    if metadata:
        paths = _paths(metadata)
    else:  # an OCDBT store alone
        endings = (f"/{VERSION_2}", f"/{VERSION_3}")
        names = [key.rpartition("/")[0] for key in keys if key.endswith(endings)]
        paths = {tuple(name.split(".")): name for name in names}
    found = _without_value(_arrays(paths, find))
    root = directory.locate(directory.names[0]).parent
    files = (FilePath(at, name) for at, _, names in os.walk(root) for name in names)
    size = sum(path.lstat().st_size for path in islice(files, MAX_FILES))
    return TensorStore(file, *name_jax(found), size=size, contents=found)


def _located(file: File) -> tuple[LocalDirectory, dict[str, Any]]:
    """The directory of the arrays and what describes them, starting at any of its files."""
    directory = directory_here(file)
    described = TREE in directory.names
    if file.first(4) == MANIFEST_MAGIC:
        return directory, _json(DataFile(directory, TREE)) if described else {}
    metadata = _json(file)
    if "tree_metadata" in metadata:
        return directory, metadata
    if described:
        return directory, _json(DataFile(directory, TREE))
    item = _item(directory)
    return directory.inside(item), _json(DataFile(directory, f"{item}/{TREE}"))


def _item(directory: LocalDirectory) -> str:
    """The only item of a step that holds arrays and is not an optimiser's."""
    items = [name for name in directory.names if holds(directory, f"{name}/{TREE}")]
    weights = [name for name in items if name not in OPTIMIZER_CONTAINERS]
    if not items:
        what = "an Orbax checkpoint's metadata without its arrays"
        raise CheckpointError(what, remedy="copy the whole folder")
    if len(weights) != 1:
        listed = ", ".join(printable(name, 60) for name in items[:4])
        what = f"the step holds several items: {listed}"
        raise CheckpointError(what, remedy="name the folder of one of them")
    return weights[0]


def _json(file: Bytes) -> dict[str, Any]:
    return parse_object(file.whole(MAX_JSON_BYTES, "its metadata"))


def _paths(metadata: Mapping[str, Any]) -> dict[Path, str]:
    """The keys that lead to each array of the tree, and the name that it is stored under."""
    leaves = metadata.get("tree_metadata")
    if not isinstance(leaves, dict) or len(leaves) > MAX_TENSORS:
        raise ValueError("its tree_metadata is not an object that names arrays")
    paths: dict[Path, str] = {}
    for leaf in leaves.values():
        entries = leaf.get("key_metadata") if isinstance(leaf, dict) else None
        value = leaf.get("value_metadata") if isinstance(leaf, dict) else None
        if not isinstance(entries, list) or not isinstance(value, dict) or not entries:
            raise ValueError("its tree_metadata describes an array wrongly")
        keys = [entry.get("key") if isinstance(entry, dict) else None for entry in entries]
        if len(keys) > MAX_DEPTH or not all(isinstance(key, str) for key in keys):
            raise ValueError("its tree_metadata names an array wrongly")
        path = tuple(str(key) for key in keys)
        if path in paths:
            raise ValueError(f"the array {printable('.'.join(path), 60)} stands twice")
        if value.get("value_type") not in NO_ARRAYS:
            paths[path] = ".".join(path)
    return paths


def _arrays(paths: Mapping[Path, str], find: Find) -> dict[Path, LazyTensor]:
    arrays = {path: _array(name, find) for path, name in paths.items()}
    found = {path: LazyTensor(array.spec, array) for path, array in arrays.items() if array}
    missing = [paths[path] for path in paths if path not in found]
    if missing and not found:
        raise ValueError("its metadata is there and none of its arrays is")
    if missing:
        shown = printable(missing[0], 60)
        raise ValueError(f"the array {shown} is missing (and {len(missing) - 1} more)")
    return found


def _array(name: str, find: Find) -> ZarrArray | None:
    description = find(f"{name}/{VERSION_2}") or find(f"{name}/{VERSION_3}")
    if description is None:
        return None
    with about(f"{printable(name, 60)}:"):
        described = parse_object(description.whole(MAX_DESCRIPTION_BYTES, "its description"))
        return ZarrArray(described, lambda key: find(f"{name}/{key}"))


def _without_value(arrays: Mapping[Path, LazyTensor]) -> dict[Path, LazyTensor]:
    """The paths of Flax's nnx, whose variables each hold one leaf called ``value``, without it."""
    parents = Counter(path[:-1] for path in arrays)
    return unique(
        (path[:-1] if path[1:] and path[-1] == "value" and parents[path[:-1]] == 1 else path, array)
        for path, array in arrays.items()
    )
