"""What moves input-dependent gates beside their biases: what they see, through which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.reading import read_finite
from memcurse_cli.theory.gates.laws import LOGISTIC, GateLaw, JointLaw, Opening, Write
from memcurse_cli.theory.gates.moments import (
    TANH,
    Candidate,
    JointPreactivations,
    OwnState,
    OwnStep,
    Preactivation,
)
from memcurse_cli.theory.linalg import Floats, Integers


class GateInput(Struct, frozen=True):
    """A pre-activation ``z = W x + U h + b`` of every unit."""

    bias: Floats  # (n,) b, z at zero input and zero state
    inputs: Floats | float = 0.0  # (n,) ‖W_i‖²
    hidden: Floats | float = 0.0  # (n,) ‖U_i‖²
    # (n,) sums over products of a projection of the input and one of the state that the gate sees,
    # of the squared weight times both squared norms.
    products: Floats | float = 0.0
    # (n,) a variance that does not depend on the input's scale, since a norm stands between.
    fixed: Floats | None = None
    # (n,) a further variance of z, by a nonlinear low-rank layer, from the input's second moment.
    further: Callable[[float], Floats] | None = None
    shift: Floats | float = 0.0  # (n,) what an input adds to z on average, by a norm with a bias

    @property
    def centre(self) -> Floats:
        """(n,) E z."""
        return self.bias + self.shift

    @property
    def still(self) -> Preactivation:
        """z at zero input and zero state."""
        return Preactivation(self.bias, np.zeros_like(self.bias))

    def variance(self, inputs: float, held: float | Floats) -> Floats:
        """σ² = ‖W_i‖² E x² + ‖U_i‖² E h², and what else z has, from both second moments."""
        seen = self.inputs * inputs + self.hidden * held + self.products * inputs * held
        variance = np.zeros_like(self.bias) + seen
        if self.fixed is not None:
            variance = variance + self.fixed
        if self.further is not None:
            variance = variance + self.further(inputs)
        return variance

    def preactivation(self, inputs: float, held: float | Floats = 0.0) -> Preactivation:
        """z under inputs and states of these second moments."""
        return Preactivation(self.centre, np.sqrt(self.variance(inputs, held)))


class HiddenState(Struct, frozen=True):
    """How large the state is that the gates see.

    What the state takes in is ``f(n)``, with the hidden part of n behind the reset gate where
    there is one. What the hidden weights show is the state h itself, or ``σ(o) tanh(c)`` where
    there is an output gate, of which P entries stay where it is projected.
    """

    candidate: GateInput  # n of every unit
    function: Candidate = TANH  # f
    reset: GateInput | None = None  # the reset gate's pre-activation (GRU)
    output: GateInput | None = None  # the output gate's (LSTM)
    opening: Opening = LOGISTIC  # σ of both
    projection: Floats | None = None  # (P,) squared norms of the rows of h's projection
    convex: bool = True  # λ + γ ≤ 1, so that h is never larger than what it takes in
    # Where the candidate sees just what the gate sees, λ and γ f(n) as functions of the gate's
    # pre-activation (FastGRNN); None where they are taken as independent.
    written: GateLaw | None = None
    # What is shown is ``σ(o) c/n``, with a normaliser n of the same gates that takes in 1 for u: a
    # weighted mean of what came in (sLSTM).
    averaged: bool = False
    # So many units come first that take in what the others show, and alone are shown to all else
    # (LEM); 0 where every unit sees every other.
    cascade: int = 0


class GateDrive(Struct, frozen=True):
    """What drives λ and γ of a layer beside its biases."""

    law: GateLaw  # λ and γ as functions of z
    gate: GateInput  # z of every eigenvalue
    nominal: GateLaw | None = None  # the law at zero input where that is another
    write: Write | None = None  # a further factor of γ with a pre-activation of its own
    write_gate: GateInput | None = None  # that pre-activation, independent of z
    state: HiddenState | None = None  # None where no gate sees the hidden state
    # For each parameter group of the recurrence that moves λ or γ, by name: the parameter of the
    # law, and what one unit of the group adds to it, alike for all of its entries or (entries,).
    motions: Mapping[str, tuple[str, float | Floats]] = {}
    sees: str = "the layer's input"  # what W multiplies, for the sentence on the input scale


class JointDrive(Struct, frozen=True):
    """What drives λ and γ where several pre-activations of the same input move them."""

    law: JointLaw  # λ and γ as functions of all
    bias: Floats  # (n · kinds, gates), the kinds of states that an eigenvalue drives in turn
    gram: Floats  # (n · kinds, gates, gates) the inner products of the rows of their weights
    # As those of `GateDrive`, of the groups whose κ is given.
    motions: Mapping[str, tuple[str, float | Floats]] = {}
    kinds: tuple[float, ...] = (1.0,)  # the share of the states of each kind
    reason: str | None = None  # why figures beside the band of λ are missing, as a clause
    white_alone: bool = False  # E|h|² is given for a white drive alone
    sees: str = "the layer's input"

    def preactivations(self, input_second_moment: float) -> JointPreactivations:
        """All for an input of independent components of this second moment."""
        return JointPreactivations(self.bias, self.gram * input_second_moment)


class OwnStateDrive(Struct, frozen=True):
    """Gates that see the state of their own unit, of which there is a band alone."""

    # What they have beside it, given E x² and E h² of what they see of others.
    preactivations: Callable[[float, float], JointPreactivations]
    step: OwnStep
    opening: Opening  # σ of the gate that keeps the state
    reason: str  # why there are no moments, as a clause
    projection: float = 1.0  # what a projection makes of E h²


def mixing_drive(
    gate: GateInput, taken: GateInput, shared: Floats, own: Floats, reason: str
) -> OwnStateDrive:
    """``c' = σ(z) c + (1 - σ(z)) u`` with ``z = z₀ + v c``: the SRU.

    ``gate`` is z₀ and ``taken`` u, neither of which sees other units, ``shared`` (n,) the inner
    product of their weights, ``own`` (n,) v, and ``reason`` why there are no moments.
    """

    def preactivations(inputs: float, _: float) -> JointPreactivations:
        both = shared if gate.fixed is not None else shared * inputs
        first, second = (of.variance(inputs, 0.0) for of in (gate, taken))
        covariance = np.stack([first, both, both, second], axis=-1).reshape(-1, 2, 2)
        return JointPreactivations(np.stack([gate.centre, taken.centre], axis=-1), covariance)

    def step(z: Floats, c: Floats, units: Integers) -> OwnState:
        kept = z[..., 0] + own[units] * c
        opened = LOGISTIC(kept)
        return OwnState(kept, opened.value * c + opened.complement * z[..., 1])

    return OwnStateDrive(preactivations, step, LOGISTIC, reason)


def peephole_drive(
    seen: Mapping[str, GateInput],
    opening: Opening,
    projection: Floats | None,
    peepholes: Mapping[str, Floats],
    reason: str,
) -> OwnStateDrive:
    """``c' = σ(f + p_f c) c + σ(i + p_i c) tanh(g)``, ``h = σ(o + p_o c') tanh(c')``.

    ``seen`` is what the gates of the LSTM see without its (n,) ``peepholes`` p, by gate, of those
    that are there; ``projection`` as of `HiddenState`, and ``reason`` why there are no moments.
    """
    gates = [seen[gate] for gate in ("forget", "input", "cell", "output")]
    p = {**dict.fromkeys(seen, np.zeros_like(gates[0].bias)), **peepholes}

    def preactivations(inputs: float, held: float) -> JointPreactivations:
        variances = np.stack([gate.variance(inputs, held) for gate in gates], axis=-1)
        means = np.stack([gate.centre for gate in gates], axis=-1)
        return JointPreactivations(means, variances[..., None] * np.eye(len(gates)))

    def step(z: Floats, c: Floats, units: Integers) -> OwnState:
        forget, entered, candidate, output = np.moveaxis(z, -1, 0)
        kept = forget + p["forget"][units] * c
        taken = opening(entered + p["input"][units] * c).value * np.tanh(candidate)
        after = opening(kept).value * c + taken
        shown = opening(output + p["output"][units] * after).value * np.tanh(after)
        return OwnState(kept, after, shown)

    shown = 1.0 if projection is None else float(np.mean(projection))
    return OwnStateDrive(preactivations, step, opening, reason, shown)


class NoDrive(Struct, frozen=True):
    """A layer whose gates have no figures, and why, as a clause."""

    reason: str


Drive = GateDrive | JointDrive | OwnStateDrive | NoDrive


def squared_rows(matrix: NDArray[Any]) -> Floats:
    """‖·‖² of every row of a real matrix."""
    return np.asarray(np.einsum("ij,ij->i", matrix, matrix))


def low_rank_gate(
    store: TensorStore,
    bias: Floats,
    outer: str,
    inner: str,
    *,
    normalised: Floats | None = None,
    last: bool = False,
) -> GateInput | None:
    """``z = V W x + b`` with the first rows of ``inner`` as W; None where they are not there.

    ``outer`` holds V (…, n, rank) and ``inner`` W (…, rank or more, inputs), one pair for each head
    where there are more axes, with (n,) b of all heads. The squared norms of the rows of V W are
    those of V with W Wᵀ between. ``normalised`` (rank,) is the scale of a norm between the two,
    whose output has RMS 1 whatever the input; ``last`` takes W from the last rows.
    """
    if outer not in store.tensors or inner not in store.tensors:
        return None
    shapes = store.tensors[outer].shape, store.tensors[inner].shape
    if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        return None
    rank = shapes[0][-1]
    if shapes[1][-2] < rank or int(np.prod(shapes[0][:-1])) != bias.size:
        return None
    above = read_finite(store, outer)
    if normalised is not None:
        return GateInput(bias, fixed=np.sum((above * normalised) ** 2, axis=-1).ravel())
    rows = slice(-rank, None) if last else slice(rank)
    below = read_finite(store, inner)[..., rows, :]
    gram = below @ below.swapaxes(-1, -2)
    return GateInput(bias, np.maximum(np.sum((above @ gram) * above, axis=-1), 0.0).ravel())


def inner_products(*rows: Floats) -> Floats:
    """(n, gates, gates) of the weights (n, inputs) of each gate."""
    stacked = np.stack(rows, axis=1)
    return stacked @ stacked.swapaxes(1, 2)


def read_rows(store: TensorStore, tensors: Sequence[str]) -> list[Floats] | None:
    """The real (rows, inputs) weights of gates that see the same input; None where they are not."""
    if any(len(store.tensors[tensor].shape) != 2 for tensor in tensors):
        return None
    found = [read_finite(store, tensor) for tensor in tensors]
    if any(np.iscomplexobj(rows) for rows in found) or len({rows.shape for rows in found}) > 1:
        return None
    return found


def repeated(gate: GateInput, count: int) -> GateInput:
    """The gate of every one of ``count`` eigenvalues that one pre-activation moves."""
    fixed = None if gate.fixed is None else np.repeat(gate.fixed, count)
    inputs = np.broadcast_to(gate.inputs, gate.bias.shape)
    return GateInput(np.repeat(gate.bias, count), np.repeat(inputs, count), fixed=fixed)
