"""S5 of Smith, Warrington & Linderman 2023, arXiv 2208.04933."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.family import Assumption, Layer, Layout, LayoutFamily, Match
from memcurse_cli.families.layers import member_of, split_stack
from memcurse_cli.families.projections import beside, direct_part
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
    "discretization", ZERO_ORDER_HOLD, METHODS, "from continuous time to steps; S5's default is zoh"
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
# How many axes a single layer's tensors have in JAX; one more where layers are stacked.
_AXES = {"Lambda_re": 1, "Lambda_im": 1, "log_step": 2, "B": 3, "C": 3, "C1": 3, "C2": 3}
_BIDIRECTIONAL = (
    "both directions run with the same λ; their outputs count as separate ones, which is exact for"
    " the eigenvalues at white input"
)


class S5(LayoutFamily):
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

    layouts = tuple(
        Layout((*diagonal, "log_step", ("B", "BP")), ("C", "C1", "C2"), without=("P",))
        for diagonal in (("Lambda",), ("Lambda_re", "Lambda_im"))
    )

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every Λ that has a ``log_step`` and a B beside it, or each of those that are stacked."""
        return [
            each for match in super().find(tensors) for each in split_stack(match, tensors, _AXES)
        ]

    def _recurrence(self, layer: Layer) -> Recurrence:
        store = layer.store = member_of(layer.store, layer.match, _AXES)
        names, assumed = layer.names, layer.assumed
        method = assumed.choose(DISCRETIZATION)
        split = "Lambda" not in names
        # The PyTorch port stores every eigenvalue and has neither option.
        default = None if split else "false"
        paired = assumed.choose(CONJUGATE_SYMMETRY, default=default, silent=not split)
        clipped = assumed.choose(CLIP_EIGENVALUES, silent=not split)

        largest = LARGEST_REAL_PART if clipped == "true" else math.inf
        if split:
            real = layer.real("Lambda_re", (None,))
            imag = layer.real("Lambda_im", real.shape)
        else:
            both = layer.pairs("Lambda", (None,))
            real, imag = both.real, both.imag
        size = real.size
        roles = ("Lambda_re", "Lambda_im")
        held = roles if split else ("Lambda", "Lambda")
        diagonal = clipped_diagonal(held, real, imag, largest, roles)
        # log Δ is stored with a last axis of one in JAX.
        column = len(layer.shape("log_step")) == 2
        log_step = layer.real("log_step", (size, 1) if column else (size,)).ravel()
        delta = apply_transform(log_step, "exp").times(step_factor(assumed))
        step = Step("log_step", delta, log_step)
        modes = discretise(delta.value * diagonal.values, method)
        parts = (*step.scaled(diagonal), step.part(diagonal.values))
        readin = layer.pairs("B", (size, None)) if "B" in names else None
        readout, bidirectional = _read_readout(layer, size)
        projections: tuple[ProjectionGroup, ...] = ()
        # Both directions share the current input, which the separate outputs that stand for them
        # do not know.
        if readin is not None and readout is not None and not bidirectional:
            direct = beside(store, names["B"], "D")
            projections = (
                *layer.parts("B", "B", readin.shape, pairs=True),
                *layer.parts("C", "C", readout.shape, pairs=True),
                *direct_part(store, direct, len(readout), readin.shape[1]),
            )
        return layer.recurrence(
            modes.log_eigenvalue,
            # Nothing but Re Λ changes the sign of Re z.
            [
                replace(part.group(layer, modes), keeps_stable=part.name != "Lambda_re")
                for part in parts
            ],
            log_gain=modes.log_gain + delta.log,
            tensors=[name for role, name in names.items() if role != "BP"],
            readin=readin,
            readout=readout,
            projections=projections,
            conjugate_pairs=paired == "true",
            stable_by_construction=clipped == "true",
            also=(_BIDIRECTIONAL,) if bidirectional else (),
        )


def _read_readout(layer: Layer, size: int) -> tuple[Complexes | None, bool]:
    """C (outputs, P), and whether it has a second half for the backward direction.

    A bidirectional layer has C1 and C2, or one C of twice the width. The two directions' states
    at one time share no input but the current one, so that at white input no derivative of one
    is correlated with the other's: they add to a Hessian as separate outputs do.
    """
    if "C1" in layer.names and "C2" in layer.names:
        forward = layer.pairs("C1", (None, size))
        return np.concatenate([forward, layer.pairs("C2", forward.shape)]), True
    if "C" not in layer.names:
        return None, False
    readout = layer.pairs("C", (None, None))
    if readout.shape[1] == 2 * size:
        return np.concatenate([readout[:, :size], readout[:, size:]]), True
    return layer.pairs("C", (None, size)), False
