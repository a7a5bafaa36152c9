"""MC3xx: whether a diagonal preconditioner such as Adam can take the sensitivity away."""

from __future__ import annotations

import math
from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.wording import number, percent, rounded_down
from memcurse_cli.schema.layer import DenseSummary
from memcurse_cli.schema.report import Finding

SOURCE = "Zucchet & Orvieto 2024, section 4.3"
COUPLED = Rule(
    "MC301",
    "the Hessian is far from diagonal",
    SOURCE,
    what="After an ideal diagonal preconditioner the largest curvature is still more than 10.",
    why="Adam rescales each coordinate by itself. Curvature that lies along no coordinate remains, "
    "so that a learning rate that is right for each parameter alone is too large for all of them "
    "together.",
    equation="λ_max(D^-½ H D^-½) > 10 with D = diag H and H_ab = E[J_a J_b] at a perfect fit; 1 is "
    "diagonal, the number of parameters is the worst",
    change="Spread the eigenvalues, learn λ through parameters of its own instead of a dense "
    "matrix, or lower the learning rate of the recurrent parameters.",
)
SHARP = Rule(
    "MC302",
    "plain gradient descent needs a smaller step",
    SOURCE,
    what="Gradient descent without a preconditioner would diverge at the learning rate that was "
    "given.",
    why="A step of gradient descent is stable below 2 over the largest curvature. Long memory "
    "makes the curvature of a few parameters large, and they hold back all the others.",
    equation="lr > 2 / λ_max(H), for a squared error at its optimum, per unit of input variance",
    change="Nothing under Adam or another adaptive optimizer; plain gradient descent needs a rate "
    "below the one that is given.",
)
NON_NORMAL = Rule(
    "MC303",
    "the matrix is far from normal",
    "Henrici 1962",
    what="The eigenvectors of a dense matrix are nearly parallel, or do not span the space.",
    why="Then powers of the matrix can grow before they decay, and the state is more sensitive "
    "than the eigenvalues tell.",
    equation="κ(P) > 10³ for A = P Λ P⁻¹; departure √(‖A‖_F² - Σ|λ|²) / ‖A‖_F",
    change="Read the sensitivity of the whole matrix, which includes this; an orthogonal or a "
    "diagonal recurrence is normal by construction.",
)

ADAM_RESIDUAL = 10.0
EIGENVECTOR_CONDITION = 1e3


def find_structure(facts: Facts) -> Iterator[Finding]:
    """What the Hessian's shape, or the eigenvectors of a dense matrix, mean for the optimizer."""
    hessian, dense = facts.hessian, facts.dense
    if hessian is not None:
        if hessian.adam_residual > ADAM_RESIDUAL:
            concert = math.sqrt(hessian.adam_residual + hessian.adam_residual_error)
            yield COUPLED.finding(
                "warning",
                f"after an ideal diagonal preconditioner a curvature of "
                f"{number(hessian.adam_residual)} is left (1 is diagonal, {hessian.order} the "
                f"worst; diagonality {percent(hessian.diagonality)}): Adam cannot take it away, "
                f"and signs in concert move the output up to {number(concert)} times as far as "
                "independent ones",
                "spread the eigenvalues, or lower the learning rate of the recurrent parameters"
                if dense is None
                else "make the recurrence diagonal, or lower the learning rate of the matrix",
            )
        if hessian.max_stable_lr is not None and (
            hessian.max_stable_lr < facts.settings.learning_rate
        ):
            yield SHARP.finding(
                "info",
                f"gradient descent without preconditioning is unstable above "
                f"{rounded_down(hessian.max_stable_lr)} (sharpness {number(hessian.sharpness)} "
                "per unit of input variance, squared error at the optimum)",
                "nothing under Adam, which every step effect assumes",
            )
    if dense is not None:
        condition = dense.eigenvector_condition
        if condition is None or condition > EIGENVECTOR_CONDITION:
            size = (
                "is not diagonalisable in floating point"
                if condition is None
                else (f"has eigenvectors of condition {number(condition)}")
            )
            yield NON_NORMAL.finding(
                "warning",
                f"the matrix {size} (departure from normality "
                f"{percent(dense.henrici_departure)}{_rounded(dense)}): the state can grow "
                "before it decays, and eigenvalues alone understate the sensitivity",
                "read the sensitivity of the whole matrix, which includes this",
            )


def _rounded(dense: DenseSummary) -> str:
    """How far rounding moves the eigenvalues, where it does."""
    radius = dense.radius_within_rounding
    return "" if radius is None else f"; rounding it moves |λ| up to {number(radius)}"
