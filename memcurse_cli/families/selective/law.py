"""Layers that a law of their gates describes: a family is its names, its slots and one formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families import family
from memcurse_cli.families.family import Assumption
from memcurse_cli.families.gate_inputs import (
    Drive,
    GateDrive,
    GateInput,
    HiddenState,
    low_rank_gate,
    squared_rows,
)
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    first_name,
    log_of_eigenvalues,
    log_sigmoid,
    misfit,
    require_finite,
    shown_shape,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, Integers, Recurrence
from memcurse_cli.theory.gates.laws import (
    LOGISTIC,
    Exponential,
    GateLaw,
    JointLaw,
    JointValues,
    Overwrite,
    StepSize,
    Write,
    soft_cap,
)

CONVERTED = (
    "ssm_a is -exp(A_log), as llama.cpp's converter has stored it; training moves A_log, whose unit"
    " moves ssm_a by its own size"
)

RANDOM_KEYS = (
    "for --gates keys are of norm 1, drawn anew at every step from all directions alike: a step"
    " forgets what it overwrites"
)

Seen = GateInput | Drive | tuple[GateInput | None, GateInput | None] | None
"""The pre-activation of λ, or with it that of a write gate; a whole drive, as of a joint law; None
where weights are not in the checkpoint."""


_STEEPEST = 150.0  # log of a rate: its product with a step stays finite


class Slot(NamedTuple):
    """A stored tensor, or a part of one, and the parameter of a law that it moves."""

    name: str  # of its group: a role of the layer, with the part in brackets
    values: Floats  # (size,)
    moves: str  # the parameter of the law, or of the write gate
    scale: float | Floats = 1.0  # what a unit of a scalar adds to that, for all or of each entry
    # (entries,) which scalar moves something and which eigenvalue: each in turn by default.
    scalar: Integers | None = None
    eigenvalue: Integers | None = None
    keeps_stable: bool = False  # as of `ParameterGroup`
    tensor: str = ""  # where the name does not tell it
    driven: bool = True  # whether what it moves is known beside zero input too


class Layer(family.Layer):
    """A layer whose gates a law describes."""

    def first(self, roles: Sequence[str]) -> str:
        """The first of these roles that it has."""
        return next(role for role in roles if role in self.names)

    def rows_per(self, count: int, *roles: str) -> int:
        """The rows (outputs) of each of ``count`` heads in the first of these weights; or 1."""
        tensor = first_name(self.names, roles)
        rows, *_ = *(() if tensor is None else self.store.tensors[tensor].shape), 0
        return rows // count if count and rows and rows % count == 0 else 1

    def stacked_rows(self, role: str, count: int = 1) -> int:
        """The rows of each of ``count`` equal layers in one weight (outputs, inputs).

        Raises TensorError: it is no matrix, is empty, or its rows do not divide.
        """
        self.require(role, (None, None))
        shape = self.shape(role)
        if not shape[0] or shape[0] % count:
            what = f"the rows of its shape {shown_shape(shape)} are not {count} equal parts"
            raise misfit(what, self.names[role])
        return shape[0] // count

    def misshapen(self, role: str, what: str, remedy: str = "") -> TensorError:
        """What to raise where a shape contradicts the others: "its shape (2, 3) …"."""
        return misfit(f"its shape {shown_shape(self.shape(role))} {what}", self.names[role], remedy)

    def unknown(self, assumption: Assumption, value: str, remedy: str) -> UsageError:
        """What to raise where an assumption has no such value."""
        what = f"{value} is not a value of {assumption.key}"
        return UsageError(what, where="--assume", remedy=remedy)

    def projected(
        self, bias: Floats, *roles: str, rows: slice | Integers | None = None, factor: float = 1.0
    ) -> GateInput | None:
        """``z = W x + b`` with W, or rows of it, in one of these roles or a tensor; or None."""
        tensor = first_name(self.names, roles) or roles[0]
        if tensor not in self.store.tensors or len(self.shape(tensor)) != 2:
            return None
        weight = self.finite(tensor)
        if rows is not None:
            weight = weight[rows]
        return (
            GateInput(bias, factor**2 * squared_rows(weight)) if len(weight) == bias.size else None
        )

    def gate_through(
        self, bias: Floats, role: str, layers: Sequence[tuple[str, ...]], rows: slice | None = None
    ) -> GateInput | None:
        """The pre-activation behind the first of ``layers``, one or (outer, inner), that fits."""
        for layer in layers:
            names = [self.beside(role, name) or "" for name in layer]
            if len(names) == 1:
                gate = self.projected(bias, *names, rows=rows)
            else:
                gate = low_rank_gate(self.store, bias, *names)
            if gate is not None:
                return gate
        return None

    def gated(
        self,
        law: GateLaw | JointLaw,
        at: Floats,
        slots: Sequence[Slot],
        *,
        gates: Callable[[], Seen] | None = None,
        nominal: GateLaw | None = None,
        write: Write | None = None,
        state: HiddenState | None = None,
        sees: str = "the layer's input",
        tensors: Sequence[str] | None = None,
        assumptions: Sequence[str] = (),
        input_dependent: bool = True,
        converted: bool = False,
        stable: bool = True,
        **fields: Any,
    ) -> Recurrence:
        """The layer at its nominal gates; with ``--gates`` the same law is what moves.

        log λ comes from 1 - λ where λ > 1/2, so that decays keep their digits down to 1e-300.
        ``at`` is (n,) the pre-activation at zero input, or (n, gates) where the law takes several.
        ``slots`` are what is stored; ``tensors`` names what is read, by default that of the slots,
        or all. ``gates`` is asked for what the gates see, and ``nominal``, ``write``, ``state`` and
        ``sees`` are those of `GateDrive`. ``assumptions`` are sentences beside those of `choose`.
        A ``converted`` decay is as llama.cpp's converter leaves it, of either sign; in a ``stable``
        layer no value of what is stored gives |λ| ≥ 1. Raises a TensorError where λ overflows.
        """
        of_slots = [slot.tensor or self.names[slot.name.partition("[")[0]] for slot in slots]
        with np.errstate(divide="ignore", over="ignore"):
            values = (nominal or law)(at)
            if isinstance(values, JointValues):
                log, still = values.log_eigenvalue, values.nominal
            else:
                still, lost = values, values.complement
                far = ~(lost < 0.5)
                log = np.log1p(-np.where(far, 0.0, lost)).astype(np.complex128)
                log[far] = log_of_eigenvalues(still.eigenvalue[far])
        if slots:
            require_finite(np.asarray(still.eigenvalue), of_slots[0], "λ")
        gain = np.maximum(still.gain, np.exp(-LARGEST_DECAY))
        log_gain = np.log(gain)
        motions = {name: (of.eigenvalue, of.gain / gain) for name, of in still.motions.items()}
        if write is not None:
            biases = [slot.values for slot in slots if slot.moves == write.parameter]
            factor, slope = _log_factor(write, sum(biases, np.zeros(len(at))))
            log_gain = log_gain + factor
            moved, _ = motions.get(write.parameter, (np.zeros(len(at)), 0.0))
            motions[write.parameter] = moved, slope
        seen = gates() if gates is not None and self.options.gates else None
        gate, write_gate = seen if isinstance(seen, tuple) else (seen, None)
        drive = None if isinstance(gate, GateInput) else gate
        if (
            isinstance(law, GateLaw)
            and isinstance(gate, GateInput)
            and (write is None) == (write_gate is None)
        ):
            drive = GateDrive(
                law,
                gate,
                nominal=nominal,
                write=write,
                write_gate=write_gate,
                state=state,
                motions={slot.name: (slot.moves, slot.scale) for slot in slots if slot.driven},
                sees=sees,
            )

        overwrites = isinstance(law, Overwrite) or (write is not None and write.width < np.inf)
        also = (
            *assumptions,
            *([RANDOM_KEYS] if overwrites and isinstance(drive, GateDrive) else []),
            *([CONVERTED] if converted else []),
        )
        groups = []
        for slot, tensor in zip(slots, of_slots, strict=True):
            each = np.arange(len(at)) if slot.eigenvalue is None else slot.eigenvalue
            by_eigenvalue, by_gain = (slot.scale * of[each] for of in motions[slot.moves])
            groups.append(
                self.group(
                    tensor,
                    slot.values,
                    by_eigenvalue,
                    by_gain if np.any(by_gain) else None,
                    name=slot.name,
                    scalar=slot.scalar,
                    eigenvalue=each,
                    keeps_stable=slot.keeps_stable,
                )
            )
        return self.recurrence(
            np.maximum(log.real, -LARGEST_DECAY) + 1j * log.imag,
            groups,
            log_gain=log_gain,
            tensors=tensors or tuple(dict.fromkeys(of_slots)) or None,
            also=also,
            input_dependent=input_dependent,
            stable_by_construction=stable and not converted,
            gate=drive,
            **fields,
        )


def step_size(
    rate: Slot, bias: Slot, *, writes: bool = True, stored: bool = False
) -> tuple[StepSize, Floats, list[Slot]]:
    """``λ = exp(-e^rate softplus(bias))``, or ``exp(rate softplus(bias))`` where that is stored.

    With the step's pre-activation of every eigenvalue, and the slots of both, of which the one of
    fewer scalars moves several eigenvalues in a row with each.
    """
    size = max(rate.values.size, bias.values.size)
    slots = [
        slot._replace(scalar=np.arange(size) // (size // slot.values.size))
        for slot in (rate, bias._replace(keeps_stable=stored))
    ]
    rates = -rate.values if stored else np.exp(np.minimum(rate.values, _STEEPEST))
    law = StepSize(rates[slots[0].scalar], writes, negated=stored)
    return law, bias.values[slots[1].scalar], slots


class LawFamily(family.Family):
    """A family with one formula for all of its layers, whose gates a law describes."""

    layer_type = Layer


def _log_factor(write: Write, at: Floats) -> tuple[Floats, Floats]:
    """log of the factor and its slope by the pre-activation, where the factor may overflow."""
    if isinstance(write.opening, Exponential):
        cap = write.opening.cap
        return (at, np.ones_like(at)) if cap is None else soft_cap(at, cap)
    if write.opening == LOGISTIC:
        return np.log(write.factor) + log_sigmoid(at), sigmoid(-at)
    opened = write(at)
    floored = np.maximum(opened.value, np.exp(-LARGEST_DECAY))
    return np.log(floored), opened.slope / floored
