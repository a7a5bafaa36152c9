"""What the place that a report goes to can show, and that nothing else gets there."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import build
from reports.streams import Stream
from rich.cells import cell_len

from memcurse_cli.reports.console import Screen, inert, text_for, to_ascii, visible
from memcurse_cli.reports.terminal.report import render


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def printed(stream: Stream) -> str:
    return text_for(render(build.four_families()), stream, width=80)


def test_a_dumb_terminal_gets_no_control_codes(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TERM", "dumb")
    assert "\x1b" not in printed(Stream(terminal=True))


def test_no_color_wins_over_force_color(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in printed(Stream(terminal=False))
    environment.setenv("NO_COLOR", "1")
    for terminal in (False, True):
        assert "\x1b" not in printed(Stream(terminal=terminal))


def test_colour_never_says_what_words_do_not(environment: pytest.MonkeyPatch) -> None:
    coloured = printed(Stream(terminal=True))
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == printed(Stream(terminal=False))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_every_encoding_can_write_the_report(
    environment: pytest.MonkeyPatch, encoding: str
) -> None:
    for report in (build.four_families(), build.divergent(), build.hostile()):
        text = text_for(render(report), Stream(terminal=False, encoding=encoding), width=80)
        text.encode(encoding)
        assert text.isascii() == (encoding != "utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u202eb\u2066", r"a\u202eb\u2066"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\ud800", r"\ud800"),
        ("e\u0301", "é"),
        ("x" + "\u0316" * 4, "x\u0316\u0316" + r"\u0316\u0316"),
        ("\u0301", r"\u0301"),
        ("[bold]λ漢", "[bold]λ漢"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    shown = visible(text)
    assert not {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert to_ascii(shown).isascii()
    assert to_ascii(shown).isprintable()


@given(st.text(), st.integers(1, 40), st.booleans())
def test_shortened_text_fits(text: str, width: int, ascii_only: bool) -> None:
    screen = Screen(80, ascii_only)
    clean = screen.clean(text)
    short = screen.shorten(clean, width)
    assert cell_len(short) <= width
    assert short == clean or cell_len(clean) > width


def test_a_name_of_a_million_characters_costs_a_line() -> None:
    assert len(Screen(80).clean("x" * 10**6)) <= 2001


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", r"\:error::x"),
        ("a\n \u3000::warning file=b::x", "a\n \u3000" + r"\:warning file=b::x"),
        ("x ##[error]y ##vso[task.debug]", r"x #\[error]y #\vso[task.debug]"),
        ("###teamcity[x]", r"##\teamcity[x]"),
        ("rnn::cell ## [x] ##\n:x", "rnn::cell ## [x] ##\n:x"),
    ],
)
def test_a_log_holds_no_command_and_a_terminal_is_told_as_it_is(text: str, shown: str) -> None:
    assert inert(text, Stream(terminal=False)) == inert(text, None) == shown
    assert inert(shown, None) == shown
    assert inert(text, Stream(terminal=True)) == text
