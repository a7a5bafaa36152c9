"""The Elman network in torch's layout, and the dense linear recurrence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.layout import STATE, Cell
from memcurse_cli.families.cells.torch_names import (
    Lookalikes,
    hidden_weights,
    read_weight,
    torch_layout,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION, dense_recurrence
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import (
    complex_roles,
    read_readin,
    read_readout,
    read_real,
    require_order,
    shown_shape,
)
from memcurse_cli.families.recurrence import Recurrence

CELLS = Lookalikes("rnn", "torch's RNN", refused=("atr", "antisymmetric_rnn", "sgrn", "miru"))
# A continuous-time layer stores its step beside A: it is another family's.
STEPS = ("log_dt", "inv_dt", "log_step", "dt", "A_log")


class ElmanRNN:
    """``h[t+1] = φ(W_hh h[t] + W_ih x[t+1] + b)``, linearised: A = W_hh, B = W_ih, up to a slope.

    Row = target, as in torch. Where the input weight shows by its shape that a port multiplies
    from the right, ``h W_hh``, both are transposed. Biases matter to the operating point alone.
    """

    name = "dense_rnn"
    title = "Elman RNN (dense)"
    recognised_by = "weight_hh_l0, weight_hh or W_hh (H, H)"
    equation = "λ = eig(weight_hh)"
    source = "torch.nn.RNN; Elman 1990; theory of Zucchet & Orvieto 2024, section 4"
    assumptions: tuple[Assumption, ...] = (ACTIVATION, CELLS.assumption)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers whose hidden weight is (H, H), and those whose shape fits no torch layer.

        The latter are found to be reported as unreadable, not passed over in silence.
        """
        return hidden_weights(tensors, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the weights and decompose the hidden one.

        Raises:
            TensorError: NaN or inf, weights whose shapes do not fit together, or a tensor or a name
                that another cell has.
        """
        assumed = CELLS.choose(store, match, options).sentences
        tensor = match.tensors["weight_hh"]
        shape = store.tensors[tensor].shape
        if shape[0] != shape[1]:
            raise TensorError(
                f"its shape {shown_shape(shape)} is neither (H, H) of an RNN, (3H, H) of a GRU "
                "nor (4H, H) of an LSTM",
                where=tensor,
                remedy="export the layer under torch's names and shapes",
            )
        require_order(shape[0], tensor)
        matrix, readin = (
            read_weight(store, match, "weight_hh"),
            read_weight(store, match, "weight_ih"),
        )
        assert matrix is not None
        activation, chosen = options.choose(ACTIVATION)
        assumptions = [*assumed, *(() if chosen else (f"the activation is {activation}",))]
        if readin is not None and readin.shape[0] != shape[0]:
            if readin.shape[1] != shape[0]:
                raise TensorError(
                    f"its shape {shown_shape(readin.shape)} does not fit {shape[0]} hidden units",
                    where=match.tensors["weight_ih"],
                    remedy="export the layer under torch's names and shapes",
                )
            matrix, readin = matrix.T, readin.T
            assumptions.append("weights multiply from the right, as the input weight's shape says")
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=matrix,
            tensor=tensor,
            activation=activation,
            device=options.device,
            readin=None if readin is None else readin.astype(np.complex128),
            bias=Cell(store, match, torch_layout(STATE)).biases["state"].total,
            assumptions=tuple(assumptions),
        )


class DenseLinearRNN:
    """``h[t+1] = A h[t] + B x[t+1]``, ``y = C h + D x``."""

    name = "dense_linear"
    title = "Dense linear RNN"
    recognised_by = "real A (n, n) beside B (n, inputs), and no step size"
    equation = "λ = eig(A)"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 4"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a square real A and a B of as many rows."""
        roles = ("A", *complex_roles("B"), *complex_roles("C"), "D", *STEPS)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            if "A" not in names or names.keys() & set(STEPS):
                continue
            spec = tensors[names["A"]]
            readins = [tensors[names[role]] for role in ("B", "B_re", "B_real") if role in names]
            if (
                len(spec.shape) == 2
                and spec.shape[0] == spec.shape[1]
                and not spec.dtype.startswith("complex")
                and any(spec.shape[0] in readin.shape for readin in readins)
            ):
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A, B and C and decompose A.

        Raises:
            TensorError: NaN or inf, or matrices whose shapes do not fit together.
        """
        tensor = match.tensors["A"]
        size = store.tensors[tensor].shape[0]
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=read_real(store, tensor, (size, size)),
            tensor=tensor,
            activation="linear",
            device=options.device,
            readin=read_readin(store, match.tensors, size),
            readout=read_readout(store, match.tensors, size),
        )


class LinearSystem(DenseLinearRNN):
    """``x[t+1] = A x[t] + B u[t]``, ``y = C x``: a state-space model of system identification.

    Only looked for by its name, since these letters alone say nothing. B may be missing, as where
    noise alone drives the state; the covariances Q and R of the noise leave λ alone.
    """

    name = "linear_system"
    title = "Linear dynamical system"
    recognised_by = "real A (n, n) beside B (n, inputs) or C (outputs, n), with --family alone"
    equation = "λ = eig(A)"
    source = "Ljung 1999, System Identification; Kalman 1960"

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a square real A and a B of as many rows or a C of as many columns."""
        matches = []
        for module, names in group_by_module(tensors, ("A", "B", "C", "D", *STEPS)).items():
            shapes = {role: tensors[name].shape for role, name in names.items()}
            square = shapes.get("A", ())
            if len(square) != 2 or square[0] != square[1] or names.keys() & set(STEPS):
                continue
            fits = square[0] in (shapes.get("B", ())[:1] + shapes.get("C", ())[-1:])
            if fits and not tensors[names["A"]].dtype.startswith("complex"):
                matches.append(Match(module or self.name, names))
        return matches
