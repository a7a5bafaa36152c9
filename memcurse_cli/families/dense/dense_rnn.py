"""The Elman network in torch's layout, the Legendre memory unit, and dense linear recurrences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.cells.layout import STATE, Cell
from memcurse_cli.families.cells.torch import (
    Lookalikes,
    hidden_weights,
    torch_layout,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION, dense_layer
from memcurse_cli.families.family import Layer, Layout, LayoutFamily, Match
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import (
    complex_roles,
    misfit,
    read_readin,
    read_readout,
    require_order,
    shown_shape,
)
from memcurse_cli.families.recurrence import Recurrence

CELLS = Lookalikes("rnn", "torch's RNN", refused=("atr", "antisymmetric_rnn", "sgrn", "miru"))
_EXPORT = "export the layer under torch's names and shapes"
# A continuous-time layer stores its step beside A: it is another family's.
_STEPS = ("log_dt", "inv_dt", "log_step", "dt", "A_log")
_HEAD = ".head"


class ElmanRNN(LayoutFamily):
    """``h[t+1] = φ(W_hh h[t] + W_ih x[t+1] + b)``, linearised: A = W_hh, B = W_ih, up to a slope.

    Row = target, as in torch. Where the input weight shows by its shape that a port multiplies
    from the right, ``h W_hh``, both are transposed. Biases matter to the operating point alone.
    """

    name = "dense_rnn"
    title = "Elman RNN (dense)"
    recognised_by = "weight_hh_l0, weight_hh or W_hh (H, H)"
    equation = "λ = eig(weight_hh)"
    source = "torch.nn.RNN; Elman 1990; theory of Zucchet & Orvieto 2024, section 4"
    assumptions = (ACTIVATION, CELLS.assumption)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers whose hidden weight is (H, H), and those whose shape fits no torch layer.

        The latter are found to be reported as unreadable, not passed over in silence.
        """
        return hidden_weights(tensors, self.name)

    def _recurrence(self, layer: Layer) -> Recurrence:
        store, match, options = layer.store, layer.match, layer.options
        assumed = CELLS.choose(store, match, options).sentences
        tensor = match.tensors["weight_hh"]
        shape = store.tensors[tensor].shape
        if shape[0] != shape[1]:
            raise misfit(
                f"its shape {shown_shape(shape)} is neither (H, H) of an RNN, (3H, H) of a GRU "
                "nor (4H, H) of an LSTM",
                tensor,
                _EXPORT,
            )
        require_order(shape[0], tensor)
        matrix = layer.real("weight_hh", (None, None))
        readin = layer.real("weight_ih", (None, None)) if "weight_ih" in layer.names else None
        activation, chosen = options.choose(ACTIVATION)
        assumptions = [*assumed, *(() if chosen else (f"the activation is {activation}",))]
        if readin is not None and readin.shape[0] != shape[0]:
            if readin.shape[1] != shape[0]:
                raise misfit(
                    f"its shape {shown_shape(readin.shape)} does not fit {shape[0]} hidden units",
                    match.tensors["weight_ih"],
                    _EXPORT,
                )
            matrix, readin = matrix.T, readin.T
            assumptions.append("weights multiply from the right, as the input weight's shape says")
        return dense_layer(
            layer,
            "weight_hh",
            matrix,
            activation=activation,
            readin=readin,
            bias=Cell(layer, torch_layout(STATE)).biases["state"].total,
            also=assumptions,
        )


def _with_state_matrix(
    tensors: Mapping[str, TensorSpec], axes: int
) -> Iterator[tuple[str, dict[str, str], tuple[int, ...]]]:
    """Modules, their tensors and the shape of a real A of square matrices, and no step size."""
    roles = ("A", *complex_roles("B"), *complex_roles("C"), "D", *_STEPS)
    for module, names in group_by_module(tensors, roles).items():
        if "A" not in names or names.keys() & set(_STEPS):
            continue
        shape = tensors[names["A"]].shape
        square = len(shape) == axes and shape[-1] == shape[-2]
        if square and not tensors[names["A"]].dtype.startswith("complex"):
            yield module, names, shape


