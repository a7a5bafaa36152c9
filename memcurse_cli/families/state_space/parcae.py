"""Parcae, the diagonal recurrence over ESMFold2's recycling loop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import stored_parts
from memcurse_cli.families.reading import LARGEST_DECAY, one_to_one, read_real, require_finite
from memcurse_cli.families.recurrence import Complexes, ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.discretization import apply_transform

TRANSFORMERS = {
    "rate": "log_state_decay",
    "step": "log_delta",
    "B": "input_matrix_continuous",
    "C": "out_proj.weight",
}
ESM = {
    "rate": "parcae_log_a",
    "step": "parcae_log_delta",
    "B": "parcae_b_cont",
    "C": "parcae_readout.weight",
}
_RECYCLING = (
    "a step is one recycling loop, and the folding trunk rewrites the state between two of them: "
    "λ is that of the update alone"
)


class Parcae:
    """``h[t] = λ h[t-1] + Δ B x[t]``, ``λ = exp(-Δ e^log_state_decay)``, ``Δ = softplus(…)``.

    `EsmFold2Parcae` (models/esmfold2/modeling_esmfold2.py) in transformers; x is the normalised
    pair representation, t counts the recycling loops, every pair of residues has a state of its
    own. dλ/da = λ log λ for the rate a, dλ/dp = -e^a σ(p) λ for the step's p, and γ = Δ.
    """

    name = "parcae"
    title = "Parcae (ESMFold2's recycling)"
    recognised_by = (
        "log_state_decay and log_delta (n) beside input_matrix_continuous (n, n); or parcae_log_a,"
        " parcae_log_delta and parcae_b_cont"
    )
    equation = "λ = exp(-Δ e^log_state_decay), γ = Δ = softplus(log_delta)"
    source = (
        "transformers, modeling_esmfold2.py; Prairie, Novack, Berg-Kirkpatrick & Fu 2026, "
        "arXiv 2604.12946"
    )
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a rate and a step of one length, and a square matrix of inputs."""
        roles = (*TRANSFORMERS.values(), *ESM.values())
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            for library in (TRANSFORMERS, ESM):
                found = {role: names[name] for role, name in library.items() if name in names}
                if found.keys() >= {"rate", "step", "B"} and _fits(tensors, found):
                    matches.append(Match(module or self.name, found))
                    break
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the rates, the steps, B and C.

        Raises:
            TensorError: NaN or inf, or a readout of another width.
        """
        names = match.tensors
        (size,) = store.tensors[names["rate"]].shape
        rate = read_real(store, names["rate"], (size,))
        stored = read_real(store, names["step"], (size,))
        step = apply_transform(stored, "softplus")
        # Both factors may overflow alone where their product does not.
        decay = np.exp(np.minimum(rate + step.log.real, np.log(LARGEST_DECAY)))
        eigenvalue = np.exp(-decay)
        slopes = -decay * eigenvalue
        require_finite(slopes, names["rate"], "the decay")
        readin = read_real(store, names["B"], (size, size)).astype(np.complex128)
        readout: Complexes | None = None
        projections: tuple[ProjectionGroup, ...] = ()
        if "C" in names:
            readout = read_real(store, names["C"], (None, size)).astype(np.complex128)
            projections = (
                *stored_parts(store, names["B"], "B", readin.shape),
                *stored_parts(store, names["C"], "C", readout.shape),
            )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=-decay.astype(np.complex128),
            log_gain=step.log,
            parameters=(
                one_to_one(
                    "log_state_decay",
                    names["rate"],
                    rate,
                    store.tensors[names["rate"]].dtype,
                    slopes,
                ),
                one_to_one(
                    "log_delta",
                    names["step"],
                    stored,
                    store.tensors[names["step"]].dtype,
                    slopes * step.log_slope,
                    step.log_slope,
                ),
            ),
            readin=readin,
            readout=readout,
            projections=projections,
            stable_by_construction=True,
            assumptions=(_RECYCLING,),
        )


def _fits(tensors: Mapping[str, TensorSpec], names: Mapping[str, str]) -> bool:
    """Whether the rate, the step and B are of one width."""
    shape = tensors[names["rate"]].shape
    return (
        len(shape) == 1
        and tensors[names["step"]].shape == shape
        and tensors[names["B"]].shape == shape * 2
    )
