"""The zip archives of Stable-Baselines3 and its contrib package: a policy among an agent's files.

``policy.pth`` is a state dict as torch.save writes it; ``*.optimizer.pth`` and
``pytorch_variables.pth`` lie beside it, and ``data`` is JSON with pickles in it, which nobody opens
(stable_baselines3/common/save_util.py).
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.legacy import PyTorchLegacy
from memcurse_cli.checkpoints.torch.zip import PyTorch
from memcurse_cli.checkpoints.untrusted.archive import Archive, member_names
from memcurse_cli.checkpoints.untrusted.source import HEAD_BYTES, Directory, File
from memcurse_cli.errors import CheckpointError

POLICY = "policy.pth"


class StableBaselines:
    """One zip archive of an agent."""

    name = "Stable-Baselines3"
    # Any archive ends in .zip: one in a folder of weights is not among the candidates.
    extensions: tuple[str, ...] = ()
    recognised_by = f"a zip archive with a {POLICY}"

    def recognises(self, head: bytes, file: File) -> bool:
        """An archive with a policy at its root."""
        return POLICY in member_names(head, file)

    def open(self, file: File) -> LazyStore:
        """Read the directory of the archive, and the policy as the PyTorch file that it is."""
        policy = _Member(Archive(file), file)
        head = bytes(policy.read(0, min(HEAD_BYTES, policy.size)))
        for format in (PyTorch(), PyTorchLegacy()):
            if format.recognises(head, policy):
                store = format.open(policy)
                store.format, store.bytes, store.path = self.name, file.size, file.path
                return store
        raise CheckpointError(
            f"its member {POLICY} is not a file of torch.save",
            where=file.path,
            remedy="save the agent again with model.save()",
        )


class _Member:
    """The policy as a file that is read by ranges."""

    def __init__(self, archive: Archive, file: File) -> None:
        self._archive, self._file = archive, file
        self.path = f"{file.path}: {POLICY}"
        self.size = archive.size(POLICY)

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``."""
        return self._archive.read(POLICY, offset, length)

    def directory(self) -> Directory:
        """The directory that the archive lies in."""
        return self._file.directory()

    def close(self) -> None:
        """Release the archive."""
        self._file.close()
