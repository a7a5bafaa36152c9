"""The files that hold PyTorch's pickles: of torch.save, old and new, plain ones, and archives.

The pickle is run as data by `pickle_machine`, so that no file needs torch to be read and none can
run code; storages are read by range. Nothing is extracted from an archive.
"""

from __future__ import annotations

import math
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from memcurse_cli.checkpoints.open import MERGE
from memcurse_cli.checkpoints.registry import open_known
from memcurse_cli.checkpoints.select import (
    MAX_TENSORS,
    Path,
    collect,
    name_jax,
    name_torch,
    texts,
    unique,
)
from memcurse_cli.checkpoints.store import (
    Array,
    LazyTensor,
    Shape,
    TensorSpec,
    TensorStore,
    assembled,
)
from memcurse_cli.checkpoints.torch.pickle_machine import (
    EscapedBytes,
    Global,
    Machine,
    Record,
    begins_like_a_pickle,
)
from memcurse_cli.checkpoints.torch.pickled_tensors import (
    CONSTRUCTORS,
    PickledArray,
    QuantisedTensor,
    Storage,
    described_storage,
    held_bytes,
    torch_type,
)
from memcurse_cli.checkpoints.untrusted.archive import LARGE_BLOCK, Archive, Stream, inflate
from memcurse_cli.checkpoints.untrusted.names import (
    MAX_JSON_BYTES,
    NOT_FINITE,
    parse_object,
    printable,
)
from memcurse_cli.checkpoints.untrusted.source import (
    ByteRange,
    Bytes,
    File,
    FilesBeside,
    InlineBytes,
    Part,
    directory_here,
    naturals,
)
from memcurse_cli.errors import CheckpointError

# Marks a module's attributes on a path. A hostile key with it is only joined to its neighbour.
MODULE_MARK = "\0"


def store_of(root: object, file: File) -> TensorStore:
    """The store of a file that holds one pickled object.

    A module (``torch.save(model)``, TorchScript) has the names of its state_dict; of other
    objects the attributes are searched.
    """
    weights, notes = _deepspeed_weights(root)
    search = _Search()
    found = collect(weights, search.leaf, search.expand)
    found = _plainly_named({_merged(path): tensor for path, tensor in found.items()})
    # An optimizer without momentum keeps settings alone.
    if not found and not (isinstance(root, dict) and "param_groups" in root):
        raise ValueError(f"it holds {_described(weights)} and no tensor")
    if () in found:
        found = {("tensor",): found[()]}
    tensors, left_out = (name_torch if search.any_torch else name_jax)(found)
    if search.module:
        kind = printable(search.module, 80)
        notes.append(f"{kind} is a pickled module: its tensors are read, its code is not run")
    notes += left_out
    count = sum(isinstance(tensor, QuantisedTensor) for tensor in tensors.values())
    if count:
        many = "1 tensor was" if count == 1 else f"{count} tensors were"
        notes.append(f"{many} quantised to integers: the numbers are those that they stand for")
    return TensorStore(file, tensors, notes, metadata=texts(root), contents=root)


def _deepspeed_weights(root: object) -> tuple[object, list[str]]:
    """What a file of DeepSpeed's keeps under ``module``, and notes; any other object as it is.

    The weights are whole unless they are split over ranks (tensor parallel, ZeRO stage 3) or layers
    (https://github.com/deepspeedai/DeepSpeed, deepspeed/runtime/engine.py).
    """
    if not isinstance(root, dict) or not {"module", "ds_version"} <= root.keys():
        return root, []
    collect(root, lambda _: None)  # what is beside the weights is bounded as they are
    module: Any = root["module"]
    named = root.get("param_shapes")
    groups = named if isinstance(named, list) else [named]
    trained = {name for group in groups if isinstance(group, dict) for name in group}
    if not isinstance(module, dict):
        what = "a DeepSpeed file without its model, whose layers lie in files of their own"
        raise CheckpointError(what, remedy="save model.state_dict() from the training script")
    empty = sum(
        name in trained and isinstance(tensor, LazyTensor) and 0 in tensor.spec.shape
        for name, tensor in module.items()
    )
    if empty:
        what = f"DeepSpeed (ZeRO stage 3) keeps {empty} parameters of this model in pieces"
        raise CheckpointError(what, remedy=MERGE)
    ranks = root.get("mp_world_size")
    if type(ranks) is int and ranks > 1:
        return module, [f"one of {ranks} tensor-parallel parts: matrices may be slices"]
    return module, []


