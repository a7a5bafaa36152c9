"""What is worth telling of a layer, each thing under the code of a rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from memcurse_cli.diagnosis.diagonal import DTYPES, is_stored, leaves_disk
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import CONSEQUENCE, FACTOR, REMEDY, advised, rate_verdict
from memcurse_cli.diagnosis.wording import (
    count,
    duration,
    number,
    percent,
    rounded_down,
    share_having,
)
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import ParameterSummary, Verdict, diverges
from memcurse_cli.schema.layer import GateSummary, jacobian_of
from memcurse_cli.schema.report import Finding, LayerReport, Severity
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.rounding import Dtype

FROZEN_STEPS, FROZEN_HORIZONS = 1e6, 100
DEAD_MODULUS, DEAD_SHARE = 0.01, 0.5
GROWTH = 10.0
LARGE_SECOND_MOMENT = 100.0
ADAM_RESIDUAL = 10.0
EIGENVECTOR_CONDITION = 1e3
STATE_ERROR = 0.1
LONGER = 2.0
"""The ratio of time constants from which the hidden weights make a memory clearly longer."""
MOVED = 2.0
"""The ratio of figures from which the gates' movement is worth telling."""

EIGHT: tuple[Dtype, ...] = ("int8", "float8_e4m3fn", "float8_e5m2")
FLOATS: Mapping[Dtype, str] = {"float32": "MC403", "float16": "MC402", "bfloat16": "MC401"}
"""Finer ones first."""

STEPS = {"destabilising": "MC201", "decorrelating": "MC202", "scaling": "MC203"}
ENDS = {
    "divergence": "beyond it eigenvalues leave the unit disk and training diverges",
    "stall": "beyond it each step changes the output by as much as itself and training stalls",
}
NOT_THE_WHOLE = "do not take τ and the step effects of the gates as those of the whole layer"


class Facts(NamedTuple):
    """What findings are drawn from; ``withheld`` says why no linear figure holds, or is None."""

    recurrence: Recurrence
    settings: Settings
    layer: LayerReport
    withheld: str | None


def find(facts: Facts) -> tuple[Finding, ...]:
    """Every finding of a layer, group by group of their codes."""
    dynamics = (_unstable, _frozen_or_beyond, _dead, _transients)
    sources = (*dynamics, _sensitivities, _hessian, _non_normal, _precision, _assumptions)
    return tuple(finding for source in sources for finding in source(facts))


def _finding(code: str, severity: Severity, message: str, advice: str = "") -> Finding:
    return Finding(code, severity, message, advice, RULES[code].source)


def _unstable(facts: Facts) -> Iterator[Finding]:
    layer, recurrence = facts.layer, facts.recurrence
    unstable, dense, horizon = layer.eigenvalues.unstable, layer.dense, facts.settings.horizon
    if not unstable:
        return
    top = layer.eigenvalues.modulus.max
    written_over = recurrence.rank_one is not None and not recurrence.parameters
    if written_over or recurrence.unitary:
        yield _finding(
            "MC101",
            "info",
            f"{count(unstable, 'eigenvalue')} of 1 at zero input, by design: nothing decays by "
            "itself, and only what is written over is forgotten"
            if written_over
            else f"|λ| = 1 for all {count(unstable, 'eigenvalue')}, by design: the linear part "
            "turns the state and lets nothing decay",
            "give --horizon T for the figures of a T-step sequence" if horizon is None else "",
        )
        return
    message = f"{share_having(unstable, layer.eigenvalues.count, 'eigenvalue')} |λ| >= 1" + (
        f", the largest |λ| = {top:.6g}" if top is not None else ""
    )
    if facts.withheld is not None:
        message += ": no linear figure holds, and it is the activation that ends this"
        yield _finding("MC101", "warning", message)
        return
    if dense is not None and dense.operating_point is not None:
        yield _finding(
            "MC101",
            "info",
            f"{message}; at its operating point the {dense.activation} brings it down to "
            f"{number(dense.operating_point.spectral_radius)}",
        )
        return
    if horizon is None:
        message += "; over an infinite sequence the state and its sensitivities diverge"
        advice = "give --horizon T for the figures of a T-step sequence; "
    else:
        message += f"; the figures hold at the {horizon}-step horizon only"
        advice = ""
    advice += "use a parametrisation that keeps |λ| < 1, such as |λ| = exp(-exp(ν))"
    yield _finding("MC101", "error", message, advice)


