"""From what a pickle holds to the tensors of a checkpoint: state dicts, modules, JAX trees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memcurse_cli.checkpoints.open import MERGE
from memcurse_cli.checkpoints.select import Path, collect, name_jax, name_torch, texts
from memcurse_cli.checkpoints.store import LazyTensor, TensorStore, file_store
from memcurse_cli.checkpoints.torch.pickle_machine import (
    Global,
    Record,
)
from memcurse_cli.checkpoints.torch.pickled_tensors import (
    PickledArray,
    QuantisedTensor,
)
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

MODULE_PARTS = ("_parameters", "_buffers", "_modules")
# Marks the attributes of a module on a path. A key that begins with it in a hostile file is only
# joined to its neighbour.
MODULE_MARK = "\0"


def store_of(root: object, file: File) -> TensorStore:
    """The store of a file that holds one pickled object.

    A module (``torch.save(model)``, TorchScript) has the names of its state_dict; of other
    objects the attributes are searched.
    """
    weights, notes = _deepspeed_weights(root, file.path)
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
    return file_store(file, tensors, notes, metadata=texts(root), contents=root)


def _deepspeed_weights(root: object, where: str) -> tuple[object, list[str]]:
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
    what, remedy = "", MERGE
    if not isinstance(module, dict):
        what = "a DeepSpeed file without its model, whose layers lie in files of their own"
        remedy = "save model.state_dict() from the training script"
    elif empty := sum(
        name in trained and isinstance(tensor, LazyTensor) and 0 in tensor.spec.shape
        for name, tensor in module.items()
    ):
        what = f"DeepSpeed (ZeRO stage 3) keeps {empty} parameters of this model in pieces"
    if what:
        raise CheckpointError(what, where=where, remedy=remedy)
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
            return {"opt_state": _attributes(node)}
        children = _module_children(node)
        if children is None:
            return _attributes(node)
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
    parts = [state.get(part) for part in MODULE_PARTS]
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


def _attributes(node: Record) -> object:
    parts = node.state if isinstance(node.state, tuple) else (node.state,)
    named = {key: child for part in parts if isinstance(part, dict) for key, child in part.items()}
    named.update(node.entries)
    named.update(enumerate(node.items))
    if named:
        return named
    # A named tuple or a dataclass that is made from its arguments has nothing else; Haiku's
    # FlatMapping is made from one dictionary.
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

    A network numbers its layers and directions in one list. It has two directions where the shapes
    leave no other choice.
    """
    packed = {path: _PACKED.fullmatch(".".join(path[-2:])) for path in found}
    # By network and by number, the shapes of each layer's matrices.
    networks: dict[Path, dict[int, dict[str, tuple[int, ...]]]] = {}
    for path, name in packed.items():
        shape = found[path].spec.shape
        if name is not None and name["index"] and len(shape) == 2:
            layers = networks.setdefault((*path[:-2], name["module"]), {})
            layers.setdefault(int(name["index"]), {})[name["layer"]] = shape
    double = {network for network, layers in networks.items() if _two_directions(layers)}
    named: dict[Path, LazyTensor] = {}
    for path, name in packed.items():
        plain = path
        if name is not None:
            above = path[:-2]
            if name["cell"]:
                last = f"{name['cell']}_{name['side']}"
            elif name["linear"]:
                last = _PAIR.get(name["linear"], name["linear"])
            elif (*above, name["module"]) in double:
                layer, back = divmod(int(name["index"]), 2)
                last = f"{name['layer']}_l{layer}{'_reverse' if back else ''}"
            else:
                last = f"{name['layer']}_l{int(name['index'])}"
            plain = (*above, f"{name['module']}{last}")
        named[plain] = found[path]
    if len(named) < len(found):
        raise ValueError("two of its tensors have the same name")
    return named


def _two_directions(layers: Mapping[int, dict[str, tuple[int, ...]]]) -> bool:
    # The inputs of each layer and how many it puts out.
    sizes = {
        index: (held["weight_ih"][1], held["weight_hh"][1])
        for index, held in layers.items()
        if held.keys() >= {"weight_ih", "weight_hh"}
    }
    if sorted(sizes) != list(range(len(sizes))) or len(sizes) % 2 or not sizes:
        return False
    (inputs, size), (others, _) = sizes[0], sizes[1]
    if len(sizes) > 2:
        return sizes[2][0] == 2 * size and others == inputs
    return others == inputs != size
