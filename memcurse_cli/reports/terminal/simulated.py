"""The section on layers that were run: what they showed, beside what theory says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.text import Text

from memcurse_cli.reports.grid import Column
from memcurse_cli.reports.numbers import ABSENT, number, percent
from memcurse_cli.reports.ranking import endless
from memcurse_cli.reports.terminal.tables import LayerTable, Page, explained
from memcurse_cli.schema.report import LayerReport
from memcurse_cli.schema.simulation import Measured, SimulatedGroup, Simulation


class _Group(NamedTuple):
    """One tensor of a layer, and the largest step effect that theory gives of it."""

    run: SimulatedGroup
    theory: float | None


def _groups(layer: LayerReport) -> list[_Group]:
    run = () if layer.simulation is None else layer.simulation.groups
    told = [
        (group.tensor, group.step_effect)
        for group in layer.parameters
        if group.step_effect is not None
    ]
    return [
        _Group(one, max((effect for tensor, effect in told if tensor == one.tensor), default=None))
        for one in run
    ]


def _measured(figure: Measured, write: object = number) -> str:
    assert callable(write)
    return f"{write(figure.value)} ± {write(figure.error, 2)}"


class _Layer(NamedTuple):
    """A layer that was run."""

    run: Simulation
    report: LayerReport


def _memory(layer: _Layer) -> str:
    run = layer.run
    if run.memory is None:
        return "chaotic" if run.chaotic else "never ends"
    return ("≥ " if run.memory_at_least else "") + _measured(run.memory)


LAYERS = LayerTable(
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
        Column("memory", _memory),
        Column(
            "theory", lambda one: number(one.report.eigenvalues.time_constant.max, absent="never")
        ),
        Column("E h²", lambda one: _measured(one.run.second_moment), leaves=1),
        Column(
            "saturated",
            lambda one: ABSENT if one.run.saturated is None else percent(one.run.saturated, 2),
            leaves=2,
        ),
        Column("drawn", lambda one: f"{one.run.sequences} of {one.run.steps} steps", leaves=3),
    ),
    entries=lambda layer: [] if layer.simulation is None else [_Layer(layer.simulation, layer)],
    rank=lambda layer: endless(layer.memory),
)
GROUPS = LayerTable(
    "Simulated step effects",
    explained(
        {
            "step effect": "step effect: what one step on every entry of the tensor, of random "
            "signs, does to the state; of tensors that move one unit each, that of the unit at "
            "the 99th percentile.",
            "theory": "theory: the same from the closed form; at zero input where gates move.",
        },
        Column("tensor", lambda one: one.run.name, align="left"),
        Column("step effect", lambda one: _measured(one.run.step_effect, percent)),
        Column("theory", lambda one: ABSENT if one.theory is None else percent(one.theory)),
    ),
    entries=_groups,
    rank=lambda layer: max((one.run.step_effect.value for one in _groups(layer)), default=0.0),
    notes=lambda page: (
        f"{page.names[layer.name]} was not run: {layer.not_simulated}."
        for layer in page.layers
        if layer.not_simulated
    ),
)


def lines(page: Page) -> Iterator[Text]:
    """Both tables."""
    yield from LAYERS.lines(page)
    yield from GROUPS.lines(page)
