"""Moving averages: Mega's, Megalodon's and mega-pytorch's; and Parcae, ESMFold2's recycling."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import channel_direct_part, stored_parts
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    log_sigmoid,
    one_to_many,
    one_to_one,
    read_pairs,
    read_real,
    require_finite,
    sigmoid,
)
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.families.state_space.discretization import apply_transform

_RATE, _DAMPING = "alphas", "dampen_factors"
_BACKWARD = ("reverse_alphas", "reverse_dampen_factors")
_PROJECTIONS = ("expansion", "reduction")

_BOTH_DIRECTIONS_HEADED = (
    "the second half of the heads runs backward in time; expansion and reduction are not read"
)


class MultiHeadedEMA:
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
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with rates of every head and projections of every head and channel."""
        roles = (_RATE, _DAMPING, *_BACKWARD, *_PROJECTIONS)
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, roles).items()
            if _fits_headed({role: tensors[name].shape for role, name in names.items()})
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the rates, and where time runs one way the projections."""
        names = match.tensors
        pairs = [(_RATE, _DAMPING), _BACKWARD][: 2 if _BACKWARD[0] in names else 1]
        (heads,) = store.tensors[names[_RATE]].shape
        rows, channels = store.tensors[names["expansion"]].shape
        head = np.repeat(np.arange(heads), channels)
        logs, gains, groups = [], [], []
        for direction, (rate, damping) in enumerate(pairs):
            place = direction * head.size + np.arange(head.size)
            alpha, delta = (read_real(store, names[role], (heads,)) for role in (rate, damping))
            logs.append(log_sigmoid(-alpha) + log_sigmoid(delta))
            gains.append(log_sigmoid(alpha))
            eigenvalue = np.exp(logs[-1])
            for role, values, slope, log_gain_slope in (
                (rate, alpha, -eigenvalue * sigmoid(alpha), sigmoid(-alpha)[head]),
                (damping, delta, eigenvalue * sigmoid(-delta), None),
            ):
                moved = (store.tensors[names[role]].dtype, head, slope[head], log_gain_slope)
                groups.append(one_to_many(role, names[role], values, *moved, eigenvalue=place))
        readin = readout = None
        projections: tuple[ProjectionGroup, ...] = ()
        if len(pairs) == 1:
            expansion, reduction = (
                read_real(store, names[role], (rows, channels)) for role in _PROJECTIONS
            )
            readin = expansion.reshape(-1, 1).astype(np.complex128)
            readout = reduction.reshape(1, -1).astype(np.complex128)
            projections = (
                *stored_parts(store, names["expansion"], "B", readin.shape),
                *stored_parts(store, names["reduction"], "C", readout.shape),
            )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=np.repeat(np.concatenate(logs), channels).astype(np.complex128),
            log_gain=np.repeat(np.concatenate(gains), channels).astype(np.complex128),
            parameters=tuple(groups),
            readin=readin,
            readout=readout,
            channel=np.tile(np.arange(channels), rows),
            stable_by_construction=True,
            assumptions=() if len(pairs) == 1 else (_BOTH_DIRECTIONS_HEADED,),
            projections=projections,
        )


def _fits_headed(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the shapes are (heads), and (heads, D) or twice as many rows with both directions."""
    if not shapes.keys() >= {_RATE, _DAMPING, *_PROJECTIONS}:
        return False
    both = [role in shapes for role in _BACKWARD]
    rates = {shapes[role] for role in (_RATE, _DAMPING, *_BACKWARD) if role in shapes}
    if both[0] != both[1] or len(rates) != 1 or len(shapes[_RATE]) != 1:
        return False
    rows = shapes[_RATE][0] * (1 + both[0])
    expansion, reduction = (shapes[role] for role in _PROJECTIONS)
    return len(expansion) == 2 and expansion == reduction and expansion[0] == rows > 0


MEGA = {role: role for role in ("alpha", "delta", "beta", "gamma", "omega")}
TRANSFORMERS = {
    "alpha": "decay_factor",
    "delta": "damping_factor",
    "beta": "ema_expansion_matrix",
    "gamma": "kernel_projection_matrix",
    "omega": "residual_weight",
}
MEGALODON = {role: role for role in ("alpha", "delta", "theta", "gamma", "omega")}

_BOTH_DIRECTIONS = (
    "the second half of the channels runs backward in time; its outputs count as separate ones,"
    " which is exact for the eigenvalues at white input"
)


