"""The independently recurrent network of Li et al. 2018: a vector where others have a matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.torch import KEY, Lookalikes
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Layer, LayoutFamily, Match, ReadOptions
from memcurse_cli.families.module_names import split_name
from memcurse_cli.families.reading import log_of_eigenvalues
from memcurse_cli.families.recurrence import Complexes, Recurrence

# The vector's name, that of the input weight beside it, and whether that one is (inputs, H).
_NAMES = (
    (re.compile(r"weight_hh(?P<suffix>(?:_l\d+)?(?:_reverse)?)"), "weight_ih", False),
    (re.compile(r"vector_u(?P<suffix>)"), "weight_ih", False),
    (re.compile(r"recurrent_scale(?P<suffix>)"), "kernel", True),
    (re.compile(r"recurrent_kernel(?P<suffix>)"), "input_kernel", True),
    (re.compile(r"recurrent_kernel(?P<suffix>)"), "kernel", True),
)
# An oscillator has the same vector, and beside it the scale of its time step.
_STRANGER = "c_"
_BENT = ("recurrent_scale", "vector_u")  # haste's and torchrecurrent's, by default with a tanh
_TORCH = "weight_hh"
CELLS = Lookalikes("ind_rnn", "an IndRNN")


class IndRNN(LayoutFamily):
    """``h[t+1] = φ(u ∘ h[t] + W x[t+1] + b)``: λ = u, one real number per unit, dλ/du = 1.

    φ is taken with slope 1, which is exact for a ReLU while the unit is positive. Nothing in the
    parametrisation keeps |u| below 1; libraries that clip it do so by a bound that is not stored.
    """

    name = "ind_rnn"
    title = "IndRNN (independently recurrent)"
    recognised_by = (
        "weight_hh, vector_u or recurrent_scale of shape (H); or recurrent_kernel (H) by a kernel"
    )
    equation = "λ = weight_hh"
    source = (
        "indrnn-pytorch, IndRNN_pytorch, haste, torchrecurrent; Li et al. 2018, arXiv 1803.04831"
    )
    assumptions = (ACTIVATION, CELLS.assumption)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Recurrent weights that are vectors, with the input weight where one is beside them."""
        matches = []
        for name, spec in tensors.items():
            if len(spec.shape) != 1 or not spec.shape[0]:
                continue
            module, last = split_name(name)
            before = name.removesuffix(last)
            for pattern, beside, from_right in _NAMES:
                parts = pattern.fullmatch(last)
                if parts is None or f"{before}{_STRANGER}" in tensors:
                    continue
                readin = f"{before}{beside}{parts['suffix']}"
                width = spec.shape[0]
                shape = tensors[readin].shape if readin in tensors else ()
                fits = len(shape) == 2 and shape[1 if from_right else 0] == width
                # A vector under this name alone could be anything's.
                if last in ("recurrent_kernel", "vector_u") and not fits:
                    continue
                roles = {"recurrent": name} | ({"readin": readin} if fits else {})
                suffix = parts["suffix"].lstrip("_")
                layer = ".".join(part for part in (module, suffix) if part)
                matches.append(Match(layer or self.name, roles))
                break
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        store, match = layer.store, layer.match
        values = layer.real("recurrent", (None,))
        last = split_name(layer.names["recurrent"])[1]
        activation = layer.assumed.choose(ACTIVATION, default="tanh" if last in _BENT else "relu")
        readin: Complexes | None = None
        if "readin" in layer.names:
            weight = layer.real("readin", (None, None))
            from_right = "weight_ih" not in split_name(layer.names["readin"])[1]
            readin = (weight.T if from_right else weight).astype(np.complex128)
        return layer.recurrence(
            log_of_eigenvalues(values),
            (layer.group("recurrent", values, np.ones(values.size), name=last),),
            readin=readin,
            also=_cell(store, match, layer.options) if last.startswith(_TORCH) else (),
            activation=activation,
        )


def _cell(store: TensorStore, match: Match, options: ReadOptions) -> tuple[str, ...]:
    """What is assumed of a cell in torch's names; an error if a tensor beside is another cell's."""
    tensor = match.tensors["recurrent"]
    inputs = tensor.replace("weight_hh", "weight_ih")
    if inputs in store.tensors and options.assume.get(KEY) != CELLS.own:
        rows, width = (store.tensors[name].shape[:1] for name in (inputs, tensor))
        if rows and 2 * rows[0] == 3 * width[0]:  # two gates and a candidate, as a bistable cell's
            raise CELLS.misfit(store, tensor, inputs)
    return CELLS.choose(store, Match(match.layer, {"weight_hh": tensor}), options).sentences
