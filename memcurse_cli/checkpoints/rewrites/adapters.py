"""Weights that PEFT has wrapped, under the names that they had before.

A layer with an adapter keeps its own weight as ``base_layer.weight``, beside ``lora_A`` and
``lora_B``. The update is ``s B A`` with a scale s from the adapter's configuration, which is not
among the tensors (peft/tuners/lora/layer.py), so that the weight alone can be read.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.untrusted.names import printable

# PEFT's names, then those of diffusers and kohya.
_UPDATE = re.compile(r"[._/](?:lora_(?:embedding_)?[AB]|lora[._](?:down|up))(?:[._/]|$)")
_LAST = re.compile(r"[./]")
_WRAPPED = re.compile(r"(?P<module>.+[./])base_layer[./](?P<weight>[^./]+)")


def adapter_alone(names: Collection[str]) -> str:
    """What to do about a file of nothing but updates, as PEFT saves them; or nothing."""
    updates = sum(_UPDATE.search(name) is not None for name in names)
    if not 2 * updates > len(names):
        return ""
    return (
        "it holds an adapter (LoRA) alone, which moves the weights of another model: name that"
        " model, or what PEFT's merge_and_unload() made of both"
    )


def unwrap_adapters(store: LazyStore) -> LazyStore:
    """The store with every wrapped weight under its own name, and a note if there is one."""
    entries = store.entries
    names = {
        name: f"{found['module']}{found['weight']}"
        for name in entries
        if (found := _WRAPPED.fullmatch(name))
    }
    names = {name: bare for name, bare in names.items() if bare not in entries}
    if not names:
        return store
    # A bias has no update.
    updated = [bare for bare in names.values() if "bias" not in _LAST.split(bare)[-1]]
    notes = []
    if updated:
        more = f" and {len(updated) - 1} more" if updated[1:] else ""
        notes.append(
            f"an adapter's update is not added to {printable(updated[0], 80)}{more}, since its"
            " scale is not in the file: PEFT's merge_and_unload() adds it"
        )
    store.replace_entries({names.get(name, name): one for name, one in entries.items()}, notes)
    return store
