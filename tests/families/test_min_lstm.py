"""The minLSTM against a plain loop of its step, in both namings, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.mixing import MinLSTM

N, INPUTS = 3, 2
FORGET, INPUT = np.array([3.0, -1.0, 0.0]), np.array([-2.0, 1.5, 0.2])
WEIGHT = np.zeros((N, INPUTS))
FUSED = {
    "to_hidden_and_f_i_gate.weight": np.zeros((3 * N, INPUTS)),
    "to_hidden_and_f_i_gate.bias": np.concatenate([np.ones(N), FORGET, INPUT]),
}
SEPARATE = {
    "linear_f.weight": WEIGHT,
    "linear_f.bias": FORGET,
    "linear_i.weight": WEIGHT,
    "linear_i.bias": INPUT,
    "linear_h.weight": WEIGHT,
}
ROWS = {
    "to_hidden_and_f_i_gate.bias[forget]": slice(N, 2 * N),
    "to_hidden_and_f_i_gate.bias[input]": slice(2 * N, None),
}


@pytest.mark.parametrize("arrays", [FUSED, SEPARATE], ids=["minGRU-pytorch", "paper"])
def test_the_state_decays_by_the_share_of_the_forget_gate(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer({f"rnn.{name}": array for name, array in arrays.items()}, MinLSTM())
    forget, opened = 1 / (1 + np.exp(-FORGET)), 1 / (1 + np.exp(-INPUT))
    state = np.ones(N)
    for _ in range(4):
        state = state * (forget / (forget + opened))
    assert_allclose(state, np.exp(4 * recurrence.log_eigenvalues.real), rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), opened / (forget + opened), rtol=1e-12)


@pytest.mark.parametrize(("arrays", "elements"), [(FUSED, ROWS), (SEPARATE, None)])
def test_derivatives(arrays: dict[str, np.ndarray], elements: dict[str, slice] | None) -> None:
    check_derivatives(arrays, MinLSTM(), elements=elements)


@pytest.mark.parametrize("arrays", [FUSED, SEPARATE])
def test_without_biases_the_gates_are_even(arrays: dict[str, np.ndarray]) -> None:
    weights = {name: array for name, array in arrays.items() if name.endswith("weight")}
    recurrence = read_layer(weights, MinLSTM())
    assert_allclose(np.exp(recurrence.log_eigenvalues), np.full(N, 0.5))
    assert recurrence.parameters == ()
    assert "no bias" in recurrence.assumptions[0]


def test_what_does_not_fit_is_refused() -> None:
    one = {name: array for name, array in SEPARATE.items() if name != "linear_i.bias"}
    with pytest.raises(TensorError, match=r"linear_f.bias: only one of the two gates has a bias"):
        read_layer(one, MinLSTM())
    assert match_of(SEPARATE | {"linear_o.weight": WEIGHT}, MinLSTM()) == []
    assert match_of(SEPARATE | {"linear_h.weight": np.zeros((N, 7))}, MinLSTM()) == []


def moving(scale: float, *, fused: bool) -> dict[str, np.ndarray]:
    """Seven units behind four inputs, in either naming."""
    random = np.random.default_rng(6)
    weights, biases = random.normal(0, scale, (3, 7, 4)), random.normal(size=(3, 7))
    if fused:
        return {
            "to_hidden_and_f_i_gate.weight": weights.reshape(21, 4),
            "to_hidden_and_f_i_gate.bias": biases.ravel(),
        }
    names = ("linear_h", "linear_f", "linear_i")
    parts = zip(names, weights, biases, strict=True)
    return {
        f"{name}.{part}": array
        for name, *arrays in parts
        for part, array in zip(("weight", "bias"), arrays, strict=True)
    }


@pytest.mark.parametrize("fused", [True, False], ids=["minGRU-pytorch", "paper"])
@pytest.mark.parametrize("scale", [0.4, 0.8])
def test_the_bands_are_those_of_the_step_on_random_inputs(scale: float, fused: bool) -> None:
    arrays = moving(scale, fused=fused)
    joint_drive_of(MemoryStore(arrays), MinLSTM())
    stacked = {name: torch.tensor(array) for name, array in moving(scale, fused=True).items()}
    inputs = 1.5 * torch.tensor(np.random.default_rng(1).standard_normal((40_000, 4)))
    both = inputs @ stacked["to_hidden_and_f_i_gate.weight"].T
    _, forget, opened = (both + stacked["to_hidden_and_f_i_gate.bias"]).chunk(3, dim=-1)
    # As minGRU-pytorch has it, in its log space.
    kept = torch.exp(
        -torch.nn.functional.softplus(
            torch.nn.functional.softplus(-forget) - torch.nn.functional.softplus(-opened)
        )
    )
    gates = gates_of(arrays, input_scale=1.5)
    check_bands(gates, kept.numpy(), 0.01)
    spreads = np.concatenate([forget.std(dim=0).numpy(), opened.std(dim=0).numpy()])
    assert gates.spread is not None
    assert_allclose(gates.spread.p50, np.median(spreads), rtol=0.02)
    # For a white drive the moments are means of the gates.
    expected = ((1 - kept) ** 2).mean(dim=0) / (1 - (kept**2).mean(dim=0))
    assert gates.second_moment is not None
    assert_allclose(gates.second_moment.moving.p50, np.median(expected.numpy()), rtol=0.02)


def test_gates_without_weights_do_not_move() -> None:
    (layer,) = inspect(FUSED, gates=True).layers
    gates = layer.gates
    assert gates is not None
    assert gates.second_moment is not None
    assert gates.second_moment.nominal.p50 == pytest.approx(layer.state.second_moment.p50)
    for band in gates.bands:
        assert band.time_constant.p50 == pytest.approx(layer.eigenvalues.time_constant.p50)
    for one, group in zip(gates.parameters, layer.parameters, strict=True):
        assert (one.name, one.tensor) == (group.name, group.tensor)
        figure = one.relative_sensitivity
        assert figure.nominal.p99 == pytest.approx(group.relative_sensitivity.p99)
        assert figure.ratio.max == pytest.approx(1.0)


def test_without_biases_there_is_a_band_and_no_parameter() -> None:
    arrays = {name: array for name, array in moving(1.0, fused=True).items() if "weight" in name}
    gates = gates_of(arrays)
    assert gates.parameters == ()
    assert gates.bands[0].modulus.p50 < 0.4 < 0.6 < gates.bands[-1].modulus.p50
    assert gates.second_moment is not None


def test_wide_gates_have_the_moments_of_random_inputs() -> None:
    """σ_z is some 40."""
    arrays = moving(1.0, fused=True)
    gates = gates_of(arrays, input_scale=20.0)
    assert gates.spread is not None
    assert gates.spread.p50 > 30
    assert gates.reason is None
    inputs = 20 * np.random.default_rng(4).standard_normal((400_000, 4))
    weight = arrays["to_hidden_and_f_i_gate.weight"][7:]
    forget, opened = np.split(inputs @ weight.T + arrays["to_hidden_and_f_i_gate.bias"][7:], 2, 1)
    balance = np.logaddexp(0, -forget) - np.logaddexp(0, -opened)
    kept, written = 1 / (1 + np.exp(balance)), 1 / (1 + np.exp(-balance))
    expected = (written**2).mean(axis=0) / (1 - kept**2).mean(axis=0)
    assert gates.second_moment is not None
    assert_allclose(gates.second_moment.moving.p50, np.median(expected), rtol=0.01)
