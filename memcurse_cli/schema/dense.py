"""The part of the schema about dense recurrences and the matrices of gated ones."""

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
