"""Orbax directories: ``_METADATA`` names the arrays of a tree, zarr holds them.

The arrays lie in one OCDBT store (``manifest.ocdbt`` and ``d/``) or, in the older layout, in one
subdirectory each; their names join the keys of the tree with dots
(orbax/checkpoint/_src/handlers/base_pytree_checkpoint_handler.py). Neither Orbax nor TensorStore
is needed; Zstandard is, for arrays that it compresses.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from memcurse_cli.checkpoints.directory import holds
from memcurse_cli.checkpoints.jax.ocdbt import MANIFEST, MANIFEST_MAGIC, Ocdbt
from memcurse_cli.checkpoints.jax.zarr import VERSION_2, VERSION_3, ZarrArray
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.select import OPTIMIZER_CONTAINERS, Path
from memcurse_cli.checkpoints.tree import MAX_DEPTH, MAX_TENSORS, name_jax
from memcurse_cli.checkpoints.untrusted.json_header import MAX_JSON_BYTES, parse_object
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import Bytes
from memcurse_cli.checkpoints.untrusted.source import DataFile, File, LocalDirectory, directory_here
from memcurse_cli.errors import CheckpointError

TREE, STEP = "_METADATA", "_CHECKPOINT_METADATA"
MAX_DESCRIPTION_BYTES = 1 << 20
MAX_FILES = 1_000_000
# What Orbax notes of leaves that it does not store as arrays.
NO_ARRAYS = ("None", "Dict", "List", "Tuple", "NamedTuple", "string", "")

Find = Callable[[str], Bytes | None]


def open_file(file: File) -> LazyStore:
    """Read the metadata and the descriptions of the arrays."""
    directory, metadata = _located(file)
    find = _store(directory)
    paths = _paths(metadata) if metadata else _paths_of_keys(find)
    found = _without_value(_arrays(paths, find))
    tensors, notes = name_jax(found)
    file.close()
    return LazyStore(
        path=file.path,
        bytes=_size_on_disk(directory),
        tensors=tensors,
        notes=notes,
        contents=found,
    )


def _located(file: File) -> tuple[LocalDirectory, dict[str, Any]]:
    """The directory of the arrays and what describes them, starting at any of its files."""
    directory = directory_here(file)
    if bytes(file.read(0, 4)) == MANIFEST_MAGIC:
        return directory, _tree(directory, TREE) if TREE in directory.names else {}
    described = _json(file)
    if "tree_metadata" in described:
        return directory, described
    if TREE in directory.names:
        return directory, _tree(directory, TREE)
    item = _item(file, directory)
    inside = directory.open(f"{item}/{TREE}")
    inside.close()
    return inside.directory(), _tree(directory, f"{item}/{TREE}")


def _item(file: File, directory: LocalDirectory) -> str:
    """The only item of a step that holds arrays and is not an optimiser's."""
    items = [name for name in directory.names if holds(directory, f"{name}/{TREE}")]
    weights = [name for name in items if name not in OPTIMIZER_CONTAINERS]
    if not items:
        raise CheckpointError(
            "an Orbax checkpoint's metadata without its arrays",
            where=file.path,
            remedy="copy the whole folder",
        )
    if len(weights) != 1:
        listed = ", ".join(printable(name, 60) for name in items[:4])
        raise CheckpointError(
            f"the step holds several items: {listed}",
            where=file.path,
            remedy="name the folder of one of them",
        )
    return weights[0]


def _json(file: File) -> dict[str, Any]:
    if file.size > MAX_JSON_BYTES:
        raise ValueError(f"its metadata has {file.size} bytes")
    return parse_object(bytes(file.read(0, file.size)))


def _tree(directory: LocalDirectory, name: str) -> dict[str, Any]:
    file = directory.open(name)
    try:
        return _json(file)
    finally:
        file.close()


def _store(directory: LocalDirectory) -> Find:
    """How to find what is stored under a key such as ``params.cell.kernel/.zarray``."""
    if MANIFEST in directory.names:
        return Ocdbt(directory).values.get

    def find(key: str) -> Bytes | None:
        try:
            directory.locate(key)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise
        return DataFile(directory, key)

    return find


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


def _paths_of_keys(find: Find) -> dict[Path, str]:
    """The same from the keys of an OCDBT store without metadata."""
    values = getattr(find, "__self__", {})
    endings = (f"/{VERSION_2}", f"/{VERSION_3}")
    names = [key.rpartition("/")[0] for key in values if key.endswith(endings)]
    return {tuple(name.split(".")): name for name in names}


def _arrays(paths: Mapping[Path, str], find: Find) -> dict[Path, LazyTensor]:
    found: dict[Path, LazyTensor] = {}
    missing: list[str] = []
    for path, name in paths.items():
        array = _array(name, find)
        if array is None:
            missing.append(name)
        else:
            found[path] = LazyTensor(array.spec, array)
    if missing and not found:
        raise ValueError("its metadata is there and none of its arrays is")
    if missing:
        raise ValueError(
            f"the array {printable(missing[0], 60)} is missing (and {len(missing) - 1} more)"
        )
    return found


def _array(name: str, find: Find) -> ZarrArray | None:
    for ending in (VERSION_2, VERSION_3):
        description = find(f"{name}/{ending}")
        if description is None:
            continue
        if description.size > MAX_DESCRIPTION_BYTES:
            raise ValueError(f"an array's description has {description.size} bytes")
        try:
            parsed = parse_object(bytes(description.read(0, description.size)))
            return ZarrArray(parsed, lambda key: find(f"{name}/{key}"))
        except ValueError as error:
            raise ValueError(f"{printable(name, 60)}: {error}") from error
    return None


def _without_value(arrays: Mapping[Path, LazyTensor]) -> dict[Path, LazyTensor]:
    """The paths of Flax's nnx, whose variables each hold one leaf called ``value``, without it."""
    parents = Counter(path[:-1] for path in arrays)
    renamed = {
        path[:-1] if path[-1] == "value" and path[1:] and parents[path[:-1]] == 1 else path: array
        for path, array in arrays.items()
    }
    if len(renamed) < len(arrays):
        raise ValueError("two of its arrays have the same name")
    return renamed


def _size_on_disk(directory: LocalDirectory) -> int:
    root = directory.locate(directory.names[0]).parent
    files = (FilePath(at, name) for at, _, names in os.walk(root) for name in names)
    return sum(path.lstat().st_size for path in islice(files, MAX_FILES))
