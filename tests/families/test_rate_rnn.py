"""coRNN and low-rank networks against autodiff of one step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum, jacobian
from numpy.testing import assert_allclose

from memcurse_cli.families.dense.dense_layer import CoRNN, LowRankRNN

H, INPUTS = 4, 2
VALUES = {"dt": "0.042", "gamma": "2.7", "epsilon": "4.7"}


def cell() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    return {
        "cell.i2h.weight": generator.normal(size=(H, INPUTS + 2 * H)),
        "cell.i2h.bias": np.zeros(H),
        "readout.weight": np.zeros((3, H)),
        "readout.bias": np.zeros(3),
    }


def split() -> dict[str, np.ndarray]:
    """The same with the states' weight apart, as for IMDB."""
    joint = cell()["cell.i2h.weight"]
    return {
        "rnn.i2h.weight": joint[:, :INPUTS],
        "rnn.i2h.bias": np.zeros(H),
        "rnn.h2h.weight": joint[:, INPUTS:],
    }


def step(
    state: torch.Tensor, x: torch.Tensor, dt: float, gamma: float, epsilon: float
) -> torch.Tensor:
    """[y, z] after coRNNCell.forward."""
    y, z = state[:H], state[H:]
    weight = torch.tensor(cell()["cell.i2h.weight"])
    z = z + dt * (torch.tanh(weight @ torch.cat([x, z, y])) - gamma * y - epsilon * z)
    return torch.cat([y + dt * z, z])


@pytest.mark.parametrize("values", [VALUES, {"dt": "0.3", "gamma": "1", "epsilon": "0.2"}])
@pytest.mark.parametrize("arrays", [cell(), split()], ids=["joint", "split"])
def test_the_spectrum_and_the_response_of_one_step(
    arrays: dict[str, np.ndarray], values: dict[str, str]
) -> None:
    recurrence = read_layer(arrays, CoRNN(), **values)
    dt, gamma, epsilon = (float(value) for value in values.values())
    silence = torch.zeros(INPUTS, dtype=torch.float64)
    origin = torch.zeros(2 * H, dtype=torch.float64)
    transition = jacobian(lambda s: step(s, silence, dt, gamma, epsilon), 2 * H)
    theirs = np.linalg.eigvals(transition)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-11)
    # A drive of A's own coordinates: the norm of the state is that of (y, z).
    own = jacobian(lambda x: step(origin, x, dt, gamma, epsilon), INPUTS)
    ours = recurrence.readin.real
    for _ in range(4):
        assert_allclose(ours.T @ ours, own.T @ own, rtol=1e-11, atol=1e-15)
        ours, own = recurrence.dense.matrix @ ours, transition @ own


N, RANK, DRIVES = 12, 2, 3


def network(scale: float = 2.0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    m = generator.normal(size=(N, RANK))
    return {
        "wi": generator.normal(size=(DRIVES, N)),
        "m": m,
        "n": scale * m + generator.normal(size=(N, RANK)),
        "wo": generator.normal(size=(N, 1)),
        "b": np.zeros(N),
        "h0": np.zeros(N),
    }


def rate_step(h: torch.Tensor, alpha: float, units: int) -> torch.Tensor:
    """LowRankRNN.forward of low_rank_rnns.modules without input and noise."""
    m, n = (torch.tensor(network()[name]) for name in ("m", "n"))
    r = torch.tanh(h)
    return h + alpha * (-h + (r @ n) @ m.T / units)


@pytest.mark.parametrize(("connectivity", "units"), [("mean", N), ("sum", 1)])
@pytest.mark.parametrize("alpha", [0.2, 0.5])
def test_the_spectrum_of_one_step(connectivity: str, units: int, alpha: float) -> None:
    given = {"alpha": str(alpha), "connectivity": connectivity}
    recurrence = read_layer(network(), LowRankRNN(), **given)
    assert recurrence.name == "low_rank_rnn"
    theirs = np.linalg.eigvals(jacobian(lambda h: rate_step(h, alpha, units), N))
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert any("as given" in sentence for sentence in recurrence.assumptions)
    stored = network() | {"alpha": np.array(alpha)}
    again = read_layer(stored, LowRankRNN(), connectivity=connectivity)
    assert_allclose(again.log_eigenvalues, recurrence.log_eigenvalues, rtol=0)
    assert f"alpha={alpha} (stored as alpha)" in " ".join(again.assumptions)


@pytest.mark.parametrize("connectivity", ["mean", "sum"])
def test_derivatives(connectivity: str) -> None:
    check_derivatives(network(), LowRankRNN(), connectivity=connectivity)


def test_complex_pairs() -> None:
    m = np.linalg.qr(np.random.default_rng(0).normal(size=(N, RANK)))[0]
    arrays = network() | {"m": 3 * m, "n": 4 * m @ np.array([[1.0, 2.0], [-2.0, 1.0]])}
    recurrence = read_layer(arrays, LowRankRNN())
    assert_allclose(np.exp(recurrence.log_eigenvalues[:2]), 0.8 + 0.2 * np.array([1 - 2j, 1 + 2j]))
    check_derivatives(arrays, LowRankRNN())
