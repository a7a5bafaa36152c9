"""The schema `memcurse.report/1`: everything that a report says, before it is drawn.

Every class turns into the JSON object of the same fields. A number that does not exist is None
here and null there; inf and nan never stand in a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from memcurse_cli.diagnosis.report_gates import GateSummary
from memcurse_cli.diagnosis.report_optimizer import AdamGroup, LearningRates, OptimizerSummary
from memcurse_cli.diagnosis.report_quantiles import Quantiles as Quantiles

SCHEMA = "memcurse.report/1"

TIME_CONSTANT_EDGES = tuple(10 ** (half_decade / 2) for half_decade in range(13))
"""The inner edges, in steps, of every time-constant histogram: half decades from 1 to 10⁶.

Bin 0 counts τ < 1, bin k counts edge k-1 ≤ τ < edge k, and the last one counts τ ≥ 10⁶.
"""

JACOBIAN = "jacobian"
"""The name of the `HiddenSpectrum` of the whole step, beside those of the gates."""

Verdict = Literal["ok", "watch", "cursed"]
Direction = Literal["destabilising", "decorrelating", "scaling"]
Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing worth telling, with a stable code like a linter's.

    Attributes:
        code: MC1xx dynamics, MC2xx sensitivity, MC3xx Hessian, MC4xx precision, MC5xx assumptions.
        severity: info, warning or error.
        message: what was found, in plain words with its numbers.
        advice: what to change; empty where there is nothing to do.
        source: the section of the theory that it rests on.
    """

    code: str
    severity: Severity
    message: str
    advice: str
    source: str


@dataclass(frozen=True)
class EigenvalueSummary:
    """The spectrum of one layer.

    Attributes:
        count: the number of eigenvalues.
        multiplicity: how many identical states each one drives.
        unstable: how many have |λ| ≥ 1.
        modulus: |λ|.
        time_constant: -1/log|λ| in steps; divergent where |λ| ≥ 1.
        angle: |arg λ| in radians, in [0, π].
        time_constant_histogram: how many eigenvalues lie in each of the 14 bins that
            `TIME_CONSTANT_EDGES` cuts; those with |λ| ≥ 1 are in none, ``unstable`` counts them.
            Empty where it was not taken.
        values: every eigenvalue as (re, im), only where asked for.
        relative_sensitivities: κ(λ) = E|dh/dλ|²/E|h|² of each of ``values``, None where it
            diverges; only beside them.
    """

    count: int
    multiplicity: int
    unstable: int
    modulus: Quantiles
    time_constant: Quantiles
    angle: Quantiles
    time_constant_histogram: tuple[int, ...] = ()
    values: tuple[tuple[float, float], ...] | None = None
    relative_sensitivities: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class StateSummary:
    """The state of one layer.

    Attributes:
        second_moment: E|h|² of each state, for a drive of unit variance.
    """

    second_moment: Quantiles


@dataclass(frozen=True)
class Rounding:
    """Relative error of the state when the parameter is stored in each type (p99).

    None is an error that diverges, or a value beyond the range of the type.

    Attributes:
        bfloat16: with 8 significant bits.
        float16: with 11, up to 65504.
        float32: with 24.
        int8: with one scale per tensor, the largest |ω| over 127.
        float8_e4m3fn: with 4 significant bits, up to 448.
        float8_e5m2: with 3, up to 57344.
    """

    bfloat16: float | None
    float16: float | None
    float32: float | None
    int8: float | None = None
    float8_e4m3fn: float | None = None
    float8_e5m2: float | None = None


@dataclass(frozen=True)
class ParameterSummary:
    """One recurrent parameter group.

    Attributes:
        name: its name in the family.
        tensor: the tensor's name in the checkpoint.
        size: the number of scalars.
        dtype: the stored type.
        sensitivity: E|dh/dω|² per scalar, for a drive of unit variance.
        relative_sensitivity: κ(ω) = E|dh/dω|² / E|h|².
        step_effect: lr √κ of the p99 scalar: the relative change of the state in one step.
        max_lr: the learning rate at which that change reaches the limit called cursed.
        direction: what a step does to the eigenvalues.
        rounding: what storing it in fewer bits does.
        verdict: this group alone.
    """

    name: str
    tensor: str
    size: int
    dtype: str
    sensitivity: Quantiles
    relative_sensitivity: Quantiles
    step_effect: float | None
    max_lr: float | None
    direction: Direction
    rounding: Rounding
    verdict: Verdict


