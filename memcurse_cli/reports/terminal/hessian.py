"""What `memcurse hessian` prints: a heat map, which groups couple, the top directions, or JSON.

The tables of a Hessian: its groups, what they share, its steepest directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, TITLE, Screen, text_of
from memcurse_cli.reports.grid import Cell, Column, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, count, number, number_or_absent, percent, size
from memcurse_cli.reports.plots import HeatMap, drawn_magnitudes, heat_map
from memcurse_cli.reports.terminal.report import describe_input
from memcurse_cli.reports.terminal.structure import at_least
from memcurse_cli.schema.hessian import (
    HessianReport,
    HessianScores,
    HessianSpectrum,
    LayerHessianReport,
    TopEigenvector,
)
from memcurse_cli.schema.report import InputAssumption

PAIRS_SHOWN = 6
EIGENVECTORS_SHOWN = 5
LEAST_SHARE = 1e-4
LEAST_WEIGHT = 0.05


_GROUP_COLUMNS = [
    Column("", align="left"),
    Column("group", align="left", shrinks=True),
    Column("N"),
    Column("tr H", leaves=2, meaning="tr H: the group's share of the trace."),
    Column("diagonal", leaves=1, meaning="Diagonal: 100 % if no two parameters interact."),
    Column("Adam left", leaves=4, meaning="Adam left: λ_max of D^-½ H D^-½, from 1 to N."),
    Column("spread", leaves=5, meaning="Spread: coordinates that carry a top eigenvector."),
    Column("λ_max", leaves=3),
    Column("max SGD lr", meaning="Max SGD lr: 2/λ_max of the group alone."),
]


def group_lines(screen: Screen, layer: LayerHessianReport, whole: HessianScores) -> Iterator[Text]:
    """The scores of each group beside those of all."""

    def cells(name: str, style: str, order: int, scores: HessianScores | None) -> list[Cell]:
        if scores is None:
            return [Cell(""), Cell(name, style), Cell(str(order)), *[Cell(ABSENT)] * 6]
        return [
            Cell(""),
            Cell(name, style),
            Cell(str(order)),
            Cell(_share(scores.trace / whole.trace)),
            Cell(percent(scores.diagonality)),
            Cell(at_least(scores.adam_residual, scores.adam_residual_error)),
            Cell(number_or_absent(scores.concentration)),
            Cell(at_least(scores.sharpness, scores.sharpness_error)),
            Cell(number(scores.max_stable_lr, 2)),
        ]

    rows = [cells("all", NAME, whole.order, whole)]
    rows += [cells(group.name, "", group.size, group.scores) for group in layer.groups]
    drawn = draw(screen, _GROUP_COLUMNS, rows)
    yield from drawn.lines
    yield from _legend(screen, [said for said in drawn.meanings if said])


_PAIR_COLUMNS = [
    Column("", align="left"),
    Column("pair", align="left", shrinks=True),
    Column("‖H‖²", meaning="‖H‖²: the pair's share of it."),
    Column("mean |corr|", meaning="Mean |corr|: of |H_ab|/√(H_aa H_bb), a and b distinct."),
]


def _share(fraction: float) -> str:
    return "<0.01 %" if 0 < fraction < LEAST_SHARE else percent(fraction)


def pair_lines(screen: Screen, layer: LayerHessianReport) -> Iterator[Text]:
    """Where ‖H‖² lies, and which groups interact the most."""
    largest = [pair for pair in layer.pairs if pair.norm_share >= LEAST_SHARE][:PAIRS_SHOWN]
    shown = largest or list(layer.pairs[:1])
    several = {group.name for group in layer.groups if group.size > 1}
    rest = [
        pair
        for pair in layer.pairs
        if pair not in shown and pair.mean_correlation and {pair.first, pair.second} <= several
    ]
    rest.sort(key=lambda pair: -(pair.mean_correlation or 0))
    shown += rest[: max(2, PAIRS_SHOWN - len(shown))]
    rows = [
        [
            Cell(""),
            Cell(pair.first if pair.first == pair.second else f"{pair.first} × {pair.second}"),
            Cell(_share(pair.norm_share)),
            Cell(number_or_absent(pair.mean_correlation, 2)),
        ]
        for pair in shown
    ]
    drawn = draw(screen, _PAIR_COLUMNS, rows)
    yield from drawn.lines
    yield from _legend(screen, [said for said in drawn.meanings if said])


_EIGENVECTOR_COLUMNS = [
    Column("", align="left"),
    Column("eigenvalue"),
    Column("spread", leaves=2),
    Column("groups", align="left", shrinks=True),
    Column("where in the layer", align="left", shrinks=True, leaves=1),
]


def eigenvector_lines(screen: Screen, layer: LayerHessianReport) -> Iterator[Text]:
    """The steepest directions, what they are made of and whose memory they belong to."""
    names = [group.name for group in layer.groups]
    rows = [
        [
            Cell(f"v{index}", LABEL),
            Cell(number(vector.eigenvalue)),
            Cell(number_or_absent(vector.concentration)),
            Cell(_weights(vector, names)),
            Cell(_seats(vector)),
        ]
        for index, vector in enumerate(layer.eigenvectors[:EIGENVECTORS_SHOWN], 1)
    ]
    yield from draw(screen, _EIGENVECTOR_COLUMNS, rows).lines


def _weights(vector: TopEigenvector, names: Sequence[str]) -> str:
    heaviest = sorted(zip(vector.weights, names, strict=True), reverse=True)
    shown = [pair for pair in heaviest if pair[0] >= LEAST_WEIGHT] or heaviest[:1]
    return ", ".join(f"{name} {percent(weight, 2)}" for weight, name in shown)


def _seats(vector: TopEigenvector) -> str:
    said = []
    for seat in vector.seats[:2]:
        memory = "|λ|≥1" if seat.time_constant is None else f"τ {number(seat.time_constant)}"
        if seat.weight >= LEAST_WEIGHT:
            said.append(f"#{seat.index} ({memory}) {percent(seat.weight, 2)}")
    if said:
        return ", ".join(said)
    # A scalar that moves several eigenvalues has a name of its own.
    return ", ".join(
        f"{one.group}[{one.index}] {percent(one.weight, 2)}"
        for one in vector.coordinates[:2]
        if one.weight >= LEAST_WEIGHT
    )


def _legend(screen: Screen, meanings: Sequence[str]) -> Iterator[Text]:
    yield from paragraph(screen, Text(screen.clean(" ".join(meanings)), LABEL))


def to_text(
    report: HessianReport,
    *,
    correlation: bool = False,
    file: Path | None = None,
    width: int | None = None,
) -> str:
    """The report as text for standard output, or for a file: without colour, 80 cells wide.

    Args:
        report: what to print.
        correlation: draw |H_ab| / √(H_aa H_bb) rather than |H_ab|.
        file: where the text will be written, or None for standard output.
        width: cells per line, instead of the terminal's.
    """
    return text_of(Page(report, correlation), file, width=width)


@dataclass(frozen=True)
class Page:
    """A report that a console can draw."""

    report: HessianReport
    correlation: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page line by line."""
        screen = Screen.of(options)
        coloured = console.color_system is not None and not screen.ascii_only
        yield from _header(screen, self.report)
        for layer in self.report.layers:
            yield Text()
            yield from self._layer(screen, layer, coloured=coloured)
        for skipped in self.report.skipped:
            yield Text()
            said = screen.sentence(f"{skipped.name} ({skipped.family}): {skipped.reason}")
            yield from paragraph(screen, said, gutter=[("skipped", LABEL)])

    def _layer(
        self, screen: Screen, layer: LayerHessianReport, *, coloured: bool
    ) -> Iterator[Text]:
        yield Text(screen.shorten(screen.clean(layer.name), screen.width), TITLE)
        for label, said in _facts(layer).items():
            yield from paragraph(screen, screen.sentence(said), gutter=[(label, LABEL)])
        if layer.scores is None:
            return
        if layer.picture is not None:
            yield Text()
            values, decades, unit = drawn_magnitudes(layer.picture, correlation=self.correlation)
            drawn = HeatMap(values, layer.picture.groups, layer.picture.boundaries, decades, unit)
            yield from heat_map(screen, drawn, coloured=coloured)
        yield Text()
        yield from group_lines(screen, layer, layer.scores)
        yield Text()
        yield from pair_lines(screen, layer)
        yield Text()
        yield from eigenvector_lines(screen, layer)
        yield Text()
        for label, said in _meaning(layer, layer.scores):
            yield from paragraph(screen, screen.sentence(said), gutter=[(label, LABEL)])


