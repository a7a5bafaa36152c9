"""Keras's sharded weights: ``model.weights.json`` names the HDF5 file of each variable.

``save_weights(…, max_shard_size=…)`` writes the index and the shards beside it.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.hdf5.file import HDF5_MAGIC, Hdf5File
from memcurse_cli.checkpoints.hdf5.keras import name_keras
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.select import Path
from memcurse_cli.checkpoints.shards import read_index
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File


def open_file(file: File) -> LazyStore:
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
    return LazyStore(
        path=file.path,
        bytes=file.size + sum(shard.size for shard in shards),
        tensors=tensors,
        notes=[count, *dict.fromkeys(notes), *left_out],
        resources=shards,
    )
