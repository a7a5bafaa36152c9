"""Plain pickles (pickle.dump) of a state_dict or of a tree of NumPy or JAX arrays.

PaddlePaddle's paddle.save writes one of NumPy arrays.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.legacy import STORAGE_CONSTRUCTORS
from memcurse_cli.checkpoints.torch.pickle_machine import begins_like_a_pickle
from memcurse_cli.checkpoints.torch.pickled_tree import machine, no_persistent, tensors_of
from memcurse_cli.checkpoints.tree import texts
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError


class PlainPickle:
    """One file of pickle.dump, of any protocol."""

    name = "pickle"
    extensions = (".pkl", ".pickle", ".pdparams")
    recognised_by = (
        "a pickle's protocol mark (2 to 5) or its first instructions (0 and 1); run as data, "
        "never as code"
    )

    def recognises(self, head: bytes, file: File) -> bool:
        """The protocol mark, or what stands where protocols 0 and 1 have none."""
        if head[:1] == b"\x80":
            return head[1:2] in (b"\2", b"\3", b"\4", b"\5")
        return begins_like_a_pickle(head)

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
            metadata=texts(root),
            notes=notes,
            resources=[file],
            contents=root,
        )
