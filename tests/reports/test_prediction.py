from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from memcurse_cli.diagnosis.prediction import predict
from memcurse_cli.reports.console import text_for
from memcurse_cli.reports.numbers import number
from memcurse_cli.reports.terminal.prediction import lines
from memcurse_cli.schema.theory import Prediction
from memcurse_cli.theory.parametrization import GAINS, PARAMETRIZATIONS

CASES = [(p, n) for p in PARAMETRIZATIONS for n in GAINS if n != "zoh" or p == "s4"]


def text(prediction: Prediction, *, width: int = 80, with_plot: bool = False) -> str:
    return text_for(partial(lines, prediction, with_plot=with_plot), None, width=width)


@pytest.mark.parametrize("with_plot", [False, True])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("parametrization", "normalization"), CASES)
def test_no_line_is_wider_than_the_screen(
    parametrization: str, normalization: str, width: int, with_plot: bool
) -> None:
    prediction = predict(
        rho=[0.0, 0.9], parametrization=parametrization, normalization=normalization
    )
    shown = text(prediction, width=width, with_plot=with_plot)
    assert max(map(len, shown.splitlines())) <= width
    for name in prediction.rows[0].parameters:
        assert name in shown


@pytest.mark.parametrize("arguments", [{"modulus": 0.5}, {"modulus": [1.0, 2.0]}])
def test_a_plot_needs_two_points(arguments: dict[str, object]) -> None:
    shown = text(predict(**arguments), with_plot=True)
    assert "A plot needs two moduli below 1" in " ".join(shown.split())


def summed(modulus: float, steps: int, *, every: bool) -> float:
    """E|dh/dλ|² under white noise, impulse by impulse."""
    lags = np.arange(steps)
    share = (steps - lags) / steps if every else 1.0
    return float(np.sum(share * lags**2 * modulus ** (2.0 * np.maximum(lags - 1, 0))))


@pytest.mark.parametrize("readout", ["last", "every"])
def test_a_horizon_that_cuts_a_memory_off_is_said_with_its_factor(readout: str) -> None:
    said = " ".join(text(predict(modulus=0.999, horizon=300, readout=readout)).split())
    factor = summed(0.999, 50_000, every=False) / summed(0.999, 300, every=readout == "every")
    assert "cuts off one time constant beyond 300 steps" in said
    assert f"E|dh/dλ|² would be {number(factor)} times as large" in said
