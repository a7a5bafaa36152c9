"""The band of an eigenvalue that turns as it decays, and E|h|² of i.i.d. gates."""

from __future__ import annotations

from memcurse_cli.diagnosis.gate_figures import BANDS, bands_of, figure
from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_gates import GateSummary
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.turning_drive import TurningDrive
from memcurse_cli.theory.gate_laws import LOGISTIC
from memcurse_cli.theory.turning_bands import radius_quantiles
from memcurse_cli.theory.turning_gates import turning_second_moment

ANGLE_AT_ZERO = (
    "E|dλ/db|² is infinite where a = W x + b can come near 0, since dλ/db grows as 1/|a|"
)


def summarise_turning_gates(drive: TurningDrive, settings: Settings) -> GateSummary:
    """The gates under inputs of the scale that was asked for; σ_z is that of both parts of a."""
    scale = settings.input_scale**2
    gates = drive.gates(scale)
    radii = radius_quantiles(gates, tuple(share for share, _ in BANDS))
    opened = LOGISTIC(radii)
    nominal, moving = (
        turning_second_moment(at, settings.autocorrelation) for at in (gates.still, gates)
    )
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(drive.spreads(scale)),
        bands=bands_of(opened.value, opened.complement),
        second_moment=figure(nominal, moving),
        reason=ANGLE_AT_ZERO,
    )