class EMA:
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
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every module with all of one library's names in the right shapes."""
        roles = {*MEGA.values(), *TRANSFORMERS.values(), *MEGALODON.values()}
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            for library in (TRANSFORMERS, MEGALODON, MEGA):
                found = {role: names[name] for role, name in library.items() if name in names}
                shapes = {role: tensors[name].shape for role, name in found.items()}
                if found.keys() >= library.keys() - {"omega"} and _fits(shapes):
                    matches.append(Match(module or self.name, found))
                    break
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the rates, the expansion and the projection."""
        names = match.tensors
        channels, modes, _ = store.tensors[names["alpha"]].shape
        shape = (channels, modes)
        alpha = read_real(store, names["alpha"], (*shape, 1))[..., 0]
        delta = read_real(store, names["delta"], (channels, None, 1))[..., 0]
        log_gate = log_sigmoid(alpha) + log_sigmoid(delta)
        # log λ = log(1 - p), p the product of both gates.
        decay = np.minimum(-np.log1p(-np.minimum(np.exp(log_gate), 1 - 1e-16)), LARGEST_DECAY)
        product = np.exp(log_gate)
        turn, turn_slope = np.zeros(shape), np.zeros(shape)
        is_complex = "theta" in names
        if is_complex:
            theta = read_real(store, names["theta"], (channels, 1, 1))[..., 0]
            order = 2 * math.pi * np.arange(1, modes + 1) / modes
            turn = order * sigmoid(theta)
            turn_slope = turn * sigmoid(-theta)
        eigenvalues, direction = np.exp(-decay + 1j * turn), np.exp(1j * turn)
        # One scalar for each mode, or one for all modes of a channel.
        gate = "alpha" if is_complex else "delta"
        parts: list[tuple[str, Floats, Complexes, Floats | None]] = []
        for role, values in (("alpha", alpha), ("delta", delta)):
            shut = sigmoid(-values)
            parts.append(
                (role, values, -product * shut * direction, shut if role == gate else None)
            )
        if is_complex:
            parts.append(("theta", theta, 1j * turn_slope * eigenvalues, None))
        parameters = tuple(
            one_to_many(
                role,
                names[role],
                values,
                store.tensors[names[role]].dtype,
                np.arange(values.size).reshape(values.shape),
                slope,
                log_gain_slope,
            )
            for role, values, slope, log_gain_slope in parts
        )
        log_gain = np.broadcast_to(log_sigmoid(alpha if is_complex else delta), shape)
        readin, readout, projections = _read_projections(store, names, shape)
        both = "omega" in names and store.tensors[names["omega"]].shape == (channels // 2,)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=(-decay + 1j * turn).ravel(),
            log_gain=log_gain.ravel().astype(np.complex128),
            parameters=parameters,
            readin=readin,
            readout=readout,
            channel=np.repeat(np.arange(channels), modes),
            stable_by_construction=True,
            assumptions=(_BOTH_DIRECTIONS,) if both else (),
            projections=() if both else projections,
        )


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
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


def _read_projections(
    store: TensorStore, names: Mapping[str, str], shape: tuple[int, int]
) -> tuple[Complexes, Complexes, tuple[ProjectionGroup, ...]]:
    """β as (n, 1), gamma/√N as (1, n), and the elements that they and omega move."""
    channels, modes = shape
    size = channels * modes
    scale = math.sqrt(1 / modes)
    groups: list[ProjectionGroup] = []
    readin = np.ones((size, 1), dtype=np.complex128)
    if "beta" in names:
        # The Mega block of state-spaces/s4 drops the last axis of one.
        last = store.tensors[names["beta"]].shape[2:]
        expansion = read_real(store, names["beta"], (*shape, *last))
        readin = expansion.reshape(size, 1).astype(np.complex128)
        groups += stored_parts(store, names["beta"], "B", readin.shape)
    pairs = "theta" in names
    if pairs:
        readout = scale * read_pairs(store, names["gamma"], shape)
    else:
        readout = scale * read_real(store, names["gamma"], shape).astype(np.complex128)
    readout = readout.reshape(1, size)
    groups += stored_parts(store, names["gamma"], "C", readout.shape, pairs=pairs, factor=scale)
    direct = names.get("omega")
    return readin, readout, (*groups, *channel_direct_part(store, direct, 1, channels))


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
        roles = (*PARCAE.values(), *PARCAE_ESM.values())
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            for library in (PARCAE, PARCAE_ESM):
                found = {role: names[name] for role, name in library.items() if name in names}
                if found.keys() >= {"rate", "step", "B"} and _fits_parcae(tensors, found):
                    matches.append(Match(module or self.name, found))
                    break
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the rates, the steps, B and C."""
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
        dtypes = {role: store.tensors[names[role]].dtype for role in ("rate", "step")}
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
                one_to_one("log_state_decay", names["rate"], rate, dtypes["rate"], slopes),
                one_to_one(
                    "log_delta",
                    names["step"],
                    stored,
                    dtypes["step"],
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


def _fits_parcae(tensors: Mapping[str, TensorSpec], names: Mapping[str, str]) -> bool:
    """Whether the rate, the step and B are of one width."""
    shape = tensors[names["rate"]].shape
    return (
        len(shape) == 1
        and tensors[names["step"]].shape == shape
        and tensors[names["B"]].shape == shape * 2
    )
