"""The usable learning rate: what it is made of, when it is refused, and what it does to a verdict.

How well it agrees with training is measured in benchmarks/calibration and shown in
docs/verdict.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from memcurse_cli import inspect
from memcurse_cli.diagnosis.verdicts import DIVERGENCE_EFFECT, FACTOR, STALL_EFFECT
from memcurse_cli.diagnosis.wording import rounded_down
from memcurse_cli.schema.report import LayerReport, UsableRate

HORIZON = 100


def complex_diagonal(modulus: float) -> dict[str, Any]:
    eigenvalue = modulus * np.exp(0.7j)
    return {
        "A_re": np.array([eigenvalue.real]),
        "A_im": np.array([eigenvalue.imag]),
        "B_re": np.ones((1, 1)),
        "B_im": np.zeros((1, 1)),
        "C_re": np.ones((1, 1)),
        "C_im": np.zeros((1, 1)),
        "D": np.zeros(1),
    }


def lru(decay: float, angle: float) -> dict[str, Any]:
    return {
        "nu_log": np.log([decay]),
        "theta_log": np.log([angle]),
        "gamma_log": np.log([math.sqrt(-math.expm1(-2 * decay))]),
        **{name: np.ones((1, 1)) for name in ("B_re", "B_im", "C_re", "C_im")},
        "D": np.zeros(1),
    }


def only(state: dict[str, Any], **options: Any) -> LayerReport:
    (layer,) = inspect(state, horizon=HORIZON, **options).layers
    return layer


def usable(state: dict[str, Any], **options: Any) -> UsableRate:
    rate = only(state, **options).usable_rate
    assert rate is not None
    return rate


def simulated_relative_sensitivity(eigenvalue: complex) -> float:
    """E|s|²/E|h|² at the last step under white noise, summed impulse by impulse."""
    lags = np.arange(HORIZON)
    moduli = abs(eigenvalue) ** lags
    slopes = lags * abs(eigenvalue) ** np.maximum(lags - 1, 0)
    return float(np.sum(slopes**2) / np.sum(moduli**2))


@pytest.mark.parametrize("modulus", [0.9, 0.99, 1.01])
def test_a_complex_eigenvalue_diverges_at_the_rate_that_its_sensitivity_sets(
    modulus: float,
) -> None:
    found = usable(complex_diagonal(modulus))
    kappa = simulated_relative_sensitivity(complex(modulus))
    assert found.limited_by == "divergence"
    assert found.rate == pytest.approx(DIVERGENCE_EFFECT / (2**0.75 * math.sqrt(kappa)), rel=1e-9)
    dense = usable({"A": np.array([[modulus]]), "B": np.ones((1, 1)), "C": np.ones((1, 1))})
    assert dense.rate == pytest.approx(DIVERGENCE_EFFECT / math.sqrt(kappa), rel=1e-9)


def test_a_stable_parametrisation_stalls_where_the_output_changes_by_itself() -> None:
    layer = only(lru(0.01, 1.0), learning_rate=1e-4)
    assert layer.hessian is not None
    assert layer.hessian.output_step_effect is not None
    assert layer.usable_rate == UsableRate(
        STALL_EFFECT * 1e-4 / layer.hessian.output_step_effect, "stall"
    )
    other = usable(lru(0.01, 1.0), learning_rate=1e-2).rate  # whatever rate was asked about
    assert other == pytest.approx(layer.usable_rate.rate, rel=1e-12)


def test_what_was_not_measured_is_refused() -> None:
    gates = {"weight_ih_l0": np.ones((12, 2)), "weight_hh_l0": np.ones((12, 4)) / 9}
    biases = {"bias_ih_l0": np.zeros(12), "bias_hh_l0": np.zeros(12)}
    found = usable({**gates, **biases})
    assert found.rate is None
    assert found.reason is not None
    assert "input" in found.reason
    (endless,) = inspect(complex_diagonal(0.9)).layers
    assert endless.usable_rate is not None
    assert "--horizon" in (endless.usable_rate.reason or "")


def test_a_rate_that_training_diverges_at_is_cursed_and_told() -> None:
    state = complex_diagonal(0.99)
    rate = usable(state).rate
    assert rate is not None
    calm, near, above = (
        only(state, learning_rate=share * rate, watch_limit=1e6, cursed_limit=1e6)
        for share in (0.3, 0.5, 1.1)
    )
    assert [layer.verdict for layer in (calm, near, above)] == ["ok", "watch", "cursed"]
    for layer, severity in ((near, "warning"), (above, "error")):
        (finding,) = [one for one in layer.findings if one.code == "MC207"]
        assert finding.severity == severity
    assert "MC207" not in {one.code for one in calm.findings}


def test_advice_is_the_measured_rate_where_it_says_more_than_the_step_effect() -> None:
    state = complex_diagonal(0.99)
    rate = usable(state).rate
    assert rate is not None
    report = inspect(state, horizon=HORIZON, learning_rate=2 * rate)
    assert report.sentence.endswith(f"stay below {rounded_down(rate)}")
    turning = lru(0.01, 1.0)
    slow = usable(turning).rate
    assert slow is not None
    report = inspect(turning, horizon=HORIZON, learning_rate=2 * slow)
    assert report.layers[0].verdict == "watch"
    assert report.sentence.endswith(f"stay below {rounded_down(slow / FACTOR)}")


def test_steps_that_only_turn_angles_are_judged_by_what_the_output_bears() -> None:
    """At a rate that training bears a step effect above 10 % is no reason to watch."""
    state = lru(0.001, 1.0)
    rate = usable(state).rate
    assert rate is not None
    calm = only(state, learning_rate=rate / 4)
    (angle,) = [group for group in calm.parameters if group.name == "theta_log"]
    assert angle.direction == "decorrelating"
    assert angle.step_effect is not None
    assert angle.step_effect > 0.1
    assert (angle.verdict, calm.verdict) == ("ok", "ok")
    above = only(state, learning_rate=2 * rate)
    assert {group.verdict for group in above.parameters} == {"ok", "watch"}
    without_output = {key: value for key, value in state.items() if key[0] not in "CD"}
    assert only(without_output, learning_rate=rate / 4).verdict == "watch"


@pytest.mark.parametrize(("rate", "said"), [(1e-3, "a rate of about "), (0.5, "or stay below ")])
def test_the_sentence_gives_the_lowest_rate_of_all_layers(rate: float, said: str) -> None:
    """A step does most to the state of the second layer, whose output hardly sees it."""
    calm, turning = lru(0.02, 0.1), lru(0.002, 0.1)
    unseen = {"C_re": np.array([[1.0, 0.1]]), "C_im": np.array([[1.0, 0.1]]), "D": np.zeros(1)}
    units = {name: np.concatenate((calm[name], turning[name])) for name in calm}
    states = [lru(0.02, 0.3), units | unseen]
    alone = [inspect(state, horizon=1024, learning_rate=rate) for state in states]
    state = {f"{i}.{name}": value for i in (0, 1) for name, value in states[i].items()}
    both = inspect(state, horizon=1024, learning_rate=rate)
    rates = [float(report.sentence.split(said)[1]) for report in alone]
    assert rates[0] < rates[1]
    assert float(both.sentence.split(said)[1]) == min(rates)
    worst = max(
        both.layers, key=lambda layer: max(group.step_effect or 0.0 for group in layer.parameters)
    )
    assert worst is both.layers[1]
    assert worst.name in both.sentence
