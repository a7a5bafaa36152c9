"""The modal filters of StripedHyena and Evo, Massaroli et al. 2023, arXiv 2310.18780."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside, channel_direct_part, stored_parts
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    log_of_eigenvalues,
    one_to_one,
    read_pairs,
    read_real,
)
from memcurse_cli.families.recurrence import Complexes, ParameterGroup, Recurrence

_PRODUCT = (
    "what the state takes in is a product of two projections of the input, after short filters"
)


class StripedHyena:
    """``h[t] = λ h[t-1] + x[t]``, ``y = Re[Σ_n residues h]``, one input and N modes per filter.

    `ParallelHyenaFilter` in togethercomputer/stripedhyena (stripedhyena/model.py), Evo too:
    ``λ = poles``, complex and free (dλ/dRe = 1, dλ/dIm = i). `HyenaCascade` in Zymrael/vortex, the
    code of Evo 2: ``λ = e^log_poles``, real. Nothing keeps |λ| below 1 in either.
    """

    name = "striped_hyena"
    title = "StripedHyena and Evo (modal filters)"
    recognised_by = (
        "poles and residues (filters, N, 1, 2), or log_poles (filters, N, 1) and residues"
        " (filters, N)"
    )
    equation = "λ = poles, or exp(log_poles)"
    source = (
        "togethercomputer/stripedhyena and Zymrael/vortex; Massaroli et al. 2023, arXiv 2310.18780"
    )
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every pair of poles and residues in the shapes of one of the two."""
        matches = []
        for module, names in group_by_module(tensors, ("poles", "log_poles", "residues")).items():
            shapes = {role: tensors[name].shape for role, name in names.items()}
            residues = shapes.get("residues", ())
            for role, wanted in (("poles", residues), ("log_poles", (*residues, 1))):
                fits = residues[2:] == (1, 2) if role == "poles" else len(residues) == 2
                if fits and shapes.get(role) == wanted:
                    kept = {role: names[role], "residues": names["residues"]}
                    matches.append(Match(module or self.name, kept))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the poles and the residues.

        Raises:
            TensorError: NaN or inf.
        """
        names = match.tensors
        shape = store.tensors[names["residues"]].shape
        filters, modes = shape[:2]
        size = filters * modes
        if "poles" in names:
            eigenvalues = read_pairs(store, names["poles"], (filters, modes, 1)).ravel()
            readout = read_pairs(store, names["residues"], (filters, modes, 1)).reshape(1, size)
            log_eigenvalues = log_of_eigenvalues(eigenvalues)
            group = _free(store, names["poles"], eigenvalues)
        else:
            stored = read_real(store, names["log_poles"], (filters, modes, 1)).ravel()
            residues = read_real(store, names["residues"], shape)
            readout = residues.reshape(1, size).astype(np.complex128)
            bounded = np.clip(stored, -LARGEST_DECAY, LARGEST_DECAY)
            log_eigenvalues = bounded.astype(np.complex128)
            dtype = store.tensors[names["log_poles"]].dtype
            group = one_to_one("log_poles", names["log_poles"], stored, dtype, np.exp(bounded))
        pairs = "poles" in names
        direct = beside(store, names["residues"], "D")
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=log_eigenvalues,
            log_gain=np.zeros(size, dtype=np.complex128),
            parameters=(group,),
            readin=np.ones((size, 1), dtype=np.complex128),
            readout=readout,
            channel=np.repeat(np.arange(filters), modes),
            projections=(
                *stored_parts(store, names["residues"], "C", readout.shape, pairs=pairs),
                *channel_direct_part(store, direct, 1, filters),
            ),
            assumptions=(_PRODUCT,),
        )


def _free(store: TensorStore, tensor: str, eigenvalues: Complexes) -> ParameterGroup:
    """Poles as pairs: both parts of each are scalars of one tensor."""
    size = eigenvalues.size
    return ParameterGroup(
        name="poles",
        tensor=tensor,
        values=np.stack([eigenvalues.real, eigenvalues.imag], axis=-1).ravel(),
        dtype=store.tensors[tensor].dtype,
        scalar=np.arange(2 * size),
        eigenvalue=np.repeat(np.arange(size), 2),
        eigenvalue_derivative=np.tile(np.array([1, 1j]), size),
    )
