"""The quasi-recurrent network of Bradbury et al. 2017, of pytorch-qrnn, AWD-LSTM and fastai."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import projected_gate
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import first_name, read_vector, stacked_rows
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.theory.gates.laws import Mix

OUTPUT_GATE = Assumption(
    key="output_gate",
    default="yes",
    choices=("yes", "no"),
    meaning="whether the rows of a QRNN's linear are z, f, o or only z, f",
)
# DropConnect wraps the linear and keeps the weight that it drops from under weight_raw.
WEIGHTS = tuple(
    f"linear.{inner}" for inner in ("weight_raw", "module.weight_raw", "weight", "module.weight")
)
BIASES = ("linear.bias", "linear.module.bias")
_LISTED = re.compile(r"(?P<network>.*?)[./,]?(?P<list>layers(?:_bwd)?|rnns)[./,](?P<index>\d+)")


class QRNN:
    """``c[t+1] = (1-f) c[t] + f tanh(z)``, z, f and o from a window of inputs: λ = 1 - σ(b_f).

    f is the gate that writes, so that γ = σ(b_f) = 1 - λ; o only shows the state. Without zoneout,
    which multiplies f by 1 - p and is not stored.
    """

    name = "qrnn"
    title = "QRNN (quasi-recurrent network)"
    recognised_by = "linear.weight_raw or linear.weight (3H, inputs) in layers.0 or rnns.0"
    equation = "λ = 1 - σ(b_f), γ = σ(b_f), rows z, f, o"
    source = "pytorch-qrnn, fastai.text.models.qrnn; Bradbury et al. 2017, arXiv 1611.01576"
    assumptions: tuple[Assumption, ...] = (OUTPUT_GATE,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules of a list of layers that hold one linear and nothing else.

        The name of the network tells that it is recurrent; where it does not, each layer's inputs
        must be a third of the rows of the layer before it, or two thirds with a window of two.
        """
        found = {
            module: names
            for module, names in group_by_module(tensors, (*WEIGHTS, *BIASES)).items()
            if _is_layer(names, tensors)
        }
        holds = _tensors_held(tensors, found)
        networks: dict[str, list[str]] = {}
        for module, names in found.items():
            parts = _LISTED.fullmatch(module)
            if parts and holds[module] == len(names):
                networks.setdefault(parts["network"], []).append(module)
        return [
            Match(module, found[module])
            for network, modules in networks.items()
            if "rnn" in modules[0].lower() or _is_chain([found[m] for m in modules], tensors)
            for module in modules
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias; the weight only gives the size.

        Raises:
            TensorError: NaN or inf in the bias, or rows that are not equal parts.
        """
        weight, tensor = _weight_and_bias(match.tensors)
        rows = store.tensors[weight].shape[0]
        assumed = Assumed(options)
        gated = rows % 3 == 0
        if rows % 6 == 0 or "output_gate" in options.assume:
            gated = assumed.choose(OUTPUT_GATE) == "yes"
        size = stacked_rows(store, weight, 3 if gated else 2)
        forget = read_vector(store, tensor, rows)[size : 2 * size]
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Mix(keeps=False, parameter="forget"),
            at=forget,
            slots=[Slot("linear.bias[forget]", tensor, forget, "forget")],
            gates=lambda: projected_gate(store, forget, weight, rows=slice(size, 2 * size)),
            tensors=tuple(match.tensors.values()),
            assumptions=assumed.sentences,
        )


def _weight_and_bias(names: Mapping[str, str]) -> tuple[str, str]:
    weight, bias = first_name(names, WEIGHTS), first_name(names, BIASES)
    assert weight is not None
    assert bias is not None
    return weight, bias


def _is_layer(names: Mapping[str, str], tensors: Mapping[str, TensorSpec]) -> bool:
    if not names.keys() & set(WEIGHTS) or not names.keys() & set(BIASES):
        return False
    weight, bias = (tensors[name].shape for name in _weight_and_bias(names))
    return len(weight) == 2 and bias == weight[:1] and (weight[0] % 3 == 0 or weight[0] % 2 == 0)


def _tensors_held(
    tensors: Mapping[str, TensorSpec], modules: Mapping[str, Mapping[str, str]]
) -> dict[str, int]:
    """How many tensors each of some modules holds at any depth."""
    counts = dict.fromkeys(modules, 0)
    if not modules:
        return counts
    for name in tensors:
        above, _ = split_name(name)
        while above:
            if above in counts:
                counts[above] += 1
            above, _ = split_name(above)
    return counts


def _is_chain(layers: list[Mapping[str, str]], tensors: Mapping[str, TensorSpec]) -> bool:
    shapes = [tensors[_weight_and_bias(names)[0]].shape for names in layers]
    return len(shapes) > 1 and all(
        before[0] % 3 == 0 and after[1] in (before[0] // 3, 2 * before[0] // 3)
        for before, after in itertools.pairwise(shapes)
    )
