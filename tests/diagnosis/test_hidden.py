"""What the report says of memory that runs through hidden weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis import build
from diagnosis.build import finding

from memcurse_cli.families.cells import gated_layer as gated_cells
from memcurse_cli.schema.layer import jacobian_of

SAMPLE = build.SAMPLES / "gru.safetensors"
UNITS = 3


def gru(feedback: float) -> dict[str, np.ndarray]:
    """All gates half open, so that the gates give λ = 1/2 and the Jacobian 1/2 + feedback/4."""
    weight = np.zeros((3, UNITS, UNITS))
    weight[2] = feedback * np.eye(UNITS)
    return {"weight_hh": weight.reshape(-1, UNITS), "bias_hh": np.zeros(3 * UNITS)}


def only(state: dict[str, np.ndarray] | Path, **options: Any) -> Any:
    return build.only(state, **{"spectra": True, "simulate": False} | options)


def test_the_sample_gru_remembers_through_its_hidden_weights() -> None:
    layer = only(SAMPLE)
    names = [spectrum.name for spectrum in layer.hidden_spectra]
    assert names == ["reset", "update", "new", "jacobian"]
    jacobian = jacobian_of(layer.hidden_spectra)
    assert (jacobian.order, jacobian.unstable, jacobian.time_constant) == (64, 1, None)
    longest = layer.eigenvalues.time_constant.max
    told = finding(layer, "MC503")
    assert told.severity == "warning"
    assert f"|λ| is {jacobian.spectral_radius:.3g} near the zero state" in told.message
    assert layer.memory is None
    readme = " ".join(SAMPLE.with_name("README.md").read_text().split())
    assert f"time constants end at {longest:.2g} steps" in readme
    assert f"spectral radius {jacobian.spectral_radius:.3g}" in readme


@pytest.mark.parametrize(
    ("feedback", "radius", "severity"),
    [(0.5, 0.625, "info"), (1.6, 0.9, "warning"), (-8.0, 1.5, "warning")],
)
def test_a_longer_memory_is_a_warning_with_its_number(
    feedback: float, radius: float, severity: str
) -> None:
    layer = only(gru(feedback))
    jacobian = jacobian_of(layer.hidden_spectra)
    assert jacobian.spectral_radius == pytest.approx(radius, rel=1e-12)
    assert jacobian.unstable == (UNITS if radius >= 1 else 0)
    told = finding(layer, "MC503")
    assert told.severity == severity
    if radius >= 1:
        assert jacobian.time_constant is layer.memory is None
        assert f"|λ| is {radius:g} near the zero state" in told.message
    else:
        assert jacobian.time_constant == pytest.approx(-1 / np.log(radius), rel=1e-12)
        assert f"{-1 / np.log(radius):.3g} steps, of the gates alone 1.44" in told.message
        assert layer.memory == jacobian.time_constant


def test_a_step_of_an_unknown_cell_or_of_too_many_units_says_why_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = {"cell.weight_hh": np.ones((2 * UNITS, UNITS)), "cell.bias_hh": np.zeros(2 * UNITS)}
    layer = only(arrays, assume={"gate_keeps": "yes"})
    assert [spectrum.name for spectrum in layer.hidden_spectra] == ["gate", "new"]
    assert "which cell it is" in (layer.hidden_spectra_reason or "")
    # A name tells the cell, and not its activation.
    named = only({f"ligru.{name.split('.')[1]}": array for name, array in arrays.items()})
    assert "activation of its candidate" in (named.hidden_spectra_reason or "")
    monkeypatch.setattr(gated_cells, "LARGEST_JACOBIAN", 2 * UNITS - 1)
    large = only({"weight_hh": np.ones((4 * UNITS, UNITS)), "bias_hh": np.zeros(4 * UNITS)})
    assert len(large.hidden_spectra) == 4
    assert "order 6" in (large.hidden_spectra_reason or "")
    for one in (layer, large):
        told = finding(one, "MC503")
        assert (told.severity, told.advice) == ("info", "")


def test_hidden_weights_are_told_where_there_are_some_and_their_spectra_where_asked_for() -> None:
    layer = only(SAMPLE, spectra=False)
    told = finding(layer, "MC503")
    assert layer.hidden_feedback
    assert layer.hidden_spectra == ()
    assert told.severity == "info"
    assert "the hidden weights can hold a longer memory" in told.message
    assert "--spectra" in told.advice
    diagonal = only({"A_re": np.full(4, 0.9), "A_im": np.zeros(4)})
    assert (diagonal.hidden_feedback, diagonal.hidden_spectra) == (False, ())
    assert "MC503" not in build.codes(diagonal)
