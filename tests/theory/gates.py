"""Laws of gates, of one pre-activation and of several, that every test of them runs over."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import (
    Bounded,
    CappedLogistic,
    Clipped,
    Exponent,
    Exponential,
    FlooredMix,
    GateLaw,
    JointLaw,
    Keep,
    Mix,
    OffsetMix,
    OpenedDecay,
    Root,
    Share,
    StepSize,
    TrapezoidStep,
    Turn,
)
from memcurse_cli.theory.gates.moments import GatedMoments

RATES = np.array([0.01, 0.1, 0.5, 1.0, 8.0])
SLOPES = np.array([0.9, 0.5, 0.4, 0.2, 0.1])
LAWS: dict[str, GateLaw] = {
    "keep": Keep(),
    "mix": Mix(),
    "write": Mix(keeps=False),
    "partial": Mix(keeps=False, largest=0.4),
    "step": StepSize(RATES),
    "unit step": StepSize(RATES, writes=False),
    "root": Root(1 / 16),
    "coupled root": Root(1 / 4, coupled=True),
    "bounded": Bounded(np.array([0.05, 0.3, 0.5, 0.9, 1.0])),
    "exponent": Exponent(RATES, SLOPES),
    "opened decay": OpenedDecay(5.0, log_scale="scale"),
    "decay": OpenedDecay(1.0, opening=Exponential()),
    "capped": Keep(CappedLogistic(15.0)),
    "narrow cap": Keep(CappedLogistic(0.5)),
    "floored": FlooredMix(0.7, -2.0),
    "offset": OffsetMix(1.3),
}
CORNERED: dict[str, GateLaw] = {
    "clipped": Keep(Clipped(0.2, 0.5)),
    "growing": Keep(Exponential(3.0)),
    "negated": StepSize(RATES, negated=True),
}
HEAVY_TAIL, SOFTPLUS = TrapezoidStep(False, 1e-4), TrapezoidStep(True, 1e-4)
JOINT: dict[str, JointLaw] = {
    "share": Share(),
    "heavy tail": HEAVY_TAIL,
    "softplus": SOFTPLUS,
    "high floor": TrapezoidStep(False, 0.4),
    "turn": Turn(),
}
MIXTURES = {
    "white": WHITE,
    "half": Autocorrelation.from_rho(0.5),
    "constant": Autocorrelation.from_rho(1.0),
    "text": Autocorrelation((0.332, 0.044), (0.0, 0.997)),
    "cosine": Autocorrelation((0.3, 0.7), (0.0, 0.97), (0.0, 0.4)),
}


def cross_moments(found: GatedMoments) -> dict[str, Any]:
    """Re E[h s*] by parameter."""
    return {name: found.figures[1 + 2 * i] for i, name in enumerate(found.parameters)}
