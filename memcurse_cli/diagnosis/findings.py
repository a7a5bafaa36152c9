"""What is worth telling of a layer, each thing under the code of a rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import structs

from memcurse_cli.diagnosis.diagonal import is_stored, leaves_disk
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import ParameterSummary, diverges
from memcurse_cli.schema.layer import GateSummary, jacobian_of
from memcurse_cli.schema.report import Finding, LayerReport, Severity, unit_of
from memcurse_cli.schema.simulation import TOO_LARGE
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.rounding import Dtype
from memcurse_cli.wording import about, count, number, percent, rounded_down, share_having

FROZEN_STEPS, FROZEN_HORIZONS = 1e6, 100
DEAD_MODULUS, DEAD_SHARE = 0.01, 0.5
GROWTH = 10.0
LARGE_SECOND_MOMENT = 100.0
ADAM_RESIDUAL = 10.0
EIGENVECTOR_CONDITION = 1e3
STATE_ERROR = 0.1
LONGER = 2.0  # the ratio of time constants from which hidden weights make a memory clearly longer
MOVED = 2.0  # the ratio of figures from which the gates' movement is worth telling
ACCUMULATES = 0.5  # d log E|h|² / d log T from which a state counts as the sum of its inputs
EXPLOSION = 100.0  # what a state may grow to within the horizon before that is an error

EIGHT: tuple[Dtype, ...] = ("int8", "float8_e4m3fn", "float8_e5m2")
# Finer ones first.
FLOATS: Mapping[Dtype, str] = {"float32": "MC403", "float16": "MC402", "bfloat16": "MC401"}

STEPS = {
    "destabilising": ("MC201", "and can leave the unit disk"),
    "decorrelating": ("MC202", "by turning its angle"),
    "scaling": ("MC203", "in scale"),
}
ENDS = {
    "divergence": "training diverges",
    "stall": "training stalls",
    "instability": "steps make it unstable",
}


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


def finding_of(code: str, severity: Severity, message: str, advice: str = "") -> Finding:
    """A finding with the source of its rule."""
    return Finding(code, severity, message, advice, RULES[code].source)


def _unstable(facts: Facts) -> Iterator[Finding]:
    layer, recurrence = facts.layer, facts.recurrence
    unstable, dense, horizon = layer.eigenvalues.unstable, layer.dense, facts.settings.horizon
    if not unstable:
        return
    top = layer.eigenvalues.modulus.max
    largest = "" if top is None else f"; the largest |λ| is {top:.6g}"
    never = "never decays" if unstable == 1 else "never decay"
    said = f"{unstable} of {count(layer.eigenvalues.count, 'eigenvalue')} {never}{largest}"
    severity: Severity = "info"
    advice = ""
    if recurrence.rank_one is not None and not recurrence.parameters:
        by_design = "of 1 at zero input, by design: only what is written over is forgotten"
        said = f"{count(unstable, 'eigenvalue')} {by_design}"
    elif recurrence.unitary:
        said = f"|λ| = 1 for all {unstable}, by design: nothing decays"
    elif facts.withheld is not None:
        severity, said = "warning", f"{said}: the activation alone ends this"
    elif dense is not None and dense.operating_point is not None:
        radius = number(dense.operating_point.spectral_radius)
        said += f", and {radius} where the {dense.activation} works"
    else:
        fastest = float(recurrence.log_eigenvalues.real.max())
        endless = horizon is None or fastest * horizon > math.log(EXPLOSION)
        severity = "error" if endless else "warning"
        advice = "use a parametrisation that keeps |λ| < 1, such as |λ| = exp(-exp(ν))"
    yield finding_of("MC101", severity, said, advice)


def accumulates(layer: LayerReport) -> bool:
    """Whether a layer whose decay is made by inputs has states that only add up what they get."""
    storage = layer.storage
    known = layer.input_dependent and layer.parameters and storage is not None
    return bool(known and storage and storage.accumulating and (storage.growth or 0) > ACCUMULATES)


def _accumulating(facts: Facts) -> Finding:
    storage, spectrum, settings = facts.layer.storage, facts.layer.eigenvalues, facts.settings
    assert storage is not None
    share = share_having(storage.accumulating, spectrum.count, unit_of([facts.layer]))
    said = (
        f"{share} a memory beyond the {settings.horizon} steps and sum their inputs: E|h|² grows "
        f"as T^{storage.growth:.2g}"
    )
    ends = next(one.overflow for one in storage.types if one.dtype == "float16")
    overflows = [
        f"{about(steps)} steps of {drive}"
        for steps, drive in ((ends, "such inputs"), (storage.constant_overflow, "constant ones"))
        if steps is not None
    ]
    if overflows:
        said += f"; float16 overflows after {' or '.join(overflows)}"
    severity: Severity = "info" if settings.horizon_source == "assumed" else "warning"
    return finding_of("MC108", severity, said, "see with memcurse track since when they do")


def _frozen_or_beyond(facts: Facts) -> Iterator[Finding]:
    if accumulates(facts.layer):
        yield _accumulating(facts)
        return
    logs, horizon = facts.recurrence.log_eigenvalues, facts.settings.horizon
    log_modulus = logs.real
    limit = FROZEN_STEPS if horizon is None else FROZEN_HORIZONS * horizon
    stable = log_modulus < 0
    frozen = int(np.count_nonzero(stable & (log_modulus > -1 / limit)))
    if frozen:
        share = share_having(frozen, log_modulus.size, "eigenvalue")
        said = f"{share} a memory beyond {number(limit)} steps: they sum their input"
        trains = "check that the decay parameter still trains"
        advice = f"{trains}; at the rounding of its type it may not"
        yield finding_of("MC103", "warning", said, advice if facts.layer.dense is None else "")
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
        ratio = number(endless / finite)
        overstated = f": on an endless one the sensitivity would be {ratio} times this"
    share = share_having(beyond, log_modulus.size, "eigenvalue")
    said = f"{share} a memory beyond the {count(horizon, 'step')} of a sequence{overstated}"
    advice = "before running longer sequences than were trained on, inspect with their --horizon"
    yield finding_of("MC105", "info", said, advice)


def _dead(facts: Facts) -> Iterator[Finding]:
    """What forgets within one step: of a matrix that need not be normal, singular values tell."""
    size, dense, name, symbol = facts.recurrence.size, facts.recurrence.dense, "eigenvalue", "|λ|"
    dead = int(np.count_nonzero(np.exp(facts.recurrence.log_eigenvalues.real) < DEAD_MODULUS))
    if dense is not None and dead > DEAD_SHARE * size:
        name, symbol = "singular value", "σ"
        dead = int(np.count_nonzero(np.linalg.svd(dense.matrix, compute_uv=False) < DEAD_MODULUS))
    if dead > DEAD_SHARE * size:
        said = f"{share_having(dead, size, name)} {symbol} < {DEAD_MODULUS}: gone within one step"
        advice = f"if memory is wanted there, initialise {symbol} closer to 1"
        yield finding_of("MC104", "info", said, advice)


def _transients(facts: Facts) -> Iterator[Finding]:
    """Growth that the eigenvalues of a stable dense matrix do not tell."""
    structure = None if facts.layer.dense is None else facts.layer.dense.structure
    if structure is not None and (growth := structure.transient_growth or 0.0) > GROWTH:
        within = count(structure.transient_step or 0, "step")
        said = f"a state can grow {number(growth)} times before it decays, within {within}"
        advice = (
            "bring the matrix closer to a normal one, by an orthogonal initialisation or a penalty "
            "on ‖AᵀA - AAᵀ‖, or make the recurrence diagonal"
        )
        yield finding_of("MC106", "warning", said, advice)


def _sensitivities(facts: Facts) -> Iterator[Finding]:
    """One finding per group whose step effect passes the limit, the rate, and the state's scale."""
    layer, usable = facts.layer, facts.layer.usable_rate
    for parameter in layer.parameters:
        if parameter.step_effect is None or parameter.step_effect > facts.settings.step_limit:
            yield _sensitive(facts, parameter)
    if usable is not None and usable.rate is not None and layer.verdict in ("watch", "cursed"):
        ratio, rate = layer.learning_rate / usable.rate, about(usable.rate)
        cursed = layer.verdict == "cursed"
        ends = f"{about(usable.low or 0.0)} to {about(usable.high or 0.0)}"
        beyond = (
            f"{about(ratio)} times {rate}, beyond which"
            if cursed
            else f"within {ends}, from where on"
        )
        said = (
            f"a rate of {number(layer.learning_rate)} is {beyond} "
            f"{ENDS[usable.limited_by or 'stall']}"
        )
        slower = layer.learning_rate > usable.rate
        advice = f"give its recurrent parameters {rate} at most" if slower else ""
        yield finding_of("MC207", "error" if cursed else "warning", said, advice)
    second_moment = layer.state.second_moment.p99
    own_gain = bool(facts.recurrence.log_gain.any())
    if second_moment is not None and second_moment > LARGE_SECOND_MOMENT and not own_gain:
        said = f"the state's variance is {number(second_moment)} times that of its drive (p99)"
        advice = "scale the input of each state by √(1-|λ|²)"
        if layer.dense is not None:
            # The states of a matrix are no eigenvectors: no gain of theirs is one of an eigenvalue.
            advice = f"scale the input of the layer by {rounded_down(second_moment**-0.5)}"
        elif layer.eigenvalues.unstable:
            advice += ", once every |λ| is below 1"
        yield finding_of("MC205", "info", said, advice)


