"""The part of the schema about input-dependent gates that move."""

from __future__ import annotations

from dataclasses import dataclass

from memcurse_cli.diagnosis.report_quantiles import Quantiles


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
    """

    input_scale: float
    sees: str = ""
    spread: Quantiles | None = None
    hidden_second_moment: float | None = None
    bands: tuple[GateBand, ...] = ()
    second_moment: GateFigure | None = None
    parameters: tuple[GateParameter, ...] = ()
    reason: str | None = None
