"""The LMU against its own step and the Legendre delay's matrices."""

from __future__ import annotations

import numpy as np
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.signal import cont2discrete

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.dense.dense_rnn import LMU
from memcurse_cli.families.detect import detect

N, H, INPUTS, THETA = 6, 5, 3, 20


def layer_of() -> dict[str, NDArray]:
    rng = np.random.default_rng(16)
    # stateSpaceMatrices(memory_size, theta)
    q = np.arange(N, dtype=np.float64).reshape(-1, 1)
    r = (2 * q + 1) / THETA
    i, j = np.meshgrid(q, q, indexing="ij")
    continuous = (
        r * np.where(i < j, -1, (-1.0) ** (i - j + 1)),
        r * (-1.0) ** q,
        np.ones((1, N)),
        np.zeros((1, 1)),
    )
    a, b, *_ = cont2discrete(continuous, dt=1.0, method="zoh")
    layer = {"A": a, "B": b, "e_m": 0.05 * rng.normal(size=(1, N))}
    shapes = {"e_x": (1, INPUTS), "e_h": (1, H), "W_x": (H, INPUTS), "W_h": (H, H), "W_m": (H, N)}
    layer |= {role: rng.normal(size=shape) for role, shape in shapes.items()}
    return {f"lmu.cell.{role}": values for role, values in layer.items()}


def test_the_memory_decays_as_its_step_says() -> None:
    layer = layer_of()
    part = {name.rpartition(".")[2]: values for name, values in layer.items()}
    recurrence = read_layer(layer, LMU())
    assert recurrence.dense is not None
    assert recurrence.readin is not None
    # LMUCell.forward of an impulse in the second input, with e_h = 0.
    memory = np.zeros(N)
    expected = []
    for step in range(8):
        x = np.eye(INPUTS)[1] * (step == 0)
        u = part["e_x"] @ x + part["e_m"] @ memory
        memory = part["A"] @ memory + part["B"] @ u
        expected.append(memory)
    vectors = recurrence.dense.eigenvectors
    driven = np.linalg.solve(vectors, recurrence.readin[:, 1])
    powers = np.exp(np.outer(recurrence.log_eigenvalues, np.arange(8)))
    assert_allclose((vectors @ (driven[:, None] * powers)).T, expected, rtol=0, atol=1e-11)
    assert "hidden state is left out" in recurrence.assumptions[0]


def test_the_parallel_form_is_dense_and_linear() -> None:
    layer = {"A": layer_of()["lmu.cell.A"], "B": layer_of()["lmu.cell.B"]}
    parallel = layer | {"W_u.weight": np.ones((1, INPUTS)), "W_h.weight": np.ones((H, N + INPUTS))}
    assert match_of(parallel, LMU()) == []
    assert [family.name for family, _ in detect(MemoryStore(parallel).tensors)] == ["dense_linear"]