def _sensitive(facts: Facts, parameter: ParameterSummary) -> Finding:
    dense, name = facts.layer.dense, parameter.name
    if parameter.step_effect is None and not diverges(parameter):
        reason = facts.withheld if dense is None else dense.reason
        because = f": {reason}" if reason else ""
        return finding_of("MC206", "info", f"the sensitivity to {name} is not computed{because}")
    # Why a rate is too large; where the rate is right, only that the layer is sensitive.
    adaptive = facts.settings.adaptive is not False
    severity: Severity = "warning" if adaptive and facts.layer.verdict != "ok" else "info"
    step = "a step" if adaptive else "an Adam step"
    code, how = STEPS[parameter.direction]
    if parameter.step_effect is None:
        endless = "give --horizon T" if facts.settings.horizon is None else ""
        said = f"the sensitivity to {name} diverges: no step on it is small enough"
        return finding_of(code if dense is None else "MC204", severity, said, endless)
    moved = percent(parameter.step_effect)
    if dense is None:
        said = f"{step} on {name} moves the state by {moved} {how}"
        return finding_of(code, severity, said)
    said = f"{facts.recurrence.size} memories share the {parameter.size} entries of {name}: "
    return finding_of("MC204", severity, f"{said}{step} moves the state by {moved}")


def _hessian(facts: Facts) -> Iterator[Finding]:
    """Whether a diagonal preconditioner such as Adam can take the sensitivity away."""
    hessian = facts.layer.hessian
    if hessian is None:
        return
    if hessian.adam_residual > ADAM_RESIDUAL:
        left = number(hessian.adam_residual)
        said = f"Adam cannot help: of the curvature it leaves {left}, where 1 is best"
        yield finding_of("MC301", "info" if facts.layer.verdict == "ok" else "warning", said)
    stable, descent = hessian.max_stable_lr, facts.settings.optimizer == "SGD"
    if stable is not None and descent and stable < facts.settings.rate:
        rate = rounded_down(stable)
        said = f"gradient descent is unstable above {rate} (squared error, inputs of unit variance)"
        yield finding_of("MC302", "warning", said, f"stay below {rate}, or train with Adam")


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
    yield finding_of("MC303", "info", f"the matrix {size}{rounded}")


