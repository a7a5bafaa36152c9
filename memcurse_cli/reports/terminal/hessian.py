"""What `memcurse hessian` prints: a heat map, which groups couple, the top directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, TITLE, Screen, text_of
from memcurse_cli.reports.grid import Cell, Column, cells, draw, facts, paragraph
from memcurse_cli.reports.numbers import ABSENT, count, number, number_or_absent, percent, size
from memcurse_cli.reports.plots import HeatMap, drawn_magnitudes, heat_map
from memcurse_cli.reports.terminal.report import describe_input
from memcurse_cli.reports.terminal.structure import at_least
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN
from memcurse_cli.schema.hessian import (
    BlockPair,
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


def _share(fraction: float) -> str:
    return "<0.01 %" if 0 < fraction < LEAST_SHARE else percent(fraction)


def _scored(write: Callable[[HessianScores], str]) -> Callable[[Scored], str]:
    return lambda row: ABSENT if row[3] is None else write(row[3])


Scored = tuple[str, str, int, HessianScores | None, float]
"""A group, the style of its name, its order and scores, and the trace of all groups."""

_GROUP_COLUMNS = [
    GUTTER_COLUMN,
    Column("group", lambda row: Cell(row[0], row[1]), align="left", shrinks=True),
    Column("N", lambda row: str(row[2])),
    Column(
        "tr H",
        lambda row: ABSENT if row[3] is None else _share(row[3].trace / row[4]),
        leaves=2,
        meaning="tr H: the group's share of the trace.",
    ),
    Column(
        "diagonal",
        _scored(lambda one: percent(one.diagonality)),
        leaves=1,
        meaning="Diagonal: 100 % if no two parameters interact.",
    ),
    Column(
        "Adam left",
        _scored(lambda one: at_least(one.adam_residual, one.adam_residual_error)),
        leaves=4,
        meaning="Adam left: λ_max of D^-½ H D^-½, from 1 to N.",
    ),
    Column(
        "spread",
        _scored(lambda one: number_or_absent(one.concentration)),
        leaves=5,
        meaning="Spread: coordinates that carry a top eigenvector.",
    ),
    Column("λ_max", _scored(lambda one: at_least(one.sharpness, one.sharpness_error)), leaves=3),
    Column(
        "max SGD lr",
        _scored(lambda one: number(one.max_stable_lr, 2)),
        meaning="Max SGD lr: 2/λ_max of the group alone.",
    ),
]
_PAIR_COLUMNS = [
    GUTTER_COLUMN,
    Column(
        "pair",
        lambda one: one.first if one.first == one.second else f"{one.first} × {one.second}",
        align="left",
        shrinks=True,
    ),
    Column("‖H‖²", lambda one: _share(one.norm_share), meaning="‖H‖²: the pair's share of it."),
    Column(
        "mean |corr|",
        lambda one: number_or_absent(one.mean_correlation, 2),
        meaning="Mean |corr|: of |H_ab|/√(H_aa H_bb), a and b distinct.",
    ),
]


def _table(screen: Screen, columns: Sequence[Column], entries: Sequence[Any]) -> Iterator[Text]:
    drawn = draw(screen, columns, [cells(columns, entry) for entry in entries])
    yield from drawn.lines
    meanings = " ".join(filter(None, drawn.meanings))
    if meanings:
        yield from paragraph(screen, Text(screen.clean(meanings), LABEL))


def _scored_groups(layer: LayerHessianReport, whole: HessianScores) -> list[Scored]:
    """Each group, and all of them first."""
    groups = [(one.name, "", one.size, one.scores, whole.trace) for one in layer.groups]
    return [("all", NAME, whole.order, whole, whole.trace), *groups]


def _telling_pairs(layer: LayerHessianReport) -> list[BlockPair]:
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
    return shown + rest[: max(2, PAIRS_SHOWN - len(shown))]


def _eigenvector_columns(layer: LayerHessianReport) -> list[Column]:
    """The steepest directions, what they are made of and whose memory they belong to."""
    names = [group.name for group in layer.groups]
    return [
        Column("", lambda row: Cell(f"v{row[0]}", LABEL), align="left"),
        Column("eigenvalue", lambda row: number(row[1].eigenvalue)),
        Column("spread", lambda row: number_or_absent(row[1].concentration), leaves=2),
        Column("groups", lambda row: _weights(row[1], names), align="left", shrinks=True),
        Column(
            "where in the layer", lambda row: _place(row[1]), align="left", shrinks=True, leaves=1
        ),
    ]


def _weights(vector: TopEigenvector, names: Sequence[str]) -> str:
    heaviest = sorted(zip(vector.weights, names, strict=True), reverse=True)
    shown = [pair for pair in heaviest if pair[0] >= LEAST_WEIGHT] or heaviest[:1]
    return ", ".join(f"{name} {percent(weight, 2)}" for weight, name in shown)


def _place(vector: TopEigenvector) -> str:
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


def to_text(
    report: HessianReport,
    *,
    correlation: bool = False,
    file: Path | None = None,
    width: int | None = None,
) -> str:
    """The report as text for standard output, or for a file: without colour, 80 cells wide."""
    return text_of(partial(lines, report, correlation), file, width=width)


def lines(report: HessianReport, correlation: bool, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    yield from _header(screen, report)
    for layer in report.layers:
        yield Text()
        yield from _layer(screen, layer, correlation)
    for skipped in report.skipped:
        yield Text()
        said = f"{skipped.name} ({skipped.family}): {skipped.reason}"
        yield from facts(screen, {"skipped": said})


def _layer(screen: Screen, layer: LayerHessianReport, correlation: bool) -> Iterator[Text]:
    yield Text(screen.shorten(screen.clean(layer.name), screen.width), TITLE)
    yield from facts(screen, _facts(layer))
    if layer.scores is None:
        return
    if layer.picture is not None:
        yield Text()
        values, decades, unit = drawn_magnitudes(layer.picture, correlation=correlation)
        drawn = HeatMap(values, layer.picture.groups, layer.picture.boundaries, decades, unit)
        yield from heat_map(screen, drawn, coloured=screen.coloured and not screen.ascii_only)
    vectors = list(enumerate(layer.eigenvectors[:EIGENVECTORS_SHOWN], 1))
    for columns, entries in (
        (_GROUP_COLUMNS, _scored_groups(layer, layer.scores)),
        (_PAIR_COLUMNS, _telling_pairs(layer)),
        (_eigenvector_columns(layer), vectors),
    ):
        yield Text()
        yield from _table(screen, columns, entries)
    yield Text()
    yield from facts(screen, _meaning(layer, layer.scores))


def _header(screen: Screen, report: HessianReport) -> Iterator[Text]:
    checkpoint, given = report.checkpoint, report.input
    yield Text(screen.shorten(screen.clean(checkpoint.path), screen.width).rstrip(), TITLE)
    yield Text(screen.clean("─") * screen.width, LABEL)
    assumed = InputAssumption(given.autocorrelation, given.horizon, given.horizon_source, 0.0)
    loss = "½ E|y - y*|² at a perfect fit"
    if given.horizon is None:
        loss += ", over infinitely many steps"
    else:
        where = {"every": "the mean over", "last": "at the last of"}[given.readout]
        source = {"option": ", from --horizon", "checkpoint": ", from the checkpoint's metadata"}
        steps = count(given.horizon, "step")
        loss += f", {where} {steps} from a zero state{source.get(given.horizon_source or '', '')}"
    said = {
        "file": f"{checkpoint.format}, {size(checkpoint.bytes)}, "
        f"{count(checkpoint.tensors, 'tensor')}",
        "input": describe_input(assumed),
        "loss": loss,
    }
    yield from facts(screen, said)
    yield from facts(screen, [("note", note) for note in checkpoint.notes])


def _facts(layer: LayerHessianReport) -> dict[str, str]:
    said = {"layer": f"{layer.family}, {count(layer.eigenvalues, 'eigenvalue')}"}
    if layer.scores is None:
        return {**said, "none": f"no Hessian: {layer.reason}"}
    where = "one block"
    if layer.blocks > 1:
        where = f"{layer.blocks:,} blocks of up to {layer.largest_block:,}"
    said["order"] = f"{count(layer.scores.order, 'parameter')} in {where}"
    if layer.method == "Lanczos":
        said["bounds"] = (
            f"from products with it, the largest {len(layer.eigenvectors)} eigenvalues have "
            "converged; the others are not taken"
        )
    elif layer.method != "whole":
        sharpness, residual = layer.scores.sharpness_error, layer.scores.adam_residual_error
        said["bounds"] = (
            f"by {layer.method}: the largest eigenvalue is at most {number(sharpness, 2)} larger "
            f"than said, what Adam leaves at most {number(residual, 2)}"
        )
    if layer.left_out:
        said["left out"] = layer.left_out
    if layer.picture is not None and (layer.blocks > 1 or layer.method != "whole"):
        said["drawn"] = layer.picture.title
    return said


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