def _frozen_or_beyond(facts: Facts) -> Iterator[Finding]:
    logs, horizon = facts.recurrence.log_eigenvalues, facts.settings.horizon
    log_modulus = logs.real
    limit = FROZEN_STEPS if horizon is None else FROZEN_HORIZONS * horizon
    stable = log_modulus < 0
    frozen = int(np.count_nonzero(stable & (log_modulus > -1 / limit)))
    if frozen:
        yield _finding(
            "MC103",
            "warning",
            f"{share_having(frozen, log_modulus.size, 'eigenvalue')} a time constant beyond "
            f"{number(limit)} steps: such states sum their input and never let go of it",
            "check that the decay parameter still trains; at the rounding of its type it may not",
        )
    if horizon is None:
        return
    beyond = int(np.count_nonzero(stable & (log_modulus > -1 / horizon))) - frozen
    if beyond <= 0:
        return
    # By how much an endless sequence would overstate the sensitivity of the longest memory.
    longest = np.argmax(np.where(stable, log_modulus, -np.inf))
    log = logs[longest : longest + 1]
    finite = facts.settings.moments_of(log).sensitivity[0]
    endless = moments(log, facts.settings.autocorrelation).sensitivity[0]
    overstated = ""
    if 0 < finite < endless < np.inf:
        overstated = (
            f": over an infinite one E|dh/dλ|² would be {number(endless / finite)} times as large "
            f"for the longest (τ = {duration(-1 / float(log[0].real))})"
        )
    where = "the last step of" if facts.settings.state_readout == "last" else "every step of"
    yield _finding(
        "MC105",
        "info",
        f"{share_having(beyond, log_modulus.size, 'eigenvalue')} a time constant beyond the "
        f"horizon of {count(horizon, 'step')}; the figures are those of {where} such a "
        f"sequence, and longer ones are more sensitive{overstated}",
        "before running longer sequences than were trained on, inspect with their --horizon",
    )


def _dead(facts: Facts) -> Iterator[Finding]:
    """What forgets within one step: of a matrix that need not be normal, singular values tell."""
    size, dense, name, symbol = facts.recurrence.size, facts.recurrence.dense, "eigenvalue", "|λ|"
    dead = int(np.count_nonzero(np.exp(facts.recurrence.log_eigenvalues.real) < DEAD_MODULUS))
    if dense is not None and dead > DEAD_SHARE * size:
        name, symbol = "singular value", "σ"
        dead = int(np.count_nonzero(np.linalg.svd(dense.matrix, compute_uv=False) < DEAD_MODULUS))
    if dead > DEAD_SHARE * size:
        yield _finding(
            "MC104",
            "info",
            f"{share_having(dead, size, name)} {symbol} < {DEAD_MODULUS}: such states forget "
            "within one step",
            f"if memory is wanted there, initialise {symbol} closer to 1",
        )


def _transients(facts: Facts) -> Iterator[Finding]:
    """Growth that the eigenvalues of a stable dense matrix do not tell."""
    structure = None if facts.layer.dense is None else facts.layer.dense.structure
    growth = None if structure is None else structure.transient_growth
    if structure is not None and growth is not None and growth > GROWTH:
        yield _finding(
            "MC106",
            "warning",
            f"‖A^k‖ reaches {number(growth)} at k = {structure.transient_step}, though every "
            "|λ| < 1: a state can grow so much before it decays",
            "bring the matrix closer to a normal one, by an orthogonal initialisation or a penalty "
            "on ‖AᵀA - AAᵀ‖, or make the recurrence diagonal",
        )


