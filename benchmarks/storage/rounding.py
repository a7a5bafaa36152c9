"""What keeping a state in a type does to it, one step at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 128
EXPLICIT_BITS = {"float8_e5m2": 2, "float8_e4m3fn": 3, "bfloat16": 7, "float16": 10}
Rounding = Callable[[Tensor, float, torch.Generator], Tensor]
"""Of states (sequences, states), given the power of two near their RMS and a source of numbers."""


def _nearest(kind: torch.dtype) -> Rounding:
    return lambda state, scale, _: state.to(kind).to(state.dtype)


def _scaled(kind: torch.dtype) -> Rounding:
    """Divided by the RMS, and held within the range, as is done with types of eight bits."""
    largest = torch.finfo(kind).max

    def rounded(state: Tensor, scale: float, _: torch.Generator) -> Tensor:
        return (state / scale).clamp(-largest, largest).to(kind).to(state.dtype) * scale

    return rounded


def _stochastic(kind: torch.dtype) -> Rounding:
    """To one of both neighbours, with the chances that leave the mean alone."""
    bits = -int(math.log2(torch.finfo(kind).eps))
    smallest = int(math.log2(torch.finfo(kind).smallest_normal))

    def rounded(state: Tensor, scale: float, random: torch.Generator) -> Tensor:
        last = (torch.frexp(state)[1] - 1).clamp(min=smallest) - bits
        drawn = torch.rand(state.shape, generator=random)
        return torch.ldexp(torch.floor(torch.ldexp(state, -last) + drawn), last)

    return rounded


def _blocks(state: Tensor, scale: float, _: torch.Generator) -> Tensor:
    """int8, with the scale max|h|/127 of every 128 states in a row."""
    padded = torch.nn.functional.pad(state, (0, -state.shape[1] % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK))
    spacing = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-37) / 127
    return (torch.round(blocks / spacing) * spacing).flatten(1)[:, : state.shape[1]]


def _independent(dtype: str) -> Rounding:
    """No rounding: errors of the size that is told, which know nothing of the state."""
    size = math.sqrt(3 / (8 * math.log(2)) / 12) * 2.0 ** -EXPLICIT_BITS[dtype]
    return lambda state, scale, random: (
        state * (1 + size * torch.randn(state.shape, generator=random))
    )


ROUNDINGS: dict[str, Rounding] = {
    "float8_e5m2": _scaled(torch.float8_e5m2),
    "float8_e4m3fn": _scaled(torch.float8_e4m3fn),
    "int8": _blocks,
    "bfloat16": _nearest(torch.bfloat16),
    "float16": _nearest(torch.float16),
    "bfloat16, stochastic": _stochastic(torch.bfloat16),
    "float16, stochastic": _stochastic(torch.float16),
}
CONTROLS = {f"{dtype}, independent": _independent(dtype) for dtype in ("float8_e4m3fn", "bfloat16")}
