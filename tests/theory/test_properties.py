"""What holds for every eigenvalue, input, horizon, parametrisation and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory import layers
from theory.impulse_hessian import Group, Layer
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
    group_sensitivity,
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


@settings(max_examples=200)
@given(decay=decays, share=st.floats(0.01, 0.999), sequence=sequences)
def test_a_real_eigenvalue_that_remembers_longer_is_more_sensitive(
    decay: float, share: float, sequence: Setting
) -> None:
    """E|h|² and E|dh/dλ|² at every input, horizon and readout, and κ(λ) of an infinite sequence.

    At T = 2 and white noise h = x₂ + λ x₁, so that E|dh/dλ|² = 1 and κ = 1/(1+λ²) falls.
    """
    logs = np.array([-decay, -share * decay])
    moment = sequence.moments(logs)
    for short, long in (moment.second_moment, moment.sensitivity):
        assert long >= short * (1 - 1e-11)
    short, long = relative_sensitivity(moments(logs, sequence.autocorrelation), np.ones(2, complex))
    assert long >= short * (1 - 1e-11)


@settings(max_examples=200)
@given(
    decay=decays,
    share=st.floats(0.01, 0.999),
    angle=angles,
    horizon=st.none() | st.integers(1, 2000),
    readout=readouts,
)
def test_white_noise_makes_it_so_at_every_angle(
    decay: float, share: float, angle: float, horizon: int | None, readout: Readout
) -> None:
    sequence = Setting(Autocorrelation.from_rho(0.0), horizon, readout)
    moment = sequence.moments(np.array([complex(-decay, angle), complex(-share * decay, angle)]))
    for short, long in (moment.second_moment, moment.sensitivity):
        assert long >= short * (1 - 1e-11)


@pytest.mark.parametrize(("parametrization", "normalization"), MAPS)
@settings(max_examples=15)
@given(decay=decays, angle=angles, sequence=sequences, scale=st.floats(-100, 100))
def test_the_scale_of_b_and_of_the_input_cancels_from_kappa(
    parametrization: str,
    normalization: str,
    decay: float,
    angle: float,
    sequence: Setting,
    scale: float,
) -> None:
    """B times c multiplies E|dh/dω|² by c², of single scalars and of tied ones.

    Where γ' h takes most of λ' s away, what is left is known to the rounding of the two.
    """
    turn = 0.0 if {parametrization, normalization} & REAL else angle
    logs = np.array([complex(-decay, turn), complex(-0.1 - decay, turn)])
    squared = 10.0**scale
    moment = sequence.moments(logs)
    found = parametrize(logs, parametrization, normalization)
    louder = Setting(
        Autocorrelation(
            tuple(squared * weight for weight in sequence.autocorrelation.weights),
            sequence.autocorrelation.rhos,
        ),
        sequence.horizon,
        sequence.readout,
    ).moments(logs)
    for moved in found.derivatives.values():
        for size, scalar in ((2, [0, 1]), (1, [0, 0])):
            group = Group(size, np.array(scalar), np.arange(2), moved.eigenvalue, moved.log_gain)
            one = group_sensitivity(moment, found.log_gain, group, np.array([1.0, 2.0]))
            uncoupled = group_sensitivity(
                moment,
                found.log_gain,
                replace(group, log_gain_derivative=None),
                np.array([1.0, 2.0]),
            )
            for other in (
                group_sensitivity(moment, found.log_gain, group, squared * np.array([1.0, 2.0])),
                group_sensitivity(louder, found.log_gain, group, np.array([1.0, 2.0])),
            ):
                for relative, wanted, unit in (
                    (other.relative_sensitivity, one.relative_sensitivity, 1.0),
                    (other.sensitivity, one.sensitivity, squared),
                ):
                    parts = uncoupled.relative_sensitivity if unit == 1 else uncoupled.sensitivity
                    error = np.abs(relative / unit - wanted)
                    subnormal = 1e-300 / min(squared, 1.0)
                    assert np.all(error <= 1e-12 * wanted + 1e-14 * parts + subnormal)


@pytest.mark.parametrize(("parametrization", "normalization"), MAPS)
@settings(max_examples=10)
@given(decay=st.floats(0.02, 5), angle=angles, autocorrelation=inputs)
def test_a_long_horizon_is_an_infinite_one(
    parametrization: str,
    normalization: str,
    decay: float,
    angle: float,
    autocorrelation: Autocorrelation,
) -> None:
    """At the last step as |λ|^T falls, and in the mean over every step as 1/T."""
    turn = 0.0 if {parametrization, normalization} & REAL else angle
    logs = np.array([complex(-decay, turn)])
    found = parametrize(logs, parametrization, normalization)

    def of(horizon: int | None, readout: Readout) -> np.ndarray:
        moment = moments(logs, autocorrelation, horizon, readout)
        moved = found.derivatives.values()
        each = [
            parameter_sensitivity(moment, found.log_gain, one.eigenvalue, one.log_gain)[0]
            for one in moved
        ]
        return np.array([state_second_moment(moment, found.log_gain)[0], *each])

    # A coupled gain subtracts: its sensitivity is known to the rounding of the parts.
    parts = [
        abs(one.eigenvalue[0]) ** 2 * moments(logs, autocorrelation).sensitivity[0]
        for one in found.derivatives.values()
    ]
    scale = np.exp(2 * found.log_gain[0].real) * np.array([0.0, *parts])
    limit = of(None, "last")
    last = of(10**5, "last")
    assert np.all(np.abs(last - limit) <= 1e-10 * limit + 1e-12 * scale)
    short, long = (np.abs(of(steps, "every") - limit) for steps in (10**5, 10**7))
    assert np.all(long <= 0.02 * short + 1e-9 * limit + 1e-12 * scale)


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
