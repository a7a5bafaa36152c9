"""The networks of the second calibration, and what is taken from them."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from benchmarks.calibration.measure import key_of, load, save
from benchmarks.calibration.networks import LAYERS, LINEAR, Stack, Start
from benchmarks.calibration.outcomes import kept_rate
from benchmarks.calibration.problems import DEEP, OWN, PROBLEMS, TAUGHT, Problem
from benchmarks.calibration.quantities import quantities
from benchmarks.calibration.sweep import CHUNK, Optimizer, Trainer
from memcurse_cli import inspect

CELLS = {"tanh": torch.nn.RNN, "GRU": torch.nn.GRU, "LSTM": torch.nn.LSTM}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
def test_cells_are_those_of_torch(kind: str, layers: int) -> None:
    network = Stack(LAYERS[kind], layers, 12, 3, 2)
    weights = network.initialise(np.random.default_rng(0))
    cell = CELLS[kind](3, 12, num_layers=layers, batch_first=True).double()
    tensors = {name: torch.tensor(value) for name, value in weights.items()}
    cell.load_state_dict({name: of for name, of in tensors.items() if "head" not in name})
    inputs = np.random.default_rng(1).standard_normal((4, 20, 3))
    with jax.enable_x64(True), torch.no_grad():
        parameters = {name: jnp.asarray(value) for name, value in weights.items()}
        ours = np.asarray(network.outputs(parameters, jnp.asarray(inputs)))
        states = cell(torch.tensor(inputs))[0].numpy()
    assert ours == pytest.approx(states @ weights["head.weight"].T + weights["head.bias"])


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in LINEAR])
@pytest.mark.parametrize(("layers", "block"), [(1, ()), (2, ()), (3, DEEP)])
def test_every_layer_is_recognised(kind: str, layers: int, block: tuple[str, ...]) -> None:
    network = Stack(LAYERS[kind], layers, 8, 1, 1, block, Start(orthogonal=True, forget_bias=1.0))
    weights = network.initialise(np.random.default_rng(0))
    assert len(inspect(weights, simulate=False).layers) == layers
    owned = [name for index in range(layers) for name in network.names(index, weights).values()]
    assert len(owned) == len({*owned})
    rest = {"encoder", "head", "norm", "glu"}
    assert all(rest & {*name.split(".")} for name in weights.keys() - {*owned})


@pytest.mark.parametrize("kind", LINEAR)
def test_students_run_step_by_step_as_they_train(kind: str) -> None:
    network = Stack(LAYERS[kind], 1, 16, 1, 1)
    drawn = network.initialise(np.random.default_rng(0))
    parameters = {name: jnp.asarray(value, jnp.float32) for name, value in drawn.items()}
    inputs = jax.random.normal(jax.random.key(0), (3, 50))
    ours = network.outputs(parameters, inputs[..., None])[..., 0]
    trained_as = np.asarray(LINEAR[kind].outputs(parameters, inputs))
    assert np.asarray(ours) == pytest.approx(trained_as, abs=1e-4 * float(np.abs(trained_as).max()))


@pytest.mark.parametrize("kind", ["GRU", "dense"])
def test_tangents_are_those_that_memcurse_runs(kind: str) -> None:
    problem = Problem(kind, TAUGHT if kind in LINEAR else OWN, 16, 60, modulus=0.9)
    task = problem.assignment()
    network = problem.network(task)
    (layer,) = quantities(network, task, problem.initial(network))["layers"]
    (reported,) = layer["reported"]
    value, error = layer["alone"]["state_last"]
    theirs = reported["simulated"]["effects"].values()
    spread = math.hypot(error, *(one for _, one in theirs))
    assert value == pytest.approx(reported["simulated"]["together"], abs=4 * spread)


def test_a_rate_keeps_a_loss_that_stays_below_three_times_what_it_was() -> None:
    losses = np.ones((4, 10))
    losses[1] = 4.0
    losses[3, 2] = np.nan
    assert kept_rate(losses, (1, 2, 3, 4), trained=1.0, silent=1.0) == {"rate": 3, "up_to": 1}
    losses[0] = 4.0
    losses[2, 0] = 11.0
    assert kept_rate(losses, (1, 2, 3, 4), trained=1.0, silent=1.0) == {"rate": None, "up_to": None}


def test_optimizers_differ_where_they_should() -> None:
    def end_of(optimizer: Optimizer) -> float:
        trainer = Trainer(
            lambda parameters, _: jnp.sum(0 * parameters["w"]), lambda _: 0, optimizer
        )
        return float(trainer.run({"w": np.ones(1)}, seed=0, steps=CHUNK)[0]["w"][-1, 0])

    assert end_of(Optimizer()) == 1
    assert end_of(Optimizer(decay=0.1)) == pytest.approx((1 - 0.1 * 0.1) ** CHUNK, rel=1e-4)
    shares = [float(Optimizer(scheduled=True).share(index, 100)) for index in (0, 9, 10, 55, 100)]
    assert shares == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.0], abs=1e-6)


def test_results_survive_and_every_setup_is_another(tmp_path: Path) -> None:
    assert len({key_of(problem) for problem in PROBLEMS}) == len(PROBLEMS)
    path = tmp_path / "networks.json"
    results = {key_of(one): {"setup": asdict(one)} for one in PROBLEMS}
    save(results, path)
    assert load(path).keys() == results.keys()
