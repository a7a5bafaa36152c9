"""What moves an input-dependent gate: its bias, and how large its input and hidden weights are.

Gates behind a low-rank layer with tanh between its two matrices, as in RWKV-6 and 7.

What moves gates that see, beside their input, the state of their own unit.

What moves an eigenvalue that turns as it decays: a complex projection of the input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.fixed_point import TANH, Candidate
from memcurse_cli.theory.gates.laws import LOGISTIC, GateLaw, Opening, RatedStep, TwoGateLaw, Write
from memcurse_cli.theory.gates.own_states import DrawnGates, draw_lstm_gates, draw_mixing_gates
from memcurse_cli.theory.gates.quadrature import Preactivation, normal_nodes
from memcurse_cli.theory.gates.trapezoid_nodes import TrapezoidGates
from memcurse_cli.theory.gates.turning_gates import TurningGates
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations
from memcurse_cli.theory.gates.two_gate_moments import Values

Floats = NDArray[np.float64]

HIGHEST_ORDER = 15
"""Of the Hermite functions that two different units share."""


@dataclass(frozen=True)
class Bottleneck:
    """``V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``: what a decay sees of its input.

    Attributes:
        outer: (n, rank) V.
        inner: (rank, inputs) W.
        mixing: (inputs,) μ, how much of the previous input each component takes.
        moving: what is added to μ at every step, which depends on the input too (RWKV-6), or None.
    """

    outer: Floats
    inner: Floats
    mixing: Floats
    moving: Bottleneck | None = None

    def variance(self, input_second_moment: float) -> Floats:
        """(n,) E of the square, for independent components of x, white in time.

        y has the variance ``((1-μ)² + μ² + 2 E m²) E x²``, with m what moves μ, an odd function of
        the input whose components are taken as independent of those that it multiplies.
        """
        mixed = (1 - self.mixing) ** 2 + self.mixing**2
        if self.moving is not None:
            mixed = mixed + 2 * self.moving.variance(input_second_moment)
        gram = (self.inner * (mixed * input_second_moment)) @ self.inner.T
        variance: Floats = np.sum((self.outer @ tanh_covariance(gram)) * self.outer, axis=1)
        return np.maximum(variance, 0.0)


def tanh_covariance(covariance: Floats) -> Floats:
    """E tanh(a) tanh(b) of centred Gaussians a, b with a given covariance (rank, rank).

    Mehler: with ``c_k(σ) = E tanh(σ g) He_k(g) / √k!`` of a standard normal g it is
    ``Σ_k c_k(σ_a) c_k(σ_b) ρᵏ`` over odd k. The diagonal, where the sum converges slowly, is
    E tanh² itself.
    """
    spread = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    nodes, weights = normal_nodes(np.zeros_like(spread), spread)
    bent = np.tanh(spread * nodes[:, None])
    alive = np.where(spread > 0, spread, 1.0)
    correlation = np.clip(covariance / alive / alive[:, None], -1.0, 1.0)
    result: Floats = np.zeros_like(correlation)
    before, hermite = np.zeros_like(nodes), np.ones_like(nodes)  # He_k / √k!
    for order in range(1, HIGHEST_ORDER + 1):
        following = (nodes * hermite - math.sqrt(order - 1) * before) / math.sqrt(order)
        before, hermite = hermite, following
        if order % 2:
            coefficient = (weights * hermite) @ bent
            result += coefficient * coefficient[:, None] * correlation**order
    np.fill_diagonal(result, weights @ bent**2)
    return result


@dataclass(frozen=True)
class RowNorms:
    """Squared norms of the weights that a gate sees its input and the hidden state through.

    A component of variance v that is independent of the others adds v times the square of its
    weight to the variance of the pre-activation.

    Attributes:
        inputs: (n,) ‖W_i‖².
        hidden: (n,) ‖U_i‖²; zeros where the gate does not see the state.
        products: (n,) the sum over products of a projection of the input and one of the state that
            the gate sees, of the squared weight times both squared norms; None for none.
    """

    inputs: Floats
    hidden: Floats
    products: Floats | None = None


@dataclass(frozen=True)
class GateInput:
    """A pre-activation ``z = W x + U h + b`` of every unit.

    Attributes:
        bias: (n,) b, z at zero input and zero state.
        norms: those of W and U.
        fixed: (n,) a variance that does not depend on the scale of the input, since a norm stands
            between; None for none.
        bottleneck: a further part of z, behind a low-rank layer that is not linear; None for none.
        shift: (n,) what an input adds to z on average, as behind a norm that has a bias; None for
            nothing.
    """

    bias: Floats
    norms: RowNorms
    fixed: Floats | None = None
    bottleneck: Bottleneck | None = None
    shift: Floats | None = None

    @property
    def centre(self) -> Floats:
        """(n,) E z."""
        return self.bias if self.shift is None else self.bias + self.shift

    def variance(self, input_second_moment: float, hidden_second_moment: float | Floats) -> Floats:
        """σ² = ‖W_i‖² E x² + ‖U_i‖² E h², and what else z has."""
        norms = self.norms
        variance: Floats = norms.inputs * input_second_moment + norms.hidden * hidden_second_moment
        if self.fixed is not None:
            variance = variance + self.fixed
        if norms.products is not None:
            variance = variance + norms.products * input_second_moment * hidden_second_moment
        if self.bottleneck is not None:
            variance = variance + self.bottleneck.variance(input_second_moment)
        return variance

    def preactivation(
        self, input_second_moment: float, hidden_second_moment: float | Floats = 0.0
    ) -> Preactivation:
        """z under inputs and states of these second moments."""
        variance = self.variance(input_second_moment, hidden_second_moment)
        return Preactivation(self.centre, np.sqrt(variance))


@dataclass(frozen=True)
class HiddenState:
    """How large the state is that the gates see.

    What the state takes in is ``f(n)``, with the hidden part of n behind the reset gate where
    there is one. What the hidden weights show is the state h itself, or ``σ(o) tanh(c)`` where
    there is an output gate, of which P entries stay where it is projected.

    Attributes:
        candidate: n of every unit.
        function: f.
        reset: the reset gate's pre-activation (GRU), or None.
        output: the output gate's pre-activation (LSTM), or None.
        opening: σ of both.
        projection: (P,) squared norms of the rows of the matrix that h is multiplied with, or None.
        convex: λ + γ ≤ 1, so that h is never larger than what it takes in.
        written: where the candidate sees just what the gate sees, λ and γ f(n) as functions of the
            gate's pre-activation (FastGRNN); None where they are taken as independent.
        averaged: what is shown is ``σ(o) c/n``, with a normaliser n of the same gates that takes
            in 1 for u: a weighted mean of what came in (sLSTM).
        cascade: so many units come first that take in what the others show, and alone are shown
            to all else (LEM); 0 where every unit sees every other.
    """

    candidate: GateInput
    function: Candidate = TANH
    reset: GateInput | None = None
    output: GateInput | None = None
    opening: Opening = LOGISTIC
    projection: Floats | None = None
    convex: bool = True
    written: GateLaw | None = None
    averaged: bool = False
    cascade: int = 0


@dataclass(frozen=True)
class GateDrive:
    """What drives λ and γ of a layer beside its biases.

    Attributes:
        law: λ and γ as functions of z.
        gate: z of every eigenvalue.
        nominal: the law at zero input where that is another, or None.
        write: a further factor of γ with a pre-activation of its own, or None.
        write_gate: that pre-activation, independent of z.
        state: what is known of the hidden state; None where no gate sees it.
        motions: for each parameter group of the recurrence that moves λ or γ, by name: the
            parameter of the law, and what one unit of the group adds to it, alike for all of its
            entries or (entries,).
        sees: what W multiplies, for the sentence on the input scale.
    """

    law: GateLaw
    gate: GateInput
    nominal: GateLaw | None = None
    write: Write | None = None
    write_gate: GateInput | None = None
    state: HiddenState | None = None
    motions: Mapping[str, tuple[str, float | Floats]] = field(default_factory=dict)
    sees: str = "the layer's input"


@dataclass(frozen=True)
class Trapezoid:
    """What a trapezoidal step has beside its size and its rate: a weight, and angles to turn by.

    Attributes:
        law: λ as a function of the size and the rate.
        weight: z of the weight of every head.
        with_step: (n,) the inner product of its weights and those of the step.
        with_rate: (n,) of its weights and those of the rate.
        angles: (K,) squared norms of the rows of the angles.
        alignment: (n,) the squared correlation of an angle with the step and the rate, mean over
            the angles, which `gates` takes as 0.
        turning: the share of the states that turn.
    """

    law: RatedStep
    weight: GateInput
    with_step: Floats
    with_rate: Floats
    angles: Floats
    alignment: Floats
    turning: float

    def gates(self, rated: TwoPreactivations, input_second_moment: float) -> TrapezoidGates:
        """All for an input of independent components of this second moment."""
        spread = np.sqrt(self.weight.variance(input_second_moment, 0.0))
        weight = Preactivation(self.weight.bias, spread)
        return TrapezoidGates(
            rated,
            weight,
            _correlation(self.with_step * input_second_moment, rated.first, weight),
            _correlation(self.with_rate * input_second_moment, rated.second, weight),
            np.sqrt(self.angles * input_second_moment),
            self.turning,
        )


@dataclass(frozen=True)
class TwoGateDrive:
    """What drives λ where two pre-activations of the same input move it.

    Attributes:
        law: λ as a function of both.
        first: the one of every eigenvalue, without a part that sees the state.
        second: the other, likewise.
        shared: (n,) W₁ᵢ·W₂ᵢ, the inner product of their weights.
        values: λ and γ with what each parameter moves, or None where an input comes in twice or
            ``reason`` tells why not.
        trapezoid: what else decides how an input comes in twice, or None.
        motions: as those of `GateDrive`.
        reason: why there are no moments beside the band of λ, as a clause, or None.
        sees: what the weights multiply.
    """

    law: TwoGateLaw
    first: GateInput
    second: GateInput
    shared: Floats
    values: Values | None = None
    trapezoid: Trapezoid | None = None
    motions: Mapping[str, tuple[str, float | Floats]] = field(default_factory=dict)
    reason: str | None = None
    sees: str = "the layer's input"

    def gates(self, input_second_moment: float) -> TwoPreactivations:
        """Both for an input of independent components of this second moment."""
        first, second = (
            gate.preactivation(input_second_moment) for gate in (self.first, self.second)
        )
        shared = self.shared * input_second_moment
        return TwoPreactivations(first, second, _correlation(shared, first, second))


@dataclass(frozen=True)
class NoDrive:
    """A layer whose gates have no figures.

    Attributes:
        reason: why, as a clause.
    """

    reason: str


def _correlation(covariance: Floats, first: Preactivation, second: Preactivation) -> Floats:
    """In [-1, 1], and 0 where one of the two stands still."""
    both = first.spread * second.spread
    moving = both > 0
    found = np.clip(covariance / np.where(moving, both, 1.0), -1.0, 1.0)
    return np.where(moving, found, 0.0)


def squared_rows(matrix: NDArray[Any]) -> Floats:
    """‖·‖² of every row of a real matrix."""
    norms: Floats = np.einsum("ij,ij->i", matrix, matrix)
    return norms


@dataclass(frozen=True)
class MixingDrive:
    """The SRU's forget gate ``σ(z₀ + v c)``, behind which it takes in u.

    Attributes:
        gate: z₀ of every unit, without a part that sees other units.
        taken: u, likewise.
        shared: (n,) the inner product of their weights.
        own: (n,) v.
        sees: what the weights multiply.
        reason: why there are no moments, as a clause.
    """

    gate: GateInput
    taken: GateInput
    shared: Floats
    own: Floats
    reason: str
    sees: str = "the layer's input"
    opening = LOGISTIC

    def draw(self, input_second_moment: float) -> DrawnGates:
        """Both of the same Gaussian input."""
        gate, taken = (of.preactivation(input_second_moment) for of in (self.gate, self.taken))
        scale = 1.0 if self.gate.fixed is not None else input_second_moment
        both = gate.spread * taken.spread
        correlation = np.divide(self.shared * scale, both, out=np.zeros_like(both), where=both > 0)
        return draw_mixing_gates(gate, taken, np.clip(correlation, -1.0, 1.0), self.own)


@dataclass(frozen=True)
class PeepholeDrive:
    """An LSTM's gates, some of which see c.

    Attributes:
        plain: what drives the LSTM without its peepholes.
        peepholes: (n,) p_f, p_i and p_o by gate, of those that are there.
        reason: why there are no moments, as a clause.
    """

    plain: GateDrive
    peepholes: Mapping[str, Floats]
    reason: str

    @property
    def sees(self) -> str:
        """That of the gates."""
        return self.plain.sees

    @property
    def opening(self) -> Opening:
        """That of the gates."""
        return LOGISTIC if self.plain.state is None else self.plain.state.opening

    def draw(self, input_second_moment: float) -> DrawnGates:
        """The gates under an input and a state of independent components."""
        plain, state = self.plain, self.plain.state
        assert state is not None
        inputs = {
            "forget": plain.gate,
            "input": plain.write_gate,
            "cell": state.candidate,
            "output": state.output,
        }
        gates = {name: of for name, of in inputs.items() if of is not None}
        projection = 1.0 if state.projection is None else float(np.mean(state.projection))
        return draw_lstm_gates(
            lambda held: {
                name: of.preactivation(input_second_moment, held) for name, of in gates.items()
            },
            dict(self.peepholes),
            state.opening,
            projection,
        )


OwnStateDrive = MixingDrive | PeepholeDrive
"""Gates whose band is drawn: no theory of gates that are drawn anew at every step fits them."""


@dataclass(frozen=True)
class TurningDrive:
    """What drives ``λ = σ(|a|) e^(i arg a)`` of a layer beside the bias of a; γ = 1.

    E|dλ/da|² is infinite where a has a density at 0, and with it every sensitivity.

    Attributes:
        real: Re a of every eigenvalue, without a part that sees the state.
        imaginary: Im a, likewise.
        shared: (n,) W₁ᵢ·W₂ᵢ, the inner product of their weights.
        sees: what the weights multiply.
    """

    real: GateInput
    imaginary: GateInput
    shared: Floats
    sees: str = "the layer's input"

    def spreads(self, input_second_moment: float) -> Floats:
        """(2n,) the standard deviations of both parts, real parts first."""
        both = [gate.variance(input_second_moment, 0.0) for gate in (self.real, self.imaginary)]
        return np.sqrt(np.concatenate(both))

    def gates(self, input_second_moment: float) -> TurningGates:
        """a for an input of independent components of this second moment."""
        return TurningGates.from_covariance(
            self.real.bias + 1j * self.imaginary.bias,
            self.real.variance(input_second_moment, 0.0),
            self.imaginary.variance(input_second_moment, 0.0),
            self.shared * input_second_moment,
        )
