"""The MGU and its kin against autodiff of their steps, in torch's names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.mgu import MGU
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


def step(h: torch.Tensor) -> torch.Tensor:
    """MGUCell.forward of torchrecurrent at zero input."""
    w = {name: torch.tensor(array) for name, array in rows().items()}
    b_f, b_n = torch.split(w["bias_ih"] + w["bias_hh"], H)
    u_f, u_n = torch.split(w["weight_hh"], H)
    f = torch.sigmoid(u_f @ h + b_f)
    return f * torch.tanh(u_n @ (f * h) + b_n) + (1 - f) * h


@pytest.mark.parametrize("arrays", [rows(), linears()], ids=["rows", "linears"])
def test_the_gate_and_the_whole_step(arrays: dict[str, np.ndarray]) -> None:
    store = MemoryStore({f"mgu.cells.0.{name}": array for name, array in arrays.items()})
    (match,) = MGU.find(store.tensors)
    recurrence = MGU.read(store, match, ReadOptions(spectra=True))
    assert recurrence.name == "mgu.cells.0"
    assert recurrence.assumptions == ()
    forget = 1 / (1 + np.exp(-(rows()["bias_ih"] + rows()["bias_hh"])[:H]))
    assert_allclose(np.exp(recurrence.log_eigenvalues), 1 - forget, rtol=1e-12)
    assert_allclose(np.exp(recurrence.log_gain), forget, rtol=1e-12)
    hidden = recurrence.hidden
    assert hidden is not None
    assert hidden.jacobian is not None
    jacobian = torch.autograd.functional.jacobian(step, torch.zeros(H, dtype=torch.float64))
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian.numpy()), 1e-11)
    assert_same_spectrum(hidden.gates["gate"], np.linalg.eigvals(rows()["weight_hh"][:H]))


@pytest.mark.parametrize("keeps", ["yes", "no"])
def test_derivatives(keeps: str) -> None:
    gate = {f"bias_{side}[gate]": slice(0, H) for side in ("ih", "hh")}
    check_derivatives(rows(), MGU, elements=gate, gate_keeps=keeps)
    check_derivatives(linears(), MGU, gate_keeps=keeps)


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