def _precision(facts: Facts) -> Iterator[Finding]:
    """Types whose rounding of a parameter changes the state by more than a tenth or unbounds it."""
    recurrence, of_matrix = facts.recurrence, {}
    if recurrence.dense is not None:
        from memcurse_cli.diagnosis.dense import leaving_disk

        of_matrix = leaving_disk(recurrence, recurrence.dense)
    for place, parameter in enumerate(facts.layer.parameters):
        coarse = leaving = False
        for dtype, code in FLOATS.items():
            crossing = of_matrix.get(dtype, 0)
            if recurrence.dense is None:
                group = recurrence.parameters[place]
                crossing = int(np.count_nonzero(leaves_disk(recurrence, group, dtype)))
            # Fewer bits are coarser still: each thing is told of the finest type that does it.
            if crossing and not leaving:
                yield _leaving(facts, code, dtype, parameter, crossing)
            elif _changes_much(parameter, dtype) and not coarse:
                yield _coarse(facts, code, dtype, parameter)
            coarse = coarse or crossing > 0 or _changes_much(parameter, dtype)
            leaving = leaving or crossing > 0
        for dtype in EIGHT:  # of the type that somebody has quantised to
            if is_stored(parameter.dtype, dtype) and _changes_much(parameter, dtype):
                yield _coarse(facts, "MC404", dtype, parameter)


