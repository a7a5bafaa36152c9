"""The moving averages of Mega, Ma et al. 2023, and of Megalodon, Ma et al. 2024."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.projections import channel_direct_part, stored_parts
from memcurse_cli.recurrences.reading import (
    LARGEST_DECAY,
    group_by_module,
    log_sigmoid,
    one_to_many,
    read_real,
    sigmoid,
)
from memcurse_cli.recurrences.recurrence import (
    Complexes,
    Floats,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.recurrences.s4 import read_pairs

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
        """Read the rates, the expansion and the projection.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
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
        eigenvalues = np.exp(-decay + 1j * turn)
        direction = np.exp(1j * turn)
        gate = "alpha" if is_complex else "delta"
        values = {"alpha": alpha, "delta": delta}
        parameters = [
            _group(
                store,
                names[role],
                role,
                values[role],
                -product * sigmoid(-values[role]) * direction,
                sigmoid(-values[role]) if role == gate else None,
            )
            for role in ("alpha", "delta")
        ]
        if is_complex:
            slope = 1j * turn_slope * eigenvalues
            parameters.append(_group(store, names["theta"], "theta", theta, slope, None))
        readin, readout, projections = _read_projections(store, names, shape)
        both = "omega" in names and store.tensors[names["omega"]].shape == (channels // 2,)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=(-decay + 1j * turn).ravel(),
            log_gain=np.broadcast_to(log_sigmoid(values[gate]), shape)
            .ravel()
            .astype(np.complex128),
            parameters=tuple(parameters),
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


def _group(
    store: TensorStore,
    tensor: str,
    role: str,
    values: Floats,
    slope: Complexes,
    log_gain_slope: Floats | None,
) -> ParameterGroup:
    """One scalar for each mode, or one for all modes of a channel."""
    scalar = np.broadcast_to(np.arange(values.size).reshape(values.shape), slope.shape)
    return one_to_many(
        role,
        tensor,
        values.ravel(),
        store.tensors[tensor].dtype,
        scalar.ravel(),
        slope.ravel(),
        None if log_gain_slope is None else np.broadcast_to(log_gain_slope, slope.shape).ravel(),
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
