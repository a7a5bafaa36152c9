"""What the report says of memory that runs through hidden weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memcurse_cli import inspect
from memcurse_cli.families.cells import gated_layer as gated_cells
from memcurse_cli.schema.layer import jacobian_of
from memcurse_cli.schema.report import Finding, LayerReport

SAMPLE = Path(__file__).resolve().parents[2] / "sample_checkpoints" / "gru.safetensors"
UNITS = 3


def gru(feedback: float) -> dict[str, np.ndarray]:
    """All gates half open, so that the gates give λ = 1/2 and the Jacobian 1/2 + feedback/4."""
    weight = np.zeros((3, UNITS, UNITS))
    weight[2] = feedback * np.eye(UNITS)
    return {"weight_hh": weight.reshape(-1, UNITS), "bias_hh": np.zeros(3 * UNITS)}


def lstm() -> dict[str, np.ndarray]:
    return {"weight_hh": np.ones((4 * UNITS, UNITS)), "bias_hh": np.zeros(4 * UNITS)}


def only(
    state: dict[str, np.ndarray] | Path,
    *,
    spectra: bool = True,
    assume: dict[str, str] | None = None,
) -> LayerReport:
    (layer,) = inspect(state, spectra=spectra, assume=assume or {}).layers
    return layer


def hidden_finding(layer: LayerReport) -> Finding:
    (finding,) = (finding for finding in layer.findings if finding.code == "MC503")
    return finding


def test_without_the_option_the_report_says_what_it_leaves_out() -> None:
    layer = only(SAMPLE, spectra=False)
    finding = hidden_finding(layer)
    assert layer.hidden_feedback
    assert layer.hidden_spectra == ()
    assert finding.severity == "info"
    assert "the true memory can be longer" in finding.message
    assert "--spectra" in finding.advice


def test_the_sample_gru_remembers_through_its_hidden_weights() -> None:
    layer = only(SAMPLE)
    assert [spectrum.name for spectrum in layer.hidden_spectra] == [
        "reset",
        "update",
        "new",
        "jacobian",
    ]
    jacobian = jacobian_of(layer.hidden_spectra)
    assert (jacobian.order, jacobian.unstable, jacobian.time_constant) == (64, 1, None)
    longest = layer.eigenvalues.time_constant.max
    assert longest is not None
    finding = hidden_finding(layer)
    assert finding.severity == "warning"
    assert f"spectral radius {jacobian.spectral_radius:.3g}" in finding.message
    assert f"the gates' {longest:.3g} steps" in finding.message
    readme = " ".join(SAMPLE.with_name("README.md").read_text().split())
    assert f"time constants end at {longest:.2g} steps" in readme
    assert f"spectral radius {jacobian.spectral_radius:.3g}" in readme


@pytest.mark.parametrize(
    ("feedback", "radius", "severity"),
    [(0.0, 0.5, "info"), (0.5, 0.625, "info"), (1.6, 0.9, "warning"), (-8.0, 1.5, "warning")],
)
def test_a_longer_memory_is_a_warning_with_its_number(
    feedback: float, radius: float, severity: str
) -> None:
    layer = only(gru(feedback))
    jacobian = jacobian_of(layer.hidden_spectra)
    assert jacobian.spectral_radius == pytest.approx(radius, rel=1e-12)
    assert jacobian.unstable == (UNITS if radius >= 1 else 0)
    finding = hidden_finding(layer)
    assert finding.severity == severity
    assert bool(finding.advice) == (severity == "warning")
    if radius >= 1:
        assert jacobian.time_constant is None
        assert f"spectral radius {radius:g}" in finding.message
    else:
        assert jacobian.time_constant == pytest.approx(-1 / np.log(radius), rel=1e-12)
        assert f"{-1 / np.log(radius):.3g} steps, against 1.44" in finding.message


def test_a_matrix_of_zeros_has_no_memory() -> None:
    reset = only(gru(1.0)).hidden_spectra[0]
    assert (reset.spectral_radius, reset.time_constant, reset.unstable) == (0.0, 0.0, 0)


def test_a_jacobian_that_was_not_taken_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_cells, "LARGEST_JACOBIAN", 2 * UNITS - 1)
    layer = only(lstm())
    assert len(layer.hidden_spectra) == 4
    assert "order 6" in (layer.hidden_spectra_reason or "")
    finding = hidden_finding(layer)
    assert (finding.severity, finding.advice) == ("info", "")


def test_the_heads_of_an_slstm_are_taken_together() -> None:
    state = {"_bias_": np.zeros(4 * UNITS), "_recurrent_kernel_": np.ones((1, 4 * UNITS, UNITS))}
    layer = only(state)
    assert layer.family == "slstm"
    orders = {spectrum.name: spectrum.order for spectrum in layer.hidden_spectra}
    gates = dict.fromkeys(("input", "forget", "cell", "output"), UNITS)
    assert orders == gates | {"jacobian": 3 * UNITS}
    assert layer.hidden_spectra_reason is None


def test_a_cell_that_is_not_known_says_why_its_step_is_missing() -> None:
    arrays = {"cell.weight_hh": np.ones((2 * UNITS, UNITS)), "cell.bias_hh": np.zeros(2 * UNITS)}
    layer = only(arrays, assume={"gate_keeps": "yes"})
    assert [spectrum.name for spectrum in layer.hidden_spectra] == ["gate", "new"]
    assert "which cell it is" in (layer.hidden_spectra_reason or "")
    # A name tells the cell, and not its activation.
    named = only({f"ligru.{name.split('.')[1]}": array for name, array in arrays.items()})
    assert "activation of its candidate" in (named.hidden_spectra_reason or "")
    assert hidden_finding(layer).advice == ""


def test_a_layer_without_hidden_weights_has_nothing_to_say() -> None:
    layer = only({"A_re": np.full(4, 0.9), "A_im": np.zeros(4)})
    assert not layer.hidden_feedback
    assert (layer.hidden_spectra, layer.hidden_spectra_reason) == ((), None)
    assert "MC503" not in {finding.code for finding in layer.findings}


def test_the_sentence_does_not_pass_the_gates_off_as_the_layer() -> None:
    assert (
        "its longest time constant, hidden weights aside, is 1.44 steps" in inspect(gru(4)).sentence
    )
