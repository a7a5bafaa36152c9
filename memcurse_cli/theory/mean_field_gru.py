"""The mean field of a GRU (Gilboa et al. 2019, A.3.1), with biases that stay.

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

from __future__ import annotations

import math

import numpy as np

from memcurse_cli.theory.gated_network import GRU_GATES, Floats, GatedNetwork, GateStatistics
from memcurse_cli.theory.mean_field_gates import (
    GatedMeanField,
    Gaussian,
    largest_root,
    level,
    settle,
    sigmoid,
    standard_nodes,
)

RESET_NODES, CANDIDATE_NODES = 21, 61


def gru_mean_field(network: GatedNetwork, input_variance: float = 1.0) -> GatedMeanField | None:
    """The mean field of a GRU, or None where E h² does not settle.

    Args:
        network: whose weights enter by their mean and variance alone, whose biases as they are.
        input_variance: R(0) of each input, independent of the others and of the past.
    """
    start = np.array([0.0, 0.25, 0.0, 0.25])
    # Weights so large that squares overflow have no finite moments, and settle nowhere.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        point = settle(lambda moments: _Step(network, moments, input_variance).moments, start)
        return None if point is None else _Step(network, point, input_variance).result()


class _Step:
    """One step at given E h, E h², E rh and E r²h²."""

    def __init__(self, network: GatedNetwork, moments: Floats, input_variance: float) -> None:
        first, second, reset_first, reset_second = map(float, moments)
        gates = {gate: network.statistics(gate) for gate in GRU_GATES}
        self.reset_variance = gates["reset"].hidden_variance
        self.update_variance = gates["update"].hidden_variance
        self.candidate_variance = gates["new"].hidden_variance
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
            self._behind_reset(gates["new"], self.inner, first, second, input_variance)
        self.powers = [self.n**k @ self.weight for k in range(5)]
        self.h = self._moments_of_state(2)

    def _behind_reset(
        self,
        new: GateStatistics,
        inner: Floats,
        first: float,
        second: float,
        input_variance: float,
    ) -> None:
        """The candidate tanh(v), v = a + r w, and g = (a₂ + a₃) / (1-z)², on nodes of r and v."""
        z_r, weight_r = standard_nodes(RESET_NODES)
        z_v, weight_v = standard_nodes(CANDIDATE_NODES)
        self.weight = np.outer(weight_r, weight_v).ravel()
        r = sigmoid(self.reset.mean[:, None] + self.reset.deviation * z_r)[:, :, None]
        w_mean = (inner + new.hidden_mean * first)[:, None, None]
        w_variance = new.hidden_variance * second
        v_variance = new.input_variance * input_variance + r**2 * w_variance
        apart = np.sqrt(v_variance) * z_v
        shape = (len(inner), -1)
        self.n = np.tanh(new.bias[:, None, None] + r * w_mean + apart).reshape(shape)
        share = np.divide(
            w_variance, v_variance, out=np.zeros_like(v_variance), where=v_variance > 0
        )
        # w given v and r is Gaussian; its square has a mean and a variance.
        given, left = w_mean + r * share * apart, w_variance * (1 - r**2 * share)
        turned = self.reset_variance * (r * (1 - r)) ** 2
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
        turned = self.update_variance * self.update.average(
            lambda u: (sigmoid(u) * sigmoid(-u)) ** 2
        )
        apart = self.h[2] - 2 * self.h[1] * self.powers[1] + self.powers[2]
        gates = {"update": level(self.update), "reset": level(self.reset)}
        second = float(self.h[2].mean())
        if self.inner is None:
            slope = (1 - self.n**2) ** 2 @ self.weight
            back = self.candidate_variance * taken * slope
            turned_reset = self.reset.average(lambda u: (sigmoid(u) * sigmoid(-u)) ** 2)
            shown = self.reset_variance * float(np.mean(self.h[2] * turned_reset))
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

    def _square_of_sum(self) -> Floats:
        """E (a₀ + a₁ + a₂ + a₃)² of every unit."""
        h = self._moments_of_state(4)
        n, g = self.n, self.through
        apart = np.sum(
            [math.comb(4, j) * (-1) ** j * h[4 - j] * self.powers[j] for j in range(5)], axis=0
        )
        beside = h[2] * (g @ self.weight) - 2 * h[1] * ((n * g) @ self.weight)
        beside += (n**2 * g) @ self.weight
        squared = h[2] - 2 * h[1] * self.powers[1] + self.powers[2]
        s = self.update_variance
        z4, z3_taken = self.mixed[4][4], self._kept(4, 2)
        total = (
            z4
            + s**2 * apart * self._kept(4, 4)
            + (self.through_square @ self.weight) * self.mixed[4][0]
        )
        total += 2 * s * squared * z3_taken
        total += 2 * (g @ self.weight) * self.mixed[4][2]
        total += 2 * s * beside * self._kept(2, 4)
        return np.asarray(total)
