"""The mean field of an LSTM (Gilboa et al. 2019, A.3.3 and C), with biases that stay.

The cell ``c' = f c + i g`` of a unit is a perpetuity: its mean and variance are closed, its
distribution is not and is drawn. Drawing starts from a Gaussian of the right mean and variance, so
that it has little left to forget: a unit of short memory forgets it at once, and one of long memory
is a sum of many terms, and nearly Gaussian.

A perturbation lives in h and in c. With S = mean E δh² and p = E δc²,

    p'     = f² p + ( σ_f² c² f'² + σ_i² g² i'² + σ_g² i² g'² ) S
    E δh'² = o² tanh'²(c') p' + σ_o² o'² tanh²(c') S

and χ is the growth of both; the a_k of the paper follow h alone. p is carried along with the
cell it belongs to, for the two depend on the same forget gates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memcurse_cli.theory.gated_network import LSTM_GATES, Floats, GatedNetwork
from memcurse_cli.theory.mean_field_gates import (
    GatedMeanField,
    Gaussian,
    largest_root,
    level,
    settle,
    sigmoid,
)

SAMPLES = 8192
DRAWN, AVERAGED = 64, 32
SEED = 0


def lstm_mean_field(network: GatedNetwork, input_variance: float = 1.0) -> GatedMeanField | None:
    """The mean field of an LSTM, or None where E h² does not settle.

    Args:
        network: whose weights enter by their mean and variance alone, whose biases as they are.
        input_variance: R(0) of each input, independent of the others and of the past.
    """
    copies = max(1, SAMPLES // network.size)
    # The same draws at every moment that is tried, so that the fixed point is one of a function.
    draws = np.random.default_rng(SEED).standard_normal((DRAWN + 1, 3, network.size, copies))
    # Weights whose squares overflow and gates that keep all give no finite moments, which settle
    # nowhere.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        point = settle(
            lambda moments: _Cells(network, moments, input_variance, draws).moments,
            np.array([0.0, 0.1]),
        )
        return None if point is None else _Cells(network, point, input_variance, draws).result()


@dataclass(frozen=True)
class _Path:
    """What a perturbation meets at one step, (H, copies) each: f², its source, o² tanh'²."""

    kept: Floats
    source: Floats
    shown: Floats


class _Cells:
    """The cells of all units at given E h and E h²."""

    def __init__(
        self, network: GatedNetwork, moments: Floats, input_variance: float, draws: Floats
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
        self.path: list[_Path] = []
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
            self.path.append(_Path(f**2, source, shown))
            if step >= DRAWN - AVERAGED:
                first += bent.mean(axis=1) / AVERAGED
                second += (bent**2).mean(axis=1) / AVERAGED
        opened = output.average(sigmoid)
        self.moments = np.array([np.mean(opened * first), np.mean(self.output_square * second)])
        turned = output.average(lambda u: (sigmoid(u) * sigmoid(-u)) ** 2)
        self.turned = self._variance("output") * float(np.mean(turned * second))

    def _variance(self, gate: str) -> float:
        return self.statistics[gate].hidden_variance

    def result(self) -> GatedMeanField:
        """The figures at the fixed point."""
        source = self._variance("forget") * self.cell_square * self._slope("forget")
        source = source + self._variance("input") * self.candidate_square * self._slope("input")
        flat = self.gates["cell"].average(lambda u: np.cosh(np.clip(u, -300, 300)) ** -4.0)
        source = source + self._variance("cell") * self.written_square * flat

        def excess(chi: float) -> float:
            """E δh'² / χ S - 1, with p scaled by S: it starts where it stays on average."""
            p = (source / (chi - self.kept))[:, None]
            came_back = 0.0
            for step, met in enumerate(self.path):
                p = (met.kept * p + met.source) / chi
                if step >= DRAWN - AVERAGED:
                    came_back += float(np.mean(met.shown * p)) / AVERAGED
            return came_back + self.turned / chi - 1

        growth = largest_root(excess, float(self.kept.max()))
        gates = {gate: level(self.gates[gate]) for gate in ("forget", "input", "output")}
        return GatedMeanField(float(self.moments[1]), growth, gates)

    def _slope(self, gate: str) -> Floats:
        """E σ'² of every unit."""
        return self.gates[gate].average(lambda u: (sigmoid(u) * sigmoid(-u)) ** 2)
