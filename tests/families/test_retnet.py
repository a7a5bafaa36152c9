"""RetNet: the number of heads from the widths, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.families.selective.retention import RetNet

HEADS, KEYS, VALUES, WIDTH = 3, 2, 4, 6
ARRAYS = {
    "q_proj.weight": np.zeros((HEADS * KEYS, WIDTH)),
    "k_proj.weight": np.zeros((HEADS * KEYS, WIDTH)),
    "v_proj.weight": np.zeros((HEADS * VALUES, WIDTH)),
    "g_proj.weight": np.zeros((HEADS * VALUES, WIDTH)),
    "o_proj.weight": np.zeros((WIDTH, HEADS * VALUES)),
    "g_norm.weight": np.ones(VALUES),
}


@pytest.mark.parametrize("norm", ["g_norm.weight", "g_norm_swish_gate.weight"])
def test_every_head_has_its_constant_decay(norm: str) -> None:
    arrays = {f"layers.0.attn.{name}": array for name, array in ARRAYS.items()}
    arrays[f"layers.0.attn.{norm}"] = arrays.pop("layers.0.attn.g_norm.weight")
    arrays["layers.0.attn_norm.weight"] = np.ones(WIDTH)
    recurrence = read_layer(arrays, RetNet())
    assert recurrence.name == "layers.0.attn"
    assert_allclose(np.exp(recurrence.log_eigenvalues), [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128])
    assert recurrence.multiplicity == KEYS * VALUES
    assert not recurrence.input_dependent
    assert recurrence.stable_by_construction
    assert "not stored" in recurrence.assumptions[0]


@pytest.mark.parametrize(
    "change",
    [
        {"gk_proj.0.weight": np.zeros((4, WIDTH))},
        {"rotary.inv_freq": np.zeros(1)},
        {"g_norm.weight": np.ones(5)},
        {"g_norm.weight": np.ones((VALUES, 1))},
        {"f.weight": np.zeros((2, 2))},
    ],
)
def test_other_layers_are_not_it(change: dict[str, np.ndarray]) -> None:
    assert match_of(ARRAYS | change, RetNet()) == []
