"""Layers of the shared checkpoints, with the eigenvalues that their libraries have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from memcurse_cli import inspect
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence


def sigmoid(x: NDArray) -> NDArray:
    return np.asarray(1 / (1 + np.exp(-x)))


def softplus(x: NDArray) -> NDArray:
    return np.asarray(np.log1p(np.exp(x)))


def as_complex(values: NDArray) -> NDArray:
    """Of pairs along the last axis."""
    return np.asarray(values[..., 0] + 1j * values[..., 1])


def run_on(recurrence: Recurrence, inputs: NDArray) -> NDArray:
    """(S, n) what a cell that can be run shows after (T, S, F) inputs from rest."""
    dynamics = recurrence.dynamics
    assert dynamics is not None
    step = dynamics.begin(lambda _, values: values)
    state = np.zeros((inputs.shape[1], dynamics.order))
    for x in inputs:
        state = step(state, x)
    return np.asarray(state[:, dynamics.shown])


def run_file(path: Path, inputs: NDArray) -> NDArray:
    """`run_on` of the only layer of a file."""
    with open_checkpoint(path) as store:
        ((family, match),) = detect(store.tensors)
        return run_on(family.read(store, match, ReadOptions(simulate=True)), inputs)


def jacobian(step: Callable[[torch.Tensor], torch.Tensor], size: int) -> NDArray:
    """Of a step at zero, by autodiff."""
    zero = torch.zeros(size, dtype=torch.float64)
    return torch.autograd.functional.jacobian(step, zero).numpy()


def zoo_files(folders: str, *suffixes: str) -> list[Any]:
    """Every file with one of the suffixes in the zoo's folders, and the layers of its oracle.

    They are the parameters of a test; shards are read through their index.
    """
    if not shared.available():
        return [pytest.param(None, [], marks=pytest.mark.skip(reason=shared.REASON))]
    return [
        pytest.param(oracle.parent / file, checkpoint["layers"], id=f"{oracle.parent.name}/{file}")
        for oracle in sorted((shared.SHARED_DATA / "zoo").glob(f"{folders}/oracle.json"))
        for checkpoint in json.loads(oracle.read_text())["checkpoints"]
        for file in checkpoint["files"]
        if file.endswith(suffixes) and "-of-" not in file
    ]


def assert_reported(path: Path, layers: dict[str, Recurrence], **assume: str) -> None:
    """The report on a file has what was read of it, and its longest time constant."""
    report = inspect(path, assume=assume, values=True)
    assert not report.skipped
    for layer, recurrence in zip(report.layers, layers.values(), strict=True):
        reported, expected = layer.eigenvalues, np.exp(recurrence.log_eigenvalues)
        assert_allclose(as_complex(np.array(reported.values)), expected, rtol=1e-12)
        assert reported.multiplicity == recurrence.multiplicity
        longest = np.abs(expected).max()
        if longest < 1:
            assert reported.time_constant.max == pytest.approx(-1 / np.log(longest), rel=1e-7)


def read_layers(path: Path, **assume: str) -> dict[str, Recurrence]:
    """Every layer of a file by its name."""
    with open_checkpoint(path) as store:
        return {
            match.layer: family.read(store, match, ReadOptions(assume=assume))
            for family, match in detect(store.tensors)
        }


def oracle_eigenvalues(layer: dict[str, Any]) -> NDArray[np.complex128]:
    """λ of one layer of an oracle, flat."""
    return as_complex(np.array(layer["lambda"]).reshape(-1, 2))


def assert_same_spectrum(ours: NDArray, theirs: NDArray, tolerance: float = 1e-9) -> None:
    """The same eigenvalues in whatever order, each to a tolerance relative to the largest."""
    assert ours.shape == theirs.shape
    distance = np.abs(ours[:, None] - theirs[None, :])
    rows, columns = linear_sum_assignment(distance)
    assert distance[rows, columns].max() <= tolerance * np.abs(theirs).max()


def assert_sorted_moduli(recurrence: Recurrence, lambda_sorted: list[float]) -> None:
    """Real eigenvalues and time constants against a sorted list."""
    modulus = np.sort(np.exp(recurrence.log_eigenvalues.real))
    assert_allclose(modulus, lambda_sorted, rtol=1e-9)
    ours = np.sort(-1 / recurrence.log_eigenvalues.real)
    assert_allclose(ours, np.sort(-1 / np.log(lambda_sorted)), rtol=1e-9)


def original_layer(paper: Path, name: str) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """The state dict of a layer that its authors' code made, and what it computed."""
    with np.load(paper / "modules" / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored}
    parameters = {
        key.removeprefix("param:"): arrays.pop(key) for key in list(arrays) if key[:6] == "param:"
    }
    return parameters, arrays
