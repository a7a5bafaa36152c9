"""The zip archives of Stable-Baselines3 and its contrib package: a policy among an agent's files.

``policy.pth`` is a state dict as torch.save writes it; ``*.optimizer.pth`` and
``pytorch_variables.pth`` lie beside it, and ``data`` is JSON with pickles in it, which nobody opens
(stable_baselines3/common/save_util.py).
"""

from __future__ import annotations

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.torch.nemo import open_inside
from memcurse_cli.checkpoints.untrusted.archive import Archive
from memcurse_cli.checkpoints.untrusted.source import File

POLICY = "policy.pth"


def open_archive(file: File, archive: Archive) -> LazyStore:
    """Read the policy as the PyTorch file that it is."""
    return open_inside(
        file, POLICY, archive.member(POLICY), "save the agent again with model.save()"
    )
