"""Trained checkpoints: the report's time constants against those of their oracles."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from memcurse_cli import inspect

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
    moduli = np.array(layer.eigenvalues.values)[:, 0]
    for percent, modulus in expected["abs_lambda_quantiles"].items():
        assert np.percentile(moduli, float(percent)) == pytest.approx(modulus, rel=1e-9)
    longest = np.sort(-1 / np.log(moduli))[: -len(expected["tau_top10_desc"]) - 1 : -1]
    np.testing.assert_allclose(longest, expected["tau_top10_desc"], rtol=1e-9)
