"""DeltaNet: nothing decays at zero input, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.simulated_gates import check_bands, gates_of
from numpy.testing import assert_allclose

from memcurse_cli import inspect
from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.delta_rule import DeltaNet, delta_rule

HEADS, WIDTH = 2, 8
ARRAYS = {
    "q_proj.weight": np.zeros((HEADS * 3, WIDTH)),
    "k_proj.weight": np.zeros((HEADS * 3, WIDTH)),
    "v_proj.weight": np.zeros((HEADS * 4, WIDTH)),
    "b_proj.weight": np.zeros((HEADS, WIDTH)),
    "o_norm.weight": np.ones(4),
}


def test_nothing_decays_at_zero_input() -> None:
    recurrence = read_layer({f"attn.{n}": a for n, a in ARRAYS.items()}, DeltaNet())
    assert_allclose(recurrence.log_eigenvalues, np.zeros(HEADS), rtol=0)
    assert_allclose(np.exp(recurrence.log_gain), 0.5)
    assert recurrence.multiplicity == 3 * 4
    assert recurrence.parameters == ()
    assert not recurrence.stable_by_construction
    assert recurrence.rank_one == delta_rule(negative=False)


def test_the_write_strength_may_reach_two() -> None:
    recurrence = read_layer(ARRAYS, DeltaNet(), negative_eigenvalues="true")
    assert_allclose(recurrence.log_gain, np.zeros(HEADS))
    assert recurrence.rank_one == delta_rule(negative=True)


@pytest.mark.parametrize("count", [2, 3])
def test_a_product_has_its_heads_once(count: int) -> None:
    """DeltaProduct: k, v and β of a head come ``count`` times, q and the state once."""
    product = {
        name: np.repeat(array, count, axis=0) if name[0] in "kvb" else array
        for name, array in ARRAYS.items()
    }
    (layer,) = inspect(product, gates=True).layers
    assert layer.eigenvalues.count == HEADS
    assert layer.eigenvalues.multiplicity == 3 * 4
    assert any(f"up to {count} eigenvalues" in finding.message for finding in layer.findings)
    assert "several times" in (layer.gates.reason or "")
    assert read_layer(product, DeltaNet()).rank_one == delta_rule(negative=True, count=count)
    with pytest.raises(TensorError, match="not 6 equal parts"):
        read_layer(ARRAYS | {"k_proj.weight": np.zeros((7, WIDTH))}, DeltaNet())


def test_layers_with_a_decay_are_not_it() -> None:
    for gate in ("A_log", "a_proj.weight", "f_proj.0.weight"):
        assert match_of(ARRAYS | {gate: np.zeros((HEADS, WIDTH))}, DeltaNet()) == []


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
    arrays = {name: np.ones(array.shape) for name, array in ARRAYS.items()}
    (layer,) = inspect(arrays, gates=True).layers
    assert any("all directions alike" in sentence for sentence in layer.assumptions)
    assert [finding.code for finding in layer.findings if finding.code == "MC505"]
    (layer,) = inspect(arrays).layers
    assert not any("all directions alike" in sentence for sentence in layer.assumptions)
