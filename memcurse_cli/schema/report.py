"""The schema `memcurse.report/1`: everything that a report says, before it is drawn.

Every class turns into the JSON object of the same fields. A number that does not exist is None
here and null there; inf and nan never stand in a report. `scalars` flattens a report for a logger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import (
    COMPONENTS,
    DETAIL,
    NEVER,
    ORDER,
    Components,
    EigenvalueSummary,
    HessianPicture,
    HessianSummary,
    ParameterSummary,
    StateSummary,
    Verdict,
    parameter_rank,
)
from memcurse_cli.schema.layer import (
    AdamGroup,
    DenseSummary,
    GatedOperatingPoint,
    GateSummary,
    HiddenSpectrum,
    LearningRates,
    OptimizerSummary,
)


def finite(value: float) -> float | None:
    """A number as a report holds it; None for inf and NaN, which JSON has not."""
    return float(value) if math.isfinite(value) else None


Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing worth telling, with a stable code like a linter's.

    Attributes:
        code: MC1xx dynamics, MC2xx sensitivity, MC3xx Hessian, MC4xx precision, MC5xx assumptions.
        severity: info, warning or error.
        message: what was found, in plain words with its numbers.
        advice: what to change; empty where there is nothing to do.
        source: the section of the theory that it rests on.
    """

    code: str
    severity: Severity
    message: str
    advice: str
    source: str


@dataclass(frozen=True)
class UsableRate:
    """The largest learning rate that training with Adam is expected to bear.

    Attributes:
        rate: the rate, or None where it is not known.
        limited_by: what ends training beyond it: ``divergence`` where eigenvalues can leave the
            unit disk, ``stall`` where every step changes the output by as much as itself.
        reason: why the rate is not known, or None.
    """

    rate: float | None
    limited_by: Literal["divergence", "stall"] | None
    reason: str | None = None


