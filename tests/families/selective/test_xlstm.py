"""The mLSTM's cap and the sLSTM against a plain loop of its cell, in both layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from families.oracles import assert_same_spectrum
from families.selective.layers import (
    FORGET,
    INPUT,
    MLSTM_BLOCK,
    MLSTM_FUSED,
    MLSTM_LARGE,
    SLSTM_BIAS,
    SLSTM_CUDA,
    SLSTM_VANILLA,
)
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import HiddenSpectra
from memcurse_cli.families.selective import xlstm
from memcurse_cli.families.selective.xlstm import GATES, MLSTM, SLSTM


def capped(bias: np.ndarray, cap: float = 15.0) -> np.ndarray:
    return cap * np.tanh(bias / cap)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("arrays", [MLSTM_LARGE, MLSTM_FUSED])
def test_the_large_model_caps_its_gates(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer(arrays, MLSTM())
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(capped(FORGET)), rtol=1e-13)
    assert_allclose(recurrence.log_gain, capped(INPUT), rtol=1e-13)
    assert "gate_soft_cap=15" in recurrence.assumptions[0]
    assert recurrence.multiplicity == 2 * 4
    other = read_layer(arrays, MLSTM(), gate_soft_cap="3")
    assert_allclose(other.log_gain, capped(INPUT, 3.0), rtol=1e-13)
    uncapped = read_layer(arrays, MLSTM(), gate_soft_cap="0")
    assert_allclose(uncapped.log_gain, INPUT, rtol=0)


def test_the_block_stack_does_not() -> None:
    recurrence = read_layer(MLSTM_BLOCK, MLSTM())
    assert_allclose(np.exp(recurrence.log_eigenvalues), sigmoid(FORGET), rtol=1e-13)
    assert_allclose(recurrence.log_gain, INPUT, rtol=0)
    assert recurrence.assumptions == ()
    assert recurrence.multiplicity == (8 // 2) ** 2


def test_gates_of_other_layers_are_not_it() -> None:
    assert match_of(MLSTM_BLOCK | {"fgate.weight": np.zeros((2, 8))}, MLSTM()) == []
    assert match_of({"igate.bias": INPUT, "fgate.bias": FORGET}, MLSTM()) == []


def test_a_fused_bias_of_odd_length_is_refused() -> None:
    with pytest.raises(TensorError, match=r"ifgate_preact.bias: its shape \(5\)"):
        read_layer({"ifgate_preact.bias": np.zeros(5)}, MLSTM())


def test_the_gates_of_a_block_see_queries_keys_and_values() -> None:
    random = np.random.default_rng(14)
    weight = random.normal(size=(2, 24))
    arrays = MLSTM_BLOCK | {"igate.weight": weight, "fgate.weight": 0.1 * weight}
    arrays |= {"fgate.bias": FORGET / 5, "igate.bias": INPUT / 5}
    drive = drive_of(MemoryStore(arrays), MLSTM())
    assert drive.sees == "the queries, keys and values"
    assert_allclose(drive.gate.variance(4.0, 0.0), 0.04 * (weight**2).sum(1))
    z = random.normal(size=(20_000, 24)) @ arrays["fgate.weight"].T + FORGET / 5
    check_bands(gates_of(arrays), sigmoid(z), 0.02)


def cell(state: np.ndarray) -> np.ndarray:
    """One step at zero input and without the recurrent kernel: (c, n, m) of each unit."""
    c, n, m = state
    gate_input, forget, candidate, _ = SLSTM_BIAS.reshape(4, 6)
    kept = m - np.logaddexp(0, -forget)
    new = np.maximum(gate_input, kept)
    opened, closed = np.exp(gate_input - new), np.exp(kept - new)
    return np.array([closed * c + opened * np.tanh(candidate), closed * n + opened, new])


@pytest.mark.parametrize("arrays", [SLSTM_VANILLA, SLSTM_CUDA], ids=["vanilla", "cuda"])
def test_the_state_decays_as_the_cell_lets_it(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer({f"xlstm.slstm_cell.{n}": a for n, a in arrays.items()}, SLSTM())
    assert recurrence.name == "xlstm.slstm_cell"
    states = {}
    for kick in (0.0, 1.0):
        state = np.array([np.full(6, kick), np.ones(6), np.zeros(6)])
        for _ in range(5):
            state = cell(state)
        states[kick] = state[0] * np.exp(state[2])
    decayed = np.exp(5 * recurrence.log_eigenvalues.real)
    assert_allclose(states[1.0] - states[0.0], decayed, rtol=1e-10)
    first = cell(np.array([np.zeros(6), np.ones(6), np.zeros(6)]))
    written = first[0] * np.exp(first[2]) / np.tanh(SLSTM_BIAS[2].ravel())
    assert_allclose(written, np.exp(recurrence.log_gain.real), rtol=1e-12)


def test_a_kernel_of_neither_layout_is_refused() -> None:
    arrays = SLSTM_VANILLA | {"_recurrent_kernel_": np.zeros((2, 5, 3))}
    with pytest.raises(TensorError, match=r"_recurrent_kernel_: its shape \(2, 5, 3\) is neither"):
        read_layer(arrays, SLSTM())
    assert match_of({"_bias_": SLSTM_BIAS}, SLSTM()) == []


# [head, source, gate, target], as xlstm keeps the kernel outside of its backends.
KERNEL = np.random.default_rng(16).normal(size=(2, 3, len(GATES), 3))


KERNELS = {
    "vanilla": SLSTM_VANILLA
    | {"_recurrent_kernel_": KERNEL.transpose(0, 2, 3, 1).reshape(2, 4 * 3, 3)},
    "cuda": SLSTM_CUDA | {"_recurrent_kernel_": KERNEL.reshape(2, 3, 4 * 3)},
}


def raw_gates(h: torch.Tensor) -> torch.Tensor:
    """(gates, units of all heads) at zero input, as slstm_forward multiplies the kernel."""
    recurrent = torch.einsum("ks,ksgt->gkt", h.view(2, 3), torch.tensor(KERNEL))
    return (recurrent + torch.tensor(SLSTM_BIAS)).reshape(4, 6)


def stabilised(state: torch.Tensor) -> torch.Tensor:
    """One step on (h, c, n, m) of slstm_forward_pointwise."""
    h, c, n, m = state
    i, f, z, o = raw_gates(h)
    kept = m + torch.nn.functional.logsigmoid(f)
    top = i if torch.all(n == 0) else torch.maximum(i, kept)
    opened, closed = torch.exp(i - top), torch.exp(kept - top)
    c, n = closed * c + opened * torch.tanh(z), closed * n + opened
    return torch.stack([torch.sigmoid(o) * c / n, c, n, top])


def plain(state: torch.Tensor) -> torch.Tensor:
    """The same on (h, c, n) flat, without the stabiliser."""
    h, c, n = state.view(3, 6)
    i, f, z, o = raw_gates(h)
    c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
    n = torch.sigmoid(f) * n + torch.exp(i)
    return torch.cat([torch.sigmoid(o) * c / n, c, n])


def spectra(arrays: dict[str, np.ndarray]) -> HiddenSpectra:
    store = MemoryStore(arrays)
    (match,) = SLSTM().find(store.tensors)
    hidden = SLSTM().read(store, match, ReadOptions(spectra=True)).hidden
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("arrays", KERNELS.values(), ids=KERNELS)
def test_the_spectra_against_autodiff(arrays: dict[str, np.ndarray]) -> None:
    hidden = spectra(arrays)
    origin = torch.zeros(3 * 6, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(plain, origin)
    assert hidden.jacobian is not None
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian.numpy()), 1e-11)
    for index, gate in enumerate(GATES):
        heads = np.concatenate([np.linalg.eigvals(head[:, index].T) for head in KERNEL])
        assert_same_spectrum(hidden.gates[gate], heads, 1e-12)
    assert hidden.reason is None


def test_the_stabiliser_cancels() -> None:
    with_it = torch.zeros(4, 6, dtype=torch.float64)
    without = torch.zeros(3 * 6, dtype=torch.float64)
    for _ in range(6):
        with_it, without = stabilised(with_it), plain(without)
        assert_allclose(with_it[0], without[:6], rtol=1e-12)


def test_a_head_that_is_too_large_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlstm, "LARGEST_JACOBIAN", 3 * 3 - 1)
    hidden = spectra(KERNELS["cuda"])
    assert hidden.jacobian is None
    assert "order 9" in (hidden.reason or "")


@pytest.mark.parametrize("backend", ["vanilla", "cuda"])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_bands_are_those_of_the_layer(backend: str, scale: float) -> None:
    """`sLSTMLayer` gives fgate(x) to the input slot and igate(x) to the forget slot."""
    heads, units, steps = 2, 32, 12_000
    random = np.random.default_rng(8)
    bias = random.normal(size=(4, heads, units))
    bias[1] += 2
    kernel = random.normal(size=(4, heads, units, units)) / 12  # gate, head, target, source
    weights = {
        f"{letter}gate.weight": random.normal(size=(heads, units, 24)) / 6 for letter in "ifzo"
    }
    of_cell = {
        "slstm_cell._bias_": bias.ravel(),
        "slstm_cell._recurrent_kernel_": kernel.swapaxes(0, 1).reshape(heads, 4 * units, units),
    }
    if backend == "cuda":
        of_cell = {
            "slstm_cell._bias_": bias.swapaxes(0, 1).ravel(),
            "slstm_cell._recurrent_kernel_": kernel.transpose(1, 3, 0, 2).reshape(
                heads, units, 4 * units
            ),
        }
    arrays = weights | of_cell
    x = scale * random.normal(size=(steps, heads, 24))
    slots = [weights[f"{letter}gate.weight"] for letter in "fizo"]
    seen = np.einsum("ghui,thi->tghu", slots, x)
    c, n, h = np.zeros((heads, units)), np.zeros((heads, units)), np.zeros((heads, units))
    log_scale = np.full((heads, units), -np.inf)
    gates, squares = [], []
    for step, driven in enumerate(seen):
        i, f, z, o = driven + np.einsum("ghts,hs->ght", kernel, h) + bias
        forget, output = 1 / (1 + np.exp(-f)), 1 / (1 + np.exp(-o))
        after = np.maximum(i, log_scale + np.log(forget))
        kept, opened = np.exp(log_scale + np.log(forget) - after), np.exp(i - after)
        c, n, log_scale = kept * c + opened * np.tanh(z), kept * n + opened, after
        h = output * c / n
        if step > 500:
            gates.append(forget.ravel())
            squares.append(np.mean(h**2))
    drive_of(MemoryStore(arrays), SLSTM())
    bands = gates_of(arrays, input_scale=scale)
    check_bands(bands, np.array(gates))
    assert_allclose(bands.hidden_second_moment, np.mean(squares), rtol=0.1)


def test_without_its_projections_there_is_no_band() -> None:
    assert "weights are not in the file" in (gates_of(SLSTM_VANILLA).reason or "")
