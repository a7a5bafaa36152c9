"""A dense recurrence from its matrices, whatever names they were stored under."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.family import Assumption, Layer, Match
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

    B (n, inputs) and C (outputs, n) stay in the coordinates of h, not of the eigenvectors; the
    other arguments are those of `DenseDynamics`.

    Raises:
        TensorError: the matrix is not square, or larger than any that is decomposed.
    """
    if matrix.shape[0] != matrix.shape[1]:
        shown = shown_shape(store.tensors[tensor].shape)
        raise misfit(f"its shape {shown} is that of no recurrent matrix", tensor)
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


def dense_layer(
    layer: Layer,
    role: str,
    matrix: Floats,
    *,
    activation: str = "linear",
    also: Sequence[str] = (),
    **form: Any,
) -> Recurrence:
    """`dense_recurrence` of a layer whose A comes from a role's tensor, with what it assumes."""
    return dense_recurrence(
        layer.store,
        layer.match,
        family=layer.family,
        matrix=matrix,
        tensor=layer.names[role],
        activation=activation,
        device=layer.options.device,
        assumptions=(*layer.assumed.sentences, *also),
        **form,
    )
