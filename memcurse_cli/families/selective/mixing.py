"""Layers that mix their state with a candidate, and see the input alone: minimal RNNs, SRU, QRNN.

The minGRU and the minLSTM of Feng et al. 2024, arXiv 2410.01201; the simple recurrent unit of Lei
et al. 2018, arXiv 1709.02755; the quasi-recurrent network of Bradbury et al., arXiv 1611.01576.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import WITHOUT_BIAS
from memcurse_cli.families.family import Assumption, Layout, Match, Shapes
from memcurse_cli.families.gate_inputs import (
    GateInput,
    JointDrive,
    NoDrive,
    RowNorms,
    inner_products,
    mixing_drive,
    read_rows,
    squared_rows,
)
from memcurse_cli.families.module_names import split_name
from memcurse_cli.families.reading import first_name, read_finite
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Seen, Slot
from memcurse_cli.theory.gates.laws import Mix, Share

_CANDIDATE = "linear_h.weight"


class _MinRNN(LawFamily):
    """A candidate and gates that see nothing but the input.

    minGRU-pytorch stores the rows of the candidate and of the gates in one projection, ``fused``;
    the paper's listing has a layer for each: ``gates`` are these layers and the law's parameters.
    """

    fused: ClassVar[str]
    gates: ClassVar[tuple[tuple[str, str], ...]]
    law: ClassVar[Mix | Share]

    def _recurrence(self, layer: Layer) -> Recurrence:
        size, slots = self._slots(layer)
        at = np.zeros((size, len(self.gates)))
        if slots:
            at = np.stack([slot.values for slot in slots], axis=1)
        one = at[:, 0] if len(self.gates) == 1 else at
        weight = f"{self.fused}.weight"
        weights = [weight] if weight in layer.names else [f"{of}.weight" for of, _ in self.gates]

        def gates() -> Seen:
            if isinstance(self.law, Mix):  # the rows of the gate are the last ones
                return layer.projected(one, *weights, rows=slice(-size, None))
            rows = read_rows(layer.store, [layer.names[role] for role in weights])
            if rows is None:
                return None
            gram = inner_products(*(rows if len(rows) == 2 else np.split(rows[0], 3)[1:]))
            return JointDrive(self.law, at, gram, {slot.name: (slot.moves, 1.0) for slot in slots})

        return layer.gated(
            self.law,
            one,
            slots,
            gates=gates,
            tensors=tuple(layer.names.values()),
            assumptions=() if slots else (WITHOUT_BIAS,),
        )

    def _slots(self, layer: Layer) -> tuple[int, list[Slot]]:
        """The number of units, and the bias of each gate; none where there are none."""
        parts, role = len(self.gates) + 1, f"{self.fused}.bias"
        if f"{self.fused}.weight" in layer.names:
            size = layer.stacked_rows(f"{self.fused}.weight", parts)
            if role not in layer.names:
                return size, []
            rows = layer.vector(role, parts * size).reshape(parts, size)[1:]
            named = zip(self.gates, rows, strict=True)
            return size, [Slot(f"{role}[{moves}]", bias, moves) for (_, moves), bias in named]
        biases = {f"{of}.bias": moves for of, moves in self.gates}
        found = [bias for bias in biases if bias in layer.names]
        if found and len(found) < len(self.gates):
            raise TensorError(
                "only one of the two gates has a bias",
                where=layer.names[found[0]],
                remedy="name the right family with --family",
            )
        size = layer.stacked_rows(f"{self.gates[0][0]}.weight")
        return size, [Slot(bias, layer.vector(bias, size), biases[bias]) for bias in found]


def _layouts(fused: str, gates: Iterable[tuple[str, str]], strangers: str) -> tuple[Layout, ...]:
    """All in one projection, or a layer of each gate and none of more gates."""
    return (
        Layout((f"{fused}.weight",), optional=(f"{fused}.bias",)),
        Layout(
            (*(f"{gate}.weight" for gate, _ in gates), _CANDIDATE),
            optional=tuple(f"{gate}.bias" for gate, _ in gates),
            without=tuple(f"linear_{gate}.weight" for gate in strangers),
            fits=_alike,
        ),
    )


def _alike(shapes: Shapes) -> bool:
    """Whether the weights of the gates and of the candidate have one shape."""
    return len({shape for role, shape in shapes.items() if role.endswith("weight")}) == 1


class MinGRU(_MinRNN):
    """``h[t] = (1 - z) h[t-1] + z x̃[t]``, z = σ(b): λ = 1/2 without a bias."""

    name = "min_gru"
    title = "minGRU"
    recognised_by = "to_hidden_and_gate.weight (2n, d); or linear_z.weight beside linear_h.weight"
    equation = "λ = 1 - σ(b_z), γ = σ(b_z)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    fused, law = "to_hidden_and_gate", Mix(keeps=False, parameter="gate")
    gates = (("linear_z", "gate"),)
    layouts = _layouts(fused, gates, "rfioc")


class MinLSTM(_MinRNN):
    """``h[t] = f/(f+i) h[t-1] + i/(f+i) x̃[t]``: λ = 1/2 without biases."""

    name = "min_lstm"
    title = "minLSTM"
    recognised_by = (
        "to_hidden_and_f_i_gate.weight (3n, d); or linear_f.weight, linear_i.weight and"
        " linear_h.weight"
    )
    equation = "λ = f/(f+i), γ = i/(f+i), f = σ(b_f), i = σ(b_i)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    fused, law = "to_hidden_and_f_i_gate", Share()
    gates = (("linear_f", "forget"), ("linear_i", "input"))
    layouts = _layouts(fused, gates, "ozrc")


_NORM = ("layer_norm.weight", "layer_norm.bias")
# Before version 2 the cell's state did not enter the gates, and only this list told a layer.
_RNN_LIST = re.compile(r"(?:.*[./,])?rnn_lst[./,]\d+")

_NOMINAL = "weight_c multiplies the cell's state in the gates, which stands at zero"
_NORMALISED = "what the layer normalisation puts out at zero input is taken as zero"

_OWN_STATE = (
    "weight_c lets its gate see its own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of the gate, drawn"
)
_ATTENDED = NoDrive("its gate sees an attention over the sequence, not a projection of the input")
_UNFIT = NoDrive("its weight is not three or four matrices of the size of its bias")


class SRU(LawFamily):
    """``c[t+1] = f c[t] + (1-f) W x``, ``f = σ(W_f x + v_f c[t] + b_f)``: λ = σ(b_f), γ = 1 - λ.

    ``bias`` holds b_f, then the b_r of the highway ``h = r c + (1-r) x``; both directions of a
    bidirectional layer stand in each half. v_f, the first half of ``weight_c``, multiplies the
    state, and so does not move λ at c = 0. SRU++ changes how W x is made and nothing else.
    """

    name = "sru"
    title = "SRU and SRU++ (simple recurrent unit)"
    recognised_by = "weight_c (2n) beside bias (2n); or rnn_lst.0.weight (inputs, 3n or 4n)"
    equation = "λ = σ(b_f), γ = 1 - λ, b_f the first half of bias"
    source = "sru 2.7 and 3.0; Lei et al. 2018, arXiv 1709.02755; Lei 2021, arXiv 2102.12459"
    layouts = (
        Layout(("bias",), optional=("weight_c", "weight", "weight_proj", "scale_x", *_NORM)),
    )

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a weight_c of the bias's size, and old ones in a list ``rnn_lst``."""
        return [match for match in super().find(tensors) if _is_sru(match, tensors)]

    def _recurrence(self, layer: Layer) -> Recurrence:
        values = layer.real("bias", (None,))
        forget = values[: values.size // 2]
        sentences = {"weight_c": _NOMINAL, _NORM[0]: _NORMALISED}
        return layer.gated(
            Mix(parameter="forget"),
            forget,
            [Slot("bias[forget]", forget, "forget")],
            gates=lambda: _sru_gates(layer, forget),
            tensors=tuple(layer.names.values()),
            assumptions=[text for role, text in sentences.items() if role in layer.names],
        )


def _is_sru(match: Match, tensors: Mapping[str, TensorSpec]) -> bool:
    shapes = {role: tensors[name].shape for role, name in match.tensors.items()}
    bias, weight = shapes["bias"], shapes.get("weight", ())
    if len(bias) != 1 or bias[0] % 2 or not bias[0]:
        return False
    if "weight_c" in shapes:
        return shapes["weight_c"] == bias
    listed = _RNN_LIST.fullmatch(match.layer) is not None
    return listed and len(weight) == 2 and weight[1] in (3 * bias[0] // 2, 2 * bias[0])


def _sru_gates(layer: Layer, bias: Floats) -> Seen:
    """``z = W_f x + v_f c + b_f``, with W and W_f the first of the matrices in ``weight``."""
    if "weight" not in layer.names:
        return _ATTENDED
    weight, size = read_finite(layer.store, layer.names["weight"]), bias.size
    if weight.ndim != 2 or weight.shape[1] not in (3 * size, 4 * size):
        return _UNFIT
    if "weight_proj" in layer.names:
        weight = read_finite(layer.store, layer.names["weight_proj"]) @ weight
    taken, seen = np.moveaxis(weight.reshape(len(weight), size, -1), -1, 0)[:2]
    gate, own = _behind_norm(layer, bias, seen), np.zeros(size)
    if "weight_c" in layer.names:
        own = read_finite(layer.store, layer.names["weight_c"])[:size]
    if not np.any(own):
        return gate
    scale = _scale(layer, len(weight))
    shared: Floats = np.sum((1.0 if scale is None else scale[:, None] ** 2) * taken * seen, axis=0)
    return mixing_drive(gate, _behind_norm(layer, np.zeros(size), taken), shared, own, _OWN_STATE)


def _scale(layer: Layer, inputs: int) -> Floats | None:
    """That of the normalisation of the input; one of another size stands behind the cell."""
    normalised = _NORM[0] in layer.names and layer.shape(_NORM[0]) == (inputs,)
    return layer.real(_NORM[0], (inputs,)) if normalised else None


def _behind_norm(layer: Layer, bias: Floats, weight: Floats) -> GateInput:
    """What (inputs, n) weights show of the input, or of what its normalisation puts out.

    Of that every component has the RMS of its scale and the mean of its bias.
    """
    nothing, scale = np.zeros(bias.size), _scale(layer, len(weight))
    if scale is None:
        return GateInput(bias, RowNorms(squared_rows(weight.T), nothing))
    seen = squared_rows((scale[:, None] * weight).T)
    shift = layer.real(_NORM[1], scale.shape) @ weight if _NORM[1] in layer.names else None
    return GateInput(bias, RowNorms(nothing, nothing), seen, shift=shift)


OUTPUT_GATE = Assumption(
    key="output_gate",
    default="yes",
    choices=("yes", "no"),
    meaning="whether the rows of a QRNN's linear are z, f, o or only z, f",
)
# DropConnect wraps the linear and keeps the weight that it drops from under weight_raw.
_WEIGHTS = tuple(
    f"linear.{inner}" for inner in ("weight_raw", "module.weight_raw", "weight", "module.weight")
)
_BIASES = ("linear.bias", "linear.module.bias")
_LAYERS = re.compile(r"(?P<network>.*?)[./,]?(?P<list>layers(?:_bwd)?|rnns)[./,](?P<index>\d+)")


def _is_qrnn(shapes: Shapes) -> bool:
    """Whether a linear has a bias for each of its rows, which are two or three equal parts."""
    weight, bias = (
        next(shapes[role] for role in roles if role in shapes) for roles in (_WEIGHTS, _BIASES)
    )
    return len(weight) == 2 and bias == weight[:1] and (weight[0] % 3 == 0 or weight[0] % 2 == 0)


class QRNN(LawFamily):
    """``c[t+1] = (1-f) c[t] + f tanh(z)``, z, f and o from a window of inputs: λ = 1 - σ(b_f).

    f is the gate that writes, so that γ = σ(b_f) = 1 - λ; o only shows the state. Without zoneout,
    which multiplies f by 1 - p and is not stored.
    """

    name = "qrnn"
    title = "QRNN (quasi-recurrent network)"
    recognised_by = "linear.weight_raw or linear.weight (3H, inputs) in layers.0 or rnns.0"
    equation = "λ = 1 - σ(b_f), γ = σ(b_f), rows z, f, o"
    source = "pytorch-qrnn, fastai.text.models.qrnn; Bradbury et al. 2017, arXiv 1611.01576"
    assumptions = (OUTPUT_GATE,)
    layouts = (Layout((_WEIGHTS, _BIASES), fits=_is_qrnn),)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules of a list of layers that hold one linear and nothing else.

        The name of the network tells that it is recurrent; where it does not, each layer's inputs
        must be a third of the rows of the layer before it, or two thirds with a window of two.
        """
        found = super().find(tensors)
        held = dict.fromkeys((match.layer for match in found), 0)
        for name in tensors if found else ():
            above, _ = split_name(name)
            while above:
                if above in held:
                    held[above] += 1
                above, _ = split_name(above)
        networks: dict[str, list[Match]] = {}
        for match in found:
            parts = _LAYERS.fullmatch(match.layer)
            if parts and held[match.layer] == len(match.tensors):
                networks.setdefault(parts["network"], []).append(match)
        return [
            match
            for matches in networks.values()
            if "rnn" in matches[0].layer.lower() or _is_chain(matches, tensors)
            for match in matches
        ]

    def _recurrence(self, layer: Layer) -> Recurrence:
        weight, bias = layer.first(_WEIGHTS), layer.first(_BIASES)
        rows = layer.shape(weight)[0]
        gated = rows % 3 == 0
        if rows % 6 == 0 or "output_gate" in layer.options.assume:
            gated = layer.assumed.choose(OUTPUT_GATE) == "yes"
        size = layer.stacked_rows(weight, 3 if gated else 2)
        forget = layer.vector(bias, rows)[size : 2 * size]
        return layer.gated(
            Mix(keeps=False, parameter="forget"),
            forget,
            [Slot("linear.bias[forget]", forget, "forget", tensor=layer.names[bias])],
            gates=lambda: layer.projected(forget, weight, rows=slice(size, 2 * size)),
            tensors=tuple(layer.names.values()),
        )


def _is_chain(matches: list[Match], tensors: Mapping[str, TensorSpec]) -> bool:
    weights = (first_name(match.tensors, _WEIGHTS) for match in matches)
    shapes = [tensors[weight].shape for weight in weights if weight is not None]
    return len(shapes) > 1 and all(
        before[0] % 3 == 0 and after[1] in (before[0] // 3, 2 * before[0] // 3)
        for before, after in itertools.pairwise(shapes)
    )