@dataclass(frozen=True)
class WhatIf:
    """The same eigenvalues and the same output of a layer, learnt through other parameters.

    Attributes:
        parametrization: of λ, by its name in `memcurse predict`; None keeps the layer's own.
        gain: ``held`` keeps γ and no parameter moves it, ``own`` is γ = √(1-|λ|²) with a
            parameter of its own, ``coupled`` the same γ computed from λ.
        step_size: Δ of ``s4``; None for the others.
        left_out: eigenvalues with |λ| ≥ 1 that it cannot hold.
        reason: why the figures, or those that need B and C, are missing; or None.
        state: E|h|².
        parameters: the groups, without a tensor.
        hessian: its scores over these groups, where B and C are known.
        hessian_reason: why it has none, or None.
        usable_rate: as that of a layer.
        verdict: as that of a layer; None without figures.
    """

    parametrization: str | None
    gain: Literal["held", "own", "coupled"]
    step_size: float | None
    left_out: int
    reason: str | None
    state: StateSummary | None = None
    parameters: tuple[ParameterSummary, ...] = ()
    hessian: HessianSummary | None = None
    hessian_reason: str | None = None
    usable_rate: UsableRate | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class LayerReport:
    """One recurrent layer.

    Attributes:
        name: the layer's name in the checkpoint.
        family: the family that read it.
        tensors: the names of the tensors that it was read from.
        input_dependent: whether λ depends on the input, and was taken at a nominal one.
        stable_by_construction: whether |λ| < 1 whatever the parameters are.
        assumptions: what the checkpoint does not say and was assumed.
        eigenvalues: the spectrum.
        state: the size of the state.
        parameters: the recurrent parameter groups.
        hessian: its scores over the recurrent parameters, where B and C are known.
        hessian_reason: why it has none, or None.
        dense: what only a dense recurrence has, or None.
        verdict: the worst of its groups' and of its learning rate's.
        findings: what is worth telling, in the order of their codes.
        hidden_feedback: whether gates see the hidden state through dense weights, whose memory is
            not in ``eigenvalues``.
        hidden_spectra: those weights' spectra, only where asked for.
        hidden_spectra_reason: why one that was asked for is missing, or None.
        usable_rate: the largest learning rate to expect training to bear.
        what_if: the layer in other parameters, where that was asked for.
        learning_rates: those of its groups, where they were asked for.
        adam: what Adam has made of them, where its state is known.
        gates: what input-dependent gates do when they move, where that was asked for.
        operating_point: where a GRU or an LSTM works under random inputs, beside its
            ``hidden_spectra``.
        picture: its Hessian, for a page that draws it.
    """

    name: str
    family: str
    tensors: tuple[str, ...]
    input_dependent: bool
    stable_by_construction: bool
    assumptions: tuple[str, ...]
    eigenvalues: EigenvalueSummary
    state: StateSummary
    parameters: tuple[ParameterSummary, ...]
    hessian: HessianSummary | None
    hessian_reason: str | None
    dense: DenseSummary | None
    verdict: Verdict
    findings: tuple[Finding, ...]
    hidden_feedback: bool = False
    hidden_spectra: tuple[HiddenSpectrum, ...] = ()
    hidden_spectra_reason: str | None = None
    usable_rate: UsableRate | None = None
    what_if: tuple[WhatIf, ...] = ()
    learning_rates: LearningRates | None = None
    adam: tuple[AdamGroup, ...] = ()
    gates: GateSummary | None = None
    operating_point: GatedOperatingPoint | None = None
    picture: HessianPicture | None = field(default=None, compare=False, repr=False, metadata=NEVER)


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that was recognised but could not be read.

    Attributes:
        name: the layer's name in the checkpoint.
        family: the family that recognised it.
        reason: why it could not be read.
    """

    name: str
    family: str
    reason: str


@dataclass(frozen=True)
class NotRecurrent:
    """Layers of a hybrid that have no recurrence, and that nothing is said of.

    Attributes:
        kind: what they are: ``attention``.
        count: how many; blocks that several layers share count once.
        examples: the names of the first few.
    """

    kind: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointSummary:
    """The file that the report is about.

    Attributes:
        path: as it was given; ``state_dict`` for arrays in memory.
        format: its format's name.
        bytes: its size.
        tensors: how many it holds.
        bytes_read: the bytes of the tensors that were read, or all that were fetched.
        notes: what the reader had to say.
    """

    path: str
    format: str
    bytes: int
    tensors: int
    bytes_read: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputAssumption:
    """What was assumed of the input and of the optimizer.

    Attributes:
        autocorrelation: (weight, ρ) of each part of R(Δ) = Σ weight ρ^|Δ| cos(ωΔ), and
            (weight, ρ, ω) of a part with a frequency.
        horizon: the number of steps T, or None for an infinite sequence.
        horizon_source: ``option``, ``checkpoint`` or None.
        learning_rate: the rate that step effects are taken at.
        readout: ``last`` for states and a loss at the last of the steps, ``every`` for their mean
            over all; None for states at the last step and a loss summed over every one.
        input_scale: the RMS of every component of the gates' input; None where gates stand at
            their bias.
    """

    autocorrelation: Components = field(metadata=COMPONENTS)
    horizon: int | None
    horizon_source: str | None
    learning_rate: float
    readout: Literal["last", "every"] | None = None
    input_scale: float | None = None


@dataclass(frozen=True)
class SensitivityCurve:
    """κ(λ) of a real eigenvalue under the assumed input, for charts to draw behind a layer's own.

    Attributes:
        horizon: the number of steps T, or None for an infinite sequence.
        time_constant: -1/log λ in steps, ascending.
        relative_sensitivity: κ(λ) at each; None where it diverges.
    """

    horizon: int | None
    time_constant: tuple[float, ...]
    relative_sensitivity: tuple[float | None, ...]


@dataclass(frozen=True)
class Report:
    """A whole report on one checkpoint.

    Attributes:
        version: of memcurse.
        checkpoint: the file.
        input: what was assumed of the input and of the optimizer.
        device: where eigendecompositions ran.
        verdict: the worst of the layers'.
        sentence: the verdict in words, on the worst layer; a rate in it holds for all layers.
        layers: the recurrent layers, in the checkpoint's order.
        skipped: those that could not be read.
        not_recurrent: layers of a hybrid that have no recurrence.
        curves: those of the theory, only where every eigenvalue was asked for.
        optimizer: the state that the checkpoint keeps of its optimizer, or None.
    """

    SCHEMA: ClassVar = "memcurse.report/1"

    version: str
    checkpoint: CheckpointSummary
    input: InputAssumption
    device: str
    verdict: Verdict
    sentence: str
    layers: tuple[LayerReport, ...]
    skipped: tuple[SkippedLayer, ...] = ()
    not_recurrent: tuple[NotRecurrent, ...] = ()
    curves: tuple[SensitivityCurve, ...] = field(default=(), metadata=DETAIL)
    optimizer: OptimizerSummary | None = None

    def scalars(self, prefix: str = "memcurse/") -> dict[str, float]:
        """The figures as a flat dictionary for a logger; see `memcurse_cli.schema.report`."""

        return scalars(self, prefix)


def scalars(report: Report, prefix: str = "memcurse/") -> dict[str, float]:
    """Names and numbers: a few of the whole report, then those of each layer and group.

    A verdict is 0 for ok, 1 for watch, 2 for cursed. A figure that diverges or does not exist is
    left out, and so is the worst of several where one of them diverges. Of the whole report:
    ``verdict``, ``unstable`` (eigenvalues with |λ| >= 1), ``time_constant`` (the longest, in
    steps), ``step_effect`` (the worst), ``usable_lr`` (the smallest). Of each layer the same under
    ``<layer>/``, with ``step_effect/<parameter>`` and ``relative_sensitivity/<parameter>`` (κ,
    p99), and ``adam_residual``, ``sharpness``, ``output_step_effect`` where there is a Hessian.

    Args:
        report: what to flatten.
        prefix: stands before every name.
    """
    layers = [(f"{layer.name}/", dict(_layer(layer))) for layer in report.layers]
    found = {
        "verdict": float(ORDER.index(report.verdict)),
        "unstable": sum(numbers["unstable"] for _, numbers in layers),
    }
    for name, choose in (("time_constant", max), ("step_effect", max), ("usable_lr", min)):
        known = [numbers[name] for _, numbers in layers if name in numbers]
        if known:
            found[name] = choose(known)
    for layer, numbers in layers:
        found |= {layer + name: number for name, number in numbers.items()}
    return {prefix + name: number for name, number in found.items() if math.isfinite(number)}


def _layer(layer: LayerReport) -> Iterator[tuple[str, float]]:
    spectrum = layer.eigenvalues
    yield "verdict", float(ORDER.index(layer.verdict))
    yield "unstable", float(spectrum.unstable)
    yield from _known("modulus", spectrum.modulus.max)
    longest = spectrum.time_constant
    yield from _known("time_constant", math.inf if longest.divergent else longest.max)
    yield from _known("time_constant/p50", spectrum.time_constant.p50)
    if layer.usable_rate is not None:
        yield from _known("usable_lr", layer.usable_rate.rate)
    effects = [parameter_rank(one)[1] for one in layer.parameters]
    if max(effects, default=-1.0) >= 0:
        yield "step_effect", max(effects)
    for parameter in layer.parameters:
        yield from _known(f"step_effect/{parameter.name}", parameter.step_effect)
        kappa = parameter.relative_sensitivity.p99
        yield from _known(f"relative_sensitivity/{parameter.name}", kappa)
    if layer.hessian is not None:
        yield "adam_residual", layer.hessian.adam_residual
        yield "sharpness", layer.hessian.sharpness
        yield from _known("output_step_effect", layer.hessian.output_step_effect)


def _known(name: str, number: float | None) -> Iterator[tuple[str, float]]:
    if number is not None:
        yield name, number