def _changes_much(parameter: ParameterSummary, dtype: Dtype) -> bool:
    """Whether an error is above the limit; one of None is, unless it was not computed."""
    error, known = getattr(parameter.rounding, dtype), structs.astuple(parameter.rounding)
    if error is None:
        return parameter.step_effect is not None and any(other is not None for other in known)
    return bool(error > STATE_ERROR)


def _coarse(facts: Facts, code: str, dtype: Dtype, parameter: ParameterSummary) -> Finding:
    error, stored = getattr(parameter.rounding, dtype), is_stored(parameter.dtype, dtype)
    change = "overflows" if error is None else _change(facts, error)
    extent = "all of its entries" if facts.layer.dense is not None else "p99 of its elements"
    storing = "having stored" if stored else "storing"
    said = f"{storing} {parameter.name} in {dtype} {change} ({extent})"
    return finding_of(code, "warning" if stored else "info", said, _keep(parameter, dtype))


def _change(facts: Facts, error: float) -> str:
    """How far the state changes; no number where only first order knows of a large change."""
    if facts.layer.dense is not None:
        from memcurse_cli.diagnosis.dense import LARGE, LARGEST

        if facts.recurrence.size > LARGEST and error > LARGE:
            return f"changes the state by more than {percent(LARGE)}"
    return f"changes the state by {percent(error)}"


def _leaving(
    facts: Facts, code: str, dtype: Dtype, parameter: ParameterSummary, crossing: int
) -> Finding:
    """Eigenvalues that rounding takes to the unit circle, whatever else it changes."""
    error, dense = getattr(parameter.rounding, dtype), facts.layer.dense
    horizon = facts.settings.horizon
    if dense is not None and dense.activation != "linear":
        then = ", where its linearisation explodes"
    elif horizon is None:
        then = ": over an infinite sequence the state diverges"
    else:
        change = "" if error is None else f" and {_change(facts, error)}"
        then = f"{change} within {count(horizon, 'step')}"
    share = f"{crossing} of {count(facts.recurrence.size, 'eigenvalue')}"
    said = f"storing {parameter.name} in {dtype} takes {share} to |λ| >= 1{then}"
    return finding_of(code, "warning", said, _keep(parameter, dtype))


def _keep(parameter: ParameterSummary, dtype: Dtype) -> str:
    """What to store a group in, with the tensor that it is in where that says more."""
    name, tensor = parameter.name, parameter.tensor
    where = name if tensor.endswith(name) else f"{name} ({tensor})"
    finer = "float64" if dtype == "float32" else "float32, also in mixed precision"
    return f"keep {where} in {'16 bits or more' if dtype in EIGHT else finer}"


