"""What only some layers have: a dense matrix, gates, the state of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memcurse_cli.schema.figures import Quantiles

JACOBIAN = "jacobian"
"""The name of the `HiddenSpectrum` of the whole step, beside those of the gates."""


@dataclass(frozen=True)
class DenseStructure:
    """What the eigenvalues of a dense matrix do not tell, up to 512 units.

    The three parts of E‖dh/dA‖² are relative to it and add up to 1. The parts of a matrix that is
    not normal are oblique: each can be above 1, and the cross term is what they undo of each other.

    Attributes:
        eigenvalue_part: of what moves eigenvalues and leaves the eigenvectors as they are.
        eigenvector_part: of what turns eigenvectors and leaves the eigenvalues as they are.
        cross_part: of both at once.
        eigenvalue_condition: ‖q_k‖‖p_k‖ of each eigenvalue, at least 1: how far a change of the
            matrix of norm 1 can move it.
        transient_growth: the largest ‖A^k‖₂ found; None where an eigenvalue has |λ| ≥ 1.
        transient_step: its k.
        kreiss_bound: a lower bound on the Kreiss constant, and so on every sup_k ‖A^k‖₂.
        reason: why a figure is missing, or None.
    """

    eigenvalue_part: float | None
    eigenvector_part: float | None
    cross_part: float | None
    eigenvalue_condition: Quantiles
    transient_growth: float | None
    transient_step: int | None
    kreiss_bound: float | None
    reason: str | None = None


@dataclass(frozen=True)
class OperatingPoint:
    """Where the units of a non-linear dense layer work under inputs of unit variance.

    Attributes:
        slope: √E φ'(u)² of the activation over the Gaussian pre-activations of mean field theory.
        second_moment: E h² of a unit.
        spectral_radius: the largest |λ|, times the slope.
        time_constant: -1/log of that in steps; None from 1 on.
    """

    slope: float
    second_moment: float
    spectral_radius: float
    time_constant: float | None


@dataclass(frozen=True)
class DenseSummary:
    """What only a dense recurrence has.

    Attributes:
        eigenvector_condition: κ(P), the 2-norm condition of the eigenvector matrix.
        henrici_departure: √(‖A‖_F² - Σ|λ|²) / ‖A‖_F, in [0, 1]; 0 is normal.
        sensitivity: E‖dh/dA‖²_F over every entry of the stored matrix.
        relative_sensitivity: E‖dh/dA‖²_F / E‖h‖², which the step effect is taken from.
        memory: the larger of the longest time constant and the last k found with ‖A^k‖₂ ≥ 1/e, in
            steps; None where an eigenvalue has |λ| ≥ 1, or rounding A changes it.
        activation: the activation that was assumed.
        reason: why a figure of the matrix is missing, or None.
        structure: what its eigenvalues do not tell.
        operating_point: of a non-linear layer whose biases are known, and that has one.
        radius_within_rounding: the largest |λ| of any matrix within float64's rounding of A, where
            κ(P) is 1e8 or more and eigenvalues are not determined to all digits; else None.
    """

    eigenvector_condition: float | None
    henrici_departure: float
    sensitivity: float | None
    relative_sensitivity: float | None
    memory: float | None
    activation: str
    reason: str | None = None
    structure: DenseStructure | None = None
    operating_point: OperatingPoint | None = None
    radius_within_rounding: float | None = None


@dataclass(frozen=True)
class HiddenSpectrum:
    """The spectrum of one matrix through which a gated layer sees its whole hidden state.

    Attributes:
        name: the gate whose hidden weights it is; or ``jacobian``, that of one step of the whole
            state at zero input and zero state, the only one whose eigenvalues are memory.
        order: the number of its eigenvalues.
        spectral_radius: the largest |λ|.
        unstable: how many have |λ| ≥ 1.
        time_constant: -1/log of the spectral radius in steps; None from 1 on.
    """

    name: str
    order: int
    spectral_radius: float
    unstable: int
    time_constant: float | None


def jacobian_of(spectra: Sequence[HiddenSpectrum]) -> HiddenSpectrum | None:
    """The spectrum of one step of the whole state, where it was taken."""
    return next((spectrum for spectrum in spectra if spectrum.name == JACOBIAN), None)


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


@dataclass(frozen=True)
class StepQuantiles:
    """Order statistics of effective steps, over the elements that have had a gradient.

    Attributes:
        min: the smallest.
        p10: the 10th percentile.
        p50: the median.
        p90: the 90th percentile.
        max: the largest.
    """

    min: float
    p10: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True)
class AdamGroup:
    """Adam's effective steps on one tensor.

    Attributes:
        name: the parameter group's name in the family, or the tensor's where it is not recurrent.
        tensor: the tensor's name in the checkpoint.
        recurrent: whether it moves λ or γ.
        size: the number of scalars.
        learning_rate: the rate that the steps are taken at.
        step: how many steps Adam has made, or None if not stored.
        without_gradient: scalars whose second moment is 0, which are in none of the figures.
        effective_step: lr / (√v̂ + ε): what Adam multiplies a gradient with.
        correlation: of the logarithm of the effective step with that of κ(ω); -1 is full
            compensation. None where κ is not known or too few differ.
        spread_before: standard deviation of √κ in decades.
        spread_after: that of the effective step times √κ, what Adam leaves of it.
        hessian_correlation: the correlation with H_ωω at a perfect fit in the place of κ.
        hessian_spread_before: standard deviation of √H_ωω in decades.
        hessian_spread_after: that of the effective step times √H_ωω.
        reason: why its figures are missing, or None.
    """

    name: str
    tensor: str
    recurrent: bool
    size: int
    learning_rate: float | None = None
    step: float | None = None
    without_gradient: int = 0
    effective_step: StepQuantiles | None = None
    correlation: float | None = None
    spread_before: float | None = None
    spread_after: float | None = None
    hessian_correlation: float | None = None
    hessian_spread_before: float | None = None
    hessian_spread_after: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class OptimizerSummary:
    """The optimizer's state that was found.

    Attributes:
        library: ``torch.optim``, ``optax`` or ``Keras``.
        path: the file that it is in.
        weights: how many weights' states were found.
        refused: how many weights' are ambiguous.
        reason: why it has no second moments, or None.
    """

    library: str
    path: str
    weights: int
    refused: int
    reason: str | None = None


@dataclass(frozen=True)
class GroupRate:
    """The learning rate of one recurrent parameter group.

    Attributes:
        name: the group's name in the family.
        tensor: the tensor's name in the checkpoint.
        stable_lr: the rate at which one step changes the state by the limit; a third of the
            usable rate where that is larger and known, and steps only turn angles. None where the
            sensitivity is 0, diverges or is not known.
        learning_rate: the smaller of that and the rate of the rest of the network.
        relative: that over the rate of the rest, at most 1.
    """

    name: str
    tensor: str
    stable_lr: float | None
    learning_rate: float | None
    relative: float | None


@dataclass(frozen=True)
class RelativeSharpness:
    """The recurrent parameters against B, C and D, at a perfect fit.

    Attributes:
        recurrent: the largest eigenvalue of the Hessian over the recurrent parameters.
        rest: that over B, C and D.
        sgd_ratio: rest / recurrent: the ratio of the largest stable rates of gradient descent.
        adam_ratio: √(tr H_rest / tr H_recurrent): the ratio of rates at which a step of Adam on
            either changes the output equally.
    """

    recurrent: float
    rest: float
    sgd_ratio: float
    adam_ratio: float


@dataclass(frozen=True)
class LearningRates:
    """Learning rates for a layer, on the assumption that the rest of the network's is right.

    Attributes:
        rest: the learning rate of the rest of the network.
        limit: the relative change of the state that one step may make, that called watch.
        groups: the recurrent ones.
        sharpness: against B, C and D; None where they are not known.
        sharpness_reason: why it is not there, or None.
    """

    rest: float
    limit: float
    groups: tuple[GroupRate, ...]
    sharpness: RelativeSharpness | None
    sharpness_reason: str | None
