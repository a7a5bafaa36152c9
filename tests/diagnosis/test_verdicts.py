"""From sensitivities to verdicts and to the usable learning rate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diagnosis.build import codes, finding, only

from memcurse_cli import inspect
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import (
    DIVERGENCE_EFFECT,
    STALL_EFFECT,
    direction,
    group_verdict,
    max_learning_rate,
    step_effect,
    worst,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import Direction
from memcurse_cli.schema.report import UsableRate


def recurrence(
    derivative: complex, *, stable: bool, log_eigenvalue: complex = -0.01 + 1j
) -> tuple[Recurrence, ParameterGroup]:
    """One eigenvalue and one scalar that moves it."""
    group = ParameterGroup(
        name="omega",
        tensor="omega",
        values=np.zeros(1),
        dtype="float32",
        scalar=np.zeros(1, np.intp),
        eigenvalue=np.zeros(1, np.intp),
        eigenvalue_derivative=np.array([derivative]),
    )
    layer = Recurrence(
        name="layer",
        family="test",
        tensors=("omega",),
        log_eigenvalues=np.array([log_eigenvalue]),
        log_gain=np.zeros(1, complex),
        parameters=(group,),
        stable_by_construction=stable,
    )
    return layer, group


def test_step_effect_and_the_rate_that_reaches_the_limit_are_inverse() -> None:
    effect = step_effect(4e6, 1e-3)
    assert effect == pytest.approx(2)
    assert step_effect(4e6, max_learning_rate(4e6, 1.0)) == pytest.approx(1)
    assert step_effect(None, 1e-3) is None
    assert max_learning_rate(0.0, 1.0) is None
    assert worst(["ok", "cursed", "watch"]) == "cursed"
    assert worst([]) == "ok"


@pytest.mark.parametrize(
    ("effect", "way", "limits", "verdict"),
    [
        (0.05, "destabilising", (0.1, 1), "ok"),
        (0.5, "destabilising", (0.1, 1), "watch"),
        (None, "destabilising", (0.1, 1), "cursed"),
        (1.5, "scaling", (0.1, 1), "cursed"),
        (15.0, "decorrelating", (0.1, 1), "watch"),
        (0.05, "decorrelating", (0.1, 1), "ok"),
        (0.5, "scaling", (0.2, 0.4), "cursed"),
    ],
)
def test_group_verdict(
    effect: float | None, way: Direction, limits: tuple[float, float], verdict: str
) -> None:
    assert group_verdict(effect, way, Settings(watch_limit=limits[0], cursed_limit=limits[1])) == (
        verdict
    )
    with pytest.raises(UsageError, match="not in order"):
        Settings(watch_limit=2, cursed_limit=1)


EIGENVALUE = np.exp(-0.01 + 1j)


@pytest.mark.parametrize(
    ("derivative", "stable", "way"),
    [
        (1.0, False, "destabilising"),  # real part
        (1j, False, "destabilising"),  # imaginary part
        (EIGENVALUE, False, "destabilising"),  # modulus
        (1j * EIGENVALUE, False, "decorrelating"),  # angle
        (EIGENVALUE, True, "scaling"),  # modulus that cannot pass 1
        ((1 + 3j) * EIGENVALUE, True, "decorrelating"),  # a step size moves both
        ((3 + 1j) * EIGENVALUE, True, "scaling"),
        (0.0, False, "scaling"),  # a gain
    ],
)
def test_direction(derivative: complex, stable: bool, way: str) -> None:
    assert direction(*recurrence(derivative, stable=stable)) == way
    real = recurrence(-math.exp(-0.01), stable=True, log_eigenvalue=-0.01 + 0j)
    assert direction(*real) == "scaling"


@pytest.mark.parametrize(
    ("decay", "angle_only", "rate", "way"),
    [
        (5e-4, False, 0.05, "destabilising"),  # |λ| from 0.9995 to 1.00075
        (5e-4, False, 0.01, "decorrelating"),
        (-1e-3, False, 1e-3, "destabilising"),  # past 1 already, and it grows
        (5e-4, True, 0.05, "decorrelating"),  # as e^(iθ) does, whatever the step
    ],
)
def test_a_turn_is_judged_by_a_step_of_the_learning_rate(
    decay: float, angle_only: bool, rate: float, way: str
) -> None:
    """Im λ of a real λ leaves |λ| as it is to first order, and |λ'|² = λ² + lr²."""
    layer, group = recurrence(1j, stable=False, log_eigenvalue=complex(-decay))
    group = replace(group, keeps_stable=angle_only)
    assert direction(layer, group, rate) == way


HORIZON = 100


