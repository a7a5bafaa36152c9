"""The gates of FastGRNN against its own run, and shapes that are none."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.papers import FastGRNN

RNG = np.random.default_rng(9)
SIZE, RANK = 5, 2
WHOLE = {
    "W": RNG.normal(size=(SIZE, 3)),
    "U": RNG.normal(size=(SIZE, SIZE)),
    "bias_gate": RNG.normal(size=(1, SIZE)) + 1,
    "bias_update": RNG.normal(size=(1, SIZE)),
    "zeta": np.array([[0.7]]),
    "nu": np.array([[-2.0]]),
}
LOW_RANK = {name: array for name, array in WHOLE.items() if name != "U"} | {
    "U1": RNG.normal(size=(RANK, SIZE)),
    "U2": RNG.normal(size=(SIZE, RANK)),
}


@pytest.mark.parametrize("low_rank", [False, True])
@pytest.mark.parametrize("nu", [-4.0, -0.5])  # -0.5: the state is larger than 1
def test_the_band_and_the_state_are_those_of_the_cell(low_rank: bool, nu: float) -> None:
    size, inputs, rank = 64, 16, 8
    random = np.random.default_rng(2)
    arrays = {
        "bias_gate": 1 + random.normal(size=(1, size)),
        "bias_update": 0.3 * random.normal(size=(1, size)),
        "zeta": np.array([[1.0]]),
        "nu": np.array([[nu]]),
    }
    if low_rank:
        arrays |= {
            "W1": random.normal(size=(rank, inputs)) / 4,
            "W2": random.normal(size=(size, rank)) / 3,
            "U1": random.normal(size=(rank, size)) / 8,
            "U2": random.normal(size=(size, rank)) / 20,
        }
        w, u = arrays["W2"] @ arrays["W1"], arrays["U2"] @ arrays["U1"]
    else:
        arrays |= {
            "W": random.normal(size=(size, inputs)) / 3,
            "U": random.normal(size=(size, size)) / 48,
        }
        w, u = arrays["W"], arrays["U"]
    seen = w @ random.normal(size=(inputs, 20_000))
    h, gates, squares = np.zeros(size), [], []
    opened, floor = (1 / (1 + np.exp(-arrays[name][0, 0])) for name in ("zeta", "nu"))
    for step, driven in enumerate(seen.T):
        both = driven + u @ h
        z = 1 / (1 + np.exp(-both - arrays["bias_gate"][0]))
        h = z * h + (opened * (1 - z) + floor) * np.tanh(both + arrays["bias_update"][0])
        if step > 500:
            gates.append(z)
            squares.append(np.mean(h**2))
    drive = drive_of(MemoryStore(arrays), FastGRNN())
    assert drive.state is not None
    bands = gates_of(arrays)
    check_bands(bands, np.array(gates))
    assert_allclose(bands.hidden_second_moment, np.mean(squares), rtol=0.1)


def test_without_its_input_weights_there_is_no_band() -> None:
    arrays = {name: array for name, array in WHOLE.items() if name != "W"}
    assert "weights are not in the file" in (gates_of(arrays).reason or "")


@pytest.mark.parametrize(
    "change",
    [
        {"zeta": np.zeros((1, SIZE))},
        {"nu": np.zeros(1)},
        {"bias_gate": np.zeros(SIZE)},
        {"bias_update": np.zeros((1, 2))},
        {"U": np.zeros((SIZE, 2))},
    ],
)
def test_other_shapes_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of({**WHOLE, **change}, FastGRNN()) == []


def test_factors_that_do_not_make_a_matrix_are_not_it() -> None:
    assert match_of({**LOW_RANK, "U2": np.zeros((SIZE, 3))}, FastGRNN()) == []
    assert match_of({**LOW_RANK, "U1": np.zeros((RANK, 3))}, FastGRNN()) == []
