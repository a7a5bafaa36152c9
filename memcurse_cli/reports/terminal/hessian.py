"""What `memcurse hessian` prints: a heat map, which groups couple, the top directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.answer import describe_horizon, describe_input, file_words, rate_words
from memcurse_cli.reports.console import LABEL, NAME, TITLE, Screen
from memcurse_cli.reports.grid import Cell, Column, facts, name_column, parted
from memcurse_cli.reports.numbers import count, number, percent
from memcurse_cli.reports.plots import heat_map
from memcurse_cli.reports.terminal.structure import at_least
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, explained, figure, table_lines
from memcurse_cli.schema.hessian import (
    BlockPair,
    HessianGroup,
    HessianReport,
    HessianScores,
    LayerHessianReport,
    TopEigenvector,
)

PAIRS_SHOWN = 6
EIGENVECTORS_SHOWN = 5
LEAST_SHARE = 1e-4
LEAST_WEIGHT = 0.05


def lines(report: HessianReport, screen: Screen, *, correlation: bool = False) -> Iterator[Text]:
    """The page line by line."""
    checkpoint, given = report.checkpoint, report.input
    said = [
        ("file", file_words(checkpoint)),
        ("input", describe_input(given.autocorrelation)),
        ("loss", "½ E|y - y*|² at a perfect fit"),
        ("horizon", describe_horizon(given.horizon, given.readout, given.horizon_source)),
        *(("note", note) for note in checkpoint.notes),
    ]
    path = Text(screen.shorten(screen.clean(checkpoint.path), screen.width).rstrip(), TITLE)
    rule = Text(screen.clean("─") * screen.width, LABEL)
    skipped = (f"{one.name} ({one.family}): {one.reason}" for one in report.skipped)
    return parted(
        [path, rule, *facts(screen, said)],
        *(part for layer in report.layers for part in _layer(screen, layer, correlation)),
        *(facts(screen, {"skipped": words}) for words in skipped),
    )


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
    elif layer.method == "partial Cholesky":
        sharpness, residual = layer.scores.sharpness_error, layer.scores.adam_residual_error
        said["bounds"] = (
            f"by {layer.method}: the largest eigenvalue is at most {number(sharpness, 2)} larger "
            f"than said, what Adam leaves at most {number(residual, 2)}"
        )
    said["left out"] = layer.left_out or ""
    if layer.picture is not None and (layer.blocks > 1 or layer.method != "whole"):
        said["drawn"] = layer.picture.title
    return said


def _layer(
    screen: Screen, layer: LayerHessianReport, correlation: bool
) -> Iterator[Iterable[Text]]:
    """The parts of a layer."""
    name = Text(screen.shorten(screen.clean(layer.name), screen.width), TITLE)
    yield [name, *facts(screen, _facts(layer))]
    whole = layer.scores
    if whole is None:
        return
    if layer.picture is not None:
        yield heat_map(screen, layer.picture, correlation=correlation)
    groups = [HessianGroup("all", "", "recurrent", whole.order, whole), *layer.groups]
    yield table_lines(screen, _group_columns(whole.trace), groups)
    yield table_lines(screen, _PAIR_COLUMNS, _telling_pairs(layer))
    columns = _eigenvector_columns([group.name for group in layer.groups])
    yield table_lines(screen, columns, enumerate(layer.eigenvectors[:EIGENVECTORS_SHOWN], 1))
    yield facts(screen, _meaning(layer, whole))


def _share(fraction: float) -> str:
    return "<0.01 %" if 0 < fraction < LEAST_SHARE else percent(fraction)


def _group_columns(trace: float) -> tuple[Column, ...]:
    """The scores of each group; ``trace`` is that of all of them."""
    return explained(
        {
            "tr H": "tr H: the group's share of the trace.",
            "diagonal": "Diagonal: 100 % if no two parameters interact.",
            "Adam left": "Adam left: λ_max of D^-½ H D^-½, from 1 to N.",
            "spread": "Spread: coordinates that carry a top eigenvector.",
            "max SGD lr": "Max SGD lr: 2/λ_max of the group alone.",
        },
        GUTTER_COLUMN,
        name_column("group", lambda group: Cell(group.name, NAME)),
        figure("N", "size", write=str),
        figure("tr H", "scores.trace", 2, lambda own: _share(own / trace)),
        figure("diagonal", "scores.diagonality", 1, percent),
        figure("Adam left", "scores", 4, at_least("adam_residual")),
        figure("spread", "scores.concentration", 5),
        figure("λ_max", "scores", 3, at_least("sharpness")),
        figure("max SGD lr", "scores.max_stable_lr", write=rate_words),
    )


_PAIR_COLUMNS = explained(
    {
        "‖H‖²": "‖H‖²: the pair's share of it.",
        "mean |corr|": "Mean |corr|: of |H_ab|/√(H_aa H_bb), a and b distinct.",
    },
    GUTTER_COLUMN,
    name_column("pair", lambda one: " × ".join(dict.fromkeys((one.first, one.second)))),
    figure("‖H‖²", "norm_share", write=_share),
    figure("mean |corr|", "mean_correlation", write=rate_words),
)


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


def _eigenvector_columns(groups: Sequence[str]) -> list[Column]:
    """The steepest directions, what they are made of and whose memory they belong to."""

    def weights(vector: TopEigenvector) -> str:
        heaviest = sorted(zip(vector.weights, groups, strict=True), reverse=True)
        shown = [pair for pair in heaviest if pair[0] >= LEAST_WEIGHT] or heaviest[:1]
        return ", ".join(f"{name} {percent(weight, 2)}" for weight, name in shown)

    return [
        Column("", lambda row: Cell(f"v{row[0]}", LABEL), align="left"),
        Column("eigenvalue", lambda row: number(row[1].eigenvalue)),
        Column("spread", lambda row: number(row[1].concentration), leaves=2),
        name_column("groups", lambda row: weights(row[1])),
        name_column("where in the layer", lambda row: _place(row[1]), leaves=1),
    ]


def _place(vector: TopEigenvector) -> str:
    """The eigenvalues that a direction sits on; a scalar that moves several has a name instead."""
    seats = []
    for one in vector.seats[:2]:
        memory = "|λ|≥1" if one.time_constant is None else f"τ {number(one.time_constant)}"
        seats.append((f"#{one.index} ({memory})", one.weight))
    named = [(f"{one.group}[{one.index}]", one.weight) for one in vector.coordinates[:2]]
    for places in (seats, named):
        said = [f"{name} {percent(weight, 2)}" for name, weight in places if weight >= LEAST_WEIGHT]
        if said:
            return ", ".join(said)
    return ""


def _meaning(layer: LayerHessianReport, scores: HessianScores) -> Iterator[tuple[str, str]]:
    spectrum = layer.spectrum
    if spectrum is not None and spectrum.quantiles is not None:
        levels = ((name, getattr(spectrum.quantiles, name)) for name in ("p90", "p99", "max"))
        said = ", ".join(f"{name} {number(value)}" for name, value in levels if value is not None)
        flat = f"{spectrum.rank:,} of {spectrum.count:,} directions are not flat"
        yield "spectrum", f"{flat}; eigenvalues {said}"
    stable = f"plain gradient descent is stable below a step of {number(scores.max_stable_lr, 2)}"
    known = [(group.scores, group.name) for group in layer.groups if group.scores is not None]
    limits = sorted((own.max_stable_lr, f"`{name}`") for own, name in known)
    if len(limits) > 1:
        (least, name), (following, other) = limits[:2]
        stable += (
            f"; {name} bears {number(least, 2)}, the next one, {other}, {number(following, 2)}"
        )
    yield "SGD", stable
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