def _header(screen: Screen, report: HessianReport) -> Iterator[Text]:
    checkpoint, given = report.checkpoint, report.input
    yield Text(screen.shorten(screen.clean(checkpoint.path), screen.width).rstrip(), TITLE)
    yield Text(screen.glyphs.rule * screen.width, LABEL)
    assumed = InputAssumption(given.autocorrelation, given.horizon, given.horizon_source, 0.0)
    loss = "½ E|y - y*|² at a perfect fit"
    if given.horizon is None:
        loss += ", over infinitely many steps"
    else:
        where = {"every": "the mean over", "last": "at the last of"}[given.readout]
        source = {"option": ", from --horizon", "checkpoint": ", from the checkpoint's metadata"}
        steps = count(given.horizon, "step")
        loss += f", {where} {steps} from a zero state{source.get(given.horizon_source or '', '')}"
    facts = {
        "file": f"{checkpoint.format}, {size(checkpoint.bytes)}, "
        f"{count(checkpoint.tensors, 'tensor')}",
        "input": describe_input(assumed),
        "loss": loss,
    }
    for label, said in facts.items():
        yield from paragraph(screen, screen.sentence(said), gutter=[(label, LABEL)])
    for note in checkpoint.notes:
        yield from paragraph(screen, screen.sentence(note), gutter=[("note", LABEL)])