def _sensitivities(facts: Facts) -> Iterator[Finding]:
    """One finding per group whose step effect passes a limit, and the state's own scale."""
    layer, usable, rate = facts.layer, facts.layer.usable_rate, facts.settings.learning_rate
    for parameter in layer.parameters:
        if parameter.verdict != "ok":
            yield _sensitive(facts, parameter)
    judged: Verdict = "ok" if usable is None else rate_verdict(usable, facts.settings)
    if usable is not None and usable.rate is not None and judged != "ok":
        yield _finding(
            "MC207",
            "error" if judged == "cursed" else "warning",
            f"a learning rate of {number(rate)} is "
            f"{'above' if rate > usable.rate else 'near'} the largest usable one, about "
            f"{number(usable.rate)}: {ENDS[usable.limited_by or 'stall']}",
            f"stay below {rounded_down(usable.rate)}, which is known within a factor of "
            f"{number(FACTOR)}",
        )
    second_moment = layer.state.second_moment.p99
    own_gain = bool(facts.recurrence.log_gain.any())
    if second_moment is not None and second_moment > LARGE_SECOND_MOMENT and not own_gain:
        yield _finding(
            "MC205",
            "info",
            f"E|h|² reaches {number(second_moment)} times the variance of the drive (p99), since "
            "no gain γ compensates for the memory",
            # The states of a matrix are no eigenvectors: no gain of theirs is one of an eigenvalue.
            f"scale the input of the layer by {rounded_down(second_moment**-0.5)}"
            if layer.dense is not None
            else "scale the input of each state by √(1-|λ|²)"
            + (", once every |λ| is below 1" if layer.eigenvalues.unstable else ""),
        )


def _sensitive(facts: Facts, parameter: ParameterSummary) -> Finding:
    dense, way, rate = facts.layer.dense, parameter.direction, facts.settings.learning_rate
    code = STEPS[way] if dense is None else "MC204"
    severity: Severity = "error" if parameter.verdict == "cursed" else "warning"
    endless = facts.settings.horizon is None
    if parameter.step_effect is None and not diverges(parameter):
        reason = facts.withheld if dense is None else dense.reason
        shorter = "give --horizon T" if endless else "give a shorter --horizon"
        return _finding(
            "MC206",
            "warning",
            f"the sensitivity to {parameter.name} is not computed"
            + (f": {reason}" if reason else ""),
            shorter if facts.withheld is None else "",
        )
    if parameter.step_effect is None:
        return _finding(
            code,
            severity,
            f"the sensitivity to {parameter.name} diverges: no learning rate is small enough",
            ("give --horizon T; " if endless else "") + REMEDY[way],
        )
    signs, advice = "", REMEDY[way]
    if dense is not None:
        signs = " of independent signs"
        advice = "make the recurrence diagonal (complex eigenvalues of its own)"
    target = advised(parameter, facts.layer.usable_rate, facts.settings)
    if target is not None:
        advice += f", or stay below a learning rate of {rounded_down(target)}"
    return _finding(
        code,
        severity,
        f"one step{signs} at {number(rate)} on {parameter.name} moves the state by "
        f"{percent(parameter.step_effect)} {CONSEQUENCE[way]}",
        advice,
    )


