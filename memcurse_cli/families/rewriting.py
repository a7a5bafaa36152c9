"""The same eigenvalues and the same output in other parameters: what a cure would look like.

As ``Re[c h] = Re[c̄ h̄]`` for a real input, angles are in [0, π]; a gain γ' for γ makes B γB/γ'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.errors import UsageError
from memcurse_cli.families.reading import LARGEST_DECAY, parameter_group
from memcurse_cli.families.recurrence import Complexes, Integers, Recurrence
from memcurse_cli.theory.parametrization import (
    DEFAULT_STEP_SIZE,
    INVERTIBLE,
    PARAMETRIZATIONS,
    normalizing_log_gain,
    normalizing_rate,
    parametrize,
)

Gain = Literal["held", "own", "coupled"]

STABLE = frozenset({"lru", "optimal", "s4"})
"""The parametrisations that hold |λ| < 1 and nothing else."""

LARGEST_CONDITION = 1e8
"""κ(P) beyond which B and C in the eigenbasis have lost half of their digits."""


class Rewriting(Struct, frozen=True):
    """Other parameters for the eigenvalues of a layer; a UsageError for what is not known."""

    parametrization: str | None  # one of `INVERTIBLE`, or None to keep the layer's
    # ``held`` keeps γ, and no parameter moves it; ``own`` is γ = √(1-|λ|²) with a parameter
    # ``gamma_log``, as in an LRU; ``coupled`` is that γ computed from λ, which moves it too.
    gain: Gain = "held"
    # What every |λ| above it becomes; the function is then another.
    largest: float | None = None

    def __post_init__(self) -> None:
        if self.parametrization is not None and self.parametrization not in INVERTIBLE:
            what = f"'{self.parametrization}' is not known"
            remedy = f"choose one of {', '.join(INVERTIBLE)}"
            raise UsageError(what, where="--as", remedy=remedy)
        if self.gain not in ("held", "own", "coupled"):
            raise UsageError(
                f"'{self.gain}' is not known", where="--normalize", remedy="give own or coupled"
            )
        if self.largest is not None and not 0 < self.largest < 1:
            remedy = "give a number below 1, as 0.999"
            raise UsageError("is not in (0, 1)", where="--clip-modulus", remedy=remedy)

    @property
    def step_size(self) -> float | None:
        """Δ, which only ``s4`` has."""
        return DEFAULT_STEP_SIZE if self.parametrization == "s4" else None


def is_linear(recurrence: Recurrence) -> bool:
    """Whether a layer is one linear map of its inputs, whatever they are."""
    gated = recurrence.hidden_feedback or recurrence.input_dependent or recurrence.rank_one
    return recurrence.is_linear and recurrence.activation == "linear" and not gated


def unstorable(recurrence: Recurrence) -> str | None:
    """Why a linear layer's new form cannot stand in its place in a checkpoint, or None."""
    if recurrence.channel is not None or recurrence.multiplicity > 1:
        return "its states do not all see the same inputs by one B"
    dense = recurrence.dense
    if dense is not None and dense.heads > 1:
        return "its tensors hold other layers too"
    # One that runs backward too has a C for that, and no projections.
    held = recurrence.readin is not None and recurrence.readout is not None
    if not held or (dense is None and not recurrence.projections):
        return "its B and C are not both in the layer, or C reads another pass too"
    return None


class Rewritten(NamedTuple):
    """A layer in other parameters, or None; the number of |λ| >= 1 that it cannot hold is left out.

    ``reason`` says why the layer, or its B and C, are missing.
    """

    recurrence: Recurrence | None
    left_out: int
    reason: str | None = None


def rewrite(recurrence: Recurrence, rewriting: Rewriting) -> Rewritten:
    """A layer with the same eigenvalues and the same output in other parameters.

    A dense layer becomes the complex diagonal one of its eigenvalues, one of each conjugate pair:
    ``y = Re[C P h]`` with ``P⁻¹B`` as the new B, and the column of a pair counted twice.
    """
    reason = None
    if recurrence.dense is not None:
        if rewriting.parametrization is None:
            return Rewritten(
                None, 0, "a dense matrix has no gain of its own to normalise: name a diagonal form"
            )
        recurrence, reason = _diagonalised(recurrence)
    if rewriting.largest is not None:
        logs = recurrence.log_eigenvalues
        clipped = np.minimum(logs.real, np.log(rewriting.largest)) + 1j * logs.imag
        recurrence = replace(recurrence, log_eigenvalues=clipped)
    stable = rewriting.parametrization in STABLE
    kept = np.ones(recurrence.size, dtype=bool)
    if stable or rewriting.gain != "held":  # neither holds |λ| >= 1
        kept = recurrence.log_eigenvalues.real < 0
    left_out = int(np.count_nonzero(~kept))
    if not kept.any():
        return Rewritten(None, left_out, "every eigenvalue has |λ| >= 1")
    if left_out:
        recurrence = _restricted(recurrence, np.flatnonzero(kept))
    if rewriting.parametrization is not None:
        recurrence = _upper_half_plane(recurrence)
        logs = recurrence.log_eigenvalues
        moved = parametrize(logs, rewriting.parametrization).derivatives
        groups = tuple(
            parameter_group(
                name, "", values, "", moved[name].eigenvalue, keeps_stable=name == "theta"
            )
            for name, values in PARAMETRIZATIONS[rewriting.parametrization].values(logs).items()
        )
        # What is learnt then no longer depends on the input.
        recurrence = replace(
            recurrence, parameters=groups, stable_by_construction=stable, input_dependent=False
        )
    if rewriting.gain != "held":
        recurrence = _normalised(recurrence, rewriting.gain)
    return Rewritten(recurrence, left_out, reason)


