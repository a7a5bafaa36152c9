"""What the terminal's and the file's heat map of a Hessian have in common."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.hessian_report import HessianPicture

MOST_DECADES = 12
CORRELATION_DECADES = 3


def drawn_magnitudes(
    picture: HessianPicture, *, correlation: bool
) -> tuple[NDArray[np.float64], int, str]:
    """The values to draw, the decades of their scale, and what they are."""
    if correlation:
        return picture.correlation, CORRELATION_DECADES, "|H_ab| / √(H_aa H_bb)"
    positive = picture.magnitude[picture.magnitude > 0]
    decades = 1
    if positive.size:
        # The smallest tenth is most often rounding, and would take the contrast from the rest.
        low = float(np.quantile(positive, 0.1))
        decades = math.ceil(math.log10(float(positive.max()) / low))
    return picture.magnitude, min(max(decades, 1), MOST_DECADES), "|H_ab|"
