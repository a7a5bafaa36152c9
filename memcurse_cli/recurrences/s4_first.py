"""The first release of S4, whose B and C hold the low-rank part of A.

`SSKernelNPLR` (src/models/sequence/ss/kernel.py, November 2021) in state-spaces/s4 stacks P under B
and Q under C: ``A = diag(w) - Σ_r B_r C̄_r``, r = 1, …, rank, the input being that of row 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.recurrences.recurrence import Complexes
from memcurse_cli.recurrences.s4 import Diagonal, read_pairs, system_of_channel


def is_first_version(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether w, B and C are those of version 1, whose B and C hold P and Q.

    C is (H, 1 + rank, N/2, 2), B too, or without the first axis where it is not trained.
    """
    if not {"log_dt", "w", "B", "C"} <= shapes.keys():
        return False
    w, b, c = shapes["w"], shapes["B"], shapes["C"]
    return (
        len(shapes["log_dt"]) == 1
        and len(c) == 4
        and c[1] >= 2
        and c[3] == 2
        and b in (c, c[1:])
        and w in ((c[0], *c[2:]), (1, *c[2:]), c[2:])
    )


def shared_diagonal(diagonal: Diagonal, channels: int, tensor: str) -> Diagonal:
    """The diagonal of every channel, each scalar of which all channels may share.

    Raises:
        TensorError: the rows of w do not divide the channels.
    """
    row = system_of_channel(len(diagonal.values), channels, tensor)
    components = [
        replace(each, scalar=each.scalar[row], slope=each.slope[row])
        for each in diagonal.components
    ]
    return replace(diagonal, values=diagonal.values[row], components=tuple(components))


def read_rows(store: TensorStore, tensor: str, channels: int, modes: int) -> Complexes:
    """B or C of version 1 as (1 + rank, channels, modes), with one channel where all share it.

    Raises:
        TensorError: NaN or inf.
    """
    shared = len(store.tensors[tensor].shape) == 3
    rows = read_pairs(store, tensor, (1 if shared else channels, None, modes))
    return np.swapaxes(rows, 0, 1)
