"""Bands of λ that `inspect` gives, against the quantiles of gates run on random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, JointDrive
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.layer import GateSummary


def gates_of(arrays: Mapping[str, NDArray[Any]], **arguments: Any) -> GateSummary:
    """The gates of the only layer of some arrays."""
    (layer,) = inspect(dict(arrays), gates=True, **arguments).layers
    return layer.gates


def check_bands(
    gates: GateSummary,
    eigenvalues: NDArray[Any],
    tolerance: float = 0.03,
    reason: str | None = None,
) -> None:
    """The bands of |λ| of the median unit against its quantiles over steps (steps, units)."""
    assert gates.reason == reason
    assert len(gates.bands) == 4
    for band in gates.bands:
        seen = np.median(np.quantile(eigenvalues, band.share, axis=0))
        assert_allclose(band.modulus.p50, seen, atol=tolerance * float(np.ptp(eigenvalues)))
    widths = [np.quantile(eigenvalues, band.share, axis=0) for band in gates.bands]
    assert np.median(widths[-1] - widths[0]) > 0.05  # a band that is no point


def driven(store: Any, family: Family, assume: dict[str, str]) -> tuple[Recurrence, Any]:
    """The only layer with what drives its gates, which is read where it is asked for alone."""
    (match,) = family.find(store.tensors)
    recurrence = family.read(store, match, ReadOptions(gates=True, assume=assume))
    assert family.read(store, match, ReadOptions(assume=assume)).gate is None
    return recurrence, recurrence.gate


def drive_of(store: Any, family: Family, **assume: str) -> GateDrive:
    """The drive of the only layer, whose law at the bias is the layer that the family reports."""
    recurrence, drive = driven(store, family, assume)
    assert isinstance(drive, GateDrive)
    assert drive.motions.keys() == {group.name for group in recurrence.parameters}
    values = drive.law(drive.gate.bias)
    assert_allclose(values.eigenvalue, np.exp(recurrence.log_eigenvalues.real), rtol=1e-12)
    assert_allclose(values.complement, -np.expm1(recurrence.log_eigenvalues.real), rtol=1e-12)
    for group in recurrence.parameters:
        parameter, factor = drive.motions[group.name]
        if parameter in values.motions:
            moved = (factor * values.motions[parameter].eigenvalue)[group.eigenvalue]
            assert_allclose(moved, group.eigenvalue_derivative.real, rtol=1e-10, atol=1e-300)
    return drive


def joint_drive_of(store: Any, family: Family, **assume: str) -> JointDrive:
    """The same of a layer whose λ several pre-activations move."""
    recurrence, drive = driven(store, family, assume)
    assert isinstance(drive, JointDrive)
    values = drive.law(drive.bias[:: len(drive.kinds)])
    assert_allclose(values.log_eigenvalue, recurrence.log_eigenvalues, rtol=1e-12, atol=1e-14)
    assert_allclose(values.log_gain, recurrence.log_gain.real, rtol=1e-12, atol=1e-14)
    assert (drive.reason is None) == (
        drive.motions.keys() == {g.name for g in recurrence.parameters}
    )
    return drive
