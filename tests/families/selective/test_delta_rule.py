"""DeltaNet, gated delta nets and KDA: what is read, and what a delta rule can reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from families.derivatives import match_of, read_configured, read_layer
from families.selective.layers import (
    DELTA_NET,
    GATED_DELTA_NET,
    HEADS,
    KDA_LAYER,
    KEYS,
    VALUES,
    WIDTH,
)
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.selective.delta_rule import KDA, DeltaNet, GatedDeltaNet, delta_rule


def test_nothing_decays_at_zero_input() -> None:
    recurrence = read_layer({f"attn.{n}": a for n, a in DELTA_NET.items()}, DeltaNet())
    assert_allclose(recurrence.log_eigenvalues, np.zeros(HEADS), rtol=0)
    assert_allclose(np.exp(recurrence.log_gain), 0.5)
    assert recurrence.multiplicity == 3 * 4
    assert recurrence.parameters == ()
    assert not recurrence.stable_by_construction
    assert recurrence.rank_one == delta_rule(negative=False)


def test_the_write_strength_may_reach_two() -> None:
    recurrence = read_layer(DELTA_NET, DeltaNet(), negative_eigenvalues="true")
    assert_allclose(recurrence.log_gain, np.zeros(HEADS))
    assert recurrence.rank_one == delta_rule(negative=True)


@pytest.mark.parametrize("count", [2, 3])
def test_a_product_has_its_heads_once(count: int) -> None:
    """DeltaProduct: k, v and β of a head come ``count`` times, q and the state once."""
    product = {
        name: np.repeat(array, count, axis=0) if name[0] in "kvb" else array
        for name, array in DELTA_NET.items()
    }
    (layer,) = inspect(product, gates=True).layers
    assert layer.eigenvalues.count == HEADS
    assert layer.eigenvalues.multiplicity == 3 * 4
    assert any(f"up to {count} eigenvalues" in finding.message for finding in layer.findings)
    assert "several times" in (layer.gates.reason or "")
    assert read_layer(product, DeltaNet()).rank_one == delta_rule(negative=True, count=count)
    with pytest.raises(TensorError, match="not 6 equal parts"):
        read_layer(DELTA_NET | {"k_proj.weight": np.zeros((7, WIDTH))}, DeltaNet())


def test_layers_with_a_decay_are_not_it() -> None:
    for gate in ("A_log", "a_proj.weight", "f_proj.0.weight"):
        assert match_of(DELTA_NET | {gate: np.zeros((HEADS, WIDTH))}, DeltaNet()) == []


@pytest.mark.parametrize("negative", ["false", "true"])
def test_the_band_is_that_of_what_a_step_overwrites(negative: str) -> None:
    random = np.random.default_rng(4)
    heads, width, keys = 12, 20, 2
    weight = random.normal(size=(heads, width)) / 3
    arrays = {
        "q_proj.weight": np.zeros((heads * keys, width)),
        "k_proj.weight": np.zeros((heads * keys, width)),
        "v_proj.weight": np.zeros((heads * 3, width)),
        "b_proj.weight": weight,
        "o_norm.weight": np.ones(3),
    }
    seen = 2 * random.normal(size=(20_000, width)) @ weight.T
    factor = 2.0 if negative == "true" else 1.0
    gates = gates_of(arrays, input_scale=2.0, assume={"negative_eigenvalues": negative})
    check_bands(gates, 1 - factor / (1 + np.exp(-seen)) / keys)
    assert gates.parameters == ()
    figure = gates.second_moment
    assert figure is not None
    assert figure.nominal.divergent == heads
    assert figure.moving.divergent == 0


def test_the_report_says_what_is_assumed_of_keys() -> None:
    arrays = {name: np.ones(array.shape) for name, array in DELTA_NET.items()}
    (layer,) = inspect(arrays, gates=True).layers
    assert any("all directions alike" in sentence for sentence in layer.assumptions)
    assert [finding.code for finding in layer.findings if finding.code == "MC505"]
    (layer,) = inspect(arrays).layers
    assert not any("all directions alike" in sentence for sentence in layer.assumptions)


RANDOM = np.random.default_rng(16)


def test_the_write_strength_of_a_gated_net_may_reach_two() -> None:
    recurrence = read_layer(GATED_DELTA_NET, GatedDeltaNet())
    expected = -np.exp(GATED_DELTA_NET["A_log"]) * np.log1p(np.exp(GATED_DELTA_NET["dt_bias"]))
    assert_allclose(recurrence.log_eigenvalues, expected, rtol=1e-13)
    assert recurrence.multiplicity == KEYS * VALUES
    assert_allclose(np.exp(recurrence.log_gain), 0.5)
    assert recurrence.rank_one == delta_rule(negative=False)
    negative = read_layer(GATED_DELTA_NET, GatedDeltaNet(), negative_eigenvalues="true")
    assert_allclose(negative.log_gain, 0)
    assert negative.rank_one == delta_rule(negative=True)


@pytest.mark.parametrize(
    ("configured", "width"), [({}, 3), ({"head_dim": 6}, 6), ({"head_dim": 9}, 3)]
)
def test_value_heads_that_share_keys_do_not_halve_them(
    configured: dict[str, int], width: int
) -> None:
    """flash-linear-attention's num_v_heads: k_proj has the rows of half as many, wider heads."""
    recurrence = read_configured(GATED_DELTA_NET, GatedDeltaNet(), configured)
    assert recurrence.multiplicity == width * VALUES


