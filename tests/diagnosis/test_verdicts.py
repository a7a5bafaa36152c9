from __future__ import annotations

import math

import numpy as np
import pytest

from memcurse_cli.diagnosis.report_figures import Direction
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import (
    direction,
    group_verdict,
    max_learning_rate,
    step_effect,
    worst,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.recurrences.recurrence import ParameterGroup, Recurrence


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
    rate = max_learning_rate(4e6, 1.0)
    assert rate is not None
    assert step_effect(4e6, rate) == pytest.approx(1)
    assert step_effect(None, 1e-3) is None
    assert max_learning_rate(0.0, 1.0) is None


@pytest.mark.parametrize(
    ("effect", "way", "verdict"),
    [
        (0.05, "destabilising", "ok"),
        (0.5, "destabilising", "watch"),
        (1.5, "destabilising", "cursed"),
        (None, "destabilising", "cursed"),
        (1.5, "scaling", "cursed"),
        (15.0, "decorrelating", "watch"),
        (0.05, "decorrelating", "ok"),
    ],
)
def test_group_verdict(effect: float | None, way: Direction, verdict: str) -> None:
    assert group_verdict(effect, way, Settings()) == verdict


def test_the_limits_are_the_users() -> None:
    assert group_verdict(0.5, "scaling", Settings(watch_limit=0.6)) == "ok"
    assert group_verdict(0.5, "scaling", Settings(watch_limit=0.2, cursed_limit=0.4)) == "cursed"
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
        (1j * EIGENVALUE, True, "decorrelating"),
        ((1 + 3j) * EIGENVALUE, True, "decorrelating"),  # a step size moves both
        ((3 + 1j) * EIGENVALUE, True, "scaling"),
        (0.0, False, "scaling"),  # a gain
    ],
)
def test_direction(derivative: complex, stable: bool, way: str) -> None:
    assert direction(*recurrence(derivative, stable=stable)) == way


def test_direction_of_a_real_eigenvalue() -> None:
    layer = recurrence(-math.exp(-0.01), stable=True, log_eigenvalue=-0.01 + 0j)
    assert direction(*layer) == "scaling"


def test_worst() -> None:
    assert worst(["ok", "cursed", "watch"]) == "cursed"
    assert worst([]) == "ok"