def _hessian(facts: Facts) -> Iterator[Finding]:
    """Whether a diagonal preconditioner such as Adam can take the sensitivity away."""
    hessian = facts.layer.hessian
    if hessian is None:
        return
    if hessian.adam_residual > ADAM_RESIDUAL:
        concert = math.sqrt(hessian.adam_residual + hessian.adam_residual_error)
        yield _finding(
            "MC301",
            "warning",
            f"after an ideal diagonal preconditioner a curvature of "
            f"{number(hessian.adam_residual)} is left (1 is diagonal, {hessian.order} the "
            f"worst; diagonality {percent(hessian.diagonality)}): Adam cannot take it away, "
            f"and signs in concert move the output up to {number(concert)} times as far as "
            "independent ones",
            "spread the eigenvalues, or lower the learning rate of the recurrent parameters"
            if facts.layer.dense is None
            else "make the recurrence diagonal, or lower the learning rate of the matrix",
        )
    stable = hessian.max_stable_lr
    if stable is not None and stable < facts.settings.learning_rate:
        yield _finding(
            "MC302",
            "info",
            f"gradient descent without preconditioning is unstable above "
            f"{rounded_down(stable)} (sharpness {number(hessian.sharpness)} "
            "per unit of input variance, squared error at the optimum)",
            "nothing under Adam, which every step effect assumes",
        )


def _non_normal(facts: Facts) -> Iterator[Finding]:
    dense = facts.layer.dense
    if dense is None:
        return
    condition, radius = dense.eigenvector_condition, dense.radius_within_rounding
    if condition is not None and condition <= EIGENVECTOR_CONDITION:
        return
    size = "is not diagonalisable in floating point"
    if condition is not None:
        size = f"has eigenvectors of condition {number(condition)}"
    rounded = "" if radius is None else f"; rounding it moves |λ| up to {number(radius)}"
    yield _finding(
        "MC303",
        "warning",
        f"the matrix {size} (departure from normality {percent(dense.henrici_departure)}{rounded}):"
        " the state can grow before it decays, and eigenvalues alone understate the sensitivity",
        "read the sensitivity of the whole matrix, which includes this",
    )


class _Rounded(NamedTuple):
    """A group, and how many eigenvalues each type takes out of the unit disk."""

    parameter: ParameterSummary
    crossing: Mapping[str, int]

    def error(self, dtype: Dtype) -> float | None:
        error: float | None = getattr(self.parameter.rounding, dtype)
        return error

    def changes_much(self, dtype: Dtype) -> bool:
        """Whether an error is above the limit; one of None is, unless it was not computed."""
        error, known = self.error(dtype), vars(self.parameter.rounding).values()
        if error is None:
            computed = self.parameter.step_effect is not None
            return computed and any(other is not None for other in known)
        return error > STATE_ERROR

    def too_coarse(self, dtype: Dtype) -> bool:
        """Whether a type changes the state by more than the limit or without one."""
        return self.crossing[dtype] > 0 or self.changes_much(dtype)


def _precision(facts: Facts) -> Iterator[Finding]:
    """Types whose rounding of a parameter changes the state by more than a tenth or unbounds it."""
    fine: list[_Rounded] = []
    for group in _rounded_groups(facts):
        coarse = leaving = False
        for dtype, code in FLOATS.items():
            # Fewer bits are coarser still: each thing is told of the finest type that does it.
            if group.crossing[dtype] and not leaving:
                yield _leaving(facts, code, dtype, group)
            elif group.changes_much(dtype) and not coarse:
                yield _coarse(facts, code, dtype, group)
            coarse = coarse or group.too_coarse(dtype)
            leaving = leaving or group.crossing[dtype] > 0
        if not coarse:
            fine.append(group)
    found = [group for group in fine if any(map(group.too_coarse, EIGHT))]
    if found:
        yield _in_eight_bits(facts, found)


def _rounded_groups(facts: Facts) -> list[_Rounded]:
    recurrence, parameters = facts.recurrence, facts.layer.parameters
    if recurrence.dense is not None:
        from memcurse_cli.diagnosis.dense import leaving_disk

        crossing = leaving_disk(recurrence, recurrence.dense)
        return [_Rounded(parameter, crossing) for parameter in parameters]
    return [
        _Rounded(
            parameter,
            {
                dtype: int(np.count_nonzero(leaves_disk(recurrence, group, dtype)))
                for dtype in DTYPES
            },
        )
        for parameter, group in zip(parameters, recurrence.parameters, strict=True)
    ]


