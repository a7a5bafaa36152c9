"""The tables of what couples parameters: Hessian scores and departures from normality.

The table of what the eigenvalues of dense matrices do not tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, draw
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, number, number_or_absent, percent
from memcurse_cli.reports.ranking import hidden_rank
from memcurse_cli.reports.terminal.layers import Names, fitting, legend
from memcurse_cli.schema.figures import HessianSummary
from memcurse_cli.schema.layer import JACOBIAN, DenseStructure, DenseSummary, HiddenSpectrum
from memcurse_cli.schema.report import LayerReport

SHOWN = 6


def structure_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The parts of each sensitivity, eigenvalue conditions and transients, the largest first."""
    scored = [
        (layer, layer.dense.structure)
        for layer in layers
        if layer.dense is not None and says_something(layer.dense.structure)
    ]
    taken = [(layer, structure) for layer, structure in scored if structure is not None]
    if not taken:
        return
    hidden = 0
    if not all_layers and len(taken) > SHOWN:
        hidden = len(taken) - SHOWN
        taken = sorted(taken, key=lambda pair: -_worst_condition(pair[1]))[:SHOWN]

    def table(names: Names) -> RenderedTable:
        rows = [structure_row(names[layer.name], structure) for layer, structure in taken]
        return draw(screen, STRUCTURE_COLUMNS, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    note = f"{count(hidden, 'more layer')} better conditioned: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)


STRUCTURE_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column(
        "λ part",
        leaves=1,
        meaning="λ part, P part: of E‖dh/dA‖², what moves eigenvalues alone and eigenvectors "
        "alone; with what both share they add up to 100 %.",
    ),
    Column("P part", leaves=2),
    Column("both", leaves=3),
    Column(
        "cond λ p50",
        leaves=5,
        meaning="Cond λ: how far a change of A of norm 1 moves an eigenvalue, 1 if A is normal.",
    ),
    Column("cond λ max"),
    Column(
        "max ‖A^k‖",
        meaning="Max ‖A^k‖: the growth before the decay, at step k, at least the Kreiss constant.",
    ),
    Column("k", leaves=4),
    Column("Kreiss ≥", leaves=6),
]


def says_something(structure: DenseStructure | None) -> bool:
    """Whether a dense matrix has a figure beyond its eigenvalues."""
    return structure is not None and (
        structure.eigenvalue_part is not None
        or structure.transient_growth is not None
        or structure.eigenvalue_condition.max is not None
    )


def _worst_condition(structure: DenseStructure) -> float:
    worst = structure.eigenvalue_condition.max
    return float("inf") if worst is None else worst


def structure_row(name: str, structure: DenseStructure) -> list[Cell]:
    """The parts of the sensitivity, the eigenvalue conditions and the transient of one matrix."""
    parts = (structure.eigenvalue_part, structure.eigenvector_part, structure.cross_part)
    condition, step = structure.eigenvalue_condition, structure.transient_step
    return [
        Cell(""),
        Cell(name, NAME),
        *(Cell(ABSENT if part is None else percent(part)) for part in parts),
        Cell(number_or_absent(condition.p50)),
        Cell(number_or_absent(condition.max)),
        Cell(number_or_absent(structure.transient_growth)),
        Cell(ABSENT if step is None else str(step)),
        Cell(number_or_absent(structure.kreiss_bound)),
    ]


LEAST_ERROR = 5e-4  # relative: below it an estimate is shown as exact
HIDDEN_SHOWN = 3


