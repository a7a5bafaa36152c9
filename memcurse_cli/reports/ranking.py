"""Which layer, parameter group or finding is the worst, and which layers look alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memcurse_cli.diagnosis.report import Finding, LayerReport
from memcurse_cli.diagnosis.report_dense import jacobian_of
from memcurse_cli.diagnosis.report_figures import ParameterSummary

VERDICTS = ("ok", "watch", "cursed")
SEVERITIES = ("info", "warning", "error")

ALIKE_SHOWN = 3
ALIKE_LEAST = 7

Rank = tuple[float, ...]


def parameter_rank(parameter: ParameterSummary) -> Rank:
    """The verdict, then the step effect; a divergent effect is above every finite one."""
    effect = parameter.step_effect
    if effect is None:
        effect = float("inf") if parameter.relative_sensitivity.divergent else -1.0
    return VERDICTS.index(parameter.verdict), effect


def worst_parameter(layer: LayerReport) -> ParameterSummary | None:
    """The parameter group that decides a layer's verdict; None where it has none."""
    return max(layer.parameters, key=parameter_rank, default=None)


def layer_rank(layer: LayerReport) -> Rank:
    """The verdict, the worst step effect, the unstable eigenvalues, the longest memory."""
    parameter = worst_parameter(layer)
    effect = parameter_rank(parameter)[1] if parameter is not None else -1.0
    return VERDICTS.index(layer.verdict), effect, *memory_rank(layer)


def memory_rank(layer: LayerReport) -> Rank:
    """How many eigenvalues are unstable, then the longest time constant."""
    longest = layer.eigenvalues.time_constant.max
    return layer.eigenvalues.unstable, float("inf") if longest is None else longest


def hidden_rank(layer: LayerReport) -> Rank:
    """The spectral radius of the Jacobian, then of any hidden matrix."""
    jacobian = jacobian_of(layer.hidden_spectra)
    radii = [spectrum.spectral_radius for spectrum in layer.hidden_spectra]
    return (-1.0 if jacobian is None else jacobian.spectral_radius), max(radii, default=-1.0)


@dataclass(frozen=True)
class Alike:
    """Layers of one family and one shape.

    Attributes:
        shown: those that get a row of their own, in the checkpoint's order; the worst few where
            there are many.
        others: those that share one row.
    """

    shown: tuple[LayerReport, ...]
    others: tuple[LayerReport, ...]


def alike(layers: Sequence[LayerReport], *, all_layers: bool) -> list[Alike]:
    """Group one family's layers by shape; up to six alike are each worth a row."""
    groups: dict[object, list[LayerReport]] = {}
    for layer in layers:
        groups.setdefault(_shape(layer), []).append(layer)
    if len(groups) > ALIKE_LEAST:  # every shape is different: the family is the only likeness
        groups = {None: list(layers)}
    return [_split(group, all_layers=all_layers) for group in groups.values()]


def _split(group: Sequence[LayerReport], *, all_layers: bool) -> Alike:
    if all_layers or len(group) < ALIKE_LEAST:
        return Alike(tuple(group), ())
    ranked = sorted(group, key=layer_rank, reverse=True)
    return Alike(tuple(ranked[:ALIKE_SHOWN]), tuple(ranked[ALIKE_SHOWN:]))


def _shape(layer: LayerReport) -> object:
    sizes = tuple((parameter.name, parameter.size) for parameter in layer.parameters)
    return layer.eigenvalues.count, layer.eigenvalues.multiplicity, sizes


@dataclass(frozen=True)
class Told:
    """A finding that several layers share, told where it is worst."""

    finding: Finding
    layer: LayerReport
    layers: int


def told_once(layers: Iterable[LayerReport]) -> list[Told]:
    """Findings that say the same but for their numbers, once each; the severest first."""
    groups: dict[object, list[tuple[Finding, LayerReport]]] = {}
    for layer in layers:
        for finding in layer.findings:
            groups.setdefault(_wording(finding), []).append((finding, layer))
    told = []
    for group in groups.values():
        finding, layer = max(group, key=lambda pair: _finding_rank(*pair))
        told.append(Told(finding, layer, len({id(layer) for _, layer in group})))
    return sorted(
        told,
        key=lambda one: (-SEVERITIES.index(one.finding.severity), one.finding.code, -one.layers),
    )


def _wording(finding: Finding) -> object:
    """The code, and the message without its numbers."""
    return finding.code, re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", finding.message)


def _finding_rank(finding: Finding, layer: LayerReport) -> Rank:
    severity = SEVERITIES.index(finding.severity)
    if finding.code.startswith("MC1"):
        return severity, *memory_rank(layer)
    if finding.code == "MC503" and layer.hidden_spectra:
        return severity, *hidden_rank(layer)
    named = [
        parameter
        for parameter in layer.parameters
        if _whole_word(parameter.name).search(finding.message)
    ]
    if named:
        return severity, *max(map(parameter_rank, named))
    return severity, *layer_rank(layer)


def _whole_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
