"""The schema `memcurse.report/2`: everything that a report says, before it is drawn.

A number that does not exist is None here and null in JSON; inf and nan never stand in a report.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec.structs import replace

from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import (
    ORDER,
    Components,
    EigenvalueSummary,
    HessianPicture,
    HessianSummary,
    ParameterSummary,
    Record,
    StateSummary,
    Verdict,
    diverges,
)
from memcurse_cli.schema.layer import (
    AdamGroup,
    DenseSummary,
    GatedOperatingPoint,
    GateSummary,
    HiddenSpectrum,
    LearningRates,
    OptimizerSummary,
    StateStorage,
    StoredState,
    jacobian_of,
)
from memcurse_cli.schema.simulation import SimulatedGroup, Simulation


def finite(value: float | None) -> float | None:
    """A number as a report holds it; None for inf and NaN, which JSON has not."""
    return float(value) if value is not None and math.isfinite(value) else None


NOT_KNOWN = "no layer has one"
Severity = Literal["info", "warning", "error"]


class Finding(Record, frozen=True):
    """One thing worth telling, with a stable code like a linter's."""

    code: Annotated[
        str, "MC1xx dynamics, MC2xx sensitivity, MC3xx Hessian, MC4xx precision, MC5xx assumptions."
    ]
    severity: Annotated[Severity, "info, warning or error."]
    message: Annotated[str, "what was found, in plain words with its numbers."]
    advice: Annotated[str, "what to change; empty where there is nothing to do."]
    source: Annotated[str, "the section of the theory that it rests on."]


class RuleDocument(Record, frozen=True):
    """What one finding means."""

    code: Annotated[str, "as in a report; never reused for something else."]
    title: Annotated[str, "a few words."]
    source: Annotated[str, "the equations that it rests on."]
    what: Annotated[str, "what was found."]
    why: Annotated[str, "why it matters to training."]
    equation: Annotated[str, "the figure that decides, as a formula."]
    change: Annotated[str, "what to do about it."]


Limit = Literal["divergence", "stall", "instability"]


class UsableRate(Record, frozen=True):
    """The largest learning rate that training with Adam is expected to bear.

    Of the networks that it was measured on, four in five bore a rate within its range.
    """

    rate: Annotated[float | None, "the rate, or None where it is not known."]
    limited_by: Annotated[
        Limit | None,
        "what ends training beyond it: ``divergence`` where eigenvalues can leave the unit disk, "
        "``stall`` where every step changes the output by as much as itself, ``instability`` "
        "where perturbations of the state of a cell that is run begin to grow.",
    ]
    reason: Annotated[str | None, "why the rate is not known, or None."] = None
    low: Annotated[float | None, "the lower end of the range that it is known within."] = None
    high: Annotated[float | None, "the upper end."] = None
    measured_on: Annotated[
        str | None, "the networks whose training gave the range, as ``trained GRU``."
    ] = None


WITHIN: Mapping[Limit, tuple[float, float]] = {"divergence": (1 / 3, 3.0), "stall": (0.11, 3.0)}
"""Where linear layers lay, as multiples of their rates: at their start, and once trained."""


def known_rate(
    rate: float,
    limited_by: Limit,
    within: tuple[float, float] | None = None,
    measured_on: str | None = None,
) -> UsableRate:
    """A usable rate with its range: ``within`` such multiples of it, or as linear layers have."""
    low, high = (rate * end for end in within or WITHIN[limited_by])
    return UsableRate(rate, limited_by, None, low, high, measured_on)


def rate_verdict(usable: UsableRate | None, learning_rate: float) -> Verdict:
    """A rate against the usable one: ok below its range, to watch in it, cursed above."""
    if usable is None or usable.low is None or usable.high is None:
        return "not_judged"
    if learning_rate > usable.high:
        return "cursed"
    return "watch" if learning_rate >= usable.low else "ok"


def smallest_rate(rates: Iterable[UsableRate | None]) -> UsableRate:
    """The smallest of the layers' usable rates, or why none is known."""
    all_rates = [one for one in rates if one is not None]
    known = [one for one in all_rates if one.rate is not None]
    if known:
        return min(known, key=lambda one: one.rate or 0.0)
    reasons = (one.reason for one in all_rates if one.reason)
    return UsableRate(None, None, next(reasons, NOT_KNOWN))


