"""DeltaNet: nothing decays at zero input, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose
from recurrences.derivatives import match_of, read_layer

from memcurse_cli.recurrences.delta_net import DeltaNet
from memcurse_cli.recurrences.rank_one import delta_rule

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


def test_layers_with_a_decay_are_not_it() -> None:
    for gate in ("A_log", "a_proj.weight", "f_proj.0.weight"):
        assert match_of(ARRAYS | {gate: np.zeros((HEADS, WIDTH))}, DeltaNet()) == []
