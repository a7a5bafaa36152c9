"""From sensitivities to verdicts and to the usable learning rate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from diagnosis.build import finding, only
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.diagnosis.diagnose import diagnose
from memcurse_cli.diagnosis.model import sentence
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import (
    DIVERGENCE_EFFECT,
    RULES,
    STALL_EFFECT,
    Borne,
    direction,
)
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.families.rewriting import Rewriting
from memcurse_cli.schema.report import WITHIN, UsableRate
from memcurse_cli.wording import about


def recurrence(
    derivative: complex, *, stable: bool, log_eigenvalue: complex = -0.01 + 1j
) -> tuple[Recurrence, ParameterGroup]:
    """One eigenvalue and one scalar that moves it."""
    group = ParameterGroup(
        name="omega",
        tensor="omega",
        size=1,
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
    stall = STALL_EFFECT * 1e-4 / layer.hessian.output_step_effect
    assert layer.usable_rate == UsableRate(stall, "stall", None, stall * 0.11, stall * 3)
    other = usable(lru(0.01, 1.0), learning_rate=1e-2).rate  # whatever rate was asked about
    assert other == pytest.approx(layer.usable_rate.rate, rel=1e-12)


def dense(matrix: NDArray[np.float64]) -> dict[str, Any]:
    size = len(matrix)
    return {"A": matrix, "B": np.ones((size, 1)), "C": np.ones((1, size))}


MAMBA = {"A_log": np.zeros((8, 4)), "D": np.ones(8), "dt_proj.bias": np.zeros(8)}
MAMBA |= {"dt_proj.weight": np.ones((8, 2)), "x_proj.weight": np.ones((10, 8))}
WITHOUT_OUTPUT = {name: array for name, array in lru(0.01, 1.0).items() if name[0] not in "BCD"}


@pytest.mark.parametrize(
    ("state", "horizon", "reason"),
    [
        (torch.nn.LSTM(2, 4, proj_size=2).state_dict(), HORIZON, "gates see the hidden state"),
        ({f"mixer.{name}": array for name, array in MAMBA.items()}, HORIZON, "inputs move"),
        ({"W_rec": 0.1 * np.eye(4), "W_in": np.ones((4, 2))}, HORIZON, "an activation between"),
        (lru(0.01, 1.0), math.inf, "give --horizon T"),
        (WITHOUT_OUTPUT, HORIZON, "neither B nor C"),
        (dense(3 * np.eye(3)), 1000, "explodes within the horizon"),
        (dense(np.eye(8, k=-1)), HORIZON, "nearly parallel"),
        (dense(0.5 * np.eye(3)), 1, "no entry of the matrix changes the output"),
    ],
)
def test_what_was_not_measured_is_not_judged_and_says_why(
    state: dict[str, Any], horizon: float, reason: str
) -> None:
    report = inspect(state, horizon=horizon)
    (layer,) = report.layers
    assert layer.verdict == "not_judged"
    assert report.verdict in ("not_judged", "watch")  # a short memory is to be watched
    assert reason in layer.not_judged == layer.usable_rate.reason == report.usable_rate.reason
    assert "The layer was not judged: " in report.sentence
    assert reason in report.sentence
    assert " 0 %" not in report.sentence
    assert layer.cure is None


def moved(network: torch.nn.Module, far: float) -> dict[str, Any]:
    """Weights that are no longer those of an initialiser."""
    random = np.random.default_rng(0)
    state = {name: value.double().numpy() for name, value in network.state_dict().items()}
    return {
        name: value + far * random.standard_normal(value.shape) for name, value in state.items()
    }


@pytest.mark.parametrize("cell", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_a_cell_bears_the_share_that_was_measured_of_the_rate_that_ends_its_stability(
    cell: type[torch.nn.RNNBase],
) -> None:
    torch.manual_seed(0)
    network, family = cell(2, 16), {"RNN": "tanh"}.get(cell.__name__, cell.__name__)
    for state, question in ((network.state_dict(), "initial"), (moved(network, 0.05), "trained")):
        layer, rule = only(state, horizon=HORIZON), RULES[f"{question} {family}"]
        found = layer.usable_rate
        if isinstance(rule, Borne):
            bore = f"{about(rule.rate)} ({about(rule.low)} to {about(rule.high)})"
            assert f"{question} {family} networks bore {bore}" in found.reason == layer.not_judged
            continue
        assert found.rate == pytest.approx(rule.share * layer.simulation.stability_rate)
        assert (found.low, found.high) == pytest.approx(
            (rule.low * found.rate, rule.high * found.rate)
        )
        assert (found.limited_by, found.measured_on) == ("instability", f"{question} {family}")
        slower = only(state, horizon=HORIZON, learning_rate=1e-5)
        assert slower.usable_rate.rate == found.rate
        assert slower.verdict == "ok"
        assert only(state, horizon=HORIZON, learning_rate=1.0).verdict == "cursed"


def test_a_run_that_grows_or_ends_too_soon_tells_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    chaotic = only(moved(torch.nn.RNN(2, 64), 1.0), horizon=HORIZON)
    assert chaotic.simulation.chaotic
    assert "chaotic (give yours with --inputs)" in chaotic.usable_rate.reason
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0]
    quiet = {"weight_hh_l0": 0.99999 * turn, "weight_ih_l0": np.full((64, 1), 1e-4)}
    slow = only(quiet, horizon=10**6)
    assert slow.simulation.steps < 10**6
    assert f"for {slow.simulation.steps} steps only (--simulate)" in slow.not_judged
    brief = only(moved(torch.nn.RNN(2, 64), 0.01), horizon=10**6)
    assert brief.simulation.steps < 10**6
    assert brief.usable_rate.rate is not None
    monkeypatch.setattr("memcurse_cli.theory.simulation.stability_rate", lambda *_: 0.0)
    fragile = only(torch.nn.RNN(2, 8).state_dict(), horizon=HORIZON)
    assert "no step on it is small enough" in fragile.not_judged


def test_weights_of_a_cell_that_is_too_large_to_run_are_not_read() -> None:
    large = torch.nn.LSTM(2, 512)
    report = inspect(large.state_dict(), horizon=HORIZON)
    assert report.checkpoint.bytes_read == 2 * 4 * large.bias_hh_l0.numel()
    assert "without --simulate" in report.usable_rate.reason


def test_steps_that_are_not_adams_are_not_judged() -> None:
    """Unless nothing is trained, which no optimizer can make diverge."""
    settings = Settings(horizon=HORIZON, adaptive=False, optimizer="SGD")
    layer, _ = recurrence(1.0, stable=False)
    found = diagnose(layer, settings)
    assert found.not_judged == "it is trained with SGD, and usable rates were measured with Adam"
    assert "Adam step" not in sentence([found], (), settings, skipped=0)
    still = diagnose(replace(layer, parameters=()), settings)
    assert (still.verdict, still.not_judged) == ("ok", None)
    assert sentence([still], (), settings, skipped=0).startswith("Nothing of the recurrence is")


@pytest.mark.parametrize("limit", ["divergence", "stall"])
def test_the_verdict_turns_at_the_ends_of_the_range(limit: str) -> None:
    state = complex_diagonal(0.99) if limit == "divergence" else lru(0.01, 1.0)
    found, (low, high) = usable(state), WITHIN[limit]
    assert found.limited_by == limit
    assert (found.low, found.high) == (found.rate * low, found.rate * high)
    for share, verdict, severity in (
        (0.999 * low, "ok", None),
        (1.001 * low, "watch", "warning"),
        (0.999 * high, "watch", "warning"),
        (1.001 * high, "cursed", "error"),
    ):
        layer = only(state, horizon=HORIZON, learning_rate=share * found.rate)
        assert layer.verdict == verdict
        told = [one for one in layer.findings if one.code == "MC207"]
        assert [one.severity for one in told] == [severity] * (severity is not None)
        # A rate to give is no advice to who is below it.
        assert [bool(one.advice) for one in told] == [share > 1] * len(told)


def test_steps_that_only_turn_angles_are_judged_by_what_the_output_bears() -> None:
    """At a rate that training bears a step effect above 10 % is no reason to watch."""
    state = lru(0.001, 1.0)
    calm = only(state, horizon=HORIZON, learning_rate=usable(state).rate / 10)
    (angle,) = [group for group in calm.parameters if group.name == "theta_log"]
    assert angle.direction == "decorrelating"
    assert angle.step_effect > 0.1
    assert calm.verdict == "ok"
    assert finding(calm, "MC202").severity == "info"


def test_layers_and_groups_are_judged_at_their_own_rates() -> None:
    """The slower layer is fine at a rate at which the other one is not."""
    layer, group = recurrence(EIGENVALUE, stable=False)
    other = replace(group, tensor="other")
    layer = replace(layer, parameters=(group, other))
    settings = Settings(horizon=HORIZON, rates={"omega": 1e-5, "other": 1e-4, "else": 1.0})
    found = diagnose(layer, settings)
    assert [one.learning_rate for one in found.parameters] == [1e-5, 1e-4]
    effects = [one.step_effect for one in found.parameters]
    assert effects[1] == pytest.approx(10 * effects[0])
    assert found.learning_rate == 1e-4
    assert found.verdict == "ok"
    (other_way,) = diagnose(layer, replace(settings, what_if=(Rewriting("lru", "own"),))).what_if
    assert {one.learning_rate for one in other_way.parameters} == {1e-4}
    fast = diagnose(layer, replace(settings, rates={"omega": 1.0}))
    assert fast.usable_rate.rate == pytest.approx(found.usable_rate.rate)
    assert fast.verdict == "cursed"
