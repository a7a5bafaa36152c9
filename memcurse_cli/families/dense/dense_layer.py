"""A dense recurrence from its matrices, whatever names they were stored under."""

from __future__ import annotations

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match
from memcurse_cli.families.reading import log_of_eigenvalues, require_order, shown_shape
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
    """The left eigenvectors, as rows. The norm of one is its eigenvalue's condition number.

    Args:
        vectors: (..., n, n) the right eigenvectors, as columns of norm 1.
        tensor: what to name in an error.
        reason: what to say in it.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    try:
        left = np.linalg.inv(vectors).astype(np.complex128, copy=False)
    except np.linalg.LinAlgError:
        left = np.full_like(vectors, np.inf)
    if not np.abs(left).max() < LARGEST_CONDITION:
        raise TensorError(reason, where=tensor, remedy="use a checkpoint from another step")
    return left


def dense_recurrence(
    store: TensorStore,
    match: Match,
    *,
    family: str,
    matrix: Floats,
    tensor: str,
    activation: str,
    device: str,
    readin: Complexes | None = None,
    readout: Complexes | None = None,
    scale: float = 1.0,
    bias: Floats | None = None,
    assumptions: tuple[str, ...] = (),
) -> Recurrence:
    """``h[t+1] = A h[t] + B x[t+1]``, ``y = C h`` with the eigenvalues of A.

    B and C stay in the coordinates of h, not of the eigenvectors.

    Args:
        store: the open checkpoint.
        match: the layer.
        family: the name of its family.
        matrix: (n, n) real A, row = target.
        tensor: the name of the tensor that A comes from.
        activation: ``linear``, ``tanh`` or ``relu``, linearised.
        device: where the eigendecomposition runs.
        readin: (n, inputs) B.
        readout: (outputs, n) C.
        scale: dA/dW for the stored W.
        bias: (n,) what is added inside the activation, or None where it is not known.
        assumptions: what was assumed, one sentence each.

    Raises:
        TensorError: the matrix is not square, or larger than any that is decomposed.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise TensorError(
            f"its shape {shown_shape(store.tensors[tensor].shape)} is that of no recurrent matrix",
            where=tensor,
            remedy="name the right family with --family, or export the layer again",
        )
    require_order(matrix.shape[0], tensor)
    decomposition = eigendecompose(matrix, device)
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=log_of_eigenvalues(decomposition.values),
        log_gain=np.zeros(matrix.shape[0], dtype=np.complex128),
        parameters=(),
        readin=readin,
        readout=readout,
        assumptions=assumptions,
        dense=DenseDynamics(
            matrix=matrix,
            tensor=tensor,
            dtype=store.tensors[tensor].dtype,
            eigenvectors=decomposition.vectors,
            activation=activation,
            scale=scale,
            bias=bias,
        ),
    )
