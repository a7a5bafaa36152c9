"""The Hessians that the authors' own code computed for figures 4 and 9, entry by entry.

They are Hessians of the empirical loss, so the authors' data takes the place of an expectation.
Every student is the teacher in the basis of its eigenvectors, in the order A, B, C, D of its
parameters and with imaginary parts before real ones. What the file does not say of the students:

- complex diagonal: λ, B and C of the teacher as they are.
- LRU: γ = √(1-|λ|²) with a logarithm of its own, and the teacher's B over γ. ω_θ is the logarithm
  of an angle in (0, 2π), which the lower halves of the pairs need.
- S4: λ = e^(ΔA) and B̄ = ΔB, not the zero-order hold: the blocks of B are Δ² times those of the
  complex diagonal. Δ = softplus(ω_Δ) is 0.01 for every state, so that the blocks of A are Δ² times
  those of log λ, and the block of ω_Δ is lower by the factor (1-e^-Δ)²/Δ² than that of a
  logarithm would be. ω_Δ is a float32 number, log(e^0.01 - 1) as float32 arithmetic has it, so
  that Δ is 0.0100000112 while A and B are the teacher's over 0.01: not quite the optimum, and the
  residual has a share of 4e-4 in the Hessian. The loss was printed with Δ in float32 too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from theory.impulse_hessian import Layer, Projection, expected, group, projection

from memcurse_cli.theory.autocorrelation import WHITE

STEPS = 300
RAW_STEP = float(np.float32(-4.6001649))
Floats = NDArray[np.float64]

# The single input and output of the authors' networks, imaginary parts first.
PROJECTIONS: tuple[Projection, ...] = (
    projection("B", (4, 1), 1j),
    projection("B", (4, 1)),
    projection("C", (1, 4), 1j),
    projection("C", (1, 4)),
    projection("D", (1, 1)),
)


@pytest.fixture(scope="module")
def oracle(paper: Path) -> dict[str, Any]:
    return json.loads((paper / "hessian_at_optimality.json").read_text())


@pytest.fixture(scope="module")
def data(paper: Path) -> Floats:
    return np.load(paper / "hessian_at_optimality_data.npz")["X"][..., 0]


def teacher(oracle: dict[str, Any]) -> tuple[NDArray, NDArray, NDArray]:
    """log λ with angles in (0, 2π), B and C."""
    parts, diagonal = oracle["teacher"], oracle["diag"]
    logs = np.log(np.array(parts["eig_re"]) + 1j * np.array(parts["eig_im"]))
    logs = np.where(logs.imag < 0, logs + 2j * np.pi, logs)
    return (
        logs,
        np.array(diagonal["B_re"]) + 1j * np.array(diagonal["B_im"]),
        np.array(diagonal["C_re"]) + 1j * np.array(diagonal["C_im"]),
    )


def complex_diagonal(oracle: dict[str, Any]) -> Layer:
    logs, b, c = teacher(oracle)
    groups = (group(np.full(4, 1j)), group(np.ones(4)))
    return Layer(logs, np.zeros(4, complex), groups, b, c, projections=PROJECTIONS)


def lru(oracle: dict[str, Any]) -> Layer:
    logs, b, c = teacher(oracle)
    gamma = np.sqrt(-np.expm1(2 * logs.real))
    eigenvalues = np.exp(logs)
    groups = (
        group(eigenvalues * logs.real),
        group(eigenvalues * 1j * logs.imag),
        group(np.zeros(4), np.ones(4)),
    )
    log_gain = np.log(gamma).astype(complex)
    return Layer(logs, log_gain, groups, b / gamma[:, None], c, projections=PROJECTIONS)


def s4(oracle: dict[str, Any], moved: Floats | None = None, raw_step: float = RAW_STEP) -> Layer:
    """The S4 student, its A, ω_Δ, B and C moved by so much."""
    logs, b, c = teacher(oracle)
    change = np.zeros((7, 4)) if moved is None else moved[:28].reshape(7, 4)
    a = logs / 0.01 + change[0] + 1j * change[1]
    b = b / 0.01 + 1j * change[3][:, None] + change[4][:, None]
    c = c + 1j * change[5] + change[6]
    step = np.log1p(np.exp(raw_step + change[2]))
    slope = -np.expm1(-step)  # σ(ω) = 1 - e^-softplus(ω)
    eigenvalues = np.exp(step * a)
    groups = (
        group(eigenvalues * step),
        group(eigenvalues * 1j * step),
        group(eigenvalues * a * slope, slope / step),
    )
    log_gain = np.log(step).astype(complex)
    return Layer(step * a, log_gain, groups, b, c, projections=PROJECTIONS)


def every_response(layer: Layer) -> Floats:
    """(parameters, steps) of λ, γ, B, C and D."""
    return layer.responses(STEPS).reshape(-1, STEPS)


def printed(oracle: dict[str, Any], student: str, order: int) -> Floats:
    """H over the parameters of λ, γ, B, C and D; what follows has no effect on the output."""
    whole = np.array(oracle[student]["H"])
    assert not whole[order:].any()
    return whole[:order, :order]


STUDENTS: list[tuple[str, Any]] = [("complex_diag", complex_diagonal), ("LRU", lru)]


def residual(student: Layer, optimum: Layer) -> Floats:
    """(1, steps) the impulse response of y - y*."""
    difference = student.read(student.powers(STEPS)[0]) - optimum.read(optimum.powers(STEPS)[0])
    return difference.reshape(1, STEPS)


@pytest.mark.parametrize(("student", "make"), [*STUDENTS, ("S4", s4)])
def test_in_expectation(oracle: dict[str, Any], student: str, make: Any) -> None:
    """64 sequences of 300 steps: a few percent of the largest entry, ten of the long memories'."""
    layer = make(oracle)
    responses = every_response(layer)
    found = expected(responses, WHITE, STEPS)
    whole = printed(oracle, student, len(found))
    assert np.abs(found - whole).max() < 0.07 * np.abs(whole).max()

    ((block,),) = (blocks.hessians for blocks in layer.hessian(horizon=STEPS).blocks())
    scales = np.sqrt(np.diag(found))
    assert np.abs((block - found) / np.outer(scales, scales)).max() < 1e-11
