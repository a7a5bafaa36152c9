"""Weights that are stored as their parts: normalised, pruned, dropped out or held orthogonal.

What a layer multiplies with is a function of the parts, which every family would have to know.
Here it is computed once, under the name that the weight has without its reparametrisation
(torch/nn/utils/weight_norm.py, spectral_norm.py, prune.py and parametrizations.py; fastai's
WeightDropout and Salesforce's WeightDrop).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import CheckpointError

Array = NDArray[Any]

WEIGHT_NORM = "weight normalisation is applied"
SPECTRAL_NORM = "spectral normalisation is applied"
PRUNING = "a pruning mask is applied"
DROPPED = "the weights before dropout are read"
ORTHOGONAL = "an orthogonal parametrisation is applied, by Householder reflections,"
# The first part of each way to store a weight, by the end of its name. A gate may be called g.
_FIRST = re.compile(
    r"(?P<module>(?:.*[./,])?)(?:"
    r"parametrizations(?P<dot>[./,])(?P<weight>\w+)[./,]original(?P<index>0?)"
    r"|(?P<plain>\w+)_(?P<kind>orig|raw)"
    r"|(?P<normal>(?:weight|[wW]_[ihx]h)\w*)_g)"
)
_RECURRENT = re.compile(r"weight_[ih]h\w*")
_ENDS = ("original", "original0", "_g", "_orig", "_raw")


@dataclass(frozen=True)
class _Parts:
    """One weight: its name, how it is stored, the names of its parts and the map from them."""

    name: str
    how: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    combine: Callable[..., Array]


def compute_weights(store: LazyStore) -> LazyStore:
    """The store with every weight in the place of its parts, and a note for each way of storing."""
    entries = store.entries
    found: dict[str, _Parts] = {}
    for name in entries:
        if name.endswith(_ENDS):
            parts = _parts(name, entries)
            # A weight that stands beside its parts is taken as it is, but for one that dropout hit.
            if parts is not None and (parts.how == DROPPED or parts.name not in entries):
                found[name] = parts
    if not found:
        return store
    replaced = {name for parts in found.values() for name in (*parts.parts, parts.name)}
    made: dict[str, LazyTensor] = {}
    by_way: dict[str, list[str]] = defaultdict(list)
    for name, entry in entries.items():
        if name in found:
            parts = found[name]
            made[parts.name] = _weight(parts, entries)
            by_way[parts.how].append(parts.name)
        elif name not in replaced:
            made[name] = entry
    store.replace_entries(
        made,
        [
            f"{how} in {printable(names[0], 80)}"
            + (f" and {len(names) - 1} more" if names[1:] else "")
            + ": sensitivities are those of the weight itself"
            for how, names in by_way.items()
        ],
    )
    return store


def _parts(name: str, entries: Mapping[str, LazyTensor]) -> _Parts | None:
    """What the weight is whose first part has this name; None where it is not one."""
    found = _FIRST.fullmatch(name)
    if found is None:
        return None
    module = found["module"]
    shapes = {part: entries[part].spec.shape for part in entries.keys() & _beside(name, found)}
    if found["weight"]:
        weight, dot = f"{module}{found['weight']}", found["dot"]
        folder = name.rpartition(dot)[0]
        if found["index"]:
            return _normalised(weight, name, f"{folder}{dot}original1", shapes)
        if f"{folder}{dot}1" in {part.rpartition(dot)[0] for part in shapes}:
            return None  # one parametrisation on top of another
        vectors = f"{folder}{dot}0{dot}_u", f"{folder}{dot}0{dot}_v"
        if vectors[0] in shapes:
            return _spectral(weight, name, vectors, shapes)
        return _orthogonal(weight, name, f"{folder}{dot}0{dot}base", shapes)
    if found["normal"]:
        weight = f"{module}{found['normal']}"
        return _normalised(weight, name, f"{weight}_v", shapes)
    weight = f"{module}{found['plain']}"
    if found["kind"] == "raw":
        return _dropped(module, found["plain"], name, entries)
    mask = f"{weight}_mask"
    if mask in shapes:
        if shapes[mask] != shapes[name]:
            return None
        return _Parts(weight, PRUNING, (name, mask), shapes[name], np.multiply)
    return _spectral(weight, name, (f"{weight}_u", f"{weight}_v"), shapes)


def _beside(name: str, found: re.Match[str]) -> set[str]:
    """Every name that a part of this weight may have."""
    if found["weight"]:
        dot = found["dot"]
        folder = name.rpartition(dot)[0]
        ends = ("original1", f"0{dot}_u", f"0{dot}_v", f"0{dot}base", f"1{dot}_u", f"1{dot}base")
        return {name, *(f"{folder}{dot}{end}" for end in ends)}
    stem = name.rpartition("_")[0]
    return {name, *(f"{stem}_{end}" for end in ("v", "u", "mask"))}


def _normalised(
    weight: str, norm: str, direction: str, shapes: Mapping[str, tuple[int, ...]]
) -> _Parts | None:
    """``g v / ‖v‖``, the norm over all axes of v along which g has one element."""
    shape = shapes.get(direction, ())
    if len(shape) < 2 or not _fits(shapes[norm], shape):
        return None
    return _Parts(weight, WEIGHT_NORM, (norm, direction), shape, _normalise)


def _fits(norm: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a norm has one element, or as many as v along one of its axes."""
    if norm in ((), (1,), (1,) * len(shape)):
        return True
    return any(
        norm == tuple(size if axis == kept else 1 for axis, size in enumerate(shape))
        for kept in range(len(shape))
    )


