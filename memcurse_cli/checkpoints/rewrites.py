"""Functions on a store, for weights that are stored otherwise than their layer multiplies."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.select import counted
from memcurse_cli.checkpoints.store import Array, LazyTensor, Shape, TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.errors import CheckpointError

SCALED_TYPES = ("float8_e4m3", "float8_e5m2", "float4_e2m1fn")
BLOCK = 128


def with_scales(tensors: Mapping[str, LazyTensor]) -> tuple[dict[str, LazyTensor], list[str]]:
    """The tensors, those of 8 and 4 bits times the scales that stand beside them (W = s Q).

    A scale is one number, one for each row, or one for each block of a matrix:

    - ``NAME_scale`` of compressed-tensors and vLLM, a number, (rows, 1), (rows) or one a block;
    - ``NAME_scale_inv`` of DeepSeek-V3, one for each block of 128 × 128, which multiplies in spite
      of its name (https://huggingface.co/deepseek-ai/DeepSeek-V3, README_WEIGHTS.md);
    - ``scale_weight`` beside ``weight`` of ComfyUI, a number.

    Where there is no scale, or it can be read in two ways, the numbers stay as they are stored.
    """
    made = dict(tensors)
    scaled, plain = [], []
    for name, tensor in tensors.items():
        if not tensor.spec.dtype.startswith(SCALED_TYPES):
            continue
        module, dot, last = name.rpartition(".")
        companions = [f"{name}_scale", f"{name}_scale_inv"]
        companions += [f"{module}{dot}scale_weight"] if last == "weight" else []
        beside = [tensors[other] for other in companions if other in tensors]
        repeats = _repeats(tensor.spec.shape, beside[0].spec.shape) if len(beside) == 1 else None
        if repeats is None:
            plain.append(name)
        else:
            scaled.append(name)
            made[name] = LazyTensor(tensor.spec, partial(_scaled, tensor, beside[0], repeats))
    bits, lacking = "of 8 bits or fewer", "of which the file has none or none that fits"
    return made, [
        *counted(scaled, bits, "multiplied by the scales beside them"),
        *counted(plain, bits, f"read without a scale, {lacking}"),
    ]


def _scaled(tensor: LazyTensor, scale: LazyTensor, repeats: Shape) -> Array:
    """A tensor times its scale, of which each number stands for so many of each axis."""
    values, scales = tensor.load(), scale.load()
    if len(repeats) < values.ndim:  # one number
        return np.asarray(values * scales.reshape(()))
    scales = scales.reshape(scales.shape + (1,) * (values.ndim - scales.ndim))
    for axis, times in enumerate(repeats):
        scales = np.repeat(scales, times, axis) if scales.shape[axis] > 1 else scales
    return np.asarray(values * scales[tuple(slice(size) for size in values.shape)])


def _repeats(shape: Shape, scale: Shape) -> Shape | None:
    """How many elements of each axis share a number; () for all of them; None where unclear."""
    if math.prod(scale) == 1:
        return ()
    if len(shape) != 2 or 0 in scale:
        return None
    rows, columns = shape
    if scale == (rows, 1) or (scale == (rows,) and rows != columns):
        return (1, columns)
    if len(scale) != 2:
        return None
    if scale == (-(-rows // BLOCK), -(-columns // BLOCK)):
        return (BLOCK, BLOCK)
    if rows % scale[0] or columns % scale[1]:
        return None
    return (rows // scale[0], columns // scale[1])


MAX_LEFT_OUT = 100_000
LEFT_OUT = (
    "weights that several modules share are stored under one name; the others, which the metadata "
    "list, are read as the whole tensor that is stored"
)


def restore_names(store: TensorStore) -> None:
    """Put a store's tensors under the names that were left out too, which come last.

    safetensors stores no tensor twice: save_model (safetensors/torch.py) and huggingface_hub's
    save_torch_model leave out all names but one and put ``{left out: kept}`` into the metadata,
    which may hold anything. What counts is a name that is not stored with the name of a stored
    tensor as its value, so that no chain and no circle is followed. They do not say whether a
    shared tensor was a part or the transpose of the one that is stored.
    Raises CheckpointError: there are more than `MAX_LEFT_OUT`, or a name is none for a tensor.
    """
    entries = dict(store.entries)
    left_out = {
        name: printable(holder, MAX_NAME_LENGTH)
        for name, holder in store.listed_names.items()
        if name not in entries
    }
    holders = {name: holder for name, holder in left_out.items() if holder in entries}
    if len(holders) > MAX_LEFT_OUT:
        what = f"its metadata give stored tensors {len(holders)} more names"
        raise CheckpointError(what, where=store.path)
    # Names in modules of this file whose tensors it lacks, as a single shard may.
    modules = {name.rpartition(".")[0] for name in entries} - {""}
    missing = sorted(
        name
        for name, holder in left_out.items()
        if holder not in entries and "." in holder and name.rpartition(".")[0] in modules
    )
    notes = [LEFT_OUT] if holders else []
    if missing:
        notes.append(
            f"{_and_more(missing)} should be stored as {printable(left_out[missing[0]], 80)}, which"
            " is not in the file: its layer is read without"
        )
    for holder in set(holders.values()):
        entries[holder] = replace(entries[holder], identity=("stored as", holder))
    # save_model writes them in any order.
    entries.update((name, entries[holders[name]]) for name in sorted(holders))
    if notes:
        store.replace_entries(entries, notes)


def _and_more(names: Sequence[str]) -> str:
    return printable(names[0], 80) + (f" and {len(names) - 1} more" if names[1:] else "")


# PEFT's names, then those of diffusers and kohya.
_UPDATE = re.compile(r"[._/](?:lora_(?:embedding_)?[AB]|lora[._](?:down|up))(?:[._/]|$)")
_LAST = re.compile(r"[./]")
_WRAPPED = re.compile(r"(?P<module>.+[./])base_layer[./](?P<weight>[^./]+)")


def adapter_alone(names: Collection[str]) -> str:
    """What to do about a file of nothing but updates, as PEFT saves them; or nothing."""
    updates = sum(_UPDATE.search(name) is not None for name in names)
    if not 2 * updates > len(names):
        return ""
    return (
        "it holds an adapter (LoRA) alone, which moves the weights of another model: name that"
        " model, or what PEFT's merge_and_unload() made of both"
    )


def unwrap_adapters(store: TensorStore) -> None:
    """Put every weight that PEFT has wrapped under its own name, and add a note.

    A layer with an adapter keeps its own weight as ``base_layer.weight``, beside ``lora_A`` and
    ``lora_B``. The update is ``s B A`` with a scale s from the adapter's configuration, which is
    not among the tensors (peft/tuners/lora/layer.py), so that the weight alone can be read.
    """
    entries = store.entries
    names = {
        name: bare
        for name in entries
        if (found := _WRAPPED.fullmatch(name))
        and (bare := f"{found['module']}{found['weight']}") not in entries
    }
    # A bias has no update.
    updated = [bare for bare in names.values() if "bias" not in _LAST.split(bare)[-1]]
    notes = []
    if updated:
        notes.append(
            f"an adapter's update is not added to {_and_more(updated)}, since its scale is not in "
            "the file: PEFT's merge_and_unload() adds it"
        )
    if names:
        store.replace_entries({names.get(name, name): one for name, one in entries.items()}, notes)


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


class _Parts(Struct, frozen=True):
    """One weight: its name, how it is stored, the names of its parts and the map from them."""

    name: str
    how: str
    parts: tuple[str, ...]
    shape: Shape
    combine: Callable[..., Array]

    def tensor(self, entries: Mapping[str, LazyTensor]) -> LazyTensor:
        """The weight, read from its parts; it is another name of what has the same parts."""
        parts = [entries[name] for name in self.parts]
        main = next(part for part in reversed(parts) if part.spec.shape == self.shape)
        size = sum(part.spec.bytes for part in parts)
        shared = [part.identity for part in parts]
        return replace(
            parts[0],
            spec=TensorSpec(self.shape, main.spec.dtype, size),
            load=lambda: self.combine(*(part.load() for part in parts)),
            identity=None if None in shared else (self.combine, self.shape, *shared),
        )


def compute_weights(store: TensorStore) -> None:
    """Put every weight in the place of its parts, and add a note for each way of storing.

    Weights are stored normalised, pruned, dropped out or held orthogonal; what the layer multiplies
    with is a function of the parts (torch/nn/utils/weight_norm.py, spectral_norm.py, prune.py and
    parametrizations.py; fastai's WeightDropout and Salesforce's WeightDrop).
    """
    entries = store.entries
    found: dict[str, _Parts] = {}
    for name in entries:
        if name.endswith(_ENDS):
            parts = _parts(name, entries)
            # A weight that stands beside its parts is taken as it is, but for one that dropout hit.
            if parts is not None and (parts.how == DROPPED or parts.name not in entries):
                found[name] = parts
    replaced = {name for parts in found.values() for name in (*parts.parts, parts.name)}
    made: dict[str, LazyTensor] = {}
    by_way: dict[str, list[str]] = defaultdict(list)
    for name, entry in entries.items():
        if name in found:
            parts = found[name]
            made[parts.name] = parts.tensor(entries)
            by_way[parts.how].append(parts.name)
        elif name not in replaced:
            made[name] = entry
    suffix = "sensitivities are those of the weight itself"
    notes = [f"{how} in {_and_more(names)}: {suffix}" for how, names in by_way.items()]
    if found:
        store.replace_entries(made, notes)


def _parts(name: str, entries: Mapping[str, LazyTensor]) -> _Parts | None:
    """What the weight is whose first part has this name; None where it is not one.

    Normalised is ``g v / ‖v‖``, the norm over all axes of v along which g has one element; or
    ``W / (uᵀ W v)``, with the singular vectors as the power iteration left them. Orthogonal are
    Householder reflections, times a base where there is one: torch's default where the matrix is
    not square. A square one with a base is the orthogonal RNN's own, whose map is assumed there.
    """
    found = _FIRST.fullmatch(name)
    if found is None:
        return None

    def shape_of(part: str) -> Shape:
        return entries[part].spec.shape if part in entries else ()

    shape = shape_of(name)
    plain = found["weight"] or found["plain"] or found["normal"]
    weight, dot = f"{found['module']}{plain}", found["dot"]
    # Of a parametrisation, the folder of its parts.
    folder = name.rpartition(dot)[0] + dot if dot else ""
    if found["normal"] or found["index"]:
        direction = f"{folder}original1" if dot else f"{weight}_v"
        size, shape = shape, shape_of(direction)
        # A norm has one element, or as many as v along one of its axes.
        ones = (1,) * len(shape)
        along = [(*ones[:axis], n, *ones[axis + 1 :]) for axis, n in enumerate(shape)]
        fits = len(shape) > 1 and size in ((), (1,), ones, *along)
        return _Parts(weight, WEIGHT_NORM, (name, direction), shape, _normalise) if fits else None
    if found["kind"] == "raw":
        if not _RECURRENT.fullmatch(plain):
            return None
        # The weight before dropout stands beside or above the module that it belongs to.
        module = found["module"]
        inner = f"{module}module{module[-1:] or '.'}"
        sibling = plain.replace("_hh", "_ih")
        own = inner if any(f"{inner}{part}" in entries for part in (plain, sibling)) else module
        return _Parts(f"{own}{plain}", DROPPED, (name,), shape, np.asarray)
    mask = f"{weight}_mask"
    if not dot and mask in entries:
        fits = shape_of(mask) == shape
        return _Parts(weight, PRUNING, (name, mask), shape, np.multiply) if fits else None
    if len(shape) != 2 or (dot and {f"{folder}1{dot}_u", f"{folder}1{dot}base"} & entries.keys()):
        return None  # one parametrisation on top of another
    vectors = [f"{folder}0{dot}{side}" if dot else f"{weight}{side}" for side in ("_u", "_v")]
    if not dot or vectors[0] in entries:
        left, right = map(shape_of, vectors)
        fits = (*left, *right) in (shape, shape[::-1])
        parts = (name, *vectors)
        return _Parts(weight, SPECTRAL_NORM, parts, shape, _divide_by_largest) if fits else None
    base = f"{folder}0{dot}base"
    parts = (name, base) if base in entries else (name,)
    fits = base not in entries or (
        shape[0] != shape[1] and shape_of(base) == (max(shape), max(shape))
    )
    return _Parts(weight, ORTHOGONAL, parts, shape, _reflected) if fits and 0 not in shape else None


def _normalise(norm: Array, direction: Array) -> Array:
    norm = norm if norm.ndim == direction.ndim else norm.reshape((1,) * direction.ndim)
    axes = tuple(axis for axis, size in enumerate(norm.shape) if size == 1)
    length = np.sqrt(np.sum(np.square(direction), axis=axes, keepdims=True))
    # A direction of zeros stays zero, as it does in the limit of small ones with a zero gain.
    unit: Array = np.divide(direction, length, out=np.zeros_like(direction), where=length > 0)
    return norm * unit


def _divide_by_largest(weight: Array, left: Array, right: Array) -> Array:
    # With dim=1 it is the transpose of which u and v are the singular vectors. Where its shape
    # does not say so, the value does: no other vectors of norm 1 give more.
    sides = [m for m in (weight, weight.T) if m.shape == (left.size, right.size)]
    norm = max((left @ matrix @ right for matrix in sides), key=abs)
    normal: Array = weight / norm
    if not np.isfinite(normal).all():
        what = "a spectral norm of zero or one that is not finite"
        raise CheckpointError(what, remedy="the run had diverged: use an earlier checkpoint")
    return normal


def _reflected(stored: Array, base: Array | None = None) -> Array:
    """The first columns of the product of the reflections 1 - τ v vᵀ, v of ones on the diagonal."""
    tall = stored if stored.shape[0] >= stored.shape[1] else stored.T
    signs = np.trunc(np.diagonal(tall))
    if np.iscomplexobj(tall) or np.any(np.abs(signs) != 1):
        what = "a parametrisation that the file does not name, and not of Householder reflections"
        remedy = "call torch.nn.utils.parametrize.remove_parametrizations and save again"
        raise CheckpointError(what, remedy=remedy)
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


REWRITES = (restore_names, unwrap_adapters, compute_weights)
"""In the order in which they apply: a part may have a name that was left out, or an adapter's."""
