"""Open a checkpoint: a file by its content, a directory by what lies in it, or arrays in memory."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Hashable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from memcurse_cli.checkpoints.registry import EXTENSIONS, FORMATS, HEAD_BYTES, open_known
from memcurse_cli.checkpoints.rewrites import REWRITES
from memcurse_cli.checkpoints.select import collect, name_jax, name_torch, texts
from memcurse_cli.checkpoints.store import Array, LazyTensor, TensorSpec, TensorStore, to_double
from memcurse_cli.checkpoints.untrusted.names import (
    INFINITE,
    MAX_JSON_BYTES,
    NOT_FINITE,
    is_url,
    parse_object,
    printable,
    shown_place,
)
from memcurse_cli.checkpoints.untrusted.source import (
    Directory,
    File,
    LocalDirectory,
    LocalFile,
    unreadable,
)
from memcurse_cli.errors import COPY, CheckpointError

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1_000_000

# The names that `save_pretrained` gives to weights, whole or in shards.
_WEIGHTS = ("model", "pytorch_model")
_ENDINGS = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")


def _look_beside(weights: File, store: TensorStore) -> tuple[str, ...]:
    """Find the configuration and a trainer's files beside weights of Hugging Face; return notes.

    Nothing in them can keep the weights from being read: a note says what is left out, and why.
    """
    name = weights.path.replace("\\", "/").rpartition("/")[2]
    stem = name.partition(".")[0].partition("-")[0]
    if stem not in _WEIGHTS or not name.endswith(_ENDINGS):
        return ()
    try:
        directory = weights.directory()
        if isinstance(directory, LocalDirectory) and set(RECORDS) & set(directory.names):
            store.beside = directory
        with closing(directory.open(CONFIG_NAME)) as file:
            # transformers before version 5 writes an open limit as Infinity, which JSON has not.
            store.config = parse_object(file.whole(MAX_CONFIG_BYTES), understood=INFINITE)
    except (ValueError, CheckpointError) as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            reason = error.what if isinstance(error, CheckpointError) else error
            return (printable(f"{CONFIG_NAME} beside the weights is not read: {reason}"),)
    return ()


def _unknown(file: File) -> CheckpointError:
    """The error that says what the file is instead, and what to do."""
    head = file.first(HEAD_BYTES)
    elements = re.search(r"\.data-\d{5}-of-\d{5}$", file.path)
    if not head:
        what, remedy = "the file is empty", COPY
    elif head.startswith(b"version https://git-lfs.github.com/spec/"):
        what = "this is a git-LFS pointer, not the file that it stands for"
        remedy = "run `git lfs pull` in its repository"
    elif head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        what = "this is a web page saved under a checkpoint's name"
        remedy = "download the file itself: log in if it is private, and use the raw link"
    elif elements is not None:
        what = "these are the elements of a TensorFlow checkpoint without their names"
        remedy = f"give {file.path[: elements.start()].rpartition('/')[2]}.index beside it"
    elif not head.strip(b"\0"):
        what = f"its first {len(head)} bytes are zero, as in a file whose writing was cut short"
        remedy = COPY
    else:
        text = head[:16].decode("ascii", "replace")
        shown = f'"{text}"' if text.isascii() and text.isprintable() else head[:8].hex(" ")
        what = f"this is not a format that memcurse reads; its first bytes are {shown}"
        remedy = f"it reads {', '.join(format.name for format in FORMATS)}"
    return CheckpointError(what, where=file.path, remedy=remedy)


def open_checkpoint(path: str | os.PathLike[str]) -> TensorStore:
    """Open a file, a directory that holds one checkpoint, the index of its shards, or a URL.

    Headers alone are read. A format is told by its content, never by its extension. Nothing that
    the checkpoint holds is executed, and no file outside ``path`` is read, except a shard that an
    index names, and the config.json and, as `recorded_rates` asks, the trainer's files of Hugging
    Face's weights, all beside ``path``.
    Raises CheckpointError: the file is missing, damaged, unsafe to open, or not a checkpoint.
    """
    if is_url(path):
        return _open_url(os.fspath(path))
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        index = f"{os.fspath(path)}{INDEX_SUFFIX}"
        if isinstance(error, FileNotFoundError) and os.path.isfile(index):
            return open_file(LocalFile(index))
        raise unreadable(shown_place(path, 200), error) from error
    return _open_directory(path) if is_directory else open_file(LocalFile(path))


def _open_directory(path: str | os.PathLike[str]) -> TensorStore:
    from memcurse_cli.checkpoints.npy import array_names, open_arrays

    directory = LocalDirectory(path)
    if array_names(directory) and not _candidates(directory):
        return _finished(open_arrays(directory))
    name = choose_file(directory)
    store = open_file(directory.open(name))
    store.path = directory.path
    others = [other for other in directory.names if other.endswith(INDEX_SUFFIX) and other != name]
    if name.endswith(INDEX_SUFFIX) and "/" not in name and others:
        note = f"of {len(others) + 1} checkpoints {name} was read, which the file checkpoint names"
        store.notes += (note,)
    return store


def _open_url(url: str) -> TensorStore:
    from memcurse_cli.checkpoints.remote import RemoteDirectory, open_remote

    try:
        found = open_remote(url)
    except CheckpointError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or urlsplit(url).query:
            raise
        try:
            found = open_remote(f"{url}{INDEX_SUFFIX}")
        except CheckpointError:
            raise error from error.__cause__
    file = found.open(choose_file(found)) if isinstance(found, RemoteDirectory) else found
    store = open_file(file)
    store.path, store.transfer = found.path, found.transfer
    return store


def open_file(file: File, *, weights: bool = True) -> TensorStore:
    """Open a file in the format that recognises it; the store then owns the file.

    ``weights`` says whether a file without weights, as one of an optimiser's state, is refused.
    """
    try:
        store = open_known(file)
        if store is None:
            raise _unknown(file)
        notes = _look_beside(file, store)
        store = _finished(store, weights=weights)
        store.notes += notes
        return store
    except BaseException as error:
        file.close()
        if isinstance(error, MemoryError):
            what = "its headers need more memory than there is"
            remedy = f"the file is probably corrupt: {COPY}"
            raise CheckpointError(what, where=file.path, remedy=remedy) from error
        raise


def _finished(store: TensorStore, *, weights: bool = True) -> TensorStore:
    if weights and not store.tensors:
        why = f" ({'; '.join(store.notes)})" if store.notes else ""
        what = f"the file holds no weights{why}"
        remedy = "name the file that the model itself was saved to"
        raise CheckpointError(what, where=store.path, remedy=remedy)
    for rewrite in REWRITES:
        rewrite(store)
    return store


# In the order in which transformers looks for them; then what Orbax and DCP write.
CONVENTIONAL_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "_METADATA",
    "_CHECKPOINT_METADATA",
    "manifest.ocdbt",
    ".metadata",
)
# Where HF Trainer keeps each of its checkpoints.
_TRAINER_FOLDER = re.compile(r"checkpoint-\d{1,12}")
# Files that a trainer writes beside the weights.
TRAINER_FILES = (
    "optimizer.",
    "scheduler.",
    "training_args.",
    "rng_state",
    "random_states",
    "scaler.",
)
# Of these HF Trainer and Accelerate keep the optimizer in the first two, and Trainer its log.
OPTIMIZERS, TRAINER_LOG = ("optimizer.pt", "optimizer.bin"), "trainer_state.json"
RECORDS = (*OPTIMIZERS, TRAINER_LOG)
INDEX_SUFFIXES = (".index.json", ".weights.json")

# TensorFlow: the index of a checkpoint, and the file that names the latest of several.
INDEX_SUFFIX, TENSORFLOW_STATE = ".index", "checkpoint"
SAVED_MODEL, SAVED_VARIABLES = "saved_model.pb", "variables/variables.index"
_TENSORFLOW_LATEST = re.compile(r'^model_checkpoint_path:\s*"([^"\\]*)"', re.MULTILINE)
# DeepSpeed: a folder for each step, the file that names the latest, and in each folder a file for
# each rank, of whole weights (ZeRO stages 0 to 2), pieces of them (stage 3) or single layers.
DEEPSPEED_OPTIMIZER = "_optim_states.pt"
DEEPSPEED_LATEST = "latest"
_RANK = re.compile(r"mp_rank_\d+_model_states\.pt")
_PARTITIONED = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
_LAYER = re.compile(r"layer_\d+-model_\d+-model_states\.pt")
_STEP = re.compile(r"global_step\d+")
MERGE = "run the zero_to_fp32.py that DeepSpeed left beside the folder, and name what it writes"
# Bounds what is read of a file that names the latest checkpoint.
MAX_STATE_BYTES = 1 << 20


def choose_file(directory: Directory) -> str:
    """The name of the one checkpoint in the directory.

    That is a file with a conventional name, else DeepSpeed's, else the only index of shards, else
    the only file with a known extension that is not a trainer's, else that of the only step of a
    manager.
    Raises CheckpointError: the directory holds no checkpoint, or more than one.
    """
    found = _candidates(directory)
    if len(found) == 1:
        return found[0]
    saved = [name for name in directory.names if _TRAINER_FOLDER.fullmatch(name)]
    if found:
        listed = ", ".join(printable(name, 60) for name in found[:4])
        listed += ", …" if len(found) > 4 else ""
        what = f"the directory has {len(found)} checkpoints: {listed}"
        remedy = "name the one to read"
    elif saved:
        what = "the directory has no checkpoint of its own"
        latest = max(saved, key=lambda folder: int(folder.rpartition("-")[2]))
        remedy = f"name one of its folders, as {latest}"
    else:
        what = "the directory has no checkpoint"
        remedy = f"looked for {', '.join(CONVENTIONAL_NAMES)}, "
        remedy += f"or one file ending in {', '.join(EXTENSIONS)}"
    raise CheckpointError(what, where=directory.path, remedy=remedy)


def _candidates(directory: Directory) -> list[str]:
    """The files that `choose_file` finds equally good."""
    names = [name for name in directory.files() if not name.startswith(TRAINER_FILES)]
    for name in CONVENTIONAL_NAMES:
        if name in names or (name.startswith(".") and name in directory.names):
            return [name]
    split = _deepspeed(directory)
    if split:
        return split
    # TensorFlow's SavedModel: the index of its variables.
    if {SAVED_MODEL, "variables"} <= set(directory.names) and (
        not isinstance(directory, LocalDirectory) or directory.has(SAVED_VARIABLES)
    ):
        return [SAVED_VARIABLES]
    names = [name for name in names if not name.endswith(DEEPSPEED_OPTIMIZER)]
    found = [name for name in names if name.endswith(INDEX_SUFFIXES)] or [
        name for name in names if name.lower().endswith(EXTENSIONS)
    ]
    if len(found) > 1:
        found = _latest_of_tensorflow(directory, found)
    if found:
        return found
    # The metadata of the steps that Orbax's CheckpointManager has numbered.
    for step in filter(str.isdecimal, directory.names):
        metadata = (f"{step}/_CHECKPOINT_METADATA", f"{step}/default/_METADATA")
        found += [name for name in metadata if holds(directory, name)][:1]
    return found


def holds(directory: Directory, name: str) -> bool:
    """Whether the directory has this file, and no link leads outside on the way to it."""
    if not isinstance(directory, LocalDirectory):
        return name in directory.names
    with suppress(CheckpointError):
        return directory.has(name)
    return False


def _deepspeed(directory: Directory) -> list[str]:
    """The file of weights in a folder of one step, or of that of several which ``latest`` names."""
    found = _of_deepspeed_step(directory)
    if found or not isinstance(directory, LocalDirectory):
        return found
    steps = [name for name in directory.names if _STEP.fullmatch(name)]
    latest = _text(directory, DEEPSPEED_LATEST).strip()
    inside: list[str] = []
    for step in [latest] if latest in directory.names and latest else steps:
        if directory.locate(step).is_dir():
            inside += [f"{step}/{name}" for name in _of_deepspeed_step(directory.inside(step))]
    return inside


def _of_deepspeed_step(directory: Directory) -> list[str]:
    found, pieces, layers = (
        [name for name in directory.files() if kind.fullmatch(name)]
        for kind in (_RANK, _PARTITIONED, _LAYER)
    )
    if len(found) > 1:
        what = f"its matrices are split over {len(found)} ranks (tensor parallel)"
        remedy = "merge them with the framework that trained it, or name one, such as "
        remedy += f"{found[0]}, to read its part alone"
    elif pieces and not found:
        what = f"DeepSpeed (ZeRO stage 3) keeps its parameters in pieces, in {len(pieces)} files"
        remedy = MERGE
    elif found and layers:
        what = f"its layers lie in {len(layers)} files of their own (pipeline parallel)"
        remedy = f"name the one of a recurrent layer, such as {layers[0]}"
    else:
        return found
    raise CheckpointError(what, where=directory.path, remedy=remedy)


def _latest_of_tensorflow(directory: Directory, found: list[str]) -> list[str]:
    """Of several indexes the one that the file ``checkpoint`` names; all where it names none.

    The path in it may be that of another machine: its last part counts.
    """
    if not all(name.endswith(INDEX_SUFFIX) for name in found):
        return found
    named = _TENSORFLOW_LATEST.search(_text(directory, TENSORFLOW_STATE))
    index = f"{named[1].rpartition('/')[2]}{INDEX_SUFFIX}" if named else ""
    return [index] if index in found else found


def _text(directory: Directory, name: str) -> str:
    if name not in directory.names:
        return ""
    with closing(directory.open(name)) as file:
        return file.first(MAX_STATE_BYTES).decode("utf-8", "replace")


def trainer_state(directory: Directory) -> dict[str, Any]:
    """What HF Trainer's log in a directory says; empty where there is none that can be read."""
    with suppress(CheckpointError, ValueError), closing(directory.open(TRAINER_LOG)) as file:
        # A loss that diverged is not finite.
        return parse_object(file.whole(MAX_JSON_BYTES), understood=NOT_FINITE)
    return {}


