"""The LSTM and the cells of one update gate, from their gates' biases and hidden weights.

Everything stands at zero input and zero state. λ = σ(b) is what a unit keeps by itself; the
Jacobian of one step of the whole state holds the memory through the hidden weights as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.family import Match
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    HiddenState,
    NoDrive,
    peephole_drive,
)
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    log_of_eigenvalues,
    log_sigmoid,
    one_to_one,
    read_real,
    sigmoid,
)
from memcurse_cli.families.recurrence import (
    Complexes,
    Floats,
    HiddenSpectra,
    ParameterGroup,
    Recurrence,
)
from memcurse_cli.theory.gates.laws import LOGISTIC, Clipped, Keep, Mix, Opening, Write
from memcurse_cli.theory.linalg import eigenvalues

LARGEST_JACOBIAN = 1024
"""The order above which the Jacobian is left out: that of an LSTM of 512 units."""


def step_spectra(
    weights: Mapping[str, Floats],
    jacobian: Callable[[], Floats],
    order: int,
    device: str = "auto",
    reason: str | None = None,
) -> HiddenSpectra:
    """The eigenvalues of each gate's hidden matrix, and of the Jacobian of one step.

    Args:
        weights: (H, H) of each gate; none where they are not square.
        jacobian: what makes the Jacobian, where it is not too large.
        order: its order.
        device: for the eigendecompositions.
        reason: why there is no Jacobian, or None.
    """
    reasons = [] if reason is None else [reason]
    if not weights:
        reasons.append("the gates' hidden matrices are not square and have no eigenvalues")
    if reason is None and order > LARGEST_JACOBIAN:
        reasons.append(
            f"a Jacobian of order {order} costs more than all gates, so those above "
            f"{LARGEST_JACOBIAN} are not taken"
        )
    taken = reason is None and order <= LARGEST_JACOBIAN
    return HiddenSpectra(
        gates={gate: eigenvalues(matrix, device) for gate, matrix in weights.items()},
        jacobian=eigenvalues(jacobian(), device) if taken else None,
        reason="; ".join(reasons) or None,
    )


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
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    inner_bias: Floats | None,
    offset: Floats | float = 0.0,
) -> Floats:
    """dh'/dh at zero input and h = 0, by the chain rule.

    ``h' = σ(z) h + (1 - σ(z - β)) tanh(n)`` with ``n = b_n + σ(r) (W_n h + b_inner)``, or, where
    the reset gate acts before the matrix, ``n = b_n + W_n (σ(r) h)``.

    Args:
        weights: (H, H) W of the gates reset and update and of the candidate new, row = target;
            without that of ``new`` the candidate does not see the state.
        biases: (H,) b of the gates, summed over the tensors that hold it, and b_n of ``new``;
            without that of ``reset`` there is no such gate.
        inner_bias: (H,) b_inner, zeros where there is none; None where the reset gate acts before
            the matrix.
        offset: β.
    """
    update, shifted = sigmoid(biases["update"]), biases["update"] - offset
    closed = sigmoid(-shifted)
    reset = sigmoid(biases["reset"]) if "reset" in biases else np.ones_like(update)
    inner = np.zeros_like(update) if inner_bias is None else reset * inner_bias
    candidate = np.tanh(biases["new"] + inner)
    jacobian: Floats = np.diag(update) - _scaled(
        sigmoid(shifted) * closed * candidate, weights["update"]
    )
    if "new" in weights:
        slope = closed * (1 - candidate**2)
        if inner_bias is None:
            return jacobian + _scaled(slope, weights["new"] * reset)
        jacobian += _scaled(slope * reset, weights["new"])
        jacobian += _scaled(slope * inner * sigmoid(-biases["reset"]), weights["reset"])
    return jacobian


def _scaled(factor: Floats, matrix: Floats) -> Floats:
    """diag(factor) matrix."""
    return factor[:, None] * matrix


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
        """One parameter group per tensor, all with the derivatives of the sum.

        Each is called after its tensor's role and, where it is one block of many, after the gate.
        """
        return tuple(
            one_to_one(
                f"{role}[{gate}]" if gate else role,
                tensor,
                values,
                dtype,
                eigenvalue_derivative,
                log_gain_derivative,
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
    seen: Mapping[str, GateInput] | None = None,
    undriven: NoDrive | None = None,
    projection: Floats | None = None,
) -> Recurrence:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i).

    Args:
        match: the layer.
        family: the name of its family.
        biases: those of the gates ``forget`` and ``input``.
        function: σ.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        seen: what all four gates see, where that was asked for and is known.
        undriven: why there are no figures of that, or None.
        projection: (P,) squared norms of the rows of what projects the state, or None.
    """
    forget, opened = biases["forget"], biases["input"]
    kept, written = function(forget.total), function(opened.total)
    groups = {
        "forget": forget.groups("forget", kept.derivative),
        "input": opened.groups("input", np.zeros(opened.total.size), written.log_derivative),
    }
    drive: GateDrive | NoDrive | None = undriven
    if seen:
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


