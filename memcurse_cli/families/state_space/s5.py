"""S5 of Smith, Warrington & Linderman 2023, arXiv 2208.04933."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.layers import member_of, split_stack
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside, direct_part, stored_parts
from memcurse_cli.families.reading import read_pairs, read_real
from memcurse_cli.families.recurrence import Complexes, ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.discretization import (
    LARGEST_REAL_PART,
    METHODS,
    STEP_RESCALE,
    ZERO_ORDER_HOLD,
    Step,
    apply_transform,
    clipped_diagonal,
    discretise,
    step_factor,
)

DISCRETIZATION = Assumption(
    key="discretization",
    default=ZERO_ORDER_HOLD,
    choices=METHODS,
    meaning="from continuous time to steps; S5's default is zoh",
)
CONJUGATE_SYMMETRY = Assumption(
    key="conjugate-symmetry",
    default="true",
    choices=("true", "false"),
    meaning="whether S5 keeps one of each conjugate pair and puts out 2 Re[C h] (conj_sym)",
)
CLIP_EIGENVALUES = Assumption(
    key="clip-eigenvalues",
    default="false",
    choices=("true", "false"),
    meaning="whether S5 holds Re Λ below -1e-4 at run time (clip_eigs)",
)

# BP is half of the PyTorch port's factorised B. With P beside Λ it is a port of S4, not S5.
_ROLES = ("Lambda", "Lambda_re", "Lambda_im", "log_step", "B", "BP", "C", "C1", "C2", "P")
# How many axes a single layer's tensors have in JAX; one more where layers are stacked.
_AXES = {"Lambda_re": 1, "Lambda_im": 1, "log_step": 2, "B": 3, "C": 3, "C1": 3, "C2": 3}
_BIDIRECTIONAL = (
    "both directions run with the same λ; their outputs count as separate ones, which is exact for"
    " the eigenvalues at white input"
)


class S5:
    """``λ = exp(Λ Δ)`` or its bilinear form, ``Δ = exp(log_step)``, one Δ per eigenvalue.

    Every state sees every input: ``h[t] = λ h[t-1] + γ B x[t]``, s5/ssm.py of lindermanlab/S5
    (`Lambda_re`, `Lambda_im`, log_step (P, 1)) and s5/s5_model.py of i404788/s5-pytorch (complex
    `Lambda`, log_step (P,), no doubled output). γ depends on Λ and Δ.
    """

    name = "s5"
    title = "S5"
    recognised_by = "Lambda_re and Lambda_im, or a complex Lambda, beside log_step and B"
    equation = "λ = exp(Λ Δ) or (1 + Λ Δ/2)/(1 - Λ Δ/2), Δ = exp(log_step)"
    source = "lindermanlab/S5 and s5-pytorch; Smith et al. 2023, arXiv 2208.04933"
    assumptions = (DISCRETIZATION, CONJUGATE_SYMMETRY, CLIP_EIGENVALUES, STEP_RESCALE)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every Λ that has a ``log_step`` and a B beside it."""
        return [
            match
            for module, names in group_by_module(tensors, _ROLES).items()
            if ("Lambda" in names or ("Lambda_re" in names and "Lambda_im" in names))
            and "log_step" in names
            and ("B" in names or "BP" in names)
            and "P" not in names
            for match in split_stack(Match(module or self.name, names), tensors, _AXES)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Λ, Δ, B and C."""
        store = member_of(store, match, _AXES)
        names = match.tensors
        assumed = Assumed(options)
        method = assumed.choose(DISCRETIZATION)
        split = "Lambda" not in names
        # The PyTorch port stores every eigenvalue and has neither option.
        paired = assumed.choose(
            CONJUGATE_SYMMETRY, default=None if split else "false", silent=not split
        )
        clipped = assumed.choose(CLIP_EIGENVALUES, silent=not split)

        largest = LARGEST_REAL_PART if clipped == "true" else math.inf
        held = dict(names)
        if split:
            real = read_real(store, names["Lambda_re"], (None,))
            imag = read_real(store, names["Lambda_im"], real.shape)
        else:
            both = read_pairs(store, names["Lambda"], (None,))
            real, imag = both.real, both.imag
            held |= dict.fromkeys(("Lambda_re", "Lambda_im"), names["Lambda"])
        size = real.size
        diagonal = clipped_diagonal(("Lambda_re", "Lambda_im"), real, imag, largest)
        # log Δ is stored with a last axis of one in JAX.
        column = len(store.tensors[names["log_step"]].shape) == 2
        log_step = read_real(store, names["log_step"], (size, 1) if column else (size,)).ravel()
        step = Step(
            "log_step", apply_transform(log_step, "exp").times(step_factor(assumed)), log_step
        )
        modes = discretise(step.parameter.value * diagonal.values, method)
        parts = (*step.scaled(diagonal), step.part(diagonal.values))
        readin = read_pairs(store, names["B"], (size, None)) if "B" in names else None
        readout, bidirectional = _read_readout(store, names, size)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(name for role, name in names.items() if role != "BP"),
            log_eigenvalues=modes.log_eigenvalue,
            log_gain=modes.log_gain + step.parameter.log,
            # Nothing but Re Λ changes the sign of Re z.
            parameters=tuple(
                replace(part.group(store, held, modes), keeps_stable=part.role != "Lambda_re")
                for part in parts
            ),
            readin=readin,
            readout=readout,
            projections=() if bidirectional else _projections(store, names, readin, readout),
            conjugate_pairs=paired == "true",
            stable_by_construction=clipped == "true",
            assumptions=(*assumed.sentences, *([_BIDIRECTIONAL] if bidirectional else [])),
        )


def _projections(
    store: TensorStore,
    names: Mapping[str, str],
    readin: Complexes | None,
    readout: Complexes | None,
) -> tuple[ProjectionGroup, ...]:
    """B and C, both stored as pairs, and D (outputs,).

    With two directions there are none: both share the current input, which the separate outputs
    that stand for them do not know.
    """
    if readin is None or readout is None:
        return ()
    return (
        *stored_parts(store, names["B"], "B", readin.shape, pairs=True),
        *stored_parts(store, names["C"], "C", readout.shape, pairs=True),
        *direct_part(store, beside(store, names["B"], "D"), len(readout), readin.shape[1]),
    )


def _read_readout(
    store: TensorStore, names: Mapping[str, str], size: int
) -> tuple[Complexes | None, bool]:
    """C (outputs, P), and whether it has a second half for the backward direction.

    A bidirectional layer has C1 and C2, or one C of twice the width. The two directions' states
    at one time share no input but the current one, so that at white input no derivative of one
    is correlated with the other's: they add to a Hessian as separate outputs do.
    """
    if "C1" in names and "C2" in names:
        forward = read_pairs(store, names["C1"], (None, size))
        backward = read_pairs(store, names["C2"], forward.shape)
        return np.concatenate([forward, backward]), True
    if "C" not in names:
        return None, False
    readout = read_pairs(store, names["C"], (None, None))
    if readout.shape[1] == 2 * size:
        return np.concatenate([readout[:, :size], readout[:, size:]]), True
    return read_pairs(store, names["C"], (None, size)), False
