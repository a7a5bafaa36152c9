"""A comparison as a page of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.text import Text

from memcurse_cli.reports.console import (
    NAME,
    TITLE,
    VERDICT_STYLES,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import Cell, Column, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, number, percent, setting
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.schema.derived import Change, Comparison, LayerComparison, SpectrumMove
from memcurse_cli.schema.report import InputAssumption

FIGURES = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column("figure", align="left"),
    Column("before"),
    Column("after"),
]
ASSUMED: dict[str, Callable[[InputAssumption], str]] = {
    "input": describe_input,
    "horizon": lambda given: describe_horizon(replace(given, horizon_source=None)),
    "learning rate": lambda given: setting(given.learning_rate),
    "scale of the gates' input": lambda given: (
        "none" if given.input_scale is None else setting(given.input_scale)
    ),
}
HOW = {
    "name": "the names are the same",
    "prefix": "the names differ by a prefix",
    "sizes": "family and sizes are the same",
    "alone": "no other layer is left",
}


def to_text(comparison: Comparison, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(partial(lines, comparison), file)


def lines(made: Comparison, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    for word, path, verdict in (
        ("before", made.before, made.verdict),
        ("after", made.after, made.verdict_after),
    ):
        said = screen.shorten(screen.clean(path), max(screen.width - 20, 12))
        line = Text(said, NAME).append(f": {verdict}", VERDICT_STYLES[verdict])
        yield from paragraph(screen, line, gutter=[(word, TITLE)])
    for said in assumed_differently(made.input, made.input_after):
        note = screen.sentence(said)
        yield from paragraph(screen, note, gutter=[("note", VERDICT_STYLES["watch"])])
    for layer in made.layers:
        yield Text()
        yield from _layer(screen, layer)
    for word, names in (("before", made.only_before), ("after", made.only_after)):
        if names:
            yield Text()
            yield from paragraph(screen, screen.sentence(f"Only {word}: {', '.join(names)}."))


def assumed_differently(before: InputAssumption, after: InputAssumption) -> Iterator[str]:
    """What the reports assume differently, which alone makes their figures differ."""
    for word, describe in ASSUMED.items():
        ours, theirs = describe(before), describe(after)
        if ours != theirs:
            yield f"The {word} assumed differs: {ours} before, {theirs} after."


def _layer(screen: Screen, layer: LayerComparison) -> Iterator[Text]:
    rows = [[Cell(""), Cell(""), *map(Cell, row)] for row in figures(layer)]
    rows[0][:2] = (
        Cell(layer.verdict_after, VERDICT_STYLES[layer.verdict_after]),
        Cell(layer.name, NAME),
    )
    yield from draw(screen, FIGURES, rows).lines
    said = []
    if layer.matched_by != "name":
        said.append(f"Matched with `{layer.name_after}`: {HOW[layer.matched_by]}.")
    if layer.spectrum is None:
        said.append(f"How eigenvalues moved is not known: {layer.spectrum_reason}.")
    else:
        said.extend(spectrum_words(layer.spectrum))
    yield from paragraph(screen, screen.sentence(" ".join(said)))


def figures(layer: LayerComparison) -> Iterator[tuple[str, str, str]]:
    """The figures of a layer that stand in the table, as text."""
    yield "verdict", layer.verdict, layer.verdict_after
    if layer.family != layer.family_after:
        yield "family", layer.family, layer.family_after
    yield "τ max", *_both(layer.time_constant)
    yield "|λ| ≥ 1", *_both(layer.unstable, "{:,.0f}".format)
    yield "usable lr", *_both(layer.usable_rate)
    for group in layer.parameters:
        yield f"κ {group.name}", *_both(group.relative_sensitivity)
        yield f"step {group.name}", *_both(group.step_effect, percent)
    if layer.hessian is not None:
        yield "diagonality", *_both(layer.hessian.diagonality)
        yield "sharpness", *_both(layer.hessian.sharpness)
        yield "Adam residual", *_both(layer.hessian.adam_residual)


def _both(change: Change, write: Callable[[float], str] = number) -> tuple[str, str]:
    def said(value: float | None, divergent: bool) -> str:
        return write(value) if value is not None else DIVERGENT if divergent else ABSENT

    return said(change.before, change.divergent_before), said(change.after, change.divergent_after)


def spectrum_words(move: SpectrumMove) -> Iterator[str]:
    """How eigenvalues moved, sentence by sentence."""
    how = "by assignment" if move.method == "assignment" else "in the order of |λ|"
    alone = [
        f"{items:,} only {word}"
        for items, word in ((move.only_before, "before"), (move.only_after, "after"))
        if items
    ]
    yield f"{count(move.matched, 'eigenvalue')} matched {how}{''.join(f', {a}' for a in alone)}."
    if not (move.outward or move.inward):
        yield "No decay changed by more than 5 %."
    else:
        yield (
            f"{move.outward:,} moved outward and {move.inward:,} inward, by more than 5 % of "
            "their decay."
        )
    median, least, most = (
        move.time_constant_median,
        move.time_constant_least,
        move.time_constant_most,
    )
    if median is not None and least is not None and most is not None:
        yield (
            f"Time constants: median x {number(median)}, from x {number(least)} to "
            f"x {number(most)}."
        )
    if move.left_unit_disk or move.entered_unit_disk:
        yield (
            f"{move.left_unit_disk:,} left the unit disk, {move.entered_unit_disk:,} entered it."
        )
    yield f"The largest change of an angle is {number(move.largest_angle_change)} rad."
