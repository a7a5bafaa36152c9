"""Cells whose gates see kernels of convolutions, and MLX's and OpenAI's cells, by their source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.keras import KERAS_CONV_LSTM
from memcurse_cli.families.cells.mlx import MLX_GRU, MLX_LSTM, MLX_RNN
from memcurse_cli.families.cells.tensorflow import TENSORFLOW_LSTM
from memcurse_cli.families.cells.torch_libraries import CONV_GRU
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.neighbours import note_neighbours
from memcurse_cli.families.recurrence import Recurrence

H, INPUTS = 4, 3
Arrays = dict[str, np.ndarray]


def drawn(**shapes: tuple[int, ...]) -> Arrays:
    generator = np.random.default_rng(12)
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {f"{prefix}{name.replace('__', '.')}": array for name, array in arrays.items()}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def read_found(arrays: Arrays, family: Family, **asked: bool) -> Recurrence:
    """The one layer that all families together find, which is this family's."""
    store = MemoryStore(arrays)
    ((found, match),) = detect(store.tensors)
    assert found is family
    return note_neighbours(family, match, family.read(store, match, ReadOptions(**asked)))


def slope(step: Callable[[np.ndarray], np.ndarray], size: int) -> np.ndarray:
    """∂step/∂state at zero, by complex steps."""
    units = np.eye(size) * 1e-20j
    return np.stack([step(unit).imag / 1e-20 for unit in units], axis=1)


