from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from memcurse_cli.diagnosis.prediction import predict
from memcurse_cli.reports.console import text_for
from memcurse_cli.reports.numbers import number
from memcurse_cli.reports.terminal.prediction import lines, to_text
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.theory import Prediction
from memcurse_cli.theory.parametrization import NORMALIZATIONS, PARAMETRIZATIONS

FILE = Path("prediction.txt")
CASES = [(p, n) for p in PARAMETRIZATIONS for n in NORMALIZATIONS if n != "zoh" or p == "s4"]


def text(prediction: Prediction, *, width: int = 80, with_plot: bool = False) -> str:
    return to_text(prediction, with_plot=with_plot, file=FILE, width=width)


def in_ascii(prediction: Prediction, *, with_plot: bool) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    return text_for(partial(lines, prediction, with_plot), stream, width=80)


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


@pytest.mark.parametrize("with_plot", [False, True])
def test_ascii_is_enough(with_plot: bool) -> None:
    prediction = predict(
        autocorrelation="0.3:0,1:0.9", parametrization="lru", normalization="lru", angle=1.0
    )
    shown = in_ascii(prediction, with_plot=with_plot)
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 80
    assert "\\u" not in shown  # every character has a spelling


def test_every_number_of_a_row_is_in_the_table() -> None:
    shown = text(predict(modulus=0.9, rho=0.0))
    line = next(line for line in shown.splitlines() if line.split()[:1] == ["0.9"])
    assert line.split()[1:] == ["9.49", "5.26", "264", "264", "50.1"]


def test_parameters_with_the_same_numbers_share_columns() -> None:
    assert "ω = lambda_re, lambda_im" in text(predict(rho=0.5))
    polar = text(predict(rho=0.5, parametrization="polar"), width=100)
    assert "ω = nu " in polar
    assert "ω = theta" in polar


def test_a_modulus_near_one_shows_what_is_left() -> None:
    shown = text(predict(time_constant=[3.0, 1e4, 1e15]))
    assert "0.716531" in shown
    assert "1-1e-4" in shown
    assert "1-1e-15" in shown


def test_each_input_and_angle_has_its_own_table() -> None:
    shown = text(predict(rho=[0.0, 0.5], angle=[0.0, 1.0], modulus=0.5))
    for heading in ("ρ = 0, angle 0", "ρ = 0, angle 1", "ρ = 0.5, angle 0", "ρ = 0.5, angle 1"):
        assert f"\n{heading}\n" in shown


def test_the_bars_follow_the_logarithm_of_the_sensitivity() -> None:
    shown = text(predict(rho=0.5))
    bars = [line.count("▇") for line in shown.splitlines() if "▇" in line]
    assert len(bars) == 13
    assert bars == sorted(bars)
    assert bars[-1] > 10 * bars[0]


def test_divergence_is_said_and_explained() -> None:
    shown = text(predict(modulus=[0.5, 1.0]))
    assert "divergent" in shown
    assert "no stationary state" in " ".join(shown.split())
    exploding = " ".join(text(predict(modulus=2.0, horizon=1000)).split())
    assert "leaves the range of a float" in exploding
    assert "inf" not in exploding.replace("infinite", "")
    assert "nan" not in exploding
    assert "divergent" not in text(predict(modulus=1.0, horizon=10)).replace("1  divergent", "")


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ({"time_constant": 1e6}, "This is the curse of memory"),
        ({"time_constant": 300.0}, "Memory this long needs care"),
        (
            {"time_constant": 1e6, "parametrization": "lru", "normalization": "lru"},
            "Memory this long can be learnt",
        ),
    ],
)
def test_the_meaning_depends_on_what_a_step_does(
    arguments: dict[str, object], verdict: str
) -> None:
    shown = " ".join(text(predict(**arguments)).split())  # type: ignore[arg-type]  # a mixed dict
    assert verdict in shown
    assert "one optimizer step of 0.001 moves the state by" in shown


def test_the_bound_on_the_step_is_one_that_keeps_its_promise() -> None:
    """√κ = τ/√2 for white input, so 10 % is reached at a step of 0.1 √2 / τ."""
    shown = " ".join(text(predict(time_constant=1e6)).split())
    assert "moves the state by 70700 %" in shown
    assert "steps below 1.4e-7 keep that under 10 %" in shown


