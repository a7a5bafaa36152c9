"""Layers that are run: their steps against the libraries, their figures against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.command import SAMPLES, assert_refused, memcurse

import memcurse_cli.diagnosis.diagnose as diagnosing
from memcurse_cli import inspect
from memcurse_cli.diagnosis.simulation import dynamics_of
from memcurse_cli.schema.json_codec import to_text
from memcurse_cli.schema.simulation import Measured, Simulation

UNITS, WIDTH, STEPS = 6, 3, 20
Make = Callable[[], torch.nn.RNNBase]


def within(found: Measured, expected: float, errors: float = 4.0) -> bool:
    return abs(found.value - expected) <= errors * found.error + 1e-9 * abs(expected)


def simulation(checkpoint: Any, **options: Any) -> Simulation:
    (layer,) = inspect(checkpoint, **options).layers
    assert layer.simulation is not None, layer.not_simulated
    return layer.simulation


def steps_of(state: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """The step of the one layer of a state dict, and the length of its state."""
    found = []
    diagnose = diagnosing.diagnose

    def note(recurrence: Any, settings: Any) -> Any:
        dynamics = dynamics_of(recurrence, settings)
        assert not isinstance(dynamics, str)
        found.append((dynamics.begin(lambda _, values: values), dynamics))
        return diagnose(recurrence, settings)

    monkeypatch.setattr("memcurse_cli.diagnosis.inspection.diagnose", note)
    inspect(state, **options)
    return found[0]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: torch.nn.LSTM(WIDTH, UNITS), {}),
        (lambda: torch.nn.LSTM(WIDTH, UNITS, proj_size=2), {}),
        (lambda: torch.nn.LSTM(WIDTH, UNITS, bias=False), {}),
        (lambda: torch.nn.GRU(WIDTH, UNITS), {}),
        (lambda: torch.nn.RNN(WIDTH, UNITS), {}),
        (
            lambda: torch.nn.RNN(WIDTH, UNITS, nonlinearity="relu"),
            {"assume": {"activation": "relu"}},
        ),
    ],
)
def test_a_step_is_that_of_torch(
    make: Make, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = make().double()
    step, dynamics = steps_of(layer.state_dict(), monkeypatch, **options)
    xs = torch.randn(STEPS, 4, WIDTH, dtype=torch.float64)
    state = np.zeros((4, dynamics.order))
    for x in xs:
        state = step(state, x.numpy())
    with torch.no_grad():
        expected = layer(xs)[0][-1].numpy()
    np.testing.assert_allclose(state[:, dynamics.shown], expected, atol=1e-12)


def test_a_gru_that_resets_before_its_matrix_steps_as_keras_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(1)
    kernel, recurrent = (
        random.normal(size=(WIDTH, 3 * UNITS)),
        random.normal(size=(UNITS, 3 * UNITS)),
    )
    bias = random.normal(size=3 * UNITS)
    state = {"gru/kernel": kernel, "gru/recurrent_kernel": recurrent, "gru/bias": bias}
    step, _ = steps_of(state, monkeypatch)
    h, x = random.normal(size=(2, UNITS)), random.normal(size=(2, WIDTH))
    seen = x @ kernel + bias
    z, r = (
        1 / (1 + np.exp(-(seen[:, cut] + h @ recurrent[:, cut])))
        for cut in (slice(UNITS), slice(UNITS, 2 * UNITS))
    )
    new = np.tanh(seen[:, 2 * UNITS :] + (r * h) @ recurrent[:, 2 * UNITS :])
    np.testing.assert_allclose(step(h, x), z * h + (1 - z) * new, atol=1e-14)


def test_an_sru_steps_as_its_paper_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(6)
    state = {
        "rnn_lst.0.weight": random.normal(size=(WIDTH, 3 * UNITS)),
        "rnn_lst.0.weight_c": random.normal(size=2 * UNITS),
        "rnn_lst.0.bias": random.normal(size=2 * UNITS),
    }
    weight, own, bias = state.values()
    step, dynamics = steps_of(state, monkeypatch)
    c, x = random.normal(size=(2, UNITS)), random.normal(size=(2, WIDTH))
    taken, seen, _ = np.moveaxis((x @ weight).reshape(2, UNITS, 3), -1, 0)
    forget = 1 / (1 + np.exp(-(seen + own[:UNITS] * c + bias[:UNITS])))
    np.testing.assert_allclose(step(c, x), forget * c + (1 - forget) * taken, atol=1e-14)
    assert set(dynamics.tensors.values()) == {"weight", "weight_c", "bias"}


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_an_lru_that_is_run_shows_its_closed_forms(rho: float) -> None:
    report = inspect(SAMPLES / "lru.safetensors", simulate=True, rho=rho)
    (layer,) = report.layers
    run = layer.simulation
    assert run is not None
    assert run.memory is not None
    assert run.memory.value == pytest.approx(layer.eigenvalues.time_constant.max, rel=1e-9)
    theory = {group.tensor: group.step_effect for group in layer.parameters}
    for group in run.groups:
        assert within(group.step_effect, theory[group.tensor] or math.nan), group.name
        assert group.step_effect.error <= 0.05 * group.step_effect.value


def test_a_dense_layer_that_is_run_shows_its_closed_form() -> None:
    random = np.random.default_rng(2)
    matrix = 0.9 * np.linalg.qr(random.standard_normal((16, 16)))[0]
    state = {"A": matrix, "B": random.standard_normal((16, 4)), "C": np.eye(16)}
    (layer,) = inspect(state, simulate=True, horizon=60, family="dense_linear").layers
    assert layer.simulation is not None
    (group,) = layer.simulation.groups
    assert within(group.step_effect, layer.parameters[0].step_effect or math.nan)
    assert layer.dense is not None
    assert within(group.sensitivity, layer.dense.sensitivity or math.nan)


def a_mamba() -> dict[str, np.ndarray]:
    random, prefix = np.random.default_rng(3), "layers.0.mixer."
    return {
        f"{prefix}A_log": np.log(np.tile(np.arange(1.0, 5.0), (8, 1))),
        f"{prefix}dt_proj.bias": random.normal(-3, 0.5, 8),
        f"{prefix}dt_proj.weight": 0.5 * random.standard_normal((8, 2)),
        f"{prefix}x_proj.weight": 0.5 * random.standard_normal((2 + 2 * 4, 8)),
        f"{prefix}D": np.ones(8),
        f"{prefix}conv1d.weight": random.standard_normal((8, 1, 4)),
        f"{prefix}conv1d.bias": np.zeros(8),
        f"{prefix}in_proj.weight": random.standard_normal((16, 4)),
        f"{prefix}out_proj.weight": random.standard_normal((4, 8)),
    }


def a_min_lstm() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    layers = {f"linear_{gate}": 0.5 * random.standard_normal((8, 4)) for gate in "fih"}
    return {f"{name}.weight": weight for name, weight in layers.items()} | {
        f"{name}.bias": random.standard_normal(8) for name in layers
    }


@pytest.mark.parametrize("make", [a_mamba, a_min_lstm])
def test_gates_that_are_drawn_show_what_their_quadrature_gives(
    make: Callable[[], dict[str, np.ndarray]],
) -> None:
    """κ of every group that moves with the gates: one law of one gate, one of several."""
    (layer,) = inspect(make(), simulate=True, gates=True, horizon=2000).layers
    assert layer.simulation is not None
    assert layer.gates is not None
    for moved, run in zip(layer.gates.parameters, layer.simulation.groups, strict=True):
        kappa = moved.relative_sensitivity.moving.p99
        assert kappa is not None
        assert run.step_effect.value == pytest.approx(1e-3 * math.sqrt(kappa), rel=0.1)


@pytest.mark.parametrize(("steps", "fits"), [(200, True), (300, False)])
def test_a_state_that_explodes_is_shown_as_far_as_a_float_goes(steps: int, fits: bool) -> None:
    state = {"A": 4.0 * np.eye(4), "B": np.eye(4), "C": np.eye(4)}
    report = inspect(state, simulate=True, horizon=steps)
    assert ("range of a float" in (report.layers[0].not_simulated or "")) is not fits
    assert to_text(report)


def network(matrix: np.ndarray, inputs: float) -> dict[str, np.ndarray]:
    size = len(matrix)
    readin = inputs * np.eye(size)[:, :1]
    return {"weight_hh": matrix, "weight_ih": readin, "bias_hh": np.zeros(size)}


def test_a_chaotic_network_is_told_as_such() -> None:
    random = np.random.default_rng(4)
    matrix = 3 * random.standard_normal((64, 64)) / 8
    report = inspect(network(matrix, 0.1))
    run = report.layers[0].simulation
    assert run is not None
    assert run.chaotic
    assert run.memory is None
    assert "it is chaotic" in report.sentence
    assert report.memory is None


def test_a_delay_line_remembers_its_length() -> None:
    run = simulation(network(np.eye(12, k=-1), 0.1))
    assert run.memory is not None
    assert run.memory.value == 11


def test_the_same_file_gives_the_same_report_and_a_switch_leaves_the_run_out() -> None:
    first, again = (simulation(SAMPLES / "gru.safetensors") for _ in range(2))
    assert first == again
    assert first.memory is not None
    assert first.memory.value > 300
    (layer,) = inspect(SAMPLES / "gru.safetensors", simulate=False).layers
    assert layer.simulation is None
    assert layer.memory is not None
    assert layer.memory < 5
    (linear,) = inspect(SAMPLES / "lru.safetensors").layers
    assert linear.simulation is None


def test_a_limit_on_step_effects_is_one_on_those_that_were_seen() -> None:
    (layer,) = (report := inspect(SAMPLES / "gru.safetensors")).layers
    assert layer.simulation is not None
    seen = {one.name: one.step_effect.value for one in layer.simulation.groups}
    told = report.scalars("")
    assert told["step_effect"] == max(seen.values()) == told["l0/step_effect/weight_hh"]
    failed = memcurse("check", SAMPLES / "gru.safetensors", "--max-step-effect", "0.01")
    assert failed.returncode == 1
    assert "the step effect of weight_hh is 3.5" in " ".join(failed.stdout.split())


def test_inputs_and_tokens_are_taken_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.GRU(WIDTH, UNITS)
    random = np.random.default_rng(5)
    table = random.standard_normal((7, WIDTH))
    state = {name: one.numpy() for name, one in layer.state_dict().items()} | {"table": table}
    tokens = random.integers(0, 7, (9, 50))
    by_token = simulation(state, inputs=tokens, embeddings="table", simulate=True)
    by_value = simulation(state, inputs=table[tokens], simulate=True)
    assert by_token == by_value
    assert (by_value.inputs, by_value.steps) == ("given", 50)
    np.save(tmp_path / "short.npy", np.zeros((3, 5)))
    refused = memcurse("simulate", SAMPLES / "gru.safetensors", "--inputs", tmp_path / "short.npy")
    assert_refused(refused, "--inputs", "(batch, time, features)")
    (other,) = inspect(state, inputs=np.zeros((2, 9, WIDTH + 1)), simulate=True).layers
    assert other.not_simulated == f"its inputs are {WIDTH}, those given {WIDTH + 1}"


def growth(cell: torch.nn.RNNCellBase, inputs: torch.Tensor) -> float:
    """Λ₁ over the second half of (T, S, width) inputs, by PyTorch's own tangents."""
    memory = isinstance(cell, torch.nn.LSTMCell)
    state = torch.zeros(inputs.shape[1], cell.hidden_size * (1 + memory), dtype=torch.float64)
    tangent, grown = torch.randn_like(state), []
    for x in inputs:

        def advance(state: torch.Tensor, x: torch.Tensor = x) -> torch.Tensor:
            return torch.cat(cell(x, state.chunk(2, 1)), 1) if memory else cell(x, state)

        state, tangent = torch.func.jvp(advance, (state,), (tangent,))
        norm = tangent.norm(dim=1, keepdim=True)
        tangent = tangent / norm
        grown.append(norm.log())
    return float(torch.stack(grown[len(grown) // 2 :]).mean())


@pytest.mark.parametrize(
    ("whole", "single"),
    [
        (torch.nn.RNN, torch.nn.RNNCell),
        (torch.nn.GRU, torch.nn.GRUCell),
        (torch.nn.LSTM, torch.nn.LSTMCell),
    ],
)
def test_steps_of_twice_the_stability_rate_make_most_cells_of_torch_unstable(
    whole: type[torch.nn.RNNBase], single: type[torch.nn.RNNCellBase]
) -> None:
    """With draws of its own, all of which half of the rate leaves stable."""
    torch.manual_seed(0)
    network, cell, horizon = whole(2, 32), single(2, 32).double(), 60
    ran = simulation(network.state_dict(), horizon=horizon)
    rate, grows = ran.stability_rate, []
    weights = {name.removesuffix("_l0"): value for name, value in network.named_parameters()}
    inputs = torch.randn(horizon, 4, 2, dtype=torch.float64)
    stable = {0.0: 0, rate / 2: 0, 2 * rate: 0}
    with torch.no_grad():
        for tried in stable:
            for _ in range(9):
                for name, value in cell.named_parameters():
                    value.copy_(weights[name] + tried * (2 * torch.randint(2, value.shape) - 1))
                grows.append(growth(cell, inputs))
                stable[tried] += horizon * grows[-1] < 1
    assert grows[0] == pytest.approx(ran.exponent.value, abs=0.01)
    untouched, half, twice = stable.values()
    assert (untouched, half) == (9, 9)
    assert twice < 4.5
