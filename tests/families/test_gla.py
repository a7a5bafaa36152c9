"""Gated linear attention against a plain loop, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.errors import UsageError
from memcurse_cli.families.selective.gla import GLA

BIAS = np.random.default_rng(18).normal(size=6) * 3
ARRAYS = {"gk_proj.0.weight": np.zeros((4, 8)), "gk_proj.1.bias": BIAS}


def test_the_state_decays_by_the_normalised_gate() -> None:
    recurrence = read_layer({f"model.layers.2.attn.{n}": a for n, a in ARRAYS.items()}, GLA())
    assert recurrence.name == "model.layers.2.attn"
    assert "gate_logit_normalizer=16" in recurrence.assumptions[0]
    # S[t] = σ(b)^(1/16) S[t-1] + k vᵀ, sixteen steps after one write
    state = np.zeros((6, 2))
    for step in range(17):
        written = np.ones((6, 2)) if step == 0 else 0.0
        state = (1 / (1 + np.exp(-BIAS)))[:, None] ** (1 / 16) * state + written
    expected = np.exp(16 * recurrence.log_eigenvalues.real)
    assert_allclose(state, np.repeat(expected[:, None], 2, axis=1), rtol=1e-12)
    assert_allclose(expected, 1 / (1 + np.exp(-BIAS)), rtol=1e-12)


@pytest.mark.parametrize("normalizer", ["16", "1"])
def test_derivatives(normalizer: str) -> None:
    check_derivatives(ARRAYS, GLA(), gate_logit_normalizer=normalizer)


@pytest.mark.parametrize("normalizer", ["0", "-1", "inf", "nan"])
def test_a_normaliser_that_is_not_positive_is_refused(normalizer: str) -> None:
    with pytest.raises(UsageError, match="is not a value of gate_logit_normalizer"):
        read_layer(ARRAYS, GLA(), gate_logit_normalizer=normalizer)


def test_a_projection_without_its_bias_is_not_it() -> None:
    assert match_of({"gk_proj.0.weight": np.zeros((4, 8))}, GLA()) == []
