"""RWKV-7 against a plain loop of its recurrence, trained files, and differences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import read_layers
from numpy.testing import assert_allclose

from memcurse_cli.families.selective.rwkv import RWKV7

HEADS, SIZE = 2, 3
WIDTH = HEADS * SIZE
RANDOM = np.random.default_rng(13)
BASE = RANDOM.uniform(-15, 3, WIDTH)

NAMINGS: dict[str, dict[str, np.ndarray]] = {
    "RWKV-LM": {
        "w0": BASE.reshape(1, 1, WIDTH),
        "k_k": np.ones((1, 1, WIDTH)),
        "r_k": np.zeros((HEADS, SIZE)),
        "value.weight": np.zeros((WIDTH, WIDTH)),
    },
    "flash-linear-attention": {
        "w_lora.lora.2.bias": BASE,
        "k_k": np.ones(WIDTH),
        "r_k": np.zeros((HEADS, SIZE)),
        "v_proj.weight": np.zeros((WIDTH, WIDTH)),
    },
    "llama.cpp": {
        "time_mix_w0.weight": BASE,
        "time_mix_k_k.weight": np.ones(WIDTH),
        "time_mix_r_k.weight": np.zeros((HEADS, SIZE)),
        "time_mix_value.weight": np.zeros((WIDTH, WIDTH)),
    },
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_every_naming_is_read(naming: str) -> None:
    recurrence = read_layer({f"any.{name}": a for name, a in NAMINGS[naming].items()}, RWKV7())
    assert recurrence.name == "any"
    assert recurrence.multiplicity == SIZE
    # The authors' own form: w = -softplus(-w0) - 0.5, λ = exp(-exp(w)).
    expected = -np.exp(-np.logaddexp(0, -BASE) - 0.5)
    assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-14)
    check_derivatives(NAMINGS[naming], RWKV7())


def test_a_time_constant_beyond_the_precision_of_lambda() -> None:
    arrays = NAMINGS["RWKV-LM"] | {"w0": np.full(WIDTH, -80.0)}
    recurrence = read_layer(arrays, RWKV7())
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 1.0, rtol=0)
    assert_allclose(-1 / recurrence.log_eigenvalues.real, np.exp(80.5), rtol=1e-12)


def test_the_range_that_the_removal_is_said_to_reach() -> None:
    correction = read_layer(NAMINGS["RWKV-LM"], RWKV7()).rank_one
    assert correction is not None
    assert correction.lowest == pytest.approx(-0.4548, abs=1e-4)
    lowest = 1.0
    for _ in range(2000):
        decay = np.exp(-np.exp(-0.5) * RANDOM.uniform(0, 1, SIZE))
        removal = RANDOM.normal(size=SIZE)
        removal /= np.linalg.norm(removal)
        gate = RANDOM.uniform(0, 1, SIZE) ** 0.1
        transition = np.diag(decay) - np.outer(removal, gate * removal)
        values = np.sort(np.linalg.eigvals(transition).real)
        assert_allclose(np.linalg.eigvals(transition).imag, 0, atol=1e-9)
        assert decay.min() - 1e-12 < values[1]
        assert values[-1] < decay.max() + 1e-12
        lowest = min(lowest, values[0])
    assert correction.lowest < lowest < 0


def test_other_modules_with_w0_are_not_it() -> None:
    assert match_of({"w0": np.zeros(3), "w1": np.zeros(3)}, RWKV7()) == []


@pytest.mark.parametrize(
    "file", ["260123_reverse_L2_only_rwkv7.pth", "251024_rosaQKV_L2_digit20.pth"]
)
def test_trained_files(trained: Path, file: str) -> None:
    folder = trained / "rwkv7_reverse"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    layers = read_layers(folder / file)
    assert list(layers) == ["rwkv1", "rwkv2"]
    for name, recurrence in layers.items():
        expected = oracle[f"{file}:{name}"]
        assert recurrence.family == "rwkv7"
        assert recurrence.size == expected["n_modes"]
        assert recurrence.multiplicity == 16
        times = np.sort(-1 / recurrence.log_eigenvalues.real)[::-1]
        assert_allclose(times[:10], expected["tau_top10_desc"], rtol=1e-9)
        assert_allclose(np.median(times), expected["median_tau_steps"], rtol=1e-9)
        assert_allclose(
            np.exp(recurrence.log_eigenvalues.real).min(),
            expected["abs_lambda_quantiles"]["0"],
            rtol=1e-12,
        )
