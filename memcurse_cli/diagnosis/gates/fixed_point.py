"""How large the states are that gates see: a fixed point, since gates decide how large they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, HiddenState
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.draw import averaged_variance
from memcurse_cli.theory.gates.fixed_point import TANH, CandidateMoments
from memcurse_cli.theory.gates.laws import Opening
from memcurse_cli.theory.gates.moments import gated_moments
from memcurse_cli.theory.gates.quadrature import Preactivation, mean_of

Floats = NDArray[np.float64]

ITERATIONS = 200
TOLERANCE = 1e-6
WIDEST_CELL = 30.0
"""An LSTM's c with a standard deviation beyond this has tanh²(c) = 1 within 3 %."""
CLOSE = 1e-3
"""What may be left after so many rounds."""
LARGEST = 1e12
"""A second moment beyond which a state is taken to grow without bound."""


@dataclass(frozen=True)
class HeldStates:
    """What the pre-activations of a layer see beside its input.

    Attributes:
        shown: the second moment of what the hidden weights show to the gates, the mean over units;
            None where no gate sees a state.
        taken: that of what they show to the candidates, alike or of each of them.
    """

    shown: float | None = None
    taken: float | Floats = 0.0


def preactivation(gate: GateInput, settings: Settings, held: HeldStates) -> Preactivation:
    """What a gate has under inputs of the scale that was asked for, and states of this size."""
    return gate.preactivation(settings.input_scale**2, held.shown or 0.0)


def held_states(drive: GateDrive, settings: Settings) -> HeldStates | None:
    """The fixed point that grows from a zero state; None where there is none.

    The state takes in ``u = f(n)`` with ``n ~ N(b, ‖W‖² E x² + E r² ‖U‖² E h²)``. Its mean is a
    constant drive and the rest one of the input's autocorrelation, so that

        E h² = (E u)² M₁ + (E u² - (E u)²) M

    with M and M₁ the second moments for a drive of variance 1 of either kind. An LSTM shows
    ``σ(o) tanh(c)``, where c of second moment E c² is taken as Gaussian, and an sLSTM ``σ(o) c/n``
    with M of `averaged_variance` and M₁ = 1. Where a candidate sees just what its gate sees, both
    are one function of it, and inputs are taken as independent in time. One value for all units:
    the mean over them, as the hidden weights see it.
    """
    if drive.state is None:
        return HeldStates()
    held = HeldStates(0.0)
    for _ in range(ITERATIONS):
        after = _after(drive, drive.state, settings, held)
        # Steps are bounded where |f| ≤ 1 and λ + γ ≤ 1; other states may grow for ever.
        if not _size(after) < LARGEST:
            return None
        change = _change(after, held)
        if change <= TOLERANCE:
            return after
        held = after
    return held if change <= CLOSE else None


def _after(
    drive: GateDrive, state: HiddenState, settings: Settings, held: HeldStates
) -> HeldStates:
    """What is held after one round, given that before it."""
    gate = preactivation(drive.gate, settings, held)
    write = None if drive.write_gate is None else preactivation(drive.write_gate, settings, held)
    taken = _taken(state, settings, held)
    stored = _stored(drive, state, settings, (gate, write), taken)
    shown = stored
    if state.output is not None:
        if not state.averaged:
            spread = np.minimum(np.sqrt(stored), WIDEST_CELL)
            shown = TANH.moments(Preactivation(np.zeros_like(spread), spread)).square
        shown = shown * _opened(state.output, state.opening, settings, held)
    elif state.convex and state.function.bounded:
        shown = np.minimum(stored, 1.0)
    return _seen(state, shown)


def _taken(state: HiddenState, settings: Settings, held: HeldStates) -> CandidateMoments:
    """What comes in."""
    opened = _opened(state.reset, state.opening, settings, held)
    seen = state.candidate.preactivation(settings.input_scale**2, held.taken * opened)
    return state.function.moments(seen)


def _stored(
    drive: GateDrive,
    state: HiddenState,
    settings: Settings,
    gates: tuple[Preactivation, Preactivation | None],
    taken: CandidateMoments,
) -> Floats:
    """(n,) E h², or E c² before an output gate."""
    gate, write = gates
    one = Autocorrelation.from_rho(1.0)
    if state.written is not None:
        return np.asarray(gated_moments(state.written, gate, one).second_moment)
    if state.averaged and drive.write is not None and write is not None:
        share = averaged_variance(drive.law, gate, drive.write, write, settings.autocorrelation)
        return np.asarray(taken.mean**2 + taken.variance * share)
    total = settings.autocorrelation.variance
    parts = tuple(weight / total for weight in settings.autocorrelation.weights)
    varied, constant = (
        gated_moments(drive.law, gate, of, drive.write, write).second_moment
        for of in (replace(settings.autocorrelation, weights=parts), one)
    )
    with np.errstate(invalid="ignore"):  # inf · 0 of a gate that never forgets
        stored = taken.mean**2 * constant + taken.variance * varied
    return np.where(np.isnan(stored), 0.0, stored)


def _seen(state: HiddenState, shown: Floats) -> HeldStates:
    """The means over the units that are seen."""
    if state.cascade:
        first, second = (
            float(np.mean(some)) for some in (shown[: state.cascade], shown[state.cascade :])
        )
        taken = np.full(shown.size, first)
        taken[: state.cascade] = second
        return HeldStates(first, taken)
    mean = float(np.mean(shown))
    if state.projection is not None:
        mean *= float(np.mean(state.projection))
    return HeldStates(mean, mean)


def _opened(
    gate: GateInput | None, opening: Opening, settings: Settings, held: HeldStates
) -> Floats | float:
    """E σ(z)² of a gate, 1 where there is none."""
    if gate is None:
        return 1.0
    return np.asarray(
        mean_of(
            lambda z: opening(z).value ** 2, preactivation(gate, settings, held), opening.smooth
        )
    )


def _size(held: HeldStates) -> float:
    return max(held.shown or 0.0, float(np.max(held.taken)))


def _change(after: HeldStates, before: HeldStates) -> float:
    """The largest, each over 1 and what it is of."""
    pairs = (
        (after.shown or 0.0, before.shown or 0.0),
        (after.taken, before.taken),
    )
    return max(
        float(np.max(np.abs(np.asarray(one) - other) / (1 + np.abs(one)))) for one, other in pairs
    )
