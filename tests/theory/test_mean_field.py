"""Mean fields against quadrature of SciPy, closed forms, untied networks and random Jacobians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad

from memcurse_cli.theory.mean_field import (
    GRU_GATES,
    LSTM_GATES,
    NODES,
    REACH,
    GatedMeanField,
    GatedNetwork,
    Gaussian,
    elman_operating_point,
    gated_mean_field,
)

Floats = NDArray[np.float64]
INPUTS = 5
Case = tuple[str, float, float, float, float]
# Kind, σ, ν, the bias of the gate that keeps, and the spread of all biases.
CASES: list[Case] = [
    ("gru", 1.0, 1.0, 0.0, 0.0),
    ("gru", 3.0, 0.2, 0.0, 0.5),
    ("reset first", 1.2, 0.8, 1.0, 0.7),
    ("lstm", 1.5, 1.0, 1.0, 0.7),
    ("lstm", 3.0, 0.3, 2.0, 0.5),
]


def random_network(case: Case, size: int, seed: int = 0) -> GatedNetwork:
    kind, hidden, inputs, keeping, spread = case
    random = np.random.default_rng(seed)
    gates = LSTM_GATES if kind == "lstm" else GRU_GATES
    keeps = "forget" if kind == "lstm" else "update"

    def exact(shape: tuple[int, int], scale: float) -> Floats:
        """With the mean and variance that it was drawn from."""
        drawn = random.normal(size=shape)
        return (drawn - drawn.mean()) / drawn.std() * scale / math.sqrt(shape[1])

    return GatedNetwork(
        {gate: exact((size, size), hidden) for gate in gates},
        {gate: exact((size, INPUTS), inputs) for gate in gates},
        {gate: keeping * (gate == keeps) + spread * random.normal(size=size) for gate in gates},
        spread * random.normal(size=size) if kind == "gru" else None,
    )


def mean_field(network: GatedNetwork, input_variance: float = 1.0) -> GatedMeanField:
    found = gated_mean_field(network, input_variance)
    assert found is not None
    return found


def sigmoid(u: Any) -> Any:
    return 1 / (1 + np.exp(-u))


def untied(network: GatedNetwork, steps: int, units: int = 8192) -> tuple[float, float]:
    """E h² and χ of many units whose weights are drawn anew at every step.

    What fresh Gaussian weights make of two vectors, here a state and one close to it, is Gaussian
    with the vectors' own covariance, so that no matrix needs to be drawn.
    """
    random, apart = np.random.default_rng(1), 1e-6
    which = np.arange(units) % network.size
    h, c = np.zeros((2, 2, units))
    h[1] = apart * random.normal(size=units) / math.sqrt(units)

    def fresh(gate: str, of: Floats) -> Floats:
        scale = network.statistics(gate).hidden_variance / units
        root = np.linalg.qr(of.T, mode="r").T
        return math.sqrt(scale) * root @ random.normal(size=(2, units))

    def around(gate: str) -> Floats:
        scale = network.statistics(gate).input_variance
        return network.bias[gate][which] + math.sqrt(scale) * random.normal(size=units)

    moments, growths = [], []
    for step in range(steps):
        if network.is_lstm:
            u = {gate: fresh(gate, h) + around(gate) for gate in LSTM_GATES}
            c = sigmoid(u["forget"]) * c + sigmoid(u["input"]) * np.tanh(u["cell"])
            h = sigmoid(u["output"]) * np.tanh(c)
        else:
            z, r = (sigmoid(fresh(gate, h) + around(gate)) for gate in ("update", "reset"))
            if network.inner_bias is None:
                v = fresh("new", r * h)
            else:
                v = r * (fresh("new", h) + network.inner_bias[which])
            h = z * h + (1 - z) * np.tanh(v + around("new"))
        moved = np.stack([h[1] - h[0], c[1] - c[0]])
        growth = float(np.linalg.norm(moved)) / apart
        h[1], c[1] = (h[0], c[0]) + moved / growth
        if step >= steps // 2:
            moments.append(np.mean(h[0] ** 2))
            growths.append(math.log(growth))
    return float(np.mean(moments)), math.exp(2 * float(np.mean(growths)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_that_of_an_untied_network(case: Case) -> None:
    network = random_network(case, 64)
    found = mean_field(network)
    second, growth = untied(network, 240)
    assert found.second_moment == pytest.approx(second, rel=0.01)
    assert found.growth == pytest.approx(growth, abs=0.012)


def test_the_moments_of_squared_singular_values_are_not_the_printed_ones() -> None:
    """Gilboa et al. 2019, eq. 15, against a random Jacobian whose weights the state never saw."""
    size, copies, sigma, random = 500, 60, 3.0, np.random.default_rng(3)
    network = random_network(("gru", sigma, 1.0, 0.0, 0.4), size, seed=2)
    assert network.inner_bias is not None
    bias = {gate: np.tile(values, copies) for gate, values in network.bias.items()}
    inner, h = np.tile(network.inner_bias, copies), np.zeros(size * copies)
    for _ in range(30):
        before, feedback = h, sigma * math.sqrt(np.mean(h**2))
        x = random.normal(size=(6, h.size))
        z = sigmoid(bias["update"] + feedback * x[0] + x[1])
        r = sigmoid(bias["reset"] + feedback * x[2] + x[3])
        w = inner + feedback * x[4]
        n = np.tanh(bias["new"] + x[5] + r * w)
        h = z * before + (1 - z) * n
    through = (1 - z) * (1 - n**2)
    factors = ((before - n) * z * (1 - z), through * r, through * w * r * (1 - r))
    total = z**2 + sigma**2 * sum(f**2 for f in factors)

    def moments(a_0: Floats, a: Floats) -> tuple[float, float]:
        return float(a.mean()), float((a**2).mean() + a.mean() ** 2 - a_0.mean() ** 2)

    first, second = moments(z**2, total)
    found = mean_field(network)
    assert found.mean_squared_singular_value == pytest.approx(first, rel=0.01)
    assert found.singular_value_variance == pytest.approx(second - first**2, rel=0.03)
    # The Jacobian of five hundred of these units, and what the formulas make of the same units.
    jacobian = np.diag(z[:size])
    for factor in factors:
        fresh = random.normal(size=(size, size)) * sigma / math.sqrt(size)
        jacobian += factor[:size, None] * fresh
    square = jacobian @ jacobian.T
    first, second = moments(z[:size] ** 2, total[:size])
    assert np.trace(square) / size == pytest.approx(first, rel=0.02)
    measured = np.sum(square**2) / size
    assert measured == pytest.approx(second, rel=0.04)
    printed = 2 * np.mean(total[:size] ** 2) - np.mean(z[:size] ** 4)
    assert abs(printed / measured - 1) > 0.2


@pytest.mark.parametrize("kind", ["gru", "reset first", "lstm"])
def test_what_has_no_weights_keeps_what_its_gate_keeps(kind: str) -> None:
    network = random_network((kind, 0.0 + 1e-12, 1e-12, 2.0, 0.0), 8)
    found = mean_field(network)
    assert found.growth == pytest.approx(float(sigmoid(2.0)) ** 2, rel=1e-9)
    assert found.second_moment == pytest.approx(0.0, abs=1e-12)
    # Weights without finite squares have no mean field.
    assert gated_mean_field(random_network((kind, 1e200, 1.0, 0.0, 0.0), 4)) is None


def test_gates_that_never_forget() -> None:
    gru = mean_field(random_network(("gru", 1.0, 1.0, 1e4, 0.0), 4))
    assert (gru.growth, gru.second_moment) == (1.0, 0.0)
    assert gated_mean_field(random_network(("lstm", 1.0, 1.0, 1e4, 0.0), 4)) is None


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1e-6), (0.3, 1.0), (-1.0, 40.0), (0, 1e3)])
def test_a_gaussian_mean_is_the_integral(mean: float, variance: float) -> None:
    def integrand(z: float) -> float:
        u = mean + math.sqrt(variance) * z
        return (1 - math.tanh(u) ** 2) ** 2 * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    centre = -mean / math.sqrt(variance)
    points = [centre] if abs(centre) < 9 else None
    wanted = quad(integrand, -9, 9, points=points, limit=400, epsabs=1e-13)[0]
    gaussian = Gaussian(np.array([mean]), math.sqrt(variance))
    found = gaussian.average(lambda u: (1 - np.tanh(u) ** 2) ** 2, NODES, REACH)
    assert found[0] == pytest.approx(wanted, rel=1e-9)


def test_a_small_network_without_input_is_linear() -> None:
    hidden = np.random.default_rng(0).normal(size=(50, 50)) * 0.5 / math.sqrt(50)
    point = elman_operating_point(hidden, None, np.zeros(50), "tanh")
    assert point is not None
    assert point.variance == 0
    assert point.slope == pytest.approx(1, rel=1e-15)


def test_a_relu_halves_the_variance_it_passes_on() -> None:
    """E relu² = V/2, so that V = drive / (1 - σ_w²/2); beyond σ_w² = 2 it has no bound."""
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(60, 60))
    hidden = (hidden - hidden.mean()) / hidden.std() / math.sqrt(60)
    readin = generator.normal(size=(60, 3))
    drive = 3 * float(np.mean(readin**2))
    point = elman_operating_point(hidden, readin, np.zeros(60), "relu")
    assert point is not None
    assert point.variance == pytest.approx(drive / 0.5, rel=1e-9)
    assert point.slope == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert elman_operating_point(2 * hidden, readin, np.zeros(60), "relu") is None