def mlx_lstm(x: Arrays, state: np.ndarray) -> np.ndarray:
    h, c = np.split(state, 2)
    i, f, g, o = np.split(x["bias"] + h @ x["Wh"].T, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return np.concatenate([sigmoid(o) * np.tanh(c), c])


def mlx_gru(x: Arrays, h: np.ndarray) -> np.ndarray:
    shown, seen = np.split(x["b"], 3), np.split(h @ x["Wh"].T, 3)
    r, z = (sigmoid(shown[gate] + seen[gate]) for gate in (0, 1))
    n = np.tanh(shown[2] + r * (seen[2] + x["bhn"]))
    return (1 - z) * n + z * h


def baselines(x: Arrays, state: np.ndarray) -> np.ndarray:
    h, c = np.split(state, 2)
    i, f, o, u = np.split(h @ x["wh"] + x["b"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
    return np.concatenate([sigmoid(o) * np.tanh(c), c])


MLX = {
    "lstm": drawn(Wx=(4 * H, INPUTS), Wh=(4 * H, H), bias=(4 * H,)),
    "gru": drawn(Wx=(3 * H, INPUTS), Wh=(3 * H, H), b=(3 * H,), bhn=(H,)),
}
BASELINES = drawn(wx=(INPUTS, 4 * H), wh=(H, 4 * H), b=(4 * H,))
PLAIN = {
    "mlx_lstm": (MLX_LSTM, "net.lstm.", MLX["lstm"], mlx_lstm, ("bias", 1)),
    "mlx_gru": (MLX_GRU, "gru.", MLX["gru"], mlx_gru, ("b", 1)),
    "baselines": (TENSORFLOW_LSTM, "ppo2_model/pi/lstm1/", BASELINES, baselines, ("b", 1)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_cell_steps_as_its_source_does(name: str) -> None:
    family, prefix, arrays, step, (bias, block) = PLAIN[name]
    found = read_found(prefixed(prefix, arrays), family, spectra=True, gates=True)
    assert found.name == prefix[:-1]
    assert not found.assumptions
    kept = sigmoid(arrays[bias][block * H : (block + 1) * H])
    assert_allclose(np.exp(found.log_eigenvalues), kept, rtol=1e-12)
    order = H if name == "mlx_gru" else 2 * H
    jacobian = slope(lambda state: step(arrays, state), order)
    assert found.hidden is not None
    assert found.hidden.jacobian is not None
    assert_same_spectrum(found.hidden.jacobian, np.linalg.eigvals(jacobian), 1e-11)


def test_mlx_before_it_turned_its_matrices() -> None:
    turned = {name: array.T for name, array in MLX["lstm"].items()}
    now, before = (
        read_found(prefixed("lstm.", arrays), MLX_LSTM, spectra=True)
        for arrays in (MLX["lstm"], turned)
    )
    assert now.hidden is not None
    assert before.hidden is not None
    assert_allclose(before.hidden.jacobian, now.hidden.jacobian, rtol=1e-12)


def test_an_rnn_of_mlx() -> None:
    arrays = drawn(Wxh=(H, INPUTS), Whh=(H, H), bias=(H,))
    found = read_found(prefixed("rnn.", arrays), MLX_RNN)
    assert_same_spectrum(np.exp(found.log_eigenvalues), np.linalg.eigvals(arrays["Whh"]), 1e-10)
    assert found.readin is not None
    assert_allclose(found.readin, arrays["Wxh"])


def test_the_normalised_lstm_of_the_baselines_is_refused() -> None:
    arrays = prefixed("lstm1/", BASELINES | {"gx": np.ones(4 * H), "bx": np.zeros(4 * H)})
    with pytest.raises(TensorError, match="it changes λ of the layer"):
        read_found(arrays, TENSORFLOW_LSTM)


KERNEL = (3, 3)
KERAS = drawn(kernel=(*KERNEL, INPUTS, 4 * H), recurrent_kernel=(*KERNEL, H, 4 * H), bias=(4 * H,))
RAFT = {
    f"conv{letter}.{part}": array
    for letter in "zrq"
    for part, array in drawn(weight=(H, H + INPUTS, *KERNEL), bias=(H,)).items()
}
SEPARATE = {
    name.replace(".", f"{half}."): (1 + 0.5 * half) * array
    for name, array in RAFT.items()
    for half in (1, 2)
}
RVM = prefixed(
    "",
    drawn(
        ih__0__weight=(2 * H, 2 * H, *KERNEL),
        ih__0__bias=(2 * H,),
        hh__0__weight=(H, 2 * H, *KERNEL),
        hh__0__bias=(H,),
    ),
)
CONVOLUTIONS: dict[str, tuple[Family, str, Arrays, np.ndarray]] = {
    "keras": (
        KERAS_CONV_LSTM,
        "conv_lstm2d/",
        KERAS,
        np.clip(0.2 * KERAS["bias"][H : 2 * H] + 0.5, 0, 1),
    ),
    "keras_3": (
        KERAS_CONV_LSTM,
        "layers/conv_lstm2d/cell/vars/",
        dict(zip("012", KERAS.values(), strict=True)),
        sigmoid(KERAS["bias"][H : 2 * H]),
    ),
    "raft": (CONV_GRU, "update_block.gru.", RAFT, 1 - sigmoid(RAFT["convz.bias"])),
    "raft_separate": (
        CONV_GRU,
        "update_block.gru.",
        SEPARATE,
        (1 - sigmoid(SEPARATE["convz1.bias"])) * (1 - sigmoid(SEPARATE["convz2.bias"])),
    ),
    "rvm": (CONV_GRU, "decoder.decode4.gru.", RVM, 1 - sigmoid(RVM["ih.0.bias"][H:])),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_channel_keeps_what_its_bias_says(name: str) -> None:
    family, prefix, arrays, kept = CONVOLUTIONS[name]
    stored = prefixed(prefix, arrays)
    found = read_found(stored, family, spectra=True, gates=True)
    assert_allclose(np.exp(found.log_eigenvalues), kept, rtol=1e-12)
    if family is CONV_GRU:
        assert_allclose(np.exp(found.log_gain), 1 - kept, rtol=1e-12)
    assert "a channel by itself" in found.assumptions[-1]
    assert found.hidden is not None
    assert found.hidden.jacobian is None
    assert "convolution" in (found.hidden.reason or "") or "hard" in (found.hidden.reason or "")
    assert isinstance(found.gate, NoDrive)


@pytest.mark.parametrize("name", ["raft", "raft_separate", "rvm"])
def test_the_derivatives_of_a_convolutional_gru(name: str) -> None:
    elements = {"ih.0.bias[update]": slice(H, 2 * H)}
    check_derivatives(CONVOLUTIONS[name][2], CONV_GRU, elements=elements)


def test_kernels_of_other_widths_are_no_cell() -> None:
    def found(family: Family, arrays: Arrays) -> int:
        return len(family.find(MemoryStore(arrays).tensors))

    assert not found(CONV_GRU, RAFT | {"convr.weight": np.ones((H, H + 1, 1, 1))})
    assert not found(CONV_GRU, RVM | {"hh.0.weight": np.ones((H, 2 * H))})
    assert not found(CONV_GRU, {name: SEPARATE[name] for name in SEPARATE if "q2" not in name})
    assert not found(KERAS_CONV_LSTM, KERAS | {"kernel": np.ones((3, 3, INPUTS, 3 * H))})
    assert not found(MLX_LSTM, MLX["lstm"] | {"bias": np.ones(3 * H)})


def test_the_activation_of_convolutional_gates_can_be_told() -> None:
    told = read_layer(KERAS, KERAS_CONV_LSTM, recurrent_activation="sigmoid")
    assert_allclose(np.exp(told.log_eigenvalues), sigmoid(KERAS["bias"][H : 2 * H]), rtol=1e-12)
