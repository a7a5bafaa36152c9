"""RWKV-4 to 7 in every library's names, what is converted, and the bands of their gates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.oracles import read_layers
from families.selective.layers import (
    BASE,
    DECAY,
    INNER,
    MIXING,
    MOVING_INNER,
    MOVING_OUTER,
    OUTER,
    OWN_MIXING,
    RWKV6_LAYERS,
    RWKV7_LAYERS,
    RWKV_LAYERS,
    TRANSPOSED,
    UNITS,
)
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive, tanh_covariance
from memcurse_cli.families.selective.rwkv import RWKV, RWKV7


@pytest.mark.parametrize(
    ("version", "multiplicity"), [("RWKV-4", 2), ("RWKV-5", 3), ("RWKV-5 by head", 9)]
)
def test_decays_that_stand_still(version: str, multiplicity: int) -> None:
    arrays = {f"blocks.3.att.{name}": array for name, array in RWKV_LAYERS[version].items()}
    recurrence = read_layer(arrays, RWKV())
    assert recurrence.name == "blocks.3.att"
    assert recurrence.multiplicity == multiplicity
    assert not recurrence.input_dependent
    assert recurrence.assumptions == ()
    assert_allclose(recurrence.log_eigenvalues, -np.exp(DECAY[: recurrence.size]), rtol=1e-15)
    store = MemoryStore(arrays)
    (match,) = RWKV().find(store.tensors)
    assert RWKV().read(store, match, ReadOptions(gates=True)).gate is None


@pytest.mark.parametrize("naming", RWKV6_LAYERS)
def test_decays_that_see_the_input(naming: str) -> None:
    recurrence = read_layer(RWKV6_LAYERS[naming], RWKV())
    values = 2 if naming == "flash-linear-attention" else 1  # times as wide as the keys
    assert recurrence.multiplicity == values * UNITS // 4
    assert recurrence.input_dependent
    assert "low-rank" in recurrence.assumptions[0]
    assert_allclose(recurrence.log_eigenvalues, -np.exp(BASE), rtol=1e-14)


TRUE = np.exp(-np.exp(DECAY))


# What the converter stores, of how many states of each λ; RWKV-6 it leaves as it is.
CONVERTED = {
    "RWKV-4": (-np.exp(DECAY), 2),
    "RWKV-5": (TRUE.reshape(2, 3, 1), 3),
    "RWKV-5 by head": (TRUE[:2].reshape(2, 1, 1), 9),
}


@pytest.mark.parametrize("version", CONVERTED)
@pytest.mark.parametrize("mark", ["zip", "legacy", "transposed"])
def test_what_the_rwkv_package_converted_has_the_eigenvalues_of_its_source(
    version: str, mark: str, tmp_path: Path
) -> None:
    arrays, (converted, multiplicity) = RWKV_LAYERS[version], CONVERTED[version]
    stored = {f"att.{name}": a for name, a in arrays.items()} | {
        "att.time_decay": converted,
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
    assert "converter" in recurrence.assumptions[0]


def test_what_the_converter_leaves_is_read_as_it_is() -> None:
    recurrence = read_layer(RWKV6_LAYERS["RWKV-LM"] | TRANSPOSED, RWKV())
    assert_allclose(recurrence.log_eigenvalues, -np.exp(BASE), rtol=1e-14)


@pytest.mark.parametrize("stored", [np.array([0.1, -1.0]), np.array([[[1.1]], [[0.5]]])])
def test_what_no_converter_writes_is_refused(stored: np.ndarray) -> None:
    arrays = {"att.time_decay": stored, "att.time_first": np.zeros(2), **TRANSPOSED}
    with pytest.raises(TensorError, match="has converted this file"):
        read_layer(arrays, RWKV())


@pytest.mark.parametrize("naming", RWKV7_LAYERS)
def test_every_naming_is_read(naming: str) -> None:
    recurrence = read_layer({f"any.{name}": a for name, a in RWKV7_LAYERS[naming].items()}, RWKV7())
    assert recurrence.name == "any"
    assert recurrence.multiplicity == UNITS // 4
    # The authors' own form: w = -softplus(-w0) - 0.5, λ = exp(-exp(w)).
    expected = -np.exp(-np.logaddexp(0, -BASE) - 0.5)
    assert_allclose(recurrence.log_eigenvalues.real, expected, rtol=1e-14)


def test_a_time_constant_beyond_the_precision_of_lambda() -> None:
    arrays = RWKV7_LAYERS["RWKV-LM"] | {"w0": np.full(UNITS, -80.0)}
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


STEPS = 20_000


def inputs(scale: float) -> tuple[np.ndarray, np.ndarray]:
    x = scale * np.random.default_rng(7).standard_normal((STEPS + 1, UNITS))
    return x[1:], x[:-1] - x[1:]


def simulated7(scale: float) -> np.ndarray:
    x, shift = inputs(scale)
    z = BASE + np.tanh((x + shift * MIXING) @ INNER) @ OUTER
    return np.exp(-np.exp(-0.5) / (1 + np.exp(-z)))


def simulated6(scale: float) -> np.ndarray:
    x, shift = inputs(scale)
    low = np.tanh((x + shift * OWN_MIXING) @ MOVING_INNER).reshape(STEPS, 5, 8)
    moved = low[:, 0] @ MOVING_OUTER[0]
    z = BASE + np.tanh((x + shift * (MIXING + moved)) @ INNER) @ OUTER
    return np.exp(-np.exp(z))


@pytest.mark.parametrize("naming", RWKV7_LAYERS)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_bands_of_rwkv7(naming: str, scale: float) -> None:
    arrays = {f"att.{name}": array for name, array in RWKV7_LAYERS[naming].items()}
    drive_of(MemoryStore(arrays), RWKV7())
    check_bands(gates_of(arrays, input_scale=scale), simulated7(scale))


@pytest.mark.parametrize("naming", RWKV6_LAYERS)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_bands_of_rwkv6(naming: str, scale: float) -> None:
    arrays = {f"att.{name}": array for name, array in RWKV6_LAYERS[naming].items()}
    drive_of(MemoryStore(arrays), RWKV())
    check_bands(gates_of(arrays, input_scale=scale), simulated6(scale))


def test_the_spread_is_that_of_the_preactivation() -> None:
    drive = drive_of(MemoryStore(RWKV6_LAYERS["RWKV-LM"]), RWKV())
    z = np.log(-np.log(simulated6(1.0)))
    assert_allclose(np.sqrt(drive.gate.variance(1.0, 0.0)), z.std(axis=0), rtol=0.05)


def test_what_two_units_share() -> None:
    covariance = np.array([[4.0, 1.5, 0.0], [1.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    z = np.random.default_rng(31).multivariate_normal(np.zeros(3), covariance, 1_000_000)
    assert_allclose(tanh_covariance(covariance), np.cov(np.tanh(z).T), atol=2e-3)


@pytest.mark.parametrize("missing", ["w2", "x_w"])
def test_without_the_low_rank_layer_there_is_a_reason(missing: str) -> None:
    arrays = {name: array for name, array in RWKV7_LAYERS["RWKV-LM"].items() if name != missing}
    store = MemoryStore(arrays)
    (match,) = RWKV7().find(store.tensors)
    gate = RWKV7().read(store, match, ReadOptions(gates=True)).gate
    assert isinstance(gate, NoDrive)
    assert "is not in the file" in (gates_of(arrays).reason or "")
