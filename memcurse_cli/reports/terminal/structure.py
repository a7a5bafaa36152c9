"""The tables of what couples parameters, of dense and hidden matrices, and of gates at work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from memcurse_cli.reports.answer import rate_words
from memcurse_cli.reports.grid import Column, name_column
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, number, percent, quantile, setting
from memcurse_cli.reports.ranking import endless, grouped, hidden_rank
from memcurse_cli.reports.terminal.tables import LayerTable, Page, explained, figure, part_of
from memcurse_cli.schema.layer import (
    JACOBIAN,
    DenseStructure,
    GateAtWork,
    GatedOperatingPoint,
    GateFigure,
    GateSummary,
    HiddenSpectrum,
)
from memcurse_cli.schema.report import LayerReport

LEAST_ERROR = 5e-4  # relative: below it an estimate is shown as exact


def at_least(name: str) -> Callable[[Any], str]:
    """What writes a score as a lower bound, where its error shows in the digits."""

    def said(scores: Any) -> str:
        value, error = getattr(scores, name), getattr(scores, f"{name}_error")
        return f"≥{number(value)}" if error > 0.005 * value else number(value)

    return said


def _estimate(share: float, error: float) -> str:
    """A share with its error, of an estimate that is not exact to three digits."""
    if error < LEAST_ERROR * share:
        return percent(share)
    return f"{percent(share)} ± {percent(error, 1)}"


HESSIAN = LayerTable(
    "Hessian at a perfect fit",
    explained(
        {
            "diagonal": "Diagonal: 100 % if no two parameters interact.",
            "Adam left": "Adam left: the curvature that an ideal diagonal preconditioner leaves, "
            "1 to N.",
            "spread": "Spread: coordinates that carry a top eigenvector.",
            "output": "Output: its change by one step on all N, signs independent; signs in "
            "concert reach at most √(Adam left) times that.",
        },
        figure("N", "order", write=str),
        Column("diagonal", lambda one: _estimate(one.diagonality, one.diagonality_error)),
        Column("Adam left", at_least("adam_residual")),
        figure("spread", "concentration", 3),
        Column("sharpness", at_least("sharpness"), leaves=2),
        figure("SGD limit", "max_stable_lr", 1, rate_words),
        figure("output", "output_step_effect", 4, percent),
    ),
    entries=lambda layer: [layer.hessian] if layer.hessian else [],
    rank=attrgetter("hessian.adam_residual"),
    more=" with less left to Adam",
)


DENSE = LayerTable(
    "Dense matrices",
    explained(
        {
            "κ(P)": "κ(P): condition of the eigenvectors, 1 for a normal matrix.",
            "departure": "Departure: Henrici's, the share of ‖A‖ that its eigenvalues do not tell.",
            "memory": "Memory, in steps: the larger of τ max and the last k with ‖A^k‖ ≥ 1/e; "
            "equal if normal.",
            "E‖dh/dA‖²": "E‖dh/dA‖²: over all entries.",
            "κ(A)": "κ(A): that over E‖h‖².",
        },
        Column("κ(P)", lambda one: number(one.eigenvector_condition, absent="not diagonalisable")),
        figure("departure", "henrici_departure", write=percent),
        figure("memory", "memory"),
        figure("E‖dh/dA‖²", "sensitivity", 2),
        figure("κ(A)", "relative_sensitivity", 3),
        Column("activation", lambda one: one.activation, align="left", leaves=1),
    ),
    entries=lambda layer: [layer.dense] if layer.dense else [],
    rank=attrgetter("dense.henrici_departure"),
    more=" nearer to normal",
)


def _structures(layer: LayerReport) -> list[DenseStructure]:
    """What a dense matrix says beyond its eigenvalues, where it has a figure of that."""
    structure = part_of(layer, "dense.structure")
    told = ("eigenvalue_part", "transient_growth", "eigenvalue_condition.max")
    return [structure] if any(part_of(structure, name) is not None for name in told) else []


STRUCTURE = LayerTable(
    "Beyond eigenvalues",
    explained(
        {
            "λ part": "λ part, P part: of E‖dh/dA‖², what moves eigenvalues alone and eigenvectors "
            "alone; with what both share they add up to 100 %.",
            "cond λ max": "Cond λ: how far a change of A of norm 1 moves an eigenvalue, 1 if A is "
            "normal.",
            "max ‖A^k‖": "Max ‖A^k‖: the growth before the decay, at step k, at least the Kreiss "
            "constant.",
        },
        figure("λ part", "eigenvalue_part", 1, percent),
        figure("P part", "eigenvector_part", 2, percent),
        figure("both", "cross_part", 3, percent),
        figure("cond λ p50", "eigenvalue_condition.p50", 5),
        figure("cond λ max", "eigenvalue_condition.max"),
        figure("max ‖A^k‖", "transient_growth"),
        figure("k", "transient_step", 4, str),
        figure("Kreiss ≥", "kreiss_bound", 6),
    ),
    entries=_structures,
    rank=lambda layer: endless(_structures(layer)[0].eigenvalue_condition.max),
    more=" better conditioned",
)


def _jacobian_memory(spectrum: HiddenSpectrum) -> str:
    """A gate's matrix is no step, so it has no memory of its own."""
    if spectrum.name != JACOBIAN:
        return ABSENT
    return number(spectrum.time_constant, absent=DIVERGENT)