PEEPHOLES = (
    "λ is the slope at c = 0, to which of the peepholes only the input gate's adds: "
    "λ = σ(b_f) + p_i σ'(b_i) tanh(b_g)"
)
_OWN_STATE = (
    "peepholes let its gates see their own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of its forget gate, drawn"
)


@dataclass(frozen=True)
class Peephole:
    """The weights by which a gate sees its own unit's cell.

    Attributes:
        name: the name of their group.
        tensor: the tensor that holds them.
        values: (H,) p.
        dtype: the stored type.
    """

    name: str
    tensor: str
    values: Floats
    dtype: str


def read_peepholes(
    store: TensorStore, match: Match, role: str, gates: tuple[str, ...], size: int
) -> dict[str, Peephole]:
    """Those of a tensor that holds (H,) of each of these gates, one after the other.

    Raises:
        TensorError: NaN or inf in it, or another shape.
    """
    tensor = match.tensors[role]
    values = read_real(store, tensor, (len(gates) * size,)).reshape(len(gates), size)
    dtype = store.tensors[tensor].dtype
    return {
        gate: Peephole(f"{role}[{gate}]", tensor, block, dtype)
        for gate, block in zip(gates, values, strict=True)
    }


def with_peepholes(
    recurrence: Recurrence,
    biases: Mapping[str, GateBias],
    peepholes: Mapping[str, Peephole],
    function: GateFunction,
) -> Recurrence:
    """An LSTM's recurrence with its peepholes' term in λ, its derivatives and what moves its gates.

    ``c' = σ(b_f + p_f c) c + σ(b_i + p_i c) tanh(b_g)`` at zero input and h = 0. The slope at c = 0
    is λ = σ(b_f) + p_i σ'(b_i) tanh(b_g): p_f multiplies c², and p_o acts on the output alone.

    Args:
        recurrence: the LSTM as it is without peepholes, λ = σ(b_f) and γ = σ(b_i).
        biases: those of its gates.
        peepholes: p_f, p_i and p_o by gate, of those that are there.
        function: σ.
    """
    plain = recurrence.gate
    if isinstance(plain, GateDrive) and plain.state is not None and peepholes:
        seen = {gate: peephole.values for gate, peephole in peepholes.items()}
        drive = peephole_drive(plain, plain.state, seen, _OWN_STATE)
        recurrence = replace(recurrence, gate=drive)
    if "input" not in peepholes:
        return recurrence
    peephole = peepholes["input"]
    opened = function(biases["input"].total)
    slope = opened.derivative
    curvature = 0.0 if function.saturates else slope * (1 - 2 * opened.value)
    candidate = np.tanh(biases["cell"].total)
    bent = curvature * peephole.values * candidate
    groups = [
        replace(group, eigenvalue_derivative=group.eigenvalue_derivative + bent)
        if group.name.endswith("[input]")
        else group
        for group in recurrence.parameters
    ]
    groups += biases["cell"].groups("cell", slope * peephole.values * (1 - candidate**2))
    groups.append(
        one_to_one(
            peephole.name, peephole.tensor, peephole.values, peephole.dtype, slope * candidate
        )
    )
    added = peephole.values * slope * candidate
    return replace(
        recurrence,
        log_eigenvalues=_log_sum(recurrence.log_eigenvalues, added),
        parameters=tuple(groups),
        stable_by_construction=False,
        assumptions=(*recurrence.assumptions, PEEPHOLES),
    )


def _log_sum(log_gate: Complexes, added: Floats) -> Complexes:
    """log(σ + added); as log σ + log1p(added / σ) it keeps its digits next to the unit circle."""
    kept = np.exp(log_gate.real)
    total = kept + added
    ratio = np.divide(added, kept, out=np.full_like(added, np.inf), where=kept > 0)
    precise = np.abs(ratio) < 0.5
    logs = log_gate + np.log1p(np.where(precise, ratio, 0.0))
    return np.where(precise, logs, log_of_eigenvalues(total))
