"""From a relative sensitivity to a verdict: what one optimizer step does to the state."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import ORDER, Direction, ParameterSummary, Verdict


def step_effect(relative_sensitivity: float | None, learning_rate: float) -> float | None:
    """lr √κ: the relative change of the state that one step on a parameter makes.

    An adaptive optimizer moves every parameter by about its learning rate per step.
    """
    if relative_sensitivity is None:
        return None
    return learning_rate * math.sqrt(relative_sensitivity)


def max_learning_rate(relative_sensitivity: float | None, limit: float) -> float | None:
    """limit / √κ: the learning rate at which one step changes the state by the limit."""
    if relative_sensitivity is None or relative_sensitivity <= 0:
        return None
    return limit / math.sqrt(relative_sensitivity)


def direction(
    recurrence: Recurrence, group: ParameterGroup, learning_rate: float = 0.0
) -> Direction:
    """What a step on a group does to the eigenvalues that it moves.

    *destabilising*: it changes |λ| and the parametrisation lets |λ| pass 1. *decorrelating*: it
    mostly turns the angle, which scrambles what the state holds and takes no |λ| past 1.
    *scaling*: it changes the gain, or a modulus that cannot leave the unit disk.

    Where nothing keeps |λ| < 1, λ is taken at ω ± lr too: a step on Im λ of a real λ leaves |λ|
    as it is to first order only, |λ'|² = λ² + lr².
    """
    derivative = group.eigenvalue_derivative
    stable = recurrence.stable_by_construction or recurrence.unitary or group.keeps_stable
    if stable and not (np.any(derivative.imag) or np.any(recurrence.log_eigenvalues.imag)):
        return "scaling"
    eigenvalue = np.exp(recurrence.log_eigenvalues[group.eigenvalue])
    turned = derivative * np.conj(eigenvalue)
    radial, tangential = np.abs(turned.real), np.abs(turned.imag)
    # |λ'| |λ| is the scale at which rounding leaves a purely tangential change slightly radial.
    moves_modulus = bool(np.any(radial > 1e-12 * np.abs(turned)))
    ends = np.abs(eigenvalue + learning_rate * np.array([derivative, -derivative]))
    if not stable and (moves_modulus or np.any((ends >= 1) & (derivative != 0))):
        return "destabilising"
    # Near the unit circle a change counts 1/(1-|λ|)²; there the question is decided.
    decay = np.maximum(-recurrence.log_eigenvalues[group.eigenvalue].real, 1e-300)
    weight = np.minimum(1 / decay, 1e150)
    if np.sum((tangential * weight) ** 2) > np.sum((radial * weight) ** 2):
        return "decorrelating"
    return "scaling"


def group_verdict(effect: float | None, way: Direction, settings: Settings) -> Verdict:
    """The verdict on one group; an effect of None diverges.

    A decorrelating group is never worse than *watch*: its |λ| stay in the unit disk, and the
    networks that were measured trained through step effects far above 100 %.
    """
    if effect is None or effect > settings.cursed_limit:
        return "watch" if way == "decorrelating" else "cursed"
    return "watch" if effect > settings.watch_limit else "ok"


def effect_rate(parameter: ParameterSummary, limit: float, settings: Settings) -> float | None:
    """The learning rate at which a group's step effect, which grows with it, is at a limit."""
    if not parameter.step_effect:
        return None
    return settings.learning_rate * (limit / parameter.step_effect)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; ok where there is none."""
    return max(verdicts, key=ORDER.index, default="ok")