HIDDEN = LayerTable(
    "Hidden weights",
    explained(
        {
            "matrix": "Matrix: W_hh of a gate, or the Jacobian of one step of the whole state at "
            "zero input and zero state.",
            "radius": "Radius: the largest |λ|.",
            "τ": "τ: the Jacobian's longest, in steps.",
        },
        name_column("matrix", lambda one: one.name),
        figure("n", "order", 2, str),
        figure("radius", "spectral_radius"),
        figure("|λ|≥1", "unstable", 1, str),
        Column("τ", _jacobian_memory),
    ),
    entries=lambda layer: layer.hidden_spectra,
    rank=hidden_rank,
    shown=3,
)


class _WorkRow(NamedTuple):
    """The state of a layer in mean field theory or in its simulation; χ and τ as of the first."""

    source: str
    second_moment: float
    growth: float
    time_constant: float | None
    gates: str = ABSENT
    singular_values: str = ABSENT


def _states(layer: LayerReport) -> list[_WorkRow]:
    point, run = layer.operating_point, layer.simulation
    if point is None:
        return []
    rows = []
    if (state := point.predicted) is not None:
        figures = (state.second_moment, state.growth, state.time_constant)
        gates = " ".join(map(_gate, state.gates))
        rows.append(_WorkRow("mean field", *figures, gates, _singular_values(point)))
    if run is not None:
        exponent = -math.inf if run.exponent is None else run.exponent.value
        growth = math.exp(min(2 * exponent, 700.0))  # no further than a float
        memory = None if exponent >= 0 else -1 / exponent
        rows.append(_WorkRow("simulated", run.second_moment.value, growth, memory))
    return rows


def _singular_values(point: GatedOperatingPoint) -> str:
    mean, variance = point.mean_squared_singular_value, point.singular_value_variance
    if mean is None:
        return ABSENT
    return number(mean) + ("" if variance is None else f"±{number(math.sqrt(max(variance, 0.0)))}")


def _gate(gate: GateAtWork) -> str:
    mean, spread = (f"{value:.2f}".removeprefix("0") for value in (gate.mean, gate.spread))
    return f"{gate.name[:1]} {mean}±{spread}"


def _work_notes(page: Page) -> Iterator[str]:
    points = [(layer.name, layer.operating_point) for layer in page.layers if layer.operating_point]
    if points:
        yield (
            "Mean field: many units, the layer's own biases, and independent weights of the "
            "layer's mean and variance that are drawn anew at every step, under white Gaussian "
            f"inputs of RMS {setting(points[0][1].input_scale)} (--input-scale). Simulated: the "
            "layer itself, which is the one to go by where weights that stay, or were learnt, "
            "make a difference."
        )
    for reason, names in grouped((point.reason, name) for name, point in points).items():
        if reason is not None:
            yield f"{page.whose(names)}: {reason}."


