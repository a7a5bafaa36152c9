"""States of optimizers, beside the weights that they belong to."""

from __future__ import annotations

import os

from memcurse_cli.checkpoints.open import open_file
from memcurse_cli.checkpoints.optimizer.state import AdamState
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.source import LocalDirectory, LocalFile
from memcurse_cli.errors import CheckpointError

TRAINER_STATE = "optimizer.pt"  # what HF Trainer writes beside the weights


def adam_state(weights: TensorStore, source: TensorStore | None = None) -> AdamState | None:
    """Adam's state for the weights of a checkpoint; None where there is no optimiser's state.

    Args:
        weights: the open checkpoint.
        source: the open file that holds the optimiser's state; by default the checkpoint itself.
    """
    contents = (source or weights).contents
    if contents is None:
        return None
    from memcurse_cli.checkpoints.optimizer.readers import keras_state, optax_state, torch_state

    readers = (keras_state, torch_state, optax_state)
    found = (read(contents, weights) for read in readers)
    return next((state for state in found if state is not None), None)


def open_optimizer(path: str | os.PathLike[str]) -> TensorStore:
    """Open a file that may hold an optimiser's state and no weight, as HF Trainer's optimizer.pt.

    Args:
        path: the file, or a directory of Trainer's that has one.

    Raises:
        CheckpointError: the file is missing, damaged or of no known format.
    """
    if not os.path.isdir(path):
        return open_file(LocalFile(path), weights=False)
    from memcurse_cli.checkpoints.directory import choose_file

    directory = LocalDirectory(path)
    name = TRAINER_STATE if TRAINER_STATE in directory.names else choose_file(directory, FORMATS)
    return open_file(directory.open(name), weights=False)


def require_state(state: AdamState | None, path: str) -> AdamState:
    """A state that was asked for.

    Raises:
        CheckpointError: the file has none.
    """
    if state is None:
        raise CheckpointError(
            "the file holds no state of an optimiser",
            where=path,
            remedy="name the file that optimizer.state_dict() was saved to",
        )
    return state
