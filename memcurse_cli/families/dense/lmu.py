"""The Legendre memory unit of Voelker, Kajić & Eliasmith 2019."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.dense.dense_layer import dense_recurrence
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real
from memcurse_cli.families.recurrence import Recurrence

_ROLES = ("A", "B", "e_x", "e_h", "e_m", "W_x", "W_h", "W_m")
_MEMORY_ALONE = (
    "λ is that of the memory, A + B e_m; what returns to it through the hidden state is left out:"
    " its path is e_h, W_m and a tanh"
)
_FIXED = "A and B are constants of the unit unless learn_a and learn_b were set; e_m is trained"


class LMU:
    """``m[t] = A m[t-1] + B u[t]``, ``u = e_x x + e_m m[t-1] + e_h h[t-1]``: λ of ``A + B e_m``.

    A and B are the Legendre delay's, discretised once over θ steps and stored as buffers:
    `LMUCell` (src/lmu.py) in hrshtv/pytorch-lmu. The parallel form without e_m is a dense linear
    recurrence. The hidden state ``h[t] = tanh(W_x x + W_h h[t-1] + W_m m[t])`` is not read.
    """

    name = "lmu"
    title = "LMU (Legendre memory unit)"
    recognised_by = "A (n, n) and B (n, 1) beside e_x, e_h, e_m (1, n) and W_m"
    equation = "λ = eig(A + B e_m)"
    source = "pytorch-lmu; Voelker, Kajić & Eliasmith 2019, NeurIPS 32"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every module with all of the cell's tensors."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, _ROLES).items()
            if len(names) == len(_ROLES)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A, B, e_m and e_x.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        names = match.tensors
        size = store.tensors[names["A"]].shape[-1:] or (None,)
        matrix = read_real(store, names["A"], (size[0], size[0]))
        drive = read_real(store, names["B"], (size[0], 1))
        feedback = read_real(store, names["e_m"], (1, size[0]))
        encoder = read_real(store, names["e_x"], (1, None))
        kept = {role: names[role] for role in ("A", "B", "e_x", "e_m")}
        return dense_recurrence(
            store,
            Match(match.layer, kept),
            family=self.name,
            matrix=matrix + drive @ feedback,
            tensor=names["A"],
            activation="linear",
            device=options.device,
            readin=(drive @ encoder).astype(np.complex128),
            assumptions=(_MEMORY_ALONE, _FIXED),
        )
