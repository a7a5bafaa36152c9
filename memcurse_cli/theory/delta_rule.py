"""The law of a delta rule, which forgets nothing but what it overwrites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcurse_cli.theory.gate_laws import LOGISTIC, GateValues, Units

Array = Any


@dataclass(frozen=True)
class Overwrite:
    """``S' = S (I - β k kᵀ) + β v kᵀ`` with β = f σ(z) and a unit key k of any direction: DeltaNet.

    A key drawn anew at every step, all directions of d alike, takes β/d of an entry of S on
    average, and of its square ``β (2-β)/d``, since ``‖S (I - β k kᵀ)‖² = ‖S‖² - β (2-β) ‖S k‖²``
    and E k kᵀ = I/d. So ``λ = 1 - β/d``, and γ = β as of a layer whose keys stand still.

    Attributes:
        width: d; infinite for keys that vanish, as they do at zero input.
        factor: f, 1, or 2 where β reaches 2.
    """

    width: float
    factor: float = 1.0
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """No parameter is added to z."""
        strength = self.factor * LOGISTIC(z).value
        lost = strength / self.width
        return GateValues(1 - lost, lost, strength, {}, lost * (2 - strength))

    def take(self, units: Units) -> Overwrite:
        """The same law for every unit."""
        return self
