"""S4, S4D and S5 as their libraries run them: an impulse decays as the λ that is reported.

popgym carries the original authors' standalone S4, version 3, with S4D as one of its kernels;
s5-pytorch is the PyTorch port of S5.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from families.derivatives import read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.families.state_space.s4d import S4D, S5

s4 = pytest.importorskip("popgym.baselines.models.s4d")
s5 = pytest.importorskip("s5")

H, N, STEPS = 3, 6, 40


def reported(layer: torch.nn.Module, family: str, assume: Mapping[str, str]) -> NDArray:
    """The eigenvalues that `inspect` reports of a module's state_dict, in the order of the file."""
    (found,) = inspect(layer.state_dict(), values=True, assume=assume).layers
    assert found.family == family
    assert not any("beside it" in each for each in found.assumptions)
    values = np.array(found.eigenvalues.values)
    return values[:, 0] + 1j * values[:, 1]


def s4_layer(mode: str, measure: str, **options: str) -> torch.nn.Module:
    """S4's block without its activation and its mixing, away from where it starts."""
    torch.manual_seed(0)
    layer = s4.S4(
        H, d_state=N, mode=mode, measure=measure, activation=None, postact=None, **options
    )
    with torch.no_grad():
        layer.kernel.kernel.log_dt.uniform_(-3, -1)
        layer.D.zero_()
        layer.output_linear.weight.copy_(torch.eye(H)[..., None])
        layer.output_linear.bias.zero_()
    return layer.double().eval()


def assert_predicts_itself(
    outputs: NDArray, eigenvalues: NDArray, tolerance: float = 1e-12
) -> None:
    """A sum of the powers of n eigenvalues obeys their characteristic polynomial, and no other."""
    polynomial = np.poly(eigenvalues)
    assert_allclose(polynomial.imag, 0, atol=1e-12)
    order = len(polynomial) - 1
    windows = np.lib.stride_tricks.sliding_window_view(outputs, order + 1)
    scale = np.abs(outputs).max() * np.abs(polynomial).sum()
    assert_allclose(windows @ polynomial[::-1].real, 0, atol=tolerance * scale)
    shorter = np.poly(eigenvalues * 0.99).real
    assert np.abs(windows @ shorter[::-1]).max() > 100 * tolerance * scale


@pytest.mark.parametrize("method", ["bilinear", "zoh", "dss"])
def test_s4d_s_forward(method: str) -> None:
    layer = s4_layer("diag", "diag-lin", disc=method)
    assume = {"discretization": method} | ({"kernel-length": "40"} if method == "dss" else {})
    eigenvalues = reported(layer, "s4d", assume).reshape(H, N // 2)
    inputs = torch.zeros(1, H, STEPS, dtype=torch.float64)
    inputs[..., 0] = 1  # every channel is hit at once
    with torch.no_grad():
        outputs = layer(inputs)[0][0].numpy()
    if method == "dss":
        for pairs, output in zip(eigenvalues, outputs, strict=True):
            # The library casts the kernel of DSS to single precision.
            assert_predicts_itself(output, np.concatenate([pairs, pairs.conj()]), 1e-7)
        return
    arrays = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    response = impulse_response(read_layer(arrays, S4D(), discretization=method), STEPS)
    assert_allclose(response[0], outputs, atol=1e-12 * np.abs(outputs).max())


@pytest.mark.parametrize("mode", ["dense", "linear", "diagonal"])
def test_s4_s_own_step(mode: str) -> None:
    layer = s4_layer("nplr", "legs")
    eigenvalues = reported(layer, "s4_dplr", {}).reshape(H, N)
    silence = torch.zeros(1, H, dtype=torch.float64)
    outputs = []
    with torch.no_grad():
        layer.setup_step(mode=mode)
        state = layer.default_state(1)
        for step in range(STEPS):
            output, state = layer.step(silence + (step == 0), state)
            outputs.append(output[0].real.numpy())
    for channel in range(H):
        assert_predicts_itself(np.array(outputs)[:, channel], eigenvalues[channel])


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_s5_s_forward(method: str) -> None:
    """s5-pytorch computes in single precision."""
    torch.manual_seed(0)
    layer = s5.S5(H, N, dt_min=0.05, dt_max=0.5).eval()
    layer.seq.discretize = getattr(s5.s5_model, f"discretize_{method}")
    assume = {"discretization": method}
    eigenvalues = reported(layer, "s5", assume)
    impulse = torch.zeros(1, STEPS, H)
    impulse[0, 0] = torch.randn(H)
    with torch.no_grad():
        first, state = (
            layer(impulse[:, :steps], return_state=True)[1][0].numpy() for steps in (1, 6)
        )
        outputs = layer(impulse)[0].numpy()
        outputs[0] -= (layer.seq.D * impulse[0, 0]).numpy()
    expected = eigenvalues**5 * first
    assert_allclose(state, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    arrays = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    response = impulse_response(read_layer(arrays, S5(), **assume), STEPS)
    expected = np.einsum("oil,i->lo", response, impulse[0, 0].numpy())
    assert_allclose(outputs, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