def _facts(layer: LayerHessianReport) -> dict[str, str]:
    facts = {"layer": f"{layer.family}, {count(layer.eigenvalues, 'eigenvalue')}"}
    if layer.scores is None:
        return {**facts, "none": f"no Hessian: {layer.reason}"}
    where = "one block"
    if layer.blocks > 1:
        where = f"{layer.blocks:,} blocks of up to {layer.largest_block:,}"
    facts["order"] = f"{count(layer.scores.order, 'parameter')} in {where}"
    if layer.method == "Lanczos":
        facts["bounds"] = (
            f"from products with it, the largest {len(layer.eigenvectors)} eigenvalues have "
            "converged; the others are not taken"
        )
    elif layer.method != "whole":
        sharpness, residual = layer.scores.sharpness_error, layer.scores.adam_residual_error
        facts["bounds"] = (
            f"by {layer.method}: the largest eigenvalue is at most {number(sharpness, 2)} larger "
            f"than said, what Adam leaves at most {number(residual, 2)}"
        )
    if layer.left_out:
        facts["left out"] = layer.left_out
    if layer.picture is not None and (layer.blocks > 1 or layer.method != "whole"):
        facts["drawn"] = layer.picture.title
    return facts


def _meaning(layer: LayerHessianReport, scores: HessianScores) -> Iterator[tuple[str, str]]:
    spectrum = layer.spectrum
    if spectrum is not None and spectrum.quantiles is not None:
        yield "spectrum", _spectrum(spectrum)
    yield (
        "SGD",
        f"plain gradient descent is stable below a step of {number(scores.max_stable_lr, 2)}"
        + _binding(layer, scores),
    )
    adam = (
        f"an ideal diagonal preconditioner leaves λ_max = {number(scores.adam_residual)} where 1 "
        f"is perfect and {scores.order:,} the worst"
    )
    if layer.conditioning is not None:
        before, after = layer.conditioning.before, layer.conditioning.after
        adam += (
            f"; the steepest direction is {number(before)} times as steep as the median one "
            f"before it and {number(after)} times after"
        )
    yield "Adam", adam


def _spectrum(spectrum: HessianSpectrum) -> str:
    quantiles = spectrum.quantiles
    assert quantiles is not None
    levels = {"p90": quantiles.p90, "p99": quantiles.p99, "max": quantiles.max}
    said = ", ".join(
        f"{name} {number(value)}" for name, value in levels.items() if value is not None
    )
    return f"{spectrum.rank:,} of {spectrum.count:,} directions are not flat; eigenvalues {said}"


def _binding(layer: LayerHessianReport, scores: HessianScores) -> str:
    """The group that sets the limit, and what the next one would bear."""
    limits = sorted(
        (group.scores.max_stable_lr, group.name)
        for group in layer.groups
        if group.scores is not None
    )
    if len(limits) < 2:
        return ""
    (least, name), (following, other) = limits[:2]
    return f"; `{name}` bears {number(least, 2)}, the next one, `{other}`, {number(following, 2)}"
