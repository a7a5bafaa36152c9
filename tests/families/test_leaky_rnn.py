"""The leaky rate network under the names of low_rank_rnns, against that library's own step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_found, read_layer
from families.oracles import assert_same_spectrum, jacobian
from numpy.testing import assert_allclose

from memcurse_cli.errors import TensorError
from memcurse_cli.families.dense.dense_layer import LeakyRNN

N, INPUTS = 10, 3


def network() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    return {
        "wi": generator.normal(size=(INPUTS, N)),
        "si": generator.uniform(0.5, 2, size=INPUTS),
        "wrec": generator.normal(size=(N, N)) / np.sqrt(N),
        "wo": generator.normal(size=(N, 1)),
        "so": np.ones(1),
        "h0": np.zeros(N),
    }


def step(h: torch.Tensor, x: torch.Tensor, alpha: float) -> torch.Tensor:
    """FullRankRNN.forward of low_rank_rnns.modules without noise."""
    wi, si, wrec = (torch.tensor(network()[name]) for name in ("wi", "si", "wrec"))
    full = (wi.t() * si).t()
    return h + alpha * (-h + torch.tanh(h) @ wrec.t() + x @ full)


@pytest.mark.parametrize(("given", "alpha"), [({}, 0.2), ({"alpha": "0.5"}, 0.5)])
def test_the_spectrum_and_the_input_of_one_step(given: dict[str, str], alpha: float) -> None:
    recurrence = read_layer(network(), LeakyRNN(), **given)
    still, silent = (torch.zeros(size, dtype=torch.float64) for size in (N, INPUTS))
    transition = jacobian(lambda h: step(h, silent, alpha), N)
    readin = jacobian(lambda x: step(still, x, alpha), INPUTS)
    theirs = np.linalg.eigvals(transition)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert_allclose(recurrence.dense.matrix, transition, atol=1e-15)
    assert_allclose(recurrence.readin, readin, atol=1e-15)
    assert any("0.2" in sentence for sentence in recurrence.assumptions) == (not given)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"alpha": 0.25}, "alpha=0.25 (stored as alpha)"),
        ({"leak_rate": 0.25, "dt": 1.0, "tau": 10.0}, "alpha=0.25 (stored as leak_rate)"),
        ({"dt": 5.0, "tau": [20.0]}, "alpha=0.25 (stored as dt/tau)"),
    ],
)
def test_a_leak_in_the_file_is_that_of_the_layer(stored: dict[str, float], said: str) -> None:
    weight = network()["wrec"]
    arrays = {"W_rec": weight, "W_in": weight[:, :2]}
    arrays |= {name: np.asarray(value) for name, value in stored.items()}
    recurrence = read_layer(arrays, LeakyRNN())
    given = read_layer(arrays, LeakyRNN(), alpha="0.5")
    theirs = np.linalg.eigvals(0.75 * np.eye(N) + 0.25 * weight)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert recurrence.assumptions[0].startswith(said)
    assert_allclose(given.dense.matrix, 0.5 * (np.eye(N) + weight))


@pytest.mark.parametrize(
    "stored",
    [{"alpha": np.full(N, 0.2)}, {"alpha": np.array(2.0)}, {"dt": 1.0, "tau": 0.0}, {"tau": 5.0}],
)
def test_a_stored_leak_that_is_not_one_is_refused(stored: dict[str, np.ndarray]) -> None:
    arrays = network() | {name: np.asarray(value) for name, value in stored.items()}
    with pytest.raises(TensorError, match="--assume"):
        read_layer(arrays, LeakyRNN())
    assert read_layer(arrays, LeakyRNN(), alpha="0.5").size == N


def test_the_names_of_pycog() -> None:
    weight, readin = network()["wrec"], network()["wi"].T
    arrays = {"Wrec": weight, "Win": readin, "Wout": np.ones((1, N)), "brec": np.zeros(N)}
    recurrence = read_found(arrays | {"dt": np.array(20.0), "tau": np.array(100.0)})
    theirs = np.linalg.eigvals(0.8 * np.eye(N) + 0.2 * weight)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert_allclose(recurrence.readin, 0.2 * readin)
    leak, activation = recurrence.assumptions
    assert leak.startswith("alpha=0.2 (stored as dt/tau)")
    assert "ReLU" in activation
    assert match_of(arrays | {"Win": readin.T}, LeakyRNN()) == []
