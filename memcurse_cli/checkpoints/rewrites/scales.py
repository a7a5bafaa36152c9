"""Weights of 8 or 4 bits times the scales that stand beside them: W = s Q.

A scale is one number, one for each row, or one for each block of a matrix:

- ``NAME_scale`` of compressed-tensors and vLLM, a number, (rows, 1), (rows) or one for each block;
- ``NAME_scale_inv`` of DeepSeek-V3, one for each block of 128 × 128, which multiplies in spite of
  its name (https://huggingface.co/deepseek-ai/DeepSeek-V3, README_WEIGHTS.md);
- ``scale_weight`` beside ``weight`` of ComfyUI, a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import element_count
from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.untrusted.names import printable

SCALED_TYPES = ("float8_e4m3", "float8_e5m2", "float4_e2m1fn")
BLOCK = 128

Shape = tuple[int, ...]


def with_scales(tensors: Mapping[str, LazyTensor]) -> tuple[dict[str, LazyTensor], list[str]]:
    """The tensors, those of 8 and 4 bits times their scales, and notes.

    Where there is no scale, or it can be read in two ways, the numbers stay as they are stored.
    """
    made = dict(tensors)
    scaled, plain = [], []
    for name, tensor in tensors.items():
        if not tensor.spec.dtype.startswith(SCALED_TYPES):
            continue
        beside = [other for other in _companions(name) if other in tensors]
        repeats = None
        if len(beside) == 1:
            repeats = _repeats(tensor.spec.shape, tensors[beside[0]].spec.shape)
        if repeats is None:
            plain.append(name)
        else:
            scaled.append(name)
            made[name] = LazyTensor(tensor.spec, _Scaled(tensor, tensors[beside[0]], repeats))
    return made, [
        *_note(scaled, "multiplied by the scales beside them"),
        *_note(plain, "read without a scale, of which the file has none or none that fits"),
    ]


class _Scaled:
    """Reads a tensor and its scale, of which each number stands for so many of each axis."""

    def __init__(self, tensor: LazyTensor, scale: LazyTensor, repeats: Shape) -> None:
        self._tensor, self._scale, self._repeats = tensor, scale, repeats

    def __call__(self) -> NDArray[Any]:
        values = self._tensor.load()
        scale = self._scale.load()
        if len(self._repeats) < values.ndim:  # one number
            return np.asarray(values * scale.reshape(()))
        scale = scale.reshape(scale.shape + (1,) * (values.ndim - scale.ndim))
        for axis, times in enumerate(self._repeats):
            scale = np.repeat(scale, times, axis) if scale.shape[axis] > 1 else scale
        return np.asarray(values * scale[tuple(slice(size) for size in values.shape)])


def _companions(name: str) -> list[str]:
    found = [f"{name}_scale", f"{name}_scale_inv"]
    module, dot, last = name.rpartition(".")
    return [*found, f"{module}{dot}scale_weight"] if last == "weight" else found


def _repeats(shape: Shape, scale: Shape) -> Shape | None:
    """How many elements of each axis share a number; () for all of them; None where unclear."""
    if element_count(scale) == 1:
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


def _note(names: list[str], what: str) -> list[str]:
    if not names:
        return []
    count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
    return [f"{count} of 8 bits or fewer (such as {printable(names[0], 80)}): {what}"]
