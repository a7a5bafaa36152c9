"""PyTorch's quantised tensors, as the numbers that they stand for (aten/src/ATen/quantized)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.pickle_values import Global


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
