"""Keras's sharded weights: ``model.weights.json`` names the HDF5 file of each variable."""

from __future__ import annotations

from typing import NoReturn

from memcurse_cli.checkpoints.hdf5 import HDF5_MAGIC, Hdf5File
from memcurse_cli.checkpoints.json_header import MAX_JSON_BYTES, parse_object
from memcurse_cli.checkpoints.keras_names import name_keras
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.names import printable
from memcurse_cli.checkpoints.shards import MAX_SHARDS
from memcurse_cli.checkpoints.source import File
from memcurse_cli.checkpoints.training_state import Path
from memcurse_cli.errors import CheckpointError


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