def _diagonalised(recurrence: Recurrence) -> tuple[Recurrence, str | None]:
    basis, reason = recurrence.eigenbasis, None
    if not basis.condition <= LARGEST_CONDITION:
        reason = f"B and C have no digits left in its eigenbasis, κ(P) > {LARGEST_CONDITION:.0e}"
        recurrence = replace(recurrence, readin=None, readout=None)
    diagonal = _changed(
        recurrence,
        lambda rows: basis.rows @ rows,
        lambda columns: (columns @ basis.columns) * basis.weight,
        log_eigenvalues=basis.logs,
        log_gain=np.zeros(basis.half.size, np.complex128),
        parameters=(),
        dense=None,
    )
    return diagonal, reason


def _changed(
    recurrence: Recurrence,
    readin: Callable[[Complexes], Complexes],
    readout: Callable[[Complexes], Complexes],
    **fields: Any,
) -> Recurrence:
    """The layer with what becomes of its B and C, where it has them, and other fields."""
    b, c = recurrence.readin, recurrence.readout
    b, c = b if b is None else readin(b), c if c is None else readout(c)
    return replace(recurrence, readin=b, readout=c, projections=(), **fields)


def _restricted(recurrence: Recurrence, kept: Integers) -> Recurrence:
    place = np.full(recurrence.size, -1)
    place[kept] = np.arange(kept.size)
    groups = []
    for group in recurrence.parameters:
        entries = np.flatnonzero(place[group.eigenvalue] >= 0)
        if not entries.size:
            continue
        scalars, scalar = np.unique(group.scalar[entries], return_inverse=True)
        rate = group.log_gain_derivative
        groups.append(
            replace(
                group,
                size=scalars.size,
                values=group.values[scalars],
                scalar=scalar,
                eigenvalue=place[group.eigenvalue[entries]],
                eigenvalue_derivative=group.eigenvalue_derivative[entries],
                log_gain_derivative=None if rate is None else rate[entries],
            )
        )
    return _changed(
        recurrence,
        lambda rows: rows[kept],
        lambda columns: columns[:, kept],
        log_eigenvalues=recurrence.log_eigenvalues[kept],
        log_gain=recurrence.log_gain[kept],
        parameters=tuple(groups),
        channel=None if recurrence.channel is None else recurrence.channel[kept],
    )


def _upper_half_plane(recurrence: Recurrence) -> Recurrence:
    """The layer with every angle in [0, π] and every decay at most `LARGEST_DECAY`."""
    logs = recurrence.log_eigenvalues
    angle = np.angle(np.exp(1j * logs.imag))
    angle = np.where(np.abs(logs.imag) <= np.pi, logs.imag, angle)  # one in place is not rounded
    lower = angle < 0
    return _changed(
        recurrence,
        lambda rows: np.where(lower[:, None], rows.conj(), rows),
        lambda columns: np.where(lower, columns.conj(), columns),
        log_eigenvalues=np.maximum(logs.real, -LARGEST_DECAY) + 1j * np.abs(angle),
        log_gain=np.where(lower, recurrence.log_gain.conj(), recurrence.log_gain),
    )


def _normalised(recurrence: Recurrence, gain: Gain) -> Recurrence:
    """The layer with γ = √(1-|λ|²), its own parameter or computed from λ."""
    logs = recurrence.log_eigenvalues
    log_gain = normalizing_log_gain(logs)

    groups = []
    for group in recurrence.parameters:
        # What moved nothing but the gain has gone with it.
        if group.log_gain_derivative is None or np.any(group.eigenvalue_derivative):
            rate = None
            if gain == "coupled":
                rate = normalizing_rate(logs[group.eigenvalue], group.eigenvalue_derivative) + 0j
            groups.append(replace(group, log_gain_derivative=rate))
    if gain == "own":
        nothing, one = np.zeros(logs.size), np.ones(logs.size)
        groups.append(parameter_group("gamma_log", "", log_gain.real, "", nothing, one))
    ratio = np.exp(recurrence.log_gain - log_gain)[:, None]
    return _changed(
        recurrence,
        lambda rows: ratio * rows,
        lambda columns: columns,
        log_gain=log_gain,
        parameters=tuple(groups),
    )


def rewritings(parametrizations: Sequence[str], gain: str | None = None) -> tuple[Rewriting, ...]:
    """One rewriting per parametrisation, or that of the gain alone; none where neither is named."""
    names = tuple(dict.fromkeys(parametrizations)) or (None,) * (gain is not None)
    return tuple(Rewriting(name, cast(Gain, gain or "held")) for name in names)
