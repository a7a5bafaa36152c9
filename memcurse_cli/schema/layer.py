"""What only some layers have: a dense matrix, gates, the state of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from memcurse_cli.schema.figures import Quantiles, Record

JACOBIAN = "jacobian"  # the `HiddenSpectrum` of the whole step, beside those of the gates


class DenseStructure(Record, frozen=True):
    """What the eigenvalues of a dense matrix do not tell, up to 512 units.

    The three parts of E‖dh/dA‖² are relative to it and add up to 1. The parts of a matrix that is
    not normal are oblique: each can be above 1, and the cross term is what they undo of each other.
    """

    eigenvalue_part: Annotated[
        float | None, "of what moves eigenvalues and leaves the eigenvectors as they are."
    ]
    eigenvector_part: Annotated[
        float | None, "of what turns eigenvectors and leaves the eigenvalues as they are."
    ]
    cross_part: Annotated[float | None, "of both at once."]
    eigenvalue_condition: Annotated[
        Quantiles,
        "‖q_k‖‖p_k‖ of each eigenvalue, at least 1: how far a change of the matrix of norm 1 can "
        "move it.",
    ]
    transient_growth: Annotated[float | None, "the largest ‖A^k‖₂ found; None where some |λ| ≥ 1."]
    transient_step: Annotated[int | None, "its k."]
    kreiss_bound: Annotated[
        float | None, "a lower bound on the Kreiss constant, and so on every sup_k ‖A^k‖₂."
    ]
    reason: Annotated[str | None, "why a figure is missing, or None."] = None


class OperatingPoint(Record, frozen=True):
    """Where the units of a non-linear dense layer work under inputs of unit variance."""

    slope: Annotated[
        float, "√E φ'(u)² of the activation over the Gaussian pre-activations of mean field theory."
    ]
    second_moment: Annotated[float, "E h² of a unit."]
    spectral_radius: Annotated[float, "the largest |λ|, times the slope."]
    time_constant: Annotated[float | None, "-1/log of that in steps; None from 1 on."]


class DenseSummary(Record, frozen=True):
    """What only a dense recurrence has."""

    eigenvector_condition: Annotated[
        float | None, "κ(P), the 2-norm condition of the eigenvector matrix."
    ]
    henrici_departure: Annotated[float, "√(‖A‖_F² - Σ|λ|²) / ‖A‖_F, in [0, 1]; 0 is normal."]
    sensitivity: Annotated[float | None, "E‖dh/dA‖²_F over every entry of the stored matrix."]
    relative_sensitivity: Annotated[float | None, "E‖dh/dA‖²_F / E‖h‖², behind the step effect."]
    memory: Annotated[
        float | None,
        "the larger of the longest time constant and the last k found with ‖A^k‖₂ ≥ 1/e, in "
        "steps; None where an eigenvalue has |λ| ≥ 1, or rounding A changes it.",
    ]
    activation: Annotated[str, "the activation that was assumed."]
    reason: Annotated[str | None, "why a figure of the matrix is missing, or None."] = None
    structure: Annotated[DenseStructure | None, "what its eigenvalues do not tell."] = None
    operating_point: Annotated[
        OperatingPoint | None, "of a non-linear layer whose biases are known, and that has one."
    ] = None
    radius_within_rounding: Annotated[
        float | None,
        "the largest |λ| of any matrix within float64's rounding of A, where κ(P) is 1e8 or more "
        "and eigenvalues are not determined to all digits; else None.",
    ] = None


class HiddenSpectrum(Record, frozen=True):
    """The spectrum of one matrix through which a gated layer sees its whole hidden state."""

    name: Annotated[
        str,
        "the gate whose hidden weights it is; or ``jacobian``, that of one step of the whole "
        "state at zero input and zero state, the only one whose eigenvalues are memory.",
    ]
    order: Annotated[int, "the number of its eigenvalues."]
    spectral_radius: Annotated[float, "the largest |λ|."]
    unstable: Annotated[int, "how many have |λ| ≥ 1."]
    time_constant: Annotated[float | None, "-1/log of the radius in steps; None from 1 on."]


def jacobian_of(spectra: Sequence[HiddenSpectrum]) -> HiddenSpectrum | None:
    """The spectrum of one step of the whole state, where it was taken."""
    return next((spectrum for spectrum in spectra if spectrum.name == JACOBIAN), None)


class GateAtWork(Record, frozen=True):
    """How far one gate is open, over the units and in time."""

    name: Annotated[str, "the gate."]
    mean: Annotated[float, "the mean of σ(u)."]
    spread: Annotated[float, "its standard deviation."]


class StateAtWork(Record, frozen=True):
    """The state under random inputs, and what becomes of a small change of it."""

    second_moment: Annotated[float, "E h² of a unit."]
    gates: Annotated[tuple[GateAtWork, ...], "how far they are open."]
    growth: Annotated[float, "χ, what one step makes of the square of a small change of the state."]
    time_constant: Annotated[float | None, "-2/log χ in steps, the change's own; None from 1 on."]


class GatedOperatingPoint(Record, frozen=True):
    """Mean field theory of a gated layer."""

    input_scale: Annotated[float, "the RMS of every component of the inputs, white and Gaussian."]
    predicted: Annotated[
        StateAtWork | None,
        "a wide layer whose weights are independent, of the layer's mean and variance, and drawn "
        "anew at every step, with the layer's own biases; None where it has no fixed point.",
    ]
    mean_squared_singular_value: Annotated[float | None, "m₁ of the Jacobian dh'/dh, of a GRU."] = (
        None
    )
    singular_value_variance: Annotated[
        float | None,
        "m₂ - m₁², the variance of its squared singular values; dynamical isometry is m₁ = 1 with "
        "no variance.",
    ] = None
    reason: Annotated[str | None, "why there is none, or None."] = None


class GateBand(Record, frozen=True):
    """How much the eigenvalues move."""

    share: Annotated[float, "the share of steps when a unit's gate has a smaller |λ| than here."]
    modulus: Annotated[Quantiles, "|λ| there, over the units."]
    time_constant: Annotated[Quantiles, "-1/log|λ| there, in steps."]


class GateFigure(Record, frozen=True):
    """One figure with gates held at their bias and with gates drawn at every step."""

    nominal: Annotated[Quantiles, "at their bias, over an infinite horizon."]
    moving: Annotated[Quantiles, "drawn independently at every step, over an infinite horizon."]
    ratio: Annotated[Quantiles, "the second over the first of each element; 1 where both diverge."]


class GateParameter(Record, frozen=True):
    """One parameter group under gates that move."""

    name: Annotated[str, "the group's name in the family."]
    tensor: Annotated[str, "the tensor's name in the checkpoint."]
    relative_sensitivity: Annotated[GateFigure, "κ(ω) = E|dh/dω|² / E|h|²."]


class StoredState(Record, frozen=True):
    """The state of a layer, kept from one step to the next in one type, at the horizon.

    Errors are √(E|e|² / E|h|²) of a state that was rounded at every step, at most 1.
    """

    DETAIL = ("errors",)

    dtype: Annotated[
        str, "float8 as scaled to the state's size; int8 with one scale for every 128 states."
    ]
    error: Annotated[Quantiles, "that of each eigenvalue's states, rounded to nearest."]
    stochastic: Annotated[float, "the largest of them, rounded at random and without bias."]
    above: Annotated[int, "eigenvalues whose error to nearest is above ``input.state_error``."]
    frozen: Annotated[float, "the share of steps whose change of a state is lost in rounding."]
    stopped: Annotated[int, "eigenvalues whose decay alone is lost so: what is held stays."]
    overflow: Annotated[
        int | None,
        "the first step at which 5 standard deviations of a state pass the type's largest number, "
        "for drives of the assumed scale and no scale of the type's own; None if never.",
    ] = None
    held_open: Annotated[
        float | None,
        "of gates that move: the largest error, were each to stay at its slowest twentieth.",
    ] = None
    errors: Annotated[
        tuple[float, ...] | None, "that of every eigenvalue to nearest, where asked for."
    ] = None


class StateStorage(Record, frozen=True):
    """What types of fewer bits do to the state, from λ at zero input."""

    types: Annotated[tuple[StoredState, ...], "the smallest first."]
    accumulating: Annotated[int, "eigenvalues with a memory beyond the horizon."]
    growth: Annotated[
        float | None,
        "d log E|h|² / d log T at the horizon, of the longest memory: 1 of a sum of white inputs, "
        "2 of constant ones; None without a horizon.",
    ] = None
    constant_overflow: Annotated[
        int | None,
        "the first step at which float16 overflows if the drive is constant, of the assumed scale; "
        "None if never, or where nothing accumulates.",
    ] = None


class GateSummary(Record, frozen=True):
    """What the gates' own weights make of λ, for an input of independent components."""

    input_scale: Annotated[float, "the RMS of every component of the input."]
    sees: Annotated[str, "what that input is."] = ""
    spread: Annotated[
        Quantiles | None,
        "σ_z, the standard deviation of the gates' pre-activations; None with a reason.",
    ] = None
    hidden_second_moment: Annotated[
        float | None,
        "E h² of what the hidden weights show to the gates, at its fixed point; None where no "
        "gate sees the state.",
    ] = None
    bands: Annotated[
        tuple[GateBand, ...],
        "|λ| and τ at 5, 15.87, 84.13 and 95 % of the steps; the inner two are one σ_z off.",
    ] = ()
    second_moment: Annotated[GateFigure | None, "E|h|² for a drive of unit variance."] = None
    parameters: Annotated[tuple[GateParameter, ...], "the groups that move λ or γ."] = ()
    reason: Annotated[
        str | None,
        "why figures are missing, all of them, those beside the bands, or κ alone; or None.",
    ] = None
    sampling_error: Annotated[
        float | None,
        "where gates are drawn, the relative standard error of τ in the bands, of E|h|² and of κ: "
        "the largest of any unit, or that of the median unit's τ where gates see their own unit's "
        "state; None where all are integrals.",
    ] = None
    storage: Annotated[
        tuple[StoredState, ...],
        "the state in types of fewer bits with these gates; errors are those of white drives.",
    ] = ()


