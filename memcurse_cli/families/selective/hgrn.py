"""HGRN and HGRN2 of Qin et al. 2023 and 2024, arXiv 2311.04823 and 2404.07904."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import projected_gate
from memcurse_cli.families.reading import read_real, shown_shape, stacked_rows
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence, layers_with
from memcurse_cli.theory.gates.laws import Bounded

_BOUNDS = "lower_bounds"
_LAYER = re.compile(r"^(?P<model>.*?)(?:[./,])?layers[./,](?P<index>\d+)(?:[./,]|$)")

SMALLEST_SHARE = 1e-300
"""A share of the softmax is held above it."""

_WITHOUT_BIAS = (
    "the forget gate has no bias: at zero input it stands halfway between its lower bound and 1"
)
_UNBOUNDED = "its lower bound is 0, as in the first layer or without a tensor lower_bounds"
_EXPANDED = (
    "every λ drives one row of the matrix state; how many values a row has (expand_ratio) is not"
    " stored"
)


class HGRN:
    """``h[t] = λ h[t-1] + (1-λ) x[t]``, ``λ = β + (1-β) σ(0) = (1+β)/2``.

    The lower bound β of layer l is ``Σ_{0<m≤l} p_m`` with p the softmax over layers of the
    model's ``lower_bounds`` (layers, n): zero in the first layer. Every layer's row moves β:
    ``dβ_l/dω_k = p_k ([0<k≤l] - β_l)``, so that one scalar moves the λ of all layers; each layer
    reports its own share. HGRN2 has the same λ on the rows of a matrix state.
    """

    name = "hgrn"
    title = "HGRN and HGRN2"
    recognised_by = "f_proj.weight and i_proj.weight beside g_norm, with the model's lower_bounds"
    equation = "λ = (1 + β)/2, γ = 1 - λ, β = Σ_(0<m≤l) softmax(lower_bounds)_m"
    source = "flash-linear-attention; Qin et al., arXiv 2311.04823 and 2404.07904"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the forget and the input projection and nothing of a key or a value."""
        found = layers_with(
            tensors,
            self.name,
            ("f_proj.weight", "i_proj.weight", "o_proj.weight", "g_norm.weight"),
            optional=("q_proj.weight",),
            without=("k_proj.weight", "v_proj.weight", "A_log"),
            fits=lambda shapes: len(shapes["f_proj.weight"]) == 2,
        )
        # The bound is chosen by the layer's number.
        places = (_LAYER.match(match.layer) for match in found)
        return [
            match if place is None else replace(match, place=int(place["index"]))
            for match, place in zip(found, places, strict=True)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the model's lower bounds; the projection's rows only give the size.

        Raises:
            TensorError: NaN or inf, or bounds that do not fit the layer.
        """
        projection = match.tensors["f_proj.weight"]
        size = stacked_rows(store, projection, 1)
        sentences = [_WITHOUT_BIAS]
        slots: list[Slot] = []
        complement = np.ones(size)
        tensor = _bounds_of(store.tensors, match.layer) if match.place else None
        if tensor is None:
            sentences.append(_UNBOUNDED)
        else:
            bounds = read_real(store, tensor, (None, size))
            if match.place is None or match.place >= len(bounds):
                raise TensorError(
                    f"its shape {shown_shape(bounds.shape)} has no row for layer {match.place}",
                    where=tensor,
                    remedy="use a checkpoint of the whole model",
                )
            share = np.exp(bounds - bounds.max(axis=0))
            # A share that underflows would have no logarithm.
            share = np.maximum(share / share.sum(axis=0), SMALLEST_SHARE)
            counted = np.zeros(bounds.shape)
            counted[1 : match.place + 1] = 1.0
            # 1 - β, summed without cancellation where β is close to 1.
            complement = np.sum(share * (1 - counted), axis=0)
            slope = share * np.where(counted > 0, complement, complement - 1)
            each = np.tile(np.arange(size), len(bounds))
            slots.append(
                Slot(_BOUNDS, tensor, bounds.ravel(), "bound", slope.ravel(), eigenvalue=each)
            )
        if "q_proj.weight" in match.tensors:
            sentences.append(_EXPANDED)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Bounded(complement),
            at=np.zeros(size),
            slots=slots,
            gates=lambda: projected_gate(store, np.zeros(size), projection),
            tensors=(*match.tensors.values(), *(slot.tensor for slot in slots)),
            assumptions=sentences,
        )


def _bounds_of(tensors: Mapping[str, TensorSpec], layer: str) -> str | None:
    """The lower bounds of the model that a layer is in, or None."""
    parts = _LAYER.match(layer)
    model = "" if parts is None else parts["model"]
    names = [f"{model}{joint}{_BOUNDS}" for joint in ("./," if model else ("",))]
    return next((name for name in names if name in tensors), None)
