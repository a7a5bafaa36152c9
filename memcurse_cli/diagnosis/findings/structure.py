"""MC3xx: whether a diagonal preconditioner such as Adam can take the sensitivity away."""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.report import Finding
from memcurse_cli.diagnosis.wording import number, percent, rounded_down

SOURCE = "Zucchet & Orvieto 2024, section 4.3"
COUPLED = Rule("MC301", "the Hessian is far from diagonal", SOURCE)
SHARP = Rule("MC302", "plain gradient descent needs a smaller step", SOURCE)
NON_NORMAL = Rule("MC303", "the matrix is far from normal", "Henrici 1962")

ADAM_RESIDUAL = 10.0
EIGENVECTOR_CONDITION = 1e3


def find_structure(facts: Facts) -> Iterator[Finding]:
    """What the Hessian's shape, or the eigenvectors of a dense matrix, mean for the optimizer."""
    hessian, dense = facts.hessian, facts.dense
    if hessian is not None:
        if hessian.adam_residual > ADAM_RESIDUAL:
            yield COUPLED.finding(
                "warning",
                f"after an ideal diagonal preconditioner a curvature of "
                f"{number(hessian.adam_residual)} is left (1 is diagonal, {hessian.order} the "
                f"worst; diagonality {percent(hessian.diagonality)}): Adam cannot take it away",
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
                "use an adaptive optimizer for these parameters",
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
                f"{percent(dense.henrici_departure)}): the state can grow before it decays, and "
                "eigenvalues alone understate the sensitivity",
                "read the sensitivity of the whole matrix, which includes this",
            )