class Judged(NamedTuple):
    """A layer that was judged by a rate."""

    ratio: float  # its learning rate over the usable one
    layer: LayerReport
    usable: float


def by_rate(layers: Iterable[LayerReport]) -> list[Judged]:
    """The layers that were judged by a rate, the worst first."""
    judged = [
        Judged(layer.learning_rate / layer.usable_rate.rate, layer, layer.usable_rate.rate)
        for layer in layers
        if layer.usable_rate is not None and layer.usable_rate.rate
    ]
    return sorted(judged, key=lambda one: one.ratio, reverse=True)


Group = ParameterSummary | SimulatedGroup
"""What has a step effect."""


def groups_when_run(layer: LayerReport) -> tuple[SimulatedGroup, ...]:
    """The tensors of a layer that has no closed form, as running it showed them; or none."""
    bent = layer.dense is not None and layer.dense.activation != "linear"
    if layer.simulation is None or not (bent or layer.hidden_feedback or layer.input_dependent):
        return ()
    return layer.simulation.groups


def step_effects(layer: LayerReport) -> list[tuple[Group, float | None]]:
    """Each group's step effect: as it was run where a layer has no closed form; inf diverges."""
    if run := groups_when_run(layer):
        return [(one, one.step_effect.value) for one in run]
    return [(one, math.inf if diverges(one) else one.step_effect) for one in layer.parameters]


def simulated_group(layers: Sequence[LayerReport]) -> tuple[LayerReport, SimulatedGroup] | None:
    """The tensor whose step changes a state most, of layers that only running them judges."""
    pairs = [(layer, group) for layer in layers for group in groups_when_run(layer)]
    return max(pairs, key=lambda pair: pair[1].step_effect.value, default=None)


def state_types(layer: LayerReport) -> Sequence[StoredState]:
    """A layer's state in every type, with gates that move where these were asked for; or none."""
    if layer.gates is not None and layer.gates.storage:
        return layer.gates.storage
    return () if layer.storage is None else layer.storage.types


def served(layers: Iterable[LayerReport]) -> list[LayerReport]:
    """The layers with input-dependent decay whose state is known in every type."""
    return [layer for layer in layers if layer.input_dependent and state_types(layer)]


def worst_state(types: Sequence[StoredState]) -> StoredState:
    """The states of several layers in one type as one: the worst of each figure, and all counts."""
    worst = max(types, key=lambda one: math.inf if one.error.max is None else one.error.max)
    overflows = [one.overflow for one in types if one.overflow is not None]
    held = [one.held_open for one in types if one.held_open is not None]
    return replace(
        worst,
        above=sum(one.above for one in types),
        stopped=sum(one.stopped for one in types),
        frozen=max(one.frozen for one in types),
        overflow=min(overflows, default=None),
        held_open=max(held, default=None),
    )


def states_by_type(layers: Iterable[LayerReport]) -> dict[str, StoredState]:
    """The worst state of all served layers in each type, in their order."""
    known = zip(*map(state_types, served(layers)), strict=False)
    return {same[0].dtype: worst_state(same) for same in known}


def unit_of(layers: Iterable[LayerReport]) -> str:
    """What an eigenvalue of these layers is: a head, where it drives a whole matrix of states."""
    return "head" if all(layer.eigenvalues.multiplicity > 1 for layer in layers) else "state"


def longest_memory(memories: Iterable[float | None]) -> float | None:
    """The longest of some memories in steps; None where one never forgets."""
    steps = list(memories)
    known = [one for one in steps if one is not None]
    return max(known) if known and len(known) == len(steps) else None


def judged(layer: LayerReport) -> LayerReport:
    """A layer with the verdict and the memory that its other figures come to."""
    usable = layer.usable_rate
    trained = layer.parameters or layer.input_dependent or layer.hidden_feedback
    verdict: Verdict = rate_verdict(usable, layer.learning_rate) if trained else "ok"
    reason = (usable and usable.reason) or NOT_KNOWN
    not_judged = reason if verdict == "not_judged" else None
    return replace(layer, verdict=verdict, not_judged=not_judged, memory=_layer_memory(layer))