def hessian_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """Scores of the Hessian over each layer's recurrent parameters, the most coupled first."""
    scored = [(layer, layer.hessian) for layer in layers if layer.hessian is not None]
    if not scored:
        return
    hidden = 0
    if not all_layers and len(scored) > SHOWN:
        hidden = len(scored) - SHOWN
        scored = sorted(scored, key=lambda pair: -pair[1].adam_residual)[:SHOWN]

    def table(names: Names) -> RenderedTable:
        rows = [hessian_row(names[layer.name], hessian) for layer, hessian in scored]
        return draw(screen, HESSIAN_COLUMNS, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    note = f"{count(hidden, 'more layer')} with less left to Adam: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)


def dense_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """How far each dense matrix is from normal, the farthest first."""
    scored = [(layer, layer.dense) for layer in layers if layer.dense is not None]
    if not scored:
        return
    hidden = 0
    if not all_layers and len(scored) > SHOWN:
        hidden = len(scored) - SHOWN
        scored = sorted(scored, key=lambda pair: -pair[1].henrici_departure)[:SHOWN]

    def table(names: Names) -> RenderedTable:
        rows = [dense_row(names[layer.name], dense) for layer, dense in scored]
        return draw(screen, DENSE_COLUMNS, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    note = f"{count(hidden, 'more layer')} nearer to normal: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)


def hidden_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The spectra of gated layers' hidden weights, the longest memory first."""
    taken = [layer for layer in layers if layer.hidden_spectra]
    if not taken:
        return
    hidden = 0
    if not all_layers and len(taken) > HIDDEN_SHOWN:
        hidden = len(taken) - HIDDEN_SHOWN
        taken = sorted(taken, key=hidden_rank, reverse=True)[:HIDDEN_SHOWN]

    def table(names: Names) -> RenderedTable:
        rows = [
            hidden_row(names[layer.name] if index == 0 else "", spectrum)
            for layer in taken
            for index, spectrum in enumerate(layer.hidden_spectra)
        ]
        return draw(screen, HIDDEN_COLUMNS, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    note = f"{count(hidden, 'more layer')}: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)


HESSIAN_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column("N"),
    Column("diagonal", meaning="Diagonal: 100 % if no two parameters interact."),
    Column(
        "Adam left",
        meaning="Adam left: the curvature that an ideal diagonal preconditioner leaves, 1 to N.",
    ),
    Column("spread", leaves=3, meaning="Spread: coordinates that carry a top eigenvector."),
    Column("sharpness", leaves=2),
    Column("max SGD lr", leaves=1),
    Column(
        "output",
        leaves=4,
        meaning="Output: its change by one step on all N, signs independent; signs in concert "
        "reach at most √(Adam left) times that.",
    ),
]

DENSE_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column("κ(P)", meaning="κ(P): condition of the eigenvectors, 1 for a normal matrix."),
    Column(
        "departure",
        meaning="Departure: Henrici's, the share of ‖A‖ that its eigenvalues do not tell.",
    ),
    Column(
        "memory",
        meaning="Memory, in steps: the larger of τ max and the last k with ‖A^k‖ ≥ 1/e; equal if "
        "normal.",
    ),
    Column("E‖dh/dA‖²", leaves=2, meaning="E‖dh/dA‖²: over all entries."),
    Column("κ(A)", leaves=3, meaning="κ(A): that over E‖h‖²."),
    Column("activation", align="left", leaves=1),
]


HIDDEN_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column(
        "matrix",
        align="left",
        shrinks=True,
        meaning="Matrix: W_hh of a gate, or the Jacobian of one step of the whole state at zero "
        "input and zero state.",
    ),
    Column("n", leaves=2),
    Column("radius", meaning="Radius: the largest |λ|."),
    Column("|λ|≥1", leaves=1),
    Column("τ", meaning="τ: the Jacobian's longest, in steps."),
]


def hessian_row(name: str, hessian: HessianSummary) -> list[Cell]:
    """The scores of one layer's Hessian."""
    rate, output = hessian.max_stable_lr, hessian.output_step_effect
    return [
        Cell(""),
        Cell(name, NAME),
        Cell(str(hessian.order)),
        Cell(_estimate(hessian.diagonality, hessian.diagonality_error)),
        Cell(at_least(hessian.adam_residual, hessian.adam_residual_error)),
        Cell(number_or_absent(hessian.concentration)),
        Cell(at_least(hessian.sharpness, hessian.sharpness_error)),
        Cell(number_or_absent(rate, 2)),
        Cell(ABSENT if output is None else percent(output)),
    ]


def at_least(value: float, error: float) -> str:
    """A lower bound is marked where its error shows in the digits."""
    return f"≥{number(value)}" if error > 0.005 * value else number(value)


def _estimate(share: float, error: float) -> str:
    """A share with the standard error of an estimate that is not exact to three digits."""
    if error < LEAST_ERROR * share:
        return percent(share)
    return f"{percent(share)} ± {percent(error, 1)}"


def dense_row(name: str, dense: DenseSummary) -> list[Cell]:
    """How far one matrix is from normal."""
    condition = dense.eigenvector_condition
    return [
        Cell(""),
        Cell(name, NAME),
        Cell("not diagonalisable" if condition is None else number(condition)),
        Cell(percent(dense.henrici_departure)),
        Cell(number_or_absent(dense.memory)),
        Cell(number_or_absent(dense.sensitivity)),
        Cell(number_or_absent(dense.relative_sensitivity)),
        Cell(dense.activation),
    ]


def hidden_row(name: str, spectrum: HiddenSpectrum) -> list[Cell]:
    """The spectrum of one hidden matrix."""
    time_constant = ABSENT  # a gate's matrix is no step, so it has no memory of its own
    if spectrum.name == JACOBIAN:
        steps = spectrum.time_constant
        time_constant = DIVERGENT if steps is None else number(steps)
    return [
        Cell(""),
        Cell(name, NAME),
        Cell(spectrum.name),
        Cell(str(spectrum.order)),
        Cell(number(spectrum.spectral_radius)),
        Cell(str(spectrum.unstable)),
        Cell(time_constant),
    ]
