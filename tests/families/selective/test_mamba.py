"""Mamba, Mamba-2 and Mamba-3 under the names of the libraries, and what their gates see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_found, read_layer
from families.oracles import softplus
from families.selective.layers import GGUF_MAMBA, mamba2, mamba3
from families.simulated_gates import check_bands, drive_of, gates_of, joint_drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.mamba import (
    ALIGNED,
    UNCLAMPED,
    GgufMamba,
    Mamba,
    Mamba2,
    Mamba3,
)

K, CHANNELS, STATE, RANK = 4, 3, 2, 2
RANDOM = np.random.default_rng(21)


def rates(*shape: int) -> NDArray:
    return RANDOM.uniform(-2, 1, shape)


def biases(*shape: int) -> NDArray:
    return RANDOM.uniform(-4, 1, shape)


def assert_steps(recurrence: Recurrence, log_rate: NDArray, bias: NDArray) -> None:
    """λ and γ of the step that a bias gives to the rates of each channel."""
    step = softplus(bias).reshape(-1, 1)
    expected = -step * np.exp(log_rate).reshape(step.size, -1)
    assert_allclose(recurrence.log_eigenvalues.real, expected.ravel(), rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain.real), np.repeat(step, expected.shape[1]))


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
    assert_steps(recurrence, layer["op.A_logs"], layer["op.dt_projs_bias"])


def gate_of(layer: dict[str, NDArray]) -> Any:
    return drive_of(MemoryStore(layer), Mamba()).gate


def test_a_selection_holds_the_rows_of_the_step_last() -> None:
    """MambaBEAT's own split: selection(x) is B, C and then Δ."""
    layer = {
        "m.A_log": rates(6, 3),
        "m.dt_proj.bias": biases(6),
        "m.dt_proj.weight": RANDOM.normal(size=(6, 2)),
        "m.selection.weight": RANDOM.normal(size=(8, 6)),
    }
    product = layer["m.dt_proj.weight"] @ layer["m.selection.weight"][-2:]
    assert_allclose(gate_of(layer).inputs, np.repeat((product**2).sum(1), 3), rtol=1e-12)


@pytest.mark.parametrize("index", ["", ".0"], ids=["plain", "Hymba"])
def test_a_norm_between_the_projections_fixes_what_the_gate_sees(index: str) -> None:
    layer = {
        f"m.A_log{index}": rates(6, 3),
        f"m.dt_proj{index}.bias": biases(6),
        f"m.dt_proj{index}.weight": RANDOM.normal(size=(6, 2)),
        f"m.x_proj{index}.weight": RANDOM.normal(size=(8, 6)),
        "m.dt_layernorm.weight": np.array([0.5, 2.0]),
    }
    scaled = layer[f"m.dt_proj{index}.weight"] * layer["m.dt_layernorm.weight"]
    for scale in (0.0, 1.0, 100.0):
        expected = np.repeat(np.sum(scaled**2, axis=1), 3)
        assert_allclose(gate_of(layer).variance(scale, 0.0), expected)


