"""Which layer, parameter group or finding is the worst, and what stands for several of them.

A row or a sentence that several layers share shows the worst of each of their figures, or the
range of them, whichever layer each of these is from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.diagnosis.policy import DTYPES
from memcurse_cli.schema.figures import ORDER, Direction, ParameterSummary, Rounding, effect_rank
from memcurse_cli.schema.layer import jacobian_of
from memcurse_cli.schema.report import Finding, LayerReport, Report, Severity, step_effects

Rank = tuple[float, ...]


def together(parameters: Sequence[ParameterSummary]) -> ParameterSummary:
    """Groups of one name in several layers as one; what was not computed in a layer is left out."""
    computed = [one for one in parameters if effect_rank(one) >= 0] or parameters
    largest = max(
        computed, key=lambda one: (one.step_effect is None, endless(one.relative_sensitivity.p99))
    )
    errors = {
        dtype: max((getattr(one.rounding, dtype) for one in computed), key=endless)
        for dtype in DTYPES
    }
    return replace(
        max(parameters, key=effect_rank),
        relative_sensitivity=largest.relative_sensitivity,
        direction=min((one.direction for one in parameters), key=get_args(Direction).index),
        rounding=Rounding(**errors),
    )


def endless(figure: float | None) -> float:
    """A figure that is None where it has no end, as a number that compares."""
    return math.inf if figure is None else figure


class Shared(NamedTuple):
    """Parts of layers that stand for one, the worst first, and the layer that this is of."""

    parts: Sequence[Any]
    layer: str

    @property
    def first(self) -> Any:
        """The worst."""
        return self.parts[0]


def shared(
    layers: Sequence[LayerReport],
    parts: Callable[[LayerReport], Sequence[Any]],
    rank: Callable[[Any], Any],
    key: Callable[[Any], object] = attrgetter("name"),
    *,
    every: bool = False,
) -> list[Shared]:
    """The parts of layers, those of one family and key as one, or ``every`` one by itself.

    The worst, whose rank is the largest, come first.
    """
    found = [(part, layer) for layer in layers for part in parts(layer)]
    found.sort(key=lambda pair: rank(pair[0]), reverse=True)
    groups = grouped(
        (id(part) if every else (layer.family, key(part)), (part, layer)) for part, layer in found
    )
    return [Shared([part for part, _ in same], same[0][1].name) for same in groups.values()]


def layer_rank(layer: LayerReport) -> Rank:
    """The verdict, the worst step effect, the unstable eigenvalues, the longest memory."""
    effects = (effect for _, effect in step_effects(layer) if effect is not None)
    return ORDER.index(layer.verdict), max(effects, default=-1.0), *memory_rank(layer)


def memory_rank(layer: LayerReport) -> Rank:
    """How many eigenvalues are unstable, then the longest time constant."""
    return layer.eigenvalues.unstable, endless(layer.eigenvalues.time_constant.max)


def hidden_rank(layer: LayerReport) -> Rank:
    """The spectral radius of the Jacobian, then of any hidden matrix."""
    jacobian = jacobian_of(layer.hidden_spectra)
    radii = [spectrum.spectral_radius for spectrum in layer.hidden_spectra]
    return (-1.0 if jacobian is None else jacobian.spectral_radius), max(radii, default=-1.0)


class Told(Struct, frozen=True):
    """A finding that several layers share: the range of each of its figures, the worst layer."""

    finding: Finding
    layer: LayerReport | None  # None of a finding on the whole model
    layers: int


def told_once(report: Report) -> list[Told]:
    """Findings that say the same but for their numbers, once each; the severest first.

    An advice's numbers are rates to stay below, so that the lowest of them holds for every layer.
    """
    groups = grouped(
        ((finding.code, _wording(_plural(finding.message))), (finding, layer))
        for layer in report.layers
        for finding in layer.findings
    )
    told = [Told(finding, None, 0) for finding in report.findings]
    for group in groups.values():
        finding, layer = max(group, key=lambda pair: _finding_rank(*pair))
        finding = replace(
            finding,
            message=_merged(finding.message, [one.message for one, _ in group], _range),
            advice=_merged(
                finding.advice, [one.advice for one, _ in group], partial(min, key=float)
            ),
        )
        told.append(Told(finding, layer, len({id(layer) for _, layer in group})))
    return sorted(told, key=lambda one: (-_severity(one.finding), one.finding.code, -one.layers))


NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w-]|\.\w)")
"""A number that stands alone; that of a type or of a layer, as in float32 and rnn.0, does not."""

RATES = ("MC207", "MC302")
"""Findings on a learning rate that is too low: the smaller it is, the worse."""


def _plural(text: str) -> str:
    """A text about `1 of 32 eigenvalues` as one about more of them."""
    said = text.replace(" eigenvalues has ", " eigenvalues have ")
    return said.replace(" eigenvalues never decays", " eigenvalues never decay")


def _wording(text: str) -> str:
    return NUMBER.sub("#", text)


def figures(finding: Finding) -> list[float]:
    """The numbers of a message, the larger the worse."""
    sign = -1 if finding.code in RATES else 1
    return [sign * float(figure) for figure in NUMBER.findall(finding.message)]


def _severity(finding: Finding) -> int:
    return get_args(Severity).index(finding.severity)


def _finding_rank(finding: Finding, layer: LayerReport) -> Rank:
    """The severity, the numbers of the message, and where these are the same the layer."""
    rest = memory_rank(layer) if finding.code.startswith("MC1") else layer_rank(layer)
    return _severity(finding), *figures(finding), *rest


def _merged(worst: str, texts: Sequence[str], choose: Callable[[Sequence[str]], str]) -> str:
    """One text for several that differ in their numbers; the worst where they differ in words."""
    if len(set(map(_wording, texts))) > 1:
        worst, texts = _plural(worst), [*map(_plural, texts)]
    if len(set(map(_wording, texts))) > 1:
        return worst
    figures = map(choose, zip(*map(NUMBER.findall, texts), strict=True))
    return NUMBER.sub(lambda _: next(figures), worst)


def _range(figures: Sequence[str]) -> str:
    low, high = min(figures, key=float), max(figures, key=float)
    return low if float(low) == float(high) else f"{low} - {high}"


Key = TypeVar("Key")
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """What stands under one key, for each key in the order in which they came."""
    found: dict[Key, list[Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found
