"""Hugging Face's sharded checkpoints: an index names the file of each tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.registry import open_known
from memcurse_cli.checkpoints.select import select_flat
from memcurse_cli.checkpoints.untrusted.json_header import parse_object
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

MAX_SHARDS = 10_000
SHARD_FORMATS = ("safetensors", "PyTorch", "PyTorch legacy")


def sibling_shards(path: str) -> str:
    """What to do about a file whose name says that it is one of several shards; or nothing."""
    numbered = re.search(r"-\d+-of-0*(\d+)\.\w+$", path)
    if numbered is None or numbered[1] == "1":
        return ""
    return f"it is one of {numbered[1]} shards: give their directory"


def read_index(
    file: File, *, several: bool = False
) -> tuple[dict[str, Any], list[str], Mapping[str, list[str]]]:
    """The index, the names of its shards, and those that hold what each key stands for.

    Args:
        file: the index.
        several: whether a key may stand for what lies in several shards.

    Raises:
        ValueError: with the fault as a clause.
    """
    try:
        index = parse_object(bytes(file.read(0, file.size)))
    except ValueError as error:
        raise ValueError(f"the index is damaged: {error}") from error
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError("the index's weight_map is not an object that names shards")
    held = {
        key: names if several and isinstance(names, list) else [names]
        for key, names in weight_map.items()
    }
    if not all(isinstance(name, str) for names in held.values() for name in names):
        raise ValueError("the index's weight_map names something that is not a file")
    shards = sorted({name for names in held.values() for name in names})
    if len(shards) > MAX_SHARDS:
        raise ValueError(f"the index names more than {MAX_SHARDS} shards")
    return index, shards, held


def open_file(file: File) -> LazyStore:
    """Read the index and the headers of its shards."""
    index, names, held = read_index(file)
    stores: dict[str, LazyStore] = {}
    try:
        for name in names:
            stores[name] = _open_shard(file, name)
        tensors = _tensors(held, stores)
    except BaseException:
        for store in stores.values():
            store.close()
        raise
    file.close()
    said = index.get("metadata")
    listed = {key: name for store in stores.values() for key, name in store.listed_names.items()}
    if isinstance(said, dict):
        listed |= {name: holder for name, holder in said.items() if isinstance(holder, str)}
    first = stores[names[0]]
    return LazyStore(
        path=file.path,
        bytes=file.size + sum(store.bytes for store in stores.values()),
        tensors=tensors,
        metadata=first.metadata,
        notes=[
            f"{len(names)} shards of {first.format}",
            *dict.fromkeys(note for store in stores.values() for note in store.notes),
        ],
        resources=stores.values(),
        listed_names=listed,
    )


def _open_shard(index: File, name: str) -> LazyStore:
    shard = index.directory().open(name)
    try:
        store = open_known(shard, SHARD_FORMATS)
        if store is None:
            raise CheckpointError(
                f"this shard is not a {' or '.join(SHARD_FORMATS)} file",
                where=shard.path,
                remedy="copy or download it again",
            )
        return store
    except BaseException:
        shard.close()
        raise


def _tensors(
    held: Mapping[str, list[str]], stores: Mapping[str, LazyStore]
) -> dict[str, LazyTensor]:
    """The tensors of the index in its order."""
    tensors = {}
    for name, (shard, *_) in held.items():
        shown = printable(name, MAX_NAME_LENGTH)
        if shown in stores[shard].entries:
            tensors[shown] = stores[shard].entries[shown]
    # What a shard's own reader left out as training state is not missing.
    expected, _ = select_flat(held)
    missing = [name for name in expected if printable(name, MAX_NAME_LENGTH) not in tensors]
    if missing:
        raise ValueError(
            f"tensor {printable(missing[0], 60)} is not in {printable(held[missing[0]][0], 60)}"
            f" (and {len(missing) - 1} more)"
        )
    return tensors