def _described(node: object) -> str:
    if isinstance(node, Record):
        return f"an object of {printable(str(node.function), 80)}"
    if isinstance(node, Global):
        return f"the name {printable(str(node), 80)}"
    if isinstance(node, dict):
        keys = ", ".join(printable(key, 40) for key in list(node)[:6] if isinstance(key, str))
        return f"a dictionary of {keys}" if keys else "an empty dictionary"
    return "a list" if isinstance(node, list | tuple) else "a single value"


class _Search:
    """What is a tensor in a pickle, and what an object's children are."""

    def __init__(self) -> None:
        self.module = ""
        self.any_torch = False

    def leaf(self, node: object) -> LazyTensor | None:
        if isinstance(node, PickledArray):
            return node.tensor
        if isinstance(node, LazyTensor):
            self.any_torch = True
            return node
        return None

    def expand(self, node: object) -> object:
        if not isinstance(node, Record):
            return node
        packed = _unpacked(node)
        if packed is not None:
            return packed
        # A state of an optax transformation repeats the weights' tree.
        if isinstance(node.function, Global) and node.function.module.split(".")[0] == "optax":
            return {"opt_state": attributes(node)}
        children = _module_children(node)
        if children is None:
            return attributes(node)
        self.module = self.module or str(node.function)[:200]
        return {
            f"{MODULE_MARK}{key if isinstance(key, str | int) else '?'}": child
            for key, child in children
        }


def _module_children(node: Record) -> list[tuple[object, object]] | None:
    """A module's parameters, buffers and modules as its state_dict has them; None if it is none."""
    state = node.state
    if not isinstance(state, dict):
        return None
    parts = [state.get(part) for part in ("_parameters", "_buffers", "_modules")]
    if all(isinstance(part, dict) for part in parts):
        transient = state.get("_non_persistent_buffers_set")
        skipped = transient if isinstance(transient, list | tuple) else ()
        names = {name for name in skipped if isinstance(name, str)}
        kept = {key: child for key, child in (parts[1] or {}).items() if key not in names}
        packed = {
            key: child
            for key, child in state.items()
            if isinstance(child, Record) and _unpacked(child) is not None
        }
        tables = (parts[0], kept, packed, parts[2])
        return [pair for table in tables for pair in (table or {}).items()]
    if isinstance(node.function, Global) and node.function.module.startswith("__torch__"):
        # TorchScript's RNNs list their weights a second time.
        return [(key, child) for key, child in state.items() if key != "_flat_weights"]
    return None


def attributes(node: Record) -> object:
    """What an object holds: its state and items, or what it is made from."""
    parts = node.state if isinstance(node.state, tuple) else (node.state,)
    named = {key: child for part in parts if isinstance(part, dict) for key, child in part.items()}
    named.update(node.entries)
    named.update(enumerate(node.items))
    if named:
        return named
    # A named tuple or dataclass has its arguments alone, Haiku's FlatMapping one dictionary.
    (only,) = node.arguments if len(node.arguments) == 1 else (None,)
    return only if isinstance(only, dict) else node.arguments


def _merged(path: Path) -> Path:
    """A module's path as the one name that its state_dict would have."""
    merged: list[str] = []
    inside = False
    for part in path:
        attribute = part.startswith(MODULE_MARK)
        if attribute and inside:
            merged[-1] += f".{part[1:]}"
        else:
            merged.append(part[1:] if attribute else part)
        inside = attribute
    return tuple(merged)


