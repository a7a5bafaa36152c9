"""Moving averages: Mega's, Megalodon's and mega-pytorch's; and Parcae, ESMFold2's recycling."""

from __future__ import annotations

import math

import numpy as np

from memcurse_cli.families.family import Layer, Layout, LayoutFamily, Shapes
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    direct_part,
    log_sigmoid,
    require_finite,
    sigmoid,
)
from memcurse_cli.families.recurrence import Complexes, ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.discretization import apply_transform

_RATE, _DAMPING = "alphas", "dampen_factors"
_BACKWARD = ("reverse_alphas", "reverse_dampen_factors")
_PROJECTIONS = ("expansion", "reduction")

_BOTH_DIRECTIONS_HEADED = (
    "the second half of the heads runs backward in time; expansion and reduction are not read"
)


def _fits_headed(shapes: Shapes) -> bool:
    """Whether the shapes are (heads), and (heads, D) or twice as many rows with both directions."""
    both = [role in shapes for role in _BACKWARD]
    rates = {shapes[role] for role in (_RATE, _DAMPING, *_BACKWARD) if role in shapes}
    if both[0] != both[1] or len(rates) != 1 or len(shapes[_RATE]) != 1:
        return False
    rows = shapes[_RATE][0] * (1 + both[0])
    expansion, reduction = (shapes[role] for role in _PROJECTIONS)
    return len(expansion) == 2 and expansion == reduction and expansion[0] == rows > 0