class DenseLinearRNN(LayoutFamily):
    """``h[t+1] = A h[t] + B x[t+1]``, ``y = C h + D x``."""

    name = "dense_linear"
    title = "Dense linear RNN"
    recognised_by = "real A (n, n) beside B (n, inputs), and no step size"
    equation = "λ = eig(A)"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 4"

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a square real A and a B of as many rows."""
        return [
            Match(module or self.name, names)
            for module, names, shape in _with_state_matrix(tensors, 2)
            if any(
                shape[0] in tensors[names[role]].shape
                for role in ("B", "B_re", "B_real")
                if role in names
            )
        ]

    def _recurrence(self, layer: Layer) -> Recurrence:
        size = layer.shape("A")[0]
        return dense_layer(
            layer,
            "A",
            layer.real("A", (size, size)),
            readin=read_readin(layer.store, layer.names, size),
            readout=read_readout(layer.store, layer.names, size),
        )


class LinearSystem(DenseLinearRNN):
    """``x[t+1] = A x[t] + B u[t]``, ``y = C x``: a state-space model of system identification.

    Only looked for by its name, since these letters alone say nothing. B may be missing, as where
    noise alone drives the state; the covariances Q and R of the noise leave λ alone.
    """

    name = "linear_system"
    title = "Linear dynamical system"
    recognised_by = "real A (n, n) beside B (n, inputs) or C (outputs, n), with --family alone"
    source = "Ljung 1999, System Identification; Kalman 1960"

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a square real A and a B of as many rows or a C of as many columns."""
        matches = []
        for module, names, shape in _with_state_matrix(tensors, 2):
            b, c = (tensors[names[role]].shape if role in names else () for role in "BC")
            if shape[0] in (*b[:1], *c[-1:]):
                matches.append(Match(module or self.name, names))
        return matches


class BlockDiagonalRNN(LayoutFamily):
    """``h_k[t+1] = A_k h_k[t] + B_k x[t+1]`` for every head k, ``y = Σ_k C_k h_k + D x``.

    No head sees another, so each is a dense layer of its own.
    """

    name = "block_diagonal"
    title = "Block-diagonal linear RNN"
    recognised_by = "real A (heads, n, n) beside B (heads n, inputs), and no step size"
    equation = "λ = eig(A_k) of each head k"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 2.2"

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """A layer for each head of a module whose B has a row for each unit of each head."""
        return [
            Match(f"{module or self.name}{_HEAD}{head}", names)
            for module, names, (heads, size, _) in _with_state_matrix(tensors, 3)
            if "B" in names and heads * size in tensors[names["B"]].shape
            for head in range(heads)
        ]

    def _recurrence(self, layer: Layer) -> Recurrence:
        heads, size, _ = shape = layer.shape("A")
        head = int(layer.match.layer.rpartition(_HEAD)[2])
        units = slice(head * size, (head + 1) * size)
        readin = read_readin(layer.store, layer.names, heads * size)
        readout = read_readout(layer.store, layer.names, heads * size)
        recurrence = dense_layer(
            layer,
            "A",
            layer.real("A", shape)[head],
            readin=None if readin is None else readin[units],
            readout=None if readout is None else readout[:, units],
        )
        assert recurrence.dense is not None
        return replace(recurrence, dense=replace(recurrence.dense, heads=heads))


_ROLES = ("A", "B", "e_x", "e_h", "e_m", "W_x", "W_h", "W_m")
_MEMORY_ALONE = (
    "λ is that of the memory, A + B e_m; what returns to it through the hidden state is left out:"
    " its path is e_h, W_m and a tanh"
)
_FIXED = "A and B are constants of the unit unless learn_a and learn_b were set; e_m is trained"


class LMU(LayoutFamily):
    """``m[t] = A m[t-1] + B u[t]``, ``u = e_x x + e_m m[t-1] + e_h h[t-1]``: λ of ``A + B e_m``.

    A and B are the Legendre delay's, discretised once over θ steps and stored as buffers:
    `LMUCell` (src/lmu.py) in hrshtv/pytorch-lmu. The parallel form without e_m is a dense linear
    recurrence. The hidden state ``h[t] = tanh(W_x x + W_h h[t-1] + W_m m[t])`` is not read.
    """

    name = "lmu"
    title = "LMU (Legendre memory unit)"
    recognised_by = "A (n, n) and B (n, 1) beside e_x, e_h, e_m (1, n) and W_m"
    equation = "λ = eig(A + B e_m)"
    source = "pytorch-lmu; Voelker, Kajić & Eliasmith 2019, NeurIPS 32"

    layouts = (Layout(_ROLES),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        size = layer.shape("A")[-1:] or (None,)
        matrix = layer.real("A", (size[0], size[0]))
        drive = layer.real("B", (size[0], 1))
        feedback = layer.real("e_m", (1, size[0]))
        encoder = layer.real("e_x", (1, None))
        return dense_layer(
            layer,
            "A",
            matrix + drive @ feedback,
            readin=drive @ encoder,
            tensors=[layer.names[role] for role in ("A", "B", "e_x", "e_m")],
            also=(_MEMORY_ALONE, _FIXED),
        )
