"""Mean fields of wide layers with random weights, in the places where they work.

An Elman network (Gilboa et al. 2019, section 2), ``h[t+1] = φ(W h[t] + U x[t+1] + b)``, has with
many units pre-activations that are Gaussian, u ~ N(μ, V) with

    V = σ_w² E φ(u)² + ν² R(0) + var b,    μ = mean b + N mean W E φ(u)
    σ_w² = N var W,    ν² = inputs · mean U²

The slope that the Jacobian ``diag(φ'(u)) W`` sees is √E φ'(u)²: it scales the spectrum of W, whose
radius is σ_w for independent entries, to ``√χ`` with ``χ = σ_w² E φ'(u)²``.

In GRUs and LSTMs whose weights are independent and drawn anew at every step ("untied"), the
pre-activation of gate k in unit i is Gaussian around the unit's own bias,

    u ~ N( b_ki + N mean W_k E h,  σ_k² E h² + ν_k² R(0) )
    σ_k² = N var W_k,   ν_k² = inputs · mean U_k²

independent of other gates, other units and the past. The paper draws biases from one Gaussian and
counts their variance with that of u; a bias that stays gives every unit a mean of its own, and
units with a large one hold what they have, so that the layer's own biases are kept here.

A perturbation of the state has second moments p_i = E δh_i² that one step maps linearly: what a
unit keeps, ``D_i p_i``, and what it takes from the others through the weights, ``c_i mean(p)``.
The growth χ is the largest eigenvalue of that map. Where all units are alike it is m₁, the mean
squared singular value of the Jacobian (lemma 1 of the paper); units that differ set the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.mean_field.network import (
    GRU_GATES,
    LSTM_GATES,
    GatedNetwork,
    GateLevel,
    GateStatistics,
    sigmoid,
)

Floats = NDArray[np.float64]

NODES, REACH = 4001, 9.0  # a ReLU has a corner; beyond the reach is less than 1e-18
SETTLED, STEPS = 1e-12, 10_000
LARGEST = 1e12  # a moment that the activation does not bound

GATED_SETTLED, GATED_STEPS = 1e-7, 1000
HALVINGS = 60
RESET_NODES, CANDIDATE_NODES = 21, 61
SAMPLES = 8192  # of all units of an LSTM together
DRAWN, AVERAGED = 64, 32  # steps of its cells, and the last of them that are averaged over
SEED = 0


@dataclass(frozen=True)
class OperatingPoint:
    """Where the units of an Elman network work: E u, var u, E φ(u)² and √E φ'(u)²."""

    mean: float
    variance: float
    second_moment: float
    slope: float


@dataclass(frozen=True)
class Gaussian:
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
    """Points of a standard normal variable and their weights, which add up to 1.

    Of the trapezoid rule, which converges geometrically for what is analytic, up to so many
    standard deviations: the rest beyond 6.5 is below 1e-10.
    """
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
        if not scale < LARGEST:
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
    """The fixed point of the mean and the variance of the pre-activations.

    Args:
        hidden: (n, n) W.
        readin: (n, inputs) U, or None for no input.
        bias: (n,) b, summed over the tensors that hold it.
        activation: ``tanh`` or ``relu``.
        input_variance: R(0) of each input.

    Returns:
        The point, or None where the variance grows without bound, as a ReLU's can.
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


_ACTIVATIONS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "relu": (lambda u: np.maximum(u, 0.0), lambda u: np.heaviside(u, 0.5)),
}
"""φ and φ'."""


@dataclass(frozen=True)
class GatedMeanField:
    """Where a wide layer with random weights works, and what it makes of a small change."""

    second_moment: float  # E h² of a unit
    growth: float  # χ, what one step makes of the second moment of a perturbation
    gates: Mapping[str, GateLevel]  # how far each is open
    # m₁ of the Jacobian dh'/dh; None for an LSTM, whose state has two parts
    mean_squared_singular_value: float | None = None
    # m₂ - m₁², the variance of the squared singular values; None also where the reset gate acts
    # before the matrix, whose Jacobian has products of weights
    singular_value_variance: float | None = None


def squared_slope(u: Floats) -> Floats:
    """σ'(u)²."""
    return np.asarray((sigmoid(u) * sigmoid(-u)) ** 2)


def level(gate: Gaussian) -> GateLevel:
    """How far a gate is open."""
    mean, square = gate.average(sigmoid), gate.average(lambda u: sigmoid(u) ** 2)
    return GateLevel.of(mean.mean(), square.mean())