# What quantised linears and recurrent layers pack is an object of C++ whose pickled state lists its
# tensors (aten/src/ATen/native/quantized/cpu/LinearUnpackImpl.cpp, native/RNN.cpp).
LINEAR, CELL = "LinearPackedParamsBase", "CellParamsBase"
_CLASSES = "__torch__.torch.classes."
# The names of what quantised cells, linears and recurrent layers pack.
_PACKED = re.compile(
    r"(?P<module>(?:.*\.)?)(?:"
    r"_packed_weight_(?P<side>[ih]h)\.(?P<cell>\w+)"
    r"|_packed_params\._packed_params\.(?P<linear>\w+)"
    r"|_all_weight_values\.(?P<index>\d{1,6})\.param\.(?P<layer>\w+))"
)
# In a state dict a linear's weight and bias are a pair.
_PAIR = {"0": "weight", "1": "bias"}


def _unpacked(node: Record) -> dict[str, object] | None:
    """The tensors of a packed weight by their plain names; None where it is none."""
    kind, state = _class_and_state(node)
    if kind == LINEAR:
        return dict(zip(("weight", "bias"), state, strict=False))
    if kind != CELL or len(state) != 5:
        return None
    # (type, biases, doubles, integers, packed); with half precision the biases are packed too.
    _, biases, _, _, packed = state
    sides = ("ih", "hh")
    found: dict[str, object] = {}
    for side, bias in zip(sides, biases if isinstance(biases, list) else (), strict=False):
        found[f"bias_{side}"] = bias
    for side, weight in zip(sides, packed if isinstance(packed, list) else (), strict=False):
        inner = _unpacked(weight) if isinstance(weight, Record) else None
        for what, tensor in (inner or {}).items():
            if isinstance(tensor, LazyTensor):
                found.setdefault(f"{what}_{side}", tensor)
    return found


def _class_and_state(node: Record) -> tuple[str, tuple[object, ...]]:
    """The class of an object of C++ and what it was pickled with, by torch.save or TorchScript."""
    if not isinstance(node.function, Global) or not isinstance(node.state, tuple):
        return "", ()
    if node.function.module.startswith(_CLASSES.rstrip(".")):
        return node.function.name, node.state
    if node.function == Global("torch", "ScriptObject") and len(node.state) == 2:
        state, kind = node.state
        if isinstance(kind, str) and kind.startswith(_CLASSES) and isinstance(state, tuple):
            return kind.rpartition(".")[2], state
    return "", ()


def _plainly_named(found: Mapping[Path, LazyTensor]) -> dict[Path, LazyTensor]:
    """The tensors with those of packed weights under the names of the module that was quantised.

    A network lists layers and directions together: two where the shapes leave no other choice.
    """
    packed = {path: _PACKED.fullmatch(".".join(path[-2:])) for path in found}
    # By network and by number, the shapes of each layer's matrices.
    networks: dict[Path, dict[int, dict[str, Shape]]] = {}
    for path, name in packed.items():
        shape = found[path].spec.shape
        if name is not None and name["index"] and len(shape) == 2:
            layers = networks.setdefault((*path[:-2], name["module"]), {})
            layers.setdefault(int(name["index"]), {})[name["layer"]] = shape
    double = {network for network, layers in networks.items() if _two_directions(layers)}
    named: list[tuple[Path, LazyTensor]] = []
    for path, name in packed.items():
        plain = path
        if name is not None:
            above = path[:-2]
            if name["cell"]:
                last = f"{name['cell']}_{name['side']}"
            elif name["linear"]:
                last = _PAIR.get(name["linear"], name["linear"])
            else:
                directions = 2 if (*above, name["module"]) in double else 1
                layer, back = divmod(int(name["index"]), directions)
                last = f"{name['layer']}_l{layer}{'_reverse' if back else ''}"
            plain = (*above, f"{name['module']}{last}")
        named.append((plain, found[path]))
    return unique(named)


def _two_directions(layers: Mapping[int, dict[str, Shape]]) -> bool:
    # The inputs of each layer and how many it puts out.
    sizes = {
        index: (held["weight_ih"][1], held["weight_hh"][1])
        for index, held in layers.items()
        if held.keys() >= {"weight_ih", "weight_hh"}
    }
    if sorted(sizes) != list(range(len(sizes))) or len(sizes) % 2 or not sizes:
        return False
    (inputs, size), (others, _) = sizes[0], sizes[1]
    return others == inputs and (sizes[2][0] == 2 * size if len(sizes) > 2 else inputs != size)


