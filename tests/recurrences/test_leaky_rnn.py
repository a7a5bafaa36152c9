"""The leaky rate network under the names of low_rank_rnns, against that library's own step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from recurrences.derivatives import match_of, read_layer
from recurrences.oracles import assert_same_spectrum

from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.leaky_rnn import LeakyRNN

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
    jacobian = torch.autograd.functional.jacobian
    transition = jacobian(lambda h: step(h, silent, alpha), still).numpy()
    readin = jacobian(lambda x: step(still, x, alpha), silent).numpy()
    theirs = np.linalg.eigvals(transition)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
    assert recurrence.dense is not None
    assert_allclose(recurrence.dense.matrix, transition, atol=1e-15)
    assert recurrence.readin is not None
    assert_allclose(recurrence.readin, readin, atol=1e-15)
    assert any("0.2" in sentence for sentence in recurrence.assumptions) == (not given)


def test_matrices_that_do_not_fit() -> None:
    assert match_of(network() | {"wi": np.zeros((INPUTS, N + 1))}, LeakyRNN()) == []
    assert match_of(network() | {"wrec": np.zeros((N, N + 1))}, LeakyRNN()) == []
    with pytest.raises(TensorError, match="si"):
        read_layer(network() | {"si": np.ones(INPUTS + 1)}, LeakyRNN())
