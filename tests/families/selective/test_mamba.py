"""Mamba under the names of PyTorch's libraries, vision models and llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.oracles import ZooFile, oracle_eigenvalues, original_layer, read_layers, zoo_files
from families.selective.layers import GGUF_MAMBA, GGUF_MAMBA_2
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.mamba import GgufMamba, Mamba, Mamba2

K, CHANNELS, STATE, RANK, STEPS = 4, 3, 2, 2, 6


RANDOM = np.random.default_rng(21)


def rates(*shape: int) -> NDArray:
    return RANDOM.uniform(-2, 1, shape)


def biases(*shape: int) -> NDArray:
    return RANDOM.uniform(-4, 1, shape)


def scan(log_rate: NDArray, bias: NDArray) -> NDArray:
    """`selective_scan_ref` with delta_softplus, of an impulse, with B = 1: (steps, rows, state).

    The part of Δ that depends on the input is zero, as its weights are.
    """
    a = -np.exp(log_rate)
    delta = np.log1p(np.exp(bias))[:, None]
    h = np.zeros_like(log_rate)
    states = []
    for step in range(STEPS):
        h = np.exp(delta * a) * h + delta * (step == 0)
        states.append(h)
    return np.stack(states)


def assert_scans(recurrence: Recurrence, log_rate: NDArray, bias: NDArray) -> None:
    lags = np.exp(np.outer(np.arange(STEPS), recurrence.log_eigenvalues.real))
    ours = lags * np.exp(recurrence.log_gain.real)
    assert_allclose(ours, scan(log_rate, bias).reshape(STEPS, -1), rtol=1e-12)


def vmamba() -> dict[str, NDArray]:
    layer = {
        "x_proj_weight": np.ones((K, RANK + 2 * STATE, CHANNELS)),
        "dt_projs_weight": RANDOM.normal(size=(K, CHANNELS, RANK)),
        "dt_projs_bias": biases(K, CHANNELS),
        "A_logs": rates(K * CHANNELS, STATE),
        "Ds": np.ones(K * CHANNELS),
        "out_norm.weight": np.ones(CHANNELS),
        "in_proj.weight": np.ones((2 * CHANNELS, 5)),
        "conv2d.weight": np.ones((CHANNELS, 1, 3, 3)),
    }
    return {f"layers.0.blocks.0.op.{name}": values for name, values in layer.items()}


def test_vmamba_keeps_all_directions_in_one_layer() -> None:
    layer = vmamba()
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert (family.name, match.layer) == ("mamba", "layers.0.blocks.0.op")
    recurrence = read_layer(layer, Mamba())
    prefix = "layers.0.blocks.0.op."
    # SS2D's forward: dt_projs_bias.view(-1), A_logs as it is.
    assert_scans(recurrence, layer[f"{prefix}A_logs"], layer[f"{prefix}dt_projs_bias"].ravel())
    assert recurrence.multiplicity == 1


def test_the_step_of_vmamba_sees_its_input_through_each_direction_s_projections() -> None:
    layer = vmamba()
    prefix = "layers.0.blocks.0.op."
    layer[f"{prefix}x_proj_weight"] = RANDOM.normal(size=(K, RANK + 2 * STATE, CHANNELS))
    (match,) = match_of(layer, Mamba())
    gate = Mamba().read(MemoryStore(layer), match, ReadOptions(gates=True)).gate
    assert gate is not None
    down, up = layer[f"{prefix}x_proj_weight"][:, :RANK], layer[f"{prefix}dt_projs_weight"]
    both = np.concatenate([up[k] @ down[k] for k in range(K)])
    assert_allclose(gate.gate.norms.inputs, np.repeat(np.sum(both**2, axis=1), STATE))


def test_the_heads_of_vmamba_m0_drive_a_state_each() -> None:
    heads, size = 2, 3
    layer = {
        "op.x_proj_weight": np.ones((K, heads + 2 * 5, heads * size)),
        "op.A_logs": rates(K, heads),
        "op.dt_projs_bias": biases(K, heads),
        "op.Ds": np.ones((K, heads, size)),
    }
    recurrence = read_layer(layer, Mamba())
    assert recurrence.multiplicity == size * 5
    assert_scans(recurrence, layer["op.A_logs"].reshape(-1, 1), layer["op.dt_projs_bias"].ravel())


def test_both_directions_of_vision_mamba_v1_share_their_step() -> None:
    layer = {
        "layers.0.mixer.A_log": rates(CHANNELS, STATE),
        "layers.0.mixer.A_b_log": rates(CHANNELS, STATE),
        "layers.0.mixer.dt_proj.bias": biases(CHANNELS),
    }
    found = detect(MemoryStore(layer).tensors)
    assert [match.layer for _, match in found] == ["layers.0.mixer", "layers.0.mixer (backward)"]
    forward, backward = (read_layer(layer, Mamba(), index) for index in range(2))
    bias = layer["layers.0.mixer.dt_proj.bias"]
    assert_scans(forward, layer["layers.0.mixer.A_log"], bias)
    assert_scans(backward, layer["layers.0.mixer.A_b_log"], bias)
    assert not any("forward one" in sentence for sentence in forward.assumptions)
    assert any("forward one" in sentence for sentence in backward.assumptions)


# Of each library: the names of the layers, and of their rates and biases in the module m.
DIRECTIONS = {
    "SegMamba": {
        "m": ("m.A_log", "m.dt_proj.bias"),
        "m (backward)": ("m.A_b_log", "m.dt_proj_b.bias"),
        "m (s)": ("m.A_s_log", "m.dt_proj_s.bias"),
    },
    "LocalVim": {f"m ({k})": (f"m.A_log_{k}", f"m.dt_proj_{k}.bias") for k in range(K)},
    "Hymba": {"m": ("m.A_log.0", "m.dt_proj.0.bias")},
    "lists of two": {f"m ({k})": (f"m.A_log.{k}", f"m.dt_proj.{k}.bias") for k in range(2)},
    "Caduceus": {
        "m.mamba_fwd": ("m.mamba_fwd.A_log", "m.mamba_fwd.dt_proj.bias"),
        "m.mamba_rev": ("m.mamba_rev.A_log", "m.mamba_rev.dt_proj.bias"),
    },
    "Flax": {"params/m": ("params/m/A_log", "params/m/dt_proj/bias")},
}


@pytest.mark.parametrize("library", DIRECTIONS)
def test_each_direction_is_a_layer(library: str) -> None:
    names = DIRECTIONS[library]
    layer = {}
    for rate, bias in names.values():
        layer |= {rate: rates(CHANNELS, STATE), bias: biases(CHANNELS)}
        layer |= {f"{bias[:-4]}weight": RANDOM.normal(size=(CHANNELS, RANK))}
    found = detect(MemoryStore(layer).tensors)
    assert {match.layer for _, match in found} == names.keys()
    assert {family.name for family, _ in found} == {"mamba"}
    for index, match in enumerate(match_of(layer, Mamba())):
        rate, bias = names[match.layer]
        assert_scans(read_layer(layer, Mamba(), index), layer[rate], layer[bias])


def test_hymba_s_norm_stands_between_its_projections() -> None:
    layer = {
        "mamba.A_log.0": rates(CHANNELS, STATE),
        "mamba.dt_proj.0.bias": biases(CHANNELS),
        "mamba.dt_proj.0.weight": RANDOM.normal(size=(CHANNELS, RANK)),
        "mamba.x_proj.0.weight": RANDOM.normal(size=(RANK + 2 * STATE, CHANNELS)),
        "mamba.dt_layernorm.weight": np.array([2.0, 0.5]),
    }
    (match,) = match_of(layer, Mamba())
    gate = Mamba().read(MemoryStore(layer), match, ReadOptions(gates=True)).gate
    assert gate is not None
    scaled = layer["mamba.dt_proj.0.weight"] * layer["mamba.dt_layernorm.weight"]
    assert_allclose(gate.gate.fixed, np.repeat(np.sum(scaled**2, axis=1), STATE))


def test_a_direction_without_a_step_of_its_own_is_not_read() -> None:
    layer = {"m.A_s_log": rates(CHANNELS, STATE), "m.dt_proj.bias": biases(CHANNELS)}
    assert match_of(layer, Mamba()) == []
    assert match_of({"m.A_logs": rates(3), "m.dt_projs_bias": biases(3)}, Mamba()) == []


def test_the_tails_keep_full_precision() -> None:
    tensors = {"A_log": np.array([[-20.0, 300.0]]), "dt_proj.bias": np.array([-40.0])}
    recurrence = read_layer(tensors, Mamba())
    assert recurrence.name == "mamba"
    assert_allclose(recurrence.log_eigenvalues.real[0], -np.exp(-60.0), rtol=1e-14)
    assert_allclose(recurrence.log_gain.real, -40.0, rtol=1e-15)
    assert np.all(np.isfinite(recurrence.log_eigenvalues))
    for group in recurrence.parameters:
        assert np.all(np.isfinite(group.eigenvalue_derivative))


def test_a_step_size_without_rates_is_no_mamba() -> None:
    assert match_of({"ssm.dt_proj.bias": np.ones(4), "ssm.D": np.ones(4)}, Mamba()) == []
    assert match_of({"A_log": np.ones(4), "dt_proj.bias": np.ones(4)}, Mamba()) == []


@pytest.mark.parametrize(
    "file",
    zoo_files("hf_mamba", "/model.safetensors", ".bin", ".index.json", kind="mamba1")
    + zoo_files("mamba_ssm", "/model.safetensors", ".bin", kind="mamba1"),
)
def test_zoo_of_torch(file: ZooFile) -> None:
    layers = read_layers(file.path)
    for each, (name, recurrence) in zip(file.layers, layers.items(), strict=True):
        assert name == each["name"]
        assert recurrence.family == "mamba"
        assert_allclose(
            np.exp(recurrence.log_eigenvalues), oracle_eigenvalues(each), rtol=0, atol=1e-14
        )


def test_the_original_layer(paper: Path) -> None:
    arrays, computed = original_layer(paper, "mamba1")
    expected = computed["lambda_bias_only"].ravel()
    recurrence = read_layer(arrays, Mamba())
    assert_allclose(np.exp(recurrence.log_eigenvalues), expected, rtol=1e-14)


FAMILY_OF_KIND = {
    "mamba1": "gguf_mamba",
    "mamba2": "gguf_mamba",
    "rwkv6": "rwkv",
    "rwkv7": "rwkv7",
}


@pytest.mark.parametrize("file", zoo_files("gguf", ".gguf"))
def test_zoo_of_llama_cpp(file: ZooFile) -> None:
    layers = read_layers(file.path)
    for each, (name, recurrence) in zip(file.layers, layers.items(), strict=True):
        assert name == each["name"]
        assert recurrence.family == FAMILY_OF_KIND[each["kind"]]
        assert recurrence.input_dependent
        # llama.cpp rounds the e^(-1/2) of RWKV-7 to 0.606531.
        tolerance = 1e-6 if each["kind"] == "rwkv7" else 1e-14
        ours = np.exp(recurrence.log_eigenvalues)
        assert_allclose(ours, oracle_eigenvalues(each), rtol=0, atol=tolerance)
        if each["kind"] == "mamba2":
            assert recurrence.multiplicity == each["multiplicity"]


@pytest.mark.parametrize("file", zoo_files("gguf", "q4_0.forced.gguf"))
def test_an_eigenvalue_that_quantisation_rounded_to_one_is_reported(file: ZooFile) -> None:
    for each, recurrence in zip(file.layers, read_layers(file.path).values(), strict=True):
        ones = np.count_nonzero(recurrence.log_eigenvalues == 0)
        assert ones == each["extra"]["zero_A_count"] > 0
        assert not recurrence.stable_by_construction


def test_it_is_the_layer_that_was_converted() -> None:
    arrays = GGUF_MAMBA
    original = {
        "mixer.A_log": np.log(-arrays["blk.0.ssm_a"]),
        "mixer.dt_proj.bias": arrays["blk.0.ssm_dt.bias"],
    }
    ours, theirs = read_layer(arrays, GgufMamba()), read_layer(original, Mamba())
    assert_allclose(ours.log_eigenvalues, theirs.log_eigenvalues, rtol=1e-14)
    assert_allclose(ours.log_gain, theirs.log_gain, rtol=1e-14)
    by_rate, by_log_rate = ours.parameters[0], theirs.parameters[0]
    assert_allclose(
        by_rate.eigenvalue_derivative * by_rate.values, by_log_rate.eigenvalue_derivative
    )
    assert read_layer(GGUF_MAMBA_2, GgufMamba()).multiplicity == 3 * 5


def test_no_other_family_claims_it() -> None:
    for family in (Mamba(), Mamba2()):
        assert match_of(GGUF_MAMBA | GGUF_MAMBA_2, family) == []
    assert [match.layer for match in match_of(GGUF_MAMBA | GGUF_MAMBA_2, GgufMamba())] == [
        "blk.0",
        "blk.3",
    ]
    for name in ("blk.0.ssm_x.weight", "blk.0.ssm_dt.bias"):
        assert match_of({k: v for k, v in GGUF_MAMBA.items() if k != name}, GgufMamba()) == []


@pytest.mark.parametrize("role", ["ssm_conv1d.weight", "ssm_norm.weight"])
def test_heads_that_do_not_fit_are_named(role: str) -> None:
    tensor = f"blk.3.{role}"
    arrays = GGUF_MAMBA_2 | {tensor: np.ones((GGUF_MAMBA_2[tensor].shape[0] + 1, 3))}
    with pytest.raises(TensorError, match="does not fit 2 heads"):
        read_layer(arrays, GgufMamba())
