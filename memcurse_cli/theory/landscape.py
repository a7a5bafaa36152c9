"""The loss of one eigenvalue against another, along each parameter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import Readout, pair_moments
from memcurse_cli.theory.parametrization import (
    DEFAULT_STEP_SIZE,
    PARAMETRIZATIONS,
    normalizing_log_gain,
    parametrize,
)

NORMALIZATIONS = {"none": "none", "own": "lru", "coupled": "coupled"}
"""The gains of a landscape, and what `theory.parametrization` calls them."""

GRID = 24 * 12 + 1  # a dozen distances per decade, from 1e-18 on
BISECTIONS = 60
FARTHEST = 1e6  # a parameter that is moved farther than this does not raise the loss to the level


def loss(
    log_eigenvalues: Complexes,
    log_gains: Complexes,
    target: complex,
    target_log_gain: complex,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    readout: Readout = "last",
) -> Floats:
    """(n,) L over that of a silent student, ½ |γ*|² E|h*|²; inf where |λ| ≥ 1 diverges.

        L = ½ E|h - h*|² = ½ [ |γ|² f(λ,λ̄) + |γ*|² f(λ*,λ̄*) - 2 Re γ γ̄* f(λ,λ̄*) ]

    of a student ``h = λ h + γ x`` and a teacher λ*, γ*, with f of `theory.moments.bilinear`
    (Zucchet & Orvieto 2024, section 4.1 and appendix B.2). The first four are log λ, log γ, log λ*
    and log γ*.
    """
    diverges = (log_eigenvalues.real >= 0) & (horizon is None)
    diverges |= ~np.isfinite(log_eigenvalues.imag) | np.isnan(log_eigenvalues.real)
    pairs = np.stack(
        [np.where(diverges, target, log_eigenvalues), np.full(log_eigenvalues.shape, target)],
        axis=-1,
    )
    with np.errstate(all="ignore"):  # where a number leaves its range, the loss is inf
        table = pair_moments(pairs, autocorrelation, horizon, readout)[1].hh
        gain = np.exp(log_gains - target_log_gain)  # γ / γ*
        own, silent = table[:, 0, 0].real, table[:, 1, 1].real
        mixed = (gain * table[:, 0, 1]).real
        relative = (np.abs(gain) ** 2 * own + silent - 2 * mixed) / silent
    # What is left of the difference at the target itself is rounding, of either sign.
    return np.where(diverges | ~np.isfinite(relative), np.inf, np.maximum(relative, 0.0))


class Slope(NamedTuple):
    """The loss at one student."""

    loss: float  # over that of a silent student
    values: dict[str, float]  # the parameters there, by name
    # dL/dω of L = ½ E|h - h*|² by each of them, in the units of the input
    gradient: dict[str, float]


class Landscape:
    """The losses around a target log λ*, its angle in [0, π], in one of `INVERTIBLE`'s parameters.

    The gain is ``none`` for γ = 1, ``own`` for γ = √(1-|λ*|²) that is a parameter of its own, and
    ``coupled`` for γ = √(1-|λ|²); input, horizon and readout are those of `moments`, and the step
    size is Δ of ``s4``. ``centre`` has the parameters at the target, by name.
    """

    def __init__(
        self,
        target: complex,
        parametrization: str,
        gain: str = "none",
        autocorrelation: Autocorrelation = WHITE,
        horizon: int | None = None,
        readout: Readout = "last",
        step_size: float = DEFAULT_STEP_SIZE,
    ) -> None:
        self._target, self._gain = target, gain
        self._parametrization, self._step_size = parametrization, step_size
        self._input = autocorrelation, horizon, readout
        self._target_log_gain = 0j
        if gain != "none":
            self._target_log_gain = complex(normalizing_log_gain(np.array([target]))[0])
        self.centre = self._values(target, self._target_log_gain)

    def along(self, name: str, offsets: Floats) -> Floats:
        """(n,) the loss with one parameter off by so much, over that of a silent student."""
        values = {other: np.full(offsets.shape, value) for other, value in self.centre.items()}
        values[name] = values[name] + offsets
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            logs = PARAMETRIZATIONS[self._parametrization].logs(values)
            gains = np.full(offsets.shape, self._target_log_gain)
            if self._gain == "own":
                gains = values["gamma_log"].astype(np.complex128)
            elif self._gain == "coupled":
                inside = np.where(logs.real < 0, logs, -1.0)
                gains = np.where(logs.real < 0, normalizing_log_gain(inside), -np.inf + 0j)
        return loss(logs, gains, self._target, self._target_log_gain, *self._input)

    def slope(self, start: complex) -> Slope:
        """The loss and its gradient at a student with another log λ, its γ normalised likewise.

        With γ' = γ d log γ/dω and ∂α f = E[s h̄] it is

            dL/dω = Re[ γ' γ̄ f(λ,λ̄) + |γ|² λ' ∂αf(λ,λ̄) - γ̄* (γ' f(λ,λ̄*) + γ λ' ∂αf(λ,λ̄*)) ]

        Raises UsageError: the parametrisation cannot reach it.
        """
        logs = np.array([start])
        found = parametrize(
            logs, self._parametrization, NORMALIZATIONS[self._gain], self._step_size
        )
        gradient = {}
        with np.errstate(all="ignore"):  # where a number leaves its range, it is not finite
            _, table = pair_moments(np.array([start, self._target]), *self._input)
            own, mixed = np.exp(found.log_gain[0]), np.exp(np.conj(self._target_log_gain))
            for name, moved in found.derivatives.items():
                turn = own * moved.eigenvalue[0]
                growth = 0j if moved.log_gain is None else own * moved.log_gain[0]
                by_own = (growth * table.hh[0, 0] + turn * table.sh[0, 0]) * np.conj(own)
                by_target = (growth * table.hh[0, 1] + turn * table.sh[0, 1]) * mixed
                gradient[name] = float((by_own - by_target).real)
        there = loss(logs, found.log_gain, self._target, self._target_log_gain, *self._input)
        return Slope(float(there[0]), self._values(start, complex(found.log_gain[0])), gradient)

    def _values(self, log: complex, log_gain: complex) -> dict[str, float]:
        """The parameters at an eigenvalue."""
        found = PARAMETRIZATIONS[self._parametrization].values(np.array([log]), self._step_size)
        values = {name: float(value[0]) for name, value in found.items()}
        if self._gain == "own":
            values["gamma_log"] = log_gain.real
        return values

    def basin(self, name: str, level: float) -> float | None:
        """How far a parameter may be off, to the nearer side, before the loss reaches a level.

        The level is over the loss of a silent student, in (0, 1]. None beyond `FARTHEST`.
        """
        reached = [self._reach(name, sign, level) for sign in (-1.0, 1.0)]
        return min((distance for distance in reached if distance is not None), default=None)

    def _reach(self, name: str, sign: float, level: float) -> float | None:
        distances = np.logspace(-18, np.log10(FARTHEST), GRID)
        beyond = np.flatnonzero(self.along(name, sign * distances) >= level)
        if not beyond.size:
            return None
        outer = beyond[0]
        low, high = (distances[outer - 1] if outer else 0.0), distances[outer]
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            if self.along(name, np.array([sign * middle]))[0] >= level:
                high = middle
            else:
                low = middle
        return float(high)
