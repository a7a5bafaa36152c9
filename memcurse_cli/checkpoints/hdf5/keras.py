"""Keras's files: HDF5 weights and models of every version, .keras archives, and shards.

A model's configuration names classes that Keras would import and build. Here it stays text: it is
handed on as metadata, for whoever needs to know a layer's activations.

Keras 3 stores ``layers/lstm_1/cell/vars/2`` by the layer's class, and the name that the user gave
the layer in the attribute ``name`` of its group ``vars``. Older versions store
``model_weights/encoder/encoder/lstm_cell/kernel:0``. ``save_weights(…, max_shard_size=…)`` writes
``model.weights.json``, which names the file of each variable, and the shards beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from memcurse_cli.checkpoints.hdf5.file import HDF5_MAGIC, Hdf5File
from memcurse_cli.checkpoints.safetensors import read_index
from memcurse_cli.checkpoints.select import Path, select
from memcurse_cli.checkpoints.store import LazyTensor, TensorStore
from memcurse_cli.checkpoints.untrusted.archive import Archive
from memcurse_cli.checkpoints.untrusted.names import parse_object, printable
from memcurse_cli.checkpoints.untrusted.source import File, InlineBytes, Part

Leaf = TypeVar("Leaf")

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

    A name that two tensors would share is given up for their paths in the file.

    Args:
        datasets: every dataset by its path.
        groups: every group by its path, and its ``name`` attribute.
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


def open_file(file: File) -> TensorStore:
    """Read every group and the header of every dataset."""
    return _open(file, file.size, {})


def open_archive(file: File, archive: Archive) -> TensorStore:
    """Read the archive's configuration as text, and the headers of its weights."""
    metadata = {}
    if "config.json" in archive:
        metadata[CONFIG] = _text(archive, "config.json")
    if "metadata.json" in archive:
        metadata[VERSION] = _version(_text(archive, "metadata.json"))
    content = archive.member(ARCHIVED)
    if archive.compressed(ARCHIVED):  # inflated once, as it is read in any order
        content = InlineBytes(archive.read(ARCHIVED))
    return _open(Part(content, file), file.size, metadata)


def _open(file: File, size: int, metadata: dict[str, str]) -> TensorStore:
    """The store of an HDF5 file in a checkpoint of so many bytes, with what else is known of it."""
    content = Hdf5File(file)
    tensors, notes = name_keras(content.datasets, content.groups)
    found = {key: content.attribute(key) for key in (CONFIG, VERSION)}
    if not found[VERSION]:  # beside the weights in the files that Keras 3 writes for Keras 2
        found[VERSION] = content.attribute(VERSION, (WEIGHTS,))
    return TensorStore(
        path=file.path,
        bytes=size,
        tensors=tensors,
        metadata={key: value for key, value in found.items() if value} | metadata,
        notes=[*content.notes, *notes],
        resources=[file],
        contents=content,
    )


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


def open_keras_shards(file: File) -> TensorStore:
    """Read the index, and every group of its shards."""
    _, names, shards_of = read_index(file, several=True)
    shards: list[File] = []
    datasets: dict[Path, LazyTensor] = {}
    groups: dict[Path, str] = {}
    notes: list[str] = []
    try:
        for name in names:
            shard = file.directory().open(name)
            shards.append(shard)
            if bytes(shard.read(0, min(shard.size, len(HDF5_MAGIC)))) != HDF5_MAGIC:
                raise ValueError(f"its shard {printable(name, 80)} is not an HDF5 file")
            content = Hdf5File(shard)
            if datasets.keys() & content.datasets.keys():
                raise ValueError(f"its shard {printable(name, 80)} repeats a tensor of another")
            datasets |= content.datasets
            # A group that goes on in a second shard has its name in the first.
            groups |= {path: text for path, text in content.groups.items() if text}
            groups = dict.fromkeys(content.groups, "") | groups
            notes += content.notes
        missing = [key for key in shards_of if tuple(filter(None, key.split("/"))) not in groups]
        if missing:
            raise ValueError(f"its group {printable(missing[0], 80)} is in none of its shards")
        tensors, left_out = name_keras(datasets, groups)
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    file.close()
    count = "1 shard" if len(names) == 1 else f"{len(names)} shards"
    return TensorStore(
        path=file.path,
        bytes=file.size + sum(shard.size for shard in shards),
        tensors=tensors,
        notes=[count, *dict.fromkeys(notes), *left_out],
        resources=shards,
    )
