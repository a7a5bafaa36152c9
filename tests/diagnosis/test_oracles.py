"""The report's eigenvalues and time constants against those of the real libraries.

Each oracle was taken in float64 from the stored values and checked against its library's own
forward pass, so agreement is to float64 whatever the stored type is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from shared import REASON, SHARED_DATA, available

from memcurse_cli import inspect
from memcurse_cli.schema.report import LayerReport

# What a file does not say, and its oracle was taken with.
ASSUME = {
    "s4d_v4_bilinear": {"discretization": "bilinear"},
    "s4d_v4_softplus": {"real-transform": "softplus", "dt-transform": "softplus"},
    "s4d_v3_diag_zoh": {"discretization": "zoh"},
    "s5_bilinear": {"discretization": "bilinear"},
    "s5_clip_bidir": {"clip-eigenvalues": "true"},
    "s5_noconj": {"conjugate-symmetry": "false"},
}
FOLDERS = ("torch_rnn", "s4", "s5_jax", "minimal_lru", "hf_mamba", "hf_mamba2", "mamba_ssm")
WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".npz")


def checkpoints() -> list[Any]:
    """Every file of the zoo in a format and of a family that is read."""
    if not available():
        return [pytest.param(None, None, marks=pytest.mark.skip(reason=REASON))]
    found = []
    for folder in FOLDERS:
        oracle = json.loads((SHARED_DATA / "zoo" / folder / "oracle.json").read_text())
        for checkpoint in oracle["checkpoints"]:
            for name in entry_points(checkpoint["files"]):
                path = SHARED_DATA / "zoo" / folder / name
                found.append(pytest.param(path, checkpoint, id=f"{folder}/{name}"))
    return found


def entry_points(files: list[str]) -> list[str]:
    """The files that a user would name: shards through their directory."""
    index = [name for name in files if name.endswith(".index.json")]
    if index:
        return [str(Path(name).parent) for name in index]
    return [name for name in files if name.endswith(WEIGHTS)]


@pytest.mark.parametrize(("path", "checkpoint"), checkpoints())
def test_eigenvalues_are_the_librarys(path: Path, checkpoint: dict[str, Any]) -> None:
    folder = path.relative_to(SHARED_DATA / "zoo").parts[0]
    assume = ASSUME.get(path.stem.removesuffix("_pl")) or ASSUME.get(folder)
    report = inspect(path, assume=assume, values=True)
    assert not report.skipped
    assert len(report.layers) == len(checkpoint["layers"])
    layers = {layer.name.replace("/", "."): layer for layer in report.layers}
    for oracle in checkpoint["layers"]:
        layer = named(layers, oracle["name"].replace("/", "."))
        assert layer.eigenvalues.values is not None
        values = np.array([complex(*pair) for pair in layer.eigenvalues.values])
        expected = np.array([complex(*pair) for pair in oracle["lambda"]])
        if "lambda_ignoring_in_proj_bias" not in oracle.get("extra", {}):
            assert layer.eigenvalues.multiplicity in (1, oracle["multiplicity"])
        if oracle["order"].startswith(("C-order", "hidden unit", "head", "state index")):
            np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)
        else:
            values, expected = matched(values, expected, oracle["lambda_shape"])
            np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9)
        longest = np.max(np.abs(expected))
        if longest < 1:
            assert layer.eigenvalues.time_constant.max == pytest.approx(
                -1 / np.log(longest), rel=1e-7
            )


def named(layers: dict[str, LayerReport], name: str) -> LayerReport:
    """A layer by its oracle's name, which may lack a container's prefix or a `.kernel` behind."""
    (found,) = [
        layer
        for own, layer in layers.items()
        if f".{own}".removesuffix(".kernel").endswith(f".{name.removesuffix('.kernel')}")
    ]
    return found


def matched(
    values: NDArray[np.complex128], expected: NDArray[np.complex128], shape: list[int]
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Spectra of dense blocks come in no order; pair them by distance, block by block."""
    rows = np.reshape(values, (-1, shape[-1]))
    wanted = np.reshape(expected, (-1, shape[-1]))
    assert rows.shape == wanted.shape
    paired = np.empty_like(wanted)
    for block, (row, target) in enumerate(zip(rows, wanted, strict=True)):
        places = linear_sum_assignment(np.abs(row[None, :] - target[:, None]))[1]
        paired[block] = row[places]
    return paired.ravel(), wanted.ravel()


TRAINED = [("s4d_cifar10", "s4_cifar10.pth"), ("s4_dplr_mnist", "mnist100HZ_ckpt.pth")]


@pytest.mark.parametrize(("folder", "name"), TRAINED)
def test_trained_state_spaces(trained: Path, folder: str, name: str) -> None:
    oracle = json.loads((trained / folder / "oracle.json").read_text())
    report = inspect(trained / folder / name)
    assert len(report.layers) == len(oracle["layers"])
    for layer, expected in zip(report.layers, oracle["layers"].values(), strict=True):
        assert layer.eigenvalues.count == expected["n_modes"]
        assert layer.eigenvalues.time_constant.max == pytest.approx(
            expected["longest_tau_steps"], rel=1e-9
        )
        assert layer.eigenvalues.time_constant.p50 == pytest.approx(
            expected["median_tau_steps"], rel=1e-9
        )


@pytest.mark.parametrize("name", ["model_MambaBEAT.pth", "binary_MambaBEAT.pth"])
def test_a_trained_mamba_inside_a_pickled_module(trained: Path, name: str) -> None:
    folder = trained / "mambabeat_pickledmodule"
    (expected,) = (
        layer
        for key, layer in json.loads((folder / "oracle.json").read_text())["layers"].items()
        if key.startswith(name)
    )
    (layer,) = inspect(folder / name, values=True).layers
    assert (layer.name, layer.family) == ("layers.0", "mamba")
    assert layer.eigenvalues.count == expected["n_modes"]
    assert layer.eigenvalues.values is not None
    moduli = np.array(layer.eigenvalues.values)[:, 0]
    for percent, modulus in expected["abs_lambda_quantiles"].items():
        assert np.percentile(moduli, float(percent)) == pytest.approx(modulus, rel=1e-9)
    longest = np.sort(-1 / np.log(moduli))[: -len(expected["tau_top10_desc"]) - 1 : -1]
    np.testing.assert_allclose(longest, expected["tau_top10_desc"], rtol=1e-9)


def test_trained_gru_and_lstm(trained: Path) -> None:
    for folder, name, keys in (
        ("g2p_en_gru_npz", "checkpoint20.npz", ["enc", "dec"]),
        ("silero_vad_lstm", "silero_vad_16k.safetensors", ["silero_vad_16k.safetensors:lstm_cell"]),
    ):
        layers = json.loads((trained / folder / "oracle.json").read_text())["layers"]
        report = inspect(trained / folder / name, values=True)
        assert len(report.layers) == len(keys)
        for layer, key in zip(report.layers, keys, strict=True):
            gates = [part for part in layers[key] if part.startswith("nominal")]
            nominal = layers[key][gates[0]]
            assert layer.eigenvalues.time_constant.max == pytest.approx(
                nominal["longest_tau_steps"], rel=1e-9
            )
