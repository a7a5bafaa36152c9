"""Mamba-3 against the library's layers, its trapezoidal step written out, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from recurrences.derivatives import check_derivatives, match_of, read_layer
from recurrences.oracles import ZooFile, oracle_eigenvalues, read_layers, zoo_files

from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.mamba3 import Mamba3

HEADS, HEAD_DIMENSION, STATE = 4, 2, 3
RANDOM = np.random.default_rng(23)
ARRAYS = {
    "mixer.dt_bias": RANDOM.uniform(-4, 1, HEADS),
    "mixer.B_bias": np.ones((HEADS, 1, STATE)),
    "mixer.C_bias": np.ones((HEADS, 1, STATE)),
    "mixer.in_proj.weight": np.ones((40, 8)),
    "mixer.out_proj.weight": np.ones((8, HEADS * HEAD_DIMENSION)),
}


@pytest.mark.parametrize("function", ["heavy_tail", "softplus"])
def test_derivatives(function: str) -> None:
    check_derivatives(ARRAYS, Mamba3(), rate_function=function)


@pytest.mark.parametrize(("function", "rate"), [("heavy_tail", 1.0), ("softplus", np.log(2))])
def test_the_state_after_an_impulse(function: str, rate: float) -> None:
    recurrence = read_layer(ARRAYS, Mamba3(), rate_function=function)
    assert recurrence.multiplicity == HEAD_DIMENSION * STATE
    step = np.log1p(np.exp(ARRAYS["mixer.dt_bias"]))
    alpha, trapezoid = np.exp(-rate * step), 0.5
    state, previous = np.zeros(HEADS), 0.0
    for time in range(6):
        driven = float(time == 0)
        kept = (1 - trapezoid) * step * alpha * previous
        state = alpha * state + kept + trapezoid * step * driven
        previous = driven
    gain, eigenvalue = np.exp(recurrence.log_gain.real), np.exp(recurrence.log_eigenvalues.real)
    assert_allclose(state, gain * eigenvalue**5, rtol=1e-13)


@pytest.mark.parametrize(
    "file", zoo_files("mamba_ssm", "/model.safetensors", ".bin", kind="mamba3")
)
def test_zoo(file: ZooFile) -> None:
    layers = read_layers(file.path)
    for each, (name, recurrence) in zip(file.layers, layers.items(), strict=True):
        assert name == each["name"]
        assert recurrence.family == "mamba3"
        assert recurrence.multiplicity == each["multiplicity"]
        assert_allclose(
            np.exp(recurrence.log_eigenvalues), oracle_eigenvalues(each), rtol=0, atol=1e-14
        )


def test_a_mixer_with_a_rate_is_an_older_mamba() -> None:
    assert match_of({**ARRAYS, "mixer.A_log": np.ones(HEADS)}, Mamba3()) == []


@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("dt_bias", np.full(HEADS, np.nan), "mixer.dt_bias: 4 NaN"),
        ("B_bias", np.ones((HEADS + 1, 1, STATE)), r"mixer.B_bias: its shape \(5, 1, 3\)"),
        ("out_proj.weight", np.ones((8, HEADS + 1)), "does not fit 4 heads"),
        ("out_proj.weight", np.ones(8), r"mixer.out_proj.weight: its shape \(8\)"),
    ],
)
def test_bad_tensors_are_named(role: str, values: NDArray, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        read_layer({**ARRAYS, f"mixer.{role}": values}, Mamba3())