def largest_root(excess: Callable[[float], float], lowest: float) -> float:
    """Where a decreasing function, below 0 in the end, passes through 0 above ``lowest``.

    There it may be infinite; ``lowest`` itself where the function starts below 0.
    """
    if excess(max(lowest * (1 + 1e-12), 1e-200)) <= 0:
        return lowest
    width = 1.0
    while excess(lowest + width) > 0:
        width *= 2
    below, above = 0.0, width
    for _ in range(HALVINGS):
        middle = 0.5 * (below + above)
        if excess(lowest + middle) > 0:
            below = middle
        else:
            above = middle
    return lowest + above


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def gated_mean_field(network: GatedNetwork, input_variance: float = 1.0) -> GatedMeanField | None:
    """The mean field of a GRU or an LSTM, or None where E h² does not settle.

    Weights whose squares overflow and gates that keep all give no finite moments, and settle
    nowhere.

    Args:
        network: whose weights enter by their mean and variance alone, whose biases as they are.
        input_variance: R(0) of each input, independent of the others and of the past.
    """
    step: Callable[[Floats], _GruStep | _LstmCells]
    if network.is_lstm:
        copies = max(1, SAMPLES // network.size)
        # The same draws at every moment that is tried: the fixed point is one of a function.
        draws = np.random.default_rng(SEED).standard_normal((DRAWN + 1, 3, network.size, copies))
        start = np.array([0.0, 0.1])
        step = partial(_LstmCells, network, draws, input_variance)
    else:
        start = np.array([0.0, 0.25, 0.0, 0.25])
        step = partial(_GruStep, network, input_variance)
    point = settle(lambda moments: step(moments).moments, start, GATED_SETTLED, GATED_STEPS)
    return None if point is None else step(point).result()


class _GruStep:
    """One step of a GRU at given E h, E h², E rh and E r²h² (Gilboa et al. 2019, A.3.1).

    A unit's gate z and candidate n = tanh(v) are drawn anew at every step, so that the moments of
    ``h' = z h + (1-z) n`` are closed:

        E h^k (1 - E z^k) = Σ_{j<k} (k over j) E z^j (1-z)^{k-j} E h^j E n^{k-j}

    With w = W_n h + b_inner what the reset gate r multiplies, a step takes second moments of a
    perturbation to ``D p + c mean(p)`` with D = E z² and c = a₁ + a₂ + a₃ summed:

        a₁ = σ_z² (h-n)² z'²,   a₂ = σ_n² (1-z)² n'² r²,   a₃ = σ_r² (1-z)² n'² w² r'²

    The moments of the squared singular values of dh'/dh are ``m₁ = E Σ a_k`` and
    ``m₂ = E (Σ a_k)² + (E Σ a_k)² - (E a₀)²``, a₀ = z²: eq. 15 of the paper is misprinted.

    Where the reset gate acts before the matrix, n sees W_n (r h): a perturbation comes back through
    T = mean(E r² p) + σ_r² E h² r'² mean(p) as ``σ_n² E (1-z)² n'² T``.
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

    The cell ``c' = f c + i g`` of a unit is a perpetuity: its mean and variance are closed, its
    distribution is not and is drawn. Drawing starts from a Gaussian of the right mean and variance,
    so that it has little left to forget: a unit of short memory forgets it at once, and one of long
    memory is a sum of many terms, and nearly Gaussian.

    A perturbation lives in h and in c. With S = mean E δh² and p = E δc²,

        p'     = f² p + ( σ_f² c² f'² + σ_i² g² i'² + σ_g² i² g'² ) S
        E δh'² = o² tanh'²(c') p' + σ_o² o'² tanh²(c') S

    and χ is the growth of both; the a_k of the paper follow h alone. p is carried along with the
    cell it belongs to, for the two depend on the same forget gates.
    """

    def __init__(
        self, network: GatedNetwork, draws: Floats, input_variance: float, moments: Floats
    ) -> None:
        first, second = map(float, moments)
        self.statistics = {gate: network.statistics(gate) for gate in LSTM_GATES}
        self.gates = {
            gate: Gaussian.of(one, first, second, input_variance)
            for gate, one in self.statistics.items()
        }
        self.draws = draws
        self._start()
        self._draw()

    def _start(self) -> None:
        """E f² and the mean and variance of every unit's cell."""
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

    def _draw(self) -> None:
        """The cells over `DRAWN` steps, and E tanh c and E tanh² c over the last `AVERAGED`."""
        deviation = np.sqrt(np.maximum(self.cell_square - self.cell_mean**2, 0.0))
        c = self.cell_mean[:, None] + deviation[:, None] * self.draws[0, 0]
        output = self.gates["output"]
        self.output_square = output.average(lambda u: sigmoid(u) ** 2)
        # What a perturbation meets at a step, (H, copies) each: f², its source, o² tanh'².
        self.path: list[tuple[Floats, Floats, Floats]] = []
        first, second = np.zeros(len(c)), np.zeros(len(c))
        for step, normals in enumerate(self.draws[1:]):
            f, i, g = (
                self.gates[gate].mean[:, None] + self.gates[gate].deviation * normal
                for gate, normal in zip(("forget", "input", "cell"), normals, strict=True)
            )
            f, i, g = sigmoid(f), sigmoid(i), np.tanh(g)
            source = self._variance("forget") * (c * f * (1 - f)) ** 2
            source += self._variance("input") * (g * i * (1 - i)) ** 2
            source += self._variance("cell") * (i * (1 - g**2)) ** 2
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
        self.turned = self._variance("output") * float(np.mean(turned * second))

    def _variance(self, gate: str) -> float:
        return self.statistics[gate].hidden_variance

    def result(self) -> GatedMeanField:
        """The figures at the fixed point."""
        flat = self.gates["cell"].average(lambda u: np.cosh(np.clip(u, -300, 300)) ** -4.0)
        turned = {gate: of.average(squared_slope) for gate, of in self.gates.items()}
        mean_source = self._variance("forget") * self.cell_square * turned["forget"]
        mean_source += self._variance("input") * self.candidate_square * turned["input"]
        mean_source += self._variance("cell") * self.written_square * flat

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
