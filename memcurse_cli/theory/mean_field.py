"""Mean fields of wide layers with random weights (Gilboa et al. 2019).

A gate of unit i sees ``u ~ N(b_i + N mean W E h, σ² E h² + ν² R(0))`` anew at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from msgspec import Struct

from memcurse_cli.theory.duals import sigmoid
from memcurse_cli.theory.gates.laws import LOGISTIC
from memcurse_cli.theory.linalg import Floats, bisected

GRU_GATES = ("reset", "update", "new")
LSTM_GATES = ("input", "forget", "cell", "output")

NODES, REACH = 4001, 9.0  # a ReLU has a corner; beyond the reach is less than 1e-18
SETTLED, STEPS = 1e-12, 10_000
UNBOUNDED = 1e12  # a moment that the activation does not bound
GATED_SETTLED, GATED_STEPS = 1e-7, 1000
RESET_NODES, CANDIDATE_NODES = 21, 61
SAMPLES = 8192  # of all units of an LSTM together
DRAWN, AVERAGED = 64, 32  # steps of its cells, and the last of them that are averaged over


class GateStatistics(Struct, frozen=True):
    """What a mean field keeps of one pre-activation ``W h + U x + b``."""

    hidden_variance: float  # σ² = N var W
    hidden_mean: float  # N mean W
    input_variance: float  # ν² = inputs · mean U²
    bias: Floats  # b, which stays from step to step

    @classmethod
    def of(cls, hidden: Floats, inputs: Floats, bias: Floats) -> GateStatistics:
        """From W (H, H), U (H, inputs) and b."""
        size, width = len(hidden), inputs.shape[1]
        driven = width * float(np.mean(inputs**2)) if inputs.size else 0.0
        return cls(size * float(np.var(hidden)), size * float(np.mean(hidden)), driven, bias)


class GatedNetwork(Struct, frozen=True):
    """One layer.

    A GRU is ``h' = z h + (1-z) tanh(n)`` with z and r the sigmoids of ``update`` and ``reset``, and
    ``n = U x + b + r (W h + b_inner)``, or ``n = U x + b + W (r h)`` without an inner bias; an LSTM
    is ``c' = f c + i tanh(g)``, ``h' = o tanh(c')``.
    """

    hidden: Mapping[str, Floats]  # (H, H) W of each of `GRU_GATES` or `LSTM_GATES`, row = target
    inputs: Mapping[str, Floats]  # (H, inputs) U of each
    # (H,) b of each, summed over the tensors that hold it; for ``new`` without b_inner
    bias: Mapping[str, Floats]
    # (H,) b_inner of a GRU, zeros where there is none; None where the reset gate acts before the
    # matrix, and for an LSTM
    inner_bias: Floats | None = None

    @property
    def is_lstm(self) -> bool:
        """Whether it has a cell beside its state."""
        return "cell" in self.hidden

    @property
    def size(self) -> int:
        """The number H of units."""
        return len(next(iter(self.hidden.values())))

    def statistics(self, gate: str) -> GateStatistics:
        """Those of one gate."""
        return GateStatistics.of(self.hidden[gate], self.inputs[gate], self.bias[gate])


class OperatingPoint(Struct, frozen=True):
    """Where the units of an Elman network work: E u, var u, E φ(u)² and √E φ'(u)²."""

    mean: float
    variance: float
    second_moment: float
    slope: float


class Gaussian(Struct, frozen=True):
    """A pre-activation: a mean of every unit (H,), one standard deviation for all."""

    mean: Floats
    deviation: float

    @classmethod
    def of(
        cls, gate: GateStatistics, first: float, second: float, input_variance: float
    ) -> Gaussian:
        """That of a gate, from E h and E h² of what its hidden weights see."""
        variance = gate.hidden_variance * second + gate.input_variance * input_variance
        return cls(gate.bias + gate.hidden_mean * first, math.sqrt(variance))

    def average(
        self, function: Callable[[Floats], Floats], nodes: int = 61, reach: float = 6.5
    ) -> Floats:
        """(H,) E f(u) of every unit, with the nodes of `standard_nodes`."""
        z, weight = standard_nodes(nodes, reach)
        return np.asarray(function(self.mean[:, None] + self.deviation * z) @ weight)


def standard_nodes(nodes: int, reach: float = 6.5) -> tuple[Floats, Floats]:
    """Points of a standard normal variable and their trapezoidal weights, which add up to 1."""
    z = np.linspace(-reach, reach, nodes)
    weight = np.exp(-0.5 * z**2)
    return z, weight / weight.sum()


def settle(
    step: Callable[[Floats], Floats], start: Floats, tolerance: float, steps: int
) -> Floats | None:
    """The fixed point that the iteration of a map reaches, or None where it does not settle."""
    point = start
    for _ in range(steps):
        after = step(point)
        scale = np.abs(after).max()
        if not scale < UNBOUNDED:
            return None
        if np.abs(after - point).max() <= tolerance * scale:
            return after
        point = after
    return None


def elman_operating_point(
    hidden: Floats,
    readin: Floats | None,
    bias: Floats,
    activation: str,
    input_variance: float = 1.0,
) -> OperatingPoint | None:
    """The fixed point of u = W h + U x + b ~ N(μ, V) with h = φ(u) (Gilboa et al. 2019, section 2).

        V = N var W E φ(u)² + ν² R(0) + var b,    μ = mean b + N mean W E φ(u)

    None where the variance grows without bound, as a ReLU's can. U is None for no input, b summed
    over the tensors that hold it, φ ``tanh`` or ``relu``, and R(0) that of each input.
    """
    of = GateStatistics.of(hidden, np.zeros((len(hidden), 0)) if readin is None else readin, bias)
    start = np.array([np.mean(bias), of.input_variance * input_variance + np.var(bias)])
    output, slope = _ACTIVATIONS[activation]

    def average(point: Floats, function: Callable[[Floats], Floats]) -> float:
        gaussian = Gaussian(point[:1], math.sqrt(point[1]))
        return float(gaussian.average(function, NODES, REACH)[0])

    def second_moment(point: Floats) -> float:
        return average(point, lambda u: output(u) ** 2)

    def step(point: Floats) -> Floats:
        moved = of.hidden_mean * average(point, output), of.hidden_variance * second_moment(point)
        return np.asarray(start + moved)

    point = settle(step, start, SETTLED, STEPS)
    if point is None:
        return None
    squared = average(point, lambda u: slope(u) ** 2)
    mean, variance = point.tolist()
    return OperatingPoint(mean, variance, second_moment(point), math.sqrt(squared))


# φ and φ'.
_ACTIVATIONS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "relu": (lambda u: np.maximum(u, 0.0), lambda u: np.heaviside(u, 0.5)),
}


