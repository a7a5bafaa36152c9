"""Parcae against its recurrence written out, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.errors import TensorError
from memcurse_cli.families.state_space.ema import PARCAE, PARCAE_ESM, Parcae

N, STEPS = 6, 12


@pytest.fixture
def arrays() -> dict[str, NDArray]:
    """The module's tensors, as they are stored in the whole model."""
    rng = np.random.default_rng(0)
    tensors = {role: rng.uniform(-3, 2, N) for role in ("log_state_decay", "log_delta")}
    tensors |= {
        role: rng.normal(size=(N, N)) for role in ("input_matrix_continuous", "out_proj.weight")
    }
    tensors |= {"input_norm.weight": np.ones(N), "input_norm.bias": np.zeros(N)}
    return {f"trunk.parcae.{name}": values for name, values in tensors.items()}


def test_an_impulse(arrays: dict[str, NDArray]) -> None:
    """``h' = e^(-Δ e^a) h + Δ B x``, ``y = C h``."""
    recurrence = read_layer(arrays, Parcae())
    assert recurrence.name == "trunk.parcae"
    assert recurrence.stable_by_construction
    assert "recycling loop" in recurrence.assumptions[0]
    rate, delta, readin, readout = (
        arrays[f"trunk.parcae.{PARCAE[role]}"] for role in ("rate", "step", "B", "C")
    )
    step = np.log1p(np.exp(delta))
    decay = np.exp(-step * np.exp(rate))
    powers = decay ** np.arange(STEPS)[:, None]
    expected = np.einsum("oi,li,i,iu->oul", readout, powers, step, readin)
    assert_allclose(impulse_response(recurrence, STEPS), expected, rtol=0, atol=1e-12)


def test_the_names_of_esm(arrays: dict[str, NDArray]) -> None:
    renamed = {PARCAE_ESM[r]: arrays[f"trunk.parcae.{name}"] for r, name in PARCAE.items()}
    recurrence, expected = read_layer(renamed, Parcae()), read_layer(arrays, Parcae())
    assert recurrence.name == "parcae"
    assert_allclose(recurrence.log_eigenvalues, expected.log_eigenvalues)
    assert_allclose(impulse_response(recurrence, STEPS), impulse_response(expected, STEPS))


def test_derivatives(arrays: dict[str, NDArray]) -> None:
    check_derivatives(arrays, Parcae())


def test_the_projections_move_b_and_c(arrays: dict[str, NDArray]) -> None:
    groups = read_layer(arrays, Parcae()).projections
    assert [(group.matrix, group.size) for group in groups] == [("B", N * N), ("C", N * N)]
    del arrays["trunk.parcae.out_proj.weight"]
    without = read_layer(arrays, Parcae())
    assert without.readout is None
    assert without.projections == ()


def test_a_decay_far_from_the_middle(arrays: dict[str, NDArray]) -> None:
    arrays["trunk.parcae.log_state_decay"][:3] = -40, 800, 900
    arrays["trunk.parcae.log_delta"][:3] = -30, -799, 5
    recurrence = read_layer(arrays, Parcae())
    # softplus(p) = e^p there, so that Δ e^a is e^-70 and e^1.
    assert_allclose(-recurrence.log_eigenvalues.real[:3], [np.exp(-70), np.e, 700], rtol=1e-12)
    assert all(np.isfinite(group.eigenvalue_derivative).all() for group in recurrence.parameters)


def test_what_does_not_fit_is_left_or_refused(arrays: dict[str, NDArray]) -> None:
    assert match_of({**arrays, "trunk.parcae.log_delta": np.ones(N + 1)}, Parcae()) == []
    broken = {**arrays, "trunk.parcae.log_delta": np.full(N, np.nan)}
    with pytest.raises(TensorError, match="log_delta: 6 NaN"):
        read_layer(broken, Parcae())
    narrow = {**arrays, "trunk.parcae.out_proj.weight": np.ones((N, N + 1))}
    with pytest.raises(TensorError, match=r"out_proj.weight: its shape \(6, 7\)"):
        read_layer(narrow, Parcae())
