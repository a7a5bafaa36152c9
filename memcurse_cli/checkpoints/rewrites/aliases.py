"""Names that modules which share their weights have for one stored tensor.

safetensors stores no tensor twice: save_model (safetensors/torch.py) and huggingface_hub's
save_torch_model leave out all names but one and put ``{left out: kept}`` into the metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.errors import CheckpointError

MAX_LEFT_OUT = 100_000
LEFT_OUT = (
    "weights that several modules share are stored under one name; the others, which the metadata "
    "list, are read as the whole tensor that is stored"
)


def restore_names(store: LazyStore) -> LazyStore:
    """The store with its tensors under the names that were left out too, which come last.

    Metadata may hold anything. What counts is a name that is not stored with the name of a stored
    tensor as its value, so that no chain and no circle is followed. What the metadata do not say
    is whether a shared tensor was a part or the transpose of the one that is stored.

    Raises:
        CheckpointError: there are more than `MAX_LEFT_OUT`, or a name is none for a tensor.
    """
    entries = dict(store.entries)
    left_out = {
        name: printable(holder, MAX_NAME_LENGTH)
        for name, holder in store.listed_names.items()
        if name not in entries
    }
    notes = _missing(entries, left_out)
    holders = {name: holder for name, holder in left_out.items() if holder in entries}
    if len(holders) > MAX_LEFT_OUT:
        raise CheckpointError(
            f"its metadata give stored tensors {len(holders)} more names",
            where=store.path,
            remedy="copy or download it again",
        )
    if holders:
        notes.insert(0, LEFT_OUT)
        for holder in set(holders.values()):
            entries[holder] = replace(entries[holder], identity=("stored as", holder))
        # save_model writes them in any order.
        entries.update((name, entries[holders[name]]) for name in sorted(holders))
    if notes:
        store.replace_entries(entries, notes)
    return store


def _missing(stored: Collection[str], left_out: Mapping[str, str]) -> list[str]:
    """A note on names in modules of this file whose tensors it lacks, as a single shard may."""
    modules = {name.rpartition(".")[0] for name in stored} - {""}
    names = sorted(
        name
        for name, holder in left_out.items()
        if holder not in stored and "." in holder and name.rpartition(".")[0] in modules
    )
    if not names:
        return []
    more = f" and {len(names) - 1} more" if names[1:] else ""
    holder = f"{printable(left_out[names[0]], 80)}, which is not in the file"
    return [
        f"{printable(names[0], 80)}{more} should be stored as {holder}: its layer is read without"
    ]