class StepQuantiles(Record, frozen=True):
    """Order statistics of effective steps, over the elements that have had a gradient."""

    min: Annotated[float, "the smallest."]
    p10: Annotated[float, "the 10th percentile."]
    p50: Annotated[float, "the median."]
    p90: Annotated[float, "the 90th percentile."]
    max: Annotated[float, "the largest."]


class AdamGroup(Record, frozen=True):
    """Adam's effective steps on one tensor."""

    name: Annotated[
        str, "the parameter group's name in the family, or the tensor's where it is not recurrent."
    ]
    tensor: Annotated[str, "the tensor's name in the checkpoint."]
    recurrent: Annotated[bool, "whether it moves λ or γ."]
    size: Annotated[int, "the number of scalars."]
    learning_rate: Annotated[float | None, "the rate that the steps are taken at."] = None
    step: Annotated[float | None, "how many steps Adam has made, or None if not stored."] = None
    without_gradient: Annotated[int, "scalars with a second moment of 0, in no figure."] = 0
    effective_step: Annotated[
        StepQuantiles | None, "lr / (√v̂ + ε): what Adam multiplies a gradient with."
    ] = None
    correlation: Annotated[
        float | None,
        "of the logarithm of the effective step with that of κ(ω); -1 is full compensation. None "
        "where κ is not known or too few differ.",
    ] = None
    spread_before: Annotated[float | None, "standard deviation of √κ in decades."] = None
    spread_after: Annotated[
        float | None, "that of the effective step times √κ, what Adam leaves of it."
    ] = None
    hessian_correlation: Annotated[
        float | None, "the correlation with H_ωω at a perfect fit in the place of κ."
    ] = None
    hessian_spread_before: Annotated[float | None, "standard deviation of √H_ωω in decades."] = None
    hessian_spread_after: Annotated[float | None, "that of the effective step times √H_ωω."] = None
    reason: Annotated[str | None, "why its figures are missing, or None."] = None