def _layer_memory(layer: LayerReport) -> float | None:
    simulation, dense = layer.simulation, layer.dense
    if simulation is not None:
        return None if simulation.memory is None else simulation.memory.value
    jacobian, steps = jacobian_of(layer.hidden_spectra), [layer.eigenvalues.time_constant.max]
    if dense is not None and dense.operating_point is not None:
        steps = [dense.operating_point.time_constant]
    if dense is not None and dense.memory is not None:
        steps.append(dense.memory)
    if jacobian is not None:
        steps.append(jacobian.time_constant)
    return longest_memory(steps)


class WhatIf(Record, frozen=True):
    """The same eigenvalues and the same output of a layer, learnt through other parameters."""

    parametrization: Annotated[
        str | None, "of λ, by its name in `memcurse predict`; None keeps the layer's own."
    ]
    gain: Annotated[
        Literal["held", "own", "coupled"],
        "``held`` keeps γ and no parameter moves it, ``own`` is γ = √(1-|λ|²) with a parameter of "
        "its own, ``coupled`` the same γ computed from λ.",
    ]
    step_size: Annotated[float | None, "Δ of ``s4``; None for the others."]
    left_out: Annotated[int, "eigenvalues with |λ| ≥ 1 that it cannot hold."]
    reason: Annotated[str | None, "why figures, or those that need B and C, are missing; or None."]
    state: Annotated[StateSummary | None, "E|h|²."] = None
    parameters: Annotated[tuple[ParameterSummary, ...], "the groups, without a tensor."] = ()
    hessian: Annotated[HessianSummary | None, "over these groups, where B and C are known."] = None
    hessian_reason: Annotated[str | None, "why it has none, or None."] = None
    usable_rate: Annotated[UsableRate | None, "as that of a layer."] = None


class Cure(Record, frozen=True):
    """Other parameters of the same eigenvalues that bear a larger rate."""

    parametrization: Annotated[str, "as ``memcurse reparametrize`` takes it."]
    usable_rate: Annotated[UsableRate, "of the layer so written; an LRU has γ = √(1-|λ|²)."]
    clip_modulus: Annotated[float | None, "what every |λ| above it becomes, or None."] = None
    reason: Annotated[str | None, "why the file cannot be rewritten so; None where it can."] = None


class LayerReport(Record, frozen=True):
    """One recurrent layer."""

    UNWRITTEN = ("picture",)

    name: Annotated[str, "the layer's name in the checkpoint."]
    family: Annotated[str, "the family that read it."]
    tensors: Annotated[tuple[str, ...], "the names of the tensors that it was read from."]
    input_dependent: Annotated[bool, "whether λ depends on inputs, and was taken at a nominal one."]
    stable_by_construction: Annotated[bool, "whether |λ| < 1 whatever the parameters are."]
    assumptions: Annotated[tuple[str, ...], "what the checkpoint does not say and was assumed."]
    eigenvalues: Annotated[EigenvalueSummary, "the spectrum."]
    state: Annotated[StateSummary, "the size of the state."]
    parameters: Annotated[tuple[ParameterSummary, ...], "the recurrent parameter groups."]
    hessian: Annotated[
        HessianSummary | None, "its scores over the recurrent parameters, where B and C are known."
    ]
    hessian_reason: Annotated[str | None, "why it has none, or None."]
    dense: Annotated[DenseSummary | None, "what only a dense recurrence has, or None."]
    verdict: Annotated[
        Verdict,
        "its learning rate against the usable one: ``ok`` below the range or where nothing of it "
        "is trained, ``watch`` in it, ``cursed`` above; ``not_judged`` where none is known.",
    ]
    learning_rate: Annotated[float, "the largest rate that its recurrent groups are trained at."]
    memory: Annotated[
        float | None,
        "the steps after which it has forgotten to 1/e: the longest of its time constants, of what "
        "the powers of a dense matrix hold and, where they were looked at, of its hidden weights; "
        "of a gated or non-linear layer that was run, what that showed; None where it never "
        "forgets.",
    ]
    findings: Annotated[tuple[Finding, ...], "what is worth telling, in the order of their codes."]
    hidden_feedback: Annotated[
        bool,
        "whether gates see the hidden state through dense weights, whose memory is not in "
        "``eigenvalues``.",
    ] = False
    hidden_spectra: Annotated[tuple[HiddenSpectrum, ...], "their spectra, where asked for."] = ()
    hidden_spectra_reason: Annotated[str | None, "why one asked for is missing, or None."] = None
    usable_rate: Annotated[UsableRate | None, "the largest rate to expect training to bear."] = None
    not_judged: Annotated[str | None, "why it was not judged, or None where it was."] = None
    cure: Annotated[
        Cure | None, "other parameters that bear more, where the layer is not ok and some do."
    ] = None
    what_if: Annotated[tuple[WhatIf, ...], "the layer in other parameters, where asked for."] = ()
    learning_rates: Annotated[LearningRates | None, "those of its groups, where asked for."] = None
    adam: Annotated[tuple[AdamGroup, ...], "what Adam made of them, where its state is known."] = ()
    gates: Annotated[
        GateSummary | None, "what input-dependent gates do when they move, where asked for."
    ] = None
    operating_point: Annotated[
        GatedOperatingPoint | None,
        "where a GRU or an LSTM works under random inputs, beside its ``hidden_spectra``.",
    ] = None
    simulation: Annotated[
        Simulation | None,
        "what it does when it is run: of gated and non-linear layers, and of all where asked for.",
    ] = None
    not_simulated: Annotated[str | None, "why one asked for is missing, or None."] = None
    storage: Annotated[
        StateStorage | None, "what keeping its state in fewer bits does, from λ at zero input."
    ] = None
    storage_reason: Annotated[str | None, "why that is missing, or None."] = None
    picture: Annotated[HessianPicture | None, "its Hessian, for a page that draws it."] = None