# Of each library: the names of the layers, and of their rates and biases in the module m.
DIRECTIONS = {
    "Vision Mamba v1": {
        "m": ("m.A_log", "m.dt_proj.bias"),
        "m (backward)": ("m.A_b_log", "m.dt_proj.bias"),
    },
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
        recurrence = read_layer(layer, Mamba(), index)
        assert_steps(recurrence, layer[rate], layer[bias])
        shared = any("forward one" in sentence for sentence in recurrence.assumptions)
        assert shared == (library == "Vision Mamba v1" and "backward" in match.layer)


RULES = {"A_log": (4,), "dt_bias": (4,)}


@pytest.mark.parametrize(
    ("family", "shapes"),
    [
        (Mamba(), {"m.A_s_log": (3, 2), "m.dt_proj.bias": (3,)}),  # no step of its own
        (Mamba(), {"m.A_logs": (3,), "m.dt_projs_bias": (3,)}),
        (Mamba(), {"ssm.dt_proj.bias": (4,), "ssm.D": (4,)}),
        (Mamba(), {"A_log": (4,), "dt_proj.bias": (4,)}),
        (GgufMamba(), {name: a.shape for name, a in GGUF_MAMBA.items() if "ssm_x" not in name}),
        # Gated delta nets.
        (Mamba2(), RULES | {f"{of}_proj.weight": (16, 8) for of in "qkv"}),
        (Mamba2(), RULES | {"in_proj_ba.weight": (8, 8), "conv1d.weight": (28, 1, 4)}),
        (Mamba2(), RULES | {"D": (4,)}),
    ],
)
def test_what_is_not_it(family: Family, shapes: dict[str, tuple[int, ...]]) -> None:
    assert match_of({name: np.ones(shape) for name, shape in shapes.items()}, family) == []


MIXER = mamba2()
ROWS, CONVOLVED = 48, 28  # of in_proj and of conv1d


def configured(config: dict[str, Any], **assume: str) -> Recurrence:
    return read_layer(MIXER, Mamba2(), config=config, **assume)


@pytest.mark.parametrize(
    ("config", "assume", "groups", "origin"),
    [
        ({"n_groups": 2}, {}, 2, "from config.json"),
        ({"mamba_n_groups": 2}, {}, 2, "from config.json"),
        ({"mamba_ngroups": 2}, {}, 2, "from config.json"),
        ({"ssm_cfg": {"ngroups": 2}}, {}, 2, "from config.json"),
        ({"text_config": {"mamba_n_groups": 2}}, {}, 2, "from config.json"),
        ({"n_groups": 2}, {"groups": "1"}, 1, "as given"),
        *(
            ({"n_groups": none, "time_step_limit": none, "ssm_cfg": none}, {}, 1, "the library")
            for none in (True, "2", 2.5, 10**50, [2], {"n": 2}, None, -1, 0)
        ),
    ],
)
def test_the_state_rests_on_the_number_of_groups(
    config: dict[str, Any], assume: dict[str, str], groups: int, origin: str
) -> None:
    recurrence = configured(config, **assume)
    assert recurrence.multiplicity == 4 * 3 * 2 // groups
    assert f"groups={groups} ({origin}" in recurrence.assumptions[0]
    assert recurrence.assumptions[1] == UNCLAMPED


STEP = softplus(MIXER["mixer.dt_bias"] + MIXER["mixer.in_proj.bias"][-4:])


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        ({"time_step_limit": [0.1, 0.2]}, 0.1, 0.2),
        ({"ssm_cfg": {"dt_limit": [0.5, {"__float__": "Infinity"}]}}, 0.5, np.inf),
        (
            {"model_type": "zamba2", "time_step_min": 0.4, "time_step_limit": [0.1, 0.2]},
            0.4,
            np.inf,
        ),
    ],
)
def test_limits_of_the_step_are_told(config: dict[str, Any], low: float, high: float) -> None:
    outside = np.count_nonzero((low > STEP) | (high < STEP))
    sentence = configured(config).assumptions[1]
    assert f"holds it in [{low:g}, {high:g}]" in sentence
    assert f"{outside} of 4 heads lie outside" in sentence
    assert outside > 0


def test_falcon_h1_scales_the_bias_of_its_projection() -> None:
    factor = 0.3
    scaled = MIXER["mixer.in_proj.bias"] * factor
    expected = read_layer({**MIXER, "mixer.in_proj.bias": scaled}, Mamba2())
    config = {"model_type": "falcon_h1", "ssm_multipliers": [1, 1, 1, 1, factor]}
    recurrence = configured(config)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-14)
    groups = zip(recurrence.parameters, expected.parameters, (1, 1, factor), strict=True)
    for ours, theirs, scale in groups:
        assert_allclose(ours.eigenvalue_derivative, scale * theirs.eigenvalue_derivative)


def test_the_width_of_a_mixer_is_that_of_its_norm_or_of_what_is_left_of_its_rows() -> None:
    expected = read_layer(MIXER, Mamba2()).multiplicity
    plain = {name: a for name, a in MIXER.items() if "norm" not in name}
    assert read_layer(plain, Mamba2()).multiplicity == expected
    with_mlp = mamba2(bias=False) | {"mixer.in_proj.weight": np.ones((ROWS + 2 * 5, 8))}
    assert read_layer(with_mlp, Mamba2()).multiplicity == expected


def test_nemotron_keeps_its_rates_in_a_module_of_their_own() -> None:
    own = ("mixer.A_log", "mixer.dt_bias", "mixer.D")
    nested = {n.replace(".", "._fp32_params.") if n in own else n: a for n, a in MIXER.items()}
    recurrence = read_layer(nested, Mamba2())
    assert recurrence.name == "mixer"
    assert recurrence.tensors[0] == "mixer._fp32_params.A_log"


