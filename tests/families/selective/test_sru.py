"""The SRU against the library's elementwise recurrence, written out in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.selective.layers import sru
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.selective.mixing import SRU

N, INPUTS = 3, 4


def run(arrays: dict[str, np.ndarray], inputs: torch.Tensor, cell: torch.Tensor) -> torch.Tensor:
    """Every c of one direction, as sru.ops.elementwise_recurrence_naive computes it."""
    kept = {name: torch.tensor(array) for name, array in arrays.items()}
    columns = (inputs @ kept["weight"]).view(len(inputs), N, -1)
    forget_weight, _ = kept["weight_c"].view(2, N)
    forget_bias, _ = kept["bias"].view(2, N)
    cells = []
    for column in columns:
        forget = torch.sigmoid(column[:, 1] + forget_bias + cell * forget_weight)
        cell = column[:, 0] + (cell - column[:, 0]) * forget
        cells.append(cell)
    return torch.stack(cells)


def test_a_small_state_decays_by_the_forget_gate() -> None:
    arrays = sru()
    recurrence = read_layer({f"rnn_lst.0.{name}": array for name, array in arrays.items()}, SRU())
    assert recurrence.name == "rnn_lst.0"
    silence = torch.zeros(6, INPUTS, dtype=torch.float64)
    start = 1e-9 * torch.ones(N, dtype=torch.float64)
    last = run(arrays, silence, start)[-1].numpy()
    assert_allclose(last, 1e-9 * np.exp(6 * recurrence.log_eigenvalues.real), rtol=1e-7)


def test_an_impulse_enters_by_what_forgetting_leaves() -> None:
    arrays = sru()
    recurrence = read_layer(arrays, SRU())
    inputs = torch.zeros(4, INPUTS, dtype=torch.float64)
    inputs[0] = 1e-7
    driven = inputs[0].numpy() @ arrays["weight"].reshape(INPUTS, N, -1)[:, :, 0]
    expected = driven * np.exp(recurrence.log_gain + 3 * recurrence.log_eigenvalues).real
    cells = run(arrays, inputs, torch.zeros(N, dtype=torch.float64))
    assert_allclose(cells[-1].numpy(), expected, rtol=1e-5)


def test_both_directions_stand_in_each_half() -> None:
    # A bidirectional layer has (2, directions, n) biases: forget of both, then reset of both.
    arrays = sru(3, width=2 * N)
    recurrence = read_layer(arrays, SRU())
    forget = arrays["bias"].reshape(2, 2, N)[0].ravel()
    assert_allclose(np.exp(recurrence.log_eigenvalues), 1 / (1 + np.exp(-forget)))


def test_old_layers_without_weight_c_are_told_by_their_list() -> None:
    old = {name: array for name, array in sru().items() if name in ("weight", "bias")}
    (match,) = match_of({f"encoder.rnn_lst.3.{name}": a for name, a in old.items()}, SRU())
    assert match.layer == "encoder.rnn_lst.3"
    # A linear layer and a normalisation have a weight and a bias as well.
    assert match_of({f"encoder.layers.3.{name}": a for name, a in old.items()}, SRU()) == []
    assert (
        match_of({"rnn_lst.0.weight": np.zeros((4, 5)), "rnn_lst.0.bias": np.zeros(6)}, SRU()) == []
    )


def test_sru_plus_plus_changes_the_projection_only() -> None:
    arrays = sru()
    projection = arrays.pop("weight")
    plus = {f"rnn_lst.0.{name}": array for name, array in arrays.items()} | {
        "rnn_lst.0.transform_module.linear1.weight": np.zeros((2, INPUTS)),
        "rnn_lst.0.transform_module.linear2.weight": np.zeros((2, 2)),
        "rnn_lst.0.transform_module.linear3.weight": projection.T,
        "rnn_lst.0.transform_module.alpha": np.zeros(1),
        "rnn_lst.0.layer_norm.weight": np.ones(INPUTS),
    }
    recurrence = read_layer(plus, SRU())
    assert_allclose(np.exp(recurrence.log_eigenvalues), 1 / (1 + np.exp(-arrays["bias"][:N])))
    assert "layer normalisation" in recurrence.assumptions[1]


@pytest.mark.parametrize("projected", [False, True])
def test_the_bands_of_gates_that_see_the_input_alone(projected: bool) -> None:
    """The library's first version, `v1`, whose weight_c is zero."""
    arrays = sru() | {"weight_c": np.zeros(2 * N)}
    if projected:
        arrays["weight_proj"] = np.random.default_rng(3).normal(size=(6, INPUTS)) / 2
    arrays = {f"rnn_lst.0.{name}": array for name, array in arrays.items()}
    drive_of(MemoryStore(arrays), SRU())
    x = np.random.default_rng(2).standard_normal((20_000, 6 if projected else INPUTS))
    x = x @ arrays["rnn_lst.0.weight_proj"] if projected else x
    z = (x @ arrays["rnn_lst.0.weight"]).reshape(len(x), N, -1)[:, :, 1]
    check_bands(gates_of(arrays), 1 / (1 + np.exp(-z - arrays["rnn_lst.0.bias"][:N])), 0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight": np.ones((INPUTS, 5 * N))}, "three or four"),
        ({"weight": None}, "attention"),
    ],
)
def test_gates_that_see_more_have_a_reason(change: dict[str, np.ndarray], reason: str) -> None:
    arrays = sru() | {"weight_c": np.zeros(2 * N)} | change
    gates = gates_of({f"rnn_lst.0.{n}": a for n, a in arrays.items() if a is not None})
    assert gates.spread is None
    assert reason in (gates.reason or "")


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_bands_of_gates_that_see_their_own_state(weight: float, normalised: bool) -> None:
    """Weights of 40 inputs, so that a normalised input of theirs is nearly Gaussian."""
    random = np.random.default_rng(12)
    units, inputs, steps = 32, 40, 20_000
    arrays = {
        "weight": random.normal(size=(inputs, 3 * units)) / inputs**0.5,
        "weight_c": weight * random.normal(size=2 * units),
        "bias": 1.5 + random.normal(size=2 * units),
    }
    x = 2 * random.normal(size=(steps, inputs))
    if normalised:
        arrays["layer_norm.weight"] = 1 + 0.3 * random.normal(size=inputs)
        arrays["layer_norm.bias"] = 0.5 * random.normal(size=inputs)
        x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        x = x * arrays["layer_norm.weight"] + arrays["layer_norm.bias"]
    driven = (x @ arrays["weight"]).reshape(steps, units, 3)
    c, gates = np.zeros(units), []
    for u, z in zip(driven[:, :, 0], driven[:, :, 1], strict=True):
        forget = 1 / (1 + np.exp(-z - arrays["weight_c"][:units] * c - arrays["bias"][:units]))
        c = forget * c + (1 - forget) * u
        gates.append(forget)
    found = gates_of({f"rnn_lst.0.{n}": a for n, a in arrays.items()}, input_scale=2.0)
    assert (found.second_moment is None) == (weight != 0)
    assert (weight != 0) == ("its own unit's state" in (found.reason or ""))
    check_bands(found, np.array(gates[500:]), reason=found.reason)


def test_a_gate_and_what_it_lets_in_move_together() -> None:
    """Where both see the same component, or opposite ones."""
    random = np.random.default_rng(1)
    columns = random.normal(size=(6, 16, 3))
    columns[:, :8, 1], columns[:, 8:, 1] = columns[:, :8, 0], -columns[:, 8:, 0]
    arrays = {
        "weight": columns.reshape(6, 48),
        "weight_c": np.ones(32),
        "bias": np.full(32, 1.0),
    }
    driven = (random.normal(size=(20_000, 6)) @ arrays["weight"]).reshape(-1, 16, 3)
    c, gates = np.zeros(16), []
    for u, z in zip(driven[:, :, 0], driven[:, :, 1], strict=True):
        forget = 1 / (1 + np.exp(-z - c - 1.0))
        c = forget * c + (1 - forget) * u
        gates.append(forget)
    found = gates_of({f"rnn_lst.0.{n}": a for n, a in arrays.items()})
    check_bands(found, np.array(gates[500:]), 0.02, reason=found.reason)