class SkippedLayer(Record, frozen=True):
    """A layer that was recognised but could not be read."""

    name: Annotated[str, "the layer's name in the checkpoint."]
    family: Annotated[str, "the family that recognised it."]
    reason: Annotated[str, "why it could not be read."]


class NotRecurrent(Record, frozen=True):
    """Layers of a hybrid that have no recurrence, and that nothing is said of."""

    kind: Annotated[str, "what they are: ``attention``."]
    count: Annotated[int, "how many; blocks that several layers share count once."]
    names: Annotated[tuple[str, ...], "their names, in the order of the file."]


class CheckpointSummary(Record, frozen=True):
    """The file that the report is about."""

    path: Annotated[str, "as it was given; ``state_dict`` for arrays in memory."]
    format: Annotated[str, "its format's name."]
    bytes: Annotated[int, "its size."]
    tensors: Annotated[int, "how many it holds."]
    bytes_read: Annotated[int, "the bytes of the tensors that were read, or all that were fetched."]
    notes: Annotated[tuple[str, ...], "what the reader had to say."] = ()


class InputStatistics(Record, frozen=True):
    """What was assumed of the input."""

    autocorrelation: Annotated[
        Components,
        "(weight, ρ) of each part of R(Δ) = Σ weight ρ^|Δ| cos(ωΔ), and (weight, ρ, ω) of a part "
        "with a frequency.",
    ]
    horizon: Annotated[int | None, "the number of steps T, or None for an infinite sequence."]
    horizon_source: Annotated[str | None, "``option``, ``checkpoint`` or ``assumed``."]


class InputAssumption(InputStatistics, frozen=True):
    """What was assumed of the input and of the optimizer."""

    learning_rate: Annotated[
        float, "the largest rate that parameters are trained at; layers and groups have their own."
    ]
    readout: Annotated[
        Literal["last", "every"] | None,
        "``last`` for states and a loss at the last of the steps, ``every`` for their mean over "
        "all; None for states at the last step and a loss summed over every one.",
    ] = None
    input_scale: Annotated[
        float | None,
        "the RMS of every component of the gates' input; None where gates stand at their bias.",
    ] = None
    learning_rate_source: Annotated[
        str | None, "``option``, where the checkpoint records it, or ``assumed``."
    ] = None
    current_learning_rate: Annotated[
        float | None, "the rate at the checkpoint's last step, where it is another."
    ] = None
    optimizer: Annotated[str | None, "the optimizer's name, where the checkpoint tells it."] = None
    adaptive: Annotated[
        bool | None,
        "whether it moves every parameter by about its rate, as a step effect assumes; None where "
        "the checkpoint does not tell.",
    ] = None
    state_error: Annotated[
        float | None, "the error of a state above which a type is not good enough to keep it in."
    ] = None


