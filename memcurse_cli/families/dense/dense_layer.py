"""A dense recurrence from its matrices, whatever names they were stored under."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcurse_cli.families.family import Assumption, Layer
from memcurse_cli.families.reading import log_of_eigenvalues, misfit, require_order, shown_shape
from memcurse_cli.families.recurrence import Complexes, DenseDynamics, Floats, Recurrence
from memcurse_cli.theory.linalg import eigendecompose

ACTIVATION = Assumption(
    key="activation",
    default="tanh",
    choices=("tanh", "relu", "linear"),
    meaning="the activation of an Elman network, linearised",
)


LARGEST_CONDITION = 1e12
"""Of an eigenvalue; past it a derivative has fewer than four digits."""


def left_eigenvectors(
    vectors: Complexes,
    tensor: str,
    reason: str = "the state matrix cannot be diagonalised: its eigenvectors coincide",
) -> Complexes:
    """The left eigenvectors, as rows, of right ones (..., n, n), as columns of norm 1.

    The norm of one is its eigenvalue's condition number.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    try:
        left = np.linalg.inv(vectors).astype(np.complex128, copy=False)
    except np.linalg.LinAlgError:
        left = np.full_like(vectors, np.inf)
    if not np.abs(left).max() < LARGEST_CONDITION:
        raise misfit(reason, tensor, "use a checkpoint from another step")
    return left


def dense_layer(
    layer: Layer,
    role: str,
    matrix: Floats,
    *,
    activation: str = "linear",
    readin: Floats | Complexes | None = None,
    scale: float = 1.0,
    bias: Floats | None = None,
    **fields: Any,
) -> Recurrence:
    """``h[t+1] = A h[t] + B x[t+1]`` with the eigenvalues of A, which comes from a role's tensor.

    B (n, inputs) and a C (outputs, n) stay in the coordinates of h, not of the eigenvectors; the
    other arguments are those of `DenseDynamics`, and what else `Layer.recurrence` takes.

    Raises:
        TensorError: the matrix is not square, or larger than any that is decomposed.
    """
    tensor = layer.names[role]
    if matrix.shape[0] != matrix.shape[1]:
        raise misfit(
            f"its shape {shown_shape(layer.shape(role))} is that of no recurrent matrix", tensor
        )
    require_order(matrix.shape[0], tensor)
    decomposition = eigendecompose(matrix, layer.options.device)
    dense = DenseDynamics(
        matrix=matrix,
        tensor=tensor,
        dtype=layer.store.tensors[tensor].dtype,
        eigenvectors=decomposition.vectors,
        activation=activation,
        scale=scale,
        bias=bias,
    )
    return layer.recurrence(
        log_of_eigenvalues(decomposition.values),
        (),
        readin=None if readin is None else readin.astype(np.complex128, copy=False),
        dense=dense,
        **fields,
    )
