"""A prediction in words: what the longest memory costs, and numbers as they are said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from memcurse_cli.diagnosis.beyond_horizon import beyond_horizon
from memcurse_cli.diagnosis.chrono import ChronoBiases
from memcurse_cli.diagnosis.prediction import Prediction, PredictionRow
from memcurse_cli.diagnosis.ring import RingPrediction
from memcurse_cli.reports.numbers import DIVERGENT, number, percent, setting

STEP = 1e-3
"""The step of an adaptive optimizer that the closing sentence is told for."""

CURSED = 1.0
HARMLESS = 0.1

SPELLED_OUT_BELOW = 0.9995
"""A modulus closer to 1 is written as 1 minus something."""


def meaning(rows: Sequence[PredictionRow]) -> list[str]:
    """What the longest memory of these rows costs, in a sentence or two."""
    finite = sorted(
        (row for row in rows if row.sensitivity is not None),
        key=lambda row: (row.modulus, row.time_constant or math.inf),
    )
    if not finite:
        return []
    shortest, longest = finite[0], finite[-1]
    sentences = []
    state = _ratio(longest.second_moment, shortest.second_moment)
    derivative = _ratio(longest.sensitivity, shortest.sensitivity)
    if shortest is not longest and state is not None and derivative is not None:
        sentences.append(
            f"From |λ| = {modulus_figure(shortest)} to {modulus_figure(longest)}, E|h|² changes "
            f"by a factor of {number(state)} and E|dh/dλ|² by {number(derivative)}."
        )
    effects = {
        name: STEP * math.sqrt(found.relative_sensitivity)
        for name, found in longest.parameters.items()
        if found.relative_sensitivity is not None
    }
    if effects:
        sentences.append(_cost(longest, effects))
    return sentences


def cut_off(prediction: Prediction, rows: Sequence[PredictionRow]) -> list[str]:
    """That the horizon ends before the longest memory of these rows, and what that hides."""
    found = beyond_horizon(prediction, rows)
    if found is None:
        return []
    of = "one time constant" if found.count == 1 else f"{found.count} time constants"
    which = "every step" if prediction.readout == "every" else "the last step"
    said = (
        f"The horizon matters: it cuts off {of} beyond {prediction.horizon} steps, and the figures "
        f"are those of {which} of such a sequence."
    )
    if found.factor is not None:
        said += (
            f" Over an infinite one E|dh/dλ|² would be {number(found.factor)} times as large for "
            f"the longest (τ = {number(found.time_constant)} steps)."
        )
    return [said]


def _cost(row: PredictionRow, effects: Mapping[str, float]) -> str:
    """What one optimizer step does to the state at one eigenvalue."""
    same: dict[str, list[str]] = {}
    for name, effect in effects.items():
        same.setdefault(percent(effect), []).append(name)
    said = ", ".join(f"{effect} through {' or '.join(names)}" for effect, names in same.items())
    memory = f" (τ = {figure(row.time_constant)} steps)" if row.time_constant else ""
    worst = max(effects.values())
    if worst <= HARMLESS:
        verdict = "Memory this long can be learnt with such a step."
    else:
        bound = f"steps below {number(STEP * HARMLESS / worst, 2)} keep that under 10 %"
        verdict = (
            f"This is the curse of memory: one step replaces the state; {bound}."
            if worst > CURSED
            else f"Memory this long needs care: {bound}."
        )
    return (
        f"At |λ| = {modulus_figure(row)}{memory}, one optimizer step of {setting(STEP)} moves the "
        f"state by {said}. {verdict}"
    )


def ring_average(ring: RingPrediction, horizon: int | None) -> str:
    """What eigenvalues of a ring cost on average."""
    inner, outer = (f"{radius:.6g}" for radius in (ring.inner_modulus, ring.outer_modulus))
    after = "" if horizon is None else "at this horizon "
    return (
        f"Of λ drawn uniformly by area from the ring {inner} ≤ |λ| ≤ {outer}, all angles alike, "
        f"E|h|² is {after}{figure(ring.second_moment)} on average and E|dh/dλ|² "
        f"{figure(ring.sensitivity)}, whatever the input's autocorrelation."
    )


def initialisation(chrono: ChronoBiases) -> str:
    """How to start gates at these memories, by either convention."""
    (shortest, longest), (low, high) = chrono.time_constants, chrono.biases
    least, most = chrono.steps
    if shortest == longest:
        return (
            f"Chrono initialisation for τ = {number(longest)} steps: a bias of log(T - 1) = "
            f"{number(high)} with T = 1/(1-λ) = {number(most)} gives this λ; log T = "
            f"{number(chrono.printed[1])}, as often printed, gives λ = T/(1+T)."
        )
    return (
        f"Chrono initialisation for τ from {number(shortest)} to {number(longest)} steps: biases "
        f"of log(T - 1), T = 1/(1-λ) uniform from {number(least)} to {number(most)}, give these λ: "
        f"{number(low)} to {number(high)}; log T, as often printed, gives λ = T/(1+T): "
        f"{number(chrono.printed[0])} to {number(chrono.printed[1])}."
    )


def divergence(prediction: Prediction) -> str:
    """Why some rows have no number, and what gives them one."""
    unstable = any(row.time_constant is None for row in prediction.rows)
    if prediction.horizon is None and unstable:
        return (
            "divergent: with |λ| ≥ 1 an infinite sequence has no stationary state; "
            "--horizon T gives the moments after T steps."
        )
    within = "" if prediction.horizon is None else "within this horizon "
    return f"divergent: {within}the state or its derivative leaves the range of a float."


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def gap(row: PredictionRow) -> float:
    """1 - |λ| from τ, which knows more of it than |λ| does."""
    return -math.expm1(-1 / row.time_constant) if row.time_constant else 1.0


def modulus_figure(row: PredictionRow) -> str:
    """|λ|, or 1 minus what is left where six digits would round it away."""
    if row.time_constant is None or row.modulus < SPELLED_OUT_BELOW:
        return f"{row.modulus:.6g}"
    return f"1-{number(gap(row))}"


def figure(value: float | None) -> str:
    """A number, or that there is none."""
    return DIVERGENT if value is None else number(value)
