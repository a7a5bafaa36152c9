"""The GRU student against an explicit loop and against torch with the same tensors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

from memcurse_cli.experiments.gru_network import GRU

UNITS, BATCH, HORIZON = 4, 3, 17


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def outputs_of(parameters, inputs):
    with jax.enable_x64(True):
        as_jax = {name: jnp.asarray(value) for name, value in parameters.items()}
        return np.asarray(GRU().outputs(as_jax, jnp.asarray(inputs)))


def draw():
    random = np.random.default_rng(5)
    return GRU().initialise(random, UNITS, 0.0), random.standard_normal((BATCH, HORIZON))


def test_outputs_are_those_of_the_equations():
    p, inputs = draw()
    Wr, Wz, Wn = np.split(p["weight_ih_l0"][:, 0], 3)
    Ur, Uz, Un = np.split(p["weight_hh_l0"], 3)
    br, bz, bn = np.split(p["bias_ih_l0"], 3)
    cr, cz, cn = np.split(p["bias_hh_l0"], 3)
    expected = np.empty_like(inputs)
    for sequence, row in enumerate(inputs):
        h = np.zeros(UNITS)
        for step, x in enumerate(row):
            r = sigmoid(Wr * x + br + Ur @ h + cr)
            z = sigmoid(Wz * x + bz + Uz @ h + cz)
            n = np.tanh(Wn * x + bn + r * (Un @ h + cn))
            h = (1 - z) * n + z * h
            expected[sequence, step] = p["head.weight"][0] @ h + p["head.bias"][0]
    np.testing.assert_allclose(outputs_of(p, inputs), expected, rtol=0, atol=1e-14)


def test_torch_computes_the_same_from_the_same_tensors():
    parameters, inputs = draw()
    state = {name: torch.from_numpy(value) for name, value in parameters.items()}
    head = {name.removeprefix("head."): state.pop(name) for name in ("head.weight", "head.bias")}
    gru = torch.nn.GRU(1, UNITS, batch_first=True, dtype=torch.float64)
    gru.load_state_dict(state)
    linear = torch.nn.Linear(UNITS, 1, dtype=torch.float64)
    linear.load_state_dict(head)
    with torch.no_grad():
        expected = linear(gru(torch.from_numpy(inputs)[:, :, None])[0])[:, :, 0].numpy()
    np.testing.assert_allclose(outputs_of(parameters, inputs), expected, rtol=0, atol=1e-14)
