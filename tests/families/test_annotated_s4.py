"""The Annotated S4's layers against its own functions, written out, and against differences."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.families.family import Family
from memcurse_cli.families.state_space.s4_dplr import AnnotatedS4
from memcurse_cli.families.state_space.s4d import AnnotatedS4D

N, H, STEPS = 4, 3, 16


def layer_of(real: str, imag: str) -> dict[str, NDArray]:
    rng = np.random.default_rng(13)
    layer = {
        real: -rng.uniform(0.3, 1, (N, H)),
        imag: 2 * np.arange(N)[:, None] - 3 + rng.uniform(-0.2, 0.2, (N, H)),
        "C": rng.normal(size=(N, H, 2)),
        "D": np.ones((1, H)),
        "log_step": rng.uniform(-2, -1, (1, H)),
    }
    return {f"params/layers_0/seq/{role}": values for role, values in layer.items()}


def s4d_layer() -> dict[str, NDArray]:
    unused = {f"params/layers_0/seq/{role}": np.ones((N, H)) for role in ("B_re", "B_im")}
    return layer_of("A_re", "A_im") | unused


def s4_layer(*, real: bool = False) -> dict[str, NDArray]:
    rng = np.random.default_rng(14)
    values = {role: 0.3 * (rng.normal(size=(N, H)) + 1j * rng.normal(size=(N, H))) for role in "PB"}
    if real:
        values = {role: array.real for role, array in values.items()}
    named = {f"params/layers_0/seq/{role}": array for role, array in values.items()}
    return layer_of("Lambda_re", "Lambda_im") | named


def part(layer: dict[str, NDArray], role: str) -> NDArray:
    return layer[f"params/layers_0/seq/{role}"]


def test_the_kernel_of_s4d() -> None:
    layer = s4d_layer()
    part(layer, "A_re")[0, 0] = 0.5
    recurrence = read_layer(layer, AnnotatedS4D())
    assert recurrence.name == "params/layers_0/seq"
    response = impulse_response(recurrence, STEPS)[0]
    for channel in range(H):
        # s4d_kernel_zoh(C, A, L, step)
        a = np.clip(part(layer, "A_re"), None, -1e-4)[:, channel]
        a = a + 1j * part(layer, "A_im")[:, channel]
        step = np.exp(part(layer, "log_step")[0, channel])
        c = part(layer, "C")[:, channel, 0] + 1j * part(layer, "C")[:, channel, 1]
        kernel = [
            (c * (np.exp(step * a) - 1) / a * np.exp(lag * step * a)).sum().real
            for lag in range(STEPS)
        ]
        assert_allclose(response[channel], kernel, rtol=0, atol=1e-12)
    assert recurrence.stable_by_construction
    assert [group.matrix for group in recurrence.projections] == ["C", "C", "D"]
    stored = part(layer, "C").reshape(-1, 2)
    real = recurrence.projections[0]
    assert recurrence.readout is not None
    assert_allclose(recurrence.readout[0].real, stored[real.scalar, 0])


def discrete_of(layer: dict[str, NDArray], channel: int) -> tuple[NDArray, NDArray]:
    """A̅ and B̅ of discrete_DPLR, with a plain inverse."""
    real = np.clip(part(layer, "Lambda_re")[:, channel], None, -1e-4)
    p = part(layer, "P")[:, channel]
    a = np.diag(real + 1j * part(layer, "Lambda_im")[:, channel]) - np.outer(p, p.conj())
    scale = 2.0 / np.exp(part(layer, "log_step")[0, channel])
    backward = np.linalg.inv(scale * np.eye(N) - a)
    return backward @ (scale * np.eye(N) + a), 2 * backward @ part(layer, "B")[:, channel]


@pytest.mark.parametrize("real", [False, True])
def test_the_state_of_s4(real: bool) -> None:
    layer = s4_layer(real=real)
    recurrence = read_layer(layer, AnnotatedS4())
    assert recurrence.readout is None
    assert recurrence.readin is not None
    driven = np.exp(recurrence.log_gain) * recurrence.readin[:, 0]
    for channel in range(H):
        own = recurrence.channel == channel
        matrix, state = discrete_of(layer, channel)
        eigenvalues = np.exp(recurrence.log_eigenvalues[own])
        expected = np.linalg.eigvals(matrix)
        nearest = np.abs(eigenvalues[:, None] - expected).min(axis=1)
        assert_allclose(nearest, 0, atol=1e-13)
        # The state is a sum of the modes; the first N steps of it say of which.
        modes = np.stack([np.linalg.matrix_power(matrix, lag) @ state for lag in range(N)], axis=1)
        amplitudes = modes @ np.linalg.inv(eigenvalues[:, None] ** np.arange(N))
        later = np.linalg.matrix_power(matrix, STEPS) @ state
        assert_allclose(amplitudes @ eigenvalues**STEPS, later, rtol=0, atol=1e-11)
        # Each mode is an eigenvector of norm 1 times what drives it.
        assert_allclose(np.linalg.norm(amplitudes, axis=0), np.abs(driven[own]), rtol=1e-10)


@pytest.mark.parametrize(
    ("layer", "family"),
    [
        (s4d_layer(), AnnotatedS4D()),
        (s4_layer(), AnnotatedS4()),
        (s4_layer(real=True), AnnotatedS4()),
    ],
    ids=["s4d", "s4", "real P"],
)
def test_derivatives(layer: dict[str, NDArray], family: Family) -> None:
    check_derivatives(layer, family, imaginary=("P[imaginary]",))


def test_other_shapes_are_not_it() -> None:
    layer = s4d_layer()
    layer["params/layers_0/seq/log_step"] = np.ones((H, 1))
    assert match_of(layer, AnnotatedS4D()) == []
