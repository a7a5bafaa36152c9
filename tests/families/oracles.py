"""Layers of the shared checkpoints, with the eigenvalues that their libraries have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

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


@dataclass(frozen=True)
class ZooFile:
    """One file and the layers that its oracle lists."""

    path: Path
    layers: list[dict[str, Any]]


def zoo_files(folder: str, *suffixes: str, kind: str | None = None) -> list[Any]:
    """Every file of a zoo folder with one of the suffixes, as parameters of a test.

    With ``kind``, only the files that have layers of that kind.
    """
    if not shared.available():
        return [pytest.param(None, marks=pytest.mark.skip(reason=shared.REASON))]
    root = shared.SHARED_DATA / "zoo" / folder
    oracle = json.loads((root / "oracle.json").read_text())
    return [
        pytest.param(ZooFile(root / file, checkpoint["layers"]), id=file)
        for checkpoint in oracle["checkpoints"]
        for file in checkpoint["files"]
        if file.endswith(suffixes)
        and kind in (None, *{layer["kind"] for layer in checkpoint["layers"]})
    ]


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
