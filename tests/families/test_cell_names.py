"""What is taken for a gated or an Elman cell, under which name, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints.readers import arrays_of
from families.cell_steps import CASES, INPUTS, H
from families.derivatives import match_of, read_found, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.cells.libraries import TENSORFLOW_LSTM
from memcurse_cli.families.cells.torch import LSTM, MGU, hidden_weights
from memcurse_cli.families.detect import detect, named_family

Arrays = dict[str, np.ndarray]


def drawn(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def found(arrays: Arrays) -> list[tuple[str, str]]:
    return [(family.name, match.layer) for family, match in detect(MemoryStore(arrays).tensors)]


# Elman cells: the names of W, U and what is the first's shape; the layer, its family, activation.
ELMAN = {
    "haiku": ("vanilla_rnn/", "linear/w", "linear_1/w", "haiku_rnn", "relu", True),
    "haiku inside": ("net/~/my_rnn_1/", "linear/w", "linear_1/w", "haiku_rnn", "relu", True),
    "sonnet 2": ("core/", "input_to_hidden/w", "hidden_to_hidden/w", "haiku_rnn", "tanh", True),
    "mlx": ("rnn.", "Wxh", "Whh", "mlx_rnn", "tanh", False),
}


@pytest.mark.parametrize(("module", "w", "u", "family", "activation", "columns"), ELMAN.values())
def test_an_elman_cell(
    module: str, w: str, u: str, family: str, activation: str, columns: bool
) -> None:
    arrays = drawn(
        {f"{module}{w}": (INPUTS, H) if columns else (H, INPUTS), f"{module}{u}": (H, H)}
    )
    assert found(arrays) == [(family, module[:-1])]
    recurrence = read_layer(arrays, named_family(family))
    readin, matrix = (array.T if columns else array for array in arrays.values())
    assert_allclose(recurrence.dense.matrix, matrix)
    assert_allclose(recurrence.readin, readin)
    assert recurrence.dense.activation == activation


def test_the_basic_cell_of_tensorflow() -> None:
    arrays = drawn({"kernel:0": (INPUTS + H, H), "bias:0": (H,)})
    arrays = {f"rnn/basic_rnn_cell/{name}": array for name, array in arrays.items()}
    assert found(arrays) == [("tf_rnn", "rnn/basic_rnn_cell")]
    recurrence = read_layer(arrays, named_family("tf_rnn"))
    kernel, _ = arrays.values()
    assert_allclose(recurrence.dense.matrix, kernel[INPUTS:].T)
    assert_allclose(recurrence.readin, kernel[:INPUTS].T)


def test_every_layer_direction_and_cell_has_its_name() -> None:
    arrays = arrays_of(torch.nn.LSTM(3, H, num_layers=2, bidirectional=True))
    layers = [match.layer for match in match_of(arrays, LSTM)]
    assert layers == ["l0", "l0_reverse", "l1", "l1_reverse"]
    for prefix in ("", "model.", "module._orig_mod.net.", "a/b/", "params,x,"):
        cell = {f"{prefix}{n}": array for n, array in arrays_of(torch.nn.LSTMCell(3, H)).items()}
        (match,) = match_of(cell, LSTM)
        assert match.layer == (prefix[:-1] or "lstm")
        assert match.tensors["bias_hh"] == f"{prefix}bias_hh"


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_the_second_names_of_paddle_s_cells_are_no_second_layers(
    kind: type[torch.nn.RNNBase], both: bool
) -> None:
    """paddle.nn.LSTM holds its weights once as a network's and once as its cells'."""
    plain = {
        f"neck.lstm.{name}": array
        for name, array in arrays_of(kind(3, H, 2, bidirectional=both)).items()
    }
    arrays = dict(plain)
    for name, array in plain.items():
        stem, _, index = name.removesuffix("_reverse").rpartition("_l")
        module, _, what = stem.rpartition(".")
        cell = f"cell_{'bw' if name.endswith('_reverse') else 'fw'}" if both else "cell"
        arrays[f"{module}.{index}.{cell}.{what}"] = array
    assert found(arrays) == found(plain)
    # A cell that stands alone is a layer.
    (match,) = hidden_weights(MemoryStore({"net.0.cell.weight_hh": np.ones((4, 1))}).tensors, "")
    assert match.layer == "net.0.cell"


def test_which_way_the_gate_of_a_cell_of_one_gate_is_defined() -> None:
    case = CASES["mgu"]
    arrays = {name.removeprefix(case.module): array for name, array in case.arrays().items()}
    named = read_layer({f"rnn.{name}": array for name, array in arrays.items()}, MGU)
    assert "gate_keeps=no" in named.assumptions[0]
    ligru = {f"ligru.{name}": array for name, array in arrays.items()}
    recurrence = read_found(ligru, spectra=True)
    assert_allclose(
        np.exp(recurrence.log_eigenvalues), 1 - np.exp(named.log_eigenvalues), rtol=1e-12
    )
    assert "gate_keeps=yes" in recurrence.assumptions[0]
    assert recurrence.hidden.jacobian is None
    assert found(arrays) == [("mgu", "mgu")]


@pytest.mark.parametrize(
    ("module", "bias"),
    [
        ("rnn/cudnn_compatible_lstm_cell", 0.0),
        ("rnn/lstm_fused_cell", 1.0),
        ("rnn/multi_rnn_cell/cell_0/basic_lstm_cell", 1.0),
    ],
)
def test_what_each_cell_of_tensorflow_adds_to_forgetting(module: str, bias: float) -> None:
    case = CASES["tf_lstm"]
    arrays = {f"{name.replace(case.module[:-1], module)}:0": a for name, a in case.arrays().items()}
    recurrence = read_layer(arrays, TENSORFLOW_LSTM)
    assert recurrence.name == module
    stored = arrays[f"{module}/bias:0"][2 * H : 3 * H]
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 1 / (1 + np.exp(-stored - bias)))
    assert bool(recurrence.assumptions) == bool(bias)
    other = read_layer(arrays, TENSORFLOW_LSTM, forget_bias="2")
    assert_allclose(np.exp(other.log_eigenvalues.real), 1 / (1 + np.exp(-stored - 2)))


def test_the_names_of_haste_joined_otherwise_are_keras_s() -> None:
    arrays = CASES["haste_lstm"].arrays()
    for prefix in ("lstm/lstm_cell/", ""):
        named = {name.replace("rnn.", prefix): array for name, array in arrays.items()}
        assert [family for family, _ in found(named)] == ["keras_lstm"]
    arrays = CASES["haste_gru"].arrays()
    del arrays["rnn.recurrent_bias"]
    assert [family for family, _ in found(arrays)] == ["keras_gru"]


OTHERS: dict[str, dict[str, tuple[int, ...]]] = {
    "haiku_gru haiku_lstm haiku_rnn sonnet_lstm": {
        "mlp/linear/w": (INPUTS, H),
        "mlp/linear_1/w": (H, H),
        "head/linear/w": (INPUTS + H, 4 * H),
        "head/linear/b": (4 * H,),
        "attention/w_i": (H, 3 * H + 1),
        "attention/w_h": (H, 3 * H + 1),
    },
    "flax_lstm flax_gru flax_mgu flax_simple": {"dense_h.kernel": (4, 7), "dense_i.kernel": (4, 7)},
    "tf_rnn tf_lstm": {
        "dense/kernel": (7, 4),
        "dense/bias": (4,),
        "lstm/lstm_cell/kernel": (7, 16),
        "lstm/lstm_cell/recurrent_kernel": (4, 16),
        "lstm/lstm_cell/bias": (16,),
        "rnn/conv_lstm_cell/kernel": (3, 3, 7, 16),
        "rnn/conv_lstm_cell/bias": (16,),
    },
    "keras_lstm keras_gru keras_simple_rnn": {
        "c/kernel": (3, 3, 2, 16),
        "c/recurrent_kernel": (3, 3, 4, 16),
    },
    "layer_norm_gru": {
        "gru.linear.weight": (3 * H, INPUTS + H),  # a head, without a normalisation
        "gru.linear.bias": (3 * H,),
        "cell._layer.weight": (3 * H + 1, INPUTS + H),
        "cell._layer.bias": (3 * H + 1,),
    },
}


@pytest.mark.parametrize("names", OTHERS)
def test_other_modules_are_not_taken(names: str) -> None:
    for name in names.split():
        assert match_of(drawn(OTHERS[names]), named_family(name)) == []