class StateType(Record, frozen=True):
    """Which type the states of input-dependent layers can be kept in from step to step."""

    smallest: Annotated[
        str | None,
        "the smallest that keeps every one of them within ``input.state_error`` and does not "
        "overflow within the horizon; None where none does.",
    ]
    error: Annotated[float | None, "the largest error of any of them in it."]
    configured: Annotated[str | None, "what the model's config.json asks for; None if nothing."]
    configured_error: Annotated[float | None, "the largest error in that."]


class Action(Record, frozen=True):
    """One thing to do, the first the most urgent."""

    text: Annotated[str, "what to do, with the figure that it was measured to help by."]
    command: Annotated[str, "what to run or to paste for it; empty where there is nothing."] = ""


class SensitivityCurve(Record, frozen=True):
    """κ(λ) of a real eigenvalue under the assumed input, which charts draw behind a layer's."""

    horizon: Annotated[int | None, "the number of steps T, or None for an infinite sequence."]
    time_constant: Annotated[tuple[float, ...], "-1/log λ in steps, ascending."]
    relative_sensitivity: Annotated[tuple[float | None, ...], "κ(λ) there; None where it diverges."]


class Report(Record, frozen=True):
    """A report on one checkpoint; several checkpoints are an array of these."""

    SCHEMA: ClassVar = "memcurse.report/2"
    DETAIL = ("curves",)

    version: Annotated[str, "of memcurse."]
    checkpoint: Annotated[CheckpointSummary, "the file."]
    input: Annotated[InputAssumption, "what was assumed of the input and of the optimizer."]
    device: Annotated[str, "what large arrays were worked on by."]
    verdict: Annotated[
        Verdict,
        "the worst of the layers'; ``watch`` at least where the memory is below a tenth of a known "
        "horizon and nothing else carries what it forgets.",
    ]
    sentence: Annotated[str, "the verdict in words, with the rate that training bears."]
    usable_rate: Annotated[UsableRate, "the smallest of the layers'; a reason where none is known."]
    memory: Annotated[float | None, "the longest of the layers'; None where one never forgets."]
    findings: Annotated[tuple[Finding, ...], "what is worth telling of the model as a whole."]
    actions: Annotated[tuple[Action, ...], "what to do, the most urgent first."]
    layers: Annotated[tuple[LayerReport, ...], "the recurrent layers, in the checkpoint's order."]
    skipped: Annotated[tuple[SkippedLayer, ...], "those that could not be read."] = ()
    not_recurrent: Annotated[tuple[NotRecurrent, ...], "a hybrid's layers without recurrence."] = ()
    curves: Annotated[
        tuple[SensitivityCurve, ...], "those of the theory, where every eigenvalue was asked for."
    ] = ()
    optimizer: Annotated[
        OptimizerSummary | None, "the state that the checkpoint keeps of its optimizer, or None."
    ] = None
    state_type: Annotated[
        StateType | None, "that of the recurrent state, of models with input-dependent decay."
    ] = None

    def scalars(self, prefix: str = "memcurse/") -> dict[str, float]:
        """The figures as a flat dictionary for a logger, each name with a prefix.

        A few of the whole report, then those of each layer and group. A verdict is 0 for ok, 1 for
        not judged, 2 for watch, 3 for cursed. A figure that diverges or does not exist is left
        out, and so is the worst of several where one of them diverges. Of the whole report:
        ``verdict``, ``unstable`` (eigenvalues with |λ| >= 1), ``memory`` (the longest, in steps),
        ``step_effect`` (the worst), ``learning_rate`` (the largest), ``usable_rate`` (the
        smallest). Of each layer the same and those of `layer_figures` under ``<layer>/``.
        """
        layers = [(f"{layer.name}/", layer_figures(layer)) for layer in self.layers]
        found = {
            "verdict": float(ORDER.index(self.verdict)),
            "unstable": sum(numbers["unstable"] for _, numbers in layers),
        }
        whole = {"memory": max, "step_effect": max, "learning_rate": max, "usable_rate": min}
        for name, choose in whole.items():
            known = [numbers[name] for _, numbers in layers if name in numbers]
            if known:
                found[name] = choose(known)
        for layer, numbers in layers:
            found |= {layer + name: number for name, number in numbers.items()}
        return {prefix + name: number for name, number in found.items() if math.isfinite(number)}

    def groups(self, parameters: Iterable[tuple[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Parameter groups as `torch.optim` takes them: recurrent tensors at their usable rates.

        None of them decays. A rate above that of its layer is not given; a layer that was not
        judged keeps its own. A tensor that several layers share, or of which only a part is
        recurrent, is one parameter. Without ``model.named_parameters()`` the groups hold names of
        tensors, and that of the rest, the last one, none. Raises `UsageError` for a tensor that
        needs a rate of its own and is not among the parameters, or may be several of them.
        """
        named = None if parameters is None else dict(parameters)
        rates: dict[str, float] = {}
        for layer in self.layers:
            usable = None if layer.usable_rate is None else layer.usable_rate.rate
            rate = layer.learning_rate if usable is None else min(usable, layer.learning_rate)
            slow = rate < layer.learning_rate
            for one in groups_when_run(layer) or layer.parameters:
                name = one.tensor if named is None else _parameter(one.tensor, named, needed=slow)
                if name is not None:
                    rates[name] = min(rate, rates.get(name, rate))
        recurrent: dict[float, list[Any]] = {}
        for name, rate in rates.items():
            recurrent.setdefault(rate, []).append(name if named is None else named[name])
        rest = [one for name, one in (named or {}).items() if name not in rates]
        found = [
            {"params": some, "lr": rate, "weight_decay": 0.0} for rate, some in recurrent.items()
        ]
        return [*found, {"params": rest, "lr": self.input.learning_rate}]

    def __str__(self) -> str:
        """The page of `memcurse inspect`, 80 columns wide."""
        return str(_reports("terminal.page").to_text(self, width=80))

    def _repr_html_(self) -> str:
        """The box of the HTML page, for a notebook."""
        return str(_reports("html.report").box(self))


def _reports(module: str) -> Any:
    """A module of the reports, by its name: imports never run from here to there."""
    return importlib.import_module(f"memcurse_cli.reports.{module}")


def _parameter(tensor: str, named: Mapping[str, Any], *, needed: bool) -> str | None:
    """The parameter that a tensor of the checkpoint is; either name may have a prefix.

    One that is not ``needed`` may be none of them, as where the model does not train it.
    """
    inner = [name for name in named if f".{tensor}".endswith(f".{name}")]
    if inner:
        return max(inner, key=len)
    outer = [name for name in named if name.endswith(f".{tensor}")]
    if len(outer) == 1:
        return outer[0]
    if not needed:
        return None
    which = f"may be {' or '.join(outer[:3])}" if outer else "is none of the parameters"
    what = f"the checkpoint's {tensor} {which}"
    remedy = "give model.named_parameters() of the model that the checkpoint is of"
    raise UsageError(what, where="groups", remedy=remedy)


def layer_figures(layer: LayerReport) -> dict[str, float]:
    """The figures of a layer by name, infinite where one diverges.

    Beside those of the whole report ``modulus``, ``time_constant/p50``, ``step_effect/<parameter>``
    and ``relative_sensitivity/<parameter>`` (κ, p99), and where there is a Hessian ``diagonality``,
    ``adam_residual``, ``sharpness`` and ``output_step_effect``.
    """
    spectrum = layer.eigenvalues
    found: dict[str, float | None] = {
        "verdict": float(ORDER.index(layer.verdict)),
        "unstable": float(spectrum.unstable),
        "modulus": spectrum.modulus.max,
        "memory": math.inf if layer.memory is None else layer.memory,
        "time_constant/p50": spectrum.time_constant.p50,
        "learning_rate": layer.learning_rate,
        "usable_rate": None if layer.usable_rate is None else layer.usable_rate.rate,
    }
    effects = {one.name: effect for one, effect in step_effects(layer)}
    known = [effect for effect in effects.values() if effect is not None]
    found["step_effect"] = max(known, default=None)
    found |= {f"step_effect/{name}": effect for name, effect in effects.items()}
    for one in layer.parameters:
        kappa = one.relative_sensitivity
        endless = kappa.p99 is None and kappa.divergent > 0
        found[f"relative_sensitivity/{one.name}"] = math.inf if endless else kappa.p99
    for name in ("diagonality", "adam_residual", "sharpness", "output_step_effect"):
        found[name] = getattr(layer.hessian, name, None)
    return {name: float(number) for name, number in found.items() if number is not None}