def _coarse(facts: Facts, code: str, dtype: Dtype, group: _Rounded) -> Finding:
    parameter, error = group.parameter, group.error(dtype)
    stored = is_stored(parameter.dtype, dtype)
    change = "overflows" if error is None else _change(facts, error)
    extent = "all of its entries" if facts.layer.dense is not None else "p99 of its elements"
    return _finding(
        code,
        "warning" if stored else "info",
        f"{'having stored' if stored else 'storing'} {parameter.name} in {dtype} {change} "
        f"({extent})",
        f"keep {_tensor(parameter)} in {_instead(dtype)}",
    )


def _change(facts: Facts, error: float) -> str:
    """How far the state changes; no number where only first order knows of a large change."""
    if facts.layer.dense is not None:
        from memcurse_cli.diagnosis.dense import LARGE, LARGEST

        if facts.recurrence.size > LARGEST and error > LARGE:
            return f"changes the state by more than {percent(LARGE)}"
    return f"changes the state by {percent(error)}"


def _leaving(facts: Facts, code: str, dtype: Dtype, group: _Rounded) -> Finding:
    """Eigenvalues that rounding takes to the unit circle, whatever else it changes."""
    parameter, error, dense = group.parameter, group.error(dtype), facts.layer.dense
    horizon = facts.settings.horizon
    if dense is not None and dense.activation != "linear":
        then = ", where its linearisation explodes"
    elif horizon is None:
        then = ": over an infinite sequence the state diverges"
    else:
        change = "" if error is None else f" and {_change(facts, error)}"
        then = f"{change} within {count(horizon, 'step')}"
    return _finding(
        code,
        "warning",
        f"storing {parameter.name} in {dtype} takes {group.crossing[dtype]} of "
        f"{count(facts.recurrence.size, 'eigenvalue')} to |λ| >= 1{then}",
        f"keep {_tensor(parameter)} in {_instead(dtype)}",
    )


def _in_eight_bits(facts: Facts, coarse: list[_Rounded]) -> Finding:
    """One finding for all groups that 16 bits are enough for and 8 are not."""
    parameters = [group.parameter for group in coarse]
    rough = [dtype for dtype in EIGHT if any(group.too_coarse(dtype) for group in coarse)]
    fine = [dtype for dtype in EIGHT if dtype not in rough]
    changes, others = [], []
    for dtype in rough:
        errors = [group.error(dtype) for group in coarse]
        known = [error for error in errors if error is not None]
        crossing = max(group.crossing[dtype] for group in coarse)
        if crossing:
            size = count(facts.recurrence.size, "eigenvalue")
            others.append(f"{dtype} takes {crossing} of {size} to |λ| >= 1")
        elif len(known) < len(errors):
            others.append(f"{dtype} overflows")
        else:
            changes.append(f"{percent(max(known))} in {dtype}{_own_scale(dtype, parameters)}")
    names = _listed([parameter.name for parameter in parameters])
    said = "8 bits are too few"
    if fine:
        said = f"{_listed(rough)} {'is' if len(rough) == 1 else 'are'} too coarse"
    moved = [f"the state changes by up to {', '.join(changes)}"] if changes else []
    return _finding(
        "MC404",
        "warning" if any(parameter.dtype in EIGHT for parameter in parameters) else "info",
        f"{said} for {names}: {'; '.join([*moved, *others])}",
        f"keep {_listed([_tensor(parameter) for parameter in parameters])} in 16 bits or more"
        + (f", or in {' or '.join(fine)}" if fine else ""),
    )


def _own_scale(dtype: Dtype, parameters: list[ParameterSummary]) -> str:
    """The change in int8 where each gate has a scale, not each tensor."""
    if dtype != "int8" or all(one.int8_own_scale is None for one in parameters):
        return ""
    errors = [
        one.rounding.int8 if one.int8_own_scale is None else one.int8_own_scale
        for one in parameters
    ]
    largest = max(error for error in errors if error is not None)
    return f" with one scale per tensor ({percent(largest)} with one per group)"