class OptimizerSummary(Record, frozen=True):
    """The optimizer's state that was found."""

    library: Annotated[str, "``torch.optim``, ``optax`` or ``Keras``."]
    path: Annotated[str, "the file that it is in."]
    weights: Annotated[int, "how many weights' states were found."]
    refused: Annotated[int, "how many weights' are ambiguous."]
    reason: Annotated[str | None, "why it has no second moments, or None."] = None


class GroupRate(Record, frozen=True):
    """The learning rate of one recurrent parameter group."""

    name: Annotated[str, "the group's name in the family."]
    tensor: Annotated[str, "the tensor's name in the checkpoint."]
    effect_rate: Annotated[
        float | None,
        "the rate at which one step changes the state by the limit, a figure and no advice; None "
        "where the sensitivity is 0, diverges or is not known.",
    ]
    learning_rate: Annotated[
        float | None,
        "the rate to give it: the layer's usable rate, or that of the rest where that is smaller; "
        "None where the layer was not judged.",
    ]
    relative: Annotated[float | None, "that over the rate of the rest, at most 1."]


class RelativeSharpness(Record, frozen=True):
    """The recurrent parameters against B, C and D, at a perfect fit."""

    recurrent: Annotated[float, "the largest eigenvalue of the Hessian over recurrent parameters."]
    rest: Annotated[float, "that over B, C and D."]
    sgd_ratio: Annotated[
        float, "rest / recurrent: the ratio of the largest stable rates of gradient descent."
    ]
    adam_ratio: Annotated[
        float,
        "√(tr H_rest / tr H_recurrent): the ratio of rates at which a step of Adam on either "
        "changes the output equally.",
    ]


class LearningRates(Record, frozen=True):
    """Learning rates for a layer, on the assumption that the rest of the network's is right."""

    rest: Annotated[float, "the learning rate of the rest of the network."]
    limit: Annotated[float, "the relative change of the state at ``effect_rate``."]
    groups: Annotated[tuple[GroupRate, ...], "the recurrent ones."]
    sharpness: Annotated[RelativeSharpness | None, "against B, C and D; None where not known."]
    sharpness_reason: Annotated[str | None, "why it is not there, or None."]
