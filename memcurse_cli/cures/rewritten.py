"""A checkpoint whose linear layers hold the same function in other parameters.

With ``A = P Λ P⁻¹`` the states ``z = P⁻¹ h`` follow ``z[t+1] = Λ z[t] + P⁻¹B x[t+1]``, and
``y = C P z`` (Orvieto et al. 2023, section 3.2). Of a conjugate pair one is kept, with twice its
column of CP; a real λ stands for itself. A complex state is a real block of two (their E.3).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.safetensors import ELEMENT_NAMES, encode
from memcurse_cli.checkpoints.store import FLOAT4, Array, TensorStore, element_type
from memcurse_cli.diagnosis.settings import require_known
from memcurse_cli.errors import CheckpointError, TensorError
from memcurse_cli.families.detect import detect, read_layer, validate_assumptions
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Complexes, Floats, Recurrence
from memcurse_cli.families.rewriting import Rewriting, is_linear, rewrite, unstorable
from memcurse_cli.wording import count, percent, share_having

FORMS = ("polar", "real-imaginary", "lru", "real-blocks")
Start = Floats | Complexes | None

TOLERANCE = 1e-3
"""The difference of two outputs, over their RMS, from which they are those of two functions."""
SEQUENCES, SEED = 8, 0  # of white noise that two layers are compared on
START = "h0"  # a layer's tensor of first states
DIRECT = "D"  # what a rewritten layer keeps of its own tensors
METADATA = "memcurse.rewritten"
OTHER_LAYER = "choose other layers with --layer GLOB"


class Cure(Struct, frozen=True):
    """How layers of one kind, dense or diagonal, are rewritten; a UsageError for an unknown form.

    γ is folded into B, or with ``own_gain`` √(1-|λ|²) in a tensor of its own, as LRUs have it.
    ``largest`` is that of `Rewriting`.
    """

    dense: bool
    form: str  # one of `FORMS`
    own_gain: bool = False
    largest: float | None = None

    def __post_init__(self) -> None:
        require_known(self.form, FORMS, "--parametrization", f"choose one of {', '.join(FORMS)}")


class Rewritten(NamedTuple):
    """A layer in its new form."""

    tensors: Mapping[str, Floats]  # by their roles
    recurrence: Recurrence  # what it computes, in float64
    start: Start


class Driven(NamedTuple):
    """A layer as it was, and what stands in its place under these names."""

    recurrence: Recurrence
    start: Start
    rewritten: Rewritten
    prefix: str


class Cured(NamedTuple):
    """A checkpoint to be written, and what became of its layers."""

    content: bytes  # of a safetensors file
    layers: tuple[Driven, ...]
    told: tuple[str, ...]  # a sentence for each, which the file's metadata hold too
    kept: Mapping[str, Array]  # every other tensor
    clipped: bool  # whether the function is another


def cured(
    path: str,
    cure: Cure,
    options: ReadOptions,
    family: str | None = None,
    layers: Sequence[str] = (),
) -> Cured:
    """The checkpoint with its layers of one kind rewritten, and every other tensor as it was.

    Raises a TensorError for a layer that cannot be rewritten; a CheckpointError where there is
    none, or a tensor of a type that safetensors does not have; and what `detect` raises.
    """
    validate_assumptions(options.assume)
    driven: list[Driven] = []
    told: list[str] = []
    with open_checkpoint(path) as store:
        found = detect(store.tensors, family, layers, path=store.path, aliases=store.aliases)
        gone: dict[str, Recurrence] = {}  # the layer of every tensor that is replaced
        made: dict[str, Array] = {}
        for reader, match in found:
            recurrence = read_layer(reader, store, match, options)
            if (recurrence.dense is not None) is not cure.dense or not is_linear(recurrence):
                continue
            if match.tied or match.member is not None:
                raise _refused(recurrence, "its tensors hold other layers too", OTHER_LAYER)
            own = [name for role, name in match.tensors.items() if role != DIRECT]
            start, first = None, match.prefix + START
            if first in store.tensors:
                start = store.read(first).ravel()
                own.append(first)
            gone |= dict.fromkeys(own, recurrence)
            rewritten = rewritten_layer(recurrence, cure, start)
            held = store.tensors[own[0]].dtype
            kept_in = np.float64 if held == "float64" else np.float32
            for role, values in rewritten.tensors.items():
                made[match.prefix + role] = values.astype(kept_in)
            driven.append(Driven(recurrence, start, rewritten, match.prefix))
            states = count(rewritten.recurrence.size, "state")
            was = f"{reader.name} of {recurrence.size}"
            told.append(f"{match.layer}: {was} is {cure.form} of {states}")
        if not driven:
            kind = "dense" if cure.dense else "diagonal"
            what = f"none of its {count(len(found), 'recurrent layer')} is {kind} and linear"
            raise CheckpointError(what, where=store.path, remedy="memcurse inspect lists them")
        kept = stored_arrays(store)
        for name, recurrence in gone.items():
            if kept.pop(name, None) is None:
                raise _refused(recurrence, f"{name} is not stored as it is used", OTHER_LAYER)
        if taken := kept.keys() & made.keys():
            what = f"a tensor of the name {min(taken)} is there already"
            raise CheckpointError(what, where=store.path, remedy=OTHER_LAYER)
        history = "; ".join(filter(None, (store.metadata.get(METADATA), *told)))
        content = encode({**kept, **made}, {**store.metadata, METADATA: history})
    return Cured(content, tuple(driven), tuple(told), kept, cure.largest is not None)


def _refused(recurrence: Recurrence, what: str, remedy: str) -> TensorError:
    return TensorError(what, where=recurrence.name, remedy=remedy)


def stored_arrays(store: TensorStore) -> dict[str, Array]:
    """Every tensor of a checkpoint as it is stored; of safetensors also those that are not read.

    Raises a CheckpointError for one of a type that safetensors does not have, or NumPy.
    """
    arrays: dict[str, Array] = {}
    if store.format == "safetensors" and os.path.isfile(store.path):
        import safetensors

        for name, tensor in safetensors.deserialize(Path(store.path).read_bytes()):
            dtype = _element_type(ELEMENT_NAMES.get(tensor["dtype"], tensor["dtype"]), name)
            arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
        return arrays
    for name, spec in store.tensors.items():
        dtype = _element_type(spec.dtype, name)
        values = store.read(name)
        arrays[name] = values.astype(dtype)
        if dtype.kind in "iu" and values.size and np.abs(values).max() > 2**53:
            raise CheckpointError(f"the tensor {name} has integers above 2^53", where=store.path)
    return arrays


def _element_type(dtype: str, tensor: str) -> np.dtype[Any]:
    if dtype not in ELEMENT_NAMES.values() or dtype == FLOAT4:
        what = f"the tensor {tensor} is of the type {dtype}, which is not written"
        raise CheckpointError(what, remedy="convert it with the library that wrote it")
    return element_type(dtype)


def rewritten_layer(recurrence: Recurrence, cure: Cure, start: Start = None) -> Rewritten:
    """A linear layer in the tensors that `complex_diagonal`, `lru` or `block_diagonal` reads.

    Raises a TensorError where it has no such form.
    """
    if reason := unstorable(recurrence):
        raise _refused(recurrence, reason, OTHER_LAYER)
    if start is not None and recurrence.dense is None:
        raise _refused(recurrence, f"its {START} belongs to its own states", OTHER_LAYER)
    plain, _, reason = rewrite(recurrence, Rewriting("real-imaginary", largest=cure.largest))
    if plain is None or plain.readin is None or plain.readout is None:
        raise _refused(recurrence, str(reason), "use a checkpoint from another step")
    # γ goes into B, and that each stored state of a pair counts twice into C.
    plain = replace(
        plain,
        log_gain=np.zeros_like(plain.log_gain),
        readin=np.exp(plain.log_gain)[:, None] * plain.readin,
        readout=(1 + plain.conjugate_pairs) * plain.readout,
        conjugate_pairs=False,
    )
    if start is not None:
        start = recurrence.eigenbasis.rows @ start
    form = _blocks if cure.form == "real-blocks" else _diagonal
    return Rewritten(form(plain, cure, start), plain, start)


def _diagonal(plain: Recurrence, cure: Cure, start: Start) -> dict[str, Floats]:
    logs = plain.log_eigenvalues
    unheld = ((logs.real >= 0, "|λ| >= 1"), (logs.imag == 0, "a real λ > 0"))
    for which, said in unheld if cure.form == "lru" else ():
        if np.any(which):
            states = share_having(int(np.count_nonzero(which)), logs.size, "state")
            clip = ", or --clip-modulus 0.999, which changes the output" * (said == "|λ| >= 1")
            what = f"{states} {said}, which no LRU has"
            raise _refused(plain, what, f"take --parametrization polar{clip}")
    rewriting = Rewriting(cure.form, "own" if cure.own_gain else "held")
    found = rewrite(plain, rewriting).recurrence
    assert found is not None
    tensors = {one.name: one.values for one in found.parameters}
    for role, values in {"B": found.readin, "C": found.readout, START: start}.items():
        if values is not None:
            tensors |= {f"{role}_re": values.real, f"{role}_im": values.imag}
    return tensors


def _blocks(plain: Recurrence, _: Cure, start: Start) -> dict[str, Floats]:
    """``Re z`` and ``Im z`` of each state side by side: blocks [[Re λ, -Im λ], [Im λ, Re λ]]."""
    value, readin, readout = np.exp(plain.log_eigenvalues), plain.readin, plain.readout
    assert readin is not None
    assert readout is not None
    turned = np.stack([value.real, -value.imag, value.imag, value.real], axis=-1)
    tensors = {
        "A": turned.reshape(-1, 2, 2),
        "B": np.stack([readin.real, readin.imag], axis=1).reshape(2 * value.size, -1),
        "C": np.stack([readout.real, -readout.imag], axis=2).reshape(len(readout), -1),
    }
    if start is not None:
        tensors[START] = np.stack([start.real, start.imag], axis=1).ravel()
    return tensors


def read_back(made: Cured, path: str | os.PathLike[str], steps: int) -> float:
    """How far the layers in a file are from what they were: the largest of `difference`.

    Each is driven with white noise for so many steps. Raises a CheckpointError where another tensor
    is not as it was; a TensorError where the layer is not what `rewritten_layer` made of it by more
    than `TOLERANCE`, or, where no modulus was clipped, not what it was.
    """
    random, farthest = np.random.default_rng(SEED), 0.0
    with open_checkpoint(path) as store:
        arrays = stored_arrays(store)
        for name, array in made.kept.items():
            if arrays[name].dtype != array.dtype or arrays[name].tobytes() != array.tobytes():
                raise CheckpointError(f"the tensor {name} is not what was to be written")
        found = detect(store.tensors, path=store.path)
        for was, start, rewritten, prefix in made.layers:
            assert was.readin is not None
            inputs = random.standard_normal((steps, SEQUENCES, was.readin.shape[1]))
            own = {prefix + role for role in rewritten.tensors}
            layers = [
                read_layer(reader, store, match, ReadOptions())
                for reader, match in found
                if own.issuperset({*match.tensors.values()} - {prefix + DIRECT})
            ]
            starts = _starts(arrays, prefix, len(layers))
            parts = map(outputs, layers, starts, [inputs] * len(layers))
            after = np.sum([*parts], axis=0)
            apart = wrong = difference(outputs(was, start, inputs), after)
            if made.clipped:
                wanted = outputs(rewritten.recurrence, rewritten.start, inputs)
                wrong = difference(wanted, after)
            if not layers or not wrong <= TOLERANCE:
                what = f"what was made of it puts out something else, by {percent(wrong)}"
                remedy = "its eigenvectors are too nearly parallel: use another checkpoint"
                raise _refused(was, what, remedy)
            farthest = max(farthest, apart)
    return farthest


def _starts(arrays: Mapping[str, Array], prefix: str, layers: int) -> Sequence[Start]:
    """The first states of the layers that stand for one, a block or all of a diagonal one."""
    if prefix + START in arrays:
        return list(arrays[prefix + START].reshape(layers, -1))
    if f"{prefix}{START}_re" in arrays:
        return [arrays[f"{prefix}{START}_re"] + 1j * arrays[f"{prefix}{START}_im"]]
    return [None] * layers


def outputs(recurrence: Recurrence, start: Start, inputs: Floats) -> Floats:
    """(T, sequences, outputs) of a linear layer without D, of (T, sequences, inputs)."""
    readin, readout, dense = recurrence.readin, recurrence.readout, recurrence.dense
    assert readin is not None
    assert readout is not None
    state = np.zeros((inputs.shape[1], recurrence.size), np.complex128)
    if start is not None:
        state += start
    turn, gain = np.exp(recurrence.log_eigenvalues), np.exp(recurrence.log_gain)
    shown = []
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not the same
        for x in inputs:
            moved = turn * state if dense is None else state @ dense.matrix.T
            state = moved + gain * (x @ readin.T)
            shown.append((1 + recurrence.conjugate_pairs) * (state @ readout.T).real)
    return np.stack(shown)


def difference(before: Floats, after: Floats) -> float:
    """How far two layers' outputs (T, …) are apart: RMS over that of the first, at the worst step.

    Infinite where one overflows.
    """
    axes = tuple(range(1, before.ndim))
    with np.errstate(all="ignore"):
        apart, size = (np.sqrt(np.mean(one**2, axis=axes)) for one in (after - before, before))
        shares = np.where(apart == 0, 0, apart / size)
    return float(np.max(shares)) if np.all(np.isfinite(shares)) else math.inf
