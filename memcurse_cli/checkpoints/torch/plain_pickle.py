"""Plain pickles (pickle.dump) of a state_dict or of a tree of NumPy or JAX arrays.

PaddlePaddle's paddle.save writes one of NumPy arrays.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.legacy import STORAGE_CONSTRUCTORS
from memcurse_cli.checkpoints.torch.pickle_machine import begins_like_a_pickle
from memcurse_cli.checkpoints.torch.pickled_tree import machine, no_persistent, store_of
from memcurse_cli.checkpoints.untrusted.source import File


def recognises(head: bytes, file: File) -> bool:
    """The mark of protocols 2 to 5, or what stands where protocols 0 and 1 have none."""
    return head.startswith(b"\x80") or begins_like_a_pickle(head)


def open_file(file: File) -> LazyStore:
    """Run the pickle on inert data."""
    return store_of(machine(file, no_persistent, STORAGE_CONSTRUCTORS).load(), file)