class MemoryStore(TensorStore):
    """The arrays of a state_dict, a training checkpoint as loaded, or a tree of parameters.

    PyTorch, JAX and NumPy arrays are told apart by what they offer, so that no framework is
    imported. What is not an array is passed over. Messages call it ``path``.
    Raises CheckpointError: the argument is not a mapping, or holds no array.
    """

    def __init__(self, arrays: Mapping[str, Any], path: str = "state_dict") -> None:
        if not isinstance(arrays, Mapping):
            what = f"a {type(arrays).__name__} is not a mapping from names to arrays"
            remedy = "pass model.state_dict(), a tree of parameters, or a path"
            raise CheckpointError(what, where=path, remedy=remedy)

        def expand(node: object) -> object:
            """A state of an optax transformation under a key that says so."""
            if isinstance(node, tuple) and type(node).__module__.split(".")[0] == "optax":
                return {"opt_state": tuple(node)}
            return node

        def leaf(node: object) -> tuple[bool, LazyTensor] | None:
            tensor = lazy(node)
            return None if tensor is None else (hasattr(node, "detach"), tensor)

        try:
            leaves = collect(arrays, leaf, expand)
            found = {place: tensor for place, (_, tensor) in leaves.items()}
            any_torch = any(is_torch for is_torch, _ in leaves.values())
            selected, notes = (name_torch if any_torch else name_jax)(found)
        except ValueError as error:
            what, remedy = f"the mapping cannot be read: {error}", "pass a flat mapping"
            raise CheckpointError(what, where=path, remedy=remedy) from error
        if not found:
            remedy = "pass model.state_dict() or a tree of parameters"
            raise CheckpointError("the mapping holds no array", where=path, remedy=remedy)
        super().__init__(
            path,
            selected,
            notes,
            size=sum(tensor.spec.bytes for tensor in found.values()),
            format="memory",
            metadata=texts(arrays),
            contents=arrays,
        )
        _finished(self, weights=False)


