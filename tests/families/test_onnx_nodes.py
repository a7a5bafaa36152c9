"""ONNX's nodes against the oracles of trained and generated files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families.oracles import (
    ZooFile,
    assert_same_spectrum,
    assert_sorted_moduli,
    oracle_eigenvalues,
    read_layers,
    zoo_files,
)
from numpy.testing import assert_allclose

from memcurse_cli.families.recurrence import Recurrence

H, INPUTS = 4, 3
FAMILIES = {"lstm": "onnx_lstm", "gru": "onnx_gru", "rnn_tanh": "onnx_rnn"}
DIRECTIONS = ("forward", "reverse")


def layer_of(layers: dict[str, Recurrence], node: str, direction: int) -> Recurrence:
    """A node with one direction is a layer by its own name."""
    return layers.get(node) or layers[f"{node}/{DIRECTIONS[direction]}"]


@pytest.mark.parametrize("file", zoo_files("onnx_rnn", ".onnx"))
def test_eigenvalues_are_those_of_the_oracle(file: ZooFile) -> None:
    layers = read_layers(file.path)
    assert len(layers) == len(file.layers)
    for expected in file.layers:
        node = expected["name"].rpartition("[")[0]
        recurrence = layer_of(layers, node, expected["params"]["direction"])
        assert recurrence.family == FAMILIES[expected["kind"]]
        ours = np.exp(recurrence.log_eigenvalues)
        assert_same_spectrum(ours, oracle_eigenvalues(expected), 1e-12)
        if expected["order"] == "hidden unit":
            assert_allclose(ours, oracle_eigenvalues(expected), rtol=1e-12)


@pytest.mark.parametrize(
    ("file", "key"),
    [("silero_vad_16k_op15", "model.decoder.rnn"), ("silero_vad_half", "decoder.rnn")],
)
def test_silero_s_gates_are_reordered_by_the_graph(trained: Path, file: str, key: str) -> None:
    folder = trained / "silero_vad_lstm"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    (recurrence,) = read_layers(folder / f"{file}.onnx").values()
    expected = oracle[f"{file}.onnx:{key}"]["nominal_forget"]
    assert_sorted_moduli(recurrence, expected["lambda_sorted"])


def test_gtcrn_s_onnx_and_its_torch_checkpoint_are_the_same(trained: Path) -> None:
    folder = trained / "gtcrn_gru"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    layers = read_layers(folder / "gtcrn.onnx")
    torch_layers = read_layers(folder / "model_trained_on_dns3.tar")
    assert len(layers) == len(torch_layers) == 18
    for name, expected in oracle.items():
        if name.startswith("onnx:"):
            node = name.split(":")[1]
            recurrence = layer_of(layers, node, int(name[-2]))
            assert_sorted_moduli(recurrence, expected["nominal_update"]["lambda_sorted"])
    # The exporter only reordered the gates: bit for bit the same numbers, layer by layer.
    spectra = sorted(tuple(r.log_eigenvalues) for r in layers.values())
    assert spectra == sorted(tuple(r.log_eigenvalues) for r in torch_layers.values())
