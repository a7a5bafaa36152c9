"""OCDBT, the key-value store in which Orbax keeps its arrays: a B+ tree in a directory of files.

``manifest.ocdbt`` names the root of the latest version; nodes and long values lie in data files
that the nodes name relative to the directory
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html, "Storage format"). Every path is
opened through the directory, so that none leads outside it. CRC-32C sums are not verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memcurse_cli.checkpoints.untrusted.compression import decompress_zstd
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import ByteRange, Bytes, Cursor, InlineBytes
from memcurse_cli.checkpoints.untrusted.source import DataFile, LocalDirectory

MANIFEST = "manifest.ocdbt"
MANIFEST_MAGIC = b"\x0c\xdb\x3a\x2a"
NODE_MAGIC = b"\x0c\xdb\x20\xde"
MAX_MANIFEST_BYTES = 1 << 24
# What all nodes that are visited may have together.
MAX_TREE_BYTES = 1 << 28
MAX_NODES = 100_000
MAX_KEYS = 1_000_000
MAX_KEY_LENGTH = 4096
MAX_KEY_BYTES = 1 << 26
_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class _Node:
    """A B+ tree node that is still to be read."""

    path: str
    base: str
    offset: int
    length: int
    height: int
    prefix: bytes


class Ocdbt:
    """The keys of the latest version and where their values lie.

    Attributes:
        values: by key; a value is read when it is asked for.
        files: the data files that were named.

    Raises:
        ValueError: with the fault as a clause; the store is damaged or beyond a limit.
        CheckpointError: a data file is missing or leads outside the directory.
    """

    def __init__(self, directory: LocalDirectory) -> None:
        self._directory = directory
        self.files: dict[str, DataFile] = {}
        self.values: dict[str, Bytes] = {}
        self._tree_bytes = 0
        pending = [self._root()]
        visited = 0
        while pending:
            visited += 1
            if visited > MAX_NODES:
                raise ValueError(f"its tree has more than {MAX_NODES} nodes")
            pending.extend(self._children(pending.pop()))

    def _root(self) -> _Node:
        manifest = DataFile(self._directory, MANIFEST)
        if manifest.size > MAX_MANIFEST_BYTES:
            raise ValueError(f"{MANIFEST} has {manifest.size} bytes")
        body = _body(manifest.read(0, manifest.size), MANIFEST_MAGIC, MAX_MANIFEST_BYTES)
        body.take(16)  # the store's identity
        if _varint(body):
            raise ValueError("its versions are spread over numbered manifests, which is not read")
        _varint(body)
        _varint(body)
        body.take(1)
        if _varint(body):
            body.take(4)  # the level of compression
        files = _data_files(body)
        count = _count(body)
        _varints(body, count)  # generations, the latest last
        heights = list(body.take(count))
        indices, offsets, lengths = (_varints(body, count) for _ in range(3))
        if not count:
            raise ValueError("it has no version")
        path, base = _chosen(files, indices[-1])
        return _Node(path, base, offsets[-1], lengths[-1], heights[-1], b"")

    def _children(self, node: _Node) -> Iterator[_Node]:
        content = self._file(node.path).read(node.offset, self._charged(node.length))
        body = _body(content, NODE_MAGIC, MAX_TREE_BYTES - self._tree_bytes)
        self._charged(body.left)
        if body.number(1) != node.height:
            raise ValueError("a node of its tree is not of the height that its parent says")
        files = [(node.base + path, node.base + base) for path, base in _data_files(body)]
        count = _count(body)
        prefixes = [0, *_varints(body, count - 1)] if count else []
        suffixes = _varints(body, count)
        if node.height:
            common = _varints(body, count)
            keys = _keys(body, prefixes, suffixes)
            indices, offsets, lengths = (_varints(body, count) for _ in range(3))
            for i, key in enumerate(keys):
                path, base = _chosen(files, indices[i])
                prefix = node.prefix + key[: common[i]]
                yield _Node(path, base, offsets[i], lengths[i], node.height - 1, prefix)
            return
        keys = _keys(body, prefixes, suffixes)
        lengths, kinds = _varints(body, count), _varints(body, count)
        stored = [i for i in range(count) if kinds[i]]
        indices, offsets = _varints(body, len(stored)), _varints(body, len(stored))
        for i, index, offset in zip(stored, indices, offsets, strict=True):
            file = self._file(_chosen(files, index)[0])
            # Were the same bytes a million values, a small file could claim any amount of memory.
            file.claimed += lengths[i]
            if file.claimed > file.size:
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

    def _file(self, path: str) -> DataFile:
        return self.files.setdefault(path, DataFile(self._directory, path))


def _body(content: bytes | bytearray, magic: bytes, limit: int) -> Cursor:
    """What stands between a node's header and its checksum, decompressed."""
    header = Cursor(InlineBytes(content))
    if header.take(4) != magic:
        raise ValueError("a node or the manifest does not begin with its mark")
    length, version, compression = header.number(8), _varint(header), _varint(header)
    if length != len(content):
        raise ValueError(f"a node or the manifest claims {length} bytes and has {len(content)}")
    if version or compression > 1:
        raise ValueError("a node or the manifest is of an unknown version or compression")
    body = bytes(content[header.position : -_CHECKSUM_BYTES])
    return Cursor(InlineBytes(decompress_zstd(body, limit) if compression else body))


def _varint(cursor: Cursor) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = cursor.number(1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("it has an integer of more than 64 bits")


def _varints(cursor: Cursor, count: int) -> list[int]:
    return [_varint(cursor) for _ in range(count)]


def _count(cursor: Cursor) -> int:
    """The number of rows of a table, each of which has a byte at least."""
    count = _varint(cursor)
    if count > cursor.left:
        raise ValueError(f"a table claims {count} rows in {cursor.left} bytes")
    return count


def _keys(cursor: Cursor, prefixes: list[int], suffixes: list[int]) -> list[bytes]:
    """Texts of which each shares the first bytes of the one before."""
    keys: list[bytes] = []
    previous, total = b"", 0
    for prefix, suffix in zip(prefixes, suffixes, strict=True):
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
    count = _count(cursor)
    prefixes = [0, *_varints(cursor, count - 1)] if count else []
    suffixes, bases = _varints(cursor, count), _varints(cursor, count)
    paths = _keys(cursor, prefixes, suffixes)
    return [
        (path.decode("utf-8", "replace"), path[:base].decode("utf-8", "replace"))
        for path, base in zip(paths, bases, strict=True)
    ]


def _chosen(files: list[tuple[str, str]], index: int) -> tuple[str, str]:
    if index >= len(files):
        raise ValueError(f"it refers to data file {index} of {len(files)}")
    return files[index]
