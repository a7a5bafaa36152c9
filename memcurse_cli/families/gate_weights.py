"""Gates that see their input through one plain projection, or through two of low rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.gate_inputs import GateInput, RowNorms, squared_rows
from memcurse_cli.families.reading import read_finite
from memcurse_cli.families.recurrence import Integers

Floats = NDArray[np.float64]


def projected_gate(
    store: TensorStore,
    bias: Floats,
    tensor: str | None,
    *,
    rows: slice | Integers | None = None,
    factor: float = 1.0,
) -> GateInput | None:
    """``z = W x + b`` with W, or some of its rows, in one tensor; None where it is not there.

    Raises:
        TensorError: NaN or inf in W.
    """
    if tensor is None or tensor not in store.tensors or len(store.tensors[tensor].shape) != 2:
        return None
    weight = read_finite(store, tensor)
    if rows is not None:
        weight = weight[rows]
    if len(weight) != bias.size:
        return None
    return _gate(bias, factor**2 * squared_rows(weight))


def low_rank_gate(
    store: TensorStore,
    bias: Floats,
    outer: str,
    inner: str,
    *,
    normalised: Floats | None = None,
    last: bool = False,
) -> GateInput | None:
    """``z = V W x + b`` with the first rows of ``inner`` as W; None where they are not there.

    V is (…, n, rank) and W (…, rank or more, inputs), one pair for each head where there are more
    axes. The rows of V W are never formed: their squared norms are those of V with W Wᵀ between.

    Args:
        store: the open checkpoint.
        bias: (n,) b, of all heads.
        outer: the tensor of V.
        inner: the tensor of W.
        normalised: (rank,) the scale of a norm between the two, whose output has RMS 1 whatever
            the input is, or None.
        last: W are the last rows of ``inner``.

    Raises:
        TensorError: NaN or inf in one of them.
    """
    if outer not in store.tensors or inner not in store.tensors:
        return None
    shapes = store.tensors[outer].shape, store.tensors[inner].shape
    if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        return None
    rank = shapes[0][-1]
    if shapes[1][-2] < rank or int(np.prod(shapes[0][:-1])) != bias.size:
        return None
    above = read_finite(store, outer)
    if normalised is not None:
        fixed = np.sum((above * normalised) ** 2, axis=-1).ravel()
        return GateInput(bias, RowNorms(np.zeros(bias.size), np.zeros(bias.size)), fixed)
    rows = slice(-rank, None) if last else slice(rank)
    below = read_finite(store, inner)[..., rows, :]
    gram = below @ below.swapaxes(-1, -2)
    return _gate(bias, np.maximum(np.sum((above @ gram) * above, axis=-1), 0.0).ravel())


def inner_products(*rows: Floats) -> Floats:
    """(n, gates, gates) of the weights (n, inputs) of each gate."""
    stacked = np.stack(rows, axis=1)
    return stacked @ stacked.swapaxes(1, 2)


def read_rows(store: TensorStore, tensors: Sequence[str]) -> list[Floats] | None:
    """The real (rows, inputs) weights of gates that see the same input; None where they are not.

    Raises:
        TensorError: NaN or inf in one of them.
    """
    if any(len(store.tensors[tensor].shape) != 2 for tensor in tensors):
        return None
    found = [read_finite(store, tensor) for tensor in tensors]
    if any(np.iscomplexobj(rows) for rows in found) or len({rows.shape for rows in found}) > 1:
        return None
    return found


def repeated(gate: GateInput, count: int) -> GateInput:
    """The gate of every one of ``count`` eigenvalues that one pre-activation moves."""
    return GateInput(
        np.repeat(gate.bias, count),
        RowNorms(np.repeat(gate.norms.inputs, count), np.repeat(gate.norms.hidden, count)),
        None if gate.fixed is None else np.repeat(gate.fixed, count),
    )


def _gate(bias: Floats, inputs: Floats) -> GateInput:
    return GateInput(bias, RowNorms(inputs, np.zeros_like(inputs)))