class GatedMeanField(Struct, frozen=True):
    """Where a wide layer with random weights works, and what it makes of a small change."""

    second_moment: float  # E h² of a unit
    growth: float  # χ, the largest eigenvalue of p_i = E δh_i² ↦ D_i p_i + c_i mean(p), a step
    # How far each is open, over the units and in time: E σ(u), and its standard deviation.
    gates: Mapping[str, tuple[float, float]]
    # m₁ of the Jacobian dh'/dh; None for an LSTM, whose state has two parts
    mean_squared_singular_value: float | None = None
    # m₂ - m₁², the variance of the squared singular values; None also where the reset gate acts
    # before the matrix, whose Jacobian has products of weights
    singular_value_variance: float | None = None


def squared_slope(u: Floats) -> Floats:
    """σ'(u)²."""
    return np.asarray(LOGISTIC(u).slope ** 2)


def level(gate: Gaussian) -> tuple[float, float]:
    """As of `GatedMeanField.gates`."""
    mean, square = (float(gate.average(of).mean()) for of in (sigmoid, lambda u: sigmoid(u) ** 2))
    return mean, math.sqrt(max(square - mean**2, 0.0))


def largest_root(excess: Callable[[float], float], lowest: float) -> float:
    """Where a decreasing function passes through 0 above ``lowest``, or that if it starts below."""
    if excess(max(lowest * (1 + 1e-12), 1e-200)) <= 0:
        return lowest
    width = 1.0
    while excess(lowest + width) > 0:
        width *= 2
    return lowest + bisected(lambda above: not excess(lowest + above) > 0, 0.0, width, 60)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def gated_mean_field(network: GatedNetwork, input_variance: float = 1.0) -> GatedMeanField | None:
    """The mean field of a GRU or an LSTM under inputs of R(0), or None where E h² does not settle.

    Weights enter by their mean and variance alone, biases as they are.
    """
    step: Callable[[Floats], _GruStep | _LstmCells]
    if network.is_lstm:
        copies = max(1, SAMPLES // network.size)
        # The same draws at every moment that is tried: the fixed point is one of a function.
        draws = np.random.default_rng(0).standard_normal((DRAWN + 1, 3, network.size, copies))
        start = np.array([0.0, 0.1])
        step = partial(_LstmCells, network, draws, input_variance)
    else:
        start = np.array([0.0, 0.25, 0.0, 0.25])
        step = partial(_GruStep, network, input_variance)
    point = settle(lambda moments: step(moments).moments, start, GATED_SETTLED, GATED_STEPS)
    return None if point is None else step(point).result()


class _GruStep:
    """One step of a GRU at given E h, E h², E rh and E r²h² (Gilboa et al. 2019, A.3.1).

    With a₁, a₂ and a₃ of docs/theory/gates.md and a₀ = z² the squared singular values of dh'/dh
    have ``m₁ = E Σ a_k`` and ``m₂ = E (Σ a_k)² + (E Σ a_k)² - (E a₀)²``; eq. 15 is misprinted.
    """

    def __init__(self, network: GatedNetwork, input_variance: float, moments: Floats) -> None:
        first, second, reset_first, reset_second = map(float, moments)
        gates = {gate: network.statistics(gate) for gate in GRU_GATES}
        self.variances = {gate: of.hidden_variance for gate, of in gates.items()}
        self.inner = network.inner_bias
        self.update = Gaussian.of(gates["update"], first, second, input_variance)
        self.reset = Gaussian.of(gates["reset"], first, second, input_variance)
        self.mixed = [[self._kept(j, k - j) for j in range(k + 1)] for k in range(5)]
        self.reset_square = self.reset.average(lambda u: sigmoid(u) ** 2)
        if self.inner is None:
            drawn = Gaussian.of(gates["new"], reset_first, reset_second, input_variance)
            z, self.weight = standard_nodes(CANDIDATE_NODES)
            self.n = np.tanh(drawn.mean[:, None] + drawn.deviation * z)
        else:
            new = gates["new"]
            seen = self.inner + new.hidden_mean * first, new.hidden_variance * second
            self._behind_reset(new, *seen, input_variance)
        self.powers = [self.n**k @ self.weight for k in range(5)]
        self.h = self._moments_of_state(2)

    def _behind_reset(
        self, new: GateStatistics, mean: Floats, w_variance: float, input_variance: float
    ) -> None:
        """The candidate tanh(v), v = a + r w, and g = (a₂ + a₃) / (1-z)², on nodes of r and v."""
        z_r, weight_r = standard_nodes(RESET_NODES)
        z_v, weight_v = standard_nodes(CANDIDATE_NODES)
        self.weight = np.outer(weight_r, weight_v).ravel()
        r = sigmoid(self.reset.mean[:, None] + self.reset.deviation * z_r)[:, :, None]
        w_mean = mean[:, None, None]
        v_variance = new.input_variance * input_variance + r**2 * w_variance
        apart = np.sqrt(v_variance) * z_v
        shape = (len(mean), -1)
        self.n = np.tanh(new.bias[:, None, None] + r * w_mean + apart).reshape(shape)
        share = np.divide(
            w_variance, v_variance, out=np.zeros_like(v_variance), where=v_variance > 0
        )
        # w given v and r is Gaussian; its square has a mean and a variance.
        given, left = w_mean + r * share * apart, w_variance * (1 - r**2 * share)
        turned = self.variances["reset"] * (r * (1 - r)) ** 2
        through = new.hidden_variance * r**2 + turned * (given**2 + left)
        variance = turned**2 * left * (4 * given**2 + 2 * left)
        slope = (1 - self.n**2) ** 2
        self.through = through.reshape(shape) * slope
        self.through_square = self.through**2 + variance.reshape(shape) * slope**2

    def _kept(self, kept: int, taken: int) -> Floats:
        """E z^j (1-z)^k of every unit."""
        return self.update.average(lambda u: sigmoid(u) ** kept * sigmoid(-u) ** taken)

    def _moments_of_state(self, highest: int) -> list[Floats]:
        found = [np.ones(len(self.n))]
        for k in range(1, highest + 1):
            terms = [
                math.comb(k, j) * self.mixed[k][j] * found[j] * self.powers[k - j] for j in range(k)
            ]
            # 1 - E z^k without cancellation: 1 - z^k = (1-z)(1 + z + … + z^{k-1}).
            lost = np.sum([self._kept(j, 1) for j in range(k)], axis=0)
            total = np.sum(terms, axis=0)
            # A gate that keeps all takes nothing up: such a unit stays at 0.
            found.append(np.divide(total, lost, out=np.zeros_like(total), where=lost > 0))
        return found

    @property
    def moments(self) -> Floats:
        """E h, E h², E rh and E r²h² after the step, in the stationary state of every unit."""
        reset = self.reset.average(sigmoid)
        pairs = (self.h[1], self.h[2], reset * self.h[1], self.reset_square * self.h[2])
        return np.array([float(np.mean(pair)) for pair in pairs])

    def result(self) -> GatedMeanField:
        """The figures at the fixed point."""
        kept, taken = self.mixed[2][2], self.mixed[2][0]
        turned = self.variances["update"] * self.update.average(squared_slope)
        apart = self._apart(self.h)
        gates = {"update": level(self.update), "reset": level(self.reset)}
        second = float(self.h[2].mean())
        if self.inner is None:
            slope = (1 - self.n**2) ** 2 @ self.weight
            back = self.variances["new"] * taken * slope
            turned_reset = self.reset.average(squared_slope)
            shown = self.variances["reset"] * float(np.mean(self.h[2] * turned_reset))
            field = turned * apart
            growth = self._reset_first(kept, field, back, shown)
            mean = kept + field + back * (float(self.reset_square.mean()) + shown)
            return GatedMeanField(second, growth, gates, float(mean.mean()))
        coupling = turned * apart + taken * (self.through @ self.weight)
        growth = largest_root(
            lambda chi: float(np.mean(coupling / (chi - kept))) - 1, float(kept.max())
        )
        first = float(np.mean(kept + coupling))
        square = float(np.mean(self._square_of_sum()))
        variance = square - float(np.mean(kept)) ** 2
        return GatedMeanField(second, growth, gates, first, variance)

    def _reset_first(self, kept: Floats, field: Floats, back: Floats, shown: float) -> float:
        """χ p = D p + α S + β T, with S = mean p and T = mean(E r² p) + ``shown`` S."""

        def excess(chi: float) -> float:
            response = 1 / (chi - kept)
            squares = self.reset_square * response
            matrix = np.array(
                [
                    [np.mean(field * response), np.mean(back * response)],
                    [np.mean(field * squares) + shown, np.mean(back * squares)],
                ]
            )
            return float(np.abs(np.linalg.eigvals(matrix)).max()) - 1

        return largest_root(excess, float(kept.max()))

    def _apart(self, h: list[Floats]) -> Floats:
        """E (h-n)ᵏ from E hʲ, j = 0 … k."""
        k = len(h) - 1
        terms = [math.comb(k, j) * (-1) ** j * h[k - j] * self.powers[j] for j in range(k + 1)]
        return np.asarray(np.sum(terms, axis=0))

    def _square_of_sum(self) -> Floats:
        """E (a₀ + a₁ + a₂ + a₃)² of every unit."""
        h, s = self._moments_of_state(4), self.variances["update"]
        g, g_n, g_nn = ((self.n**k * self.through) @ self.weight for k in range(3))
        total = self.mixed[4][4] + s**2 * self._apart(h) * self._kept(4, 4)
        total += (self.through_square @ self.weight) * self.mixed[4][0]
        total += 2 * s * self._apart(h[:3]) * self._kept(4, 2)
        total += 2 * g * self.mixed[4][2]
        total += 2 * s * (h[2] * g - 2 * h[1] * g_n + g_nn) * self._kept(2, 4)
        return np.asarray(total)


class _LstmCells:
    """The cells of an LSTM at given E h and E h² (Gilboa et al. 2019, A.3.3 and C).

    They are drawn, from a Gaussian of the closed mean and variance of ``c' = f c + i g`` on.
    """

    def __init__(
        self, network: GatedNetwork, draws: Floats, input_variance: float, moments: Floats
    ) -> None:
        first, second = map(float, moments)
        statistics = {gate: network.statistics(gate) for gate in LSTM_GATES}
        self.gates = {
            gate: Gaussian.of(one, first, second, input_variance)
            for gate, one in statistics.items()
        }
        self.variances = {gate: one.hidden_variance for gate, one in statistics.items()}
        forget, opened, cell = (self.gates[gate] for gate in ("forget", "input", "cell"))
        self.kept = forget.average(lambda u: sigmoid(u) ** 2)
        lost = forget.average(lambda u: sigmoid(-u))
        lost_square = forget.average(lambda u: sigmoid(-u) * (1 + sigmoid(u)))
        written = opened.average(sigmoid) * cell.average(np.tanh)
        self.written_square = opened.average(lambda u: sigmoid(u) ** 2)
        self.candidate_square = cell.average(lambda u: np.tanh(u) ** 2)
        self.cell_mean = written / lost
        square = self.written_square * self.candidate_square
        square = square + 2 * forget.average(sigmoid) * written * self.cell_mean
        self.cell_square = square / lost_square
        self._draw(draws)

    def _draw(self, draws: Floats) -> None:
        """The cells over `DRAWN` steps, and E tanh c and E tanh² c over the last `AVERAGED`."""
        deviation = np.sqrt(np.maximum(self.cell_square - self.cell_mean**2, 0.0))
        c = self.cell_mean[:, None] + deviation[:, None] * draws[0, 0]
        output = self.gates["output"]
        self.output_square = output.average(lambda u: sigmoid(u) ** 2)
        # What a perturbation meets at a step, (H, copies) each: f², its source, o² tanh'².
        self.path: list[tuple[Floats, Floats, Floats]] = []
        first, second = np.zeros(len(c)), np.zeros(len(c))
        for step, normals in enumerate(draws[1:]):
            f, i, g = (
                self.gates[gate].mean[:, None] + self.gates[gate].deviation * normal
                for gate, normal in zip(("forget", "input", "cell"), normals, strict=True)
            )
            f, i, g = sigmoid(f), sigmoid(i), np.tanh(g)
            source = self.variances["forget"] * (c * f * (1 - f)) ** 2
            source += self.variances["input"] * (g * i * (1 - i)) ** 2
            source += self.variances["cell"] * (i * (1 - g**2)) ** 2
            c = f * c + i * g
            bent = np.tanh(c)
            shown = self.output_square[:, None] * (1 - bent**2) ** 2
            self.path.append((f**2, source, shown))
            if step >= DRAWN - AVERAGED:
                first += bent.mean(axis=1) / AVERAGED
                second += (bent**2).mean(axis=1) / AVERAGED
        opened = output.average(sigmoid)
        self.moments = np.array([np.mean(opened * first), np.mean(self.output_square * second)])
        turned = output.average(squared_slope)
        self.turned = self.variances["output"] * float(np.mean(turned * second))

    def result(self) -> GatedMeanField:
        """The figures at the fixed point."""
        flat = self.gates["cell"].average(lambda u: np.cosh(np.clip(u, -300, 300)) ** -4.0)
        turned = {gate: of.average(squared_slope) for gate, of in self.gates.items()}
        mean_source = self.variances["forget"] * self.cell_square * turned["forget"]
        mean_source += self.variances["input"] * self.candidate_square * turned["input"]
        mean_source += self.variances["cell"] * self.written_square * flat

        def excess(chi: float) -> float:
            """E δh'² / χ S - 1, with p scaled by S: it starts where it stays on average."""
            p = (mean_source / (chi - self.kept))[:, None]
            came_back = 0.0
            for step, (kept, source, shown) in enumerate(self.path):
                p = (kept * p + source) / chi
                if step >= DRAWN - AVERAGED:
                    came_back += float(np.mean(shown * p)) / AVERAGED
            return came_back + self.turned / chi - 1

        growth = largest_root(excess, float(self.kept.max()))
        gates = {gate: level(self.gates[gate]) for gate in ("forget", "input", "output")}
        return GatedMeanField(float(self.moments[1]), growth, gates)
