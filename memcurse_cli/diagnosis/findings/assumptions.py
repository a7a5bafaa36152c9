"""MC5xx: where the layer breaks an assumption of the theory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.wording import duration, number
from memcurse_cli.schema.layer import DenseSummary, GateSummary
from memcurse_cli.schema.report import Finding

NOMINAL_GATE = Rule(
    "MC501",
    "gates stand at zero input",
    "Zucchet & Orvieto 2024, sections 3.2 and D.2",
    what="λ depends on the input, and every figure is that of the gates at zero input.",
    why="The theory takes λ as constant in time. Inputs open and close the gates around their "
    "nominal value, so that memory is at times longer and at times shorter than reported.",
    equation="λ_t = σ(W x_t + b) is taken as σ(b); likewise for a step size Δ(x_t)",
    change="Nothing; read the figures as those of the nominal gate, and see how far it moves with "
    "--gates.",
)
LINEARISED = Rule(
    "MC502",
    "the activation is linearised",
    "Zucchet & Orvieto 2024, section 2.2 a",
    what="The layer has an activation between its steps, and figures of a linear one are taken at "
    "its slope.",
    why="Where the biases are known, the slope is that of mean field theory under inputs of unit "
    "variance. Elsewhere it is 1, that of small states, for which memory and sensitivities are the "
    "largest. Where the state does not decay at that slope, no linear figure holds, and none is "
    "given.",
    equation="h' = φ(A h + B x) is taken as h' = s (A h + B x), s = √E φ'(u)² or s = φ'(0) = 1",
    change="Nothing; at a slope of 1, read the figures as those of small states.",
)
HIDDEN = Rule(
    "MC503",
    "memory through the hidden weights",
    "Zucchet & Orvieto 2024, section D.2",
    what="Gates see the whole state through dense weights, and memory that runs through those is "
    "not in λ.",
    why="The true memory can be longer than the gates' own time constants, and the true "
    "sensitivity larger.",
    equation="the eigenvalues of ∂h_{t+1}/∂h_t at zero input and zero state, against λ = σ(b)",
    change="Measure it near the zero state with --spectra; do not take the figures of the gates "
    "as those of the whole layer.",
)
RANK_ONE = Rule(
    "MC504",
    "a rank-one term beside the diagonal",
    "Yang et al. 2024, arXiv 2406.06484, section 2.2; interlacing, Golub & Van Loan 2013, 8.1.8",
    what="The recurrence subtracts a rank-one term from its diagonal, as delta rules do, and λ is "
    "that of the diagonal alone.",
    why="At an input that writes, one eigenvalue of each head comes down: what was stored under "
    "that key is written over. The others stay between their neighbours on the diagonal.",
    equation="A_t = diag(λ) - β_t k_t k_tᵀ, whose eigenvalues interlace with λ",
    change="Nothing; read τ as that of what no later input writes over.",
)

MOVING_GATES = Rule(
    "MC505",
    "gates that move change the figures",
    "Zucchet & Orvieto 2024, section D.2, with gates drawn independently at every step",
    what="Under inputs of the assumed scale the gates move so far that E h² or κ differs by more "
    "than a factor 2 from that of gates held at their bias.",
    why="Step effects and learning rates of the report are those of the held gates. Gates that "
    "move forget faster than their bias says where they are mostly open, and slower where they "
    "are mostly closed, since means of λ² and of its powers are taken over their whole range.",
    equation="E h² = (E γ² + …) / (1 - E λ²) with z ~ N(b, ‖W‖² E x² + ‖U‖² E h²), against "
    "γ² / (1 - λ²) at z = b; likewise κ",
    change="Read E h² and κ of the moving gates; measure the RMS of the gates' input and give it "
    "with --input-scale.",
)

LONGER = 2.0
"""The ratio of time constants from which the hidden weights make a memory clearly longer."""
MOVED = 2.0
"""The ratio of figures from which the gates' movement is worth telling."""
NOT_THE_WHOLE = "do not take τ and the step effects of the gates as those of the whole layer"