def open_legacy(file: File) -> TensorStore:
    """Read the pickles and find the storages."""
    return store_of(load_legacy(file), file)


def load_legacy(source: Bytes) -> object:
    """What the file holds, its storages placed."""
    storages: dict[str, Storage] = {}
    big_endian = False

    def persistent(identity: object) -> object:
        if isinstance(identity, tuple) and len(identity) > 1 and identity[0] == "module":
            return identity[1]  # a class and its source text: the name is enough
        key, dtype, count, rest = described_storage(identity)
        if rest and rest[0] is not None:
            raise ValueError("its storages are views of others, as only PyTorch 0.1 wrote them")
        known = storages.setdefault(key, Storage(dtype, count, big_endian=big_endian))
        if (known.dtype, known.count) != (dtype, count):
            raise ValueError(f"it describes the storage {printable(key, 40)} in two ways")
        return known

    header = Machine(source, CONSTRUCTORS)
    _magic, _version, system = header.load(), header.load(), header.load()
    big_endian = isinstance(system, dict) and system.get("little_endian") is False
    body = Machine(source, CONSTRUCTORS, persistent, header.position)
    root, keys = body.load(), body.load()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("its list of storages is malformed")
    for key in keys:
        shown, storage = f"the storage {printable(key, 40)}", storages.get(key)
        if storage is None:
            raise ValueError(f"it lists {shown}, which no tensor uses")
        # Each storage is preceded by its number of elements.
        count = int.from_bytes(body.take(8), "big" if big_endian else "little")
        if count != storage.count:
            raise ValueError(f"{shown} has another length than it claims")
        storage.place(body.skip(storage.bytes))
    return root


def _load_from_bytes(content: object) -> object:
    if isinstance(content, EscapedBytes):  # decoded once, not for every field of the file
        content = content.read(0, content.size)
    return load_legacy(held_bytes(content, "a storage"))


PICKLE = "data.pkl"
MAX_PICKLE_BYTES = 1 << 28


def open_zip(file: File, archive: Archive) -> TensorStore:
    """Run the pickle on inert data, and find the storages that lie beside it."""
    pickles = [name for name in archive if name.endswith(f"/{PICKLE}")]
    root = min(pickles, key=lambda name: name.count("/")).removesuffix(PICKLE)
    order = f"{root}byteorder"
    big_endian = order in archive and archive[order].first(3) == b"big"
    # Tensors that share their elements refer to one storage.
    storages: dict[tuple[str, str, int], Storage] = {}

    def persistent(identity: object) -> Storage:
        key, dtype, count, _ = described_storage(identity)
        member = f"{root}data/{key}"
        if member not in archive:
            raise ValueError(f"the storage {printable(key, 40)} is not in the archive")
        new = Storage(dtype, count, big_endian=big_endian)
        storage = storages.setdefault((key, dtype, count), new)
        storage.place(archive[member])
        return storage

    pickle = archive[f"{root}{PICKLE}"]
    if pickle.size > MAX_PICKLE_BYTES:
        raise ValueError(f"it has {pickle.size} bytes")
    return store_of(Machine(pickle, CONSTRUCTORS, persistent).load(), file)


def recognises(head: bytes, file: File) -> bool:
    """The mark of protocols 2 to 5, or what stands where protocols 0 and 1 have none."""
    return head.startswith(b"\x80") or begins_like_a_pickle(head)


def open_pickle(file: File) -> TensorStore:
    """Run the pickle on inert data."""
    # It carries each storage as a legacy file of its own.
    storages = {Global("torch.storage", "_load_from_bytes"): _load_from_bytes}
    return store_of(Machine(file, CONSTRUCTORS | storages).load(), file)


WEIGHTS = "model_weights.ckpt"
MAX_TAR_MEMBERS = 10_000
# Trained weights reach 10 to 1; what a small archive may be inflated to is bounded by itself.
MAX_RATIO = 10