def complex_diagonal(modulus: float) -> dict[str, Any]:
    eigenvalue = modulus * np.exp(0.7j)
    return {
        "A_re": np.array([eigenvalue.real]),
        "A_im": np.array([eigenvalue.imag]),
        **{name: np.ones((1, 1)) for name in ("B_re", "C_re")},
        **{name: np.zeros((1, 1)) for name in ("B_im", "C_im")},
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


def usable(state: dict[str, Any], **options: Any) -> UsableRate:
    return only(state, horizon=HORIZON, **options).usable_rate


@pytest.mark.parametrize("modulus", [0.9, 1.01])
def test_a_complex_eigenvalue_diverges_at_the_rate_that_its_sensitivity_sets(
    modulus: float,
) -> None:
    lags = np.arange(HORIZON)
    slopes, moduli = lags * modulus ** np.maximum(lags - 1, 0), modulus**lags
    kappa = np.sum(slopes**2) / np.sum(moduli**2)
    found = usable(complex_diagonal(modulus))
    assert found.limited_by == "divergence"
    assert found.rate == pytest.approx(DIVERGENCE_EFFECT / (2**0.75 * math.sqrt(kappa)), rel=1e-9)
    dense = usable({"A": np.array([[modulus]]), "B": np.ones((1, 1)), "C": np.ones((1, 1))})
    assert dense.rate == pytest.approx(DIVERGENCE_EFFECT / math.sqrt(kappa), rel=1e-9)


def test_a_stable_parametrisation_stalls_where_the_output_changes_by_itself() -> None:
    layer = only(lru(0.01, 1.0), horizon=HORIZON, learning_rate=1e-4)
    assert layer.usable_rate == UsableRate(
        STALL_EFFECT * 1e-4 / layer.hessian.output_step_effect, "stall"
    )
    other = usable(lru(0.01, 1.0), learning_rate=1e-2).rate  # whatever rate was asked about
    assert other == pytest.approx(layer.usable_rate.rate, rel=1e-12)


def test_what_was_not_measured_is_refused() -> None:
    gates = {"weight_ih_l0": np.ones((12, 2)), "weight_hh_l0": np.ones((12, 4)) / 9}
    biases = {"bias_ih_l0": np.zeros(12), "bias_hh_l0": np.zeros(12)}
    assert "input" in usable({**gates, **biases}).reason
    assert "--horizon" in only(complex_diagonal(0.9)).usable_rate.reason


def test_a_rate_that_training_diverges_at_is_cursed_and_told() -> None:
    state = complex_diagonal(0.99)
    rate = usable(state).rate
    calm, near, above = (
        only(state, horizon=HORIZON, learning_rate=share * rate, watch_limit=1e6, cursed_limit=1e6)
        for share in (0.3, 0.5, 1.1)
    )
    assert [layer.verdict for layer in (calm, near, above)] == ["ok", "watch", "cursed"]
    for layer, severity in ((near, "warning"), (above, "error")):
        assert finding(layer, "MC207").severity == severity
    assert "MC207" not in codes(calm)


def test_steps_that_only_turn_angles_are_judged_by_what_the_output_bears() -> None:
    """At a rate that training bears a step effect above 10 % is no reason to watch."""
    state = lru(0.001, 1.0)
    rate = usable(state).rate
    calm = only(state, horizon=HORIZON, learning_rate=rate / 4)
    (angle,) = [group for group in calm.parameters if group.name == "theta_log"]
    assert angle.direction == "decorrelating"
    assert angle.step_effect > 0.1
    assert (angle.verdict, calm.verdict) == ("ok", "ok")
    assert angle.max_lr == pytest.approx(rate)
    above = only(state, horizon=HORIZON, learning_rate=2 * rate)
    assert {group.verdict for group in above.parameters} == {"ok", "watch"}
    without_output = {key: value for key, value in state.items() if key[0] not in "CD"}
    silent = only(without_output, horizon=HORIZON, learning_rate=rate / 4)
    assert silent.verdict == "watch"


@pytest.mark.parametrize(("rate", "said"), [(1e-3, "a rate of about "), (0.5, "or stay below ")])
def test_the_sentence_gives_the_lowest_rate_of_all_layers(rate: float, said: str) -> None:
    """A step does most to the state of the second layer, whose output hardly sees it."""
    calm, turning = lru(0.02, 0.1), lru(0.002, 0.1)
    unseen = {"C_re": np.array([[1.0, 0.1]]), "C_im": np.array([[1.0, 0.1]]), "D": np.zeros(1)}
    units = {name: np.concatenate((calm[name], turning[name])) for name in calm}
    states = [lru(0.02, 0.3), units | unseen]
    alone = [inspect(state, horizon=1024, learning_rate=rate) for state in states]
    joined = {f"{i}.{name}": value for i in (0, 1) for name, value in states[i].items()}
    both = inspect(joined, horizon=1024, learning_rate=rate)
    rates = [float(report.sentence.split(said)[1]) for report in alone]
    assert rates[0] < rates[1]
    assert float(both.sentence.split(said)[1]) == min(rates)
    effects = [max(group.step_effect for group in layer.parameters) for layer in both.layers]
    assert effects[1] > effects[0]
    assert both.layers[1].name in both.sentence
