"""MC5xx: where the layer breaks an assumption of the theory."""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.report import Finding

NOMINAL_GATE = Rule(
    "MC501", "gates stand at zero input", "Zucchet & Orvieto 2024, sections 3.2 and D.2"
)
LINEARISED = Rule("MC502", "the activation is linearised", "Zucchet & Orvieto 2024, section 2.2 a")


def find_assumptions(facts: Facts) -> Iterator[Finding]:
    """Gates that depend on the input, and activations taken with slope 1."""
    if facts.recurrence.input_dependent:
        yield NOMINAL_GATE.finding(
            "info",
            "λ depends on the input; every figure is that of the gates at zero input",
        )
    if facts.linearised and facts.dense is not None:
        yield LINEARISED.finding(
            "info",
            f"the {facts.dense.activation} is taken with slope 1; where it saturates, memory is "
            "shorter and sensitivities are smaller",
        )
