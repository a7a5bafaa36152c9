"""The mLSTM's cap, and the sLSTM's spectra and bands against a plain loop of its cell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import read_found, read_layer
from families.oracles import assert_same_spectrum, jacobian, sigmoid
from families.selective.layers import (
    FORGET,
    INPUT,
    MLSTM_BLOCK,
    MLSTM_FUSED,
    MLSTM_LARGE,
    SLSTM_BIAS,
    SLSTM_CUDA,
    SLSTM_VANILLA,
    Arrays,
)
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.cells import gated_layer
from memcurse_cli.families.selective.xlstm import GATES, MLSTM, SLSTM


@pytest.mark.parametrize("arrays", [MLSTM_LARGE, MLSTM_FUSED])
def test_the_cap_of_a_large_model_is_assumed(arrays: Arrays) -> None:
    assert "gate_soft_cap=15" in read_layer(arrays, MLSTM()).assumptions[0]
    assert read_layer(MLSTM_BLOCK, MLSTM()).assumptions == ()
    other = read_layer(arrays, MLSTM(), gate_soft_cap="3")
    assert_allclose(other.log_gain, 3 * np.tanh(INPUT / 3), rtol=1e-13)
    assert_allclose(read_layer(arrays, MLSTM(), gate_soft_cap="0").log_gain, INPUT, rtol=0)


def test_the_gates_of_a_block_see_queries_keys_and_values() -> None:
    random = np.random.default_rng(14)
    arrays = MLSTM_BLOCK | {"fgate.bias": FORGET / 5, "igate.bias": INPUT / 5}
    assert drive_of(MemoryStore(arrays), MLSTM()).sees == "the queries, keys and values"
    z = random.normal(size=(20_000, 24)) @ arrays["fgate.weight"].T + FORGET / 5
    check_bands(gates_of(arrays), sigmoid(z), 0.02)


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


def plain(state: torch.Tensor) -> torch.Tensor:
    """One step on (h, c, n) flat of slstm_forward_pointwise, whose stabiliser cancels."""
    h, c, n = state.view(3, 6)
    i, f, z, o = raw_gates(h)
    c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
    n = torch.sigmoid(f) * n + torch.exp(i)
    return torch.cat([torch.sigmoid(o) * c / n, c, n])


@pytest.mark.parametrize("arrays", KERNELS.values(), ids=KERNELS)
def test_the_spectra_against_autodiff(arrays: Arrays) -> None:
    hidden = read_found(arrays, spectra=True).hidden
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian(plain, 3 * 6)), 1e-11)
    for index, gate in enumerate(GATES):
        heads = np.concatenate([np.linalg.eigvals(head[:, index].T) for head in KERNEL])
        assert_same_spectrum(hidden.gates[gate], heads, 1e-12)
    assert hidden.reason is None


def test_a_head_that_is_too_large_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_layer, "LARGEST_JACOBIAN", 3 * 3 - 1)
    hidden = read_found(KERNELS["cuda"], spectra=True).hidden
    assert hidden.jacobian is None
    assert "order 9" in (hidden.reason or "")


@pytest.mark.parametrize(("backend", "scale"), [("vanilla", 0.5), ("cuda", 2.0)])
def test_the_bands_are_those_of_the_layer(backend: str, scale: float) -> None:
    """`sLSTMLayer` gives fgate(x) to the input slot and igate(x) to the forget slot."""
    heads, units, steps = 2, 32, 12_000
    random = np.random.default_rng(8)
    bias = random.normal(size=(4, heads, units))
    bias[1] += 2
    kernel = random.normal(size=(4, heads, units, units)) / 12  # gate, head, target, source
    weights = {of: random.normal(size=(heads, units, 24)) / 6 for of in "ifzo"}
    arrays = {f"{of}gate.weight": weight for of, weight in weights.items()}
    if backend == "cuda":
        stored = bias.swapaxes(0, 1), kernel.transpose(1, 3, 0, 2).reshape(heads, units, -1)
    else:
        stored = bias, kernel.swapaxes(0, 1).reshape(heads, -1, units)
    arrays["slstm_cell._bias_"] = stored[0].ravel()
    arrays["slstm_cell._recurrent_kernel_"] = stored[1]
    x = scale * random.normal(size=(steps, heads, 24))
    seen = np.einsum("ghui,thi->tghu", [weights[of] for of in "fizo"], x)
    c, n, h = np.zeros((3, heads, units))
    log_scale = np.full((heads, units), -np.inf)
    gates, squares = [], []
    for step, driven in enumerate(seen):
        i, f, z, o = driven + np.einsum("ghts,hs->ght", kernel, h) + bias
        forget = sigmoid(f)
        after = np.maximum(i, log_scale + np.log(forget))
        kept, opened = np.exp(log_scale + np.log(forget) - after), np.exp(i - after)
        c, n, log_scale = kept * c + opened * np.tanh(z), kept * n + opened, after
        h = sigmoid(o) * c / n
        if step > 500:
            gates.append(forget.ravel())
            squares.append(np.mean(h**2))
    drive_of(MemoryStore(arrays), SLSTM())
    bands = gates_of(arrays, input_scale=scale)
    check_bands(bands, np.array(gates))
    assert_allclose(bands.hidden_second_moment, np.mean(squares), rtol=0.1)
