"""The bars that stand for a spectrum."""

from __future__ import annotations

import pytest

from memcurse_cli.reports.console import ASCII, UNICODE
from memcurse_cli.reports.terminal.layers import AXES, BINS, Resolution, added, spectrum


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


def test_one_eigenvalue_among_many_is_seen() -> None:
    assert spectrum(histogram(bin0=10**6, bin5=1), 0, UNICODE, "half-decade")[5] == "▁"


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


def test_histograms_add_up() -> None:
    assert added([histogram(bin0=1), histogram(bin0=2, bin3=1)])[:4] == (3, 0, 0, 1)
    assert added([histogram(bin0=1), []]) == ()
