"""Eigendecompositions of dense matrices on the processor or a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.linalg.threads import use_threads_for

# Below it a single matrix is done on the processor before torch is imported and has found the
# GPU. Batches of smaller matrices are slower on a GPU at any size of the batch.
CROSSOVER = 2048

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True)
class Eigendecomposition:
    """``A = P diag(λ) P⁻¹``.

    Attributes:
        values: (..., n) complex eigenvalues.
        vectors: (..., n, n) complex right eigenvectors, columns of norm 1.
        engine: what computed it: ``numpy`` or ``torch:cuda:0``.
    """

    values: NDArray[np.complex128]
    vectors: NDArray[np.complex128]
    engine: str


def validate_device(device: str) -> None:
    """Refuse a device that does not exist, before anything is read.

    Raises:
        UsageError: not ``auto``, ``cpu``, ``cuda`` or ``cuda:i``.
    """
    if not _DEVICE.fullmatch(device):
        raise UsageError(
            f"unknown device '{device}'",
            where="--device",
            remedy="choose auto, cpu, cuda or cuda:i",
        )


def eigendecompose(matrix: NDArray[Any], device: str = "auto") -> Eigendecomposition:
    """Eigenvalues and right eigenvectors of a (..., n, n) matrix, in double precision.

    Args:
        matrix: (..., n, n), real or complex, finite.
        device: ``cpu``, ``cuda`` or ``cuda:i``; ``auto`` takes a GPU that torch sees for one
            matrix of n >= 2048. Batches of smaller matrices stay on the processor.

    Raises:
        UsageError: an unknown device, or a GPU was asked for and torch sees none.
    """
    use_threads_for(matrix.shape[-1])
    tensor = _on_gpu(matrix, device)
    if tensor is None:
        values, vectors = np.linalg.eig(matrix)
        return Eigendecomposition(
            values.astype(np.complex128, copy=False),
            vectors.astype(np.complex128, copy=False),
            "numpy",
        )
    values, vectors = importlib.import_module("torch").linalg.eig(tensor)
    return Eigendecomposition(values.cpu().numpy(), vectors.cpu().numpy(), f"torch:{tensor.device}")


def eigenvalues(matrix: NDArray[Any], device: str = "auto") -> NDArray[np.complex128]:
    """Eigenvalues alone of a (..., n, n) matrix, in double precision, at half the cost.

    The arguments and errors are those of `eigendecompose`.
    """
    use_threads_for(matrix.shape[-1])
    tensor = _on_gpu(matrix, device)
    if tensor is None:
        return np.linalg.eigvals(matrix).astype(np.complex128)
    values: NDArray[np.complex128] = (
        importlib.import_module("torch").linalg.eigvals(tensor).cpu().numpy()
    )
    return values


def eigenvalue_conditions(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) ``‖q‖‖p‖/|q* p|`` of each eigenvalue, from left and right eigenvectors of their own.

    No inverse takes part: an eigenvalue apart keeps its digits beside a defective one. What is
    beyond 1/ε is inf, for a computed q* p that is rounding alone.

    Args:
        matrix: (n, n) real, finite.
    """
    import scipy.linalg

    if len(matrix) == 0:
        return np.zeros(0)
    _, left, right = scipy.linalg.eig(matrix, left=True, check_finite=False)
    aligned = np.abs(np.sum(left.conj() * right, axis=0))  # both of norm 1
    found = np.full(len(matrix), np.inf)
    told = aligned > len(matrix) * np.finfo(np.float64).eps
    found[told] = np.maximum(1 / aligned[told], 1.0)
    return found


def _on_gpu(matrix: NDArray[Any], device: str) -> Any:
    """The matrix as a tensor on the GPU that is to decompose it; None for the processor."""
    validate_device(device)
    large = matrix.shape[-1] >= CROSSOVER
    torch = None
    if device == "auto" and large and matrix.ndim == 2:
        torch = _torch_with_gpu()
    elif device.startswith("cuda"):
        torch = _torch_with_gpu()
        _require(torch, device)
    if torch is None or not (large or matrix.ndim == 2):
        return None
    place = torch.device("cuda:0" if device in ("auto", "cuda") else device)
    double = np.complex128 if np.iscomplexobj(matrix) else np.float64
    return torch.from_numpy(matrix.astype(double)).to(place)


def _torch_with_gpu() -> Any:
    """The torch module, or None where it is not installed or sees no GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


def _require(torch: Any, device: str) -> None:
    remedy = "use --device cpu"
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "torch is not installed",
            where=f"--device {device}",
            remedy=f"install it with: pip install 'memcurse-cli[gpu]', or {remedy}",
        )
    if torch is None:
        raise UsageError("torch sees no CUDA GPU", where=f"--device {device}", remedy=remedy)
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise UsageError(
            f"torch sees {count} CUDA GPUs, numbered from 0",
            where=f"--device {device}",
            remedy=remedy,
        )
