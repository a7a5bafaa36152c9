from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import (
    direction,
    group_verdict,
    max_learning_rate,
    step_effect,
    worst,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import Direction


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
    assert worst(["ok", "cursed", "watch"]) == "cursed"
    assert worst([]) == "ok"


@pytest.mark.parametrize(
    ("effect", "way", "limits", "verdict"),
    [
        (0.05, "destabilising", (0.1, 1), "ok"),
        (0.5, "destabilising", (0.1, 1), "watch"),
        (1.5, "destabilising", (0.1, 1), "cursed"),
        (None, "destabilising", (0.1, 1), "cursed"),
        (1.5, "scaling", (0.1, 1), "cursed"),
        (15.0, "decorrelating", (0.1, 1), "watch"),
        (0.05, "decorrelating", (0.1, 1), "ok"),
        (0.5, "scaling", (0.6, 1), "ok"),
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
        (1j * EIGENVALUE, True, "decorrelating"),
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
