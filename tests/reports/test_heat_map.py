from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from memcurse_cli.reports.console import Screen
from memcurse_cli.reports.plots import COLOURS, SHADES, HeatMap, heat_map


def drawn(
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
    rows = cells(drawn(values, [20, 20]))
    marked = [(row, line.index("@")) for row, line in enumerate(rows) if "@" in line]
    assert len(marked) == 1
    row, column = marked[0]
    assert row / len(rows) == pytest.approx(10 / 40, abs=0.05)
    assert column / len(rows[0]) == pytest.approx(30 / 40, abs=0.05)


def test_the_scale_is_logarithmic() -> None:
    values = np.diag([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
    rows = cells(drawn(values, [6], decades=4))
    lines = len(rows) // 6
    shades = [SHADES.index(max(row, key=SHADES.index)) for row in rows[:: max(1, lines)]][:6]
    assert shades[0] == len(SHADES) - 1
    assert shades[-1] == 0
    assert shades == sorted(shades, reverse=True)


def test_a_colour_for_each_half_of_a_cell() -> None:
    values = np.zeros((2, 2))
    values[0, 0] = 1.0
    lines = drawn(values, [2], width=20, coloured=True)
    first = next(span.style for span in lines[0].spans if not isinstance(span.style, str))
    assert tuple(first.color.get_truecolor()) == COLOURS[-1]
    assert all("▀" in line.plain for line in lines[:-1])


def test_a_group_of_one_has_a_line_beside_one_of_hundreds() -> None:
    values = np.eye(401)
    lines = drawn(values, [400, 1])
    assert [line.plain.split()[0] for line in lines if "group" in line.plain] == [
        "group_0",
        "group_1",
    ]
    assert "@" in cells(lines)[-1]


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn(np.zeros((3, 3)), [3]) == []


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    width=st.integers(40, 140),
    ascii_only=st.booleans(),
    coloured=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_fits_and_every_group_is_there(
    sizes: list[int], width: int, ascii_only: bool, coloured: bool, seed: int
) -> None:
    values = np.random.default_rng(seed).lognormal(sigma=3, size=(sum(sizes), sum(sizes)))
    lines = drawn(
        values,
        sizes,
        width=width,
        ascii_only=ascii_only,
        coloured=coloured and not ascii_only,
    )
    assert max(line.cell_len for line in lines) <= width
    labelled = sum(not line.plain.startswith(" " * 6) for line in lines[:-1])
    assert labelled >= len(sizes)
    if ascii_only:
        assert all(line.plain.isascii() for line in lines)
