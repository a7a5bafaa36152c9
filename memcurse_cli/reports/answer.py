"""What a report answers first, in words that the terminal, the HTML box and a summary share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import takewhile
from string import digits
from typing import NamedTuple

from msgspec.structs import astuple

from memcurse_cli.diagnosis.findings import ADAM_RESIDUAL
from memcurse_cli.reports.numbers import ABSENT, count, effect, number, percent, setting, size
from memcurse_cli.reports.ranking import Told, endless, shared, together, told_once
from memcurse_cli.schema.figures import Components, ParameterSummary, diverges, effect_rank
from memcurse_cli.schema.report import (
    CheckpointSummary,
    InputAssumption,
    LayerReport,
    Report,
    by_rate,
    longest_memory,
    served,
    simulated_group,
    states_by_type,
    unit_of,
)

COARSE = 0.01  # the error of the state above which a group is to be kept in single precision
PARTS = re.compile(r"(?<=[./,])")
COMPONENTS_SHOWN = 4
KEPT_SHOWN = 3


def subject(report: Report) -> str:
    """What the checkpoint holds: `1 lru layer, 64 units`, `48 layers: 36 mamba, 12 attention`."""
    layers, attention = report.layers, sum(other.count for other in report.not_recurrent)
    families = {layer.family for layer in layers}
    kind = families.pop().replace("_", " ") if len(families) == 1 else "recurrent"
    if attention:
        whole = count(len(layers) + attention, "layer")
        said = f"{whole}: {len(layers):,} {kind}, {attention:,} attention"
    else:
        said = count(len(layers), f"{kind} layer")
        sizes = {layer.eigenvalues.count * layer.eigenvalues.multiplicity for layer in layers}
        if len(sizes) == 1:
            said += f", {count(sizes.pop(), 'unit')}{' each' * (len(layers) > 1)}"
    return said + (f", {len(report.skipped):,} not read" if report.skipped else "")


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the components that all of them begin and end with.

    `backbone.layers.3.mixer` becomes `layers.3`: a bare number says little.
    """
    parts = [PARTS.split(name) for name in names]
    if len(parts) < 2:
        return {name: name for name in names}
    # Never all of the components of a name.
    front = _common([part[:-1] for part in parts])
    back = _common([part[:front:-1] for part in parts])
    if front and any(part[front][:1].isdigit() for part in parts):
        front -= 1
    short = {
        name: "".join(part[front : len(part) - back]).rstrip("./,") or name
        for name, part in zip(names, parts, strict=True)
    }
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many of them at the start are the same everywhere."""
    columns = zip(*parts, strict=False)
    return len([*takewhile(lambda column: len(set(column)) == 1, columns)])


def why(report: Report) -> str:
    """What decides the verdict, in a few words."""
    if report.verdict == "not_judged":
        known = (layer.not_judged for layer in report.layers if layer.not_judged)
        reason = next(known, "usable rate is not known").partition(",")[0]
        return reason.removeprefix("its ").removeprefix("it ")
    for worst in by_rate(report.layers)[:1]:
        if worst.layer.verdict == "cursed":
            return f"{number(worst.ratio, 2)} times too large"
        if worst.layer.verdict == "watch":
            return "within its range"
    if any(one.code == "MC107" and one.severity != "info" for one in report.findings):
        return f"remembers {steps(report.memory)} of {report.input.horizon}"
    told, _ = reasons(report)
    return told[0].finding.code if told else ""


def reasons(report: Report) -> tuple[list[Told], int]:
    """The findings that matter, each once, the model's first; and how many notes there are.

    The rate, MC207, and a memory that is too short are told by the sentence above them.
    """
    told = told_once(report)
    telling = [one for one in told if one.finding.severity != "info"]
    shown = [one for one in telling if one.finding.code not in ("MC107", "MC207")]
    return shown, len(told) - len(telling)


def steps(memory: float | None) -> str:
    """A memory: `38 steps`, or that it never ends."""
    return number(memory, 2, absent="never")


def memory_words(report: Report) -> str:
    """The median and the longest memory, against the horizon."""
    spectra = [layer.eigenvalues for layer in report.layers]
    longest = report.memory
    if any(layer.simulation for layer in report.layers):  # which `simulated_words` has
        longest = longest_memory(one.time_constant.max for one in spectra)
    horizon = "" if report.input.horizon is None else f" of {report.input.horizon}"
    medians = [one.time_constant.p50 for one in spectra] if len(spectra) == 1 else []
    said = [f"median {steps(median)}" for median in medians]
    if longest is not None:
        said.append(f"longest {steps(longest)}")
    elif medians in ([], [None]):
        never, horizon = sum(one.unstable for one in spectra), ""
        said = [f"{never:,} never fade{'s' * (never == 1)}"]
    gates = {layer.hidden_feedback or layer.input_dependent for layer in report.layers}
    return ", ".join(said) + horizon + " (zero input)" * (gates == {True})


def simulated_words(report: Report) -> str:
    """What layers that were run showed: of several the longest memory."""
    run = [(one, layer) for layer in report.layers if (one := layer.simulation) is not None]
    if not run:
        return ""
    simulation, layer = max(run, key=lambda pair: endless(pair[1].memory))
    if simulation.memory is not None:
        least = "at least " * simulation.memory_at_least
        error = number(simulation.memory.error, 2)
        said = f"remembers {least}{steps(simulation.memory.value)} steps (± {error})"
    else:
        said = "chaotic" if simulation.chaotic else "does not forget"
    if simulation.saturated:
        said += f", {percent(simulation.saturated, 2)} of units saturated"
    drawn = f"{simulation.sequences} {simulation.inputs} sequences of {simulation.steps} steps"
    return f"{said}{_where(report, layer)}; {drawn}"


class WorstStep(NamedTuple):
    """The step that changes a state most."""

    layer: LayerReport
    group: str
    effect: float | None
    divergent: bool  # why there is no effect
    error: float | None = None  # of an effect that only a run tells


def worst_step(layers: Sequence[LayerReport]) -> WorstStep | None:
    """That of a group in all layers that have it; of layers that only running them judges first."""
    run = simulated_group(layers)
    if run is not None:
        layer, tensor = run
        measured = tensor.step_effect
        return WorstStep(layer, tensor.name, measured.value, divergent=False, error=measured.error)
    pairs = [(layer, group) for layer in layers for group in layer.parameters]
    if not pairs:
        return None
    layer, worst = max(pairs, key=lambda pair: effect_rank(pair[1]))
    group = together([group for _, group in pairs if group.name == worst.name])
    return WorstStep(layer, group.name, group.step_effect, diverges(group))


def worst_effect(layers: Sequence[LayerReport]) -> str:
    """The group whose step changes the state most, and by how much."""
    worst = worst_step(layers)
    if worst is None:
        return ABSENT
    where = f"{worst.layer.name}: " if len(layers) > 1 else ""
    return f"{where}{worst.group} {effect(worst.effect, divergent=worst.divergent)}"


def sensitivity_words(report: Report) -> str:
    """What one step does to the state, of the most sensitive group."""
    worst = worst_step(report.layers)
    if worst is None:
        return "nothing of the recurrence is trained"
    place = f"{worst.group}{_where(report, worst.layer)}"
    if worst.effect is None:
        why = "diverges, no step on it is small enough" if worst.divergent else "not computed"
        return f"{place}: {why}"
    if worst.error is not None:
        effect, error = percent(worst.effect, 2), percent(worst.error, 2)
        return f"{place}: {effect} of the state per step (± {error})"
    signs = "" if worst.layer.dense is None else " (independent signs)"
    step = "Adam step" if report.input.adaptive is False else "step"
    return f"{place}: {percent(worst.effect)} of the state per {step}{signs}"


def _where(report: Report, layer: LayerReport) -> str:
    """The layer that a figure is of, where there are several."""
    names = [one.name for one in report.layers]
    return f" in {short_names(names)[layer.name]}" if len(names) > 1 else ""


def hessian_words(report: Report) -> str:
    """Whether a diagonal optimizer copes with the curvature."""
    known = [(layer.hessian, layer) for layer in report.layers if layer.hessian is not None]
    if not known:
        reason = next((one.hessian_reason for one in report.layers if one.hessian_reason), None)
        return f"not known: {reason}" if reason else "not known"
    hessian, layer = max(known, key=lambda pair: pair[0].adam_residual)
    copes = hessian.adam_residual <= ADAM_RESIDUAL
    said = "Adam copes" if copes else "Adam cannot help"
    said += f": it leaves {number(hessian.adam_residual)}{_where(report, layer)} (best: 1)"
    # A diagonal that carries most of ‖H‖² can still leave much, and then says nothing.
    if not copes and hessian.diagonality > 0.5:
        return said
    return f"{percent(hessian.diagonality)} diagonal; {said}"


def storing_words(report: Report) -> str:
    """Which recurrent groups bfloat16 is fine for, and which are to be kept in single precision."""
    found = [together(same) for same, _ in shared(report.layers, _rounded, _error)]
    coarse = [one for one in found if _error(one) > COARSE]
    if not coarse:
        worst = percent(max(map(_error, found), default=0.0), 2)
        return f"bf16 is fine for all: {worst} of the state at most" if found else ""
    said = []
    for place, one in enumerate(coarse[:KEPT_SHOWN]):
        off = "diverges" if math.isinf(_error(one)) else f"{percent(_error(one), 2)} off"
        said.append(f"{one.name} ({off}{' in bf16' * (place == 0)})")
    said += [f"{len(coarse) - KEPT_SHOWN} more"] * (len(coarse) > KEPT_SHOWN)
    return f"keep in fp32: {', '.join(said)}"


TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
EIGHT_BITS = {"int8": "int8", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
SHORT_TYPES = {dtype: short for short, dtype in (TYPES | EIGHT_BITS).items()}

SIXTEEN_BITS = ("bfloat16", "float16")


def state_words(report: Report) -> str:
    """The smallest type that keeps the state of input-dependent layers, against what is asked."""
    chosen, limit = report.state_type, report.input.state_error
    if chosen is None or limit is None:
        return ""
    told, states = served(report.layers), states_by_type(report.layers)
    unit = unit_of(told)
    said = f"no type keeps every {unit} within {percent(limit, 2)}"
    if chosen.smallest is not None:
        gates = "gates that move" if any(layer.gates for layer in told) else "zero input"
        said = f"keep it in {chosen.smallest} ({percent(chosen.error, 2)} off at most at {gates})"
    total, within = sum(layer.eigenvalues.count for layer in told), f" above {percent(limit, 2)}"
    for dtype in takewhile(lambda one: one != chosen.smallest, SIXTEEN_BITS):
        if (state := states.get(dtype)) is not None:
            said += f"; {SHORT_TYPES[dtype]} {percent(state.error.max, 2)} off, "
            said += f"{state.above:,} of {count(total, unit)}{within}"
            within = ""
    kept = states.get(chosen.smallest or "")
    if kept is not None and (stopped := kept.stopped):
        said += f"; {count(stopped, unit)} there fade{'s' * (stopped == 1)} only when written to"
    if chosen.configured not in (None, chosen.smallest):
        said += f"; config.json asks for {chosen.configured}"
    if chosen.smallest is not None:
        said += f": pass mamba_ssm_cache_dtype={chosen.smallest}"
    return said


def _rounded(layer: LayerReport) -> list[ParameterSummary]:
    return [one for one in layer.parameters if rounding_known(one)]


def rounding_known(group: ParameterSummary) -> bool:
    """Whether it is known what fewer bits do to a group, so that no figure is one that diverges."""
    return any(error is not None for error in astuple(group.rounding))


def _error(group: ParameterSummary) -> float:
    """That of the state when a group is stored in bfloat16; one that diverges is infinite."""
    return endless(group.rounding.bfloat16)


def assumed_words(assumed: InputAssumption) -> str:
    """Under what the figures were taken, and who said so or what would."""
    words, formula, _ = describe_input(assumed.autocorrelation).partition(", R(Δ)")
    parts = [f"{words} input" if formula else f"input {words}"]
    if assumed.horizon is None:
        parts.append("a sequence without end")
    else:
        said = {"checkpoint": " (stored)", "assumed": " (set --horizon)"}
        parts.append(count(assumed.horizon, "step") + said.get(assumed.horizon_source or "", ""))
    source = assumed.learning_rate_source
    where = {"option": "", "assumed": " (set --lr)", None: ""}.get(source, f" ({source})")
    parts.append(f"rate {setting(assumed.learning_rate)}{where}")
    if assumed.current_learning_rate is not None:
        parts[-1] += f", now {setting(assumed.current_learning_rate)}"
    return "; ".join(parts)


def describe_input(components: Components) -> str:
    """R(Δ), the autocorrelation of the drive, in one line."""
    if [*map(tuple, components)] in ([(1.0, 0.0)], [(1.0, 1.0)]):
        return "constant, R(Δ) = 1" if components[0].rho else "white noise, R(Δ) = δ(Δ)"
    shown = " + ".join(_component(*component) for component in components[:COMPONENTS_SHOWN])
    hidden = len(components) - COMPONENTS_SHOWN
    more = f" + {hidden} more" if hidden > 0 else ""
    return f"R(Δ) = {shown or '0'}{more}"


def _component(weight: float, rho: float, frequency: float = 0.0) -> str:
    """`δ(Δ)`, `1`, `0.9^|Δ|` or `0.5·0.9^|Δ|·cos(0.2Δ)`."""
    factors = [] if weight == 1 else [setting(weight)]
    if rho < 1:
        factors.append(f"{setting(rho)}^|Δ|" if rho > 0 else "δ(Δ)")
    if frequency > 0 and rho > 0:
        factors.append(f"cos({setting(frequency)}Δ)")
    return "·".join(factors) or "1"


def describe_horizon(horizon: int | None, readout: str | None, source: str | None = None) -> str:
    """How many steps, who said so and where they are read, in one line."""
    if horizon is None:
        return "infinitely many steps"
    sources = {
        "option": ", from --horizon",
        "checkpoint": ", from the checkpoint's metadata",
        "assumed": ", assumed: set --horizon",
    }
    read = {"last": "; read at the last step", "every": "; the mean over every step"}
    said = sources.get(source or "", "") + read.get(readout or "", "")
    return f"{count(horizon, 'step')} from a zero state{said}"


def file_words(checkpoint: CheckpointSummary) -> str:
    """The format of a checkpoint, its size and how much it holds."""
    tensors = count(checkpoint.tensors, "tensor")
    return f"{checkpoint.format}, {size(checkpoint.bytes)}, {tensors}"


def by_depth(report: Report) -> list[tuple[int, LayerReport | None]]:
    """The layers of a stack by the one number that tells them apart, ascending; else nothing.

    Attention layers have such a number at the same place, and stand as None.
    """
    names = [layer.name for layer in report.layers]
    front = names[0][: _common(names)].rstrip(digits) if names else ""
    placed = re.compile(re.escape(front) + r"([0-9]{1,18})(.*)")
    rest = {place and place[2] for place in map(placed.match, names)}
    if len(names) < 2 or len(rest) > 1 or None in rest:
        return []
    layers: list[tuple[str, LayerReport | None]] = [(one.name, one) for one in report.layers]
    layers += [(name, None) for other in report.not_recurrent for name in other.names]
    depth = [(int(place[1]), layer) for name, layer in layers if (place := placed.match(name))]
    return sorted(depth, key=lambda one: one[0])


def rate_words(rate: float | None) -> str:
    """A usable rate, with the two digits that it is good to."""
    return number(rate, 2)