def _instead(dtype: str) -> str:
    return "float64" if dtype == "float32" else "float32, also in mixed precision"


def _tensor(parameter: ParameterSummary) -> str:
    """A group by its name, with the tensor that it is in where that says more."""
    name, tensor = parameter.name, parameter.tensor
    return name if tensor.endswith(name) else f"{name} ({tensor})"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _assumptions(facts: Facts) -> Iterator[Finding]:
    """Gates that depend on input or state, slopes taken as 1, and what λ leaves out."""
    dense, correction = facts.layer.dense, facts.recurrence.rank_one
    if facts.recurrence.input_dependent:
        message = "λ depends on the input; every figure is that of the gates at zero input"
        yield _finding("MC501", "info", message)
    if dense is not None and dense.activation != "linear":
        yield _finding("MC502", "info", _linearised(facts))
    if facts.recurrence.hidden_feedback:
        yield _hidden(facts)
    if correction is not None and correction.count > 1:
        yield _finding(
            "MC504",
            "info",
            f"λ leaves out {correction.count} factors {correction.term} of every step, which are 1 "
            f"at zero input; with an input up to {correction.count} eigenvalues of each head move, "
            "anywhere within the unit disk",
        )
    elif correction is not None:
        yield _finding(
            "MC504",
            "info",
            f"λ leaves out the rank-one term {correction.term}, which is none at zero input; with "
            f"one, a single eigenvalue of each head can come down to {number(correction.lowest)}, "
            "whatever the input, and the others stay within the λ of their head",
        )
    if facts.layer.gates is not None:
        yield from _moving(facts.layer.gates)


def _linearised(facts: Facts) -> str:
    """At which slope the figures are taken, and what it makes of the spectrum."""
    dense, spectrum = facts.layer.dense, facts.layer.eigenvalues
    assert dense is not None
    point, largest = dense.operating_point, spectrum.modulus.max
    if point is None or largest is None:
        if facts.withheld is not None:
            return f"the {dense.activation} has no linear figures here: {facts.withheld}"
        return (
            f"the {dense.activation} is taken with slope 1; where its slope is smaller, memory is "
            "shorter and sensitivities are smaller"
        )
    taken, longest = (
        "no decay" if steps is None else f"τ = {number(steps)}"
        for steps in (point.time_constant, spectrum.time_constant.max)
    )
    return (
        f"under inputs of unit variance mean field theory has the slope of the {dense.activation} "
        f"at {number(point.slope)}, E h² at {number(point.second_moment)} and the largest |λ| at "
        f"{number(point.spectral_radius)} ({taken}) instead of {number(largest)} ({longest})"
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
    yield _finding(
        "MC505",
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
    jacobian = jacobian_of(facts.layer.hidden_spectra)
    if jacobian is None:
        # A family that says without being asked why it has none has none when asked either.
        measured = facts.settings.spectra or facts.recurrence.hidden is not None
        return _finding(
            "MC503",
            "info",
            "gates also see the state through dense hidden weights; memory that runs through them "
            "is not in λ, so the true memory can be longer",
            "" if measured else "measure it near the zero state with --spectra",
        )
    gates = facts.layer.eigenvalues.time_constant.max
    if jacobian.time_constant is None:
        message = (
            "memory also runs through the hidden weights: with them one step near the zero state "
            f"has spectral radius {number(jacobian.spectral_radius)}, so small changes of the "
            "state grow until the activations saturate"
        )
        if gates is not None:
            message += f"; the memory is not bounded by the gates' {duration(gates)}"
        return _finding("MC503", "warning", message, NOT_THE_WHOLE)
    message = (
        "with the hidden weights the longest time constant near the zero state is "
        f"{duration(jacobian.time_constant)}"
    )
    if gates is not None:
        message += f", against {number(gates)} of the gates alone"
        if jacobian.time_constant >= LONGER * gates:
            return _finding("MC503", "warning", message, NOT_THE_WHOLE)
    return _finding("MC503", "info", message)
