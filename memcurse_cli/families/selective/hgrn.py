"""HGRN and HGRN2 of Qin et al. 2023 and 2024, arXiv 2311.04823 and 2404.07904."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_weights import projected_gate
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real, shown_shape
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.theory.gates.laws import Bounded

_REQUIRED = ("f_proj.weight", "i_proj.weight", "o_proj.weight", "g_norm.weight")
_BOUNDS = "lower_bounds"
_LAYER = re.compile(r"^(?P<model>.*?)(?:[./,])?layers[./,](?P<index>\d+)(?:[./,]|$)")

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
        strangers = ("k_proj.weight", "v_proj.weight", "A_log")
        roles = (*_REQUIRED, *strangers, "q_proj.weight")
        return [
            Match(module or self.name, names, _place(module))
            for module, names in group_by_module(tensors, roles).items()
            if names.keys() >= set(_REQUIRED)
            and not names.keys() & set(strangers)
            and len(tensors[names["f_proj.weight"]].shape) == 2
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the model's lower bounds; the projection's rows only give the size.

        Raises:
            TensorError: NaN or inf, or bounds that do not fit the layer.
        """
        size = store.tensors[match.tensors["f_proj.weight"]].shape[0]
        if size < 1:
            raise TensorError(
                "the tensor is empty",
                where=match.tensors["f_proj.weight"],
                remedy="use another checkpoint",
            )
        found = _bounds_of(store.tensors, match.layer)
        sentences = [_WITHOUT_BIAS]
        slots: list[Slot] = []
        complement = np.ones(size)
        if found is None:
            sentences.append(_UNBOUNDED)
        else:
            tensor, index = found
            bounds = _read_bounds(store, tensor, index, size)
            share = _softmax(bounds)
            counted = np.zeros(bounds.shape)
            counted[1 : index + 1] = 1.0
            # 1 - β, summed without cancellation where β is close to 1.
            complement = np.sum(share * (1 - counted), axis=0)
            slope = share * np.where(counted > 0, complement, complement - 1)
            slots.append(
                Slot(
                    _BOUNDS,
                    tensor,
                    bounds.ravel(),
                    "bound",
                    slope.ravel(),
                    eigenvalue=np.tile(np.arange(size), bounds.shape[0]),
                )
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
            # The forget gate's projection has no bias.
            gates=lambda: projected_gate(store, np.zeros(size), match.tensors["f_proj.weight"]),
            tensors=(*match.tensors.values(), *(slot.tensor for slot in slots)),
            assumptions=sentences,
        )


def _place(layer: str) -> int | None:
    """The layer's number, by which its bound is chosen."""
    parts = _LAYER.match(layer)
    return None if parts is None else int(parts["index"])


def _bounds_of(tensors: Mapping[str, TensorSpec], layer: str) -> tuple[str, int] | None:
    """The lower bounds of the model that a layer is in, and the layer's number; None without."""
    parts = _LAYER.match(layer)
    if parts is None or int(parts["index"]) == 0:
        return None
    name = next(
        (
            f"{parts['model']}{separator}{_BOUNDS}"
            for separator in (("",) if not parts["model"] else tuple("./,"))
            if f"{parts['model']}{separator}{_BOUNDS}" in tensors
        ),
        None,
    )
    return None if name is None else (name, int(parts["index"]))


def _read_bounds(store: TensorStore, tensor: str, index: int, size: int) -> Floats:
    """The bounds of every layer.

    Raises:
        TensorError: NaN or inf, or too few rows for the layer.
    """
    bounds = read_real(store, tensor, (None, size))
    if index >= bounds.shape[0]:
        raise TensorError(
            f"its shape {shown_shape(bounds.shape)} has no row for layer {index}",
            where=tensor,
            remedy="use a checkpoint of the whole model",
        )
    return bounds


def _softmax(bounds: Floats) -> Floats:
    """Over the layers."""
    shares: Floats = np.exp(bounds - bounds.max(axis=0))
    # A share that underflows would have no logarithm.
    floored: Floats = np.maximum(shares / shares.sum(axis=0), 1e-300)
    return floored
