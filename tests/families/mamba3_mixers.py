"""Arrays of a Mamba-3 mixer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEADS, HEAD_DIMENSION = 4, 2


def mixer(
    *, groups: int = 1, rank: int = 1, state: int = 8, fraction: float = 0.5, scale: float = 0.3
) -> dict[str, NDArray]:
    """A mixer whose in_proj has the rows of the library's."""
    random = np.random.default_rng(9)
    angles = int(state * fraction) // 2
    inner = HEADS * HEAD_DIMENSION
    rows = 2 * inner + 2 * state * groups * rank + 3 * HEADS + angles
    return {
        "mixer.dt_bias": random.uniform(-4, 1, HEADS),
        "mixer.B_bias": np.ones((HEADS, rank, state)),
        "mixer.C_bias": np.ones((HEADS, rank, state)),
        "mixer.in_proj.weight": random.normal(0, scale, (rows, 6)),
        "mixer.out_proj.weight": np.ones((6, inner)),
    }
