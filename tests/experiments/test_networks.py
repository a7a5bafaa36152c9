"""The students against the recurrence, step by step, as their papers define it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import torch

from benchmarks.calibration.setups import BlockDiagonalRNN, S4DChannel
from memcurse_cli.experiments.training import GRU, LRU, ComplexDiagonalRNN, DenseLinearRNN

UNITS = 6


def step_by_step(A, B, C, D, inputs):
    """``h ← A h + B x``, ``y = Re[C h] + D x`` by an explicit loop."""
    outputs = np.empty_like(inputs)
    for sequence, row in enumerate(inputs):
        state = np.zeros(len(A), complex)
        for step, x in enumerate(row):
            state = A @ state + B * x
            outputs[sequence, step] = (C @ state).real + D * x
    return outputs


def as_dense(p):
    return p["A"], p["B"][:, 0], p["C"][0], p["D"][0, 0]


def as_complex_diagonal(p):
    transition = np.diag(p["A_re"] + 1j * p["A_im"])
    return transition, p["B_re"][:, 0] + 1j * p["B_im"][:, 0], *readout(p)


def as_lru(p):
    transition = np.diag(np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"])))
    readin = np.exp(p["gamma_log"]) * (p["B_re"][:, 0] + 1j * p["B_im"][:, 0])
    return transition, readin, *readout(p)


def as_blocks(p):
    return scipy.linalg.block_diag(*p["A"]), *as_dense(p)[1:]


def as_s4d(p):
    step, rate = np.exp(p["log_dt"][0]), -np.exp(p["log_A_real"][0]) + 1j * p["A_imag"][0]
    eigenvalues = np.exp(step * rate)
    output = 2 * (p["C"][0, :, 0] + 1j * p["C"][0, :, 1])
    return np.diag(eigenvalues), (eigenvalues - 1) / rate, output, p["D"][0]


def readout(p):
    return p["C_re"][0] + 1j * p["C_im"][0], p["D"][0]


CASES = [
    pytest.param(DenseLinearRNN(), as_dense, id="dense"),
    pytest.param(ComplexDiagonalRNN(), as_complex_diagonal, id="complex diagonal"),
    pytest.param(LRU(), as_lru, id="LRU"),
    pytest.param(BlockDiagonalRNN(), as_blocks, id="block diagonal"),
    pytest.param(S4DChannel(), as_s4d, id="S4D"),
]


@pytest.mark.parametrize("horizon", [1, 13])
@pytest.mark.parametrize(("network", "matrices"), CASES)
def test_outputs_are_those_of_the_recurrence(network, matrices, horizon):
    random = np.random.default_rng(horizon)
    parameters = network.initialise(random, UNITS, 0.9)
    inputs = random.standard_normal((3, horizon))
    with jax.enable_x64(True):
        outputs = np.asarray(network.outputs(to_jax(parameters), jnp.asarray(inputs)))
    expected = step_by_step(*matrices(parameters), inputs)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def to_jax(parameters):
    return {name: jnp.asarray(value) for name, value in parameters.items()}


def test_torch_computes_the_same_gru_from_the_same_tensors():
    random = np.random.default_rng(5)
    parameters = GRU().initialise(random, UNITS, 0.0)
    inputs = random.standard_normal((3, 17))
    state = {name: torch.from_numpy(value) for name, value in parameters.items()}
    head = {name.removeprefix("head."): state.pop(name) for name in ("head.weight", "head.bias")}
    gru = torch.nn.GRU(1, UNITS, batch_first=True, dtype=torch.float64)
    gru.load_state_dict(state)
    linear = torch.nn.Linear(UNITS, 1, dtype=torch.float64)
    linear.load_state_dict(head)
    with torch.no_grad():
        expected = linear(gru(torch.from_numpy(inputs)[:, :, None])[0])[:, :, 0].numpy()
    with jax.enable_x64(True):
        outputs = np.asarray(GRU().outputs(to_jax(parameters), jnp.asarray(inputs)))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-14)
