"""PyTorch's quantised tensors, as the numbers that they stand for, under their plain names.

A tensor is quantised by itself (aten/src/ATen/quantized). What quantised linears and recurrent
layers pack is an object of C++ whose pickled state lists its tensors
(aten/src/ATen/native/quantized/cpu/LinearUnpackImpl.cpp and native/RNN.cpp define what it means).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.select import Path
from memcurse_cli.checkpoints.torch.pickle_machine import Global, Record

LINEAR, CELL = "LinearPackedParamsBase", "CellParamsBase"
_CLASSES = "__torch__.torch.classes."
_CELL_NAME = re.compile(r"(?P<module>(?:.*\.)?)_packed_weight_(?P<side>[ih]h)\.(?P<what>\w+)")
_LAYER_NAME = re.compile(
    r"(?P<module>(?:.*\.)?)_all_weight_values\.(?P<index>\d{1,6})\.param\.(?P<what>\w+)"
)
_LINEAR_NAME = re.compile(r"(?P<module>(?:.*\.)?)_packed_params\._packed_params\.(?P<what>\w+)")
# In a state dict a linear's weight and bias are a pair.
_PAIR = {"0": "weight", "1": "bias"}


def unpacked(node: Record) -> dict[str, object] | None:
    """The tensors of a packed weight by their plain names; None where it is none."""
    kind, state = _class_and_state(node)
    if kind == LINEAR:
        return dict(zip(("weight", "bias"), state, strict=False))
    if kind != CELL or len(state) != 5:
        return None
    # (type, biases, doubles, integers, packed); with half precision the biases are packed too.
    _, biases, _, _, packed = state
    found: dict[str, object] = {}
    for side, bias in zip(("ih", "hh"), biases if isinstance(biases, list) else (), strict=False):
        found[f"bias_{side}"] = bias
    for side, weight in zip(("ih", "hh"), packed if isinstance(packed, list) else (), strict=False):
        inner = unpacked(weight) if isinstance(weight, Record) else None
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


def plainly_named(found: Mapping[Path, LazyTensor]) -> dict[Path, LazyTensor]:
    """The tensors with those of packed weights under the names of the module that was quantised.

    A network numbers its layers and directions in one list. It has two directions where the shapes
    leave no other choice.

    Raises:
        ValueError: with the fault as a clause; two tensors would have the same name.
    """
    if not any("_packed" in part or "_all_weight_values" in part for p in found for part in p):
        return dict(found)
    inputs = _inputs(found)
    named = {_plain(path, inputs): tensor for path, tensor in found.items()}
    if len(named) < len(found):
        raise ValueError("two of its tensors have the same name")
    return named


def _inputs(found: Mapping[Path, LazyTensor]) -> dict[Path, dict[int, tuple[int, int]]]:
    """By network and by number, the inputs of each layer and how many it puts out."""
    shapes: dict[Path, dict[int, dict[str, tuple[int, ...]]]] = {}
    for path, tensor in found.items():
        above, last = _last(path)
        parts = _LAYER_NAME.fullmatch(last)
        if parts is not None and len(tensor.spec.shape) == 2:
            layers = shapes.setdefault((*above, parts["module"]), {})
            layers.setdefault(int(parts["index"]), {})[parts["what"]] = tensor.spec.shape
    return {
        network: {
            index: (held["weight_ih"][1], held["weight_hh"][1])
            for index, held in layers.items()
            if held.keys() >= {"weight_ih", "weight_hh"}
        }
        for network, layers in shapes.items()
    }


def _plain(path: Path, inputs: Mapping[Path, dict[int, tuple[int, int]]]) -> Path:
    above, last = _last(path)
    cell = _CELL_NAME.fullmatch(last)
    if cell is not None:
        return (*above, f"{cell['module']}{cell['what']}_{cell['side']}")
    linear = _LINEAR_NAME.fullmatch(last)
    if linear is not None:
        return (*above, f"{linear['module']}{_PAIR.get(linear['what'], linear['what'])}")
    layer = _LAYER_NAME.fullmatch(last)
    if layer is None:
        return path
    index = int(layer["index"])
    suffix = f"l{index}"
    if _two_directions(inputs.get((*above, layer["module"]), {})):
        suffix = f"l{index // 2}{'_reverse' if index % 2 else ''}"
    return (*above, f"{layer['module']}{layer['what']}_{suffix}")


def _last(path: Path) -> tuple[Path, str]:
    """The last two parts of a path as one name, and what is above."""
    return path[:-2], ".".join(path[-2:])


def _two_directions(layers: Mapping[int, tuple[int, int]]) -> bool:
    if sorted(layers) != list(range(len(layers))) or len(layers) % 2 or not layers:
        return False
    (inputs, size), (others, _) = layers[0], layers[1]
    if len(layers) > 2:
        return layers[2][0] == 2 * size and others == inputs
    return others == inputs != size


def dequantised(stored: LazyTensor, quantiser: object) -> LazyTensor | None:
    """``(q - zero) scale``, with one scale and zero, or with one for each index of an axis.

    Args:
        stored: the integers q.
        quantiser: what the file says of them: the scheme, then its parameters.

    Returns:
        The tensor, or None where the scheme is another.
    """
    if not isinstance(quantiser, tuple) or not quantiser:
        return None
    scheme, *how = quantiser
    if scheme == Global("torch", "per_tensor_affine") and len(how) == 2:
        scale, zero = how
        if isinstance(scale, float) and math.isfinite(scale) and type(zero) is int:
            return LazyTensor(stored.spec, _Dequantised(stored, scale, float(zero)))
    elif scheme == Global("torch", "per_channel_affine") and len(how) == 3:
        scales, zeros, axis = how
        if isinstance(scales, LazyTensor) and isinstance(zeros, LazyTensor) and type(axis) is int:
            sizes = stored.spec.shape[axis : axis + 1] if axis >= 0 else ()
            if sizes and scales.spec.shape == zeros.spec.shape == sizes:
                return LazyTensor(stored.spec, _Dequantised(stored, scales, zeros, axis))
    return None


def quantisation_note(tensors: Iterable[LazyTensor]) -> list[str]:
    """How many of the tensors are quantised, as a note; nothing where none is."""
    count = sum(isinstance(tensor.load, _Dequantised) for tensor in tensors)
    if not count:
        return []
    many = "1 tensor was" if count == 1 else f"{count} tensors were"
    return [f"{many} quantised to integers: the numbers are those that they stand for"]


@dataclass(frozen=True)
class _Dequantised:
    stored: LazyTensor
    scale: LazyTensor | float
    zero: LazyTensor | float
    axis: int = 0

    def __call__(self) -> NDArray[Any]:
        scale, zero = (
            part if isinstance(part, float) else self._along_axis(part)
            for part in (self.scale, self.zero)
        )
        values: NDArray[Any] = (self.stored.load() - zero) * scale
        return values

    def _along_axis(self, part: LazyTensor) -> NDArray[Any]:
        rank = len(self.stored.spec.shape)
        return part.load().reshape([-1 if axis == self.axis else 1 for axis in range(rank)])
