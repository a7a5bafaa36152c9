"""The short page of `memcurse inspect`: the answer, what to do, why, and what was assumed.

One screen for any model: 25 lines for one layer. Every section of every layer is in the full page
of `reports.terminal.report`. Several checkpoints stand in one table, and below it what needs
attention.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath

from rich.cells import cell_len
from rich.text import Text

from memcurse_cli.diagnosis.model import SHORT
from memcurse_cli.reports.answer import (
    Depth,
    assumed_words,
    by_depth,
    hessian_words,
    in_short,
    memory_words,
    rate_words,
    reasons,
    sensitivity_words,
    short_names,
    steps,
    storing_words,
    subject,
    verdict_words,
    why,
    worst_group,
)
from memcurse_cli.reports.console import (
    LABEL,
    NAME,
    SEVERITY_STYLES,
    SPECTRUM,
    TITLE,
    VERDICT_STYLES,
    Lines,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import Cell, Column, cells, draw, paragraph
from memcurse_cli.reports.numbers import count, percent, setting
from memcurse_cli.reports.ranking import Told, figures
from memcurse_cli.reports.terminal.layers import spectrum
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, verdict_cell
from memcurse_cli.schema.figures import ORDER
from memcurse_cli.schema.report import LayerReport, Report, by_rate, smallest_rate

ACTIONS_SHOWN, REASONS_SHOWN, ROWS_SHOWN = 3, 4, 6
EACH = 6
"""Layers up to which each has a row of its own; more are drawn by depth too."""
NAMED = 3
"""Layers up to which a row that they share names them."""

Group = tuple[str, Sequence[LayerReport]]
"""Layers that share a row, and what it is called."""

even = partial(paragraph, orphans=False)


def to_text(report: Report, *, file: Path | None = None, width: int | None = None) -> str:
    """The page as text for standard output, or for a file: without colour, 80 cells wide."""
    return text_of(render(report), file, width=width)


def render(report: Report) -> Lines:
    """The page, for a screen of any width and encoding."""
    return partial(_lines, report)


def _lines(report: Report, screen: Screen) -> Iterator[Text]:
    yield from headline(screen, report)
    yield from actions(screen, report)
    told, notes = reasons(report)
    yield from _reasons(screen, report, told)
    yield from _stack(screen, report)
    yield Text()
    yield from _figures(screen, report)
    yield Text()
    assumed = screen.sentence(assumed_words(report.input), LABEL)
    yield from even(screen, assumed, gutter=[("Assumed", LABEL)])
    yield from _closing(screen, report, told, notes)


def headline(screen: Screen, report: Report) -> Iterator[Text]:
    """The verdict, the checkpoint and what it holds; and below it the sentence."""
    line = Text(no_wrap=True).append(verdict_words(report.verdict), VERDICT_STYLES[report.verdict])
    line.append("  ")
    about = screen.clean(subject(report))
    room = screen.width - cell_len(line.plain) - cell_len(about) - 2
    beside = room >= LEAST_ROOM
    line.append(_end_of(screen, report, room if beside else screen.width - 12), TITLE)
    if beside:
        line.append(" " * (screen.width - cell_len(line.plain) - cell_len(about)) + about, LABEL)
    yield line
    if not beside:
        yield from even(screen, Text(about, LABEL), margin=2)
    yield Text()
    yield from even(screen, screen.sentence(in_short(report, report.sentence), TITLE), margin=2)


LEAST_ROOM = 16


def _end_of(screen: Screen, report: Report, room: int) -> str:
    """The path of a checkpoint, or as many of its last parts as there is room for."""
    path = screen.clean(report.checkpoint.path)
    if cell_len(path) <= room:
        return path
    parts = PurePath(path).parts
    ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if cell_len(end) <= room), screen.shorten(parts[-1], room))


def actions(screen: Screen, report: Report) -> Iterator[Text]:
    """What to do, each with its command beside or below it, as it can be pasted."""
    if not report.actions:
        return
    yield Text()
    yield Text("What to do", TITLE)
    for place, action in enumerate(report.actions[:ACTIONS_SHOWN], 1):
        text = screen.sentence(in_short(report, action.text))
        command = screen.clean(action.command)
        room = screen.width - 5 - cell_len(text.plain) - cell_len(command)
        beside = command and room >= 3
        if beside:
            text.append(" " * room).append(command, LABEL)
        yield from even(screen, text, gutter=[(f"  {place}", NAME)], margin=5)
        if command and not beside:
            yield from _pasted(screen, action.command, report.checkpoint.path)


def _pasted(screen: Screen, command: str, path: str) -> Iterator[Text]:
    """A command over as many lines as it takes, which a shell reads as one.

    FILE stands for a path that no line has room for.
    """
    lines, room = [" " * 5], screen.width - len("       ") - len(" \\")
    try:
        words = shlex.split(command)
    except ValueError:  # of a report that somebody else has written
        words = command.split(" ")
    for word in words:
        quoted = screen.clean(shlex.quote(word))
        if word == path and cell_len(quoted) > room:
            quoted = "FILE"
        if lines[-1].strip() and cell_len(f"{lines[-1]}{quoted} \\") > screen.width:
            lines.append(" " * 7)
        lines[-1] += f"{quoted} "
    yield from (Text(f"{line}\\", LABEL, no_wrap=True) for line in lines[:-1])
    yield Text(lines[-1].rstrip(), LABEL, no_wrap=True)


def _reasons(screen: Screen, report: Report, told: Sequence[Told]) -> Iterator[Text]:
    """Of each code the worst finding."""
    if not told:
        return
    names = short_names([layer.name for layer in report.layers])
    worst: dict[str, Told] = {}
    for one in told:
        other = worst.setdefault(one.finding.code, one)
        if figures(one.finding) > figures(other.finding):
            worst[one.finding.code] = one
    shown = list(worst.values())[:REASONS_SHOWN]
    yield Text()
    yield Text("Also" if report.verdict == "ok" else "Why", TITLE)
    for one in shown:
        text = screen.sentence(one.finding.message)
        if one.layer is not None and len(report.layers) > 1:
            more = f" and {one.layers - 1} more" if one.layers > 1 else ""
            text.append_text(screen.sentence(f" ({names[one.layer.name]}{more})", LABEL))
        style = SEVERITY_STYLES[one.finding.severity]
        yield from even(
            screen, text, gutter=[(f"  {screen.clean(one.finding.code)}", style)], margin=8
        )
    if len(told) > len(shown):
        hidden = count(len(told) - len(shown), "more reason")
        yield Text(f"  {hidden}: --full", LABEL)


def _figures(screen: Screen, report: Report) -> Iterator[Text]:
    """Spectrum, sensitivity, Hessian and precision, a line each."""
    said = {
        "Spectrum": _spectrum(screen, report),
        "Sensitivity": screen.sentence(sensitivity_words(report)),
        "Hessian": screen.sentence(hessian_words(report)),
        "Storing": screen.sentence(storing_words(report)),
    }
    for label, words in said.items():
        if words.plain:
            yield from even(screen, words, gutter=[(label, "")], margin=13)


def _spectrum(screen: Screen, report: Report) -> Text:
    """The bars with their ends, and the memory in words; the axis is named where there is room."""
    spectra = [layer.eigenvalues for layer in report.layers]
    bars = spectrum(spectra, screen.bars)
    words = screen.clean(memory_words(report))
    if not bars:
        return Text(words)
    text = Text("1 ").append(bars[:-1], SPECTRUM).append(" 1M")
    if any(one.unstable for one in spectra):
        text.append("  ").append(bars[-1:], SPECTRUM).append(" never")
    text.append(f"  {words}")
    axis = Text("memory in steps  ")
    return axis.append_text(text) if 13 + len(axis) + len(text) <= screen.width else text


def _stack(screen: Screen, report: Report) -> Iterator[Text]:
    """The memory by depth, and a row for each layer or for those that read alike."""
    if len(report.layers) < 2:
        return
    depth = by_depth(report)
    if len(depth) > EACH:
        yield Text()
        title = Text("Memory by depth (the longest of each layer, in steps; # attention)", TITLE)
        yield from paragraph(screen, title, margin=0)
        yield from _depth_lines(screen, depth)
    yield Text()
    groups = _groups(report)
    heading = "layer" if len(groups) == len(report.layers) else "layers"
    columns = [
        GUTTER_COLUMN,
        Column(heading, lambda one: Cell(one[0], NAME), align="left", shrinks=True),
        *GROUP_COLUMNS,
    ]
    if len({layer.verdict for layer in report.layers}) > 1:
        columns.append(VERDICT_COLUMN)
    rows = [cells(columns, one) for one in groups[:ROWS_SHOWN]]
    yield from draw(screen, columns, rows, gutter=2).lines
    if len(groups) > ROWS_SHOWN:
        yield Text(f"  {count(len(groups) - ROWS_SHOWN, 'more row')}: --full", LABEL)


def _groups(report: Report) -> list[Group]:
    """Every layer of a few; of many those of one family, verdict and reach, the worst first."""
    names = short_names([layer.name for layer in report.layers])
    if len(report.layers) <= EACH:
        return [(names[layer.name], [layer]) for layer in report.layers]
    alike: dict[tuple[str, str, bool], list[LayerReport]] = {}
    for layer in report.layers:
        key = layer.verdict, layer.family, _forgets(layer, report.input.horizon)
        alike.setdefault(key, []).append(layer)
    groups = []
    for (_, family, _), same in alike.items():
        said = f"{len(same):,} {family.replace('_', ' ')}"
        if len(same) <= NAMED:
            said = ", ".join(names[layer.name] for layer in same)
        groups.append((said, same))
    return sorted(groups, key=lambda group: (-ORDER.index(group[1][0].verdict), len(group[1])))


def _forgets(layer: LayerReport, horizon: int | None) -> bool:
    """Whether the memory of a layer is below a tenth of the horizon."""
    return horizon is not None and layer.memory is not None and layer.memory * SHORT < horizon


def _memory(group: Group) -> str:
    known = sorted(math.inf if one.memory is None else one.memory for one in group[1])
    low, high = (steps(None if one == math.inf else one) for one in (known[0], known[-1]))
    return low if low == high else f"{low} - {high}"


def _rate(group: Group) -> str:
    return rate_words(smallest_rate(layer.usable_rate for layer in group[1]).rate)


def _effect(group: Group) -> str:
    found = worst_group(group[1])
    if found is None or found[1].step_effect is None:
        return "-"
    return f"{found[1].name} {percent(found[1].step_effect)}"


GROUP_COLUMNS = (
    Column("memory", _memory),
    Column("usable rate", _rate, leaves=1, optional=True),
    Column("step effect", _effect, align="left", leaves=2, optional=True),
)
VERDICT_COLUMN = Column("verdict", lambda one: verdict_cell(one[1][0].verdict), align="left")


def _depth_lines(screen: Screen, depth: Sequence[Depth]) -> Iterator[Text]:
    """One bar per layer on a logarithmic scale, several to a bar where there is no room."""
    share = -(-len(depth) // (screen.width - 8))
    bins = [depth[start : start + share] for start in range(0, len(depth), share)]
    memories = [
        [math.inf if one.layer.memory is None else one.layer.memory for one in group if one.layer]
        for group in bins
    ]
    finite = [one for group in memories for one in group if one < math.inf]
    top = max(1, math.ceil(math.log10(max([*finite, 10.0]))))
    bars = screen.bars
    last = len(bars) - 1

    def bar(group: Sequence[float]) -> str:
        if not group:
            return "#"
        if max(group) == math.inf:
            return bars[last]
        return bars[max(1, math.ceil(last / top * math.log10(max(*group, 1.0))))]

    line = Text(no_wrap=True).append(f"  {POWERS.get(top, f'1e{top}'):<5} ", LABEL)
    yield line.append("".join(map(bar, memories)), SPECTRUM)
    ticks, apart = "", max(8, len(bins) // 4)
    for place in (*range(0, max(len(bins) - apart // 2, 1), apart), len(bins) - 1):
        ticks = ticks.ljust(place) + str(bins[place][0 if place < len(bins) - 1 else -1].index)
    yield Text(f"  {1:<5} {ticks}", LABEL, no_wrap=True, overflow="ellipsis")


POWERS = {1: "10", 2: "100", 3: "1k", 4: "10k", 5: "100k", 6: "1M"}


def _closing(screen: Screen, report: Report, told: Sequence[Told], notes: int) -> Iterator[Text]:
    """What is not on the page, and the commands that show it."""
    for other in report.skipped[:1]:
        more = f" and {len(report.skipped) - 1} more" if len(report.skipped) > 1 else ""
        words = screen.sentence(f"{other.name}{more}: {other.reason}")
        yield from even(screen, words, gutter=[("Not read", SEVERITY_STYLES["warning"])])
    hidden = f"{count(notes, 'note')} hidden: --full" if notes else "All: --full"
    explain = f"   A code: memcurse rule {told[0].finding.code}" if told else ""
    text = Text(f"{hidden}{screen.clean(explain)}   Browser: --html page.html", LABEL)
    yield from paragraph(screen, text, margin=0)


def _yours(report: Report) -> str:
    """The rate of the layer that bears it least."""
    judged = by_rate(report.layers)
    return setting(judged[0].layer.learning_rate if judged else report.input.learning_rate)


SEVERAL_COLUMNS = (
    Column("", lambda one: verdict_cell(one[1].verdict), align="left"),
    Column("checkpoint", lambda one: Cell(one[0], NAME), align="left", shrinks=True),
    Column("memory", lambda one: steps(one[1].memory) if one[1].layers else "-", leaves=1),
    Column("usable rate", lambda one: rate_words(one[1].usable_rate.rate)),
    Column("yours", lambda one: _yours(one[1])),
    Column("why", lambda one: why(one[1]), align="left", shrinks=True, leaves=2),
)


def several(reports: Sequence[Report], *, file: Path | None = None) -> str:
    """Some checkpoints: a line for each, then what to do about those that need attention."""
    return text_of(render_several(reports), file)


def render_several(reports: Sequence[Report]) -> Lines:
    """That page, for a screen of any width and encoding."""
    return partial(_several_lines, reports)


def _several_lines(reports: Sequence[Report], screen: Screen) -> Iterator[Text]:
    names = short_names([report.checkpoint.path for report in reports])
    rows = [cells(SEVERAL_COLUMNS, (names[one.checkpoint.path], one)) for one in reports]
    yield from draw(screen, SEVERAL_COLUMNS, rows).lines
    for report in reports:
        if report.verdict in ("watch", "cursed"):
            yield Text()
            yield from headline(screen, report)
            yield from actions(screen, report)
    yield Text()
    closing = Text("Each by itself: memcurse inspect FILE, or --full for all", LABEL)
    yield from paragraph(screen, closing, margin=0)
