"""Mamba against transformers' own mixer, the libraries' layers, and differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import ZooFile, oracle_eigenvalues, original_layer, read_layers, zoo_files
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from transformers import DynamicCache, MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.mamba import Mamba

CHANNELS, STATE = 4, 3
CONFIG = MambaConfig(
    hidden_size=4, state_size=STATE, num_hidden_layers=1, time_step_rank=2, expand=2
)


def layer() -> dict[str, NDArray]:
    rng = np.random.default_rng(6)
    return {
        "mixer.A_log": rng.uniform(-2, 1, (CHANNELS, STATE)),
        "mixer.dt_proj.bias": rng.uniform(-4, 1, CHANNELS),
    }


@pytest.fixture
def mixer() -> MambaMixer:
    """A mixer whose convolution sees the current token only, with nominal step sizes."""
    torch.manual_seed(0)
    mixer = MambaMixer(CONFIG, layer_idx=0).eval()
    with torch.no_grad():
        mixer.A_log += 0.3 * torch.randn_like(mixer.A_log)
        mixer.dt_proj.bias.uniform_(-4, 1)
        mixer.dt_proj.weight.zero_()
        mixer.conv1d.weight[..., :-1] = 0
        mixer.conv1d.bias.zero_()
    return mixer


def final_state(mixer: MambaMixer, inputs: torch.Tensor) -> NDArray:
    cache = DynamicCache(config=CONFIG)
    with torch.no_grad():
        mixer(inputs[None], cache_params=cache)
    return cache.get_recurrent_state(0, state_idx=0)[0].double().numpy()


def test_the_state_grows_and_decays_as_transformers_lets_it(mixer: MambaMixer) -> None:
    recurrence = read_layer({f"mixer.{k}": v for k, v in mixer.state_dict().items()}, Mamba())
    x = torch.randn(1, 4)
    with torch.no_grad():
        channels = mixer.intermediate_size
        driven = torch.nn.functional.silu(
            (x @ mixer.in_proj.weight[:channels].T) * mixer.conv1d.weight[:, 0, -1]
        )
        rank = mixer.time_step_rank
        readin = (driven @ mixer.x_proj.weight.T)[:, rank : rank + STATE]
        drive = (driven[0, :, None] * readin).double().numpy()
    kicked = final_state(mixer, x)
    gain = np.exp(recurrence.log_gain.real).reshape(kicked.shape)
    assert_allclose(kicked, gain * drive, rtol=1e-5)
    later = final_state(mixer, torch.cat([x, torch.zeros(7, 4)]))
    decayed = np.exp(7 * recurrence.log_eigenvalues.real).reshape(kicked.shape)
    assert_allclose(later, decayed * kicked, rtol=1e-5)


def test_derivatives() -> None:
    check_derivatives(layer(), Mamba())


def test_one_bias_moves_the_whole_state_of_its_channel() -> None:
    recurrence = read_layer(layer(), Mamba())
    _, bias = recurrence.parameters
    assert bias.scalar.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert recurrence.input_dependent
    assert recurrence.stable_by_construction
    assert recurrence.readin is None
    assert recurrence.readout is None


def test_the_tails_keep_full_precision() -> None:
    tensors = {"A_log": np.array([[-20.0, 300.0]]), "dt_proj.bias": np.array([-40.0])}
    recurrence = read_layer(tensors, Mamba())
    assert recurrence.name == "mamba"
    assert_allclose(recurrence.log_eigenvalues.real[0], -np.exp(-60.0), rtol=1e-14)
    assert_allclose(recurrence.log_gain.real, -40.0, rtol=1e-15)
    assert np.all(np.isfinite(recurrence.log_eigenvalues))
    for group in recurrence.parameters:
        assert np.all(np.isfinite(group.eigenvalue_derivative))


def test_zamba_keeps_a_head_axis() -> None:
    flat = layer()
    heads = {
        "mamba.A_log": flat["mixer.A_log"].reshape(2, CHANNELS // 2, STATE),
        "mamba.dt_proj_bias": flat["mixer.dt_proj.bias"].reshape(2, -1),
    }
    assert_allclose(
        read_layer(heads, Mamba()).log_eigenvalues, read_layer(flat, Mamba()).log_eigenvalues
    )
    check_derivatives(heads, Mamba())


@pytest.mark.parametrize("rate", ["A_b_log", "A_log_b"])
def test_vision_mamba_has_a_second_direction(rate: str) -> None:
    tensors = layer()
    tensors[f"mixer.{rate}"] = tensors["mixer.A_log"] + 1
    tensors["mixer.dt_proj_b.bias"] = tensors["mixer.dt_proj.bias"]
    assert [match.layer for match in match_of(tensors, Mamba())] == ["mixer", "mixer (backward)"]
    forward, backward = (read_layer(tensors, Mamba(), index) for index in range(2))
    assert_allclose(backward.log_eigenvalues, np.e * forward.log_eigenvalues)


def test_a_step_size_without_rates_is_no_mamba() -> None:
    assert match_of({"ssm.dt_proj.bias": np.ones(4), "ssm.D": np.ones(4)}, Mamba()) == []
    assert match_of({"A_log": np.ones(4), "dt_proj.bias": np.ones(4)}, Mamba()) == []


@pytest.mark.parametrize(
    ("tensor", "values", "message"),
    [
        ("mixer.A_log", np.full((CHANNELS, STATE), np.nan), "mixer.A_log: 12 NaN"),
        ("mixer.dt_proj.bias", np.full(CHANNELS, -np.inf), "mixer.dt_proj.bias: 4 inf"),
        ("mixer.dt_proj.bias", np.ones(CHANNELS + 1), r"mixer.dt_proj.bias: its shape \(5\)"),
    ],
)
def test_bad_tensors_are_named(tensor: str, values: NDArray, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        read_layer({**layer(), tensor: values}, Mamba())


@pytest.mark.parametrize(
    "file",
    zoo_files("hf_mamba", "/model.safetensors", ".bin", ".index.json", kind="mamba1")
    + zoo_files("mamba_ssm", "/model.safetensors", ".bin", kind="mamba1"),
)
def test_zoo(file: ZooFile) -> None:
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
