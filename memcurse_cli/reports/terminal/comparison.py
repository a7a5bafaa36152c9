"""A comparison as a page of text: both reports in the head, and below it what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.answer import assumed_words, rate_words, steps
from memcurse_cli.reports.console import NAME, TITLE, VERDICT_STYLES, Screen
from memcurse_cli.reports.grid import Cell, Column, cells, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, listed, number, percent, setting
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, NAME_COLUMN, verdict_cell
from memcurse_cli.schema.derived import Change, Compared, Comparison, LayerComparison, SpectrumMove
from memcurse_cli.schema.report import InputAssumption

AGREE = 0.01  # the relative change up to which a figure has stayed
TURNED = 0.01  # the change of an angle in radians up to which an eigenvalue has stayed
EACH, ROWS_SHOWN, NAMES_SHOWN = 2, 20, 6
"""The most layers with a table each, rows in a table of all, and names in a list."""

ASSUMED = {
    "autocorrelation": "input",
    "horizon": "horizon",
    "readout": "readout",
    "input_scale": "scale of the gates' input",
}
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "memory": ("memory", steps),
    "learning_rate": ("your rate", setting),
    "usable_rate": ("usable rate", rate_words),
    "unstable": ("never fade", "{:,.0f}".format),
    "step_effect": ("step effect", percent),
    "diagonality": ("Hessian diagonal", percent),
    "sharpness": ("sharpness", number),
    "adam_residual": ("Adam leaves", number),
}
"""What the page shows of the figures of a layer, and how."""

HOW = {
    "name": "the names are the same",
    "prefix": "the names differ by a prefix",
    "sizes": "family and sizes are the same",
    "alone": "no other layer is left",
}
WHOLE: dict[str, Callable[[Compared], Cell]] = {
    "verdict": lambda one: verdict_cell(one.verdict),
    "memory": lambda one: Cell(steps(one.memory) + " (gates alone)" * one.gates_alone),
    "your rate": lambda one: Cell(setting(one.input.learning_rate)),
    "usable rate": lambda one: Cell(_usable(one)),
}


def lines(made: Comparison, screen: Screen, told: Sequence[str] = ()) -> Iterator[Text]:
    """The page line by line; what else is ``told`` of the two comes last."""
    sides = {"before": made.before, "after": made.after}
    for word, one in sides.items():
        path = screen.shorten(screen.clean(one.path), max(screen.width - 9, 12))
        yield Text(word.ljust(9), TITLE, no_wrap=True).append(path, NAME)
    yield Text()
    columns = [Column(word, align="left", shrinks=bool(word)) for word in ("", "", *sides)]
    rows = [[Cell(""), Cell(name), *map(tell, sides.values())] for name, tell in WHOLE.items()]
    yield from draw(screen, columns, rows).lines
    if said := assumed_differently(made.before.input, made.after.input):
        note = screen.sentence(said)
        yield from paragraph(screen, note, gutter=[("note", VERDICT_STYLES["watch"])])
    changed = [layer for layer in made.layers if not agrees(layer)]
    if len(changed) > EACH:
        yield Text()
        yield from draw(screen, LAYERS, [cells(LAYERS, one) for one in changed[:ROWS_SHOWN]]).lines
    else:
        for layer in changed:
            yield Text()
            yield from _layer(screen, layer, alone=len(made.layers) == 1)
    yield Text()
    if len(changed) > ROWS_SHOWN:
        hidden = count(len(changed) - ROWS_SHOWN, "more layer")
        yield from paragraph(screen, Text(f"{hidden} differ: --json shows every one."))
    for said in (*closing(made), *told):
        yield from paragraph(screen, screen.sentence(said))


def closing(made: Comparison) -> Iterator[str]:
    """What agrees, and what has no partner."""
    same = [layer.name for layer in made.layers if agrees(layer)]
    if same:
        verb = "agrees" if len(same) == 1 else "agree"
        yield f"{count(len(same), 'layer')} {verb} within 1 %: {listed(same, NAMES_SHOWN)}."
    for word, one in (("before", made.before), ("after", made.after)):
        if one.alone:
            yield f"Only {word}: {listed(one.alone, NAMES_SHOWN)}."


def _usable(one: Compared) -> str:
    rate = one.usable_rate
    if rate.low is None or rate.high is None:
        return "not known"
    return f"{rate_words(rate.rate)} ({rate_words(rate.low)} to {rate_words(rate.high)})"


def assumed_differently(before: InputAssumption, after: InputAssumption) -> str:
    """What the reports assume differently, which alone makes their figures differ."""
    differ = [
        said for name, said in ASSUMED.items() if getattr(before, name) != getattr(after, name)
    ]
    if not differ:
        return ""
    return (
        f"Not of one {' and '.join(differ)}: {assumed_words(before)} before; "
        f"{assumed_words(after)} after."
    )


def _layer(screen: Screen, layer: LayerComparison, *, alone: bool) -> Iterator[Text]:
    """What differs in a layer; of a lone one, without what the head says."""
    rows = [row for row in figures(layer)[0] if not (alone and row[0] in WHOLE)]
    sides = Column("before"), Column("after")
    columns = [GUTTER_COLUMN, NAME_COLUMN, Column("figure", align="left"), *sides]
    drawn = [[Cell(""), Cell(""), *map(Cell, row)] for row in rows]
    if drawn:
        drawn[0][1] = Cell(layer.name, NAME)
        yield from draw(screen, columns, drawn).lines
    named = "" if rows else f"{layer.name}: "
    yield from paragraph(screen, screen.sentence(named + " ".join(words(layer))))


def _moved(name: str) -> Callable[[LayerComparison], str]:
    """A figure of a layer where it changed: `150 → 3000`."""

    def cell(layer: LayerComparison) -> str:
        found = (one for one in layer.changes if one.figure == name and not _stayed(one))
        return next((" → ".join(both(one, FIGURES[name][1])) for one in found), "")

    return cell


def _eigenvalues(layer: LayerComparison) -> str:
    move = layer.spectrum
    return ABSENT if move is None else f"{move.outward + move.inward:,} of {move.matched:,}"


def _verdict(layer: LayerComparison) -> Cell:
    before, after = verdict_cell(layer.verdict), verdict_cell(layer.verdict_after)
    return Cell("" if before == after else f"{before.text} → {after.text}", after.style)


LAYERS = [
    GUTTER_COLUMN,
    Column("layer", lambda one: Cell(one.name, NAME), align="left", shrinks=True),
    Column("verdict", _verdict, align="left", optional=True),
    Column("memory", _moved("memory")),
    Column("usable rate", _moved("usable_rate")),
    Column("step effect", _moved("step_effect"), leaves=1),
    Column("moved", _eigenvalues, leaves=2),
]
"""Of many layers; ``moved`` is how many eigenvalues did."""


def agrees(layer: LayerComparison) -> bool:
    """Whether no figure of a layer, and none of its eigenvalues, changed."""
    move = layer.spectrum
    moved = move is not None and (
        move.outward + move.inward + move.only_before + move.only_after > 0
        or move.largest_angle_change > TURNED
    )
    return not moved and not figures(layer)[0]


def figures(layer: LayerComparison) -> tuple[list[tuple[str, str, str]], int]:
    """The figures that differ by more than 1 %, before and after as text, and how many do not."""
    before, after = (verdict_cell(one).text for one in (layer.verdict, layer.verdict_after))
    named = (("verdict", before, after), ("family", layer.family, layer.family_after))
    rows = [row for row in named if row[1] != row[2]]
    same = 0
    alike = all(
        (one.before is not None or one.divergent_before)
        and (one.after is not None or one.divergent_after)
        for one in layer.changes
        if "step_effect/" in one.figure
    )
    for change in layer.changes:
        figure, _, group = change.figure.partition("/")
        # The worst group's where the groups are others, as in another parametrisation.
        if figure not in FIGURES or (figure == "step_effect" and bool(group) != alike):
            continue
        name, write = FIGURES[figure]
        if _stayed(change):
            same += 1
        else:
            rows.append((f"{name} {group}".rstrip(), *both(change, write)))
    return rows, same


def _stayed(change: Change) -> bool:
    if change.before is None or change.after is None:
        return change.before == change.after
    return math.isclose(change.before, change.after, rel_tol=AGREE)


def both(change: Change, write: Callable[[float], str]) -> tuple[str, str]:
    """A figure before and after, as text."""
    if change.before is not None and change.after is not None:
        # Two digits may be too few to tell them apart.
        write = number if write(change.before) == write(change.after) else write
    never = steps(None) if change.figure == "memory" else DIVERGENT

    def said(value: float | None, divergent: bool) -> str:
        return write(value) if value is not None else never if divergent else ABSENT

    return said(change.before, change.divergent_before), said(change.after, change.divergent_after)


def words(layer: LayerComparison) -> Iterator[str]:
    """What stands below a layer's figures: how many agree, its partner, its eigenvalues."""
    _, same = figures(layer)
    if same:
        yield f"{count(same, 'figure')} {'agrees' if same == 1 else 'agree'} within 1 %."
    if layer.matched_by != "name":
        yield f"Matched with `{layer.name_after}`: {HOW[layer.matched_by]}."
    if layer.spectrum is None:
        yield f"How eigenvalues moved is not known: {layer.spectrum_reason}."
    else:
        yield from spectrum_words(layer.spectrum)


def spectrum_words(move: SpectrumMove) -> Iterator[str]:
    """How eigenvalues moved, sentence by sentence."""
    alone = "".join(
        f", {items:,} only {word}"
        for items, word in ((move.only_before, "before"), (move.only_after, "after"))
        if items
    )
    how = "" if move.method == "assignment" else " in the order of |λ|"
    moved = "none moved by more than 5 %"
    if move.outward or move.inward:
        moved = f"{move.outward:,} remember longer, {move.inward:,} shorter, by more than 5 %"
    yield f"{count(move.matched, 'eigenvalue')} matched{how}{alone}: {moved}."
    ratios = (move.time_constant_median, move.time_constant_least, move.time_constant_most)
    known = [number(ratio) for ratio in ratios if ratio is not None]
    if len(known) == 3 and (move.outward or move.inward):
        yield "Their memories: median x {}, from x {} to x {}.".format(*known)
    if move.left_unit_disk or move.entered_unit_disk:
        yield f"{move.left_unit_disk:,} ceased to fade, {move.entered_unit_disk:,} began to."
    if move.largest_angle_change > TURNED:
        yield f"The largest change of an angle is {number(move.largest_angle_change)} rad."
