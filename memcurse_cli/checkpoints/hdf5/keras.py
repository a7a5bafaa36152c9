"""Keras's files: HDF5 weights and models of every version, .keras archives, and shards.

libhdf5 opens other files by itself and loads plug-ins by name, and a damaged file can make it loop
for ever: what Keras and h5py write is read here by range, with every step bounded. A model's
configuration, whose classes Keras would import, stays text, for whoever needs its activations.

Keras 3 stores ``layers/lstm_1/cell/vars/2`` by the layer's class, and the name that the user gave
the layer in the attribute ``name`` of its group ``vars``; older versions store
``model_weights/encoder/encoder/lstm_cell/kernel:0``. ``save_weights(…, max_shard_size=…)`` writes
``model.weights.json``, which names the file of each variable, and the shards beside it.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress

from memcurse_cli.checkpoints.hdf5.dataset import (
    LAYOUT,
    LINK,
    LINK_INFO,
    LINK_NAMES,
    SYMBOL_TABLE,
    Dataset,
    Fields,
    Messages,
    dense_objects,
    first_messages,
    read_messages,
    structure,
    text_attribute,
    tree_entries,
    unpack,
)
from memcurse_cli.checkpoints.safetensors import read_index
from memcurse_cli.checkpoints.select import MAX_DEPTH, MAX_TENSORS, Leaf, Path, select, unique
from memcurse_cli.checkpoints.store import LazyTensor, TensorStore
from memcurse_cli.checkpoints.untrusted.archive import Archive
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, about, parse_object, printable
from memcurse_cli.checkpoints.untrusted.source import File, InlineBytes, Part

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
LARGEST_HEAP = 100_000_000
# A header is read once or twice, and what many of them share not much more often.
MAX_READINGS = 16
READ_COST = 256
_HARD, _SOFT, _EXTERNAL = 0, 1, 64
_SYMBOL = struct.Struct("<QQI20x")


class Metered(Part):
    """A file of which ``left`` bytes may be read: lists that groups share are read for each."""

    def __init__(self, file: File) -> None:
        super().__init__(file, file)
        self.left: float = MAX_READINGS * file.size + LARGEST_HEAP

    def _read(self, offset: int, length: int) -> bytes | bytearray:
        self.left -= length + READ_COST
        if self.left < 0:
            raise ValueError("its headers refer to one another without end")
        return super()._read(offset, length)


class Hdf5File:
    """The groups and datasets of an HDF5 file.

    ``datasets`` has every one of numbers by the names that lead to it, in the order of the file,
    ``groups`` the ``name`` attribute or "" by path, and ``notes`` what was left out.
    """

    def __init__(self, file: File) -> None:
        self._file = metered = Metered(file)
        self.groups: dict[Path, str] = {}
        self._headers: dict[Path, Messages] = {}
        self._found: list[tuple[int, Path, LazyTensor]] = []
        self._at: dict[int, LazyTensor] = {}
        self._soft_links: list[Path] = []
        self._others: list[Path] = []
        self._walk(self._root())
        metered.left = math.inf  # elements may be read again
        # Headers are written one after another, so that their addresses give the model's order.
        self._found.sort(key=lambda entry: entry[:2])
        self.datasets = unique((path, tensor) for _, path, tensor in self._found)
        self.notes = [
            f"{what}, {len(paths)} in all (such as {_shown(paths[0])}): {verdict}"
            for paths, what, verdict in (
                (self._soft_links, "soft links", "not followed"),
                (self._others, "datasets of another type than real numbers", "left out"),
            )
            if paths
        ]

    def attribute(self, name: str, path: Path = ()) -> str:
        """A text attribute of the root or of another group; "" where there is none."""
        return text_attribute(self._file, self._headers.get(path, []), name)

    def _root(self) -> int:
        (version,) = self._file.read(8, 1)
        if version > 3:
            raise ValueError(f"its superblock has version {version}")
        # Versions 0 and 1 have more before the addresses, and two caches after them.
        layout = "9x2sxQ8xQQ" if version > 1 else f"13x2s{9 + 4 * version}xQ8xQ16xQ"
        sizes, base, end, root = structure(self._file, 0, b"", layout, "superblock")
        if sizes != b"\x08\x08":
            raise ValueError("its addresses have not 8 bytes")
        if base != 0:
            raise ValueError("it does not begin at its first byte")
        if end > self._file.size:
            raise ValueError(f"it is truncated at byte {self._file.size} of {end}")
        return int(root)

    def _walk(self, root: int) -> None:
        pending: list[tuple[Path, int]] = [((), root)]
        seen: set[int] = set()
        while pending:
            path, address = pending.pop()
            # A dataset may have two names; a group, which may be within itself, is read once.
            if address in seen and address not in self._at:
                continue
            seen.add(address)
            if len(seen) + len(self._found) - len(self._at) > MAX_TENSORS:
                raise ValueError(f"it holds more than {MAX_TENSORS} objects")
            if len(path) > MAX_DEPTH or sum(map(len, path)) > MAX_NAME_LENGTH:
                deep = f"its groups are nested more than {MAX_DEPTH} deep"
                raise ValueError(f"{deep}, or a name has more than {MAX_NAME_LENGTH} characters")
            if address not in self._at:
                with about(f"at {_shown(path)}:"):
                    messages = read_messages(self._file, address)
                    if LAYOUT not in first_messages(messages):
                        self._headers[path] = messages
                        self.groups[path] = text_attribute(self._file, messages, "name")
                        links = self._links(path, messages)
                        pending += [((*path, name), child) for name, child in links]
                        continue
                    dataset = Dataset(self._file, messages)
                if dataset.spec is None:
                    self._others.append(path)
                    continue
                self._at[address] = LazyTensor(dataset.spec, dataset.load, identity=dataset)
            self._found.append((address, path, self._at[address]))

    def _links(self, path: Path, messages: Messages) -> Iterator[tuple[str, int]]:
        """The names in a group and the addresses of what they stand for."""
        held = first_messages(messages)
        if SYMBOL_TABLE in held:
            yield from self._symbols(path, *unpack("QQ", held[SYMBOL_TABLE]))
        if LINK_INFO in held:
            for body in dense_objects(self._file, held[LINK_INFO], 8, LINK_NAMES, 4):
                if body is None:
                    raise ValueError("a name is stored apart from the others")
                yield from self._link(path, body)
        for kind, body in messages:
            if kind == LINK:
                yield from self._link(path, body)

    def _link(self, path: Path, body: bytes) -> Iterator[tuple[str, int]]:
        fields = Fields(body)
        version, flags = fields.unpack("BB")
        if version != 1:
            raise ValueError("it has a link of an unknown version")
        link = fields.number(1) if flags & 8 else _HARD
        fields.position += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
        name = _name(fields.take(fields.number(1 << (flags & 3))))
        if link == _SOFT:
            self._soft_links.append((*path, name))
        elif link == _HARD:
            yield name, fields.number(8)
        else:
            kind = "a link to another file" if link == _EXTERNAL else "a link of an unknown kind"
            raise ValueError(f"{printable(name, 80)} is {kind}, which is not followed")

    def _symbols(self, path: Path, root: int, names: int) -> Iterator[tuple[str, int]]:
        size, start = structure(self._file, names, b"HEAP", "4xQ8xQ", "heap of names")
        if size > LARGEST_HEAP:
            raise ValueError(f"there is no heap of names at byte {names}")
        heap = bytes(self._file.read(start, size))
        # The key before each child is not needed, nor the one after the last.
        for _, address in tree_entries(self._file, root, 0, "QQ", "list of names"):
            (used,) = structure(self._file, address, b"SNOD", "2xH", "list of names")
            table = self._file.read(address + 8, _SYMBOL.size * used)
            for offset, child, cached in _SYMBOL.iter_unpack(table):
                end = heap.find(b"\0", offset, offset + MAX_NAME_LENGTH + 1)
                if end < 0:
                    raise ValueError(f"a name has no end within {MAX_NAME_LENGTH} characters")
                name = _name(heap[offset:end])
                if cached == 2:  # the entry keeps a soft link's target
                    self._soft_links.append((*path, name))
                else:
                    yield name, child


def _name(content: bytes) -> str:
    if not content or len(content) > MAX_NAME_LENGTH:
        raise ValueError(f"a name is empty or has more than {MAX_NAME_LENGTH} characters")
    return content.decode("utf-8", "replace")


def _shown(path: Path) -> str:
    return printable("/".join(path) or "/", 80)


ARCHIVED = "model.weights.h5"
CONFIG = "model_config"
VERSION = "keras_version"
MAX_CONFIG_BYTES = 100_000_000
# The lists that Keras itself keeps a model's layers in.
LAYER_LISTS = ("layers", "_layer_checkpoint_dependencies")
WEIGHTS = "model_weights"
VARIABLES = "vars"


def name_keras(
    datasets: Mapping[Path, Leaf], groups: Mapping[Path, str]
) -> tuple[dict[str, Leaf], list[str]]:
    """The model's tensors by useful names, without the optimiser's, and notes.

    ``groups`` gives the ``name`` attribute of every group. A name that two tensors would share is
    given up for their paths in the file.
    """
    # Keras on Windows writes `layers\lstm\cell` as the name of one group.
    split = unique((_split(path), dataset) for path, dataset in datasets.items())
    selected, notes = select(split)
    # Of each layer what the user called it, or nothing.
    layers = {
        path[:-1]: name
        for path, name in ((_split(path), name) for path, name in groups.items())
        if path[-1:] == (VARIABLES,)
    }
    names = {path: "/".join(_renamed(path, layers)) for path in selected}
    uses = Counter(names.values())
    named = unique(
        (names[path] if uses[names[path]] == 1 else "/".join(path), dataset)
        for path, dataset in selected.items()
    )
    return named, notes


def _split(path: Path) -> Path:
    return tuple(part for key in path for part in key.split("\\"))


def _renamed(path: Path, layers: Mapping[Path, str]) -> list[str]:
    if VARIABLES not in path[:-1]:
        return _legacy(path)
    parts: list[str] = []
    for index, part in enumerate(path):
        here = path[: index + 1]
        if part in LAYER_LISTS and here not in layers:
            continue
        # Below a layer stand its attributes, whose names are the user's; in a list only classes.
        given = "" if path[:index] in layers else layers.get(here, "")
        parts.append(given or part)
    return parts


def _legacy(path: Path) -> list[str]:
    parts = list(path[1:] if path[0] == WEIGHTS and len(path) > 1 else path)
    # A layer's group holds the full names of its weights, and so the layer's own once more.
    again = [index for index in range(1, len(parts) - 1) if parts[index] == parts[0]]
    if again:
        del parts[: again[0]]
    name, colon, index = parts[-1].rpartition(":")
    if colon and index.isdigit():
        parts[-1] = name
    return parts


def open_file(
    file: File, size: int | None = None, more: Mapping[str, str] | None = None
) -> TensorStore:
    """Read every group and the header of every dataset.

    ``size`` is that of the checkpoint on disk where it is not the file's, ``more`` its metadata.
    """
    content = Hdf5File(file)
    tensors, notes = name_keras(content.datasets, content.groups)
    # The version stands beside the weights in the files that Keras 3 writes for Keras 2.
    version = content.attribute(VERSION) or content.attribute(VERSION, (WEIGHTS,))
    found = {CONFIG: content.attribute(CONFIG), VERSION: version}
    metadata = {key: value for key, value in found.items() if value} | dict(more or {})
    notes = [*content.notes, *notes]
    return TensorStore(file, tensors, notes, size=size, metadata=metadata, contents=content)


def open_archive(file: File, archive: Archive) -> TensorStore:
    """Read the archive's configuration as text, and the headers of its weights."""
    metadata = {}
    for name, key in (("config.json", CONFIG), ("metadata.json", VERSION)):
        if name in archive:
            metadata[key] = archive[name].first(MAX_CONFIG_BYTES).decode("utf-8", "replace")
    if VERSION in metadata:
        version: object = ""
        with suppress(ValueError):
            version = parse_object(metadata[VERSION].encode()).get(VERSION)
        metadata[VERSION] = version if isinstance(version, str) else ""
    member = archive[ARCHIVED]
    # A compressed one is inflated once, as it is read in any order.
    weights = InlineBytes(member.first(member.size)) if member.compressed else member
    return open_file(Part(weights, file), file.size, metadata)