STATE_AT_WORK = LayerTable(
    "State at work",
    explained(
        {
            "E h²": "E h²: of a unit.",
            "gates": "Gates: mean ± spread of how far they are open, over units and steps.",
            "s²": "s²: squared singular values of dh'/dh, mean ± spread; 1 ± 0 keeps every "
            "gradient.",
            "χ": "χ: what a step makes of the square of a small change of the state.",
            "τ": "τ = -2/log χ: the steps in which the change itself falls to 1/e.",
        },
        Column("", lambda row: row.source, align="left"),
        figure("E h²", "second_moment"),
        Column("gates", lambda row: row.gates, align="left", leaves=1),
        Column("s²", lambda row: row.singular_values, optional=True, leaves=2),
        figure("χ", "growth"),
        Column("τ", lambda row: number(row.time_constant, absent="no decay")),
    ),
    entries=_states,
    rank=lambda layer: max((state.growth for state in _states(layer)), default=0.0),
    more=" with less",
    notes=_work_notes,
)


def _moving_gates(layer: LayerReport) -> list[Any]:
    return [layer.gates] if layer.gates and layer.gates.spread else []


def _band(heading: str, index: int, leaves: int) -> Column:
    """The τ of a band of one layer's gates."""

    def value(gates: GateSummary) -> str:
        bands = gates.bands[index : index + 1]
        return quantile("p50")(bands[0].time_constant) if bands else ABSENT

    return Column(heading, value, leaves=leaves)


def _changed(figures: Iterable[GateFigure | None], level: str) -> str:
    """How many times larger the figure that changes most is with gates that move."""
    ratios = []
    for one in filter(None, figures):
        nominal, moving = getattr(one.nominal, level), getattr(one.moving, level)
        ratio = moving / nominal if nominal and moving else 0.0
        ratios += [ratio] if 0 < ratio < math.inf else []
    most = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=None)
    return ABSENT if most is None else f"×{number(most, 2)}"


def _moved(level: str, leaves: int = 0) -> Column:
    """The change of κ in the group that changes most."""

    def value(gates: GateSummary) -> str:
        return _changed((one.relative_sensitivity for one in gates.parameters), level)

    return Column(f"κ {level}", value, leaves=leaves)


def gate_notes(page: Page) -> Iterator[str]:
    """What figures of moving gates assume, and what is missing of them."""
    taken = [gates for layer in page.layers for gates in _moving_gates(layer)]
    if taken:
        seen = " and ".join(dict.fromkeys(gates.sees for gates in taken))
        state = ""
        if any(gates.hidden_second_moment is not None for gates in taken):
            state = ", and the state at the size that such inputs give it"
        error = max(gates.sampling_error or 0.0 for gates in taken)
        drawn = f" Drawn figures have a standard error of {percent(error, 2)}." if error else ""
        yield (
            f"Assumes that every component of {seen} has RMS {setting(taken[0].input_scale)} "
            f"(--input-scale), independent of the others and of the past{state}; gates are drawn "
            f"anew at every step, for infinitely many.{drawn}"
        )
    missing = [
        (f"{_lacks(layer.gates)}: {layer.gates.reason}", layer.name)
        for layer in page.layers
        if layer.gates is not None and layer.gates.reason is not None
    ]
    yield from (f"{page.whose(names)} {said}." for said, names in grouped(missing).items())


def _lacks(gates: GateSummary) -> str:
    if gates.spread is None:
        return "left out"
    return "without E h² and κ" if gates.second_moment is None else "without κ"


MOVING_GATES = LayerTable(
    "Moving gates",
    explained(
        {
            "σ_z": "σ_z: of the gates' pre-activations, median unit.",
            "τ 95 %": "τ: of the median unit, in steps, at these points of its gate's "
            "distribution.",
            "E h²": "E h² (p50), κ: with gates that move, over that of gates at their bias.",
        },
        figure("σ_z", "spread", write=quantile("p50")),
        _band("τ 5 %", 0, 2),
        _band("τ -σ", 1, 4),
        _band("τ +σ", 2, 3),
        _band("τ 95 %", 3, 1),
        Column("E h²", lambda one: _changed([one.second_moment], "p50")),
        _moved("p50", 5),
        _moved("p99"),
    ),
    entries=_moving_gates,
    rank=lambda layer: _moving_gates(layer)[0].spread.p50 or 0.0,
    more=" that move less",
    notes=gate_notes,
)
