from __future__ import annotations

import math

import numpy as np
import pytest

import memcurse_cli
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.schema.layer import LearningRates

SIZE = 6


def lru(decay: float = 0.01) -> dict[str, np.ndarray]:
    random = np.random.default_rng(8)
    return {
        "nu_log": np.log(decay * random.uniform(0.5, 2, SIZE)),
        "theta_log": np.log(random.uniform(0.1, 3, SIZE)),
        "gamma_log": np.full(SIZE, -1.0),
        "B_re": random.normal(size=(SIZE, 1)),
        "B_im": random.normal(size=(SIZE, 1)),
        "C_re": random.normal(size=(1, SIZE)),
        "C_im": random.normal(size=(1, SIZE)),
        "D": np.ones((1, 1)),
    }


def rates(tensors: dict[str, np.ndarray], **options: float) -> LearningRates:
    (layer,) = memcurse_cli.inspect(tensors, learning_rates=True, **options).layers
    assert layer.learning_rates is not None
    return layer.learning_rates


def test_a_group_bears_the_step_that_reaches_the_limit() -> None:
    report = memcurse_cli.inspect(lru(), learning_rates=True, learning_rate=3e-3, watch_limit=0.2)
    assert from_json(to_json(report)) == report
    assert memcurse_cli.inspect(lru()).layers[0].learning_rates is None
    found = report.layers[0].learning_rates
    assert found is not None
    assert (found.rest, found.limit) == (3e-3, 0.2)
    for rate, parameter in zip(found.groups, report.layers[0].parameters, strict=True):
        kappa = parameter.relative_sensitivity.p99
        assert kappa is not None
        assert rate.stable_lr == pytest.approx(0.2 / math.sqrt(kappa))
        assert rate.learning_rate == min(rate.stable_lr, 3e-3)
        assert rate.relative == pytest.approx(min(1, 0.2 / math.sqrt(kappa) / 3e-3))
    by_name = {rate.name: rate for rate in found.groups}
    assert by_name["nu_log"].relative == 1
    assert by_name["theta_log"].relative is not None
    assert by_name["theta_log"].relative < 1


def test_the_rate_that_is_borne_makes_the_verdict_ok() -> None:
    borne = {rate.name: rate.stable_lr for rate in rates(lru()).groups}
    lowest = min(rate for rate in borne.values() if rate is not None)
    for factor, verdict in ((0.99, "ok"), (1.01, "watch")):
        (layer,) = memcurse_cli.inspect(lru(), learning_rate=factor * lowest).layers
        assert layer.parameters[1].verdict == verdict


def jacobian(tensors: dict[str, np.ndarray], steps: int) -> tuple[np.ndarray, int]:
    """Impulse responses of dy/dω for every scalar, by finite differences of ``Re[C λᵏ γ B]``."""
    names = ["nu_log", "theta_log", "gamma_log", "B_re", "B_im", "C_re", "C_im"]

    def response(values: dict[str, np.ndarray]) -> np.ndarray:
        log = -np.exp(values["nu_log"]) + 1j * np.exp(values["theta_log"])
        drive = np.exp(values["gamma_log"]) * (values["B_re"] + 1j * values["B_im"])[:, 0]
        readout = (values["C_re"] + 1j * values["C_im"])[0]
        return (np.exp(np.arange(steps)[:, None] * log) @ (readout * drive)).real

    rows = []
    for name in names:
        for place in np.ndindex(tensors[name].shape):
            values = {key: value.copy() for key, value in tensors.items()}
            values[name][place] += 1e-6
            above = response(values)
            values[name][place] -= 2e-6
            rows.append((above - response(values)) / 2e-6)
    rows.append(np.eye(1, steps)[0])  # D sees the input itself
    return np.array(rows), 3 * SIZE


def test_the_two_sharpnesses_are_those_of_the_blocks_of_the_hessian() -> None:
    """H = J Jᵀ of the impulse responses, for a white input."""
    tensors = lru(0.2)
    found = rates(tensors).sharpness
    assert found is not None
    rows, recurrent = jacobian(tensors, 400)
    hessian = rows @ rows.T
    own, rest = hessian[:recurrent, :recurrent], hessian[recurrent:, recurrent:]
    assert found.recurrent == pytest.approx(np.linalg.eigvalsh(own)[-1], rel=1e-6)
    assert found.rest == pytest.approx(np.linalg.eigvalsh(rest)[-1], rel=1e-6)
    assert found.sgd_ratio == pytest.approx(found.rest / found.recurrent)
    assert found.adam_ratio == pytest.approx(math.sqrt(np.trace(rest) / np.trace(own)), rel=1e-6)


def test_longer_memory_asks_for_a_lower_ratio() -> None:
    ratios = [rates(lru(decay)).sharpness for decay in (0.3, 0.03, 0.003)]
    found = [one.adam_ratio for one in ratios if one is not None]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 3


def test_what_is_not_known_says_why() -> None:
    tensors = {name: lru()[name] for name in ("nu_log", "theta_log", "gamma_log")}
    found = rates(tensors)
    assert found.sharpness is None
    assert found.sharpness_reason == "neither B nor C is known for it"
    dense = rates({"A": 0.5 * np.eye(3), "B": np.ones((3, 1)), "C": np.ones((1, 3))})
    assert dense.sharpness is None
    assert dense.sharpness_reason is not None
    assert "dense" in dense.sharpness_reason
    unstable = {"lambda_re": np.array([1.1, 0.3]), "lambda_im": np.array([0.0, 0.1])}
    for rate in rates(unstable).groups:
        assert (rate.stable_lr, rate.learning_rate, rate.relative) == (None, None, None)


def test_an_angle_bears_the_measured_rate_where_the_output_is_known() -> None:
    """As in the verdict: a step that only turns angles is judged by the output."""
    report = memcurse_cli.inspect(lru(), horizon=200, learning_rates=True)
    (layer,) = report.layers
    assert layer.learning_rates is not None
    assert layer.usable_rate is not None
    assert layer.usable_rate.rate is not None
    angle = layer.learning_rates.groups[1]
    assert layer.parameters[1].direction == "decorrelating"
    effect = layer.parameters[1].step_effect
    assert effect is not None
    own = report.input.learning_rate / effect
    assert layer.usable_rate.rate > own
    assert layer.parameters[1].max_lr == layer.usable_rate.rate
    assert angle.stable_lr == pytest.approx(max(layer.usable_rate.rate / 3, 0.1 * own))
    assert angle.stable_lr > 0.1 * own
    unknown = {name: value for name, value in lru().items() if name[0] not in "BCD"}
    bare = memcurse_cli.inspect(unknown, horizon=200, learning_rates=True).layers[0]
    assert bare.learning_rates is not None
    assert bare.learning_rates.groups[1].stable_lr == pytest.approx(0.1 * own)