HEADS, INNER = 4, 8


def steps_of(
    arrays: dict[str, NDArray], inputs: NDArray, function: str, groups: int
) -> tuple[NDArray, NDArray]:
    """Δ and -A of every step and head, as `Mamba3.forward` has them."""
    _, rank, state = arrays["mixer.B_bias"].shape
    projected = torch.tensor(inputs) @ torch.tensor(arrays["mixer.in_proj.weight"]).T
    shared = state * groups * rank
    sizes = [INNER, INNER, shared, shared, HEADS, HEADS, HEADS]
    parts = torch.split(projected, [*sizes, projected.shape[1] - sum(sizes)], dim=-1)
    step = torch.nn.functional.softplus(parts[4] + torch.tensor(arrays["mixer.dt_bias"]))
    if function == "softplus":
        rate = torch.nn.functional.softplus(parts[5])
    else:
        negative, positive = parts[5].clamp_max(0), parts[5].clamp_min(0)
        rate = positive + torch.reciprocal(1 - negative)
    return step.numpy(), rate.clamp(min=1e-4).numpy()


@pytest.mark.parametrize(
    ("layout", "function"),
    [
        ({}, "heavy_tail"),
        ({"groups": 2}, "softplus"),
        ({"rank": 2, "groups": 4}, "heavy_tail"),
        ({"fraction": 1.0}, "softplus"),
        ({"state": 9, "scale": 1.0}, "heavy_tail"),
    ],
    ids=str,
)
def test_the_bands_are_those_of_the_library_on_random_inputs(
    layout: dict[str, Any], function: str
) -> None:
    arrays = mamba3(**layout)
    drive = joint_drive_of(MemoryStore(arrays), Mamba3(), rate_function=function)
    inputs = 1.5 * np.random.default_rng(3).standard_normal((40_000, 6))
    step, rate = steps_of(arrays, inputs, function, int(layout.get("groups", 1)))
    gates = gates_of(arrays, input_scale=1.5, assume={"rate_function": function})
    check_bands(gates, np.exp(-rate * step), 0.01, ALIGNED)
    for band in gates.bands:
        seen = np.median(np.quantile(1 / (rate * step), band.share, axis=0))
        assert_allclose(band.time_constant.p50, seen, rtol=0.03)
    assert drive.white_alone
    assert gates.second_moment is not None
    assert gates.parameters == ()
    assert gates_of(arrays, rho=0.5).second_moment is None


def test_the_floor_of_the_rate_is_that_of_the_configuration() -> None:
    store = MemoryStore(mamba3(scale=3.0))
    for floor, config in ((1e-4, {}), (0.05, {"ssm_cfg": {"A_floor": 0.05}})):
        store.config = config
        drive = joint_drive_of(store, Mamba3(), rate_function="softplus")
        low = drive.law(np.array([[2.0, -50.0, 0.0, 0.0]])).log_eigenvalue.real
        assert_allclose(-low, floor * np.log1p(np.exp(2.0)), rtol=1e-12)


@pytest.mark.parametrize("shape", [(41, 6), (20, 6), (46,)])
def test_other_projections_have_a_reason(shape: tuple[int, ...]) -> None:
    arrays = mamba3() | {"mixer.in_proj.weight": np.ones(shape)}
    assert isinstance(read_found(arrays, gates=True).gate, NoDrive)
    assert read_found(arrays).gate is None
    gates = gates_of(arrays)
    assert gates.spread is None
    assert gates.bands == ()
    assert "rows of in_proj" in (gates.reason or "")


def test_gates_that_stand_still_have_the_moments_of_the_impulse() -> None:
    """c_0 = Δ/2 and c_k = Δ λᵏ, of any trapezoid."""
    gates = gates_of(mamba3(scale=0.0))
    assert gates.second_moment.ratio.max == pytest.approx(1.0)
    step = np.log1p(np.exp(mamba3()["mixer.dt_bias"]))
    expected = step**2 * (0.25 + np.exp(-2 * step) / -np.expm1(-2 * step))
    assert gates.second_moment.nominal.max == pytest.approx(expected.max())
    assert gates.second_moment.nominal.min == pytest.approx(expected.min())
