"""Hugging Face's sharded checkpoints: an index names the file of each tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from memcurse_cli.checkpoints.format import CheckpointFormat
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.optimizer.training_state import select_flat
from memcurse_cli.checkpoints.rewrites.aliases import NOT_HERE, with_left_out
from memcurse_cli.checkpoints.untrusted.json_header import MAX_JSON_BYTES, parse_object
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.untrusted.source import HEAD_BYTES, File
from memcurse_cli.errors import CheckpointError

MAX_SHARDS = 10_000


def sibling_shards(path: str) -> str:
    """What to do about a file whose name says that it is one of several shards; or nothing."""
    numbered = re.search(r"-\d+-of-0*(\d+)\.\w+$", path)
    if numbered is None or numbered[1] == "1":
        return ""
    return f"it is one of {numbered[1]} shards: give their directory"


class Shards:
    """The index of a sharded checkpoint, and the shards beside it.

    Args:
        formats: the formats that a shard may have.
    """

    name = "Hugging Face shards"
    extensions = (".index.json",)
    recognised_by = "a JSON index whose weight_map names the shard of each tensor"

    def __init__(self, formats: Sequence[CheckpointFormat]) -> None:
        self._formats = formats

    def recognises(self, head: bytes, file: File) -> bool:
        """A JSON object with a ``weight_map``."""
        return (
            head.lstrip().startswith(b"{")
            and file.size <= MAX_JSON_BYTES
            and b'"weight_map"' in file.read(0, file.size)
        )

    def open(self, file: File) -> LazyStore:
        """Read the index and the headers of its shards."""
        try:
            index = parse_object(bytes(file.read(0, file.size)))
        except ValueError as error:
            _refuse(file, f"the index is damaged: {error}")
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            _refuse(file, "the index's weight_map is not an object that names shards")
        if not all(isinstance(shard, str) for shard in weight_map.values()):
            _refuse(file, "the index's weight_map names something that is not a file")
        names = sorted(set(weight_map.values()))
        if len(names) > MAX_SHARDS:
            _refuse(file, f"the index names more than {MAX_SHARDS} shards")
        stores: dict[str, LazyStore] = {}
        try:
            for name in names:
                stores[name] = self._open_shard(file, name)
            tensors, more = _shared(file, index, _mapped(file, weight_map, stores), stores)
        except BaseException:
            for store in stores.values():
                store.close()
            raise
        file.close()
        first = next(iter(stores.values()))
        # What one shard lacks, another may have.
        said = (note for store in stores.values() for note in store.notes if NOT_HERE not in note)
        notes = dict.fromkeys([*said, *more])
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size + sum(store.bytes for store in stores.values()),
            tensors=tensors,
            metadata=first.metadata,
            notes=[f"{len(names)} shards of {first.format}", *notes],
            resources=stores.values(),
        )

    def _open_shard(self, index: File, name: str) -> LazyStore:
        shard = index.directory().open(name)
        try:
            head = bytes(shard.read(0, min(HEAD_BYTES, shard.size)))
            for format in self._formats:
                if format.recognises(head, shard):
                    return format.open(shard)
            readable = " or ".join(format.name for format in self._formats)
            raise CheckpointError(
                f"this shard is not a {readable} file",
                where=shard.path,
                remedy="copy or download it again",
            )
        except BaseException:
            shard.close()
            raise


def _mapped(
    file: File, weight_map: dict[str, str], stores: dict[str, LazyStore]
) -> dict[str, LazyTensor]:
    tensors = {}
    for name, shard in weight_map.items():
        shown = printable(name, MAX_NAME_LENGTH)
        if shown in stores[shard].tensors:
            tensors[shown] = stores[shard].entry(shown)
    # What a shard's own reader left out as training state is not missing.
    expected, _ = select_flat(weight_map)
    missing = [name for name in expected if printable(name, MAX_NAME_LENGTH) not in tensors]
    if missing:
        _refuse(
            file,
            f"tensor {printable(missing[0], 60)} is not in {printable(weight_map[missing[0]], 60)}"
            f" (and {len(missing) - 1} more)",
        )
    return tensors


def _shared(
    file: File,
    index: dict[str, Any],
    tensors: dict[str, LazyTensor],
    stores: dict[str, LazyStore],
) -> tuple[dict[str, LazyTensor], list[str]]:
    """The tensors, those too that are stored under another name in whatever shard, and notes."""
    said = index.get("metadata")
    said = said if isinstance(said, dict) else {}
    names = {key: value for store in stores.values() for key, value in store.metadata.items()}
    names |= {
        printable(name, MAX_NAME_LENGTH): printable(holder, MAX_NAME_LENGTH)
        for name, holder in said.items()
        if isinstance(holder, str)
    }
    try:
        return with_left_out(tensors, names)
    except ValueError as error:
        _refuse(file, str(error))


def _refuse(file: File, fault: str) -> NoReturn:
    raise CheckpointError(fault, where=file.path, remedy="download the index and its shards again")
