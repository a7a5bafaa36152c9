"""TensorFlow 1's basic cell, and what is none of its cells; their steps are in `test_cells`."""

from __future__ import annotations

import numpy as np
from families.cell_steps import CASES
from families.derivatives import match_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.tensorflow import TENSORFLOW_GRU, TENSORFLOW_RNN
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 4, 3


def test_the_basic_cell() -> None:
    generator = np.random.default_rng(7)
    kernel, bias = generator.normal(size=(INPUTS + H, H)), generator.normal(size=H)
    arrays = {"rnn/basic_rnn_cell/kernel:0": kernel, "rnn/basic_rnn_cell/bias:0": bias}
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("tf_rnn", "rnn/basic_rnn_cell")
    recurrence = family.read(store, match, ReadOptions())
    assert recurrence.dense is not None
    assert recurrence.readin is not None
    state = generator.normal(size=H)
    seen = np.concatenate([np.ones(INPUTS), state]) @ kernel
    own = recurrence.dense.matrix @ state + recurrence.readin.real.sum(axis=1)
    assert_allclose(own, seen)


def test_other_modules_are_not_taken() -> None:
    case = CASES["tf_gru"]
    arrays, module = case.arrays(), case.module
    assert match_of(arrays | {f"{module}candidate/kernel": np.ones((H, H))}, TENSORFLOW_GRU) == []
    assert match_of({n: a for n, a in arrays.items() if "gates/b" not in n}, TENSORFLOW_GRU) == []
    dense = {"dense/kernel": np.ones((7, 4)), "dense/bias": np.ones(4)}
    assert match_of(dense, TENSORFLOW_RNN) == []
