"""What the report says of gates: how far the input moves them, where GRUs and LSTMs work."""

from __future__ import annotations

from dataclasses import dataclass

from memcurse_cli.schema.figures import Quantiles


@dataclass(frozen=True)
class GateAtWork:
    """How far one gate is open, over the units and in time.

    Attributes:
        name: the gate.
        mean: the mean of σ(u).
        spread: its standard deviation.
    """

    name: str
    mean: float
    spread: float


@dataclass(frozen=True)
class StateAtWork:
    """The state under random inputs, and what becomes of a small change of it.

    Attributes:
        second_moment: E h² of a unit.
        gates: how far they are open.
        growth: χ, what one step makes of the square of a small change of the state.
        growth_error: the standard error of a growth that was simulated, else None.
        time_constant: -2/log χ in steps, that of the change itself; None from 1 on.
    """

    second_moment: float
    gates: tuple[GateAtWork, ...]
    growth: float
    growth_error: float | None
    time_constant: float | None


@dataclass(frozen=True)
class GatedOperatingPoint:
    """Mean field theory of a gated layer, beside a simulation of the layer itself.

    Attributes:
        input_scale: the RMS of every component of the inputs, which are white and Gaussian.
        predicted: a wide layer whose weights are independent, of the layer's mean and variance,
            and drawn anew at every step, with the layer's own biases; None where it has no fixed
            point.
        simulated: the layer itself; None where it is too large to be run.
        agrees: whether E h² and the decay rate of the two are within `AGREEMENT` of each other;
            None where one is missing.
        mean_squared_singular_value: m₁ of the Jacobian dh'/dh in mean field theory, of a GRU.
        singular_value_variance: m₂ - m₁², the variance of its squared singular values; dynamical
            isometry is m₁ = 1 with no variance.
        reason: why a figure is missing or not to be trusted, or None.
    """

    input_scale: float
    predicted: StateAtWork | None
    simulated: StateAtWork | None
    agrees: bool | None
    mean_squared_singular_value: float | None = None
    singular_value_variance: float | None = None
    reason: str | None = None


AGREEMENT = 1.5
"""The largest ratio of figures that are said to agree."""


@dataclass(frozen=True)
class GateBand:
    """How much the eigenvalues move.

    Attributes:
        share: the share of steps at which the gate of a unit has a smaller |λ| than here.
        modulus: |λ| there, over the units.
        time_constant: -1/log|λ| there, in steps.
    """

    share: float
    modulus: Quantiles
    time_constant: Quantiles


@dataclass(frozen=True)
class GateFigure:
    """One figure with gates held at their bias and with gates drawn at every step.

    Attributes:
        nominal: at their bias, over an infinite horizon.
        moving: drawn independently at every step, over an infinite horizon.
        ratio: the second over the first, element by element; where both diverge it is 1.
    """

    nominal: Quantiles
    moving: Quantiles
    ratio: Quantiles


@dataclass(frozen=True)
class GateParameter:
    """One parameter group under gates that move.

    Attributes:
        name: the group's name in the family.
        tensor: the tensor's name in the checkpoint.
        relative_sensitivity: κ(ω) = E|dh/dω|² / E|h|².
    """

    name: str
    tensor: str
    relative_sensitivity: GateFigure


@dataclass(frozen=True)
class GateSummary:
    """What the gates' own weights make of λ, for an input of independent components.

    Attributes:
        input_scale: the RMS of every component of the input.
        sees: what that input is.
        spread: σ_z, the standard deviation of the gates' pre-activations; None with a reason.
        hidden_second_moment: E h² of what the hidden weights show to the gates, at its fixed
            point; None where no gate sees the state.
        bands: |λ| and τ at 5, 15.87, 84.13 and 95 % of the steps; the inner two are one σ_z off.
        second_moment: E|h|² for a drive of unit variance.
        parameters: the groups that move λ or γ.
        reason: why figures are missing, all of them, those beside the bands, or κ alone; or None.
        sampling_error: where gates are drawn, the relative standard error of τ in the bands, of
            E|h|² and of κ: the largest of any unit, or that of the median unit's τ where gates see
            their own unit's state; None where all are integrals.
    """

    input_scale: float
    sees: str = ""
    spread: Quantiles | None = None
    hidden_second_moment: float | None = None
    bands: tuple[GateBand, ...] = ()
    second_moment: GateFigure | None = None
    parameters: tuple[GateParameter, ...] = ()
    reason: str | None = None
    sampling_error: float | None = None
