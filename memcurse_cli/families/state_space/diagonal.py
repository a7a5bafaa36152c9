"""Diagonal layers of discrete time: the LRU, λ by its parts or polar, modal filters, averages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from memcurse_cli.families.family import Assumption, Family, Layer, Layout, Shapes
from memcurse_cli.families.reading import (
    IMAGINARY,
    LARGEST_DECAY,
    REAL,
    complex_roles,
    log_of_eigenvalues,
    log_sigmoid,
    require_finite,
    sigmoid,
    split_name,
)
from memcurse_cli.families.recurrence import Floats, ProjectionGroup, Recurrence
from memcurse_cli.theory.gates.laws import log_softplus, softplus

NORMALISATION = Assumption(
    key="normalization",
    default="none",
    choices=("none", "lru"),
    meaning="the gain of an LRU without gamma_log: 1, or √(1-|λ|²) computed from λ",
)
EXPONENTIAL = Assumption(
    key="lru-exponential",
    default="true",
    choices=("true", "false"),
    meaning="whether an LRU's nu and theta beside gamma_log are logarithms (exp_param)",
)
_LOGARITHMS = ("nu_log", "theta_log", "gamma_log")
_STACKED = "params_log"
_MATRICES = (*complex_roles("B"), *complex_roles("C"), "D")
_PROJECTIONS = {"B": "in_proj.weight", "C": "out_proj.weight"}


def _is_stack(shapes: Shapes) -> bool:
    return 3 in shapes[_STACKED]


class LRU(Family):
    """``h[t+1] = λ h[t] + γ B x[t+1]``, ``y = Re[C h]``, without conjugate partners.

    ``log λ = -e^{nu_log} + i e^{theta_log}``, so dλ/dnu_log = -e^{nu_log} λ and
    dλ/dtheta_log = i e^{theta_log} λ. nu and theta beside gamma_log are logarithms too, unless
    ``exp_param`` was false, where ``log λ = -nu + i theta``.
    """

    name = "lru"
    title = "LRU"
    recognised_by = "nu_log and theta_log, with gamma_log; or params_log (3, n) or (n, 3)"
    equation = "λ = exp(-e^nu_log + i e^theta_log), γ = e^gamma_log"
    source = "minimal-LRU, online LRU, LRURec; Orvieto et al. 2023, arXiv 2303.06349"
    assumptions = (NORMALISATION, EXPONENTIAL)
    axes: Mapping[str, int] = {
        **dict.fromkeys(_LOGARITHMS, 1),
        **dict.fromkeys((_STACKED, *complex_roles("B"), *complex_roles("C")), 2),
    }
    layouts = (
        # LRURec keeps B and C in complex linear layers; real ones are something else.
        Layout(
            (_STACKED, tuple(_PROJECTIONS)),
            ("D",),
            fits=_is_stack,
            called=_PROJECTIONS,
            complex=dict.fromkeys(_PROJECTIONS, True),
        ),
        Layout((_STACKED,), _MATRICES, fits=_is_stack),
        Layout(("nu_log", "theta_log"), ("gamma_log", *_MATRICES)),
        Layout(_LOGARITHMS, _MATRICES, called={"nu_log": "nu", "theta_log": "theta"}),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        stacked = _STACKED in names
        vectors = _read_exponents(layer)
        nu, theta = vectors["nu_log"], vectors["theta_log"]
        size = nu.size
        plain = not stacked and split_name(names["nu_log"])[1] == "nu"
        direct = plain and layer.options.assume.get(EXPONENTIAL.key) == "false"
        if direct:
            decay, angle = np.clip(nu, -LARGEST_DECAY, LARGEST_DECAY), theta
        else:
            with np.errstate(over="ignore"):
                decay, angle = np.minimum(np.exp(nu), LARGEST_DECAY), np.exp(theta)
            theta_tensor = names[_STACKED if stacked else "theta_log"]
            require_finite(angle, theta_tensor, "the angle e^theta_log")
        log_eigenvalues = -decay + 1j * angle
        eigenvalues = np.exp(log_eigenvalues)
        by_nu, by_theta = (1, 1) if direct else (decay, angle)
        # γ is a parameter of its own, 1, or √(1-|λ|²) computed from λ.
        log_gain, along_nu = np.zeros(size), None
        also: tuple[str, ...] = ()
        normalisation = layer.options.assume.get(NORMALISATION.key)
        if "gamma_log" in vectors:
            log_gain = vectors["gamma_log"]
        elif normalisation != "lru":
            also = () if normalisation else ("the gain γ is 1, since no gamma_log is stored",)
        else:
            # log γ = ½ log(1 - e^{-2 decay}), and d decay / d nu_log = decay
            lost = np.maximum(-np.expm1(-2 * decay), np.exp(-LARGEST_DECAY))
            log_gain, along_nu = 0.5 * np.log(lost), decay * np.exp(-2 * decay) / lost
        slopes = {
            "nu_log": (-by_nu * eigenvalues, along_nu),
            "theta_log": (1j * by_theta * eigenvalues, None),
            "gamma_log": (np.zeros(size), np.ones(size)),
        }
        groups = [
            layer.group(
                _STACKED if stacked else role,
                values,
                *slopes[role],
                name=role.removesuffix("_log") if direct and role != "gamma_log" else role,
                keeps_stable=role == "theta_log",
            )
            for role, values in vectors.items()
        ]
        # minimal-LRU's bidirectional layers have a C of twice the width.
        widths = {layer.shape(role)[-1:] for role in complex_roles("C") if role in names}
        if both := widths == {(2 * size,)}:
            also += ("C reads a pass backward in time too, and is left out",)
        return layer.recurrence(
            log_eigenvalues,
            groups,
            log_gain=log_gain,
            stable_by_construction=not direct,
            also=also,
            **layer.mixing(size, readout=not both),
        )


def _read_exponents(layer: Layer) -> dict[str, Floats]:
    """nu_log, theta_log and, where it is there, gamma_log."""
    if _STACKED in layer.names:
        # A (3, 3) one is taken by rows, as the ports that stack them do.
        by_rows = layer.shape(_STACKED)[0] == 3
        values = layer.real(_STACKED, (3, None) if by_rows else (None, 3))
        rows = np.ascontiguousarray(values if by_rows else values.T)
        return dict(zip(_LOGARITHMS, rows, strict=True))
    # Some JAX ports keep an axis of one for the batch.
    shape = layer.shape("nu_log")
    wanted = (1, shape[1]) if len(shape) == 2 and shape[0] == 1 else (*shape[:1],) or (None,)
    return {role: layer.real(role, wanted).ravel() for role in _LOGARITHMS if role in layer.names}


_VECTORS = ("lambda", "Lambda", "lambda_", "A")
_POLAR = ("nu", "theta")
_FORMS: tuple[tuple[str, ...], ...] = (
    *(("A_re", "A_im"), ("lambda_re", "lambda_im"), ("Lambda_re", "Lambda_im"), _POLAR),
    *((vector,) for vector in _VECTORS),
)
# A layer with a step size is a discretised one: S5, S4 and their kin.
_STEPS = ("log_step", "log_dt", "inv_dt", "dt", "gamma_log")


def _are_vectors(shapes: Shapes) -> bool:
    return all(len(shapes[role]) == 1 for role in shapes if role not in _MATRICES)


class ComplexDiagonalRNN(Family):
    """``h[t+1] = λ h[t] + B x[t+1]``, ``y = Re[C h]``, λ free in the complex plane.

    ``λ = a + ib`` (dλ/da = 1, dλ/db = i), a stored complex vector likewise, or ``λ = ν e^{iθ}``
    (dλ/dν = e^{iθ}, dλ/dθ = iλ). Nothing keeps |λ| below 1.
    """

    name = "complex_diagonal"
    title = "Complex diagonal RNN"
    recognised_by = "A_re and A_im, lambda_re and lambda_im, a complex vector lambda, nu and theta"
    equation = "λ = A_re + i A_im, or nu e^(i theta)"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 4"

    layouts = tuple(
        Layout(form, _MATRICES, _STEPS, _are_vectors, complex=dict.fromkeys(_VECTORS, True))
        for form in _FORMS
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        form = next(form for form in _FORMS if layer.names.keys() >= {*form})
        called, shape = form, layer.shape(form[0])
        if len(form) == 1:
            eigenvalues = layer.pairs(form[0], shape, paired=False)
            first, second = eigenvalues.real.copy(), eigenvalues.imag.copy()
            called = (f"{form[0]}[{REAL}]", f"{form[0]}[{IMAGINARY}]")
        else:
            first, second = (layer.real(role, shape) for role in form)
        size = first.size
        if form == _POLAR:
            direction = np.exp(1j * second)
            # A negative modulus turns the angle by π.
            log_eigenvalues = log_of_eigenvalues(first) + 1j * second
            slopes = (direction, 1j * first * direction)
        else:
            log_eigenvalues = log_of_eigenvalues(first + 1j * second)
            slopes = (np.ones(size), np.full(size, 1j))
        return layer.recurrence(
            log_eigenvalues,
            (
                layer.group(form[0], first, slopes[0], name=called[0]),
                layer.group(
                    form[-1], second, slopes[1], name=called[1], keeps_stable=form == _POLAR
                ),
            ),
            **layer.mixing(size),
        )


_PRODUCT = (
    "what the state takes in is a product of two projections of the input, after short filters"
)


class StripedHyena(Family):
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

    layouts = (
        Layout(
            ("poles", "residues"),
            fits=lambda of: of["residues"][2:] == (1, 2) and of["poles"] == of["residues"],
        ),
        Layout(
            ("log_poles", "residues"),
            fits=lambda of: len(of["residues"]) == 2 and of["log_poles"] == (*of["residues"], 1),
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        shape = filters, modes = layer.shape("residues")[:2]
        pairs = "poles" in layer.names
        if pairs:
            readout = layer.pairs("residues", (*shape, 1)).reshape(1, -1)
            poles = layer.pairs("poles", (*shape, 1)).reshape(-1, 1)
            stored, slopes = np.concatenate([poles.real, poles.imag], axis=1), np.array([1, 1j])
            log_eigenvalues = log_of_eigenvalues(poles)
        else:
            readout = layer.real("residues", shape).reshape(1, -1).astype(np.complex128)
            stored = layer.real("log_poles", (*shape, 1)).reshape(-1, 1)
            log_eigenvalues = np.clip(stored, -LARGEST_DECAY, LARGEST_DECAY)
            slopes = np.exp(log_eigenvalues)
        mode = np.arange(filters * modes)[:, None]
        role = "poles" if pairs else "log_poles"
        return layer.recurrence(
            log_eigenvalues,
            (layer.group(role, stored, slopes, eigenvalue=mode),),
            channels=filters,
            readout=readout,
            projections=(
                *layer.parts("residues", "C", readout.shape, pairs=pairs),
                *layer.direct(layer.beside("residues", "D"), 1, filters, channels=True),
            ),
            also=(_PRODUCT,),
        )


_RATE, _DAMPING = "alphas", "dampen_factors"
_BACKWARD = ("reverse_alphas", "reverse_dampen_factors")
_EXPANDED = ("expansion", "reduction")

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
    expansion, reduction = (shapes[role] for role in _EXPANDED)
    return len(expansion) == 2 and expansion == reduction and expansion[0] == rows > 0


class MultiHeadedEMA(Family):
    """``h[t] = λ h[t-1] + γ β x[t]``, ``y = Σ_heads η h``, one state per head and channel.

    ``λ = (1 - σ(alphas)) σ(dampen_factors)`` and ``γ = σ(alphas)`` are those of a head, and one
    scalar moves the λ of all channels.
    """

    name = "multi_headed_ema"
    title = "Multi-headed EMA (mega-pytorch)"
    recognised_by = "alphas and dampen_factors (heads) beside expansion and reduction (heads, D)"
    equation = "λ = (1 - σ(alphas)) σ(dampen_factors), γ = σ(alphas)"
    source = "mega-pytorch, MultiHeadedEMA; Ma et al. 2023, arXiv 2209.10655"
    layouts = (Layout((_RATE, _DAMPING, *_EXPANDED), _BACKWARD, fits=_fits_headed),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        directions = [(_RATE, _DAMPING), _BACKWARD][: 1 + (_BACKWARD[0] in layer.names)]
        (heads,) = layer.shape(_RATE)
        rows, channels = layer.shape("expansion")
        logs, gains, groups = [], [], []
        modes = np.arange(rows * channels).reshape(-1, heads, channels)
        for (rate, damping), mode in zip(directions, modes, strict=True):
            alpha, delta = (layer.real(role, (heads,))[:, None] for role in (rate, damping))
            logs.append(log_sigmoid(-alpha) + log_sigmoid(delta))
            gains.append(log_sigmoid(alpha))
            eigenvalue = np.exp(logs[-1])
            slope, gain = -eigenvalue * sigmoid(alpha), sigmoid(-alpha)
            groups.append(layer.group(rate, alpha, slope, gain, eigenvalue=mode))
            slope = eigenvalue * sigmoid(-delta)
            groups.append(layer.group(damping, delta, slope, eigenvalue=mode))
        matrices: dict[str, Any] = {"also": (_BOTH_DIRECTIONS_HEADED,)}
        if len(directions) == 1:
            expansion, reduction = (layer.real(role, (rows, channels)) for role in _EXPANDED)
            matrices = {
                "readin": expansion.reshape(-1, 1).astype(np.complex128),
                "readout": reduction.reshape(1, -1).astype(np.complex128),
                "projections": (
                    *layer.parts("expansion", "B", (expansion.size, 1)),
                    *layer.parts("reduction", "C", (1, reduction.size)),
                ),
            }
        return layer.recurrence(
            np.broadcast_to(np.concatenate(logs), (rows, channels)),
            groups,
            log_gain=np.concatenate(gains),
            channel=np.tile(np.arange(channels), rows),
            stable_by_construction=True,
            **matrices,
        )


_STORED = {role: role for role in ("alpha", "delta", "beta", "theta", "gamma", "omega")}
TRANSFORMERS = {
    "alpha": "decay_factor",
    "delta": "damping_factor",
    "beta": "ema_expansion_matrix",
    "gamma": "kernel_projection_matrix",
    "omega": "residual_weight",
}

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


class EMA(Family):
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
        product = np.exp(log_sigmoid(alpha) + log_sigmoid(delta))
        # log λ = log(1 - p), p the product of both gates.
        decay = -np.log1p(-np.minimum(product, 1 - 1e-16))
        is_complex = "theta" in layer.names
        turn = np.zeros(shape)
        if is_complex:
            theta = layer.real("theta", (channels, 1, 1))[..., 0]
            turn = 2 * math.pi * np.arange(1, modes + 1) / modes * sigmoid(theta)
        direction = np.exp(1j * turn)
        # One scalar for each mode, or one for all modes of a channel.
        gate, groups = "alpha" if is_complex else "delta", []
        for role, values in (("alpha", alpha), ("delta", delta)):
            shut = sigmoid(-values)
            slope = -product * shut * direction
            groups.append(layer.group(role, values, slope, shut if role == gate else None))
        if is_complex:
            slope = 1j * turn * sigmoid(-theta) * np.exp(-decay) * direction
            groups.append(layer.group("theta", theta, slope))
        scale = math.sqrt(1 / modes)
        along: list[ProjectionGroup] = []
        readin = np.ones((size, 1), dtype=np.complex128)
        if "beta" in layer.names:
            # The Mega block of state-spaces/s4 drops the last axis of one.
            expansion = layer.real("beta", (*shape, *layer.shape("beta")[2:]))
            readin = expansion.reshape(size, 1).astype(np.complex128)
            along += layer.parts("beta", "B", readin.shape)
        readout = scale * layer.pairs("gamma", shape, paired=is_complex).reshape(1, size)
        along += layer.parts("gamma", "C", readout.shape, pairs=is_complex, factor=scale)
        along += layer.direct(layer.names.get("omega"), 1, channels, channels=True)
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


_ROLES = ("rate", "step", "B", "C")
_NAMES = ("log_state_decay", "log_delta", "input_matrix_continuous", "out_proj.weight")
_NAMES_OF_ESM = ("parcae_log_a", "parcae_log_delta", "parcae_b_cont", "parcae_readout.weight")
PARCAE, PARCAE_ESM = (dict(zip(_ROLES, names, strict=True)) for names in (_NAMES, _NAMES_OF_ESM))
_RECYCLING = (
    "a step is one recycling loop, and the folding trunk rewrites the state between two of them: "
    "λ is that of the update alone"
)


class Parcae(Family):
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
            fits=lambda of: len(of["rate"]) == 1 and of["step"] * 2 == of["rate"] * 2 == of["B"],
            called=called,
        )
        for called in (PARCAE, PARCAE_ESM)
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        (size,) = layer.shape("rate")
        rate, stored = layer.real("rate", (size,)), layer.real("step", (size,))
        log_step = log_softplus(stored)
        log_slope = np.exp(-softplus(-stored) - log_step)
        # Both factors may overflow alone where their product does not.
        decay = np.exp(np.minimum(rate + log_step, np.log(LARGEST_DECAY)))
        slopes = -decay * np.exp(-decay)
        return layer.recurrence(
            -decay,
            (
                layer.group("rate", rate, slopes, name="log_state_decay"),
                layer.group("step", stored, slopes * log_slope, log_slope, name="log_delta"),
            ),
            log_gain=log_step,
            stable_by_construction=True,
            also=(_RECYCLING,),
            **layer.mixing(size),
        )
