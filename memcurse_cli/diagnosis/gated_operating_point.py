"""Where a GRU or an LSTM works under random inputs: mean field theory, held against the layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from memcurse_cli.diagnosis.report_mean_field import (
    AGREEMENT,
    GateAtWork,
    GatedOperatingPoint,
    StateAtWork,
)
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.theory.gated_simulation import LARGEST, simulate_gated
from memcurse_cli.theory.mean_field_gates import GatedMeanField, GateLevel
from memcurse_cli.theory.mean_field_gru import gru_mean_field
from memcurse_cli.theory.mean_field_lstm import lstm_mean_field


def summarise_gated_operating_point(
    recurrence: Recurrence, settings: Settings
) -> GatedOperatingPoint | None:
    """Both points of a layer whose hidden weights were asked for, or None for other layers."""
    if recurrence.hidden is None or recurrence.hidden.network is None or not settings.spectra:
        return None
    network, reasons = recurrence.hidden.network, []
    variance = settings.input_scale**2
    take = lstm_mean_field if network.is_lstm else gru_mean_field
    field = take(network, variance)
    if field is None:
        reasons.append("the mean field has no fixed point")
    simulated = None
    if network.size > LARGEST:
        reasons.append(f"layers of more than {LARGEST} units are not simulated")
    else:
        run = simulate_gated(network, variance)
        if run is None:
            reasons.append("its weights are so large that a simulation overflows")
        else:
            simulated = _state(run.second_moment, run.gates, run.growth, run.growth_error)
            if not run.settled:
                reasons.append(f"the simulated state had not settled after {run.steps} steps")
            if abs(run.growth - 1) <= 2 * run.growth_error:
                reasons.append("the simulated χ is within two standard errors of 1")
    predicted = None
    if field is not None:
        predicted = _state(field.second_moment, field.gates, field.growth, None)
    return GatedOperatingPoint(
        input_scale=settings.input_scale,
        predicted=predicted,
        simulated=simulated,
        agrees=None if predicted is None or simulated is None else _agree(predicted, simulated),
        mean_squared_singular_value=_of(field, "mean_squared_singular_value"),
        singular_value_variance=_of(field, "singular_value_variance"),
        reason="; ".join(reasons) or None,
    )


def _of(field: GatedMeanField | None, name: str) -> float | None:
    return None if field is None else getattr(field, name)


def _state(
    second_moment: float, gates: Mapping[str, GateLevel], growth: float, error: float | None
) -> StateAtWork:
    time_constant = None
    if growth < 1:
        time_constant = -2 / math.log(growth) if growth > 0 else 0.0
    return StateAtWork(
        second_moment=second_moment,
        gates=tuple(GateAtWork(name, one.mean, one.spread) for name, one in gates.items()),
        growth=growth,
        growth_error=error,
        time_constant=time_constant,
    )


def _agree(one: StateAtWork, other: StateAtWork) -> bool:
    """Whether E h² and τ are about the same; one that decays and one that grows are not."""
    if (one.time_constant is None) != (other.time_constant is None):
        return False
    pairs = [(one.second_moment, other.second_moment)]
    if one.time_constant is not None and other.time_constant is not None:
        pairs.append((one.time_constant, other.time_constant))
    return all(max(pair) <= AGREEMENT * min(pair) for pair in pairs)
