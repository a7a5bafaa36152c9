"""Gates that move: the spread and the bands against the gates of real cells, and the finding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints.readers import arrays_of
from diagnosis.build import codes, finding, only
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.report import LayerReport

H, INPUTS, STEPS, SKIPPED = 64, 16, 4000, 100
SHARES = (0.05, 0.1587, 0.8413, 0.95)


def layer_of(module: torch.nn.Module, **arguments: float | bool) -> LayerReport:
    return only(arrays_of(module), **arguments)


@pytest.mark.parametrize(("kind", "scale"), [("GRU", 1.0), ("LSTM", 2.0)])
def test_the_bands_are_those_of_the_gates_of_torch(kind: str, scale: float) -> None:
    torch.manual_seed(4)
    module = getattr(torch.nn, kind)(INPUTS, H, dtype=torch.float64)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor.mul_(3.0 if "weight" in name else 1.0)
    gates = layer_of(module, input_scale=scale).gates
    inputs = scale * torch.randn(STEPS, 1, INPUTS, dtype=torch.float64)
    with torch.no_grad():
        states = module(inputs)[0][:, 0].numpy()
    x, h = inputs[SKIPPED:, 0].numpy(), states[SKIPPED - 1 : -1]
    own = {name: values[H : 2 * H] for name, values in arrays_of(module).items()}
    z = x @ own["weight_ih_l0"].T + h @ own["weight_hh_l0"].T  # both keep by their second gate
    z += own["bias_ih_l0"] + own["bias_hh_l0"]
    assert_allclose(gates.spread.p50, np.median(z.std(axis=0)), rtol=0.05)
    # What the hidden weights see of the state, whose components are not quite independent.
    assert_allclose(gates.hidden_second_moment, (h**2).mean(), rtol=0.1)
    kept = 1 / (1 + np.exp(-z))
    assert [band.share for band in gates.bands] == list(SHARES)
    for band in gates.bands:
        seen = np.quantile(kept, band.share, axis=0)
        assert_allclose(band.modulus.p50, np.median(seen), atol=0.03)
        assert_allclose(band.time_constant.p50, np.median(-1 / np.log(seen)), rtol=0.1)


def test_a_gate_without_weights_does_not_move() -> None:
    module = torch.nn.GRU(INPUTS, H, dtype=torch.float64)
    with torch.no_grad():
        module.weight_ih_l0[H : 2 * H] = 0
        module.weight_hh_l0[H : 2 * H] = 0
    layer = layer_of(module, gates=True)
    gates = layer.gates
    assert gates.spread.max == 0
    for band in gates.bands:
        assert band.modulus == pytest.approx(gates.bands[0].modulus)
        assert band.time_constant.p50 == pytest.approx(layer.eigenvalues.time_constant.p50)
    assert gates.second_moment.nominal.p50 == pytest.approx(layer.state.second_moment.p50)
    for one, group in zip(gates.parameters, layer.parameters, strict=True):
        assert (one.name, one.tensor) == (group.name, group.tensor)
        figure = one.relative_sensitivity
        assert figure.nominal.p99 == pytest.approx(group.relative_sensitivity.p99)
        assert figure.moving.p99 == pytest.approx(group.relative_sensitivity.p99)
        assert figure.ratio.min == pytest.approx(1.0)
    assert "MC505" not in codes(layer)


def test_gates_far_from_their_bias_are_told_where_it_is_asked() -> None:
    torch.manual_seed(1)
    module = torch.nn.GRU(INPUTS, H, dtype=torch.float64)
    with torch.no_grad():
        module.bias_ih_l0[H : 2 * H] = 6.0
    told = finding(layer_of(module, input_scale=8.0), "MC505")
    assert told.severity == "info"
    assert "RMS 8" in told.message
    assert "instead of" in told.message
    assert "MC505" not in codes(layer_of(module))


def test_the_scale_and_what_is_not_known_are_said() -> None:
    arrays = arrays_of(torch.nn.GRU(INPUTS, H))
    for options, scale in (({}, None), ({"gates": True}, 1.0), ({"input_scale": 0.5}, 0.5)):
        assert inspect(arrays, **options).input.input_scale == scale
    for none in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="input scale"):
            inspect(arrays, input_scale=none)
    del arrays["weight_ih_l0"]
    (layer,) = inspect(arrays, gates=True).layers
    assert layer.gates.spread is None
    assert "weights are not in the file" in layer.gates.reason
    (layer,) = inspect({"A": np.eye(3) / 2, "weight_hh": np.eye(3) / 2}, gates=True).layers
    assert layer.gates is None  # nothing is input-dependent


def test_wide_gates_and_saturated_ones_stay_finite() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(INPUTS, 4, dtype=torch.float64)
    with torch.no_grad():
        module.bias_ih_l0[4:8] = torch.tensor([40.0, -700.0, 700.0, 1e4])
    gates = layer_of(module, input_scale=1e4).gates
    assert [one.name for one in gates.parameters] == [
        "bias_ih[forget]", "bias_hh[forget]", "bias_ih[input]", "bias_hh[input]",
    ]  # fmt: skip
    assert 0 < gates.hidden_second_moment < 1
    assert gates.second_moment.moving.p50 is not None