def test_the_plot_rises_and_names_its_curves() -> None:
    shown = text(predict(rho=0.5), with_plot=True)
    assert "a  E|h|²" in shown
    assert "b  E|dh/dλ|² = E|dh/dω|² of lambda_re, lambda_im" in shown
    ends = [line[-1] for line in shown.splitlines() if line.endswith((" a", " b"))]
    assert ends == ["b", "a"]  # the sensitivity ends above the state
    assert "κ" not in shown  # a plot stands in for the table


def test_several_inputs_share_one_plot_per_quantity() -> None:
    prediction = predict(rho=[0.0, 0.9], parametrization="lru", angle=1.0)
    shown = text(prediction, with_plot=True).splitlines()
    for title in ("E|dh/dλ|²", "E|dh/dω|² of nu_log", "E|dh/dω|² of theta_log"):
        assert shown.count(title) == 1
    assert sum(line.strip() == "a  ρ = 0" for line in shown) == 3
    assert sum(line.strip() == "b  ρ = 0.9" for line in shown) == 3


def test_what_is_zero_throughout_is_said_instead_of_drawn() -> None:
    prediction = predict(rho=[0.0, 0.5], parametrization="lru", angle=0.0)
    shown = text(prediction, with_plot=True)
    assert "E|dh/dω|² of theta_log is 0 and not drawn." in shown
    assert "\nE|dh/dω|² of theta_log\n" not in shown


@pytest.mark.parametrize("arguments", [{"modulus": 0.5}, {"modulus": [1.0, 2.0]}])
def test_a_plot_needs_two_points(arguments: dict[str, object]) -> None:
    shown = text(predict(**arguments), with_plot=True)  # type: ignore[arg-type]  # a mixed dict
    assert "A plot needs two moduli below 1" in " ".join(shown.split())


def test_json_keeps_the_settings_beside_the_rows() -> None:
    found = to_json(predict(rho=0.5, modulus=0.5, horizon=7).document)
    assert list(found) == ["schema", "settings", "rows", "ring"]
    assert found["settings"] == {
        "parametrization": "real-imaginary",
        "normalization": "none",
        "step_size": None,
        "horizon": 7,
        "readout": None,
        "autocorrelation": None,
    }


def test_gates_are_told_how_to_start() -> None:
    """log(T - 1) gives the λ of the row, with T = 1/(1-λ) and not τ; log T, as printed, T/(1+T)."""
    gates = {"parametrization": "sigmoid-gate", "normalization": "gru"}
    page = " ".join(to_text(predict(time_constant=[10, 1000], **gates)).split())
    assert "τ from 10.0 to 1000 steps" in page
    assert "T = 1/(1-λ) uniform from 10.5 to 1000" in page
    assert "give these λ: 2.25 to 6.91" in page
    assert "gives λ = T/(1+T): 2.35 to 6.91" in page
    one = " ".join(to_text(predict(time_constant=10, **gates)).split())
    assert "log(T - 1) = 2.25" in one
    assert "log T = 2.35" in one
    assert "Chrono" not in to_text(predict(time_constant=1.2, **gates))
    assert "Chrono" not in to_text(predict(time_constant=10))


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


def test_a_horizon_beyond_every_memory_goes_unsaid() -> None:
    for prediction in (
        predict(modulus=0.99, horizon=300),
        predict(modulus=0.999),
        predict(modulus=1.01, horizon=300),
    ):
        assert "horizon matters" not in text(prediction)


def test_the_horizon_is_weighed_at_the_input_of_each_table() -> None:
    mixture = "0.332:0,0.044:0.997"
    alone = text(predict(modulus=0.999, horizon=300, autocorrelation=mixture))
    assert "horizon matters" in " ".join(alone.split())
    several = " ".join(
        text(predict(rho=[0, 0.9], modulus=[0.5, 0.999, 0.9999], horizon=300)).split()
    )
    assert several.count("cuts off 2 time constants") == 2
