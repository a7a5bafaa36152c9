"""Matrices rounded for real and simulated, against what the report says of each type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import memcurse_cli
from memcurse_cli.diagnosis import dense as matrix_rounding
from memcurse_cli.diagnosis.wording import percent
from memcurse_cli.schema.report import LayerReport

CASTS = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def store_as(matrix: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "int8":
        scale = np.abs(matrix).max() / 127
        return np.rint(matrix / scale).astype(np.int8) * scale
    return matrix.astype(CASTS[dtype]).astype(np.float64)


def chain() -> np.ndarray:
    """Far from normal, of two values and zeros: equal errors add up along the diagonal."""
    return np.diag(np.full(32, 0.7)) + np.diag(np.full(31, 0.5), 1)


def full() -> np.ndarray:
    matrix = np.random.default_rng(2).normal(size=(24, 24))
    return 0.9 * matrix / np.abs(np.linalg.eigvals(matrix)).max()


def layer(matrix: np.ndarray, readin: np.ndarray | None = None, **options: object) -> LayerReport:
    size = len(matrix)
    readin = np.eye(size) if readin is None else readin
    state = {"A": matrix, "B": readin, "C": np.eye(size)}
    (found,) = memcurse_cli.inspect(state, **options).layers  # type: ignore[arg-type]
    return found


def simulated(
    matrix: np.ndarray, stored: np.ndarray, readin: np.ndarray, *, rho: float = 0.0
) -> float:
    """The relative error of the state over 4000 steps."""
    random = np.random.default_rng(3)
    x = random.normal(size=readin.shape[1])
    state, moved = np.zeros(len(matrix)), np.zeros(len(matrix))
    power = difference = 0.0
    for step in range(4000):
        x = rho * x + np.sqrt(1 - rho**2) * random.normal(size=x.size)
        state, moved = matrix @ state + readin @ x, stored @ moved + readin @ x
        if step >= 200:
            power += state @ state
            difference += (moved - state) @ (moved - state)
    return float(np.sqrt(difference / power))


@pytest.mark.parametrize("make", [chain, full])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_a_matrix_with_structure_moves_its_state_as_predicted(make: object, dtype: str) -> None:
    matrix = make()  # type: ignore[operator]
    (group,) = layer(matrix).parameters
    measured = simulated(matrix, store_as(matrix, dtype), np.eye(len(matrix)))
    predicted = getattr(group.rounding, dtype)
    assert measured < 0.2
    assert predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("exact", [True, False])
def test_within_a_horizon_it_is_the_sum_of_the_impulse_responses(
    readout: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exact:  # as for matrices of more units
        monkeypatch.setattr(matrix_rounding, "EXACT", 0)
    matrix, steps = chain(), 40
    (group,) = layer(matrix, horizon=steps, readout=readout).parameters
    change = store_as(matrix, "bfloat16") - matrix
    powers = [np.linalg.matrix_power(matrix, lag) for lag in range(steps)]
    response = [
        sum((powers[m] @ change @ powers[k - 1 - m] for m in range(k)), np.zeros_like(matrix))
        for k in range(steps)
    ]
    if exact:
        response = [np.linalg.matrix_power(matrix + change, k) - powers[k] for k in range(steps)]
    share = [(steps - k) / steps if readout == "every" else 1.0 for k in range(steps)]
    moved = sum(s * np.sum(one**2) for s, one in zip(share, response, strict=True))
    power = sum(s * np.sum(one**2) for s, one in zip(share, powers, strict=True))
    assert group.rounding.bfloat16 == pytest.approx(float(np.sqrt(moved / power)), rel=1e-8)


def test_what_a_type_holds_exactly_costs_nothing_but_for_the_type_it_is_stored_in() -> None:
    matrix = np.diag([0.5, 0.25, 0.75])
    rounding = layer(matrix).parameters[0].rounding
    assert vars(rounding).pop("int8") > 0
    assert {rounding.bfloat16, rounding.float16, rounding.float32} == {0.0}
    single = layer(full().astype(np.float32)).parameters[0].rounding
    assert single.float32 is not None
    assert single.float32 > 0
    assert single.bfloat16 is not None
    # What the matrix was before is not known: the errors of 24 bits are 2^-16 times those of 8.
    assert single.float32 == pytest.approx(single.bfloat16 / 2**16, rel=0.5)


def test_a_leaky_layer_is_rounded_in_the_matrix_that_is_stored() -> None:
    """A = (1 - α) I + α W: rounding moves A by α δW."""
    weight, leak = 0.5 * full(), 0.25
    tensors = {"wrec": weight, "wi": np.eye(24), "wo": np.eye(24), "si": np.ones(24)}
    (found,) = memcurse_cli.inspect(tensors, family="leaky_rnn", assume={"alpha": str(leak)}).layers
    one = np.eye(24)
    before = (1 - leak) * one + leak * weight
    after = (1 - leak) * one + leak * store_as(weight, "bfloat16")
    measured = simulated(before, after, leak * one)
    assert found.parameters[0].rounding.bfloat16 == pytest.approx(measured, rel=0.15)


def rules(found: LayerReport) -> dict[str, tuple[str, str]]:
    return {
        one.code: (one.severity, one.message)
        for one in found.findings
        if one.code.startswith("MC4")
    }


def diagonal(modulus: float, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"A_re": np.array([modulus, 0.5], dtype), "A_im": np.zeros(2, dtype)}


def test_a_value_that_rounds_to_the_unit_circle_makes_the_state_diverge() -> None:
    """0.999 is 1.0 in bfloat16."""
    assert float(np.float32(0.999).astype(ml_dtypes.bfloat16)) == 1.0
    (found,) = memcurse_cli.inspect(diagonal(0.999)).layers
    assert found.parameters[0].rounding.bfloat16 is None
    assert found.parameters[0].rounding.float16 is not None
    severity, message = rules(found)["MC401"]
    assert severity == "warning"
    assert "takes 1 of 2 eigenvalues to |λ| >= 1" in message
    assert "diverges" in message
    (finite,) = memcurse_cli.inspect(diagonal(0.999), horizon=300).layers
    assert finite.parameters[0].rounding.bfloat16 is not None
    severity, message = rules(finite)["MC401"]
    assert severity == "warning"
    assert "within 300 steps" in message


@pytest.mark.parametrize("steps", [300, 5_000])
def test_the_change_past_the_unit_circle_is_the_real_one(steps: int) -> None:
    """0.9995 is 1.0 in bfloat16, where first order stands still at 1/√2."""
    modulus = float(np.float32(0.9995))
    lags = np.arange(steps)
    real = np.sqrt(np.sum((1 - modulus**lags) ** 2) / np.sum(modulus ** (2 * lags)))
    tensors = {"A_re": np.full(2, 0.9995, np.float32), "A_im": np.zeros(2, np.float32)}
    (found,) = memcurse_cli.inspect(tensors, horizon=steps).layers
    assert found.parameters[0].rounding.bfloat16 == pytest.approx(real, rel=1e-9)
    assert f"changes the state by {percent(real)} within" in rules(found)["MC401"][1]
    dense = layer(np.diag(np.full(2, 0.9995, np.float32)), horizon=steps)
    assert dense.parameters[0].rounding.bfloat16 == pytest.approx(real, rel=1e-6)


def test_a_large_change_that_is_known_to_first_order_has_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = np.diag(np.full(3, 0.9995))
    assert "changes the state by 265 %" in rules(layer(matrix, horizon=10_000))["MC401"][1]
    monkeypatch.setattr(matrix_rounding, "EXACT", 0)  # as between 256 and 512 units
    assert "changes the state by 265 %" in rules(layer(matrix, horizon=10_000))["MC401"][1]
    monkeypatch.setattr(matrix_rounding, "LARGEST", 0)
    message = rules(layer(matrix, horizon=10_000))["MC401"][1]
    assert "changes the state by more than 10 %" in message


def test_a_dense_matrix_is_told_by_the_eigenvalues_of_the_rounded_one() -> None:
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(12, 12)))[0]
    matrix = turn @ np.diag(np.linspace(0.1, 0.9995, 12)) @ turn.T
    found = layer(matrix)
    for dtype in ("bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2"):
        crossing = np.abs(np.linalg.eigvals(store_as(matrix, dtype))).max() >= 1
        assert (getattr(found.parameters[0].rounding, dtype) is None) == crossing
