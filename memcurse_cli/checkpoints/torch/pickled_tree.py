"""From what a pickle holds to the tensors of a checkpoint: state dicts, modules, JAX trees."""

from __future__ import annotations

from collections.abc import Callable

from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.select import Path
from memcurse_cli.checkpoints.torch.deepspeed import deepspeed_weights
from memcurse_cli.checkpoints.torch.pickle_machine import (
    Constructor,
    Global,
    Machine,
    PickleError,
    Record,
)
from memcurse_cli.checkpoints.torch.pickled_tensors import (
    PickledArray,
    numpy_constructors,
    python_constructors,
    torch_constructors,
)
from memcurse_cli.checkpoints.torch.quantised import plainly_named, quantisation_note, unpacked
from memcurse_cli.checkpoints.tree import collect, name_jax, name_torch, texts
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import Bytes
from memcurse_cli.checkpoints.untrusted.source import File

MODULE_PARTS = ("_parameters", "_buffers", "_modules")
# Marks the attributes of a module on a path. A key that begins with it in a hostile file is only
# joined to its neighbour.
MODULE_MARK = "\0"


def machine(
    source: Bytes,
    persistent: Callable[[object], object],
    more: dict[Global, Constructor] | None = None,
    position: int = 0,
) -> Machine:
    """A pickle machine that builds PyTorch's, NumPy's and JAX's arrays and nothing else."""
    table: dict[Global, Constructor] = {}
    made = Machine(source, table, persistent, position)
    table.update(python_constructors())
    table.update(torch_constructors(made.construct))
    table.update(numpy_constructors())
    table.update(more or {})
    return made


def no_persistent(identity: object) -> object:
    """For pickles outside a container: there is nothing that an id could refer to."""
    raise PickleError("it refers to a storage outside itself")


def store_of(root: object, file: File) -> LazyStore:
    """The store of a file that holds one pickled object.

    Raises:
        ValueError: with the fault as a clause; there is no tensor, or the tree is malformed.
        CheckpointError: DeepSpeed keeps the weights elsewhere.
    """
    weights, parts = deepspeed_weights(root, file.path)
    tensors, notes = tensors_of(weights)
    return LazyStore(
        path=file.path,
        bytes=file.size,
        tensors=tensors,
        metadata=texts(root),
        notes=[*parts, *notes],
        resources=[file],
        contents=root,
    )


def tensors_of(root: object) -> tuple[dict[str, LazyTensor], list[str]]:
    """The weights in what a pickle holds, by name, and notes.

    A module (``torch.save(model)``, TorchScript) has the names of its state_dict; of other
    objects the attributes are searched.

    Raises:
        ValueError: with the fault as a clause; there is no tensor, or the tree is malformed.
    """
    search = _Search()
    found = collect(root, search.leaf, search.expand)
    found = plainly_named({_merged(path): tensor for path, tensor in found.items()})
    if not found:
        raise ValueError(f"it holds {describe(root)} and no tensor")
    if () in found:
        found = {("tensor",): found[()]}
    weights, notes = (name_torch if search.any_torch else name_jax)(found)
    notes += quantisation_note(weights.values())
    if search.module:
        kind = printable(search.module, 80)
        notes.insert(0, f"{kind} is a pickled module: its tensors are read, its code is not run")
    return weights, notes


def describe(node: object) -> str:
    """What a node of a pickle is, in a few words."""
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
        packed = unpacked(node)
        if packed is not None:
            return packed
        if _of_optax(node):
            return {"opt_state": _attributes(node)}
        children = _module_children(node)
        if children is None:
            return _attributes(node)
        self.module = self.module or str(node.function)[:200]
        return {f"{MODULE_MARK}{_text(key)}": child for key, child in children}


def _of_optax(node: Record) -> bool:
    """Whether it is a state of an optax transformation, which repeats the weights' tree."""
    return isinstance(node.function, Global) and node.function.module.split(".")[0] == "optax"


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
        buffers = parts[1] or {}
        kept = {key: child for key, child in buffers.items() if key not in names}
        packed = {
            key: child
            for key, child in state.items()
            if isinstance(child, Record) and unpacked(child) is not None
        }
        return [
            pair for part in (parts[0], kept, packed, parts[2]) for pair in (part or {}).items()
        ]
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


def _text(key: object) -> str:
    return key if isinstance(key, str) else str(key) if isinstance(key, int) else "?"


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
