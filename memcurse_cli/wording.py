"""Numbers as a sentence says them."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Three significant digits, without a needless exponent."""
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.2e}'):.0f}"


def percent(fraction: float) -> str:
    """A fraction in per cent."""
    return f"{number(100 * fraction)} %"


def rounded_down(value: float) -> str:
    """One significant digit, rounded down: a bound that stays a bound."""
    exponent = math.floor(math.log10(value))
    digit = math.floor(value / 10.0**exponent * (1 + 1e-12))
    return number(digit * 10.0**exponent)


def count(items: int, noun: str) -> str:
    """`1 eigenvalue`, `2 eigenvalues`."""
    return f"{items} {noun}" if items == 1 else f"{items} {noun}s"


def share_having(items: int, total: int, noun: str) -> str:
    """`1 of 1 eigenvalue has`, `2 of 64 eigenvalues have`."""
    return f"{items} of {count(total, noun)} {'has' if items == 1 else 'have'}"


def about(value: float) -> str:
    """A figure known within a factor: two significant digits, `4.9e-5`, `0.018`, `20`."""
    rounded = float(f"{value:.1e}")
    return number(rounded)


def duration(steps: float) -> str:
    """`1 step`, `38.4 steps`."""
    said = number(steps)
    return f"{said} step" if said == "1" else f"{said} steps"
