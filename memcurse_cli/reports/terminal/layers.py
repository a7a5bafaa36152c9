"""The table of layers: one row each, those that look alike under one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from memcurse_cli.reports.console import ALARM, LABEL, NAME, SPECTRUM, VERDICT_STYLES, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, Row, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, count, effect, largest
from memcurse_cli.reports.plots.spectrum_line import AXES, Resolution, added, spectrum
from memcurse_cli.reports.ranking import Alike, alike, layer_rank, together
from memcurse_cli.schema.figures import parameter_rank
from memcurse_cli.schema.report import LayerReport

NAME_WIDTH = 24

Names = Mapping[str, str]
"""What each layer is called in a table."""


def layer_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The table of layers and the line that explains it."""
    families = {
        family: alike(members, all_layers=all_layers)
        for family, members in by_family(layers).items()
    }

    def table(names: Names, resolution: Resolution) -> RenderedTable:
        rows: list[Row] = []
        for family, groups in families.items():
            rows.append(_family_line(screen, family, groups))
            rows.extend(_group_rows(screen, groups, names, resolution))
        return draw(screen, _columns(resolution), rows)

    drawn, names = fitting(
        layers, [lambda names: table(names, "half-decade"), lambda names: table(names, "decade")]
    )
    yield from drawn.lines
    shared = any(group.others for groups in families.values() for group in groups)
    note = "Where layers share a row, counts are added, the rest is the largest." if shared else ""
    yield from legend(screen, drawn, names, note=note)


def by_family(layers: Sequence[LayerReport]) -> dict[str, list[LayerReport]]:
    """Layers under their family, both in the checkpoint's order."""
    families: dict[str, list[LayerReport]] = {}
    for layer in layers:
        families.setdefault(layer.family, []).append(layer)
    return families


def fitting(
    layers: Sequence[LayerReport], tables: Sequence[Callable[[Names], RenderedTable]]
) -> tuple[RenderedTable, Names]:
    """The first of some tables, widest first, that loses nothing: with full names, then short."""
    full = {layer.name: layer.name for layer in layers}
    short = short_names(list(full))
    for names in (full, short):
        for table in tables:
            drawn = table(names)
            if not drawn.left_out and not drawn.shrunk:
                return drawn, names
    return drawn, names


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the dotted components that all of them begin and end with.

    The last common component in front stays, since a bare number says little:
    `backbone.layers.3.mixer` becomes `layers.3`.
    """
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return {name: name for name in names}
    front = max(_common(parts) - 1, 0)
    back = _common([part[front:][::-1] for part in parts])
    return {
        name: ".".join(part[front : len(part) - back]) or name
        for name, part in zip(names, parts, strict=True)
    }


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many components at the start are the same everywhere; never all of them."""
    shortest = min(map(len, parts))
    for index in range(shortest - 1):
        if len({part[index] for part in parts}) > 1:
            return index
    return shortest - 1


def legend(screen: Screen, drawn: RenderedTable, names: Names, *, note: str = "") -> Iterator[Text]:
    """What the columns mean, how names were shortened, and what there was no room for."""
    sentences = [*drawn.meanings, note]
    cut = [(short, full) for full, short in names.items() if short != full]
    if cut:
        sentences.append(f"{cut[0][0]} is {cut[0][1]}.")
    if drawn.left_out:
        sentences.append(f"Left out at this width: {', '.join(drawn.left_out)}.")
    said = screen.sentence(" ".join(filter(None, sentences)), LABEL)
    if said:
        yield from paragraph(screen, said)


def _family_line(screen: Screen, family: str, groups: Sequence[Alike]) -> str:
    layers = [layer for group in groups for layer in (*group.shown, *group.others)]
    said = [f"{screen.shorten(screen.clean(family), NAME_WIDTH)}, {count(len(layers), 'layer')}"]
    if all(layer.stable_by_construction for layer in layers):
        said.append("|λ| < 1 by construction")
    if all(layer.input_dependent for layer in layers):
        feedback = all(layer.hidden_feedback for layer in layers)
        said.append("gates alone, at zero input" if feedback else "gates at zero input")
    multiplicities = {layer.eigenvalues.multiplicity for layer in layers}
    if multiplicities != {1} and len(multiplicities) == 1:
        said.append(f"{multiplicities.pop():,} states per eigenvalue")
    return "; ".join(said)


def _columns(resolution: Resolution) -> list[Column]:
    bars = "Bars: eigenvalues by log τ, the first τ < 1, the last |λ| ≥ 1."
    drive = "E|h|²: the largest, for a drive of unit variance."
    return [
        Column("", align="left"),
        Column("layer", align="left", shrinks=True, meaning="τ = -1/log|λ| in steps."),
        Column("n", leaves=6),
        Column(AXES[resolution], align="left", leaves=3, called="bars", meaning=bars),
        Column("τ p50", leaves=7),
        Column("τ max"),
        Column("|λ|≥1", leaves=5),
        Column("E|h|²", leaves=4, meaning=drive),
        Column("worst step", align="left", shrinks=True, leaves=1),
        Column("effect"),
    ]


def _group_rows(
    screen: Screen, groups: Sequence[Alike], names: Names, resolution: Resolution
) -> Iterator[Row]:
    for group in groups:
        for layer in group.shown:
            yield _row(screen, names[layer.name], NAME, [layer], resolution)
        if group.others:
            title = f"+{len(group.others):,} more"
            yield _row(screen, title, LABEL, group.others, resolution)


def _row(
    screen: Screen,
    title: str,
    style: str,
    layers: Sequence[LayerReport],
    resolution: Resolution,
) -> list[Cell]:
    worst = max(layers, key=layer_rank)
    eigenvalues = [layer.eigenvalues for layer in layers]
    counts = sorted({one.count for one in eigenvalues})
    unstable = sum(one.unstable for one in eigenvalues)
    bars = spectrum(
        added([one.time_constant_histogram for one in eigenvalues]),
        unstable,
        screen.glyphs,
        resolution,
    )
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    parameter = max(parameters, key=parameter_rank, default=None)
    step = Cell(ABSENT)
    if parameter is not None:
        parameter = together([one for one in parameters if one.name == parameter.name])
        divergent = parameter.relative_sensitivity.divergent
        step = Cell(
            effect(parameter.step_effect, divergent=divergent), VERDICT_STYLES[parameter.verdict]
        )
    return [
        Cell(worst.verdict, VERDICT_STYLES[worst.verdict]),
        Cell(title, style),
        Cell(str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"),
        Cell(bars, SPECTRUM),
        Cell(largest([one.time_constant for one in eigenvalues], "p50")),
        Cell(largest([one.time_constant for one in eigenvalues], "max")),
        Cell(str(unstable), ALARM if unstable else LABEL),
        Cell(largest([layer.state.second_moment for layer in layers], "max")),
        Cell(ABSENT if parameter is None else parameter.name),
        step,
    ]
