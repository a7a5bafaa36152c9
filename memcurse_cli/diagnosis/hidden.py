"""What a gated layer's hidden weights add to the memory that its gates have."""

from __future__ import annotations

import math

import numpy as np

from memcurse_cli.diagnosis.report_dense import JACOBIAN, HiddenSpectrum
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.recurrence import Complexes, Recurrence


def summarise_hidden(
    recurrence: Recurrence, settings: Settings
) -> tuple[tuple[HiddenSpectrum, ...], str | None]:
    """The spectrum of each gate's hidden matrix and of the Jacobian, and why one is missing."""
    hidden = recurrence.hidden
    if hidden is None or not settings.spectra:
        return (), None
    spectra = [_summary(gate, eigenvalues) for gate, eigenvalues in hidden.gates.items()]
    if hidden.jacobian is not None:
        spectra.append(_summary(JACOBIAN, hidden.jacobian))
    return tuple(spectra), hidden.reason


def _summary(name: str, eigenvalues: Complexes) -> HiddenSpectrum:
    modulus = np.abs(eigenvalues)
    radius = float(modulus.max())
    time_constant = None
    if radius < 1:
        time_constant = -1 / math.log(radius) if radius > 0 else 0.0
    return HiddenSpectrum(
        name=name,
        order=modulus.size,
        spectral_radius=radius,
        unstable=int(np.count_nonzero(modulus >= 1)),
        time_constant=time_constant,
    )
