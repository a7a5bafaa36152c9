"""Where bands of gates are taken, and figures of gates that move beside those at their bias."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_gates import GateBand, GateFigure
from memcurse_cli.recurrences.reading import time_constants

Floats = NDArray[np.float64]

BANDS = ((0.05, -1.6448536), (0.1587, -1.0), (0.8413, 1.0), (0.95, 1.6448536))
"""The share of a Gaussian that lies below, and where, in standard deviations."""


def bands_of(moduli: Floats, complements: Floats) -> tuple[GateBand, ...]:
    """From |λ| and 1 - |λ| of every unit at the shares of `BANDS`, each (4, n)."""
    return tuple(
        GateBand(share, quantiles(modulus), quantiles(_time_constants(modulus, complement)))
        for (share, _), modulus, complement in zip(BANDS, moduli, complements, strict=True)
    )


def figure(nominal: Floats, moving: Floats) -> GateFigure:
    """Both and their ratio, of every element."""
    both = np.isinf(nominal) & np.isinf(moving)
    with np.errstate(invalid="ignore"):
        ratio = quotient(moving, nominal, nothing=1.0)
    return GateFigure(quantiles(nominal), quantiles(moving), quantiles(np.where(both, 1.0, ratio)))


def quotient(above: Floats, below: Floats, *, nothing: float) -> Floats:
    """above / below; inf where only below is 0, and ``nothing`` where both are."""
    alive = below > 0
    beyond = np.where(above > 0, np.inf, nothing)
    return np.where(alive, above / np.where(alive, below, 1.0), beyond)


def _time_constants(modulus: Floats, complement: Floats) -> Floats:
    """-1/log λ, from 1 - λ where λ is close to 1."""
    with np.errstate(divide="ignore"):
        log = np.where(complement < 0.5, np.log1p(-np.minimum(complement, 0.5)), np.log(modulus))
    return time_constants(log)
