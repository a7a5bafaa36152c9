"""What is kept of a report is what the report says."""

from __future__ import annotations

import numpy as np
import pytest
from end_to_end.command import SAMPLES

from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.tracking.work import take_snapshot

NAMES = ("lru", "complex_diagonal_rnn", "dense_linear_rnn", "gru")


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_the_reports(name: str) -> None:
    report = inspect(SAMPLES / f"{name}.safetensors", values=True)
    snapshot = take_snapshot(report)
    assert (snapshot.verdict, snapshot.sentence) == (report.verdict, report.sentence)
    for kept, layer in zip(snapshot.layers, report.layers, strict=True):
        for spread, known in (
            (kept.modulus, layer.eigenvalues.modulus),
            (kept.time_constant, layer.eigenvalues.time_constant),
        ):
            for level in ("min", "p50", "p90", "p99", "max", "divergent"):
                assert getattr(spread, level) == getattr(known, level)
        assert kept.second_moment == layer.state.second_moment
        assert (kept.hessian, kept.usable_rate) == (layer.hessian, layer.usable_rate)
        assert kept.findings == tuple(one.code for one in layer.findings)
        for group, parameter in zip(kept.groups, layer.parameters, strict=True):
            assert group.relative_sensitivity == parameter.relative_sensitivity
            assert group.step_effect == parameter.step_effect


@pytest.mark.parametrize("name", NAMES)
def test_the_tenth_percentile_and_the_median_are_numpys(name: str) -> None:
    report = inspect(SAMPLES / f"{name}.safetensors", values=True)
    snapshot = take_snapshot(report)
    everything = []
    for kept, layer in zip(snapshot.layers, report.layers, strict=True):
        modulus = np.abs([complex(*value) for value in layer.eigenvalues.values or ()])
        everything.append(modulus)
        assert kept.modulus.p10 == pytest.approx(np.quantile(modulus, 0.1), rel=1e-13)
        low = np.quantile(-1 / np.log(modulus[modulus < 1]), 0.1)
        if kept.unstable == 0:
            assert kept.time_constant.p10 == pytest.approx(low, rel=1e-11)
    modulus = np.concatenate(everything)
    time_constants = np.full(modulus.shape, np.inf)
    time_constants[modulus < 1] = -1 / np.log(modulus[modulus < 1])
    median = snapshot.summary.time_constant_median
    assert median == pytest.approx(np.median(time_constants), rel=1e-11)


def test_a_median_of_infinite_time_constants_is_none() -> None:
    unstable = {"A_re": np.array([1.1, 1.2, 0.5]), "A_im": np.zeros(3)}
    with_weights = {**unstable, **{name: np.ones((3, 1)) for name in ("B_re", "B_im")}}
    with_weights |= {name: np.ones((1, 3)) for name in ("C_re", "C_im")}
    summary = take_snapshot(inspect(with_weights, values=True, horizon=50)).summary
    assert summary.unstable == 2
    assert summary.modulus == pytest.approx(1.2)
    assert (summary.time_constant_median, summary.time_constant) == (None, None)


def test_eigenvalues_of_zero_have_no_time_constant_to_speak_of() -> None:
    state = {"nu_log": np.full(4, 7.0), "theta_log": np.zeros(4)}  # |λ| = exp(-1097) = 0
    snapshot = take_snapshot(inspect(state, values=True))
    assert snapshot.layers[0].modulus.p10 == 0
    assert snapshot.summary.time_constant_median == pytest.approx(0, abs=1e-2)


def test_the_worst_group_decides_the_verdict() -> None:
    dense = take_snapshot(inspect(SAMPLES / "dense_linear_rnn.safetensors", values=True))
    layer = inspect(SAMPLES / "dense_linear_rnn.safetensors").layers[0]
    assert layer.dense is not None
    assert dense.summary.worst is not None
    assert dense.summary.worst.relative_sensitivity == layer.dense.relative_sensitivity
    kappa, effect = dense.summary.worst.relative_sensitivity, dense.summary.worst.step_effect
    assert kappa is not None
    assert effect == pytest.approx(1e-3 * kappa**0.5)
    lru = take_snapshot(inspect(SAMPLES / "lru.safetensors", values=True))
    assert lru.summary.worst is not None
    assert (lru.summary.worst.layer, lru.summary.worst.name) == ("lru", "theta_log")
    endless = take_snapshot(
        inspect({"A_re": np.array([1.0]), "A_im": np.zeros(1), **_unit()}, values=True)
    )
    assert endless.summary.worst is not None
    assert endless.summary.worst.step_effect is None  # diverges


def _unit() -> dict[str, np.ndarray]:
    return {
        "B_re": np.ones((1, 1)),
        "B_im": np.ones((1, 1)),
        "C_re": np.ones((1, 1)),
        "C_im": np.ones((1, 1)),
    }