@dataclass(frozen=True)
class HessianSummary:
    """Scores of the Hessian at optimality over the layer's recurrent parameters.

    Attributes:
        order: the number N of parameters.
        diagonality: Σ H_aa² / Σ H_ab², in [1/N, 1].
        sharpness: the largest eigenvalue, per unit of input variance.
        max_stable_lr: 2 / (sharpness + sharpness_error), the largest SGD step that is known to be
            stable; None where the Hessian is zero.
        adam_residual: λ_max(D^-½ H D^-½): 1 is diagonal, N is the worst.
        concentration: coordinates that carry a top eigenvector.
        output_step_effect: lr √(tr H / E y²); None where E y² was not taken or is zero.
        diagonality_error: the standard error of an estimated diagonality; 0 where it is exact.
        sharpness_error: how much larger the sharpness may be; 0 where it is exact.
        adam_residual_error: how much larger the residual may be; 0 where it is exact.
    """

    order: int
    diagonality: float
    sharpness: float
    max_stable_lr: float | None
    adam_residual: float
    concentration: float
    output_step_effect: float | None
    diagonality_error: float = 0.0
    sharpness_error: float = 0.0
    adam_residual_error: float = 0.0


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
        activation: the activation that was assumed.
        reason: why a figure of the matrix is missing, or None.
        structure: what its eigenvalues do not tell.
        operating_point: of a non-linear layer whose biases are known, and that has one.
    """

    eigenvector_condition: float | None
    henrici_departure: float
    sensitivity: float | None
    relative_sensitivity: float | None
    activation: str
    reason: str | None = None
    structure: DenseStructure | None = None
    operating_point: OperatingPoint | None = None


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
class UsableRate:
    """The largest learning rate that training with Adam is expected to bear.

    Attributes:
        rate: the rate, or None where it is not known.
        limited_by: what ends training beyond it: ``divergence`` where eigenvalues can leave the
            unit disk, ``stall`` where every step changes the output by as much as itself.
        reason: why the rate is not known, or None.
    """

    rate: float | None
    limited_by: Literal["divergence", "stall"] | None
    reason: str | None = None


@dataclass(frozen=True)
class WhatIf:
    """The same eigenvalues and the same output of a layer, learnt through other parameters.

    Attributes:
        parametrization: of λ, by its name in `memcurse predict`; None keeps the layer's own.
        gain: ``held`` keeps γ and no parameter moves it, ``own`` is γ = √(1-|λ|²) with a
            parameter of its own, ``coupled`` the same γ computed from λ.
        step_size: Δ of ``s4``; None for the others.
        left_out: eigenvalues with |λ| ≥ 1 that it cannot hold.
        reason: why the figures, or those that need B and C, are missing; or None.
        state: E|h|².
        parameters: the groups, without a tensor.
        hessian: its scores over these groups, where B and C are known.
        hessian_reason: why it has none, or None.
        usable_rate: as that of a layer.
        verdict: as that of a layer; None without figures.
    """

    parametrization: str | None
    gain: Literal["held", "own", "coupled"]
    step_size: float | None
    left_out: int
    reason: str | None
    state: StateSummary | None = None
    parameters: tuple[ParameterSummary, ...] = ()
    hessian: HessianSummary | None = None
    hessian_reason: str | None = None
    usable_rate: UsableRate | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class LayerReport:
    """One recurrent layer.

    Attributes:
        name: the layer's name in the checkpoint.
        family: the family that read it.
        tensors: the names of the tensors that it was read from.
        input_dependent: whether λ depends on the input, and was taken at a nominal one.
        stable_by_construction: whether |λ| < 1 whatever the parameters are.
        assumptions: what the checkpoint does not say and was assumed.
        eigenvalues: the spectrum.
        state: the size of the state.
        parameters: the recurrent parameter groups.
        hessian: its scores over the recurrent parameters, where B and C are known.
        hessian_reason: why it has none, or None.
        dense: what only a dense recurrence has, or None.
        verdict: the worst of its groups' and of its learning rate's.
        findings: what is worth telling, in the order of their codes.
        hidden_feedback: whether gates see the hidden state through dense weights, whose memory is
            not in ``eigenvalues``.
        hidden_spectra: those weights' spectra, only where asked for.
        hidden_spectra_reason: why one that was asked for is missing, or None.
        usable_rate: the largest learning rate to expect training to bear.
        what_if: the layer in other parameters, where that was asked for.
        learning_rates: those of its groups, where they were asked for.
        adam: what Adam has made of them, where its state is known.
        gates: what input-dependent gates do when they move, where that was asked for.
    """

    name: str
    family: str
    tensors: tuple[str, ...]
    input_dependent: bool
    stable_by_construction: bool
    assumptions: tuple[str, ...]
    eigenvalues: EigenvalueSummary
    state: StateSummary
    parameters: tuple[ParameterSummary, ...]
    hessian: HessianSummary | None
    hessian_reason: str | None
    dense: DenseSummary | None
    verdict: Verdict
    findings: tuple[Finding, ...]
    hidden_feedback: bool = False
    hidden_spectra: tuple[HiddenSpectrum, ...] = ()
    hidden_spectra_reason: str | None = None
    usable_rate: UsableRate | None = None
    what_if: tuple[WhatIf, ...] = ()
    learning_rates: LearningRates | None = None
    adam: tuple[AdamGroup, ...] = ()
    gates: GateSummary | None = None


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that was recognised but could not be read.

    Attributes:
        name: the layer's name in the checkpoint.
        family: the family that recognised it.
        reason: why it could not be read.
    """

    name: str
    family: str
    reason: str


