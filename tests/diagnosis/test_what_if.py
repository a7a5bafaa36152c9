from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.build import only

import memcurse_cli
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import ParameterSummary
from memcurse_cli.schema.json_codec import from_json, to_json

RANDOM = np.random.default_rng(11)
SIZE = 8


def cartesian() -> dict[str, np.ndarray]:
    """A complex diagonal network whose eigenvalues all lie in the upper half plane."""
    eigenvalues = RANDOM.uniform(0.6, 0.99, SIZE) * np.exp(1j * RANDOM.uniform(0.05, 3, SIZE))
    readin = RANDOM.normal(size=(SIZE, 2)) + 1j * RANDOM.normal(size=(SIZE, 2))
    readout = RANDOM.normal(size=(1, SIZE)) + 1j * RANDOM.normal(size=(1, SIZE))
    parts = {"lambda": eigenvalues, "B": readin, "C": readout}
    return {f"{name}_re": value.real for name, value in parts.items()} | {
        f"{name}_im": value.imag for name, value in parts.items()
    }


def as_lru(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same network as somebody would store it who trains an LRU."""
    eigenvalues = tensors["lambda_re"] + 1j * tensors["lambda_im"]
    gain = np.sqrt(1 - np.abs(eigenvalues) ** 2)
    return {
        "nu_log": np.log(-np.log(np.abs(eigenvalues))),
        "theta_log": np.log(np.angle(eigenvalues)),
        "gamma_log": np.log(gain),
        **{name: tensors[name] / gain[:, None] for name in ("B_re", "B_im")},
        **{name: tensors[name] for name in ("C_re", "C_im")},
    }


def figures(parameter: ParameterSummary) -> list[float | None]:
    relative, rounding = parameter.relative_sensitivity, parameter.rounding
    return [
        relative.min,
        relative.p99,
        parameter.sensitivity.p50,
        parameter.step_effect,
        rounding.float32,
        rounding.bfloat16,
    ]


@pytest.mark.parametrize("options", [{"horizon": math.inf}, {"horizon": 50, "rho": 0.9}])
def test_a_what_if_is_the_report_on_the_rewritten_checkpoint(options: dict[str, float]) -> None:
    tensors = cartesian()
    report = memcurse_cli.inspect(
        tensors, rewrite_as=["lru", "s4", "real-imaginary"], normalize="own", **options
    )
    assert from_json(to_json(report)) == report
    assert [one.step_size for one in report.layers[0].what_if] == [None, 0.01, None]
    found = report.layers[0].what_if[0]
    expected = only(as_lru(tensors), **options)
    assert (found.parametrization, found.gain, found.left_out) == ("lru", "own", 0)
    if options["horizon"] == 50:  # on an endless sequence no rate is known
        assert found.usable_rate.rate == pytest.approx(expected.usable_rate.rate, rel=1e-8)
    assert found.state.second_moment.p50 == pytest.approx(expected.state.second_moment.p50)
    for mine, theirs in zip(found.parameters, expected.parameters, strict=True):
        assert (mine.name, mine.direction) == (theirs.name, theirs.direction)
        assert figures(mine) == pytest.approx(figures(theirs), rel=1e-9)
    for name in ("order", "diagonality", "sharpness", "adam_residual", "output_step_effect"):
        assert getattr(found.hessian, name) == pytest.approx(
            getattr(expected.hessian, name), rel=1e-8
        )


def test_a_mixture_of_names_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="real-imaginary, polar, lru, optimal, s4"):
        memcurse_cli.inspect("no such file", rewrite_as=["lru", "gru"])
