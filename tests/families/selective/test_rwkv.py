"""RWKV-4 to 7 in every library's names, what is converted, and the bands of their gates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.oracles import read_layers
from families.selective.layers import BASE, DECAY, RWKV7_LAYERS, RWKV_LAYERS, TRANSPOSED
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.selective.rwkv import RWKV, RWKV7

# How many states share a λ, and whether the input moves it.
VERSIONS = {
    "RWKV-4": (2, False),
    "RWKV-5": (3, False),
    "RWKV-5 by head": (9, False),
    "RWKV-6": (3, True),
    "flash-linear-attention": (6, True),
    "llama.cpp": (3, True),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(version: str) -> None:
    multiplicity, input_dependent = VERSIONS[version]
    arrays = RWKV_LAYERS[version]
    recurrence = read_layer({f"blocks.3.att.{name}": a for name, a in arrays.items()}, RWKV())
    assert recurrence.name == "blocks.3.att"
    assert recurrence.multiplicity == multiplicity
    assert recurrence.input_dependent is input_dependent
    assert bool(recurrence.assumptions) is input_dependent
    assert_allclose(recurrence.log_eigenvalues, -np.exp(DECAY[: recurrence.size]), rtol=1e-15)


TRUE = np.exp(-np.exp(DECAY))


CONVERTED = {
    "RWKV-4": -np.exp(DECAY),
    "RWKV-5": TRUE.reshape(2, 3, 1),
    "RWKV-5 by head": TRUE[:2].reshape(2, 1, 1),
    "RWKV-6": DECAY.reshape(2, 3, 1),
}


@pytest.mark.parametrize("version", CONVERTED)
@pytest.mark.parametrize("mark", ["zip", "legacy", "transposed"])
def test_what_the_rwkv_package_converted_has_the_eigenvalues_of_its_source(
    version: str, mark: str, tmp_path: Path
) -> None:
    arrays, (multiplicity, _) = RWKV_LAYERS[version], VERSIONS[version]
    stored = {f"att.{name}": a for name, a in arrays.items()} | {
        "att.time_decay": CONVERTED[version],
        "ffn.key.weight": np.zeros((24, 6)),
    }
    if mark == "transposed":
        recurrence = read_layer(stored | TRANSPOSED, RWKV())
    else:
        path = tmp_path / "converted.pth"
        torch.save(
            {name: torch.tensor(a) for name, a in stored.items()}
            | {"_strategy": "cpu fp32", "_rescale_layer": 0, "_version": "0.7"},
            path,
            _use_new_zipfile_serialization=mark == "zip",
        )
        with open_checkpoint(path) as store:
            recurrence = RWKV().read(store, RWKV().find(store.tensors)[0], ReadOptions())
    assert_allclose(np.exp(recurrence.log_eigenvalues), TRUE[: recurrence.size], rtol=1e-12)
    assert recurrence.multiplicity == multiplicity
    assert ("converter" in recurrence.assumptions[0]) is (version != "RWKV-6")


@pytest.mark.parametrize("stored", [np.array([0.1, -1.0]), np.array([[[1.1]], [[0.5]]])])
def test_what_no_converter_writes_is_refused(stored: np.ndarray) -> None:
    arrays = {"att.time_decay": stored, "att.time_first": np.zeros(2), **TRANSPOSED}
    with pytest.raises(TensorError, match="has converted this file"):
        read_layer(arrays, RWKV())


@pytest.mark.parametrize("naming", RWKV7_LAYERS)
def test_every_naming_is_read(naming: str) -> None:
    recurrence = read_layer({f"any.{name}": a for name, a in RWKV7_LAYERS[naming].items()}, RWKV7())
    assert recurrence.name == "any"
    assert recurrence.multiplicity == 3
    # The authors' own form: w = -softplus(-w0) - 0.5, λ = exp(-exp(w)).
    expected = -np.exp(-np.logaddexp(0, -BASE) - 0.5)
    assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-14)


def test_a_time_constant_beyond_the_precision_of_lambda() -> None:
    arrays = RWKV7_LAYERS["RWKV-LM"] | {"w0": np.full(6, -80.0)}
    recurrence = read_layer(arrays, RWKV7())
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 1.0, rtol=0)
    assert_allclose(-1 / recurrence.log_eigenvalues.real, np.exp(80.5), rtol=1e-12)


def test_the_range_that_the_removal_is_said_to_reach() -> None:
    correction = read_layer(RWKV7_LAYERS["RWKV-LM"], RWKV7()).rank_one
    assert correction is not None
    assert correction.lowest == pytest.approx(-0.4548, abs=1e-4)
    random, lowest = np.random.default_rng(13), 1.0
    for _ in range(2000):
        decay = np.exp(-np.exp(-0.5) * random.uniform(0, 1, 3))
        removal = random.normal(size=3)
        removal /= np.linalg.norm(removal)
        gate = random.uniform(0, 1, 3) ** 0.1
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
