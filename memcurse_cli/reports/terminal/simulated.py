"""The section on layers that were run: what they showed, beside what theory says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from rich.text import Text

from memcurse_cli.reports.grid import Column
from memcurse_cli.reports.numbers import number, percent
from memcurse_cli.reports.ranking import endless, grouped
from memcurse_cli.reports.terminal.tables import LayerTable, Page, explained, figure
from memcurse_cli.schema.report import LayerReport
from memcurse_cli.schema.simulation import Measured, SimulatedGroup, Simulation


class _Group(NamedTuple):
    """One tensor of a layer, and the largest step effect that theory gives of it."""

    run: SimulatedGroup
    theory: float | None


def _groups(layer: LayerReport) -> list[_Group]:
    if layer.simulation is None:
        return []
    known = (one for one in layer.parameters if one.step_effect is not None)
    effects = grouped((one.tensor, one.step_effect) for one in known)
    run = layer.simulation.groups
    return [_Group(one, max(effects.get(one.tensor, ()), default=None)) for one in run]


def _measured(figure: Measured, write: Callable[..., str] = number) -> str:
    return f"{write(figure.value)} ± {write(figure.error, 2)}"


def _memory(run: Simulation) -> str:
    if run.memory is None:
        return "chaotic" if run.chaotic else "never ends"
    return "≥ " * run.memory_at_least + _measured(run.memory)


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
        figure("memory", "simulation", write=_memory),
        Column("theory", lambda one: number(one.eigenvalues.time_constant.max, absent="never")),
        figure("E h²", "simulation.second_moment", 1, _measured),
        figure("saturated", "simulation.saturated", 2, partial(percent, digits=2)),
        figure("drawn", "simulation", 3, lambda run: f"{run.sequences} of {run.steps} steps"),
    ),
    entries=lambda layer: [layer] if layer.simulation else [],
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
        figure("step effect", "run.step_effect", write=partial(_measured, write=percent)),
        figure("theory", "theory", write=percent),
    ),
    entries=_groups,
    rank=lambda layer: max(one.run.step_effect.value for one in _groups(layer)),
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
