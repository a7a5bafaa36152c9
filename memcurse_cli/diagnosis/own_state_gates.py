"""The band of gates that see the state of their own unit."""

from __future__ import annotations

import numpy as np

from memcurse_cli.diagnosis.gate_figures import BANDS, bands_of
from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_gates import GateSummary
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.own_state_drive import OwnStateDrive


def summarise_own_state_gates(drive: OwnStateDrive, settings: Settings) -> GateSummary:
    """|λ| is taken as the gate σ(z) that keeps the state, and z as drawn."""
    drawn = drive.draw(settings.input_scale**2)
    places = np.quantile(drawn.preactivation, [share for share, _ in BANDS], axis=0)
    opened = drive.opening(places)
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(drawn.preactivation.std(axis=0)),
        hidden_second_moment=drawn.shown,
        bands=bands_of(opened.value, opened.complement),
        reason=drive.reason,
    )