def open_nemo(file: File) -> TensorStore:
    """Find the weights in the tar, and read them as the PyTorch file that they are."""
    content: Bytes = file
    if file.first(2) == b"\x1f\x8b":  # gzip
        limit = max(LARGE_BLOCK, MAX_RATIO * file.size)
        content = InlineBytes(inflate(file.first(file.size), limit))
    remedy = "save the model again with model.save_to()"
    return _open_inside(file, WEIGHTS, _weights(content), remedy)


def _open_inside(file: File, name: str, content: Bytes, remedy: str) -> TensorStore:
    inside = Part(content, file, f"{file.path}: {name}")
    store = open_known(inside, ("PyTorch", "PyTorch legacy"))
    if store is None:
        raise CheckpointError(f"its member {name} is not a file of torch.save", remedy=remedy)
    store.bytes, store.path = file.size, file.path
    return store


def _weights(content: Bytes) -> ByteRange:
    try:
        with tarfile.TarFile(fileobj=Stream(content)) as archive:
            for count, member in enumerate(archive):
                if count >= MAX_TAR_MEMBERS:
                    raise ValueError(f"it has more than {MAX_TAR_MEMBERS} members")
                if member.name.removeprefix("./") != WEIGHTS:
                    continue
                if not member.isreg() or member.sparse is not None:
                    raise ValueError(f"its {WEIGHTS} is a link or of another kind than a file")
                if member.offset_data + member.size > content.size:
                    raise ValueError(f"its {WEIGHTS} claims {member.size} bytes, beyond its end")
                return ByteRange(content, member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError, OverflowError) as error:
        raise ValueError("it is truncated or corrupt") from error
    raise ValueError(f"it holds no {WEIGHTS}")


POLICY, POLICY_OPTIMIZER = "policy.pth", "policy.optimizer.pth"
# A member of the archive, and the key of the store's contents that its rate is under.
SB3_SETTINGS, SB3_DATA = "data", "the agent's data"


def open_policy(file: File, archive: Archive) -> TensorStore:
    """Read the policy as the PyTorch file that it is, and its optimizer where that can be read."""
    remedy = "save the agent again with model.save()"
    store = _open_inside(file, POLICY, archive[POLICY], remedy)
    held: dict[str, object] = {POLICY: store.contents}
    # Neither keeps the weights from being read.
    with suppress(CheckpointError, KeyError):
        state = archive[POLICY_OPTIMIZER]
        held[POLICY_OPTIMIZER] = _open_inside(file, POLICY_OPTIMIZER, state, remedy).contents
    with suppress(CheckpointError, KeyError, ValueError):
        content = archive[SB3_SETTINGS].first(MAX_JSON_BYTES)
        settings = parse_object(content, understood=NOT_FINITE)
        held[SB3_DATA] = {"learning_rate": settings.get("learning_rate")}
    store.contents = held
    return store


# torch.distributed.checkpoint (DCP, FSDP) keeps a pickle ``.metadata`` beside files of shards. It
# says of which chunks each tensor is made, and in which file and at which bytes each chunk lies, as
# a torch.save of its own (torch/distributed/checkpoint/metadata.py and filesystem.py).
TENSOR = Global("torch.distributed.checkpoint.metadata", "TensorStorageMetadata")


def open_distributed(file: File) -> TensorStore:
    """Read the metadata."""
    directory = directory_here(file)
    if file.size > MAX_PICKLE_BYTES:
        raise ValueError(f"its metadata has {file.size} bytes")
    metadata = _state(Machine(file, CONSTRUCTORS).load())
    paths = mapping(metadata.get("planner_data"))
    files = FilesBeside(directory)
    contents = {_path_of(name, paths): tensor for name, tensor in _tensors(metadata, files)}
    return TensorStore(file, *name_torch(contents), size=file.size + files.size, contents=contents)


def _joined(spec: TensorSpec, chunks: list[tuple[Shape, Shape, Part]]) -> Array:
    """A tensor of chunks by where each begins, its shape, and its torch.save."""
    parts = ((start, _chunk(spec, extent, content)) for start, extent, content in chunks)
    return assembled(spec, parts)


