"""Numbers as a table says them: three significant digits, short exponents, units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Literal

from memcurse_cli.schema.figures import Quantiles

DIVERGENT = "divergent"
ABSENT = "-"

Level = Literal["min", "p50", "p90", "p99", "max"]


def number(value: float | None, digits: int = 3, *, shift: int = 0, absent: str = ABSENT) -> str:
    """A measured number: `1.23`, `1000`, `1.2e5`; what it says where there is none.

    It has ``digits`` significant digits from 0.001 up to 99999; beyond, an exponent and no trailing
    zeros. It is first multiplied by 10^shift, in decimal, so that no float overflows on the way.
    """
    if value is None:
        return absent
    mantissa, _, exponent_text = f"{value:.{digits - 1}e}".partition("e")
    exponent, rounded = int(exponent_text) + shift, Decimal(mantissa)
    if rounded == 0:
        return "0"
    if -3 <= exponent <= 4:
        return f"{rounded.scaleb(exponent):.{max(digits - 1 - exponent, 0)}f}"
    return f"{rounded.normalize():f}e{exponent}"


def span(values: Sequence[float], digits: int = 3) -> str:
    """One measured number, or the range of several: `1.2`, `0.3 - 40`."""
    low, high = number(min(values), digits), number(max(values), digits)
    return low if low == high else f"{low} - {high}"


def percent(fraction: float | None, digits: int = 3, *, absent: str = ABSENT) -> str:
    """A fraction in per cent: `220 %`; what it says where there is none."""
    return absent if fraction is None else f"{number(fraction, digits, shift=2)} %"


def setting(value: float) -> str:
    """A number that a user gave: as many digits as it has, `0.001`, `1e-5`."""
    mantissa, separator, exponent = f"{value:.12g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if separator else mantissa


def quantile(level: Level) -> Callable[[Quantiles], str]:
    """What writes one quantile; `divergent` where it is infinite."""
    return lambda quantiles: number(
        getattr(quantiles, level), absent=DIVERGENT if quantiles.divergent else ABSENT
    )


def effect(fraction: float | None, *, divergent: int) -> str:
    """A step's relative change of the state; without a value it diverges or does not exist."""
    return percent(fraction, absent=DIVERGENT if divergent else ABSENT)


def count(items: int, noun: str) -> str:
    """`1 layer`, `2 layers`, `1,024 tensors`."""
    return f"{items:,} {noun}" if items == 1 else f"{items:,} {noun}s"


def listed(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many there are beside them: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" * (len(names) > most))


def size(size_in_bytes: int) -> str:
    """A file's size in decimal units: `512 bytes`, `1.23 MB`."""
    if size_in_bytes < 1000:
        return count(size_in_bytes, "byte")
    scaled, units = size_in_bytes / 1000, ["kB", "MB", "GB", "TB"]
    while float(f"{scaled:.3g}") >= 1000 and len(units) > 1:
        scaled /= 1000
        units.pop(0)
    return f"{number(scaled)} {units[0]}"