@dataclass(frozen=True)
class NotRecurrent:
    """Layers of a hybrid that have no recurrence, and that nothing is said of.

    Attributes:
        kind: what they are: ``attention``.
        count: how many; blocks that several layers share count once.
        examples: the names of the first few.
    """

    kind: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointSummary:
    """The file that the report is about.

    Attributes:
        path: as it was given; ``state_dict`` for arrays in memory.
        format: its format's name.
        bytes: its size.
        tensors: how many it holds.
        bytes_read: how many bytes of it were read.
        notes: what the reader had to say.
    """

    path: str
    format: str
    bytes: int
    tensors: int
    bytes_read: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputAssumption:
    """What was assumed of the input and of the optimizer.

    Attributes:
        autocorrelation: (weight, ρ) pairs of R(Δ) = Σ weight ρ^|Δ|.
        horizon: the number of steps T, or None for an infinite sequence.
        horizon_source: ``option``, ``checkpoint`` or None.
        learning_rate: the rate that step effects are taken at.
        readout: ``last`` for states and a loss at the last of the steps, ``every`` for their mean
            over all; None for states at the last step and a loss summed over every one.
        input_scale: the RMS of every component of the gates' input; None where gates stand at
            their bias.
    """

    autocorrelation: tuple[tuple[float, float], ...]
    horizon: int | None
    horizon_source: str | None
    learning_rate: float
    readout: Literal["last", "every"] | None = None
    input_scale: float | None = None


@dataclass(frozen=True)
class SensitivityCurve:
    """κ(λ) of a real eigenvalue under the assumed input, for charts to draw behind a layer's own.

    Attributes:
        horizon: the number of steps T, or None for an infinite sequence.
        time_constant: -1/log λ in steps, ascending.
        relative_sensitivity: κ(λ) at each; None where it diverges.
    """

    horizon: int | None
    time_constant: tuple[float, ...]
    relative_sensitivity: tuple[float | None, ...]


@dataclass(frozen=True)
class Report:
    """A whole report on one checkpoint.

    Attributes:
        version: of memcurse.
        checkpoint: the file.
        input: what was assumed of the input and of the optimizer.
        device: where eigendecompositions ran.
        verdict: the worst of the layers'.
        sentence: the verdict in words, on the worst layer.
        layers: the recurrent layers, in the checkpoint's order.
        skipped: those that could not be read.
        not_recurrent: layers of a hybrid that have no recurrence.
        curves: those of the theory, only where every eigenvalue was asked for.
        optimizer: the state that the checkpoint keeps of its optimizer, or None.
    """

    version: str
    checkpoint: CheckpointSummary
    input: InputAssumption
    device: str
    verdict: Verdict
    sentence: str
    layers: tuple[LayerReport, ...]
    skipped: tuple[SkippedLayer, ...] = field(default=())
    not_recurrent: tuple[NotRecurrent, ...] = field(default=())
    curves: tuple[SensitivityCurve, ...] = field(default=())
    optimizer: OptimizerSummary | None = None

    def scalars(self, prefix: str = "memcurse/") -> dict[str, float]:
        """The figures as a flat dictionary for a logger; see `memcurse_cli.diagnosis.scalars`."""
        from memcurse_cli.diagnosis.scalars import scalars

        return scalars(self, prefix)
