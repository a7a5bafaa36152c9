"""Names of one stored tensor: modules that share their weights.

torch.save writes the elements of a shared tensor once and refers to them under every name.
safetensors stores no tensor twice: save_model (safetensors/torch.py) and huggingface_hub's
save_torch_model leave out all names but one and put ``{left out: kept}`` into the metadata.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from memcurse_cli.checkpoints.untrusted.names import printable

if TYPE_CHECKING:
    from memcurse_cli.checkpoints.lazy import LazyTensor

MAX_LEFT_OUT = 100_000
LEFT_OUT = (
    "weights that several modules share are stored under one name; the others, which the metadata "
    "list, are read as the whole tensor that is stored"
)

NOT_HERE = "which is not in the file: its layer is read without"


def aliases_of(entries: Mapping[str, LazyTensor]) -> dict[str, str]:
    """For every further name of a stored tensor the first one, which holds it.

    Args:
        entries: by name, in the order of the file.
    """
    first: dict[Hashable, str] = {}
    found = {}
    for name, entry in entries.items():
        if entry.identity is not None:
            holder = first.setdefault(entry.identity, name)
            if holder != name:
                found[name] = holder
    return found


def with_left_out(
    entries: Mapping[str, LazyTensor], metadata: Mapping[str, str]
) -> tuple[dict[str, LazyTensor], list[str]]:
    """The entries under the names that were left out too, and notes.

    Metadata may hold anything. What counts is a name that is not stored with the name of a stored
    tensor as its value, so that no chain and no circle is followed. What the metadata do not say
    is whether a shared tensor was a part or the transpose of the one that is stored.

    Args:
        entries: by name, in the order of the file; the names that were left out come last, sorted.
        metadata: as it is stored.

    Raises:
        ValueError: with the fault as a clause; there are more than `MAX_LEFT_OUT`.
    """
    left_out = {name: holder for name, holder in metadata.items() if name not in entries}
    holders = {name: holder for name, holder in left_out.items() if holder in entries}
    notes = _missing(entries, left_out)
    if not holders:
        return dict(entries), notes
    if len(holders) > MAX_LEFT_OUT:
        raise ValueError(f"its metadata give stored tensors {len(holders)} more names")
    made = dict(entries)
    for holder in set(holders.values()):
        made[holder] = replace(entries[holder], identity=("stored as", holder))
    # save_model writes them in any order.
    made.update((name, made[holders[name]]) for name in sorted(holders))
    return made, [LEFT_OUT, *notes]


def _missing(entries: Mapping[str, LazyTensor], left_out: Mapping[str, str]) -> list[str]:
    """A note on names in modules of this file whose tensors it lacks, as a single shard may."""
    modules = {name.rpartition(".")[0] for name in entries} - {""}
    names = sorted(
        name
        for name, holder in left_out.items()
        if holder not in entries and "." in holder and name.rpartition(".")[0] in modules
    )
    if not names:
        return []
    more = f" and {len(names) - 1} more" if names[1:] else ""
    holder = printable(left_out[names[0]], 80)
    return [f"{printable(names[0], 80)}{more} should be stored as {holder}, {NOT_HERE}"]
