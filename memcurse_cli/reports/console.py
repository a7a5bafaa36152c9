"""What the place that a report is written to can show: width, colour, characters.

Everything that a report prints passes `Screen.clean` first, since names come from checkpoints, and
`inert` last, since a log of it may be read for commands. What standard error says passes `say`.
"""

from __future__ import annotations

import io
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from msgspec import Struct

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

LABEL = "dim"
TITLE = "bold"
NAME = "bold"
CODE = "cyan"
SPECTRUM = "cyan"
ALARM = "bold red"
VERDICT_STYLES = {"ok": "green", "not_judged": LABEL, "watch": "yellow", "cursed": ALARM}
SEVERITY_STYLES = {"info": "blue", "warning": "yellow", "error": ALARM}

FILE_WIDTH = 80
LEAST_WIDTH = 20
MOST_CHARACTERS = 2000
LONGEST_WORD = 64
DUMB_TERMINALS = ("dumb", "unknown")

BARS, ASCII_BARS = "·▁▂▃▄▅▆▇█", ".123456789"

SIGNS = "+- || * >= <= ~ -> .. - - - - ^2 ^3 ^- ^T 1/2 ' ' \" \""
LETTERS = (
    "alpha beta gamma delta Delta theta kappa lambda Lambda mu nu rho sigma Sum tau chi omega "
    "pi d infinity x "
)
SPELLED_OUT = {
    **dict(zip("αβγδΔθκλΛμνρσΣτχωπ∂∞×", LETTERS.split(), strict=True)),
    **dict(zip("±‖·≥≤≈→…–—−─²³⁻ᵀ½‘’“”", SIGNS.split(), strict=True)),
    "√": "sqrt ",
}
"""How the characters of our own sentences are written where only ASCII can be."""


class Screen(Struct, frozen=True):
    """The width in cells, whether only ASCII can be written, and whether there is colour."""

    width: int
    ascii_only: bool = False
    coloured: bool = False

    @property
    def bars(self) -> str:
        """The characters that bars are drawn with, from none to the highest."""
        return ASCII_BARS if self.ascii_only else BARS

    def clean(self, text: str) -> str:
        """Text that is safe to print: control characters made visible, and ASCII where needed."""
        if len(text) > MOST_CHARACTERS:
            half = MOST_CHARACTERS // 2
            text = f"{text[:half]}…{text[-half:]}"
        safe = visible(text)
        return to_ascii(safe) if self.ascii_only else safe

    def sentence(self, text: str, style: str = "") -> Text:
        """A sentence of the diagnosis: cleaned, names of any length cut, `code` set off."""
        from rich.text import Text

        words = [self.shorten(word, LONGEST_WORD) for word in self.clean(text).split(" ")]
        sentence = Text(" ".join(words), style)
        sentence.highlight_regex(r"`[^`]+`", CODE)
        return sentence

    def shorten(self, text: str, width: int) -> str:
        """Clean text with its middle cut out where it is wider than ``width`` cells."""
        from rich.cells import cell_len, set_cell_size

        if cell_len(text) <= width:
            return text
        ellipsis = self.clean("…")
        room = width - len(ellipsis)
        if room < 2:
            return set_cell_size(text, width).rstrip()
        head = set_cell_size(text, room - room // 2).rstrip()
        tail = set_cell_size(text[::-1], room // 2).rstrip()[::-1]
        return f"{head}{ellipsis}{tail}"


Lines = Callable[[Screen], "Iterable[RenderableType]"]


def capitalised(text: str) -> str:
    """A sentence with a large first letter, unless it starts with a symbol or a name: λ, l0."""
    word = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if word.isascii() and word.isalpha() else text


def visible(text: str) -> str:
    r"""Text in which whatever does not print stands as its escape, e.g. ``\x1b``.

    Control characters, line ends, bidirectional and zero-width controls, lone surrogates and
    unassigned code points could rewrite the screen or hide a name. A letter keeps two marks.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for character in unicodedata.normalize("NFC", text):
        combining = unicodedata.category(character) in ("Mn", "Me")
        marks = marks + 1 if combining else 0
        printable = character.isprintable() and not (combining and (marks > 2 or not shown))
        shown.append(character if printable else _escape(character))
    return "".join(shown)


COMMAND = re.compile(r"(^(?:[^\S\n]|\x1b\[[\d;]*m)*):(?=:)|(#)#(?=\w*\[)", re.MULTILINE)
"""Where a line of a log turns into a command of GitHub's, Azure's or TeamCity's: ``::error`` at its
start, blanks and colours aside, and ``##[``, ``##vso[`` and ``##teamcity[`` anywhere."""


def inert(text: str, stream: IO[str] | None) -> str:
    r"""Text that is no command to the CI that logs the stream: ``::`` is ``\:`` and ``##`` ``#\``.

    A terminal gets it unchanged; a file, None, is taken for a log.
    """
    if _is_terminal(stream):
        return text
    return COMMAND.sub(lambda mark: f"{mark[1] or mark[2] or ''}\\", text)


def say(text: str) -> None:
    """Print lines on standard error, cleaned and inert."""
    print("\n".join(line_for(line, sys.stderr) for line in text.split("\n")), file=sys.stderr)


def line_for(text: str, stream: TextIO) -> str:
    """One line as a stream can show it."""
    return inert(Screen(FILE_WIDTH, ascii_only=not writes_unicode(stream)).clean(text), stream)


def writes_unicode(stream: TextIO | None) -> bool:
    """Whether more than ASCII can be written to a stream, as it can to a file, None."""
    return stream is None or (stream.encoding or "").lower().startswith("utf")


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and hasattr(stream, "isatty") and stream.isatty()


def to_ascii(text: str) -> str:
    """Text in ASCII: Greek spelled out, accents dropped, anything else as its escape."""
    return text if text.isascii() else "".join(map(_ascii_character, text))


def _ascii_character(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character)
    plain = "".join(part for part in decomposed if part.isascii())
    return SPELLED_OUT.get(character) or plain or _escape(character)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def console_for(stream: TextIO | None, *, width: int | None = None) -> Console:
    """A console that writes to a stream what the stream can show, or UTF-8 to a file, None.

    Colour and other control codes only reach a terminal (or whoever sets FORCE_COLOR), and none
    at all under NO_COLOR or TERM=dumb. The width is the terminal's or COLUMNS, else 80. Neither the
    terminal nor the environment changes what a file gets: no colour, and 80 cells.
    """
    from rich.console import Console

    coloured = False
    if stream is None:
        stream, width = io.StringIO(), width or FILE_WIDTH
    elif os.environ.get("FORCE_COLOR") or _is_terminal(stream):
        dumb = os.environ.get("TERM", "") in DUMB_TERMINALS
        coloured = not (os.environ.get("NO_COLOR") or dumb)
    return Console(
        file=stream,
        width=width,
        force_terminal=coloured,
        color_system="auto" if coloured else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def text_for(lines: Lines, stream: TextIO | None, *, width: int | None = None) -> str:
    """What such a console would print, as text; nothing is written yet."""
    console = console_for(stream, width=width)
    with console.capture() as capture:
        console.print(drawn_on(console, lines))
    return inert(capture.get(), stream)


def drawn_on(console: Console, lines: Lines) -> RenderableType:
    """Lines at the width of a console, in its characters."""
    from rich.console import Group

    width, coloured = max(console.width, LEAST_WIDTH), console.color_system is not None
    return Group(*lines(Screen(width, console.options.ascii_only, coloured)))


def text_of(lines: Lines, file: Path | None, *, width: int | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_for(lines, sys.stdout if file is None else None, width=width)
