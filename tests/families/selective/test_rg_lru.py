"""The RG-LRU of recurrentgemma and of its copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families.derivatives import read_found, read_layer
from families.oracles import original_layer, sigmoid, softplus
from families.selective.layers import HIPPOGRIFF, RG_LRU, TURNING
from numpy.testing import assert_allclose

from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.selective.mixing import RGLRU, Hawk


def test_no_law_moves_a_layer_that_turns() -> None:
    assert isinstance(read_found(TURNING, gates=True).gate, NoDrive)


def test_the_gain_keeps_full_precision_where_the_state_hardly_decays() -> None:
    arrays = RG_LRU | {"recurrent_param": np.array([-30.0, -800.0, 800.0, -30.0, 0.0, 0.0])}
    recurrence = read_layer(arrays, RGLRU())
    assert np.isfinite(recurrence.log_gain).all()
    gate, opened = (sigmoid(RG_LRU[f"{of}_gate_bias"].ravel()[0]) for of in ("recurrent", "input"))
    decay = 8 * np.exp(-30.0) * gate
    assert_allclose(-recurrence.log_eigenvalues[0].real, decay, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain[0].real), np.sqrt(2 * decay) * opened, rtol=1e-12)


def test_the_original_layer(paper: Path) -> None:
    arrays, stored = original_layer(paper, "rglru")
    recurrence = read_layer(arrays, RGLRU())
    # The stored λ are those of its inputs; at zero input the gate's weights do not act.
    x = stored["x"].reshape(2, 16, 2, 4)
    gate = np.einsum("bthi,hij->bthj", x, arrays["a_gate.w"]).reshape(2, 16, 8)
    at_zero = np.log(stored["lambda_t"]) * (1 + np.exp(-gate)) / 2
    expected = np.broadcast_to(recurrence.log_eigenvalues.real, gate.shape)
    assert_allclose(at_zero, expected, rtol=1e-5)


@pytest.mark.parametrize(("stored", "scale"), [(-8.0, 8.0), (np.log(14), 14.0)])
def test_hippogriff_stores_the_exponent_in_two_ways(stored: float, scale: float) -> None:
    arrays = HIPPOGRIFF | {"layers.0.hawk.alpha_log_scale": np.array([stored])}
    forget = sigmoid(arrays["layers.0.hawk.gates.bias"][:5])
    expected = -scale * softplus(arrays["layers.0.hawk.forget_base"]) * forget
    assert_allclose(read_layer(arrays, Hawk()).log_eigenvalues.real, expected, rtol=1e-12)
