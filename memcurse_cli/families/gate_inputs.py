"""What moves input-dependent gates beside their biases: what they see, and through which weights.

A drive holds the law of λ and γ and the squared norms of the rows of weights behind each of its
pre-activations, or their inner products where several of them move λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.draw import JointPreactivations, OwnState, OwnStep
from memcurse_cli.theory.gates.laws import LOGISTIC, GateLaw, JointLaw, Opening, Write
from memcurse_cli.theory.gates.moments import TANH, Candidate, Preactivation, normal_nodes

Integers = NDArray[np.intp]
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
class JointDrive:
    """What drives λ and γ where several pre-activations of the same input move them.

    Attributes:
        law: λ and γ as functions of all.
        bias: (n · kinds, gates), the kinds of states that an eigenvalue drives one after the other.
        gram: (n · kinds, gates, gates) the inner products of the rows of their weights.
        motions: as those of `GateDrive`, of the groups whose κ is given.
        kinds: the share of the states of each kind.
        reason: why figures beside the band of λ are missing, as a clause, or None.
        white_alone: E|h|² is given for a white drive alone.
        sees: what the weights multiply.
    """

    law: JointLaw
    bias: Floats
    gram: Floats
    motions: Mapping[str, tuple[str, float | Floats]] = field(default_factory=dict)
    kinds: tuple[float, ...] = (1.0,)
    reason: str | None = None
    white_alone: bool = False
    sees: str = "the layer's input"

    def preactivations(self, input_second_moment: float) -> JointPreactivations:
        """All for an input of independent components of this second moment."""
        return JointPreactivations(self.bias, self.gram * input_second_moment)


@dataclass(frozen=True)
class OwnStateDrive:
    """Gates that see the state of their own unit, of which there is a band alone.

    Attributes:
        preactivations: what they have beside it, given E x² and E h² of what they see of others.
        step: a step of these units.
        opening: σ of the gate that keeps the state.
        reason: why there are no moments, as a clause.
        projection: what a projection makes of E h².
        sees: what the weights multiply.
    """

    preactivations: Callable[[float, float], JointPreactivations]
    step: OwnStep
    opening: Opening
    reason: str
    projection: float = 1.0
    sees: str = "the layer's input"


def mixing_drive(
    gate: GateInput, taken: GateInput, shared: Floats, own: Floats, reason: str
) -> OwnStateDrive:
    """``c' = σ(z) c + (1 - σ(z)) u`` with ``z = z₀ + v c``: the SRU.

    Args:
        gate: z₀ of every unit, without a part that sees other units.
        taken: u, likewise.
        shared: (n,) the inner product of their weights.
        own: (n,) v.
        reason: why there are no moments.
    """

    def preactivations(inputs: float, _: float) -> JointPreactivations:
        both = shared if gate.fixed is not None else shared * inputs
        variances = (of.variance(inputs, 0.0) for of in (gate, taken))
        first, second = variances
        covariance = np.stack([first, both, both, second], axis=-1).reshape(-1, 2, 2)
        return JointPreactivations(np.stack([gate.centre, taken.centre], axis=-1), covariance)

    def step(z: Floats, c: Floats, units: Integers) -> OwnState:
        kept = z[..., 0] + own[units] * c
        opened = LOGISTIC(kept)
        return OwnState(kept, opened.value * c + opened.complement * z[..., 1])

    return OwnStateDrive(preactivations, step, LOGISTIC, reason)


def peephole_drive(
    plain: GateDrive, state: HiddenState, peepholes: Mapping[str, Floats], reason: str
) -> OwnStateDrive:
    """``c' = σ(f + p_f c) c + σ(i + p_i c) tanh(g)``, ``h = σ(o + p_o c') tanh(c')``.

    Args:
        plain: what drives the LSTM without its peepholes.
        state: what is known of its state, with an output gate.
        peepholes: (n,) p_f, p_i and p_o by gate, of those that are there.
        reason: why there are no moments.
    """
    seen = (plain.gate, plain.write_gate, state.candidate, state.output)
    none, opening = np.zeros_like(plain.gate.bias), state.opening
    by_forget, by_input, by_output = (
        peepholes.get(gate, none) for gate in ("forget", "input", "output")
    )

    def preactivations(inputs: float, held: float) -> JointPreactivations:
        gates = [gate for gate in seen if gate is not None]
        variances = np.stack([gate.variance(inputs, held) for gate in gates], axis=-1)
        means = np.stack([gate.centre for gate in gates], axis=-1)
        return JointPreactivations(means, variances[..., None] * np.eye(len(gates)))

    def step(z: Floats, c: Floats, units: Integers) -> OwnState:
        forget, entered, candidate, output = np.moveaxis(z, -1, 0)
        kept = forget + by_forget[units] * c
        taken = opening(entered + by_input[units] * c).value * np.tanh(candidate)
        after = opening(kept).value * c + taken
        shown = opening(output + by_output[units] * after).value * np.tanh(after)
        return OwnState(kept, after, shown)

    projection = 1.0 if state.projection is None else float(np.mean(state.projection))
    return OwnStateDrive(preactivations, step, opening, reason, projection, plain.sees)


@dataclass(frozen=True)
class NoDrive:
    """A layer whose gates have no figures.

    Attributes:
        reason: why, as a clause.
    """

    reason: str


Drive = GateDrive | JointDrive | OwnStateDrive | NoDrive


def squared_rows(matrix: NDArray[Any]) -> Floats:
    """‖·‖² of every row of a real matrix."""
    norms: Floats = np.einsum("ij,ij->i", matrix, matrix)
    return norms
