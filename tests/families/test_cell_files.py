"""Files of gated and Elman cells that their libraries wrote or people trained, against oracles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families.oracles import (
    assert_reported,
    assert_same_spectrum,
    assert_sorted_moduli,
    oracle_eigenvalues,
    zoo_files,
)
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence

FAMILIES = {
    "flax": {"lstm": "flax_lstm", "gru": "flax_gru", "mgu": "flax_mgu", "rnn_tanh": "flax_simple"},
    "keras": {"lstm": "keras_lstm", "gru": "keras_gru", "rnn_tanh": "keras_simple_rnn"},
    "onnx": {"lstm": "onnx_lstm", "gru": "onnx_gru", "rnn_tanh": "onnx_rnn"},
    "torch": {"lstm": "lstm", "gru": "gru", "rnn_tanh": "dense_rnn", "rnn_relu": "dense_rnn"},
}
# What the files call the layers that the oracle names by the model's attributes.
SPELLINGS = {
    "bi/forward": ("bi/forward_layer", "bi/forward_lstm_1"),
    "bi/backward": ("bi/backward_layer", "bi/backward_lstm_1"),
    "stacked/cells/0": ("stacked/cell/cells/lstm_cell", "stacked/stacked_rnn_cells/lstm_cell"),
    "stacked/cells/1": ("stacked/cell/cells/gru_cell", "stacked/stacked_rnn_cells/gru_cell"),
}
LETTERS = {"i": "input", "f": "forget", "g": "cell", "o": "output"} | {
    "r": "reset",
    "z": "update",
    "n": "new",
}


def read_all(path: Path, **assume: str) -> dict[str, Recurrence]:
    options = ReadOptions(spectra=True, assume=assume)
    with open_checkpoint(path) as store:
        return {
            match.layer.removeprefix("params/"): family.read(store, match, options)
            for family, match in detect(store.tensors)
        }


def names_of(layer: dict[str, Any]) -> Iterator[str]:
    """What the files may call a layer; a node of ONNX with one direction has its own name."""
    name = layer["name"].removeprefix("params/")
    node, direction = name.rpartition("[")[0], layer.get("params", {}).get("direction", 0)
    yield from (name, *SPELLINGS.get(name, ()), node, f"{node}/{('forward', 'reverse')[direction]}")


@pytest.mark.parametrize(
    ("path", "expected_layers"),
    [
        *zoo_files("flax_linen", ".msgpack", ".npz", "checkpoint_7", "/_METADATA"),
        *zoo_files("keras_rnn", ".keras", ".h5"),
        *zoo_files("onnx_rnn", ".onnx"),
        *zoo_files("torch_rnn", ".safetensors", ".pt", ".pth", ".ckpt"),
    ],
)
def test_eigenvalues_are_those_of_the_oracle(
    path: Path, expected_layers: list[dict[str, Any]]
) -> None:
    families = next(own for key, own in FAMILIES.items() if f"/{key}_" in str(path))
    layers = read_all(path)
    assert_reported(path, layers)
    residual = read_all(path, residual="yes")
    assert len(layers) == len(expected_layers)
    for expected in expected_layers:
        added = "residual=True" in expected["equation"]
        (name,) = (name for name in dict.fromkeys(names_of(expected)) if name in layers)
        recurrence = (residual if added else layers)[name]
        assert recurrence.family == families[expected["kind"]]
        ours, theirs = np.exp(recurrence.log_eigenvalues), oracle_eigenvalues(expected)
        tolerance = 1e-9 if recurrence.family in FAMILIES["torch"].values() else 1e-12
        assert_same_spectrum(ours, theirs, tolerance)
        if "rnn" not in expected["kind"]:
            assert_allclose(ours, theirs, rtol=tolerance)


@pytest.mark.parametrize(
    ("path", "layers"), zoo_files("torch_rnn", ".pt", ".pth", ".safetensors", ".ckpt")
)
def test_spectra_are_those_of_torch_s_own_step(path: Path, layers: list[dict[str, Any]]) -> None:
    expected: dict[str, dict[str, Any]] = {
        layer["name"]: layer["extra"]
        for layer in layers
        if layer["kind"] in ("lstm", "gru") and "extra" in layer
    }
    if not expected:
        pytest.skip("no gated layer")
    read = read_all(path)
    # That library forms its weight from norm and direction in float32, we in float64.
    tolerance = 1e-7 if path.name == "gru_weight_norm.pt" else 1e-9
    compared = 0
    for name, extra in expected.items():
        hidden = next(
            layer.hidden for full, layer in read.items() if full == name or name.endswith(full)
        )
        for key, ours in (
            ("jacobian_at_origin", hidden.jacobian),
            ("W_hf_eigs", hidden.gates.get("forget")),
        ):
            if extra.get(key) is not None:
                assert_same_spectrum(ours, np.array(extra[key]) @ np.array([1, 1j]), tolerance)
                compared += 1
    assert compared


def check_trained(found: Recurrence, oracle: dict[str, Any]) -> None:
    """Memories, and the largest eigenvalues of each gate's hidden matrix."""
    nominal = oracle.get("nominal_forget") or oracle["nominal_update"]
    assert_sorted_moduli(found, nominal["lambda_sorted"])
    assert found.hidden is not None
    for letter, expected in oracle.get("per_gate_W_hh", {}).items():
        if letter in LETTERS:
            moduli = np.sort(np.abs(found.hidden.gates[LETTERS[letter]]))[::-1]
            largest = expected["abs_eigs_sorted_desc"]
            assert_allclose(moduli[: len(largest)], largest, rtol=1e-9)
            assert np.count_nonzero(moduli > 1) == expected["n_abs_gt_1"]


