"""Keras's files: HDF5 weights and models of every version, and .keras archives.

A model's configuration names classes that Keras would import and build. Here it stays text: it is
handed on as metadata, for whoever needs to know a layer's activations.

What Keras's tensors are called: the layers' own names in place of their classes'.

Keras 3 stores ``layers/lstm_1/cell/vars/2`` by the layer's class, and the name that the user gave
the layer in the attribute ``name`` of its group ``vars``. Older versions store
``model_weights/encoder/encoder/lstm_cell/kernel:0``.

Keras's sharded weights: ``model.weights.json`` names the HDF5 file of each variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from memcurse_cli.checkpoints.hdf5.file import HDF5_MAGIC, Hdf5File
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.optimizer.training_state import Path, select
from memcurse_cli.checkpoints.shards import MAX_SHARDS
from memcurse_cli.checkpoints.untrusted.archive import Archive, first_member, member_names
from memcurse_cli.checkpoints.untrusted.json_header import MAX_JSON_BYTES, parse_object
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import Directory, File
from memcurse_cli.errors import CheckpointError

Leaf = TypeVar("Leaf")

# The lists that Keras itself keeps a model's layers in.
LAYER_LISTS = ("layers", "_layer_checkpoint_dependencies")
WEIGHTS = "model_weights"
VARIABLES = "vars"


def name_keras(
    datasets: Mapping[Path, Leaf], groups: Mapping[Path, str]
) -> tuple[dict[str, Leaf], list[str]]:
    """The model's tensors by useful names, without the optimiser's, and notes.

    A name that two tensors would share is given up for their paths in the file.

    Args:
        datasets: every dataset by its path.
        groups: every group by its path, and its ``name`` attribute.

    Raises:
        ValueError: two tensors have the same path.
    """
    # Keras on Windows writes `layers\lstm\cell` as the name of one group.
    split = {_split(path): dataset for path, dataset in datasets.items()}
    selected, notes = select(split)
    given = {
        _split(path)[:-1]: name
        for path, name in groups.items()
        if name and _split(path)[-1:] == (VARIABLES,)
    }
    layers = {_split(path)[:-1] for path in groups if _split(path)[-1:] == (VARIABLES,)}
    names = {path: "/".join(_renamed(path, given, layers)) for path in selected}
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    named = {
        "/".join(path) if names[path] in shared else names[path]: dataset
        for path, dataset in selected.items()
    }
    if len(split) < len(datasets) or len(named) < len(selected):
        raise ValueError("two of its tensors have the same name")
    return named, notes


def _split(path: Path) -> Path:
    return tuple(part for key in path for part in key.split("\\"))


def _renamed(path: Path, given: Mapping[Path, str], layers: set[Path]) -> list[str]:
    if VARIABLES not in path[:-1]:
        return _legacy(path)
    parts: list[str] = []
    for index, part in enumerate(path):
        here = path[: index + 1]
        if part in LAYER_LISTS and here not in layers:
            continue
        # Below a layer stand its attributes, whose names are the user's; in a list only classes.
        in_list = path[:index] not in layers
        parts.append(given.get(here, part) if in_list else part)
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


class KerasShards:
    """The index that ``save_weights(…, max_shard_size=…)`` writes, and the shards beside it."""

    name = "Keras shards"
    extensions = (".weights.json",)
    recognised_by = "a JSON index whose weight_map names .weights.h5 files"

    def recognises(self, head: bytes, file: File) -> bool:
        """A JSON object with a ``weight_map`` of HDF5 files."""
        if not head.lstrip().startswith(b"{") or file.size > MAX_JSON_BYTES:
            return False
        content = file.read(0, file.size)
        return b'"weight_map"' in content and b'.weights.h5"' in content

    def open(self, file: File) -> LazyStore:
        """Read the index, and every group of its shards."""
        groups_of = _index(file)
        names = sorted({name for listed in groups_of.values() for name in listed})
        if len(names) > MAX_SHARDS:
            _refuse(file, f"the index names more than {MAX_SHARDS} shards")
        shards: list[File] = []
        try:
            datasets: dict[Path, LazyTensor] = {}
            groups: dict[Path, str] = {}
            notes: list[str] = []
            for name in names:
                shard = file.directory().open(name)
                shards.append(shard)
                if bytes(shard.read(0, min(shard.size, len(HDF5_MAGIC)))) != HDF5_MAGIC:
                    _refuse(file, f"its shard {printable(name, 80)} is not an HDF5 file")
                content = Hdf5File(shard)
                if datasets.keys() & content.datasets.keys():
                    _refuse(file, f"its shard {printable(name, 80)} repeats a tensor of another")
                datasets |= content.datasets
                # A group that goes on in a second shard has its name in the first.
                groups |= {path: text for path, text in content.groups.items() if text}
                groups = dict.fromkeys(content.groups, "") | groups
                notes += content.notes
            missing = [key for key in groups_of if _path(key) not in groups]
            if missing:
                _refuse(file, f"its group {printable(missing[0], 80)} is in none of its shards")
            tensors, left_out = name_keras(datasets, groups)
        except ValueError as error:
            _refuse(file, str(error))
        except BaseException:
            for shard in shards:
                shard.close()
            raise
        file.close()
        count = "1 shard" if len(names) == 1 else f"{len(names)} shards"
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size + sum(shard.size for shard in shards),
            tensors=tensors,
            notes=[count, *dict.fromkeys(notes), *left_out],
            resources=shards,
        )


def _index(file: File) -> dict[str, list[str]]:
    """The shards of each group of variables."""
    try:
        weight_map = parse_object(bytes(file.read(0, file.size))).get("weight_map")
    except ValueError as error:
        _refuse(file, f"the index is damaged: {error}")
    if not isinstance(weight_map, dict) or not weight_map:
        _refuse(file, "the index's weight_map is not an object that names shards")
    listed = {
        key: names if isinstance(names, list) else [names] for key, names in weight_map.items()
    }
    if not all(isinstance(name, str) for names in listed.values() for name in names):
        _refuse(file, "the index's weight_map names something that is not a file")
    return listed


def _path(key: str) -> Path:
    return tuple(part for part in key.split("/") if part)


def _refuse(file: File, fault: str) -> NoReturn:
    raise CheckpointError(fault, where=file.path, remedy="download the index and its shards again")


CONFIG = "model_config"
VERSION = "keras_version"
MAX_CONFIG_BYTES = 100_000_000


class KerasHdf5:
    """One HDF5 file: ``.weights.h5``, a whole model, or weights by layer name."""

    name = "Keras HDF5"
    extensions = (".h5", ".hdf5")
    recognised_by = "the signature of HDF5"

    def recognises(self, head: bytes, file: File) -> bool:
        """The eight bytes with which every HDF5 file begins."""
        return head.startswith(HDF5_MAGIC)

    def open(self, file: File) -> LazyStore:
        """Read every group and the header of every dataset."""
        return open_hdf5(file, self.name, file.size)


class KerasArchive:
    """One ``.keras`` archive."""

    name = "Keras archive"
    extensions = (".keras",)
    recognised_by = "a zip archive with a model.weights.h5 beside its config.json"
    weights = "model.weights.h5"

    def recognises(self, head: bytes, file: File) -> bool:
        """An archive with the member that holds the weights."""
        return first_member(head) == self.weights or self.weights in member_names(head, file)

    def open(self, file: File) -> LazyStore:
        """Read the archive's directory, its configuration as text, and the weights' headers."""
        archive = Archive(file)
        metadata = {}
        if "config.json" in archive:
            metadata[CONFIG] = _text(archive, "config.json")
        if "metadata.json" in archive:
            metadata[VERSION] = _version(_text(archive, "metadata.json"))
        if self.weights not in archive:  # a first member that the directory does not list
            raise CheckpointError(
                f"a corrupt zip archive: its directory lists no {self.weights}",
                where=file.path,
                remedy="copy or download it again",
            )
        return open_hdf5(_Member(file, archive, self.weights), self.name, file.size, metadata)


def open_hdf5(
    file: File, format: str, size: int, metadata: dict[str, str] | None = None
) -> LazyStore:
    """The store of an HDF5 file.

    Args:
        file: the file, or a member of an archive.
        format: the format's name.
        size: the bytes of the checkpoint, archive included.
        metadata: what is known of the model from elsewhere.

    Raises:
        CheckpointError: the file is damaged or hostile.
    """
    content = Hdf5File(file)
    try:
        tensors, notes = name_keras(content.datasets, content.groups)
    except ValueError as error:
        raise CheckpointError(
            f"this HDF5 file cannot be read: {error}",
            where=file.path,
            remedy="the file is corrupt or hostile: use another copy",
        ) from error
    found = {key: content.attribute(key) for key in (CONFIG, VERSION)}
    if not found[VERSION]:  # beside the weights in the files that Keras 3 writes for Keras 2
        found[VERSION] = content.attribute(VERSION, ("model_weights",))
    return LazyStore(
        path=file.path,
        format=format,
        bytes=size,
        tensors=tensors,
        metadata={key: value for key, value in found.items() if value} | (metadata or {}),
        notes=[*content.notes, *notes],
        resources=[file],
        contents=content,
    )


class _Member:
    """A member of an archive as a file; a compressed one is inflated once."""

    def __init__(self, file: File, archive: Archive, name: str) -> None:
        self._file, self._archive, self._name = file, archive, name
        self.path, self.size = file.path, archive.size(name)
        self._content = bytes(archive.read(name)) if archive.compressed(name) else None

    def read(self, offset: int, length: int) -> bytes | bytearray:
        if self._content is None:
            return self._archive.read(self._name, offset, length)
        if offset + length > self.size:
            raise CheckpointError(
                f"its {KerasArchive.weights} ends at byte {self.size}, before the {length} bytes "
                f"from byte {offset}",
                where=self.path,
                remedy="copy or download it again",
            )
        return self._content[offset : offset + length]

    def directory(self) -> Directory:
        return self._file.directory()

    def close(self) -> None:
        self._file.close()


def _text(archive: Archive, name: str) -> str:
    if archive.size(name) > MAX_CONFIG_BYTES:
        return ""
    return bytes(archive.read(name)).decode("utf-8", "replace")


def _version(text: str) -> str:
    try:
        version = parse_object(text.encode()).get(VERSION, "")
    except ValueError:
        return ""
    return version if isinstance(version, str) else ""
