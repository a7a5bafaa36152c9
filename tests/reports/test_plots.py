"""Pictures in characters: curves, heat maps and spectra."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from reports import build

from memcurse_cli.reports.console import BARS, Screen
from memcurse_cli.reports.plots import HEIGHT, Axis, Curve, heat_map, plot
from memcurse_cli.reports.terminal.layers import AXIS, BINS, spectrum
from memcurse_cli.schema.figures import HessianPicture


def drawn(*curves: Curve) -> list[str]:
    axis = Axis("across", [(0.0, "1"), (1.0, "10"), (2.0, "100")])
    return [line.plain for line in plot(Screen(60, ascii_only=True), axis, curves)]


def test_a_line_goes_from_corner_to_corner_and_an_empty_one_nowhere() -> None:
    lines = drawn(Curve("one", [(0.0, 0.0), (2.0, 4.0)]), Curve("nothing", []))
    assert not any("nothing" in line for line in lines)
    assert lines[0].startswith("    1e4|")
    assert lines[0].endswith("a a")
    assert lines[HEIGHT - 1].startswith("      1|a")
    columns = [line.rindex("a") for line in lines[1:HEIGHT]]
    assert columns == sorted(columns, reverse=True)
    assert drawn(Curve("nothing", [])) == []


@pytest.mark.parametrize("points", [[(1.0, 2.0)], [(0.0, 3.0), (1.0, 3.0)]])
def test_a_single_height_or_place_can_be_drawn(points: list[tuple[float, float]]) -> None:
    assert drawn(Curve("flat", points))


def test_the_largest_value_has_the_strongest_shade_where_it_is() -> None:
    values = np.full((40, 40), 1e-9)
    values[10, 30] = 5.0
    groups, none = ("group_0", "group_1"), np.empty((0, 40))
    found = HessianPicture("", 40, values, values, groups, (0, 20, 40), none[:, 0], none)
    lines = list(heat_map(Screen(60), found, correlation=False))
    rows = ["".join(line.plain.split("│")[1:]) for line in lines[:-1]]  # the last is the scale
    ((row, column),) = [(row, line.index("@")) for row, line in enumerate(rows) if "@" in line]
    assert row / len(rows) == pytest.approx(10 / 40, abs=0.05)
    assert column / len(rows[0]) == pytest.approx(30 / 40, abs=0.05)


def test_each_label_stands_over_the_bar_that_begins_there() -> None:
    empty = build.layer("rnn", "lru", [9.0], []).eigenvalues
    for label, full in {"1 ": 1, "100": 5, "10k": 9, "1M": 13}.items():
        counts = tuple(8 * (one == full) for one in range(BINS))
        bars = spectrum([replace(empty, time_constant_histogram=counts)], BARS)
        assert bars.index("█") == AXIS.index(label)