def open_shards(file: File) -> TensorStore:
    """Read the index, and every group of its shards."""
    _, names, shards_of = read_index(file, several=True)
    datasets: dict[Path, LazyTensor] = {}
    groups: dict[Path, str] = {}
    notes: list[str] = []
    size = file.size
    with ExitStack() as shards:
        for name in names:
            shard = shards.enter_context(closing(file.directory().open(name)))
            size += shard.size
            with about(f"its shard {printable(name, 80)}:"):
                if shard.first(len(HDF5_MAGIC)) != HDF5_MAGIC:
                    raise ValueError("it is not an HDF5 file")
                content = Hdf5File(shard)
                if datasets.keys() & content.datasets.keys():
                    raise ValueError("it repeats a tensor of another")
            datasets |= content.datasets
            # A group that goes on in a second shard has its name in the first.
            groups |= {path: text for path, text in content.groups.items() if text}
            groups = dict.fromkeys(content.groups, "") | groups
            notes += content.notes
        missing = [key for key in shards_of if tuple(filter(None, key.split("/"))) not in groups]
        if missing:
            raise ValueError(f"its group {printable(missing[0], 80)} is in none of its shards")
        tensors, left_out = name_keras(datasets, groups)
        opened = shards.pop_all()
    count = "1 shard" if len(names) == 1 else f"{len(names)} shards"
    notes = [count, *dict.fromkeys(notes), *left_out]
    return TensorStore(file, tensors, notes, size=size, owned=[opened])
