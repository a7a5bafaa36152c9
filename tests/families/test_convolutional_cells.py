"""Cells whose gates see kernels of convolutions, and what OpenAI's LSTM must not have."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_found
from families.oracles import sigmoid
from numpy.testing import assert_allclose

from memcurse_cli.families.cells.configured import KERAS_CONV_LSTM
from memcurse_cli.families.cells.libraries import CONV_GRU
from memcurse_cli.families.family import Family
from memcurse_cli.families.gate_inputs import NoDrive

H, INPUTS = 4, 3
Arrays = dict[str, np.ndarray]


def drawn(**shapes: tuple[int, ...]) -> Arrays:
    generator = np.random.default_rng(12)
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


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
RVM = drawn(
    **{
        "ih.0.weight": (2 * H, 2 * H, *KERNEL),
        "ih.0.bias": (2 * H,),
        "hh.0.weight": (H, 2 * H, *KERNEL),
        "hh.0.bias": (H,),
    }
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
    stored = {f"{prefix}{name}": array for name, array in arrays.items()}
    found = read_found(stored, spectra=True, gates=True)
    assert found.family == family.name
    assert_allclose(np.exp(found.log_eigenvalues), kept, rtol=1e-12)
    if family is CONV_GRU:
        assert_allclose(np.exp(found.log_gain), 1 - kept, rtol=1e-12)
    assert "a channel by itself" in found.assumptions[-1]
    assert found.hidden.jacobian is None
    assert "convolution" in (found.hidden.reason or "") or "hard" in (found.hidden.reason or "")
    assert isinstance(found.gate, NoDrive)


@pytest.mark.parametrize("name", ["raft", "raft_separate", "rvm"])
def test_the_derivatives_of_a_convolutional_gru(name: str) -> None:
    check_derivatives(CONVOLUTIONS[name][2], CONV_GRU)
