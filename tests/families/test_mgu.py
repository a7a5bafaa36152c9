"""What is taken for an MGU in torch's names, and which way its gate is defined."""

from __future__ import annotations

import numpy as np
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.torch import MGU
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions

H, INPUTS = 4, 3


def rows() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(6)
    shapes = {
        "weight_ih": (2 * H, INPUTS),
        "weight_hh": (2 * H, H),
        "bias_ih": (2 * H,),
        "bias_hh": (2 * H,),
    }
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def linears() -> dict[str, np.ndarray]:
    """The same cell as linears."""
    found = {}
    for side, letter in (("ih", "W"), ("hh", "U")):
        for part in ("weight", "bias"):
            blocks = np.split(rows()[f"{part}_{side}"], 2)
            for gate, block in zip("fh", blocks, strict=True):
                found[f"{letter}_{gate}.{part}"] = block
    return found


def test_a_cell_that_keeps_by_its_gate() -> None:
    store = MemoryStore({f"ligru.{name}": array for name, array in rows().items()})
    (match,) = MGU.find(store.tensors)
    recurrence = MGU.read(store, match, ReadOptions(spectra=True))
    gate = 1 / (1 + np.exp(-(rows()["bias_ih"] + rows()["bias_hh"])[:H]))
    assert_allclose(np.exp(recurrence.log_eigenvalues), gate, rtol=1e-12)
    assert "gate_keeps=yes" in recurrence.assumptions[0]
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is None
    assert recurrence.hidden.reason is not None


def test_a_name_that_says_nothing_is_assumed_to_be_an_mgu() -> None:
    recurrence = read_layer({f"rnn.{name}": array for name, array in rows().items()}, MGU)
    assert "gate_keeps=no" in recurrence.assumptions[0]


def test_a_gru_in_linears_is_not_taken() -> None:
    assert match_of(linears() | {"W_r.weight": np.zeros((H, INPUTS))}, MGU) == []
    assert [family.name for family, _ in detect(MemoryStore(rows()).tensors)] == ["mgu"]
