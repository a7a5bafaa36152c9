"""Gated linear attention's normaliser, HGRN's lower bounds and GateLoop's angles."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from families.oracles import as_complex, sigmoid
from families.selective.layers import (
    GATED_DELTA_NET,
    GATELOOP,
    GLA_LAYER,
    MESA_NET,
    SLOT_ATTENTION,
    hgrn,
)
from families.simulated_gates import check_bands, gates_of, joint_drive_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.selective.linear_attention import ANGLE_AT_ZERO, GLA, HGRN, GateLoop


@pytest.mark.parametrize("normalizer", ["0", "-1", "inf", "nan"])
def test_a_normaliser_that_is_not_positive_is_refused(normalizer: str) -> None:
    with pytest.raises(UsageError, match=r"gate_logit_normalizer=\S+ is not positive"):
        read_layer(GLA_LAYER, GLA(), gate_logit_normalizer=normalizer)


def test_mesa_net_has_no_normaliser() -> None:
    recurrence = read_layer(MESA_NET, GLA(), gate_logit_normalizer="2")
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(MESA_NET["a_proj.bias"]))


@pytest.mark.parametrize("other", ["i_proj.weight", "r_proj.weight", "f_proj.bias"])
def test_what_else_has_such_projections_is_not_gla(other: str) -> None:
    assert match_of(SLOT_ATTENTION | {other: np.zeros((4, 8))}, GLA()) == []
    assert match_of(GATED_DELTA_NET | {"gk_proj.0.weight": np.zeros((4, 8))}, GLA()) == []


@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("layer", range(3))
def test_the_gate_stands_halfway_above_its_bound(layer: int, prefix: str) -> None:
    arrays = hgrn(prefix)
    recurrence = read_layer(arrays, HGRN(), layer)
    share = np.exp(arrays[f"{prefix}lower_bounds"])
    share /= share.sum(axis=0)
    bound = (np.cumsum(share, axis=0) - share[0])[layer]
    assert_allclose(np.exp(recurrence.log_eigenvalues), (1 + bound) / 2, rtol=1e-13)
    assert ("lower bound is 0" in recurrence.assumptions[-1]) == (layer == 0)
    assert len(recurrence.parameters) == (layer > 0)


def test_a_bound_next_to_one_keeps_its_precision() -> None:
    arrays = hgrn() | {"model.lower_bounds": np.array([[-40.0], [0.0], [1.0]]) * np.ones(4)}
    recurrence = read_layer(arrays, HGRN(), layer=2)
    left = np.exp(-40.0) / (1 + np.e) / 2
    assert_allclose(-recurrence.log_eigenvalues.real, left, rtol=1e-12)
    assert_allclose(recurrence.log_gain.real, np.log(left), rtol=1e-12)
    slopes = recurrence.parameters[0].log_gain_derivative
    assert_allclose(slopes[:4], 1.0, rtol=1e-12)


def test_every_layer_is_found_though_they_share_their_bounds() -> None:
    arrays = hgrn(**{"q_proj.weight": np.zeros((4, 4))})
    found = detect(MemoryStore(arrays).tensors)
    assert [match.layer for _, match in found] == [f"model.layers.{i}.attn" for i in range(3)]
    assert any("expand_ratio" in text for text in read_layer(arrays, HGRN(), 1).assumptions)
    assert match_of(hgrn(**{"k_proj.weight": np.zeros((4, 4))}), HGRN()) == []


def test_too_few_bounds_are_refused() -> None:
    arrays = hgrn() | {"model.lower_bounds": hgrn(layers=2)["model.lower_bounds"]}
    with pytest.raises(TensorError, match=r"lower_bounds: its shape \(2, 4\) has no row for layer"):
        read_layer(arrays, HGRN(), layer=2)


WIDTH, HEADS = 5, 4


def transitions(inputs: NDArray[np.float64]) -> NDArray[np.complex128]:
    """λ of every head as gateloop-transformer computes it, of inputs (..., WIDTH)."""
    projected = inputs @ GATELOOP["to_a.0.weight"].T + GATELOOP["to_a.0.bias"]
    a = as_complex(projected.reshape(*inputs.shape[:-1], HEADS, 2))
    return sigmoid(np.abs(a)) * np.exp(1j * np.angle(a))


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_band_is_that_of_gates_on_random_inputs(scale: float) -> None:
    inputs = scale * np.random.default_rng(0).standard_normal((200_000, WIDTH))
    joint_drive_of(MemoryStore(GATELOOP), GateLoop())
    gates = gates_of(GATELOOP, input_scale=scale)
    check_bands(gates, np.abs(transitions(inputs)), tolerance=0.01, reason=ANGLE_AT_ZERO)
    assert gates.parameters == ()


def test_a_bias_without_an_angle_is_refused() -> None:
    bias = GATELOOP["to_a.0.bias"] * (np.arange(2 * HEADS) // 2 != 1)
    with pytest.raises(TensorError, match="head 1 has a bias of 0"):
        read_layer({**GATELOOP, "to_a.0.bias": bias}, GateLoop())
