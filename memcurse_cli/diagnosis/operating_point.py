"""Where layers work under random inputs, and the memory that their hidden weights add.

Layers with an activation between their steps are linearised there, or no linear figure holds; GRUs
and LSTMs have a mean field theory that is held against the layer itself.
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
    AGREEMENT,
    JACOBIAN,
    GateAtWork,
    GatedOperatingPoint,
    HiddenSpectrum,
    OperatingPoint,
    StateAtWork,
)
from memcurse_cli.wording import number

if TYPE_CHECKING:
    from memcurse_cli.theory.mean_field import GatedMeanField, GatedNetwork, GatedSimulation


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
    """Where a GRU or an LSTM works: by mean field theory, and by a simulation of it."""
    from memcurse_cli.theory import mean_field

    variance, reasons = settings.input_scale**2, []
    field, predicted, simulated = mean_field.gated_mean_field(layer, variance), None, None
    if field is None:
        reasons.append("the mean field has no fixed point")
    else:
        predicted = _state(field, None)
    if layer.size > mean_field.LARGEST:
        reasons.append(f"layers of more than {mean_field.LARGEST} units are not simulated")
    elif (run := mean_field.simulate_gated(layer, variance)) is None:
        reasons.append("its weights are so large that a simulation overflows")
    else:
        simulated = _state(run, run.growth_error)
        if not run.settled:
            reasons.append(f"the simulated state had not settled after {run.steps} steps")
        if abs(run.growth - 1) <= 2 * run.growth_error:
            reasons.append("the simulated χ is within two standard errors of 1")
    return GatedOperatingPoint(
        input_scale=settings.input_scale,
        predicted=predicted,
        simulated=simulated,
        agrees=None if predicted is None or simulated is None else _agree(predicted, simulated),
        mean_squared_singular_value=None if field is None else field.mean_squared_singular_value,
        singular_value_variance=None if field is None else field.singular_value_variance,
        reason="; ".join(reasons) or None,
    )


def _state(found: GatedMeanField | GatedSimulation, error: float | None) -> StateAtWork:
    gates = tuple(GateAtWork(name, one.mean, one.spread) for name, one in found.gates.items())
    memory = _time_constant(math.sqrt(found.growth))
    return StateAtWork(found.second_moment, gates, found.growth, error, memory)


def _agree(one: StateAtWork, other: StateAtWork) -> bool:
    """Whether E h² and τ are about the same; one that decays and one that grows are not."""
    pairs = [(one.second_moment, other.second_moment)]
    if one.time_constant is not None and other.time_constant is not None:
        pairs.append((one.time_constant, other.time_constant))
    elif one.time_constant != other.time_constant:
        return False
    return all(max(pair) <= AGREEMENT * min(pair) for pair in pairs)
