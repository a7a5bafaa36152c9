"""Mamba-2: the bias of its projection, its groups, its limits and its directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from families.derivatives import match_of, read_configured, read_layer
from families.oracles import ZooFile, oracle_eigenvalues, read_layers, zoo_files
from families.selective.layers import mamba2
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.mamba import UNCLAMPED, Mamba2

HIDDEN, HEADS, HEAD_DIMENSION, STATE, GROUPS = 8, 4, 4, 3, 2


WIDTH = HEADS * HEAD_DIMENSION


CONVOLVED = WIDTH + 2 * GROUPS * STATE


ROWS = WIDTH + CONVOLVED + HEADS


LAYERS = {bias: mamba2(bias=bias) for bias in (True, False)}
HYDRA = mamba2(2)


def layer(*, bias: bool = True) -> dict[str, NDArray]:
    return dict(LAYERS[bias])


@pytest.mark.parametrize("bias", [False, True])
def test_the_directions_of_hydra_have_steps_of_their_own(bias: bool) -> None:
    """`Hydra.forward` at zero input: dt of both directions is split, and dt_bias added to each."""
    tensors = dict(HYDRA)
    if not bias:
        del tensors["mixer.in_proj.bias"]
    assert [match.layer for match in match_of(tensors, Mamba2())] == ["mixer", "mixer (backward)"]
    projected = tensors.get("mixer.in_proj.bias", np.zeros(2 * HEADS))[-2 * HEADS :]
    rate = np.exp(tensors["mixer.A_log"])
    for index, own in enumerate((projected[:HEADS], projected[HEADS:])):
        recurrence = read_layer(tensors, Mamba2(), index, groups=str(GROUPS))
        step = np.log1p(np.exp(own + tensors["mixer.dt_bias"]))
        assert_allclose(recurrence.log_eigenvalues.real, -step * rate, rtol=1e-12)
        assert_allclose(np.exp(recurrence.log_gain.real), step, rtol=1e-12)
        assert recurrence.multiplicity == HEAD_DIMENSION * STATE


def test_the_gates_of_hydra_s_directions_see_rows_of_their_own() -> None:
    tensors = HYDRA
    weight = tensors["mixer.in_proj.weight"]
    blocks = (weight[-2 * HEADS : -HEADS], weight[-HEADS:])
    for match, block in zip(match_of(tensors, Mamba2()), blocks, strict=True):
        options = ReadOptions(gates=True, assume={"groups": str(GROUPS)})
        gate = Mamba2().read(MemoryStore(tensors), match, options).gate
        assert gate is not None
        assert_allclose(gate.gate.norms.inputs, np.sum(block**2, axis=1))


def test_the_bias_of_the_projection_adds_to_the_step_size() -> None:
    tensors = layer()
    moved = dict(tensors)
    moved["mixer.dt_bias"] = tensors["mixer.dt_bias"] + tensors["mixer.in_proj.bias"][-HEADS:]
    del moved["mixer.in_proj.bias"]
    ours, theirs = read_layer(tensors, Mamba2()), read_layer(moved, Mamba2())
    assert_allclose(ours.log_eigenvalues, theirs.log_eigenvalues, rtol=1e-15)
    assert [group.name for group in ours.parameters] == ["A_log", "dt_bias", "in_proj.bias"]
    assert [group.name for group in theirs.parameters] == ["A_log", "dt_bias"]


@pytest.mark.parametrize("groups", [1, 2])
def test_the_state_rests_on_the_number_of_groups(groups: int) -> None:
    recurrence = read_layer(layer(), Mamba2(), groups=str(groups))
    assert recurrence.multiplicity == HEAD_DIMENSION * STATE * GROUPS // groups
    assert f"groups={groups} (as given)" in recurrence.assumptions[0]


def configured(config: dict[str, Any], **assume: str) -> Recurrence:
    return read_configured(layer(), Mamba2(), config, **assume)


@pytest.mark.parametrize(
    "config",
    [
        {"n_groups": GROUPS},
        {"mamba_n_groups": GROUPS},
        {"mamba_ngroups": GROUPS},
        {"ssm_cfg": {"ngroups": GROUPS}},
        {"text_config": {"mamba_n_groups": GROUPS}},
    ],
)
def test_the_configuration_gives_the_number_of_groups(config: dict[str, Any]) -> None:
    recurrence = configured(config)
    assert recurrence.multiplicity == HEAD_DIMENSION * STATE
    assert f"groups={GROUPS} (from config.json)" in recurrence.assumptions[0]


@pytest.mark.parametrize("groups", ["0", "-1", "2.5", "nan", "1e400"])
def test_no_number_of_groups(groups: str) -> None:
    with pytest.raises(UsageError, match="is not a value of groups"):
        read_layer(layer(), Mamba2(), groups=groups)


def test_the_user_knows_better_than_the_configuration() -> None:
    recurrence = configured({"n_groups": GROUPS}, groups="1")
    assert recurrence.multiplicity == HEAD_DIMENSION * STATE * GROUPS
    assert "groups=1 (as given)" in recurrence.assumptions[0]


@pytest.mark.parametrize("value", [True, "2", 2.5, 10**50, [2], {"n": 2}, None, -1, 0])
def test_a_number_of_groups_that_is_none_is_passed_over(value: Any) -> None:
    recurrence = configured({"n_groups": value, "time_step_limit": value, "ssm_cfg": value})
    assert "groups=1 (the library's default)" in recurrence.assumptions[0]
    assert recurrence.assumptions[1] == UNCLAMPED


STEP = np.log1p(np.exp(layer()["mixer.dt_bias"] + layer()["mixer.in_proj.bias"][-HEADS:]))


@pytest.mark.parametrize(
    ("config", "shown", "low", "high"),
    [
        ({"time_step_limit": [0.1, 0.2]}, "[0.1, 0.2]", 0.1, 0.2),
        ({"ssm_cfg": {"dt_limit": [0.5, {"__float__": "Infinity"}]}}, "[0.5, inf]", 0.5, np.inf),
        (
            {"model_type": "zamba2", "time_step_min": 0.4, "time_step_limit": [0.1, 0.2]},
            "[0.4, inf]",
            0.4,
            np.inf,
        ),
    ],
)
def test_limits_of_the_step_are_told(
    config: dict[str, Any], shown: str, low: float, high: float
) -> None:
    outside = np.count_nonzero((low > STEP) | (high < STEP))
    sentence = configured(config).assumptions[1]
    assert f"holds it in {shown}" in sentence
    assert f"{outside} of {HEADS} heads lie outside" in sentence
    assert outside > 0


@pytest.mark.parametrize("infinity", [np.inf, {"__float__": "Infinity"}])
def test_open_limits_need_no_word(infinity: Any) -> None:
    assert len(configured({"time_step_limit": [0.0, infinity]}).assumptions) == 1


def test_falcon_h1_scales_the_bias_of_its_projection() -> None:
    factor = 0.3
    config = {"model_type": "falcon_h1", "ssm_multipliers": [1, 1, 1, 1, factor]}
    scaled = layer()["mixer.in_proj.bias"] * factor
    expected = read_layer({**layer(), "mixer.in_proj.bias": scaled}, Mamba2())
    recurrence = configured(config)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-14)
    for ours, theirs, scale in zip(
        recurrence.parameters, expected.parameters, (1, 1, factor), strict=True
    ):
        assert_allclose(ours.eigenvalue_derivative, scale * theirs.eigenvalue_derivative)


def test_without_a_norm_the_projection_gives_the_width() -> None:
    tensors = layer()
    expected = read_layer(tensors, Mamba2()).multiplicity
    del tensors["mixer.norm.weight"]
    assert read_layer(tensors, Mamba2()).multiplicity == expected


def test_a_mixer_may_carry_a_gated_mlp() -> None:
    tensors = layer(bias=False)
    expected = read_layer(tensors, Mamba2()).multiplicity
    tensors["mixer.in_proj.weight"] = np.ones((ROWS + 2 * 5, HIDDEN))
    assert read_layer(tensors, Mamba2()).multiplicity == expected


def test_nemotron_keeps_its_rates_in_a_module_of_their_own() -> None:
    plain = layer()
    nested = {
        name.replace("mixer.", "mixer._fp32_params.") if name in SINGLE else name: values
        for name, values in plain.items()
    }
    recurrence = read_layer(nested, Mamba2())
    assert recurrence.name == "mixer"
    assert recurrence.tensors[0] == "mixer._fp32_params.A_log"
    assert_allclose(recurrence.log_eigenvalues, read_layer(plain, Mamba2()).log_eigenvalues)


SINGLE = ("mixer.A_log", "mixer.dt_bias", "mixer.D")


def test_gated_delta_nets_are_not_mamba() -> None:
    rates = {"A_log": np.ones(HEADS), "dt_bias": np.ones(HEADS)}
    projections = {
        f"{name}.weight": np.ones((WIDTH, HIDDEN)) for name in ("q_proj", "k_proj", "v_proj")
    }
    qwen = {
        "in_proj_qkvz.weight": np.ones((ROWS, HIDDEN)),
        "in_proj_ba.weight": np.ones((2 * HEADS, HIDDEN)),
        "conv1d.weight": np.ones((CONVOLVED, 1, 4)),
        "norm.weight": np.ones(HEAD_DIMENSION),
    }
    for others in (projections, qwen, {"D": np.ones(HEADS)}):
        assert match_of({**rates, **others}, Mamba2()) == []


@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("A_log", np.full(HEADS, np.nan), "mixer.A_log: 4 NaN"),
        ("dt_bias", np.ones(HEADS + 1), r"mixer.dt_bias: its shape \(5\)"),
        ("in_proj.bias", np.ones(ROWS + 1), rf"mixer.in_proj.bias: its shape \({ROWS + 1}\)"),
        ("in_proj.bias", np.full(ROWS, np.inf), f"mixer.in_proj.bias: {ROWS} inf"),
        ("in_proj.weight", np.ones((5, HIDDEN)), r"mixer.in_proj.weight: its shape \(5, 8\)"),
        ("conv1d.weight", np.ones(CONVOLVED), r"mixer.conv1d.weight: its shape \(28\)"),
        ("conv1d.weight", np.ones((CONVOLVED + 1, 1, 4)), "29 convolved channels and groups=1"),
    ],
)
def test_bad_tensors_are_named(role: str, values: NDArray, message: str) -> None:
    tensors = layer(bias=role == "in_proj.bias")
    with pytest.raises(TensorError, match=message):
        read_layer({**tensors, f"mixer.{role}": values}, Mamba2())


@pytest.mark.parametrize(
    "file",
    zoo_files("hf_mamba2", "/model.safetensors", kind="mamba2")
    + zoo_files("mamba_ssm", "/model.safetensors", ".bin", kind="mamba2"),
)
def test_zoo(file: ZooFile) -> None:
    layers = read_layers(file.path)
    for each, (name, recurrence) in zip(file.layers, layers.items(), strict=True):
        assert name == each["name"]
        assert recurrence.family == "mamba2"
        assert recurrence.multiplicity == each["multiplicity"]
        assert_allclose(
            np.exp(recurrence.log_eigenvalues), oracle_eigenvalues(each), rtol=0, atol=1e-14
        )