@pytest.mark.parametrize(
    ("file", "layer", "key"),
    [
        ("silero_vad_lstm/silero_vad_16k.safetensors", "lstm_cell", "{file}:lstm_cell"),
        ("silero_vad_lstm/silero_vad.jit", "_model.decoder.rnn", "{file}:_model.decoder.rnn (16k)"),
        ("silero_vad_lstm/silero_vad.jit", "_model_8k.decoder.rnn", "{file}:{layer}"),
        # The graph puts the rows in another order.
        ("silero_vad_lstm/silero_vad_16k_op15.onnx", "", "{file}:model.decoder.rnn"),
        ("silero_vad_lstm/silero_vad_half.onnx", "", "{file}:decoder.rnn"),
        ("g2p_en_gru_npz/checkpoint20.npz", "enc", "enc"),
        ("g2p_en_gru_npz/checkpoint20.npz", "dec", "dec"),
        ("textgenrnn_cudnnlstm/textgenrnn_weights.hdf5", "rnn_1", "rnn_1"),
        ("textgenrnn_cudnnlstm/textgenrnn_weights.hdf5", "rnn_2", "rnn_2"),
    ],
)
def test_trained_files(trained: Path, file: str, layer: str, key: str) -> None:
    path = trained / file
    oracle = json.loads(path.with_name("oracle.json").read_text())["layers"]
    layers = read_all(path)
    found = layers[layer] if layer else next(iter(layers.values()))
    check_trained(found, oracle[key.format(file=path.name, layer=layer)])
    # Keras 2.1's own LSTM had hard gates; cuDNN knows only the sigmoid.
    assert not any("recurrent_activation" in said for said in found.assumptions)


def test_a_torch_checkpoint_and_its_onnx_are_the_same(trained: Path) -> None:
    folder = trained / "gtcrn_gru"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"]
    layers = read_all(folder / "model_trained_on_dns3.tar")
    expected = {
        name.removeprefix("tar:model.").replace("weight_hh_", ""): layer
        for name, layer in oracle.items()
        if name.startswith("tar:")
    }
    assert layers.keys() == expected.keys()
    for name, layer in expected.items():
        check_trained(layers[name], layer)
    # The exporter only reordered the gates: bit for bit the same numbers, layer by layer.
    exported = read_all(folder / "gtcrn.onnx")
    assert len(exported) == len(layers) == 18
    spectra, others = (
        sorted(tuple(one.log_eigenvalues) for one in read.values()) for read in (layers, exported)
    )
    assert spectra == others
