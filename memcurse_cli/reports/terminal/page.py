"""The short page of `memcurse inspect`: the answer, what to do, why, and what was assumed.

One screen for any model: 25 lines for one layer. Every section of every layer is in the full page
of `reports.terminal.report`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath

from rich.cells import cell_len
from rich.text import Text

from memcurse_cli.reports.answer import (
    Depth,
    assumed_words,
    by_depth,
    hessian_words,
    memory_words,
    rate_words,
    reasons,
    sensitivity_words,
    steps,
    storing_words,
    subject,
    verdict_words,
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
from memcurse_cli.reports.numbers import count, percent
from memcurse_cli.reports.terminal.layers import added, spectrum
from memcurse_cli.reports.terminal.tables import short_names
from memcurse_cli.schema.figures import ORDER
from memcurse_cli.schema.report import LayerReport, Report

ACTIONS_SHOWN, REASONS_SHOWN, ROWS_SHOWN = 3, 5, 8
EACH = 6
"""Layers up to which each has a row of its own."""
STACK = 4
"""Layers from which a stack is drawn by depth."""

Group = tuple[str, Sequence[LayerReport]]
"""Layers that share a row, and what it is called."""


def to_text(report: Report, *, file: Path | None = None, width: int | None = None) -> str:
    """The page as text for standard output, or for a file: without colour, 80 cells wide."""
    return text_of(render(report), file, width=width)


def render(report: Report) -> Lines:
    """The page, for a screen of any width and encoding."""
    return partial(_lines, report)


def _lines(report: Report, screen: Screen) -> Iterator[Text]:
    yield _headline(screen, report)
    yield Text()
    yield from _indented(screen, screen.sentence(report.sentence, TITLE), 2)
    yield from _actions(screen, report)
    yield from _reasons(screen, report)
    yield from _stack(screen, report)
    yield Text()
    yield from _figures(screen, report)
    yield Text()
    yield from paragraph(
        screen, screen.sentence(assumed_words(report.input), LABEL), gutter=[("Assumed", LABEL)]
    )
    yield from _closing(screen, report)


def _headline(screen: Screen, report: Report) -> Text:
    """The verdict, the checkpoint and what it holds, on one line."""
    line = Text(f"{verdict_words(report.verdict)}  ", VERDICT_STYLES[report.verdict], no_wrap=True)
    about = screen.clean(subject(report))
    room = screen.width - cell_len(line.plain) - cell_len(about) - 2
    name = screen.clean(report.checkpoint.path)
    if cell_len(name) > room:
        name = screen.shorten(screen.clean(PurePath(name).name), max(room, 12))
    line.append(name, TITLE)
    gap = max(screen.width - cell_len(line.plain) - cell_len(about), 2)
    return line.append(" " * gap + about, LABEL)


def _indented(screen: Screen, text: Text, margin: int, hang: str = "") -> Iterator[Text]:
    """A text wrapped beside a margin, whose first line may have a number in it."""
    narrow = Screen(screen.width - margin + 9, screen.ascii_only, screen.coloured)
    for index, line in enumerate(paragraph(narrow, text)):
        line = line[9:] if len(line) > 9 else line
        first = hang.ljust(margin) if index == 0 else " " * margin
        yield Text(first, NAME if index == 0 else "", no_wrap=True).append_text(line)


def _actions(screen: Screen, report: Report) -> Iterator[Text]:
    if not report.actions:
        return
    yield Text()
    yield Text("What to do", TITLE)
    for place, action in enumerate(report.actions[:ACTIONS_SHOWN], 1):
        text = screen.sentence(action.text)
        command = screen.clean(action.command)
        fits = cell_len(text.plain) + cell_len(command) + 8 <= screen.width
        if command and fits:
            text.append(" " * (screen.width - 5 - cell_len(text.plain) - cell_len(command)))
            text.append(command, LABEL)
        yield from _indented(screen, text, 5, f"  {place}")
        if command and not fits:
            yield from _command(screen, command)


def _command(screen: Screen, command: str) -> Iterator[Text]:
    """A command to copy, over several lines where it is too wide: a shell takes it so too."""
    lines = [" " * 5]
    for word in command.split(" "):
        if lines[-1].strip() and cell_len(lines[-1]) + cell_len(word) + 3 > screen.width:
            lines.append(" " * 7)
        lines[-1] += f"{word} "
    for index, line in enumerate(lines):
        last = index == len(lines) - 1
        yield Text(line.rstrip() if last else f"{line}\\", LABEL, no_wrap=True, overflow="ignore")


def _reasons(screen: Screen, report: Report) -> Iterator[Text]:
    told, _ = reasons(report)
    if not told:
        return
    names = short_names([layer.name for layer in report.layers])
    yield Text()
    yield Text("Also" if report.verdict == "ok" else "Why", TITLE)
    for one in told[:REASONS_SHOWN]:
        text = screen.sentence(one.finding.message)
        if one.layer is not None and len(report.layers) > 1:
            where = screen.clean(names[one.layer.name])
            where += f" and {one.layers - 1} more" if one.layers > 1 else ""
            text.append(f"  {where}", LABEL)
        style = SEVERITY_STYLES[one.finding.severity]
        for index, line in enumerate(_indented(screen, text, 9, f"  {one.finding.code}")):
            if index == 0:
                line.stylize(style, 2, 7)
            yield line
    if len(told) > REASONS_SHOWN:
        hidden = count(len(told) - REASONS_SHOWN, "more reason")
        yield Text(f"  {hidden}: --full", LABEL)


def _figures(screen: Screen, report: Report) -> Iterator[Text]:
    """Spectrum, sensitivity, Hessian and precision, a line each."""
    spectra = [layer.eigenvalues for layer in report.layers]
    bars = spectrum(
        added([one.time_constant_histogram for one in spectra]),
        sum(one.unstable for one in spectra),
        screen.glyphs,
        "half-decade",
    )
    text = Text("memory in steps  1 ")
    text.append(bars[:-1], SPECTRUM).append(" 1M  ").append(bars[-1:], SPECTRUM)
    text.append(" never  ").append(memory_words(report))
    said = {
        "Spectrum": text if bars else screen.sentence(memory_words(report)),
        "Sensitivity": screen.sentence(sensitivity_words(report)),
        "Hessian": screen.sentence(hessian_words(report)),
        "Storing": screen.sentence(storing_words(report)),
    }
    for label, words in said.items():
        if words.plain:
            yield from _indented(screen, words, 13, label)


def _stack(screen: Screen, report: Report) -> Iterator[Text]:
    """The memory by depth, and a row for each layer or for those that read alike."""
    if len(report.layers) < 2:
        return
    depth = by_depth(report)
    if len(depth) >= STACK:
        yield Text()
        yield Text("Memory by depth (the longest of each layer; # is attention)", TITLE)
        yield from _depth_lines(screen, depth)
    yield Text()
    groups = _groups(report)
    columns = _columns(len(groups) == len(report.layers))
    drawn = draw(screen, columns, [cells(columns, one) for one in groups[:ROWS_SHOWN]])
    yield from drawn.lines
    if len(groups) > ROWS_SHOWN:
        yield Text(f"  {count(len(groups) - ROWS_SHOWN, 'more row')}: --full", LABEL)


def _groups(report: Report) -> list[Group]:
    """Every layer of a few; of many those of one family and verdict together, the worst first."""
    names = short_names([layer.name for layer in report.layers])
    if len(report.layers) <= EACH:
        return [(names[layer.name], [layer]) for layer in report.layers]
    alike: dict[tuple[str, str], list[LayerReport]] = {}
    for layer in report.layers:
        alike.setdefault((layer.verdict, layer.family), []).append(layer)
    ordered = sorted(alike.items(), key=lambda item: -ORDER.index(item[1][0].verdict))
    return [(f"{len(same):,} {family}", same) for (_, family), same in ordered]


def _columns(single: bool) -> list[Column]:
    def memory(one: Group) -> str:
        known = sorted({steps(layer.memory) for layer in one[1]}, key=_order)
        return known[0] if len(known) == 1 else f"{known[0]} - {known[-1]}"

    def rate(one: Group) -> str:
        rates = [layer.usable_rate.rate for layer in one[1] if layer.usable_rate]
        return rate_words(min((rate for rate in rates if rate is not None), default=None))

    def effect(one: Group) -> str:
        found = worst_group(one[1])
        if found is None or found[1].step_effect is None:
            return "-"
        return f"{found[1].name} {percent(found[1].step_effect, 2)}"

    def verdict(one: Group) -> Cell:
        name = one[1][0].verdict
        return Cell("open" if name == "not_judged" else name, VERDICT_STYLES[name])

    return [
        Column("", verdict, align="left"),
        Column(
            "layer" if single else "layers",
            lambda one: Cell(one[0], NAME),
            align="left",
            shrinks=True,
        ),
        Column("memory", memory),
        Column("usable rate", rate, leaves=1),
        Column("step effect", effect, align="left", leaves=2),
    ]


def _order(words: str) -> float:
    try:
        return float(words)
    except ValueError:
        return math.inf


def _depth_lines(screen: Screen, depth: Sequence[Depth]) -> Iterator[Text]:
    """One bar per layer on a logarithmic scale, several to a bar where there is no room."""
    room = screen.width - 12
    share = -(-len(depth) // room)
    bins = [depth[start : start + share] for start in range(0, len(depth), share)]
    memories = [[one.layer.memory for one in group if one.layer is not None] for group in bins]
    finite = [one for group in memories for one in group if one is not None]
    top = max(10.0, 10.0 ** math.ceil(math.log10(max([*finite, 1.0]))))
    bars = screen.glyphs.bars
    height = (len(bars) - 1) / math.log10(top)
    drawn = "".join(
        "#"
        if not group
        else bars[-1]
        if None in group
        else bars[max(1, math.ceil(height * math.log10(max(longest, 1.0))))]
        for group in memories
        for longest in [max((one for one in group if one is not None), default=1.0)]
    )
    first, last = str(depth[0].index), str(depth[-1].index)
    yield Text(
        f"  {'layer':>8} {first}{last.rjust(max(len(drawn) - len(first), len(last) + 1))}", LABEL
    )
    line = Text(f"  {f'1 to {_power(top)}':>8} ", LABEL)
    yield line.append(drawn, SPECTRUM)


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    return {3: "1k", 4: "10k", 5: "100k", 6: "1M"}.get(
        exponent, f"{value:.0f}" if exponent < 3 else f"1e{exponent}"
    )


def _closing(screen: Screen, report: Report) -> Iterator[Text]:
    """What is not on the page, and the commands that show it."""
    told, notes = reasons(report)
    for other in report.skipped[:1]:
        more = f" and {len(report.skipped) - 1} more" if len(report.skipped) > 1 else ""
        words = screen.sentence(f"{other.name}{more}: {other.reason}")
        yield from paragraph(screen, words, gutter=[("Not read", SEVERITY_STYLES["warning"])])
    hidden = f"{count(notes, 'note')} hidden   " if notes else ""
    code = told[0].finding.code if told else ""
    explain = f"   A code: memcurse rule {code}" if code else ""
    yield Text(f"{hidden}All: --full{explain}   Browser: --html FILE", LABEL)
