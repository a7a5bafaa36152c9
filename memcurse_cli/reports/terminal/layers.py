"""The tables of layers and of parameter groups, by the theory and as they were run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rich.text import Text

from memcurse_cli.reports.answer import EIGHT_BITS, SHORT_TYPES, TYPES, rate_words
from memcurse_cli.reports.console import LABEL, NAME, SPECTRUM
from memcurse_cli.reports.grid import Cell, Column, name_column
from memcurse_cli.reports.numbers import ABSENT, count, number, percent, quantile
from memcurse_cli.reports.ranking import (
    Shared,
    endless,
    grouped,
    layer_rank,
    together,
)
from memcurse_cli.reports.terminal.tables import (
    GUTTER_COLUMN,
    LayerTable,
    Page,
    SharedTable,
    effect_cell,
    explained,
    figure,
    verdict_cell,
)
from memcurse_cli.schema.figures import (
    TIME_CONSTANT_EDGES,
    EigenvalueSummary,
    ParameterSummary,
    effect_rank,
)
from memcurse_cli.schema.report import LayerReport
from memcurse_cli.schema.simulation import Measured, SimulatedGroup, Simulation

BINS = len(TIME_CONSTANT_EDGES) + 1

AXIS = " 1   100 10k 1M"
"""A heading that stands over the bars: each number is at the bar that begins there."""


def spectrum(spectra: Sequence[EigenvalueSummary], bars: str) -> str:
    """One bar per half-decade of τ, from τ < 1 to τ ≥ 10⁶ steps, and a last one for |λ| ≥ 1.

    The heights are shares of the fullest bin, rounded up: a bin that holds a single eigenvalue
    is never drawn as empty. A histogram that was not taken draws as nothing.
    """
    histograms = [one.time_constant_histogram for one in spectra]
    if any(len(one) != BINS for one in histograms):
        return ""
    counts = [*map(sum, zip(*histograms, strict=True)), sum(one.unstable for one in spectra)]
    fullest, top = max(*counts, 1), len(bars) - 1
    return "".join(bars[-(-top * count // fullest)] for count in counts)


def _worst(say: Callable[[ParameterSummary], Cell | str]) -> Callable[[LayerReport], Cell | str]:
    """What is said of the group whose step changes the state most."""

    def value(layer: LayerReport) -> Cell | str:
        group = max(layer.parameters, key=effect_rank, default=None)
        return ABSENT if group is None else say(group)

    return value


def layer_lines(page: Page) -> Iterator[Text]:
    """The table of layers, and what all those of a family have in common."""
    table = LayerTable(
        "Layers",
        explained(
            {
                AXIS: "Bars: eigenvalues by log τ, the first τ < 1, the last |λ| ≥ 1.",
                "τ max": "τ = -1/log|λ|, the memory of an eigenvalue in steps.",
                "E|h|²": "E|h|²: the largest, for a drive of unit variance.",
            },
            figure("n", "eigenvalues.count", 6, str),
            Column(
                AXIS,
                lambda one: Cell(spectrum([one.eigenvalues], page.screen.bars), SPECTRUM),
                align="left",
                leaves=4,
            ),
            figure("τ p50", "eigenvalues.time_constant", 7, quantile("p50")),
            figure("τ max", "eigenvalues.time_constant", 0, quantile("max")),
            figure("|λ|≥1", "eigenvalues.unstable", 5, str),
            figure("E|h|²", "state.second_moment", 8, quantile("max")),
            figure("usable rate", "usable_rate.rate", 2, rate_words),
            name_column("worst step", _worst(lambda one: one.name), leaves=1),
            Column("effect", _worst(effect_cell)),
        ),
        entries=lambda layer: [layer],
        rank=layer_rank,
        more=" that are better",
        gutter=lambda layer: verdict_cell(layer.verdict),
        named=True,
        notes=_family_notes,
    )
    return table.lines(page)


def _family_notes(page: Page) -> Iterator[str]:
    for family, layers in grouped((layer.family, layer) for layer in page.layers).items():
        said = []
        if all(layer.stable_by_construction for layer in layers):
            said.append("|λ| < 1 by construction")
        if all(layer.input_dependent for layer in layers):
            feedback = all(layer.hidden_feedback for layer in layers)
            said.append("gates alone, at zero input" if feedback else "gates at zero input")
        multiplicities = {layer.eigenvalues.multiplicity for layer in layers}
        if multiplicities != {1} and len(multiplicities) == 1:
            said.append(f"{multiplicities.pop():,} states per eigenvalue")
        if said:
            yield f"{family}, {count(len(layers), 'layer')}: {'; '.join(said)}."


LEAST_ERROR = 1e-4


def _rounding(heading: str, dtype: str, leaves: int) -> Column:
    """The error in per cent; in 8 bits only of what somebody has quantised to them."""

    def value(one: Shared) -> Cell:
        error = getattr(one.first.rounding, dtype)
        if error is None or (heading in EIGHT_BITS and one.first.dtype not in EIGHT_BITS.values()):
            return Cell(ABSENT, LABEL)
        said = percent(error, 2).removesuffix(" %") if error >= LEAST_ERROR else "<0.01"
        return Cell(said, LABEL)

    return Column(heading, value, leaves=leaves, optional=True)


PARAMETERS = SharedTable(
    "Parameters",
    explained(
        {
            "worst in": "Where layers share a row, each figure is their worst.",
            "effect": "Effect: the state's change by one step on the p99 element, lr √κ; of a "
            "dense matrix on all entries, signs independent, lr √κ(A).",
            "bf16": "bf16, fp16, fp32: the state's error, in %, when the group is stored so.",
            "int8": "int8: one scale per tensor; e4m3 and e5m2: float8.",
        },
        GUTTER_COLUMN,
        name_column("parameter", lambda one: Cell(one.first.name, NAME)),
        name_column("worst in", lambda one: one.layer, leaves=4, optional=True),
        figure("κ p99", "first.relative_sensitivity", 6, quantile("p99")),
        figure("effect", "first", write=effect_cell),
        Column("a step is", lambda one: one.first.direction, align="left", leaves=2),
        *map(_rounding, TYPES, TYPES.values(), (3, 5, 7)),
        *map(_rounding, EIGHT_BITS, EIGHT_BITS.values(), (8, 9, 10)),
    ),
    parts=lambda layer: layer.parameters,
    rank=effect_rank,
    more="group with smaller effects",
    together=together,
)


class _Group(NamedTuple):
    """One tensor of a layer, and the largest step effect that theory gives of it."""

    run: SimulatedGroup
    theory: float | None


def _groups(layer: LayerReport) -> list[_Group]:
    if layer.simulation is None:
        return []
    effects = grouped(
        (one.tensor, one.step_effect) for one in layer.parameters if one.step_effect is not None
    )
    run = layer.simulation.groups
    return [_Group(one, max(effects.get(one.tensor, ()), default=None)) for one in run]


def _measured(one: Measured, write: Callable[..., str] = number) -> str:
    """A figure with its standard error."""
    return f"{write(one.value)} ± {write(one.error, 2)}"


def _memory(run: Simulation) -> str:
    if run.memory is None:
        return "chaotic" if run.chaotic else "never ends"
    return "≥ " * run.memory_at_least + _measured(run.memory)


SIMULATED = LayerTable(
    "Simulated",
    explained(
        {
            "memory": "memory: the larger of -1/Λ₁, of the leading Lyapunov exponent, and the "
            "last lag at which a perturbation keeps 1/e of its size, in steps; ≥ where not all "
            "perturbations were followed to their end.",
            "theory": "theory: the longest time constant at zero input.",
            "E h²": "E h²: of a unit, at the last step.",
            "saturated": "saturated: units at a tanh of 0.95 or more.",
        },
        figure("memory", "simulation", write=_memory),
        Column("theory", lambda one: number(one.eigenvalues.time_constant.max, absent="never")),
        figure("E h²", "simulation.second_moment", 1, _measured),
        figure("saturated", "simulation.saturated", 2, partial(percent, digits=2)),
        figure("drawn", "simulation", 3, lambda run: f"{run.sequences} of {run.steps} steps"),
    ),
    entries=lambda layer: [layer] if layer.simulation else [],
    rank=lambda layer: endless(layer.memory),
)
SIMULATED_GROUPS = LayerTable(
    "Simulated step effects",
    explained(
        {
            "step effect": "step effect: what one step on every entry of the tensor, of random "
            "signs, does to the state; of tensors that move one unit each, that of the unit at "
            "the 99th percentile.",
            "E|dh/dω|²": "E|dh/dω|²: of the state, summed over the entries.",
            "theory": "theory: the same from the closed form; at zero input where gates move.",
        },
        Column("tensor", lambda one: one.run.name, align="left"),
        figure("step effect", "run.step_effect", write=partial(_measured, write=percent)),
        figure("theory", "theory", write=percent),
        figure("E|dh/dω|²", "run.sensitivity", 1, _measured),
    ),
    entries=_groups,
    rank=lambda layer: max(one.run.step_effect.value for one in _groups(layer)),
    notes=lambda page: (
        f"{page.names[layer.name]} was not run: {layer.not_simulated}."
        for layer in page.layers
        if layer.not_simulated
    ),
)


SIMULATED_STATE = LayerTable(
    "State in fewer bits, as run",
    explained(
        {"error": "error, random: of the whole state, to nearest and rounded at random."},
        Column(
            "state in", lambda one: Cell(SHORT_TYPES.get(one.dtype, one.dtype), NAME), align="left"
        ),
        figure("error", "error", write=lambda one: _measured(one, percent)),
        figure("random", "stochastic", write=lambda one: _measured(one, percent)),
    ),
    entries=lambda layer: layer.simulation.stored if layer.simulation else (),
    rank=lambda layer: endless(layer.memory),
)


def simulated_lines(page: Page) -> Iterator[Text]:
    """What layers that were run showed, and their tensors, beside what theory says of them."""
    yield from SIMULATED.lines(page)
    yield from SIMULATED_GROUPS.lines(page)
    yield from SIMULATED_STATE.lines(page)
