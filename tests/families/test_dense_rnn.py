"""Dense recurrences against torch's own step and brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families.derivatives import read_layer
from families.examples import drawn
from families.oracles import assert_same_spectrum, read_layers
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.linalg import block_diag

from benchmarks.calibration.setups import BlockDiagonalRNN as Network
from memcurse_cli import inspect
from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.errors import NoRecurrenceError, TensorError
from memcurse_cli.families.dense.dense_layer import LeakyRNN
from memcurse_cli.families.dense.dense_rnn import ELMAN_RNN, LMU, BlockDiagonalRNN
from memcurse_cli.families.detect import detect
from memcurse_cli.families.detect import read_layer as read_found
from memcurse_cli.families.family import ReadOptions

H = 5


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantised_weights_without_their_scale_are_refused(dtype: type) -> None:
    with pytest.raises(TensorError, match="whole numbers of eight bits"):
        read_layer({"rnn.weight_hh_l0": np.array([[90, 2], [3, 40]], dtype)}, ELMAN_RNN)
    # What someone wrote by hand is no code of a quantised value.
    recurrence = read_layer({"rnn.weight_hh_l0": np.array([[0, 1], [0, 0]], dtype)}, ELMAN_RNN)
    assert recurrence.size == 2


def test_psychrnn(trained: Path) -> None:
    folder = trained / "psychrnn_npz"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    (leaky,) = read_layers(folder / "saved_weights.npz").values()
    (undamped,) = read_layers(folder / "saved_weights.npz", alpha="1").values()
    assert any("0.1" in sentence for sentence in leaky.assumptions)
    assert [sentence.split(":")[0] for sentence in undamped.assumptions] == ["alpha=1 (as given)"]
    for recurrence, expected in (
        (leaky, oracle["leaky_step_alpha=0.1"]["W"]),
        (undamped, oracle["W_rec (effective = W_rec*rec_connectivity)"]["W_rec"]),
    ):
        moduli = np.sort(np.exp(recurrence.log_eigenvalues.real))[::-1]
        assert_allclose(moduli[:16], expected["abs_eigs_sorted_desc"], rtol=1e-9)
        condition = np.linalg.cond(recurrence.dense.eigenvectors)
        assert_allclose(condition, expected["cond_eigvec_2norm"], rtol=1e-6)
        assert_allclose(np.linalg.norm(recurrence.dense.matrix), expected["fro_norm"], rtol=1e-9)


def test_dales_law_and_the_leak() -> None:
    random = np.random.default_rng(11)
    weight, mask = random.normal(size=(H, H)), (random.random((H, H)) < 0.7).astype(float)
    dale = np.diag([1.0, 1, 1, -1, -1])
    arrays = {"W_rec": weight, "W_in": np.ones((H, 2)), "rec_connectivity": mask, "Dale_rec": dale}
    recurrence = read_layer(arrays, LeakyRNN(), alpha="0.25")
    expected = 0.75 * np.eye(H) + 0.25 * np.abs(weight * mask) @ dale
    assert_allclose(recurrence.dense.matrix, expected)
    assert_allclose(recurrence.readin, 0.25)
    assert recurrence.dense.scale == 0.25
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), np.linalg.eigvals(expected))


def test_a_linear_system_is_read_where_its_family_is_named() -> None:
    """``x' = A x + w``, ``y = C x + v`` with the covariances of w and v."""
    rng = np.random.default_rng(7)
    arrays = {"A": 0.3 * rng.normal(size=(4, 4)), "C": rng.normal(size=(2, 4))}
    arrays |= {"Q": np.eye(4), "R": np.eye(2)}
    store = MemoryStore(arrays)
    with pytest.raises(NoRecurrenceError):
        detect(store.tensors)
    driven = MemoryStore(arrays | {"B": rng.normal(size=(4, 3))})
    assert [family.name for family, _ in detect(driven.tensors)] == ["dense_linear"]
    for each in (store, driven):
        ((family, match),) = detect(each.tensors, "linear_system")
        recurrence = read_found(family, each, match, ReadOptions())
        theirs = np.linalg.eigvals(arrays["A"])
        assert_same_spectrum(np.exp(recurrence.log_eigenvalues), theirs, 1e-12)
        assert_allclose(recurrence.readout, arrays["C"])
        assert (recurrence.readin is None) == (each is store)
        assert recurrence.assumptions == ()
    (layer,) = inspect(arrays, family="linear_system").layers
    assert layer.family == "linear_system"
    with pytest.raises(NoRecurrenceError):
        detect(MemoryStore(arrays | {"dt": np.ones(1)}).tensors, "linear_system")


UNITS = 12


@pytest.fixture
def state() -> dict[str, np.ndarray]:
    return Network().initialise(np.random.default_rng(0), UNITS, 0.9)


def test_the_hessian_says_that_heads_are_taken_apart(state: dict[str, np.ndarray]) -> None:
    """Over all heads, whose outputs add up, it has blocks that no head's own has."""
    for layer in hessian(state, horizon=50).layers:
        assert "of the other heads" in (layer.left_out or "")
    alone = {"A": state["A"][0], "B": state["B"][: state["A"].shape[1]]}
    (dense,) = hessian(alone | {"C": state["C"][:, : len(alone["B"])]}, horizon=50).layers
    assert "heads" not in (dense.left_out or "")


def test_an_impulse_decays_as_the_heads_say(state: dict[str, np.ndarray]) -> None:
    """The layer's response, step by step, from the eigenvalues, B and C of every head."""
    family = BlockDiagonalRNN()
    with MemoryStore({f"rnn.{name}": value for name, value in state.items()}) as store:
        matches = family.find(store.tensors)
        layers = [family.read(store, match, ReadOptions()) for match in matches]
    whole = block_diag(*state["A"])
    for lag in (0, 1, 7, 40):
        expected = state["C"] @ np.linalg.matrix_power(whole, lag) @ state["B"]
        response = 0
        for layer in layers:
            vectors = layer.dense.eigenvectors
            power = vectors @ np.diag(np.exp(lag * layer.log_eigenvalues)) @ np.linalg.inv(vectors)
            response = response + layer.readout @ power @ layer.readin
        np.testing.assert_allclose(response, expected, atol=1e-10)


N, INPUTS = 6, 3


def lmu() -> dict[str, NDArray]:
    return {name: 0.3 * array for name, array in drawn("lmu").items()}


def test_the_memory_decays_as_its_step_says() -> None:
    part = {name.rpartition(".")[2]: values for name, values in lmu().items()}
    recurrence = read_layer(lmu(), LMU())

    def step(memory: NDArray, x: NDArray) -> NDArray:
        """LMUCell.forward with e_h = 0."""
        u = part["e_x"] @ x + part["e_m"] @ memory
        return part["A"] @ memory + part["B"] @ u

    matrix = np.stack([step(unit, np.zeros(INPUTS)) for unit in np.eye(N)], axis=1)
    readin = np.stack([step(np.zeros(N), unit) for unit in np.eye(INPUTS)], axis=1)
    assert_allclose(recurrence.dense.matrix, matrix, rtol=0, atol=1e-14)
    assert_allclose(recurrence.readin, readin, rtol=0, atol=1e-14)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), np.linalg.eigvals(matrix), 1e-12)
    assert "hidden state is left out" in recurrence.assumptions[0]
