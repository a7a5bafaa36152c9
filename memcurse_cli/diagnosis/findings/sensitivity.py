"""MC2xx: how far one optimizer step moves the state, per parameter group."""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.usable_rate import FACTOR, advised, rate_verdict
from memcurse_cli.diagnosis.wording import number, percent, rounded_down
from memcurse_cli.schema.figures import ParameterSummary, diverges
from memcurse_cli.schema.report import Finding, Severity, UsableRate

SOURCE = "Zucchet & Orvieto 2024, eq. 6 and section 3"
EFFECT = "lr √κ(ω) of the group's p99 scalar, κ(ω) = E|dh/dω|² / E|h|²"
DESTABILISING = Rule(
    "MC201",
    "a step can destabilise the recurrence",
    SOURCE,
    what="One optimizer step on a parameter group changes the state by more than a limit, and it "
    "can push |λ| beyond 1.",
    why="The longer the memory, the more a small change of λ adds up: E|dh/dλ|² grows as "
    "1/(1-|λ|)³. This is the curse of memory, and it holds without any exploding gradient. Here "
    "the step also reaches the unit circle, beyond which the state explodes.",
    equation=f"{EFFECT}, above 10 % to watch and 100 % cursed",
    change="Reparametrise the modulus so that |λ| < 1 holds by construction and its sensitivity "
    "stays bounded, as |λ| = exp(-exp(ν)) with a normalised input does, or give the group a lower "
    "learning rate.",
)
DECORRELATING = Rule(
    "MC202",
    "a step scrambles what the state holds",
    SOURCE,
    what="One optimizer step on a parameter group changes the state by more than a limit by "
    "turning the angle of λ.",
    why="A turn of the angle by δ has moved the phase by kδ after k steps, so that over a long "
    "memory the state stands for something else after each update. A step of this size takes no "
    "|λ| past 1; what the rest of the network does with such a state is not bounded by that.",
    equation=f"{EFFECT}; for the LRU's angle κ ~ θ²/(2(1-|λ|)²) as |λ| → 1",
    change="Give the angle its own, lower learning rate, or a parametrisation that scales it by "
    "1-|λ|², such as `optimal`.",
)
SCALING = Rule(
    "MC203",
    "a step rescales the state",
    SOURCE,
    what="One optimizer step on a parameter group changes the state by more than a limit, by "
    "changing its scale or a modulus that cannot leave the unit disk.",
    why="What follows the layer sees its input grow or shrink at every update and has to follow.",
    equation=EFFECT,
    change="Give the group a lower learning rate; where the layer has no gain of its own, "
    "normalise the input of each state by its memory, γ = √(1-|λ|²).",
)
DENSE = Rule(
    "MC204",
    "a step on a dense matrix moves every eigenvalue",
    "Zucchet & Orvieto 2024, sections 2.3 and A.2.3",
    what="One optimizer step on every entry of a dense recurrent matrix, their signs independent, "
    "changes the state by more than a limit.",
    why="Every entry moves every eigenvalue, so that the eigenvalues of the longest memory set the "
    "sensitivity of all n² entries, and no learning rate per entry can tell them apart. Signs in "
    "concert reach further: the output at most √λ_max(D^-½ H D^-½) times as far, D = diag H.",
    equation="lr √(E‖dh/dA‖²_F / E‖h‖²), with E‖dh/dA‖²_F = tr G tr Σ + 2 Re Σ_ij g_i σ_j "
    "λ_iλ_j/(1-λ_iλ_j) for white input",
    change="Make the recurrence diagonal, with complex eigenvalues of its own, or lower the "
    "learning rate of the matrix.",
)
SCALE_STATES = "scale the input of each state by √(1-|λ|²)"
SCALE_LAYER = "scale the input of the layer"
UNNORMALISED = Rule(
    "MC205",
    "the state is not normalised",
    "Zucchet & Orvieto 2024, eq. 5",
    what="The variance of the state is more than 100 times that of its drive, and no gain makes "
    "up for it.",
    why="States of long memory drown those of short memory in whatever reads them, and the "
    "gradients of what writes them grow likewise.",
    equation="E|h|² = γ²/(1-|λ|²) for white input, > 100 at γ = 1",
    change=f"{SCALE_STATES.capitalize()}, which makes E|h|² that of the drive; where some |λ| ≥ 1 "
    f"bring it below 1 first. For a dense matrix, {SCALE_LAYER} by 1/√E|h|².",
)

UNKNOWN = Rule(
    "MC206",
    "a sensitivity is not computed",
    SOURCE,
    what="The sensitivity to a parameter group is not known: the computation was refused, for the "
    "reason that the message gives.",
    why="For want of the figure the layer is to be watched, whether or not a step harms it.",
    equation="E‖dh/dA‖²_F of a dense matrix at the --horizon that was asked for",
    change="Give a shorter --horizon, or none where every |λ| < 1.",
)

