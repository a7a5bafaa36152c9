"""Where arithmetic runs: on the processor, or on a GPU that torch sees.

What is large enough goes there as tensors in double precision, and comes back as arrays of NumPy;
what happens between follows the Array API.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError

# Neither is measured here: `python -m benchmarks gpu` prints the crossover of a machine. Below the
# first a single matrix is done on the processor before torch is imported and has found the GPU.
# Batches of smaller matrices are slower on a GPU at any size of the batch.
CROSSOVER = 2048
WORTH = 2**20  # elements from which arrays that are no single matrix go to a GPU asked for
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

_chosen: ContextVar[str] = ContextVar("device", default="auto")


def validate_device(device: str) -> None:
    """Refuse a device that is none of auto, cpu, cuda and cuda:i, with a UsageError."""
    if not _DEVICE.fullmatch(device):
        what, remedy = f"unknown device '{device}'", "choose auto, cpu, cuda or cuda:i"
        raise UsageError(what, where="--device", remedy=remedy)


@contextmanager
def work_on(device: str) -> Iterator[None]:
    """A block whose large arrays are worked on by a device.

    Raises UsageError: an unknown device, a GPU is asked for and torch sees none, or the block asks
    for more memory than the GPU has.
    """
    validate_device(device)
    if device.startswith("cuda"):
        find_gpu(device)
    token = _chosen.set(device)
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's own
            raise
        what, remedy = "the GPU's memory is too small", "use --device cpu"
        raise UsageError(what, where=f"--device {device}", remedy=remedy) from error
    finally:
        _chosen.reset(token)


def find_gpu(device: str) -> Any:
    """The GPU of that name, or for ``auto`` the first, as torch names it, or None without one."""
    named = device.startswith("cuda")
    installed = importlib.util.find_spec("torch") is not None
    torch = importlib.import_module("torch") if installed else None
    count = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    if named and int(device.partition(":")[2] or 0) >= count:
        problem, remedy = f"torch sees {count} CUDA GPUs, numbered from 0", "use --device cpu"
        if not installed:
            problem = "torch is not installed"
            remedy = f"install it with: pip install 'memcurse-cli[gpu]', or {remedy}"
        elif not count:
            problem = "torch sees no CUDA GPU"
        raise UsageError(problem, where=f"--device {device}", remedy=remedy)
    if torch is None or not count:
        return None
    return torch.device("cuda:0" if device in ("auto", "cuda") else device)


def matrix_on_device(matrix: NDArray[Any]) -> Any:
    """A (..., n, n) matrix where it is worked on: ``auto`` takes a single one of n >= 2048."""
    device = _chosen.get()
    large, single = matrix.shape[-1] >= CROSSOVER, matrix.ndim == 2
    if (large or single) if device.startswith("cuda") else (device == "auto" and large and single):
        return _moved(matrix, find_gpu(device))
    return matrix


def arrays_on_device(elements: int, *arrays: NDArray[Any]) -> tuple[Any, ...]:
    """Arrays where they are worked on, by the elements of the largest that comes of them.

    ``auto`` leaves them on the processor.
    """
    device = _chosen.get()
    if not device.startswith("cuda") or elements < WORTH:
        return arrays
    place = find_gpu(device)
    return tuple(_moved(array, place) for array in arrays)


def _moved(array: NDArray[Any], place: Any) -> Any:
    if place is None:
        return array
    double = np.complex128 if np.iscomplexobj(array) else np.float64
    return importlib.import_module("torch").from_numpy(array.astype(double)).to(place)


def beside(array: Any, other: Any) -> Any:
    """An array of NumPy where another is."""
    return array if isinstance(other, np.ndarray) else _moved(array, other.device)


def contiguous(array: Any) -> Any:
    """An array whose last axis has no gaps: products of a stack are fast then."""
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def fetched(array: Any) -> NDArray[Any]:
    """An array as one of NumPy."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.cpu().resolve_conj().resolve_neg().numpy())


def inverse(matrices: Any) -> Any:
    """The inverses of (..., n, n) matrices, where they are; LinAlgError where one is singular."""
    if isinstance(matrices, np.ndarray):
        return np.linalg.inv(matrices)
    found, failed = importlib.import_module("torch").linalg.inv_ex(matrices)
    if failed.any():
        raise np.linalg.LinAlgError("Singular matrix")
    return found
