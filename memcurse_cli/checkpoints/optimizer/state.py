"""Adam's second moments beside a checkpoint's weights, each under the name of its weight.

PyTorch numbers the parameters, Keras lists them, optax repeats their tree. A number is a weight
only where order and shapes leave no other choice; every other weight is refused with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from memcurse_cli.checkpoints.directory import choose_file
from memcurse_cli.checkpoints.hdf5.file import Hdf5File
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.memory import lazy
from memcurse_cli.checkpoints.open import open_file
from memcurse_cli.checkpoints.optimizer.adam import AdamState
from memcurse_cli.checkpoints.optimizer.keras import keras_state
from memcurse_cli.checkpoints.optimizer.optax import FIRST, SECOND, optax_state
from memcurse_cli.checkpoints.optimizer.torch import torch_state
from memcurse_cli.checkpoints.optimizer.training_state import Path
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.checkpoints.torch.pickle_machine import Global, Record
from memcurse_cli.checkpoints.torch.pickled_tensors import PickledArray
from memcurse_cli.checkpoints.tree import collect
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import LocalDirectory, LocalFile
from memcurse_cli.errors import CheckpointError

TRAINER_STATE = "optimizer.pt"
"""What HF Trainer writes beside the weights."""
_ADAM = "ScaleByAdamState"  # optax's, a named tuple whose pickle has no names


def adam_state(weights: LazyStore, source: LazyStore | None = None) -> AdamState | None:
    """Adam's state for the weights of a checkpoint; None where there is no optimiser's state.

    Args:
        weights: the open checkpoint.
        source: the open file that holds the optimiser's state; by default the checkpoint itself.
    """
    source = source or weights
    contents = source.contents
    if isinstance(contents, Hdf5File):
        return keras_state(contents, weights)
    if contents is None:
        return None
    found = torch_state(contents, weights)
    return found if found is not None else optax_state(_paths(contents), weights)


def open_optimizer(path: str | os.PathLike[str]) -> LazyStore:
    """Open a file that may hold an optimiser's state and no weight, as HF Trainer's optimizer.pt.

    Args:
        path: the file, or a directory of Trainer's that has one.

    Raises:
        CheckpointError: the file is missing, damaged or of no known format.
    """
    directory = LocalDirectory(path) if os.path.isdir(path) else None
    if directory is None:
        return open_file(LocalFile(path), weights=False)
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


def _paths(contents: object) -> Mapping[Path, LazyTensor]:
    """Every tensor by its path; a mapping that has paths already is taken as it is."""
    if isinstance(contents, dict) and contents and isinstance(next(iter(contents)), tuple):
        return contents
    try:
        return collect(contents, _leaf, _expand)
    except ValueError:  # what is malformed has been told when the weights were read
        return {}


def _leaf(node: object) -> LazyTensor | None:
    if isinstance(node, PickledArray):
        return node.tensor
    return node if isinstance(node, LazyTensor) else lazy(node)


def _expand(node: object) -> object:
    """Named tuples and pickled objects by the names of their fields."""
    fields = getattr(node, "_fields", None)
    if isinstance(node, tuple) and isinstance(fields, tuple):
        return dict(zip(fields, node, strict=True))
    if isinstance(node, Record) and _called(node) == _ADAM:
        return dict(zip(("count", FIRST, SECOND), node.arguments, strict=False))
    if isinstance(node, Record) and isinstance(node.state, dict):
        return {printable(str(key), 100): child for key, child in node.state.items()}
    return node.arguments if isinstance(node, Record) and not node.state else node


def _called(node: Record) -> str:
    return node.function.name if isinstance(node.function, Global) else ""