class MultiHeadedEMA(LayoutFamily):
    """``h[t] = λ h[t-1] + γ β x[t]``, ``y = Σ_heads η h``, one state per head and channel.

    ``λ = (1 - σ(alphas)) σ(dampen_factors)`` and ``γ = σ(alphas)`` are those of a head, and one
    scalar moves the λ of all channels. With α = alphas and δ = dampen_factors,

        dλ/dα = -λ σ(α),    dλ/dδ = λ σ(-δ),    d log γ/dα = σ(-α)
    """

    name = "multi_headed_ema"
    title = "Multi-headed EMA (mega-pytorch)"
    recognised_by = "alphas and dampen_factors (heads) beside expansion and reduction (heads, D)"
    equation = "λ = (1 - σ(alphas)) σ(dampen_factors), γ = σ(alphas)"
    source = "mega-pytorch, MultiHeadedEMA; Ma et al. 2023, arXiv 2209.10655"
    layouts = (Layout((_RATE, _DAMPING, *_PROJECTIONS), _BACKWARD, fits=_fits_headed),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        pairs = [(_RATE, _DAMPING), _BACKWARD][: 2 if _BACKWARD[0] in layer.names else 1]
        (heads,) = layer.shape(_RATE)
        rows, channels = layer.shape("expansion")
        head = np.repeat(np.arange(heads), channels)
        logs, gains, groups = [], [], []
        for direction, (rate, damping) in enumerate(pairs):
            place = direction * head.size + np.arange(head.size)
            alpha, delta = (layer.real(role, (heads,)) for role in (rate, damping))
            logs.append(log_sigmoid(-alpha) + log_sigmoid(delta))
            gains.append(log_sigmoid(alpha))
            eigenvalue = np.exp(logs[-1])
            slope, gain = (-eigenvalue * sigmoid(alpha))[head], sigmoid(-alpha)[head]
            groups.append(layer.group(rate, alpha, slope, gain, scalar=head, eigenvalue=place))
            slope = (eigenvalue * sigmoid(-delta))[head]
            groups.append(layer.group(damping, delta, slope, scalar=head, eigenvalue=place))
        readin = readout = None
        projections: tuple[ProjectionGroup, ...] = ()
        if len(pairs) == 1:
            expansion, reduction = (layer.real(role, (rows, channels)) for role in _PROJECTIONS)
            readin = expansion.reshape(-1, 1).astype(np.complex128)
            readout = reduction.reshape(1, -1).astype(np.complex128)
            projections = (
                *layer.parts("expansion", "B", readin.shape),
                *layer.parts("reduction", "C", readout.shape),
            )
        return layer.recurrence(
            np.repeat(np.concatenate(logs), channels),
            groups,
            log_gain=np.repeat(np.concatenate(gains), channels),
            readin=readin,
            readout=readout,
            projections=projections,
            channel=np.tile(np.arange(channels), rows),
            stable_by_construction=True,
            also=() if len(pairs) == 1 else (_BOTH_DIRECTIONS_HEADED,),
        )


TRANSFORMERS = {
    "alpha": "decay_factor",
    "delta": "damping_factor",
    "beta": "ema_expansion_matrix",
    "gamma": "kernel_projection_matrix",
    "omega": "residual_weight",
}

_STORED = {role: role for role in ("alpha", "delta", "beta", "theta", "gamma", "omega")}

_BOTH_DIRECTIONS = (
    "the second half of the channels runs backward in time; its outputs count as separate ones,"
    " which is exact for the eigenvalues at white input"
)


def _fits(shapes: Shapes) -> bool:
    """Whether the shapes are those of a moving average: alpha (D, N, 1), gamma (D, N) or pairs."""
    alpha = shapes["alpha"]
    if len(alpha) != 3 or alpha[2] != 1:
        return False
    channels, modes, _ = alpha
    projection = (channels, modes, 2) if "theta" in shapes else (channels, modes)
    return (
        shapes["delta"] in (alpha, (channels, 1, 1))
        and shapes.get("beta", alpha) in (alpha, alpha[:2])
        and shapes.get("theta", (channels, 1, 1)) == (channels, 1, 1)
        and shapes["gamma"] == projection
    )


class EMA(LayoutFamily):
    """``h[t] = λ h[t-1] + γ β x[t]``, ``y = Σ_n (gamma/√N) h``, one input and N modes per channel.

    Mega, real: ``λ = 1 - σ(alpha) σ(delta)``, ``γ = σ(delta)``: `MultiHeadEMA`
    (fairseq/modules/exponential_moving_average.py) in facebookresearch/mega, also under the names
    that transformers gave it. Megalodon, complex: ``λ = (1 - σ(alpha) σ(delta)) e^{iφ}``,
    ``φ = 2π n σ(theta)/N`` for n = 1…N, ``γ = σ(alpha)`` and ``y = Re[…]``: `MultiHeadComplexEMA`
    (megalodon/modules/complex_exponential_moving_average.py) in XuezheMax/megalodon.
    """

    name = "ema"
    title = "EMA (Mega and Megalodon)"
    recognised_by = (
        "alpha, delta, beta (D, N, 1) and gamma (D, N), or decay_factor, damping_factor,"
        " ema_expansion_matrix and kernel_projection_matrix; with theta and gamma (D, N, 2) complex"
    )
    equation = (
        "λ = (1 - σ(alpha) σ(delta)) e^(iφ), φ = 0 or 2π n σ(theta)/N; γ = σ(delta) or σ(alpha)"
    )
    source = "facebookresearch/mega, transformers and megalodon; arXiv 2209.10655 and 2404.08801"
    layouts = tuple(
        Layout(("alpha", "delta", last, "gamma"), ("omega",), fits=_fits, called=called)
        for last, called in (("beta", TRANSFORMERS), ("theta", _STORED), ("beta", _STORED))
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        channels, modes, _ = layer.shape("alpha")
        shape, size = (channels, modes), channels * modes
        alpha = layer.real("alpha", (*shape, 1))[..., 0]
        delta = layer.real("delta", (channels, None, 1))[..., 0]
        log_gate = log_sigmoid(alpha) + log_sigmoid(delta)
        # log λ = log(1 - p), p the product of both gates.
        decay = np.minimum(-np.log1p(-np.minimum(np.exp(log_gate), 1 - 1e-16)), LARGEST_DECAY)
        product = np.exp(log_gate)
        turn, turn_slope = np.zeros(shape), np.zeros(shape)
        is_complex = "theta" in layer.names
        if is_complex:
            theta = layer.real("theta", (channels, 1, 1))[..., 0]
            order = 2 * math.pi * np.arange(1, modes + 1) / modes
            turn = order * sigmoid(theta)
            turn_slope = turn * sigmoid(-theta)
        direction = np.exp(1j * turn)
        # One scalar for each mode, or one for all modes of a channel.
        gate = "alpha" if is_complex else "delta"
        groups = []
        for role, values in (("alpha", alpha), ("delta", delta)):
            shut = sigmoid(-values)
            slope = -product * shut * direction
            groups.append(layer.group(role, values, slope, shut if role == gate else None))
        if is_complex:
            slope = 1j * turn_slope * np.exp(-decay + 1j * turn)
            groups.append(layer.group("theta", theta, slope))
        scale = math.sqrt(1 / modes)
        along: list[ProjectionGroup] = []
        readin = np.ones((size, 1), dtype=np.complex128)
        if "beta" in layer.names:
            # The Mega block of state-spaces/s4 drops the last axis of one.
            expansion = layer.real("beta", (*shape, *layer.shape("beta")[2:]))
            readin = expansion.reshape(size, 1).astype(np.complex128)
            along += layer.parts("beta", "B", readin.shape)
        stored: Complexes = layer.pairs("gamma", shape, paired=is_complex)
        readout = scale * stored.reshape(1, size)
        along += layer.parts("gamma", "C", readout.shape, pairs=is_complex, factor=scale)
        along += direct_part(layer.store, layer.names.get("omega"), 1, channels, channels=True)
        both = "omega" in layer.names and layer.shape("omega") == (channels // 2,)
        return layer.recurrence(
            -decay + 1j * turn,
            groups,
            log_gain=log_sigmoid(alpha if is_complex else delta),
            channels=channels,
            readin=readin,
            readout=readout,
            projections=() if both else tuple(along),
            stable_by_construction=True,
            also=(_BOTH_DIRECTIONS,) if both else (),
        )


PARCAE = {
    "rate": "log_state_decay",
    "step": "log_delta",
    "B": "input_matrix_continuous",
    "C": "out_proj.weight",
}
PARCAE_ESM = {
    "rate": "parcae_log_a",
    "step": "parcae_log_delta",
    "B": "parcae_b_cont",
    "C": "parcae_readout.weight",
}
_RECYCLING = (
    "a step is one recycling loop, and the folding trunk rewrites the state between two of them: "
    "λ is that of the update alone"
)


class Parcae(LayoutFamily):
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
    layouts = tuple(
        Layout(
            ("rate", "step", "B"),
            ("C",),
            fits=lambda shapes: (
                len(shapes["rate"]) == 1
                and (shapes["step"], shapes["B"]) == (shapes["rate"], shapes["rate"] * 2)
            ),
            called=called,
        )
        for called in (PARCAE, PARCAE_ESM)
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        (size,) = layer.shape("rate")
        rate, stored = layer.real("rate", (size,)), layer.real("step", (size,))
        step = apply_transform(stored, "softplus")
        # Both factors may overflow alone where their product does not.
        decay = np.exp(np.minimum(rate + step.log.real, np.log(LARGEST_DECAY)))
        slopes = -decay * np.exp(-decay)
        require_finite(slopes, layer.names["rate"], "the decay")
        readin = layer.real("B", (size, size)).astype(np.complex128)
        readout: Complexes | None = None
        projections: tuple[ProjectionGroup, ...] = ()
        if "C" in layer.names:
            readout = layer.real("C", (None, size)).astype(np.complex128)
            projections = (
                *layer.parts("B", "B", readin.shape),
                *layer.parts("C", "C", readout.shape),
            )
        along_step = slopes * step.log_slope
        return layer.recurrence(
            -decay,
            (
                layer.group("rate", rate, slopes, name="log_state_decay"),
                layer.group("step", stored, along_step, step.log_slope, name="log_delta"),
            ),
            log_gain=step.log,
            stable_by_construction=True,
            also=(_RECYCLING,),
            readin=readin,
            readout=readout,
            projections=projections,
        )
