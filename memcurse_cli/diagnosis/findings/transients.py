"""MC106: a dense matrix whose powers grow before they decay."""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.wording import number
from memcurse_cli.schema.report import Finding

TRANSIENT = Rule(
    "MC106",
    "the state grows before it decays",
    "Kreiss 1962; Trefethen & Embree 2005, chapters 16 and 18",
    what="Every eigenvalue of a dense matrix has |λ| < 1, and some power of it still has a norm "
    "above 10.",
    why="Some states and some errors of the state are amplified by that norm before they decay, "
    "over as many steps as its power has. Nothing in the eigenvalues says so, and a saturating "
    "activation makes of it a state that need not come back.",
    equation="max_k ‖A^k‖₂ > 10 while all |λ| < 1; K(A) = sup (|z|-1) ‖(z-A)⁻¹‖ bounds it from "
    "below",
    change="Bring the matrix closer to a normal one: initialise it as orthogonal or symmetric, "
    "penalise ‖AᵀA - AAᵀ‖, or use a diagonal recurrence, which has no transients.",
)

GROWTH = 10.0


def find_transients(facts: Facts) -> Iterator[Finding]:
    """Growth that the eigenvalues of a stable dense matrix do not tell."""
    structure = None if facts.dense is None else facts.dense.structure
    if structure is None or structure.transient_growth is None:
        return
    growth, step = structure.transient_growth, structure.transient_step
    if growth <= GROWTH:
        return
    yield TRANSIENT.finding(
        "warning",
        f"‖A^k‖ reaches {number(growth)} at k = {step}, though every |λ| < 1: a state can grow so "
        "much before it decays",
        "bring the matrix closer to a normal one, by an orthogonal initialisation or a penalty on "
        "‖AᵀA - AAᵀ‖, or make the recurrence diagonal",
    )