def _converted(array: Any, dtype: str) -> Array:
    try:
        if hasattr(array, "detach"):  # PyTorch, whose bfloat16 NumPy does not know
            array = array.detach().cpu()
            is_complex = array.is_complex()
            array = array.resolve_conj().resolve_neg() if is_complex else array.double()
        return to_double(np.asarray(array))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = printable(str(error).partition("\n")[0])
        what = f"this {dtype} array cannot be converted to float64 ({reason})"
        raise CheckpointError(what, remedy="convert it to a dense float array first") from error


def lazy(node: object) -> LazyTensor | None:
    """An array of any framework as an entry; None where it is none."""
    shape, dtype = getattr(node, "shape", None), getattr(node, "dtype", None)
    if shape is None or dtype is None:
        return None
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    dimensions = tuple(int(size) for size in shape)
    size = math.prod(dimensions) * int(getattr(dtype, "itemsize", 0))
    spec = TensorSpec(dimensions, name, size)
    return LazyTensor(spec, partial(_converted, node, name), _memory(node))


def _memory(node: Any) -> Hashable | None:
    """Where a dense torch tensor lies and how, which tied parameters have in common."""
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        place = node.data_ptr()
        layout = node.shape, node.stride(), node.dtype, node.device
        return (place, *layout, node.is_conj(), node.is_neg()) if place else None
    return None
