"""The same eigenvalues and the same output in other parameters: what a cure would look like.

An eigenvalue may be conjugated together with its row of B and its column of C, since
``Re[c h] = Re[c̄ h̄]`` for a real input: every angle is taken in [0, π]. A gain γ' in the place of γ
turns B into γB/γ', so that γB and the output stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import numpy as np

from memcurse_cli.errors import UsageError
from memcurse_cli.families.reading import LARGEST_DECAY, parameter_group
from memcurse_cli.families.recurrence import Complexes, Floats, Integers, ParameterGroup, Recurrence
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


@dataclass(frozen=True)
class Rewriting:
    """Other parameters for the eigenvalues of a layer.

    Attributes:
        parametrization: one of `theory.parametrization.INVERTIBLE`, or None to keep the layer's.
        gain: ``held`` keeps γ, and no parameter moves it; ``own`` is γ = √(1-|λ|²) with a
            parameter ``gamma_log`` of its own, as in an LRU; ``coupled`` is the same γ computed
            from λ, so that a step on λ moves it too.

    Raises:
        UsageError: an unknown name, or nothing to change.
    """

    parametrization: str | None
    gain: Gain = "held"

    def __post_init__(self) -> None:
        if self.parametrization is not None and self.parametrization not in INVERTIBLE:
            raise UsageError(
                f"'{self.parametrization}' is not known",
                where="--as",
                remedy=f"choose one of {', '.join(INVERTIBLE)}",
            )
        if self.gain not in ("held", "own", "coupled"):
            raise UsageError(
                f"'{self.gain}' is not known", where="--normalize", remedy="give own or coupled"
            )
        if self.parametrization is None and self.gain == "held":
            raise UsageError("nothing is to be changed", where="--as", remedy="name what is")

    @property
    def needs_stable(self) -> bool:
        """Whether no eigenvalue with |λ| >= 1 can be written so."""
        return self.parametrization in STABLE or self.gain != "held"

    @property
    def step_size(self) -> float | None:
        """Δ, which only ``s4`` has."""
        return DEFAULT_STEP_SIZE if self.parametrization == "s4" else None


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
    kept = np.ones(recurrence.size, dtype=bool)
    if rewriting.needs_stable:
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
            replace(
                parameter_group(name, "", values, "", moved[name].eigenvalue),
                keeps_stable=name == "theta",
            )
            for name, values in PARAMETRIZATIONS[rewriting.parametrization].values(logs).items()
        )
        stable = rewriting.parametrization in STABLE
        # What is learnt then no longer depends on the input.
        recurrence = replace(
            recurrence, parameters=groups, stable_by_construction=stable, input_dependent=False
        )
    if rewriting.gain != "held":
        recurrence = _normalised(recurrence, rewriting.gain)
    return Rewritten(recurrence, left_out, reason)


def _diagonalised(recurrence: Recurrence) -> tuple[Recurrence, str | None]:
    basis = recurrence.eigenbasis
    readin, readout, reason = recurrence.readin, recurrence.readout, None
    if not basis.condition <= LARGEST_CONDITION:
        reason = f"B and C have no digits left in its eigenbasis, κ(P) > {LARGEST_CONDITION:.0e}"
        readin = readout = None
    diagonal = replace(
        recurrence,
        log_eigenvalues=basis.logs,
        log_gain=np.zeros(basis.half.size, np.complex128),
        readin=None if readin is None else basis.rows @ readin,
        readout=None if readout is None else (readout @ basis.columns) * basis.weight,
        parameters=(),
        projections=(),
        dense=None,
    )
    return diagonal, reason


def _restricted(recurrence: Recurrence, kept: Integers) -> Recurrence:
    """The layer of some of the eigenvalues alone."""
    place = np.full(recurrence.size, -1)
    place[kept] = np.arange(kept.size)
    groups = []
    for group in recurrence.parameters:
        entries = np.flatnonzero(place[group.eigenvalue] >= 0)
        if entries.size == 0:
            continue
        scalars, scalar = np.unique(group.scalar[entries], return_inverse=True)
        rate = group.log_gain_derivative
        groups.append(
            replace(
                group,
                values=group.values[scalars],
                scalar=scalar,
                eigenvalue=place[group.eigenvalue[entries]],
                eigenvalue_derivative=group.eigenvalue_derivative[entries],
                log_gain_derivative=None if rate is None else rate[entries],
            )
        )
    readin, readout, channel = recurrence.readin, recurrence.readout, recurrence.channel
    return replace(
        recurrence,
        log_eigenvalues=recurrence.log_eigenvalues[kept],
        log_gain=recurrence.log_gain[kept],
        parameters=tuple(groups),
        readin=None if readin is None else readin[kept],
        readout=None if readout is None else readout[:, kept],
        channel=None if channel is None else channel[kept],
        projections=(),
    )


def _upper_half_plane(recurrence: Recurrence) -> Recurrence:
    """The layer with every angle in [0, π] and every decay at most `LARGEST_DECAY`."""
    logs = recurrence.log_eigenvalues
    angle = np.angle(np.exp(1j * logs.imag))
    angle = np.where(np.abs(logs.imag) <= np.pi, logs.imag, angle)  # one in place is not rounded
    lower = angle < 0
    readin, readout = recurrence.readin, recurrence.readout
    if readin is not None:
        readin = np.where(lower[:, None], readin.conj(), readin)
    if readout is not None:
        readout = np.where(lower, readout.conj(), readout)
    return replace(
        recurrence,
        log_eigenvalues=np.maximum(logs.real, -LARGEST_DECAY) + 1j * np.abs(angle),
        log_gain=np.where(lower, recurrence.log_gain.conj(), recurrence.log_gain),
        readin=readin,
        readout=readout,
        projections=(),
    )


def _normalised(recurrence: Recurrence, gain: Gain) -> Recurrence:
    """The layer with γ = √(1-|λ|²), its own parameter or computed from λ."""
    logs = recurrence.log_eigenvalues
    log_gain = normalizing_log_gain(logs)

    def rates(group: ParameterGroup) -> Complexes:
        rate: Floats = normalizing_rate(logs[group.eigenvalue], group.eigenvalue_derivative)
        return rate.astype(np.complex128)

    groups = [
        replace(group, log_gain_derivative=rates(group) if gain == "coupled" else None)
        for group in recurrence.parameters
        # What moved nothing but the gain has gone with it.
        if group.log_gain_derivative is None or np.any(group.eigenvalue_derivative)
    ]
    if gain == "own":
        nothing, one = np.zeros(logs.size), np.ones(logs.size)
        groups.append(parameter_group("gamma_log", "", log_gain.real, "", nothing, one))
    readin = recurrence.readin
    if readin is not None:
        readin = np.exp(recurrence.log_gain - log_gain)[:, None] * readin
    return replace(
        recurrence,
        log_gain=log_gain,
        parameters=tuple(groups),
        readin=readin,
        projections=(),
    )


def rewritings(parametrizations: Sequence[str], gain: str | None = None) -> tuple[Rewriting, ...]:
    """One rewriting per parametrisation, or that of the gain alone; none where neither is named.

    Raises:
        UsageError: a name is unknown.
    """
    names: Sequence[str | None] = tuple(dict.fromkeys(parametrizations))
    if gain is not None:
        names = names or (None,)
    return tuple(Rewriting(name, cast(Gain, gain or "held")) for name in names)
