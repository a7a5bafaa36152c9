"""The short page of `memcurse inspect`: the answer, what to do, why, and what was assumed.

One screen for any model: 25 lines for one layer. Several checkpoints stand in one table, and below
it what needs attention.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePath

from rich.cells import cell_len
from rich.text import Text

from memcurse_cli.diagnosis.model import SHORT
from memcurse_cli.reports import answer
from memcurse_cli.reports.console import (
    LABEL,
    NAME,
    SEVERITY_STYLES,
    SPECTRUM,
    TITLE,
    Lines,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import Cell, Column, cells, draw, paragraph, parted
from memcurse_cli.reports.numbers import ABSENT, count, percent, setting
from memcurse_cli.reports.ranking import Told, endless, figures, grouped
from memcurse_cli.reports.terminal.layers import spectrum
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, Page, verdict_cell
from memcurse_cli.schema.figures import ORDER
from memcurse_cli.schema.report import LayerReport, Report, by_rate, smallest_rate

LEAST_ROOM = 16  # for a path beside what the checkpoint holds
ACTIONS_SHOWN, REASONS_SHOWN, ROWS_SHOWN = 3, 4, 6
EACH = 6  # layers up to which each has a row of its own; more are drawn by depth too
NAMED = 3  # layers up to which a row that they share names them

even = partial(paragraph, orphans=False)


def to_text(report: Report, *, width: int) -> str:
    """The page as text for standard output."""
    return text_of(render(report), None, width=width)


def render(*reports: Report) -> Lines:
    """The page of one checkpoint, or of several, for a screen of any width and encoding."""
    return partial(_one if len(reports) == 1 else _several, reports)


def _one(reports: Sequence[Report], screen: Screen) -> Iterator[Text]:
    (report,) = reports
    page, (told, notes) = Page(screen, report), answer.reasons(report)
    return parted(
        headline(page),
        actions(page),
        _reasons(page, told),
        _depth_lines(page),
        _stack(page),
        _figures(page),
        _closing(page, told, notes),
    )


def headline(page: Page) -> Iterator[Text]:
    """The verdict, the checkpoint and what it holds; and below it the sentence."""
    screen, report, verdict = page.screen, page.report, verdict_cell(page.report.verdict)
    line = Text(no_wrap=True).append(verdict.text.upper(), verdict.style).append("  ")
    about = screen.clean(answer.subject(report))
    room = screen.width - line.cell_len - cell_len(about) - 2
    beside = room >= LEAST_ROOM
    line.append(_end_of(page, room if beside else screen.width - 12), TITLE)
    if beside:
        line.append(" " * (screen.width - line.cell_len - cell_len(about)) + about, LABEL)
    line.rstrip()
    yield line
    if not beside:
        yield from even(screen, Text(about, LABEL), margin=2)
    yield Text()
    yield from even(screen, _in_short(page, report.sentence, TITLE), margin=2)


def _in_short(page: Page, text: str, style: str = "") -> Text:
    """A sentence in which layers are called by their short names."""
    for full in sorted(page.names, key=len, reverse=True):
        text = text.replace(full, page.names[full])
    return page.screen.sentence(text, style)


def _end_of(page: Page, room: int) -> str:
    """The path of a checkpoint, or as many of its last parts as there is room for."""
    path = page.screen.clean(page.report.checkpoint.path)
    parts = PurePath(path).parts
    ends = [path, *("/".join(parts[start:]) for start in range(1, len(parts)))]
    fitting = (end for end in ends if cell_len(end) <= room)
    return next(fitting, page.screen.shorten(ends[-1], room))


def actions(page: Page) -> Iterator[Text]:
    """What to do, each with its command beside or below it, as it can be pasted."""
    screen, report = page.screen, page.report
    if report.actions:
        yield Text("What to do", TITLE)
    for place, action in enumerate(report.actions[:ACTIONS_SHOWN], 1):
        text = _in_short(page, action.text)
        command = screen.clean(action.command)
        room = screen.width - 5 - text.cell_len - cell_len(command)
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


def _reasons(page: Page, told: Sequence[Told]) -> Iterator[Text]:
    if not told:
        return
    screen = page.screen
    alike = grouped((one.finding.code, one) for one in told)
    yield Text("Also" if page.report.verdict == "ok" else "Why", TITLE)
    for same in [*alike.values()][:REASONS_SHOWN]:
        worst = max(same, key=lambda one: figures(one.finding))
        text = screen.sentence(worst.finding.message)
        if worst.layer is not None and len(page.layers) > 1:
            more = f" and {worst.layers - 1} more" if worst.layers > 1 else ""
            text.append_text(screen.sentence(f" ({page.names[worst.layer.name]}{more})", LABEL))
        code = f"  {screen.clean(worst.finding.code)}"
        gutter = [(code, SEVERITY_STYLES[worst.finding.severity])]
        yield from even(screen, text, gutter=gutter, margin=8)
    hidden = len(told) - min(len(alike), REASONS_SHOWN)
    if hidden:
        yield Text(f"  {count(hidden, 'more reason')}: --full", LABEL)


def _figures(page: Page) -> Iterator[Text]:
    screen, report = page.screen, page.report
    said = {
        "Spectrum": _spectrum(page),
        "Simulated": screen.sentence(answer.simulated_words(report)),
        "Sensitivity": screen.sentence(answer.sensitivity_words(report)),
        "Hessian": screen.sentence(answer.hessian_words(report)),
        "Storing": screen.sentence(answer.storing_words(report)),
        "State": screen.sentence(answer.state_words(report)),
    }
    for label, words in said.items():
        if words.plain:
            yield from even(screen, words, gutter=[(label, "")], margin=13)


def _spectrum(page: Page) -> Text:
    """The bars with their ends, and the memory in words; the axis is named where there is room."""
    spectra = [layer.eigenvalues for layer in page.layers]
    bars = spectrum(spectra, page.screen.bars)
    words = page.screen.clean(answer.memory_words(page.report))
    if not bars:
        return Text(words)
    text = Text("1 ").append(bars[:-1], SPECTRUM).append(" 1M")
    if any(one.unstable for one in spectra):
        text.append("  ").append(bars[-1:], SPECTRUM).append(" never")
    text.append(f"  {words}")
    axis = Text("memory in steps  ")
    return axis.append_text(text) if 13 + len(axis) + len(text) <= page.screen.width else text


def _stack(page: Page) -> Iterator[Text]:
    """A row for each of several layers or for those that read alike."""
    if len(page.layers) < 2:
        return
    groups = _groups(page)
    heading = "layer" if len(groups) == len(page.layers) else "layers"
    name = Column(heading, partial(_called, page), align="left", shrinks=True)
    differ = len({layer.verdict for layer in page.layers}) > 1
    columns = [GUTTER_COLUMN, name, *(GROUP_COLUMNS if differ else GROUP_COLUMNS[:-1])]
    rows = [cells(columns, one) for one in groups[:ROWS_SHOWN]]
    yield from draw(page.screen, columns, rows, gutter=2).lines
    if len(groups) > ROWS_SHOWN:
        yield Text(f"  {count(len(groups) - ROWS_SHOWN, 'more row')}: --full", LABEL)


def _groups(page: Page) -> Sequence[Sequence[LayerReport]]:
    """Every layer of a few; of many those of one family, verdict and reach, the worst first."""
    if len(page.layers) <= EACH:
        return [[layer] for layer in page.layers]
    horizon = page.report.input.horizon or 0
    alike = grouped(
        ((layer.verdict, layer.family, endless(layer.memory) * SHORT < horizon), layer)
        for layer in page.layers
    )
    return sorted(alike.values(), key=lambda same: (-ORDER.index(same[0].verdict), len(same)))


def _called(page: Page, layers: Sequence[LayerReport]) -> Cell:
    if len(layers) <= NAMED:
        return Cell(", ".join(page.names[layer.name] for layer in layers), NAME)
    return Cell(f"{len(layers):,} {layers[0].family.replace('_', ' ')}", NAME)


def _memory(layers: Sequence[LayerReport]) -> str:
    known = sorted((layer.memory for layer in layers), key=endless)
    return " - ".join(dict.fromkeys(map(answer.steps, (known[0], known[-1]))))


def _effect(layers: Sequence[LayerReport]) -> str:
    worst = answer.worst_step(layers)
    if worst is None or worst.effect is None:
        return ABSENT
    return f"{worst.group} {percent(worst.effect)}"


def _rate(layers: Sequence[LayerReport]) -> str:
    return answer.rate_words(smallest_rate(layer.usable_rate for layer in layers).rate)


GROUP_COLUMNS = (  # of layers that share a row
    Column("memory", _memory),
    Column("usable rate", _rate, leaves=1, optional=True),
    Column("step effect", _effect, align="left", leaves=2, optional=True),
    Column("verdict", lambda layers: verdict_cell(layers[0].verdict), align="left"),
)


def _depth_lines(page: Page) -> Iterator[Text]:
    """One bar per layer on a logarithmic scale, several to a bar where there is no room."""
    screen, depth = page.screen, answer.by_depth(page.report)
    if len(depth) <= EACH:
        return
    title = Text("Memory by depth (the longest of each layer, in steps; # attention)", TITLE)
    yield from paragraph(screen, title, margin=0)
    share = -(-len(depth) // (screen.width - 8))
    bins = [depth[start : start + share] for start in range(0, len(depth), share)]
    finite = [layer.memory for _, layer in depth if layer and layer.memory is not None]
    top = math.ceil(math.log10(max([*finite, 10.0])))
    last = len(screen.bars) - 1

    def bar(memories: Sequence[float]) -> str:
        if not memories:
            return "#"
        if max(memories) == math.inf:
            return screen.bars[last]
        return screen.bars[max(1, math.ceil(last / top * math.log10(max(*memories, 1.0))))]

    line = Text(no_wrap=True).append(f"  {POWERS.get(top, f'1e{top}'):<5} ", LABEL)
    drawn = (bar([endless(layer.memory) for _, layer in same if layer]) for same in bins)
    yield line.append("".join(drawn), SPECTRUM)
    ticks, apart = "", max(8, len(bins) // 4)
    for place in range(0, max(len(bins) - apart // 2, 1), apart):
        ticks = ticks.ljust(place) + str(bins[place][0][0])
    ticks = ticks.ljust(len(bins) - 1) + str(depth[-1][0])
    yield Text(f"  {1:<5} {ticks}", LABEL, no_wrap=True, overflow="ellipsis")


POWERS = {1: "10", 2: "100", 3: "1k", 4: "10k", 5: "100k", 6: "1M"}


def _closing(page: Page, told: Sequence[Told], notes: int) -> Iterator[Text]:
    """What was assumed, what could not be read, and where there is more."""
    screen, skipped = page.screen, page.report.skipped
    assumed = screen.sentence(answer.assumed_words(page.report.input), LABEL)
    yield from even(screen, assumed, gutter=[("Assumed", LABEL)])
    for other in skipped[:1]:
        more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
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
    Column(
        "memory", lambda one: answer.steps(one[1].memory) if one[1].layers else ABSENT, leaves=1
    ),
    Column("usable rate", lambda one: answer.rate_words(one[1].usable_rate.rate)),
    Column("yours", lambda one: _yours(one[1])),
    Column("why", lambda one: answer.why(one[1]), align="left", shrinks=True, leaves=2),
)


def _several(reports: Sequence[Report], screen: Screen) -> Iterator[Text]:
    """A line for each checkpoint, then what to do about those that need attention."""
    names = answer.short_names([report.checkpoint.path for report in reports])
    rows = [cells(SEVERAL_COLUMNS, (names[one.checkpoint.path], one)) for one in reports]
    pages = [Page(screen, one) for one in reports if one.verdict in ("watch", "cursed")]
    closing = Text("Each by itself: memcurse inspect FILE, or --full for all", LABEL)
    return parted(
        draw(screen, SEVERAL_COLUMNS, rows).lines,
        *(part for page in pages for part in (headline(page), actions(page))),
        paragraph(screen, closing, margin=0),
    )
