"""The functions that open a gate: the logistic sigmoid and its piecewise linear stand-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memcurse_cli.recurrences.reading import LARGEST_DECAY, log_sigmoid, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra
from memcurse_cli.theory.gate_laws import LOGISTIC, Clipped, Opening


@dataclass(frozen=True)
class OpenGate:
    """A gate that stands at its bias.

    Attributes:
        value: (H,) how far it is open, in [0, 1].
        log_value: (H,) its logarithm, cut at `LARGEST_DECAY`.
        log_opposite: (H,) log(1 - value), cut likewise.
        derivative: (H,) d value / d bias.
        log_derivative: (H,) d log(value) / d bias.
        log_opposite_derivative: (H,) d log(1 - value) / d bias.
    """

    value: Floats
    log_value: Floats
    log_opposite: Floats
    derivative: Floats
    log_derivative: Floats
    log_opposite_derivative: Floats


@dataclass(frozen=True)
class Sigmoid:
    """``σ(b) = 1 / (1 + e⁻ᵇ)``; it never closes or opens entirely."""

    saturates = False

    @property
    def opening(self) -> Opening:
        """The same function for any pre-activations."""
        return LOGISTIC

    def __call__(self, bias: Floats) -> OpenGate:
        """The gate at a bias."""
        value, opposite = sigmoid(bias), sigmoid(-bias)
        return OpenGate(
            value=value,
            log_value=log_sigmoid(bias),
            log_opposite=log_sigmoid(-bias),
            derivative=value * opposite,
            log_derivative=opposite,
            log_opposite_derivative=-value,
        )

    def spectra(self, take: Callable[[], HiddenSpectra]) -> HiddenSpectra:
        """The spectra of the layer's hidden weights, which assume this function."""
        return take()


@dataclass(frozen=True)
class HardSigmoid:
    """``min(1, max(0, slope · b + offset))``: 0 and 1 are reached, and no bias moves them then."""

    slope: float
    offset: float
    saturates = True

    @property
    def opening(self) -> Opening:
        """The same function for any pre-activations."""
        return Clipped(self.slope, self.offset)

    def __call__(self, bias: Floats) -> OpenGate:
        """The gate at a bias."""
        line = self.slope * bias + self.offset
        value = np.clip(line, 0.0, 1.0)
        slope = np.where((line > 0) & (line < 1), self.slope, 0.0)
        smallest = np.exp(-LARGEST_DECAY)
        # Where the slope is 0 the quotient is 0, whatever stands below it.
        return OpenGate(
            value=value,
            log_value=np.log(np.maximum(value, smallest)),
            log_opposite=np.log(np.maximum(1 - value, smallest)),
            derivative=slope,
            log_derivative=slope / np.where(slope == 0, 1.0, value),
            log_opposite_derivative=-slope / np.where(slope == 0, 1.0, 1 - value),
        )

    def spectra(self, take: Callable[[], HiddenSpectra]) -> HiddenSpectra:
        """None of the layer's hidden weights: their Jacobian assumes the logistic sigmoid."""
        reason = "the gates are hard sigmoids, for which they are not taken"
        return HiddenSpectra(gates={}, jacobian=None, reason=reason)


GateFunction = Sigmoid | HardSigmoid
