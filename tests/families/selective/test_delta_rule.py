"""DeltaNet, gated delta nets and KDA: what is read, and what a delta rule can reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.selective.layers import (
    DELTA_NET,
    GATED_DELTA_NET,
    HEADS,
    KDA_LAYER,
    LAYERS,
    WIDTH,
    Arrays,
)
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.family import Family
from memcurse_cli.families.selective.delta_rule import KDA, DeltaNet, GatedDeltaNet, delta_rule

RANDOM = np.random.default_rng(16)


@pytest.mark.parametrize(
    ("arrays", "family"), [(DELTA_NET, DeltaNet()), (GATED_DELTA_NET, GatedDeltaNet())]
)
def test_the_write_strength_may_reach_two(arrays: Arrays, family: Family) -> None:
    assert read_layer(arrays, family).rank_one == delta_rule(negative=False)
    recurrence = read_layer(arrays, family, negative_eigenvalues="true")
    assert_allclose(recurrence.log_gain, np.zeros(HEADS))
    assert recurrence.rank_one == delta_rule(negative=True)
    assert recurrence.stable_by_construction == (family.name != "delta_net")


def test_a_product_has_its_heads_once() -> None:
    """DeltaProduct: k, v and β of a head come three times, q and the state once."""
    product = {
        name: np.repeat(array, 3, axis=0) if name[0] in "kvb" else array
        for name, array in DELTA_NET.items()
    }
    (layer,) = inspect(product, gates=True).layers
    assert layer.eigenvalues.count == HEADS
    assert layer.eigenvalues.multiplicity == 3 * 4
    assert any("up to 3 eigenvalues" in finding.message for finding in layer.findings)
    assert "several times" in (layer.gates.reason or "")
    assert read_layer(product, DeltaNet()).rank_one == delta_rule(negative=True, count=3)
    with pytest.raises(TensorError, match="not 6 equal parts"):
        read_layer(DELTA_NET | {"k_proj.weight": np.zeros((7, WIDTH))}, DeltaNet())


@pytest.mark.parametrize("negative", ["false", "true"])
def test_the_band_is_that_of_what_a_step_overwrites(negative: str) -> None:
    random = np.random.default_rng(4)
    heads, width, keys = 12, 20, 2
    weight = random.normal(size=(heads, width)) / 3
    arrays = {f"{of}_proj.weight": np.zeros((heads * keys, width)) for of in "qkv"}
    arrays |= {"b_proj.weight": weight, "o_norm.weight": np.ones(3)}
    seen = 2 * random.normal(size=(20_000, width)) @ weight.T
    factor = 2.0 if negative == "true" else 1.0
    gates = gates_of(arrays, input_scale=2.0, assume={"negative_eigenvalues": negative})
    check_bands(gates, 1 - factor / (1 + np.exp(-seen)) / keys)
    assert gates.parameters == ()
    figure = gates.second_moment
    assert figure.nominal.divergent == heads
    assert figure.moving.divergent == 0


def test_the_report_says_what_is_assumed_of_keys() -> None:
    (layer,) = inspect(DELTA_NET, gates=True).layers
    assert any("all directions alike" in sentence for sentence in layer.assumptions)
    assert [finding.code for finding in layer.findings if finding.code == "MC505"]
    (layer,) = inspect(DELTA_NET).layers
    assert not any("all directions alike" in sentence for sentence in layer.assumptions)


def test_the_configuration_gives_the_width_of_the_keys() -> None:
    arrays = {
        "A_log": np.ones(4),
        "dt_bias": np.ones(4),
        "in_proj_ba.weight": np.ones((8, WIDTH)),
        "norm.weight": np.ones(6),
    }
    for config in ({"linear_key_head_dim": 4}, {"text_config": {"linear_key_head_dim": 4}}):
        recurrence = read_layer(arrays, GatedDeltaNet(), config=config)
        assert recurrence.multiplicity == 4 * 6
        assert len(recurrence.assumptions) == 1
    for width in (-4, 0, "4", 10**50, 4.0):
        recurrence = read_layer(arrays, GatedDeltaNet(), config={"linear_key_head_dim": width})
        assert recurrence.multiplicity == 6 * 6


def lowest_of_rank_one(steps: Iterable[tuple[np.ndarray, np.ndarray, bool]]) -> float:
    """The smallest eigenvalue of D - k (g k)ᵀ, or that times D, over decays D, g and keys k."""
    lowest = 1.0
    for decay, strength, after in steps:
        key = RANDOM.normal(size=len(decay))
        key /= np.linalg.norm(key)
        removed = np.outer(key, strength * key)
        values = np.linalg.eigvals(
            (np.eye(len(key)) - removed) * decay if after else np.diag(decay) - removed
        )
        assert_allclose(values.imag, 0, atol=1e-9)
        smallest, *others = np.sort(values.real)
        assert decay.min() - 1e-12 < min(others)
        assert max(others) < decay.max() + 1e-12
        lowest = min(lowest, smallest)
    return lowest


@pytest.mark.parametrize("by_channel", [False, True], ids=["a β", "a β of every key channel"])
@pytest.mark.parametrize("negative", [False, True])
def test_the_range_that_the_delta_rule_is_said_to_reach(negative: bool, by_channel: bool) -> None:
    bound, count = delta_rule(negative=negative).lowest, 3 if by_channel else 1
    decays, strengths = (RANDOM.uniform(0, 1, (800, n)) ** 0.2 for n in (3, count))
    steps = zip(decays, (1 + negative) * strengths, [True] * 800, strict=True)
    assert bound - 1e-12 < lowest_of_rank_one(steps) < bound + 0.1


def test_the_eigenvalue_of_comba_reaches_what_is_said() -> None:
    rule = read_layer(LAYERS["Comba"].arrays, GatedDeltaNet()).rank_one
    key = np.array([0.6, 0.8])
    # fused_recurrent_comba: the value loses S k before S decays.
    values = np.linalg.eigvalsh(0.01 * np.eye(2) - 0.99 * np.outer(key, key))
    assert rule.lowest < values[0] < rule.lowest + 0.05


@pytest.mark.parametrize(
    ("arrays", "change", "family"),
    [
        (DELTA_NET, {"A_log": (HEADS, WIDTH)}, DeltaNet()),
        (DELTA_NET, {"a_proj.weight": (HEADS, WIDTH)}, DeltaNet()),
        (DELTA_NET, {"f_proj.0.weight": (HEADS, WIDTH)}, DeltaNet()),
        (GATED_DELTA_NET, {"A_log_atk": (HEADS,)}, GatedDeltaNet()),  # preconditioned
        (GATED_DELTA_NET, {"Mu_log": (HEADS,)}, GatedDeltaNet()),  # with momentum
        (GATED_DELTA_NET, {"b_proj.weight": (HEADS + 1, WIDTH)}, GatedDeltaNet()),
        (KDA_LAYER, {"D": (HEADS,)}, KDA()),
        (KDA_LAYER, {"dt_bias": (HEADS + 1,)}, KDA()),
    ],
)
def test_what_is_another_rule(arrays: Arrays, change: dict[str, Any], family: Family) -> None:
    changed = {name: np.zeros(shape) for name, shape in change.items()}
    assert match_of(arrays | changed, family) == []


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
    recurrence = read_layer(KDA_LAYER, KDA(), config=config)
    expected = read_layer(KDA_LAYER, KDA(), kda_lower_bound=bound)
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues, rtol=1e-15)
    given = read_layer(KDA_LAYER, KDA(), config=config, kda_lower_bound="-1")
    assert "kda_lower_bound=-1 (as given)" in given.assumptions[0]


@pytest.mark.parametrize("key", ["allow_neg_eigval", "linear_allow_neg_eigval"])
def test_the_configuration_tells_how_strongly_is_written(key: str) -> None:
    recurrence = read_layer(KDA_LAYER, KDA(), config={key: True})
    assert_allclose(recurrence.log_gain, 0)
    assert "negative_eigenvalues=true (from config.json)" in recurrence.assumptions[1]


def test_a_positive_lower_bound_is_refused() -> None:
    with pytest.raises(UsageError, match="5 is not a value of kda_lower_bound"):
        read_layer(KDA_LAYER, KDA(), kda_lower_bound="5")