def _assumptions(facts: Facts) -> Iterator[Finding]:
    """Gates that depend on input or state, slopes taken as 1, and what λ leaves out."""
    dense, correction = facts.layer.dense, facts.recurrence.rank_one
    if facts.recurrence.input_dependent:
        yield finding_of("MC501", "info", "every figure is that of the gates at zero input")
    if dense is not None and dense.activation != "linear":
        yield finding_of("MC502", "info", _linearised(facts))
    if facts.recurrence.hidden_feedback:
        yield _hidden(facts)
    if correction is not None:
        said = (
            f"λ leaves out the rank-one term {correction.term}: with an input one eigenvalue of "
            f"each head can come down to {number(correction.lowest)}"
        )
        if correction.count > 1:
            said = (
                f"λ leaves out {correction.count} factors {correction.term} of every step: with "
                f"an input up to {correction.count} eigenvalues of each head move within the unit "
                "disk"
            )
        yield finding_of("MC504", "info", said)
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
        return f"the {dense.activation} is taken with slope 1, at which memory is longest"
    return (
        f"the {dense.activation} is taken with slope {number(point.slope)}, that under inputs of "
        f"unit variance, which brings the largest |λ| from {number(largest)} to "
        f"{number(point.spectral_radius)}"
    )


def _moving(gates: GateSummary) -> Iterator[Finding]:
    """The figure that moves farthest, where that is far."""
    figures = {"E h²": gates.second_moment}
    figures |= {f"κ of {one.name}": one.relative_sensitivity for one in gates.parameters}
    pairs = {
        (name, level): (getattr(figure.nominal, level), getattr(figure.moving, level))
        for name, figure in figures.items()
        if figure is not None
        for level in ("p50", "p99")
    }
    farthest = max(((departure(*pair), *place) for place, pair in pairs.items()), default=None)
    if farthest is None or farthest[0] <= MOVED:
        return
    _, name, level = farthest
    nominal, moving = ("divergent" if one is None else number(one) for one in pairs[name, level])
    when = f"with gates that move, under inputs of RMS {number(gates.input_scale)}"
    said = f"{when}, the {level} of {name} is {moving} instead of {nominal}"
    yield finding_of("MC505", "info", said)


def departure(nominal: float | None, moving: float | None) -> float:
    """How many times larger one is than the other; a value that diverges is None."""
    if nominal is None or moving is None:
        return 1.0 if nominal is moving else math.inf
    if min(nominal, moving) <= 0:
        return 1.0 if nominal == moving else math.inf
    return max(nominal / moving, moving / nominal)


def _hidden(facts: Facts) -> Finding:
    """What is known of the memory that λ leaves out."""
    jacobian, simulation = jacobian_of(facts.layer.hidden_spectra), facts.layer.simulation
    gates = facts.layer.eigenvalues.time_constant.max
    if simulation is not None and jacobian is None:
        if simulation.chaotic and simulation.exponent is not None:
            grows = percent(math.expm1(simulation.exponent.value))
            said = f"run on drawn inputs it is chaotic: a perturbation grows by {grows} a step"
            return finding_of("MC503", "warning", said)
        if simulation.memory is not None and gates is not None:
            said = f"run on drawn inputs it remembers {number(simulation.memory.value)} steps"
            return finding_of("MC503", "info", f"{said}, its gates alone {number(gates)}")
    if jacobian is None:
        # A family that says without being asked why it has none has none when asked either.
        measured = facts.settings.spectra or facts.recurrence.hidden is not None
        said = "its gates alone were read: the hidden weights can hold a longer memory"
        option = "--simulate" if facts.layer.not_simulated == TOO_LARGE else "--spectra"
        return finding_of("MC503", "info", said, "" if measured else f"{option} looks at them")
    radius = number(jacobian.spectral_radius)
    if jacobian.time_constant is None:
        said = (
            f"with the hidden weights |λ| is {radius} near the zero state: the activations end it"
        )
        return finding_of("MC503", "warning", said)
    longer = gates is not None and jacobian.time_constant >= LONGER * gates
    memory = number(jacobian.time_constant)
    said = f"with the hidden weights the memory near the zero state is {memory} steps"
    if gates is not None:
        said += f", of the gates alone {number(gates)}"
    return finding_of("MC503", "warning" if longer else "info", said)