def test_the_configuration_gives_the_width_of_the_keys() -> None:
    arrays = {
        "A_log": np.ones(4),
        "dt_bias": np.ones(4),
        "in_proj_ba.weight": np.ones((8, WIDTH)),
        "conv1d.weight": np.ones((48, 1, 4)),
        "norm.weight": np.ones(6),
    }
    for config in ({"linear_key_head_dim": 4}, {"text_config": {"linear_key_head_dim": 4}}):
        recurrence = read_configured(arrays, GatedDeltaNet(), config)
        assert recurrence.multiplicity == 4 * 6
        assert len(recurrence.assumptions) == 1
    for width in (-4, 0, "4", 10**50, 4.0):
        recurrence = read_configured(arrays, GatedDeltaNet(), {"linear_key_head_dim": width})
        assert recurrence.multiplicity == 6 * 6


@pytest.mark.parametrize("negative", [False, True])
def test_the_range_that_the_delta_rule_is_said_to_reach(negative: bool) -> None:
    bound = delta_rule(negative=negative).lowest
    lowest = 1.0
    for _ in range(500):
        decay = RANDOM.uniform(0, 1, 3) ** 0.2
        key = RANDOM.normal(size=3)
        key /= np.linalg.norm(key)
        strength = (2 if negative else 1) * RANDOM.uniform(0, 1) ** 0.2
        values = np.linalg.eigvals((np.eye(3) - strength * np.outer(key, key)) * decay)
        assert_allclose(values.imag, 0, atol=1e-9)
        smallest, *others = np.sort(values.real)
        assert decay.min() - 1e-12 < min(others)
        assert max(others) < decay.max() + 1e-12
        assert smallest > (-decay.max() if negative else 0) - 1e-12
        lowest = min(lowest, smallest)
    assert bound < lowest < bound + 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"A_log_atk": np.zeros(HEADS)},  # preconditioned
        {"Mu_log": np.zeros(HEADS)},  # with momentum
    ],
)
def test_other_rules_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of(GATED_DELTA_NET | change, GatedDeltaNet()) == []


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ({"kda_safe_gate": True, "kda_lower_bound": -4.0}, "-4"),
        ({"kda_safe_gate": False, "kda_lower_bound": -4.0}, "0"),
        ({"safe_gate": False, "lower_bound": None}, "0"),
        ({"linear_lower_bound": -5}, "-5"),
        ({"text_config": {"linear_attn_config": {"gate_lower_bound": -5.0}}}, "-5"),
        ({"linear_lower_bound": 5}, "0"),
        ({"linear_lower_bound": "-5"}, "0"),
    ],
)
def test_the_configuration_tells_a_safe_gate(config: dict[str, Any], bound: str) -> None:
    recurrence = read_configured(KDA_LAYER, KDA(), config)
    expected = read_layer(KDA_LAYER, KDA(), kda_lower_bound=bound)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-15)
    given = read_configured(KDA_LAYER, KDA(), config, kda_lower_bound="-1")
    assert "kda_lower_bound=-1 (as given)" in given.assumptions[0]


@pytest.mark.parametrize("key", ["allow_neg_eigval", "linear_allow_neg_eigval"])
def test_the_configuration_tells_how_strongly_is_written(key: str) -> None:
    recurrence = read_configured(KDA_LAYER, KDA(), {key: True})
    assert_allclose(recurrence.log_gain, 0)
    assert "negative_eigenvalues=true (from config.json)" in recurrence.assumptions[1]


def test_one_rate_moves_the_channels_of_its_head() -> None:
    recurrence = read_layer({f"self_attn.{n}": a for n, a in KDA_LAYER.items()}, KDA())
    rate = np.repeat(np.exp(KDA_LAYER["A_log"]).ravel(), KEYS)
    expected = -rate * np.log1p(np.exp(KDA_LAYER["dt_bias"]))
    assert_allclose(recurrence.log_eigenvalues, expected, rtol=1e-13)
    assert recurrence.multiplicity == VALUES
    assert recurrence.parameters[0].size == HEADS
    assert recurrence.parameters[0].scalar.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_positive_lower_bound_is_refused() -> None:
    with pytest.raises(UsageError, match="5 is not a value of kda_lower_bound"):
        read_layer(KDA_LAYER, KDA(), kda_lower_bound="5")
