"""Where layers work under random inputs, and the memory that their hidden weights add.

Layers with an activation between their steps are linearised there, or no linear figure holds; GRUs
and LSTMs have a mean field theory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.reading import eigenvalues_of
from memcurse_cli.families.recurrence import DenseDynamics, HiddenSpectra, Recurrence
from memcurse_cli.schema.layer import (
    JACOBIAN,
    GateAtWork,
    GatedOperatingPoint,
    HiddenSpectrum,
    OperatingPoint,
    StateAtWork,
)
from memcurse_cli.wording import number

if TYPE_CHECKING:
    from memcurse_cli.theory.mean_field import GatedNetwork


def linearised_at_work(
    recurrence: Recurrence, settings: Settings
) -> tuple[Recurrence, OperatingPoint | None, str | None]:
    """The layer that linear figures are taken of, its operating point, and why there are none.

    At its operating point a layer answers small changes as ``s A`` and ``s B`` do, with the slope
    s of mean field theory. Where that point is not known, the slope is 1: that of small states,
    which stay small only while every |λ| < 1 (or is 1 by design).
    """
    dense = recurrence.dense
    activation = recurrence.activation if dense is None else dense.activation
    if activation == "linear" or (dense is not None and dense.slope != 1):
        return recurrence, None, None
    point = None if dense is None else _operating_point(recurrence, dense, settings)
    if dense is not None and point is not None:
        if point.time_constant is None:
            at_work = f"{number(point.slope)} at its operating point"
            return recurrence, point, _reason(activation, at_work, point.spectral_radius)
        readin, slope = recurrence.readin, float(np.float32(point.slope))  # s W / s is W again
        working = replace(
            recurrence,
            log_eigenvalues=recurrence.log_eigenvalues + math.log(slope),
            readin=None if readin is None else slope * readin,
            dense=replace(dense, matrix=slope * dense.matrix, slope=slope),
        )
        return working, point, None
    radius = float(np.abs(eigenvalues_of(recurrence.log_eigenvalues)).max(initial=0.0))
    if radius >= 1 and not recurrence.unitary:
        return recurrence, None, _reason(activation, "1 for small states", radius)
    return recurrence, None, None


def _reason(activation: str, slope: str, radius: float) -> str:
    return (
        f"with the {activation}'s slope of {slope} the largest |λ| is {number(radius)}: changes of "
        "the state do not decay, and no linear figure holds"
    )


def _operating_point(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> OperatingPoint | None:
    """The slope of mean field theory and the spectrum that it leaves, or None without one."""
    if dynamics.bias is None or dynamics.scale != 1:
        return None
    from memcurse_cli.theory.mean_field import elman_operating_point

    found = elman_operating_point(
        dynamics.matrix,
        None if recurrence.readin is None else recurrence.readin.real,
        dynamics.bias,
        dynamics.activation,
        sum(settings.autocorrelation.weights),
    )
    if found is None or found.slope == 0:
        return None
    radius = found.slope * float(np.abs(eigenvalues_of(recurrence.log_eigenvalues)).max())
    return OperatingPoint(found.slope, found.second_moment, radius, _time_constant(radius))


def _time_constant(radius: float) -> float | None:
    """-1/log of a spectral radius; None where nothing decays."""
    if radius >= 1:
        return None
    return -1 / math.log(radius) if radius > 0 else 0.0


def hidden_spectra(hidden: HiddenSpectra) -> tuple[HiddenSpectrum, ...]:
    """The spectrum of each gate's hidden matrix and of the Jacobian."""
    every = dict(hidden.gates)
    if hidden.jacobian is not None:
        every[JACOBIAN] = hidden.jacobian
    spectra = []
    for name, eigenvalues in every.items():
        modulus = np.abs(eigenvalues)
        radius, unstable = float(modulus.max()), int(np.count_nonzero(modulus >= 1))
        spectra.append(HiddenSpectrum(name, modulus.size, radius, unstable, _time_constant(radius)))
    return tuple(spectra)


def gated_operating_point(layer: GatedNetwork, settings: Settings) -> GatedOperatingPoint:
    """Where a GRU or an LSTM works by mean field theory."""
    from memcurse_cli.theory.mean_field import gated_mean_field

    scale = settings.input_scale
    field = gated_mean_field(layer, scale**2)
    if field is None:
        return GatedOperatingPoint(scale, None, reason="the mean field has no fixed point")
    gates = tuple(GateAtWork(name, *level) for name, level in field.gates.items())
    memory = _time_constant(math.sqrt(field.growth))
    return GatedOperatingPoint(
        scale,
        StateAtWork(field.second_moment, gates, field.growth, memory),
        field.mean_squared_singular_value,
        field.singular_value_variance,
    )
