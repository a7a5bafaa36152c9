from __future__ import annotations

import pytest

from memcurse_cli.reports.console import Screen
from memcurse_cli.reports.plots import HEIGHT, Axis, Curve, plot

AXIS = Axis("across", [(0.0, "1"), (1.0, "10"), (2.0, "100")])


def drawn(curves: list[Curve], *, width: int = 60, ascii_only: bool = True) -> list[str]:
    return [line.plain for line in plot(Screen(width, ascii_only), AXIS, curves)]


def test_a_line_goes_from_corner_to_corner() -> None:
    lines = drawn([Curve("one", [(0.0, 0.0), (2.0, 4.0)])])
    assert lines[0].startswith("    1e4|")
    assert lines[0].endswith("a a")
    assert lines[HEIGHT - 1].startswith("      1|a")
    columns = [line.rindex("a") for line in lines[1:HEIGHT]]
    assert columns == sorted(columns, reverse=True)


def test_a_falling_line_falls() -> None:
    lines = drawn([Curve("one", [(0.0, 4.0), (2.0, 0.0)])])
    assert lines[0][8] == "a"
    assert lines[HEIGHT - 1].endswith("a a")


def test_curves_that_end_together_are_both_named() -> None:
    points = [(0.0, 0.0), (2.0, 3.0)]
    lines = drawn([Curve("one", points), Curve("two", points)])
    assert lines[0].endswith(" ab")
    assert [line.split() for line in lines[-2:]] == [["a", "one"], ["b", "two"]]


def test_braille_where_it_can_be_shown() -> None:
    lines = drawn([Curve("one", [(0.0, 0.0), (2.0, 4.0)])], ascii_only=False)
    dots = {character for line in lines for character in line if "⠀" < character <= "⣿"}
    assert dots
    assert not any("⠀" in line for line in lines)  # an empty cell is a space


def test_rounding_does_not_make_a_flat_line_jump() -> None:
    points = [(x / 10, 1e-16 * (-1) ** x) for x in range(20)]
    lines = drawn([Curve("flat", points), Curve("other", [(0.0, -1.0), (1.9, 1.0)])])
    assert sum(line.startswith(" ") and "aaa" in line for line in lines[:HEIGHT]) == 1


def test_the_ticks_stand_below_their_places() -> None:
    lines = drawn([Curve("one", [(0.0, 0.0), (2.0, 4.0)])])
    axis, labels, caption = lines[HEIGHT : HEIGHT + 3]
    assert axis.count("+") == 4  # the corner and three ticks
    assert labels.split() == ["1", "10", "100"]
    assert caption.strip() == "across"


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    curves = [Curve(name, [(0.0, 0.0), (2.0, 30.0 * k)]) for k, name in enumerate("xyz")]
    for ascii_only in (False, True):
        assert max(map(len, drawn(curves, width=width, ascii_only=ascii_only))) <= width


def test_a_single_height_and_a_single_place_can_be_drawn() -> None:
    assert drawn([Curve("point", [(1.0, 2.0)])])
    assert drawn([Curve("flat", [(0.0, 3.0), (1.0, 3.0)])])


def test_an_empty_curve_is_left_out() -> None:
    lines = drawn([Curve("nothing", []), Curve("one", [(0.0, 0.0), (2.0, 4.0)])])
    assert not any("nothing" in line for line in lines)
    assert drawn([Curve("nothing", [])]) == []
