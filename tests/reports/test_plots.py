"""Pictures in characters: curves, heat maps and spectra."""

from __future__ import annotations

import numpy as np
import pytest
from rich.text import Text

from memcurse_cli.reports.console import ASCII, UNICODE, Screen
from memcurse_cli.reports.plots import COLOURS, HEIGHT, Axis, Curve, HeatMap, heat_map, plot
from memcurse_cli.reports.terminal.layers import AXES, BINS, Resolution, spectrum

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


def test_a_single_height_and_a_single_place_can_be_drawn() -> None:
    assert drawn([Curve("point", [(1.0, 2.0)])])
    assert drawn([Curve("flat", [(0.0, 3.0), (1.0, 3.0)])])


def test_an_empty_curve_is_left_out() -> None:
    lines = drawn([Curve("nothing", []), Curve("one", [(0.0, 0.0), (2.0, 4.0)])])
    assert not any("nothing" in line for line in lines)
    assert drawn([Curve("nothing", [])]) == []


def drawn_of_heat_map(
    values: np.ndarray,
    sizes: list[int],
    *,
    width: int = 60,
    coloured: bool = False,
    ascii_only: bool = False,
    decades: int = 4,
) -> list[Text]:
    names = [f"group_{index}" for index in range(len(sizes))]
    boundaries = np.cumsum([0, *sizes]).tolist()
    found = HeatMap(values, names, boundaries, decades, "|H_ab|")
    return list(heat_map(Screen(width, ascii_only), found, coloured=coloured))


def cells(lines: list[Text], bar: str = "│") -> list[str]:
    """What stands between the bars of each line but the last, which is the scale."""
    return ["".join(line.plain.split(bar)[1:]) for line in lines[:-1]]


def test_the_largest_value_has_the_strongest_shade_where_it_is() -> None:
    values = np.full((40, 40), 1e-9)
    values[10, 30] = 5.0
    rows = cells(drawn_of_heat_map(values, [20, 20]))
    marked = [(row, line.index("@")) for row, line in enumerate(rows) if "@" in line]
    assert len(marked) == 1
    row, column = marked[0]
    assert row / len(rows) == pytest.approx(10 / 40, abs=0.05)
    assert column / len(rows[0]) == pytest.approx(30 / 40, abs=0.05)


def test_a_colour_for_each_half_of_a_cell() -> None:
    values = np.zeros((2, 2))
    values[0, 0] = 1.0
    lines = drawn_of_heat_map(values, [2], width=20, coloured=True)
    first = next(span.style for span in lines[0].spans if not isinstance(span.style, str))
    assert tuple(first.color.get_truecolor()) == COLOURS[-1]
    assert all("▀" in line.plain for line in lines[:-1])


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn_of_heat_map(np.zeros((3, 3)), [3]) == []


def histogram(**counts: int) -> list[int]:
    made = [0] * BINS
    for name, count in counts.items():
        made[int(name.removeprefix("bin"))] = count
    return made


def test_heights_are_shares_of_the_fullest_bin() -> None:
    bars = spectrum(histogram(bin0=8, bin1=4, bin13=1), 2, UNICODE, "half-decade")
    assert bars == "█▄···········▁▂"


def test_decades_add_two_bins_and_keep_the_ends() -> None:
    bars = spectrum(histogram(bin0=9, bin1=4, bin2=5, bin3=1, bin12=3, bin13=9), 0, ASCII, "decade")
    assert bars == "991...39."


def test_an_empty_spectrum_is_a_baseline_and_none_is_nothing() -> None:
    assert spectrum(histogram(), 0, UNICODE, "decade") == "·" * 9
    assert spectrum([], 3, UNICODE, "decade") == ""


@pytest.mark.parametrize(
    ("resolution", "label", "bin_of_label"),
    [
        ("decade", "1 ", "1"),
        ("decade", "1k", "7"),
        ("decade", "1M", "13"),
        ("half-decade", "1 ", "1"),
        ("half-decade", "100", "5"),
        ("half-decade", "10k", "9"),
        ("half-decade", "1M", "13"),
    ],
)
def test_each_label_stands_over_the_bar_that_begins_there(
    resolution: Resolution, label: str, bin_of_label: str
) -> None:
    bars = spectrum(histogram(**{f"bin{bin_of_label}": 1}), 0, UNICODE, resolution)
    assert bars.index("█") == AXES[resolution].index(label)
