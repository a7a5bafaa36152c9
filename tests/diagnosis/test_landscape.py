"""`memcurse landscape`: what is compared, and what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from end_to_end.command import assert_refused, memcurse

from memcurse_cli.diagnosis.prediction import COMPARED, landscape
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.terminal.landscape import narrowest
from memcurse_cli.reports.terminal.steps import title


def test_the_usual_parametrisations_are_compared() -> None:
    report = landscape(modulus=0.999, angle=0.3, learning_rate=1e-3)
    assert {view.parametrization: view.gain for view in report.views} == COMPARED
    assert report.time_constant == pytest.approx(-1 / np.log(0.999))
    basins = {title(view): narrowest(view) for view in report.views}
    widths = {name: one.basin for name, one in basins.items() if one is not None}
    # The map that knows the decay and the angle apart is wider, that of S4 as its angle allows.
    assert widths["lru, γ own"] > 4 * widths["polar"]
    for view in report.views:
        for one in view.parameters:
            assert one.steps_across == pytest.approx(one.basin / 1e-3)
            # A basin that κ alone would give, where the loss stays a parabola.
            assert one.basin == pytest.approx(np.sqrt(0.1 / one.relative_sensitivity), rel=0.5)
            assert len(one.loss) == len(report.offsets)


def test_a_memory_given_by_its_time_constant_keeps_its_digits() -> None:
    report = landscape(time_constant=1e9, parametrizations=["lru"])
    (nu, theta, gamma) = report.views[0].parameters
    assert nu.relative_sensitivity == pytest.approx(0.5)
    assert nu.basin == pytest.approx(0.4055, rel=1e-3)
    assert (theta.sensitivity, theta.basin, theta.max_stable_lr) == (0, None, None)
    assert gamma.relative_sensitivity == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"modulus": 1.0}, "--horizon"),
        ({"modulus": 0.9, "time_constant": 3.0}, "one of the two"),
        ({"level": 0.0}, "level"),
        ({"start_modulus": 1.0}, "--from: .*--horizon"),
        ({"start_angle": 1.0}, "--from-angle: .*give --from"),
        ({"parametrizations": ["sigmoid"]}, "real-imaginary"),
        ({"normalization": "gru"}, "none, own, coupled"),
        ({"normalization": "own"}, "tied to omega_nu"),
        ({"readout": "every"}, "--horizon"),
        ({"modulus": 1.1, "horizon": 9, "parametrizations": ["lru"]}, "cannot reach"),
    ],
)
def test_what_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        landscape(**given)


def test_the_way_from_a_start() -> None:
    """Figure 7's: the angle of a polar student starts where the loss is flat."""
    report = landscape(modulus=0.99, angle=0.0314, start_modulus=0.99, start_angle=0.785)
    ways = {
        (view.parametrization, one.name): one for view in report.views for one in view.parameters
    }
    theta, slow = ways["polar", "theta"], ways["lru", "theta_log"]
    assert (theta.start, theta.adam_steps) == (0.785, pytest.approx(753.6))
    assert theta.sgd_steps == pytest.approx(0.7536 / (theta.max_stable_lr * theta.gradient))
    assert slow.sgd_steps < 0.01 * theta.sgd_steps
    assert ways["polar", "nu"].sgd_steps == 0
    away = landscape(modulus=0.99, start_modulus=0.5, parametrizations=["lru"])
    nu = away.views[0].parameters[0]  # away from which the gradient leads
    assert (nu.value - nu.start) * nu.gradient > 0
    assert nu.sgd_steps is None
    assert nu.adam_steps == pytest.approx((nu.start - nu.value) / 1e-3)


def test_the_figure_is_written_whole_or_refused(tmp_path: Path) -> None:
    target = tmp_path / "landscape.svg"
    done = memcurse("landscape", "--angle", "0.1", "--plot", target)
    assert (done.returncode, done.stderr) == (0, "")
    texts = [element.text for element in ElementTree.parse(target).iter() if element.text]
    for name in ("lru, γ own", "omega_theta", "log_A_real"):
        assert name in texts
    assert_refused(memcurse("landscape", "--plot", tmp_path / "landscape.txt"), ".svg")
