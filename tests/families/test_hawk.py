"""Hawk against the forward passes of hippogriff and griffin-torch, written out."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.rg_lru import Hawk

N, STEPS = 5, 9
RANDOM = np.random.default_rng(31)


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def hippogriff(scale: float = np.log(8)) -> dict[str, NDArray]:
    layer = {
        "input.weight": RANDOM.normal(size=(2 * N, 4)),
        "conv.weight": RANDOM.normal(size=(N, 1, 4)),
        "gates.weight": RANDOM.normal(size=(2 * N, N)),
        "gates.bias": RANDOM.normal(size=2 * N),
        "forget_base": RANDOM.uniform(-9, -4, N),
        "alpha_log_scale": np.array([scale]),
        "output.weight": RANDOM.normal(size=(4, N)),
    }
    return {f"layers.0.hawk.{name}": values for name, values in layer.items()}


def griffin_torch() -> dict[str, NDArray]:
    layer = {role: RANDOM.normal(size=N) for role in ("ba", "bx", "Lambda")}
    layer |= {role: RANDOM.normal(size=(N, N)) for role in ("Wa", "Wx")}
    return {f"rglru.{name}": values for name, values in layer.items()}


def states(alpha: NDArray, beta: NDArray) -> NDArray:
    """The state after an impulse of one into every unit, at gates that see no input."""
    h, found = np.zeros(N), []
    for step in range(STEPS):
        h = alpha * h + beta * (step == 0)
        found.append(h)
    return np.stack(found)


def predicted(recurrence: Recurrence) -> NDArray:
    powers = np.outer(np.arange(STEPS), recurrence.log_eigenvalues.real)
    return np.exp(powers + recurrence.log_gain.real)


@pytest.mark.parametrize("stored", [np.log(8), -8.0, np.log(14)])
def test_hippogriff(stored: float) -> None:
    layer = hippogriff(stored)
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert (family.name, match.layer) == ("hawk", "layers.0.hawk")
    recurrence = read_layer(layer, Hawk())
    forget, opened = np.split(layer["layers.0.hawk.gates.bias"], 2)
    base = np.log1p(np.exp(layer["layers.0.hawk.forget_base"]))
    negative = stored if stored < 0 else -np.exp(stored)
    alpha = np.exp(negative * base * sigmoid(forget))
    beta = np.sqrt(1 - alpha**2 + 1e-6) * sigmoid(opened)
    assert_allclose(predicted(recurrence), states(alpha, beta), rtol=1e-12)


def test_griffin_torch() -> None:
    layer = griffin_torch()
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert (family.name, match.layer) == ("hawk", "rglru")
    alpha = sigmoid(layer["rglru.Lambda"]) / 8 ** sigmoid(layer["rglru.ba"])
    beta = np.sqrt(1 - alpha**2) * sigmoid(layer["rglru.bx"])
    assert_allclose(predicted(read_layer(layer, Hawk())), states(alpha, beta), rtol=1e-12)


def test_derivatives() -> None:
    halves = {"gates.bias[forget]": slice(0, N), "gates.bias[input]": slice(N, 2 * N)}
    check_derivatives(hippogriff(), Hawk(), elements=halves)
    check_derivatives(griffin_torch(), Hawk())


def test_the_gates_see_the_two_halves_of_their_weight() -> None:
    layer = hippogriff()
    (match,) = match_of(layer, Hawk())
    recurrence = Hawk().read(MemoryStore(layer), match, ReadOptions(gates=True))
    gate = recurrence.gate
    assert gate is not None
    assert gate.write_gate is not None
    assert gate.motions.keys() == {group.name for group in recurrence.parameters}
    norms = np.sum(layer["layers.0.hawk.gates.weight"] ** 2, axis=1)
    assert_allclose(gate.gate.norms.inputs, norms[:N])
    assert_allclose(gate.write_gate.norms.inputs, norms[N:])
    values = gate.law(gate.gate.bias)
    assert_allclose(values.eigenvalue, np.exp(recurrence.log_eigenvalues.real), rtol=1e-12)


def test_extremes_stay_finite() -> None:
    layer = hippogriff(1e4)
    layer["layers.0.hawk.forget_base"] = np.array([-800.0, 800.0, 0.0, -30.0, 30.0])
    recurrence = read_layer(layer, Hawk())
    assert np.isfinite(recurrence.log_eigenvalues).all()
    assert np.isfinite(recurrence.log_gain).all()
    for group in recurrence.parameters:
        assert np.isfinite(group.eigenvalue_derivative).all()


def test_a_complex_diagonal_is_not_it() -> None:
    assert match_of({"Lambda": np.ones(N) + 0j, "B": np.ones((N, 2)) + 0j}, Hawk()) == []


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TensorError, match=r"gates.bias: its shape \(3\)"):
        read_layer({**hippogriff(), "layers.0.hawk.gates.bias": np.ones(3)}, Hawk())
