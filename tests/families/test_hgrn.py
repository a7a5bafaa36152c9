"""HGRN and HGRN2 against a plain computation of their lower bounds, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.selective.hgrn import HGRN

LAYERS, WIDTH = 3, 4
BOUNDS = np.random.default_rng(19).normal(size=(LAYERS, WIDTH))
SQUARE = np.zeros((WIDTH, WIDTH))
ATTENTION = {
    "f_proj.weight": SQUARE,
    "i_proj.weight": SQUARE,
    "o_proj.weight": SQUARE,
    "g_norm.weight": np.ones(WIDTH),
}


def model(prefix: str = "model.", **extra: np.ndarray) -> dict[str, np.ndarray]:
    layers = {
        f"{prefix}layers.{layer}.attn.{name}": array
        for layer in range(LAYERS)
        for name, array in (ATTENTION | extra).items()
    }
    return layers | {f"{prefix}lower_bounds": BOUNDS}


@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_the_gate_stands_halfway_above_its_bound(layer: int, prefix: str) -> None:
    recurrence = read_layer(model(prefix), HGRN(), layer)
    share = np.exp(BOUNDS) / np.exp(BOUNDS).sum(axis=0)
    bound = (np.cumsum(share, axis=0) - share[0])[layer]
    assert_allclose(np.exp(recurrence.log_eigenvalues), (1 + bound) / 2, rtol=1e-13)
    assert_allclose(np.exp(recurrence.log_gain), (1 - bound) / 2, rtol=1e-13)
    assert len(recurrence.parameters) == (layer > 0)


@pytest.mark.parametrize("layer", [1, 2])
def test_derivatives(layer: int) -> None:
    check_derivatives(model(), HGRN(), layer=layer)


def test_a_bound_next_to_one_keeps_its_precision() -> None:
    arrays = model() | {"model.lower_bounds": np.array([[-40.0], [0.0], [1.0]]) * np.ones(WIDTH)}
    recurrence = read_layer(arrays, HGRN(), layer=2)
    left = np.exp(-40.0) / (1 + np.e) / 2
    assert_allclose(-recurrence.log_eigenvalues.real, left, rtol=1e-12)
    assert_allclose(recurrence.log_gain.real, np.log(left), rtol=1e-12)
    slopes = recurrence.parameters[0].log_gain_derivative
    assert slopes is not None
    assert_allclose(slopes[:WIDTH], 1.0, rtol=1e-12)


def test_every_layer_is_found_though_they_share_their_bounds() -> None:
    arrays = model(**{"q_proj.weight": SQUARE})
    found = detect(MemoryStore(arrays).tensors)
    assert [match.layer for _, match in found] == [f"model.layers.{i}.attn" for i in range(LAYERS)]
    assert any("expand_ratio" in text for text in read_layer(arrays, HGRN(), 1).assumptions)


def test_without_bounds_nothing_is_listed() -> None:
    recurrence = read_layer(ATTENTION, HGRN())
    assert_allclose(np.exp(recurrence.log_eigenvalues), 0.5)
    assert recurrence.parameters == ()
    assert "lower bound is 0" in recurrence.assumptions[1]


def test_too_few_bounds_are_refused() -> None:
    arrays = model() | {"model.lower_bounds": BOUNDS[:2]}
    with pytest.raises(TensorError, match=r"lower_bounds: its shape \(2, 4\) has no row for layer"):
        read_layer(arrays, HGRN(), layer=2)


def test_layers_with_keys_are_not_it() -> None:
    assert match_of(ATTENTION | {"k_proj.weight": SQUARE}, HGRN()) == []
