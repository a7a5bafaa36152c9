"""What holds for every eigenvalue, input, horizon, parametrisation and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory import layers
from theory.impulse_hessian import Layer
from theory.matrices import eigenbasis

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense.sensitivity import dense_sensitivity
from memcurse_cli.theory.hessian import LayerHessian
from memcurse_cli.theory.moments import Moments, Readout, moments
from memcurse_cli.theory.parametrization import (
    NORMALIZATIONS,
    PARAMETRIZATIONS,
    Parametrized,
    parametrize,
)
from memcurse_cli.theory.sensitivity import (
    parameter_sensitivity,
    relative_sensitivity,
    state_second_moment,
)

MAPS = [
    (parametrization, normalization)
    for parametrization in PARAMETRIZATIONS
    for normalization in NORMALIZATIONS
    if normalization != "zoh" or parametrization == "s4"
]
REAL = {"sigmoid-gate", "gru"}

decays = st.floats(-9, 1.5).map(lambda exponent: 10**exponent)
angles = st.just(0.0) | st.floats(-np.pi, np.pi)
readouts = st.sampled_from(["last", "every"])
weights = st.floats(0.01, 10)
inputs = st.lists(
    st.tuples(weights, st.sampled_from([0.0, 1.0]) | st.floats(0, 1)), min_size=1, max_size=3
).map(lambda pairs: Autocorrelation(*zip(*pairs, strict=True)))


@dataclass(frozen=True)
class Setting:
    """An input, and how long and where a sequence of it is read."""

    autocorrelation: Autocorrelation
    horizon: int | None
    readout: Readout

    def moments(self, logs: np.ndarray) -> Moments:
        return moments(logs, self.autocorrelation, self.horizon, self.readout)


sequences = st.builds(Setting, inputs, st.none() | st.integers(1, 2000), readouts)


def kappas(found: Parametrized, moment: Moments) -> dict[str, np.ndarray]:
    return {
        name: relative_sensitivity(moment, moved.eigenvalue, moved.log_gain)
        for name, moved in found.derivatives.items()
    }


@pytest.mark.parametrize(("parametrization", "normalization"), MAPS)
@settings(max_examples=20)
@given(decay=decays, angle=angles, sequence=sequences)
def test_moments_and_sensitivities_are_positive(
    parametrization: str, normalization: str, decay: float, angle: float, sequence: Setting
) -> None:
    turn = 0.0 if {parametrization, normalization} & REAL else angle
    logs = np.array([complex(-decay, turn)])
    moment = sequence.moments(logs)
    assert moment.second_moment[0] >= 0
    assert moment.sensitivity[0] >= 0
    bound = np.sqrt(moment.second_moment[0] * moment.sensitivity[0])
    assert abs(moment.cross_moment[0]) <= bound * (1 + 1e-9)
    found = parametrize(logs, parametrization, normalization)
    assert state_second_moment(moment, found.log_gain)[0] >= 0
    for name, kappa in kappas(found, moment).items():
        moved = found.derivatives[name]
        value = parameter_sensitivity(moment, found.log_gain, moved.eigenvalue, moved.log_gain)
        assert 0 <= value[0] < np.inf
        if moment.second_moment[0] > 0:
            assert 0 <= kappa[0] < np.inf
            held = state_second_moment(moment, found.log_gain)
            assert value[0] == pytest.approx(kappa[0] * held[0], rel=1e-11)


@settings(max_examples=40)
@given(
    values=st.lists(
        st.sampled_from([0.0, 0.5, -0.5]) | st.floats(-0.97, 0.97), min_size=1, max_size=5
    ),
    gains=st.lists(st.floats(0.1, 3), min_size=5, max_size=5),
    autocorrelation=inputs,
    horizon=st.none() | st.integers(1, 60),
    readout=readouts,
)
def test_a_diagonal_matrix_is_a_diagonal_layer(
    values: list[float],
    gains: list[float],
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout,
) -> None:
    """A drive of its own for every state: E|h_i|² and dh/dA_ii = dh_i/dλ_i of either path."""
    matrix, gain = np.diag(values), np.array(gains[: len(values)])
    with np.errstate(divide="ignore"):
        layer = moments(np.log(np.array(values, complex)), autocorrelation, horizon, readout)
    found = dense_sensitivity(
        matrix, eigenbasis(matrix), np.diag(gain), autocorrelation, horizon, readout
    )
    assert found.second_moment is not None
    assert found.per_entry is not None
    np.testing.assert_allclose(found.second_moment, gain**2 * layer.second_moment, rtol=1e-8)
    own = np.diag(found.per_entry)
    wanted = gain**2 * layer.sensitivity
    np.testing.assert_allclose(own, wanted, rtol=1e-8, atol=1e-10 * wanted.max())


@pytest.mark.parametrize("make", layers.WHOLE, ids=lambda make: make.__name__)
@settings(max_examples=8)
@given(
    autocorrelation=inputs,
    horizon=st.none() | st.integers(1, 60),
    readout=readouts,
    radius=st.floats(0.4, 0.99),
    scale=st.floats(1e-3, 1e3),
)
def test_a_hessian_is_symmetric_and_positive(
    make: Callable[..., Layer],
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout,
    radius: float,
    scale: float,
) -> None:
    """Of every shape of layer; B times c multiplies the blocks of λ and C by c²."""
    layer = make((0.3, radius))

    def blocks(one: Layer) -> list[np.ndarray]:
        hessian = LayerHessian(
            one.log_eigenvalues,
            one.log_gain,
            one.groups,
            one.readin,
            one.readout,
            one.projections,
            channel=one.channel,
            conjugate_pairs=one.conjugate_pairs,
            autocorrelation=autocorrelation,
            horizon=horizon,
            read_at=readout,
        )
        return [matrix for same in hessian.blocks() for matrix in same.hessians]

    for matrix in blocks(layer):
        scales = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
        assert np.all(np.diag(matrix) >= 0)
        assert np.array_equal(matrix, matrix.T)
        assert np.linalg.eigvalsh(matrix / np.outer(scales, scales))[0] > -1e-8 * len(matrix)
    alone = replace(layer, projections=())
    louder = replace(alone, readin=scale * alone.readin)
    for before, after in zip(blocks(alone), blocks(louder), strict=True):
        np.testing.assert_allclose(after, scale**2 * before, rtol=1e-9, atol=1e-12 * after.max())