def find_assumptions(facts: Facts) -> Iterator[Finding]:
    """Gates that depend on input or state, slopes taken as 1, and what λ leaves out."""
    if facts.recurrence.input_dependent:
        yield NOMINAL_GATE.finding(
            "info",
            "λ depends on the input; every figure is that of the gates at zero input",
        )
    if facts.linearised and facts.dense is not None:
        yield LINEARISED.finding("info", _linearised(facts, facts.dense))
    if facts.recurrence.hidden_feedback:
        yield _hidden(facts)
    correction = facts.recurrence.rank_one
    if correction is not None and correction.count > 1:
        yield RANK_ONE.finding(
            "info",
            f"λ leaves out {correction.count} factors {correction.term} of every step, which are 1 "
            f"at zero input; with an input up to {correction.count} eigenvalues of each head move, "
            "anywhere within the unit disk",
        )
    elif correction is not None:
        yield RANK_ONE.finding(
            "info",
            f"λ leaves out the rank-one term {correction.term}, which is none at zero input; with "
            f"one, a single eigenvalue of each head can come down to {number(correction.lowest)}, "
            "whatever the input, and the others stay within the λ of their head",
        )
    if facts.gates is not None:
        yield from _moving(facts.gates)


def _linearised(facts: Facts, dense: DenseSummary) -> str:
    """At which slope the figures are taken, and what it makes of the spectrum."""
    point, largest = dense.operating_point, facts.eigenvalues.modulus.max
    if point is None or largest is None:
        if facts.withheld is not None:
            return f"the {dense.activation} has no linear figures here: {facts.withheld}"
        return (
            f"the {dense.activation} is taken with slope 1; where its slope is smaller, memory is "
            "shorter and sensitivities are smaller"
        )
    longest = facts.eigenvalues.time_constant.max

    def memory(steps: float | None) -> str:
        return "no decay" if steps is None else f"τ = {number(steps)}"

    return (
        f"under inputs of unit variance mean field theory has the slope of the {dense.activation} "
        f"at {number(point.slope)}, E h² at {number(point.second_moment)} and the largest |λ| at "
        f"{number(point.spectral_radius)} ({memory(point.time_constant)}) instead of "
        f"{number(largest)} ({memory(longest)})"
        + ("; the figures are those there" if facts.withheld is None else "")
    )


def _moving(gates: GateSummary) -> Iterator[Finding]:
    """The figure that moves farthest, where that is far."""
    figures = [("E h²", gates.second_moment)]
    figures += [(f"κ of {one.name}", one.relative_sensitivity) for one in gates.parameters]
    apart = [
        (departure(getattr(figure.nominal, level), getattr(figure.moving, level)), name, level)
        for name, figure in figures
        if figure is not None
        for level in ("p50", "p99")
    ]
    if not apart or max(apart)[0] <= MOVED:
        return
    _, name, level = max(apart)
    figure = dict(figures)[name]
    assert figure is not None
    nominal, moving = (
        "divergent" if value is None else number(value)
        for value in (getattr(figure.nominal, level), getattr(figure.moving, level))
    )
    yield MOVING_GATES.finding(
        "info",
        f"with gates that move under inputs of RMS {number(gates.input_scale)} the {level} of "
        f"{name} is {moving} instead of {nominal} at their bias",
        "read E h² and κ of the moving gates; give the real RMS with --input-scale",
    )


def departure(nominal: float | None, moving: float | None) -> float:
    """How many times larger one is than the other; a value that diverges is None."""
    if nominal is None or moving is None:
        return 1.0 if nominal is moving else math.inf
    if min(nominal, moving) <= 0:
        return 1.0 if nominal == moving else math.inf
    return max(nominal / moving, moving / nominal)


def _hidden(facts: Facts) -> Finding:
    """What is known of the memory that λ leaves out."""
    jacobian = facts.jacobian
    if jacobian is None:
        # A family that says without being asked why it has none has none when asked either.
        measured = facts.settings.spectra or facts.recurrence.hidden is not None
        return HIDDEN.finding(
            "info",
            "gates also see the state through dense hidden weights; memory that runs through them "
            "is not in λ, so the true memory can be longer",
            "" if measured else "measure it near the zero state with --spectra",
        )
    gates = facts.eigenvalues.time_constant.max
    if jacobian.time_constant is None:
        message = (
            "memory also runs through the hidden weights: with them one step near the zero state "
            f"has spectral radius {number(jacobian.spectral_radius)}, so small changes of the "
            "state grow until the activations saturate"
        )
        if gates is not None:
            message += f"; the memory is not bounded by the gates' {duration(gates)}"
        return HIDDEN.finding("warning", message, NOT_THE_WHOLE)
    message = (
        "with the hidden weights the longest time constant near the zero state is "
        f"{duration(jacobian.time_constant)}"
    )
    if gates is None:
        return HIDDEN.finding("info", message)
    message += f", against {number(gates)} of the gates alone"
    if jacobian.time_constant >= LONGER * gates:
        return HIDDEN.finding("warning", message, NOT_THE_WHOLE)
    return HIDDEN.finding("info", message)
