"""RWKV-4 to 7: what is converted, what the removal reaches, and the bands of their gates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import read_layer
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
from families.selective.test_delta_rule import lowest_of_rank_one
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.selective.rwkv import RWKV, RWKV7

TRUE = np.exp(-np.exp(DECAY))
# What the converter stores, of how many states of each λ; RWKV-6 it leaves as it is.
CONVERTED = {
    "RWKV-4": (-np.exp(DECAY), 2),
    "RWKV-5": (TRUE.reshape(2, 3, 1), 3),
    "RWKV-5 by head": (TRUE[:2].reshape(2, 1, 1), 9),
}


@pytest.mark.parametrize(
    ("version", "mark"),
    [("RWKV-4", "zip"), ("RWKV-5", "legacy"), *((each, "transposed") for each in CONVERTED)],
)
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


@pytest.mark.parametrize("stored", [np.array([0.1, -1.0]), np.array([[[1.1]], [[0.5]]])])
def test_what_no_converter_writes_is_refused(stored: np.ndarray) -> None:
    arrays = {"att.time_decay": stored, "att.time_first": np.zeros(2), **TRANSPOSED}
    with pytest.raises(TensorError, match="has converted this file"):
        read_layer(arrays, RWKV())


def test_the_range_that_the_removal_is_said_to_reach() -> None:
    correction = read_layer(RWKV7_LAYERS["RWKV-LM"], RWKV7()).rank_one
    assert correction.lowest == pytest.approx(-0.4548, abs=1e-4)
    random = np.random.default_rng(13)
    lowest = lowest_of_rank_one(
        (np.exp(-np.exp(-0.5) * random.uniform(0, 1, 3)), random.uniform(0, 1, 3) ** 0.1, False)
        for _ in range(2000)
    )
    assert correction.lowest < lowest < 0


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
        smallest = np.exp(recurrence.log_eigenvalues.real).min()
        assert_allclose(smallest, expected["abs_lambda_quantiles"]["0"], rtol=1e-12)


STEPS = 20_000


def preactivations(scale: float, *, moving: bool) -> np.ndarray:
    """``w0 + V tanh(W y)`` on random inputs, with a μ that moves in RWKV-6."""
    x = scale * np.random.default_rng(7).standard_normal((STEPS + 1, UNITS))
    x, shift, mixing = x[1:], x[:-1] - x[1:], MIXING
    if moving:
        low = np.tanh((x + shift * OWN_MIXING) @ MOVING_INNER).reshape(STEPS, 5, 8)
        mixing = MIXING + low[:, 0] @ MOVING_OUTER[0]
    return BASE + np.tanh((x + shift * mixing) @ INNER) @ OUTER


@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize(("naming", "scale"), list(zip(RWKV6_LAYERS, (1.0, 3.0, 3.0), strict=True)))
def test_the_bands_are_those_of_the_low_rank_layer(version: int, naming: str, scale: float) -> None:
    arrays = (RWKV6_LAYERS if version == 6 else RWKV7_LAYERS)[naming]
    z = preactivations(scale, moving=version == 6)
    opened = np.exp(-np.exp(z) if version == 6 else -np.exp(-0.5) / (1 + np.exp(-z)))
    check_bands(gates_of({f"att.{n}": a for n, a in arrays.items()}, input_scale=scale), opened)


@pytest.mark.parametrize("missing", ["w2", "x_w"])
def test_without_the_low_rank_layer_there_is_a_reason(missing: str) -> None:
    arrays = {name: array for name, array in RWKV7_LAYERS["RWKV-LM"].items() if name != missing}
    assert "is not in the file" in (gates_of(arrays).reason or "")
