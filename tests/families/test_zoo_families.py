"""Each family finds its own layers in the shared checkpoints, no one else's, with the right λ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families.derivatives import read_layer
from families.impulse import impulse_response, output_of
from families.oracles import (
    assert_reported,
    assert_same_spectrum,
    oracle_eigenvalues,
    original_layer,
    read_layers,
    zoo_files,
)
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.families.detect import named_family
from memcurse_cli.families.family import ReadOptions

# The family that reads each kind of layer in the oracles.
FAMILY_OF_KIND = {
    "rg_lru": "rg_lru",
    "rwkv4": "rwkv",
    "rwkv6": "rwkv",
    "rwkv7": "rwkv7",
    "mlstm": "mlstm",
    "gated_delta_net": "gated_delta_net",
    "kda": "kda",
    "delta_net": "delta_net",
    "gla": "gla",
    "hgrn": "hgrn",
    "hgrn2": "hgrn",
    "retention": "retnet",
}
# Families that no shared checkpoint has.
STRANGERS = (
    *("slstm", "lightning_attention", "min_gru", "min_lstm", "sru", "qrnn", "tf_lstm", "mgu"),
    *("multiplicative_lstm", "lem", "unicornn", "ind_rnn", "low_rank_rnn", "co_rnn"),
    "orthogonal_rnn",
)
# Their multiplicities are counted; those of flash-linear-attention's are all noted as 1.
COUNTED = {"hf_rwkv", "hf_xlstm", "hf_qwen3_next", "hf_recurrent_gemma"}


ENDINGS = (".safetensors", ".pt", ".pth", ".npz", ".ckpt", "index.json")


@pytest.mark.parametrize(("path", "layers"), zoo_files("*", *ENDINGS))
def test_a_family_finds_its_own_layers_alone_and_reads_them(
    path: Path, layers: list[dict[str, Any]]
) -> None:
    with open_checkpoint(path) as store:
        for name in {*FAMILY_OF_KIND.values(), *STRANGERS}:
            family = named_family(name)
            own = [layer for layer in layers if FAMILY_OF_KIND.get(layer["kind"]) == name]
            found = family.find(store.tensors)
            assert [match.layer for match in found] == [layer["name"] for layer in own], name
            for match, expected in zip(found, own, strict=True):
                recurrence = family.read(store, match, ReadOptions())
                theirs = oracle_eigenvalues(expected)
                assert_allclose(np.exp(recurrence.log_eigenvalues), theirs, rtol=1e-12)
                assert recurrence.input_dependent is expected["input_dependent"]
                if path.parents[1].name in COUNTED:
                    assert recurrence.multiplicity == expected["multiplicity"]


# What the files of state spaces do not say.
ASSUMED = {
    "s5_bilinear": {"discretization": "bilinear"},
    "s5_clip_bidir": {"clip-eigenvalues": "true"},
    "s5_noconj": {"conjugate-symmetry": "false"},
}
SUFFIXES = ("model.safetensors", ".bin", ".index.json", ".gguf", ".npz", ".pt", ".ckpt")
MAMBAS = ("hf_mamba", "hf_mamba2", "mamba_ssm", "gguf")
STATE_SPACES = ("s4", "s5_jax", "minimal_lru")


@pytest.mark.parametrize(
    ("path", "expected_layers"),
    [file for folder in MAMBAS for file in zoo_files(folder, *SUFFIXES)]
    + [file for folder in STATE_SPACES for file in zoo_files(folder, *SUFFIXES, ".safetensors")],
)
def test_mambas_and_state_spaces(path: Path, expected_layers: list[dict[str, Any]]) -> None:
    kind, name = expected_layers[0]["kind"], path.name
    assume = dict(ASSUMED.get(path.stem, {}))
    if kind == "s4d" and "minimal" not in name:
        assume["discretization"] = expected_layers[0]["extra"]["disc"]
    if "softplus" in name:
        assume |= {"dt-transform": "softplus", "real-transform": "softplus"}
    family = {"mamba1": "mamba", "rwkv6": "rwkv"}.get(kind, kind)
    if path.suffix == ".gguf" and "mamba" in kind:
        family = "gguf_mamba"
    layers = read_layers(path, **assume)
    assert_reported(path, layers, **assume)
    for expected, (layer, recurrence) in zip(expected_layers, layers.items(), strict=True):
        assert recurrence.family == family
        if family not in ("s4d", "s4_dplr"):
            assert layer.replace(".", "/") == expected["name"].replace(".", "/")
        extra = expected.get("extra", {})
        if kind in ("s4d", "s5"):
            assert recurrence.conjugate_pairs is extra.get("conjugate_pairs_implied", False)
        if kind in ("mamba2", "mamba3"):
            assert recurrence.multiplicity == expected["multiplicity"]
        if "zero_A_count" in extra:  # what quantisation rounded to one is reported
            ones = np.count_nonzero(recurrence.log_eigenvalues == 0)
            assert ones == extra["zero_A_count"]
            assert (ones > 0) == ("q4_0" in name)
            assert not recurrence.stable_by_construction
        ours, theirs = np.exp(recurrence.log_eigenvalues), oracle_eigenvalues(expected)
        if kind == "s4_dplr":
            rows = (each.reshape(expected["lambda_shape"]) for each in (ours, theirs))
            for row, other in zip(*rows, strict=True):
                assert_same_spectrum(row, other, 1e-9 / np.abs(other).max())
            continue
        # llama.cpp rounds the e^(-1/2) of RWKV-7 to 0.606531.
        tolerance = 1e-6 if kind == "rwkv7" else 1e-14
        assert_allclose(ours, theirs, rtol=1e-9 if kind == "lru" else 0, atol=tolerance)


@pytest.mark.parametrize(
    ("module", "family"),
    [
        ("lru_minimal", "lru"),
        ("s5_zoh_conj", "s5"),
        ("s4d_minimal", "s4d"),
        ("s4v4_diag_zoh", "s4d"),
        ("s4v4_dplr", "s4_dplr"),
        ("mamba1", "mamba"),
    ],
)
def test_layers_that_their_authors_made_and_ran(paper: Path, module: str, family: str) -> None:
    arrays, computed = original_layer(paper, module)
    recurrence = read_layer(arrays, named_family(family))
    theirs = computed["lambda_bias_only" if family == "mamba" else "lambda_"]
    ours = np.exp(recurrence.log_eigenvalues).reshape(theirs.shape)
    if family == "s4_dplr":
        for row, other in zip(ours, theirs, strict=True):
            assert_same_spectrum(row, other, 1e-7)
        return
    assert_allclose(ours, theirs, rtol=1e-14 if family == "mamba" else 0, atol=1e-15)
    if family == "s4d":
        response = impulse_response(recurrence, 64)
        kernel = computed["impulse"].reshape(response.shape)
        assert_allclose(response, kernel, rtol=0, atol=1e-6)
    if family in ("lru", "s5"):
        output = output_of(recurrence, computed["x"], arrays["D"])
        assert_allclose(output, computed["y"], rtol=0, atol=2e-6)
