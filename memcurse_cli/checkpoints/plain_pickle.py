"""Plain pickles (pickle.dump) of a state_dict or of a tree of NumPy or JAX arrays.

PaddlePaddle's paddle.save writes one of NumPy arrays.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.pickled_tree import machine, no_persistent, tensors_of
from memcurse_cli.checkpoints.pytorch_legacy import STORAGE_CONSTRUCTORS
from memcurse_cli.checkpoints.source import File
from memcurse_cli.errors import CheckpointError


class PlainPickle:
    """One file of pickle.dump, protocol 2 or later."""

    name = "pickle"
    extensions = (".pkl", ".pickle", ".pdparams")
    recognised_by = "a pickle's protocol mark (2 to 5); run as data, never as code"

    def recognises(self, head: bytes, file: File) -> bool:
        """The protocol mark."""
        return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")

    def open(self, file: File) -> LazyStore:
        """Run the pickle on inert data."""
        try:
            root = machine(file, no_persistent, STORAGE_CONSTRUCTORS).load()
            tensors, notes = tensors_of(root)
        except ValueError as error:
            raise CheckpointError(
                f"this pickle cannot be read: {error}",
                where=file.path,
                remedy="save the weights as safetensors or .npz",
            ) from error
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size,
            tensors=tensors,
            notes=notes,
            resources=[file],
            contents=root,
        )