def _normalise(norm: Array, direction: Array) -> Array:
    norm = norm if norm.ndim == direction.ndim else norm.reshape((1,) * direction.ndim)
    axes = tuple(axis for axis, size in enumerate(norm.shape) if size == 1)
    length = np.sqrt(np.sum(np.square(direction), axis=axes, keepdims=True))
    # A direction of zeros stays zero, as it does in the limit of small ones with a zero gain.
    length = np.broadcast_to(length, direction.shape)
    unit: Array = np.divide(direction, length, out=np.zeros_like(direction), where=length > 0)
    return norm * unit


def _spectral(
    weight: str,
    stored: str,
    vectors: tuple[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> _Parts | None:
    """``W / (uᵀ W v)`` with the singular vectors as the power iteration left them."""
    shape = shapes[stored]
    left, right = (shapes.get(vector, ()) for vector in vectors)
    if len(shape) != 2 or (*left, *right) not in (shape, shape[::-1]):
        return None
    return _Parts(weight, SPECTRAL_NORM, (stored, *vectors), shape, _divide_by_largest)


def _divide_by_largest(weight: Array, left: Array, right: Array) -> Array:
    # With dim=1 it is the transpose of which u and v are the singular vectors. Where its shape
    # does not say so, the value does: no other vectors of norm 1 give more.
    sides = [m for m in (weight, weight.T) if m.shape == (left.size, right.size)]
    norm = max((left @ matrix @ right for matrix in sides), key=abs)
    with np.errstate(divide="ignore", invalid="ignore"):
        normal: Array = weight / norm
    if not np.isfinite(normal).all():
        raise CheckpointError(
            "a spectral norm of zero or one that is not finite",
            remedy="the run had diverged: use an earlier checkpoint",
        )
    return normal


def _dropped(
    module: str, plain: str, stored: str, entries: Mapping[str, LazyTensor]
) -> _Parts | None:
    """The weight before dropout, which stands beside or above the module that it belongs to."""
    if not _RECURRENT.fullmatch(plain):
        return None
    inner = f"{module}module{module[-1:] or '.'}"
    sibling = plain.replace("_hh", "_ih")
    own = inner if any(f"{inner}{part}" in entries for part in (plain, sibling)) else module
    return _Parts(f"{own}{plain}", DROPPED, (stored,), entries[stored].spec.shape, np.asarray)


def _orthogonal(
    weight: str, stored: str, base: str, shapes: Mapping[str, tuple[int, ...]]
) -> _Parts | None:
    """Orthonormal columns or rows by Householder reflections, times a base where there is one.

    Reflections are torch's default where the matrix is not square. A square one with a base is the
    orthogonal RNN's own, whose map is assumed there.
    """
    shape = shapes[stored]
    if len(shape) != 2 or 0 in shape:
        return None
    if base not in shapes:
        return _Parts(weight, ORTHOGONAL, (stored,), shape, _reflected)
    if shape[0] == shape[1] or shapes[base] != (max(shape), max(shape)):
        return None
    return _Parts(weight, ORTHOGONAL, (stored, base), shape, _reflected)


def _reflected(stored: Array, base: Array | None = None) -> Array:
    """The first columns of the product of the reflections 1 - τ v vᵀ, v of ones on the diagonal."""
    tall = stored if stored.shape[0] >= stored.shape[1] else stored.T
    signs = np.trunc(np.diagonal(tall))
    if np.iscomplexobj(tall) or np.any(np.abs(signs) != 1):
        raise CheckpointError(
            "a parametrisation that the file does not name, and not of Householder reflections",
            remedy="call torch.nn.utils.parametrize.remove_parametrizations and save again",
        )
    rows, columns = tall.shape
    turned: Array = np.eye(rows, columns)
    for column in reversed(range(columns)):
        vector = np.where(np.arange(rows) > column, tall[:, column], 0.0)
        vector[column] = 1.0
        turned -= np.outer(2 * vector / np.sum(vector**2), vector @ turned)
    turned = turned * signs
    if base is not None:
        turned = base @ turned
    return turned if tall is stored else turned.T


def _weight(parts: _Parts, entries: Mapping[str, LazyTensor]) -> LazyTensor:
    specs = [entries[name].spec for name in parts.parts]
    main = next(spec for spec in reversed(specs) if spec.shape == parts.shape)

    def load() -> Array:
        return parts.combine(*(entries[name].load() for name in parts.parts))

    spec = TensorSpec(parts.shape, main.dtype, sum(spec.bytes for spec in specs))
    shared = tuple(entries[name].identity for name in parts.parts)
    identity = None if None in shared else (parts.combine, parts.shape, *shared)
    return replace(entries[parts.parts[0]], spec=spec, load=load, identity=identity)
