"""The LSTM and the cells of one update gate, from their gates' biases.

What an LSTM and a GRU remember through their hidden weights, whatever library stored them.

Everything stands at zero input and zero state. The Jacobian is that of one step of the whole
state, so it holds the memory that λ = σ(b) leaves out.

The functions that open a gate: the logistic sigmoid and its piecewise linear stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.families.family import Match
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, HiddenState, NoDrive, RowNorms
from memcurse_cli.families.reading import LARGEST_DECAY, log_sigmoid, one_to_one, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, ParameterGroup, Recurrence
from memcurse_cli.theory.gates.laws import LOGISTIC, Clipped, Keep, Mix, Opening, Write
from memcurse_cli.theory.gates.network import GatedNetwork
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

LARGEST_JACOBIAN = 1024
"""The order above which the Jacobian is left out: that of an LSTM of 512 units."""


def jacobian_beyond(order: int) -> str | None:
    """Why a Jacobian of this order is not taken, or None where it is."""
    if order <= LARGEST_JACOBIAN:
        return None
    return f"a Jacobian of order {order} is above {LARGEST_JACOBIAN} and is not taken"


def lstm_spectra(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    projection: Floats | None = None,
    device: str = "auto",
    peepholes: Mapping[str, Floats] | None = None,
    inputs: Mapping[str, Floats] | None = None,
) -> HiddenSpectra:
    """The spectra of an LSTM's gates and of its step.

    Args:
        weights: as of `lstm_jacobian`, like the biases, the projection and the peepholes.
        biases: of each gate.
        projection: of the state, or None.
        device: for the eigendecompositions.
        peepholes: of the gates that have some.
        inputs: (H, inputs) of each gate where they are known, for the network as a whole.
    """
    size = biases["forget"].size
    outputs = size if projection is None else projection.shape[0]
    found = _spectra(
        {} if projection is not None else weights,
        lambda: lstm_jacobian(weights, biases, projection, peepholes),
        size + outputs,
        device,
    )
    if inputs is None or projection is not None or peepholes:
        return found
    return replace(found, network=GatedNetwork(weights, inputs, biases))


def gru_spectra(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    inner_bias: Floats | None,
    device: str = "auto",
    inputs: Mapping[str, Floats] | None = None,
) -> HiddenSpectra:
    """The spectra of a GRU's gates and of its step.

    Args:
        weights: as of `gru_jacobian`, like the biases.
        biases: of each gate.
        inner_bias: of the candidate.
        device: for the eigendecompositions.
        inputs: (H, inputs) of each gate where they are known, for the network as a whole.
    """
    found = _spectra(
        weights, lambda: gru_jacobian(weights, biases, inner_bias), biases["update"].size, device
    )
    if inputs is None:
        return found
    return replace(found, network=GatedNetwork(weights, inputs, biases, inner_bias))


def lstm_jacobian(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    projection: Floats | None = None,
    peepholes: Mapping[str, Floats] | None = None,
) -> Floats:
    """d(h', c')/d(h, c) at zero input, h = 0 and c = 0, by the chain rule.

    ``c' = σ(f) c + σ(i) tanh(g)``, ``h' = R σ(o) tanh(c')``, and every gate is ``W h + b``, plus
    ``p c`` for the input gate and ``p c'`` for the output gate where there are peepholes.

    Args:
        weights: (H, P) W of the gates input, forget, cell and output, row = target.
        biases: (H,) b of each gate, summed over the tensors that hold it.
        projection: (P, H) R, or None for the identity.
        peepholes: (H,) p of the gates input and output, as far as they are there.

    Returns:
        (P + H, P + H), h before c.
    """
    seen = {"input": 0.0, "output": 0.0} | dict(peepholes or {})
    opened, forget = sigmoid(biases["input"]), sigmoid(biases["forget"])
    candidate = np.tanh(biases["cell"])
    written = opened * candidate
    bent = np.tanh(written)
    shown = biases["output"] + seen["output"] * written
    output, turned = sigmoid(shown), sigmoid(shown) * sigmoid(-shown) * bent
    slope = output * (1 - bent**2) + seen["output"] * turned
    # The forget gate's own weights and peephole multiply c = 0.
    turned_input = opened * sigmoid(-biases["input"]) * candidate
    cell_by_cell = forget + seen["input"] * turned_input
    cell_by_state = _scaled(turned_input, weights["input"])
    cell_by_state += _scaled(opened * (1 - candidate**2), weights["cell"])
    state_by_state = _scaled(slope, cell_by_state)
    state_by_state += _scaled(turned, weights["output"])
    state_by_cell = np.diag(slope * cell_by_cell)
    if projection is not None:
        state_by_state, state_by_cell = projection @ state_by_state, projection @ state_by_cell
    return np.block([[state_by_state, state_by_cell], [cell_by_state, np.diag(cell_by_cell)]])


def gru_jacobian(
    weights: Mapping[str, Floats], biases: Mapping[str, Floats], inner_bias: Floats | None
) -> Floats:
    """dh'/dh at zero input and h = 0, by the chain rule.

    ``h' = σ(z) h + (1 - σ(z)) tanh(n)`` with ``n = b_n + σ(r) (W_n h + b_inner)``, or, where the
    reset gate acts before the matrix, ``n = b_n + W_n (σ(r) h)``.

    Args:
        weights: (H, H) W of the gates reset and update and of the candidate new, row = target.
        biases: (H,) b of the gates, summed over the tensors that hold it, and b_n of ``new``.
        inner_bias: (H,) b_inner, zeros where there is none; None where the reset gate acts before
            the matrix.
    """
    reset, update = sigmoid(biases["reset"]), sigmoid(biases["update"])
    closed = sigmoid(-biases["update"])
    if inner_bias is None:
        candidate = np.tanh(biases["new"])
        inside = weights["new"] * reset
    else:
        candidate = np.tanh(biases["new"] + reset * inner_bias)
        inside = _scaled(reset, weights["new"])
        inside += _scaled(reset * sigmoid(-biases["reset"]) * inner_bias, weights["reset"])
    jacobian = _scaled(closed * (1 - candidate**2), inside)
    jacobian -= _scaled(update * closed * candidate, weights["update"])
    return jacobian + np.diag(update)


def _scaled(factor: Floats, matrix: Floats) -> Floats:
    """diag(factor) matrix."""
    return factor[:, None] * matrix


def _spectra(
    weights: Mapping[str, Floats], jacobian: Callable[[], Floats], order: int, device: str
) -> HiddenSpectra:
    reasons = []
    if not weights:
        reasons.append("the gates' hidden matrices are not square and have no eigenvalues")
    if order > LARGEST_JACOBIAN:
        reasons.append(
            f"a Jacobian of order {order} costs more than all gates, so those above "
            f"{LARGEST_JACOBIAN} are not taken"
        )
    return HiddenSpectra(
        gates={gate: eigenvalues(matrix, device) for gate, matrix in weights.items()},
        jacobian=eigenvalues(jacobian(), device) if order <= LARGEST_JACOBIAN else None,
        reason="; ".join(reasons) or None,
    )


@dataclass(frozen=True)
class OpenGate:
    """A gate that stands at its bias.

    Attributes:
        value: (H,) how far it is open, in [0, 1].
        log_value: (H,) its logarithm, cut at `LARGEST_DECAY`.
        log_opposite: (H,) log(1 - value), cut likewise.
        derivative: (H,) d value / d bias.
        log_derivative: (H,) d log(value) / d bias.
        log_opposite_derivative: (H,) d log(1 - value) / d bias.
    """

    value: Floats
    log_value: Floats
    log_opposite: Floats
    derivative: Floats
    log_derivative: Floats
    log_opposite_derivative: Floats


@dataclass(frozen=True)
class Sigmoid:
    """``σ(b) = 1 / (1 + e⁻ᵇ)``; it never closes or opens entirely."""

    saturates = False

    @property
    def opening(self) -> Opening:
        """The same function for any pre-activations."""
        return LOGISTIC

    def __call__(self, bias: Floats) -> OpenGate:
        """The gate at a bias."""
        value, opposite = sigmoid(bias), sigmoid(-bias)
        return OpenGate(
            value=value,
            log_value=log_sigmoid(bias),
            log_opposite=log_sigmoid(-bias),
            derivative=value * opposite,
            log_derivative=opposite,
            log_opposite_derivative=-value,
        )

    def spectra(self, take: Callable[[], HiddenSpectra]) -> HiddenSpectra:
        """The spectra of the layer's hidden weights, which assume this function."""
        return take()


@dataclass(frozen=True)
class HardSigmoid:
    """``min(1, max(0, slope · b + offset))``: 0 and 1 are reached, and no bias moves them then."""

    slope: float
    offset: float
    saturates = True

    @property
    def opening(self) -> Opening:
        """The same function for any pre-activations."""
        return Clipped(self.slope, self.offset)

    def __call__(self, bias: Floats) -> OpenGate:
        """The gate at a bias."""
        line = self.slope * bias + self.offset
        value = np.clip(line, 0.0, 1.0)
        slope = np.where((line > 0) & (line < 1), self.slope, 0.0)
        smallest = np.exp(-LARGEST_DECAY)
        # Where the slope is 0 the quotient is 0, whatever stands below it.
        return OpenGate(
            value=value,
            log_value=np.log(np.maximum(value, smallest)),
            log_opposite=np.log(np.maximum(1 - value, smallest)),
            derivative=slope,
            log_derivative=slope / np.where(slope == 0, 1.0, value),
            log_opposite_derivative=-slope / np.where(slope == 0, 1.0, 1 - value),
        )

    def spectra(self, take: Callable[[], HiddenSpectra]) -> HiddenSpectra:
        """None of the layer's hidden weights: their Jacobian assumes the logistic sigmoid."""
        reason = "the gates are hard sigmoids, for which they are not taken"
        return HiddenSpectra(gates={}, jacobian=None, reason=reason)


GateFunction = Sigmoid | HardSigmoid


WITHOUT_BIAS = (
    "the layer has no bias: at zero input its gates stand at 1/2 and only the weights move them, "
    "so no parameter is listed"
)


@dataclass(frozen=True)
class GateBias:
    """The bias of one gate, summed over the tensors that hold it.

    Attributes:
        total: (H,) the sum: the gate's pre-activation at zero input and zero state.
        parts: (role, tensor, values, dtype) of each tensor's block of this gate.
    """

    total: Floats
    parts: tuple[tuple[str, str, Floats, str], ...] = ()

    def groups(
        self, gate: str, eigenvalue_derivative: Floats, log_gain_derivative: Floats | None = None
    ) -> tuple[ParameterGroup, ...]:
        """One parameter group per tensor, all with the derivatives of the sum."""
        return tuple(
            one_to_one(
                f"{role}[{gate}]", tensor, values, dtype, eigenvalue_derivative, log_gain_derivative
            )
            for role, tensor, values, dtype in self.parts
        )

    def split(self, inner: str) -> tuple[Floats, Floats]:
        """What stands outside and what inside the reset gate."""
        zero = np.zeros_like(self.total)
        outside, inside = zero, zero
        for role, _, values, _ in self.parts:
            if role == inner:
                inside = inside + values
            else:
                outside = outside + values
        return outside, inside


def lstm_recurrence(
    match: Match,
    *,
    family: str,
    biases: Mapping[str, GateBias],
    function: GateFunction,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
    norms: Mapping[str, RowNorms] | None = None,
    projection: Floats | None = None,
) -> Recurrence:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i).

    Args:
        match: the layer.
        family: the name of its family.
        biases: those of the gates ``forget`` and ``input``, and with norms all four.
        function: σ.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        norms: those of the weights of all four gates, where they were asked for.
        projection: (P,) squared norms of the rows of what projects the state, or None.
    """
    forget, opened = biases["forget"], biases["input"]
    kept, written = function(forget.total), function(opened.total)
    groups = {
        "forget": forget.groups("forget", kept.derivative),
        "input": opened.groups("input", np.zeros(opened.total.size), written.log_derivative),
    }
    drive = None
    if norms is not None:
        seen = {gate: GateInput(biases[gate].total, norm) for gate, norm in norms.items()}
        drive = GateDrive(
            law=Keep(function.opening),
            gate=seen["forget"],
            write=Write(function.opening),
            write_gate=seen["input"],
            state=HiddenState(
                seen["cell"],
                output=seen["output"],
                opening=function.opening,
                projection=projection,
            ),
            motions={group.name: (gate, 1.0) for gate in groups for group in groups[gate]},
        )
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=kept.log_value.astype(np.complex128),
        log_gain=written.log_value.astype(np.complex128),
        parameters=(*groups["forget"], *groups["input"]),
        input_dependent=True,
        stable_by_construction=not function.saturates,
        assumptions=assumptions if forget.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=True,
        hidden=hidden,
        gate=drive,
    )


def coupled_recurrence(
    match: Match,
    *,
    family: str,
    gate: str,
    bias: GateBias,
    keeps: bool,
    function: GateFunction | None = None,
    hidden_feedback: bool = False,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
    inputs: GateInput | NoDrive | None = None,
    state: HiddenState | None = None,
) -> Recurrence:
    """``h[t+1] = λ h[t] + (1-λ) u`` with λ = σ(b), or 1 - σ(b), and γ = 1 - λ.

    dλ/db = ±σ'(b) and d log γ/db = ∓σ'(b) / (1-λ), the upper sign where the gate keeps the state.

    Args:
        match: the layer.
        family: the name of its family.
        gate: the gate's name, for the groups of its bias.
        bias: that of the gate.
        keeps: an open gate keeps the state (λ = σ(b)), not the candidate (λ = 1 - σ(b)).
        function: σ, the logistic sigmoid by default; a hard one keeps.
        hidden_feedback: a gate or the candidate sees the state through a dense matrix.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        inputs: what the gate sees, or why that is not known, where that was asked for.
        state: how large the state is that it sees, likewise.
    """
    function = function or Sigmoid()
    sign = 1.0 if keeps else -1.0
    kept = function(sign * bias.total)
    groups = bias.groups(gate, sign * kept.derivative, sign * kept.log_opposite_derivative)
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=kept.log_value.astype(np.complex128),
        log_gain=kept.log_opposite.astype(np.complex128),
        parameters=groups,
        input_dependent=True,
        stable_by_construction=not function.saturates,
        assumptions=assumptions if bias.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=hidden_feedback,
        hidden=hidden,
        gate=(
            GateDrive(
                law=Mix(keeps=keeps, opening=function.opening),
                gate=inputs,
                state=state,
                motions={group.name: ("update", 1.0) for group in groups},
            )
            if isinstance(inputs, GateInput)
            else inputs
        ),
    )
