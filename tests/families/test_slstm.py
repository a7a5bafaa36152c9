"""The sLSTM against a plain loop of its cell, in both layouts, and differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import HiddenSpectra
from memcurse_cli.families.selective import xlstm
from memcurse_cli.families.selective.xlstm import GATES, SLSTM

HEADS, UNITS = 2, 3
SIZE = HEADS * UNITS
RANDOM = np.random.default_rng(15)
BIAS = RANDOM.normal(size=(len(GATES), HEADS, UNITS))
FLAT = np.arange(BIAS.size).reshape(BIAS.shape)

VANILLA = {
    "_bias_": BIAS.ravel(),
    "_recurrent_kernel_": np.zeros((HEADS, 4 * UNITS, UNITS)),
}
CUDA = {
    "_bias_": BIAS.swapaxes(0, 1).ravel(),
    "_recurrent_kernel_": np.zeros((HEADS, UNITS, 4 * UNITS)),
}


def cell(state: np.ndarray) -> np.ndarray:
    """One step at zero input and without the recurrent kernel: (c, n, m) of each unit."""
    c, n, m = state
    gate_input, forget, candidate, _ = BIAS.reshape(4, SIZE)
    kept = m - np.logaddexp(0, -forget)
    new = np.maximum(gate_input, kept)
    opened, closed = np.exp(gate_input - new), np.exp(kept - new)
    return np.array([closed * c + opened * np.tanh(candidate), closed * n + opened, new])


@pytest.mark.parametrize("arrays", [VANILLA, CUDA], ids=["vanilla", "cuda"])
def test_the_state_decays_as_the_cell_lets_it(arrays: dict[str, np.ndarray]) -> None:
    recurrence = read_layer({f"xlstm.slstm_cell.{n}": a for n, a in arrays.items()}, SLSTM())
    assert recurrence.name == "xlstm.slstm_cell"
    states = {}
    for kick in (0.0, 1.0):
        state = np.array([np.full(SIZE, kick), np.ones(SIZE), np.zeros(SIZE)])
        for _ in range(5):
            state = cell(state)
        states[kick] = state[0] * np.exp(state[2])
    decayed = np.exp(5 * recurrence.log_eigenvalues.real)
    assert_allclose(states[1.0] - states[0.0], decayed, rtol=1e-10)
    first = cell(np.array([np.zeros(SIZE), np.ones(SIZE), np.zeros(SIZE)]))
    written = first[0] * np.exp(first[2]) / np.tanh(BIAS[2].ravel())
    assert_allclose(written, np.exp(recurrence.log_gain.real), rtol=1e-12)


@pytest.mark.parametrize(
    ("arrays", "flat"), [(VANILLA, FLAT), (CUDA, None)], ids=["vanilla", "cuda"]
)
def test_derivatives(arrays: dict[str, np.ndarray], flat: np.ndarray | None) -> None:
    if flat is None:
        order = np.empty(BIAS.size, dtype=int)
        order[FLAT.swapaxes(0, 1).ravel()] = np.arange(BIAS.size)
        flat = order.reshape(BIAS.shape)
    check_derivatives(
        arrays,
        SLSTM(),
        elements={"_bias_[input]": flat[0].ravel(), "_bias_[forget]": flat[1].ravel()},
    )


def test_a_kernel_of_neither_layout_is_refused() -> None:
    arrays = VANILLA | {"_recurrent_kernel_": np.zeros((HEADS, 5, UNITS))}
    with pytest.raises(TensorError, match=r"_recurrent_kernel_: its shape \(2, 5, 3\) is neither"):
        read_layer(arrays, SLSTM())
    assert match_of({"_bias_": BIAS}, SLSTM()) == []


# [head, source, gate, target], as xlstm keeps the kernel outside of its backends.
KERNEL = np.random.default_rng(16).normal(size=(HEADS, UNITS, len(GATES), UNITS))
KERNELS = {
    "vanilla": VANILLA
    | {"_recurrent_kernel_": KERNEL.transpose(0, 2, 3, 1).reshape(HEADS, 4 * UNITS, UNITS)},
    "cuda": CUDA | {"_recurrent_kernel_": KERNEL.reshape(HEADS, UNITS, 4 * UNITS)},
}


def raw_gates(h: torch.Tensor) -> torch.Tensor:
    """(gates, units of all heads) at zero input, as slstm_forward multiplies the kernel."""
    recurrent = torch.einsum("ks,ksgt->gkt", h.view(HEADS, UNITS), torch.tensor(KERNEL))
    return (recurrent + torch.tensor(BIAS)).reshape(4, SIZE)


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
    h, c, n = state.view(3, SIZE)
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
    origin = torch.zeros(3 * SIZE, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(plain, origin)
    assert hidden.jacobian is not None
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian.numpy()), 1e-11)
    for index, gate in enumerate(GATES):
        heads = np.concatenate([np.linalg.eigvals(head[:, index].T) for head in KERNEL])
        assert_same_spectrum(hidden.gates[gate], heads, 1e-12)
    assert hidden.reason is None


def test_the_stabiliser_cancels() -> None:
    with_it = torch.zeros(4, SIZE, dtype=torch.float64)
    without = torch.zeros(3 * SIZE, dtype=torch.float64)
    for _ in range(6):
        with_it, without = stabilised(with_it), plain(without)
        assert_allclose(with_it[0], without[:SIZE], rtol=1e-12)


def test_a_head_that_is_too_large_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlstm, "LARGEST_JACOBIAN", 3 * UNITS - 1)
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
    assert "weights are not in the file" in (gates_of(VANILLA).reason or "")