def _chunk(spec: TensorSpec, extent: Shape, content: Part) -> Array:
    store = open_known(content, ("PyTorch",))
    if store is None:
        raise ValueError("a chunk is no file of torch.save")
    with store:
        (name, found), *others = store.tensors.items() or [("", TensorSpec((), "", 0))]
        if others or (found.shape, found.dtype) != (extent, spec.dtype):
            raise ValueError("a chunk is not the tensor that the metadata describes")
        return store.read(name)


def _tensors(metadata: Mapping[Any, Any], files: FilesBeside) -> Iterator[tuple[str, LazyTensor]]:
    described = mapping(metadata.get("state_dict_metadata"))
    if len(described) > MAX_TENSORS:
        raise ValueError(f"it has more than {MAX_TENSORS} entries")
    stored = _stored(metadata)
    for name, entry in described.items():
        if not isinstance(name, str) or not isinstance(entry, Record) or entry.function != TENSOR:
            continue
        state, shown = _state(entry), printable(name, 60)
        shape = _shape(state.get("size"))
        spec = TensorSpec.plain(shape, _dtype(state.get("properties")))
        chunks, parts = [], state.get("chunks")
        for part in parts if isinstance(parts, list | tuple) else ():
            start, extent = (_shape(_state(part).get(key)) for key in ("offsets", "sizes"))
            if not len(start) == len(extent) == len(shape) or any(
                a + n > total for a, n, total in zip(start, extent, shape, strict=True)
            ):
                raise ValueError(f"a chunk of {shown} leaves its tensor")
            info = stored.get((name, start)) or stored.get((name, None))
            if info is None:
                raise ValueError(f"a chunk of {shown} is not stored")
            path, offset, length = info
            content = files[path].part(offset, length, f"a chunk of {shown}")
            chunks.append((start, extent, Part(content, files[path])))
        if sum(math.prod(extent) for _, extent, _ in chunks) != math.prod(shape):
            raise ValueError(f"the chunks of {shown} do not fill it")
        # A chunk is not compressed, so that it has at least the bytes of its elements.
        if spec.bytes > sum(content.size for _, _, content in chunks):
            claim = printable(str(spec.bytes), 40)
            raise ValueError(f"{shown} claims {claim} bytes, more than its chunks")
        yield name, LazyTensor(spec, partial(_joined, spec, chunks))


def _stored(metadata: Mapping[Any, Any]) -> dict[tuple[str, Shape | None], tuple[str, int, int]]:
    """File, offset and length of each chunk, by the tensor's name and where the chunk begins."""
    stored: dict[tuple[str, Shape | None], tuple[str, int, int]] = {}
    for key, value in mapping(metadata.get("storage_data")).items():
        # The machine keeps a key that is an object inside a record of its own.
        index = _state(key.function) if isinstance(key, Record) else {}
        info = _state(value)
        name, start = index.get("fqn"), index.get("offset")
        path, offset, length = (info.get(k) for k in ("relative_path", "offset", "length"))
        if info.get("transform_descriptors"):
            raise ValueError("its files are compressed or otherwise transformed")
        if not isinstance(name, str) or not isinstance(path, str):
            raise ValueError("it describes a chunk wrongly")
        (first, count) = _shape((offset, length))
        stored[name, None if start is None else _shape(start)] = path, first, count
    return stored


def _path_of(name: str, paths: Mapping[Any, Any]) -> Path:
    path = paths.get(name)
    if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path):
        return tuple(str(part) for part in path)
    return (name,)


def _state(node: object) -> Mapping[Any, Any]:
    if isinstance(node, Record) and isinstance(node.state, dict):
        return node.state
    raise ValueError("its metadata is malformed")


def mapping(node: object) -> Mapping[Any, Any]:
    """A mapping as it is, and none where it is something else."""
    return node if isinstance(node, Mapping) else {}


def _dtype(properties: object) -> str:
    # TensorProperties pickles itself as a tuple that its dtype leads, and once as its attributes.
    state = properties.state if isinstance(properties, Record) else None
    if isinstance(state, dict):
        return torch_type(state.get("dtype"))
    return torch_type(state[0] if isinstance(state, tuple) and state else None)


def _shape(values: object) -> Shape:
    return naturals(values, "it has a shape or offset that is not of natural numbers")