UNUSABLE_RATE = Rule(
    "MC207",
    "the learning rate is near or above the largest usable one",
    "docs/verdict.md; Zucchet & Orvieto 2024, section 4.2",
    what="The learning rate is at least a third of the largest one that training with Adam is "
    "expected to bear on this layer.",
    why="Beyond it training ends in one of two ways. Where a step can push eigenvalues out of the "
    "unit disk, the loss explodes; where it cannot, every step changes the output by as much as "
    "the output itself, and the loss stalls.",
    equation="divergence: lr √κ(λ) |Δλ| = 1.2, with |Δλ| an eigenvalue's shift by a step of 1 on "
    "every entry; stall: lr √(tr H / E y²) = 2.3",
    change="Lower the learning rate of the recurrent parameters below the rate that is given; for "
    "a dense matrix, use a diagonal recurrence, whose eigenvalues a step moves far less.",
)

LARGE_SECOND_MOMENT = 100.0

RULES = {"destabilising": DESTABILISING, "decorrelating": DECORRELATING, "scaling": SCALING}
CONSEQUENCE = {
    "destabilising": "and can leave the unit disk",
    "decorrelating": "by turning its angle: it scrambles what the state holds and takes no |λ| "
    "past 1",
    "scaling": "in scale",
}
ENDS = {
    "divergence": "beyond it eigenvalues leave the unit disk and training diverges",
    "stall": "beyond it each step changes the output by as much as itself and training stalls",
}
REMEDY = {
    "destabilising": "reparametrise the modulus so that |λ| < 1 holds by construction",
    "decorrelating": "give it a lower learning rate of its own",
    "scaling": "give it a lower learning rate of its own",
}


def find_sensitivity(facts: Facts) -> Iterator[Finding]:
    """One finding per group whose step effect passes a limit, and the state's own scale."""
    for parameter in facts.parameters:
        if parameter.verdict != "ok":
            yield _sensitive(facts, parameter)
    if facts.usable_rate is not None and rate_verdict(facts.usable_rate, facts.settings) != "ok":
        yield _unusable_rate(facts.usable_rate, facts)
    second_moment = facts.state.second_moment.p99
    own_gain = bool(facts.recurrence.log_gain.any())
    if second_moment is not None and second_moment > LARGE_SECOND_MOMENT and not own_gain:
        yield UNNORMALISED.finding(
            "info",
            f"E|h|² reaches {number(second_moment)} times the variance of the drive (p99), since "
            "no gain γ compensates for the memory",
            # The states of a matrix are no eigenvectors: no gain of theirs is one of an eigenvalue.
            f"{SCALE_LAYER} by {rounded_down(second_moment**-0.5)}"
            if facts.dense is not None
            else SCALE_STATES
            + (", once every |λ| is below 1" if facts.eigenvalues.unstable else ""),
        )


def _unusable_rate(usable: UsableRate, facts: Facts) -> Finding:
    above = usable.rate is not None and facts.settings.learning_rate > usable.rate
    severity: Severity = "error" if rate_verdict(usable, facts.settings) == "cursed" else "warning"
    return UNUSABLE_RATE.finding(
        severity,
        f"a learning rate of {number(facts.settings.learning_rate)} is "
        f"{'above' if above else 'near'} the largest usable one, about {number(usable.rate or 0)}: "
        f"{ENDS[usable.limited_by or 'stall']}",
        f"stay below {rounded_down(usable.rate or 0)}, which is known within a factor of "
        f"{number(FACTOR)}",
    )


def _sensitive(facts: Facts, parameter: ParameterSummary) -> Finding:
    rule = DENSE if facts.dense is not None else RULES[parameter.direction]
    severity: Severity = "error" if parameter.verdict == "cursed" else "warning"
    if parameter.step_effect is None and not diverges(parameter):
        reason = facts.dense.reason if facts.dense is not None else facts.withheld
        return UNKNOWN.finding(
            "warning",
            f"the sensitivity to {parameter.name} is not computed"
            + (f": {reason}" if reason else ""),
            ""
            if facts.withheld is not None
            else "give --horizon T"
            if facts.settings.horizon is None
            else "give a shorter --horizon",
        )
    if parameter.step_effect is None:
        return rule.finding(
            severity,
            f"the sensitivity to {parameter.name} diverges: no learning rate is small enough",
            ("give --horizon T; " if facts.settings.horizon is None else "")
            + REMEDY[parameter.direction],
        )
    rate = facts.settings.learning_rate
    signs = "" if facts.dense is None else " of independent signs"
    message = (
        f"one step{signs} at {number(rate)} on {parameter.name} moves the state by "
        f"{percent(parameter.step_effect)} {CONSEQUENCE[parameter.direction]}"
    )
    advice = REMEDY[parameter.direction]
    if facts.dense is not None:
        advice = "make the recurrence diagonal (complex eigenvalues of its own)"
    target = advised(parameter, facts.usable_rate, facts.settings)
    if target is not None:
        advice += f", or stay below a learning rate of {rounded_down(target)}"
    return rule.finding(severity, message, advice)
