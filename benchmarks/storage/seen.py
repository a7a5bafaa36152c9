"""The error of states that are rounded at every step, beside the same states that are not."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.storage.rounding import Rounding

FEW = 16  # sequences from which the RMS of the states is taken


class Recurrent(Protocol):
    """A network that runs: its recurrent layers, and sequences of inputs."""

    sequences: int
    parts: int  # 2 where states are complex, both parts of all behind each other

    def start(self, copies: int, sequences: int) -> None:
        """Forget all, and take so many copies of the first sequences."""

    def step(self, t: int) -> list[Tensor]:
        """The states of every layer after one more input, (rows, …), which can be written into."""


class Seen(NamedTuple):
    """What a type did to the states of each eigenvalue of a layer at the last step."""

    error: NDArray[np.float64]  # √(E|q - h|² / E|h|²) over sequences and the eigenvalue's states
    uncertainty: NDArray[np.float64]  # the relative standard error of it


@torch.no_grad()
def see(
    network: Recurrent,
    horizon: int,
    eigenvalues: list[int],
    types: dict[str, Rounding],
    rounded: tuple[int, ...] = (),
) -> list[dict[str, Seen]]:
    """The error of every layer and type, each type in a copy of its own; of real roundings.

    ``eigenvalues`` has how many each layer has, and ``rounded`` the layers to round, all if empty.
    """
    network.start(1, min(FEW, network.sequences))
    for t in range(horizon):
        states = network.step(t)
    scales = [2.0 ** round(float(torch.log2(h.square().mean().sqrt()))) for h in states]
    network.start(1 + len(types), network.sequences)
    random = torch.Generator().manual_seed(0)
    for t in range(horizon):
        states = network.step(t)
        for layer, state in enumerate(states):
            copies = state.view(1 + len(types), network.sequences, -1)
            if not rounded or layer in rounded:
                for copy, rounding in zip(copies[1:], types.values(), strict=True):
                    copy.copy_(rounding(copy, scales[layer], random))
    found = []
    for state, count in zip(states, eigenvalues, strict=True):
        copies = state.view(1 + len(types), network.sequences, network.parts, count, -1).double()
        held = copies[0].square().sum((1, 3))
        lost = (copies[1:] - copies[0]).square().sum((2, 4))
        square = lost.mean(1) / held.mean(0)
        # Of a ratio of two means, to first order.
        spread = (lost - square[:, None] * held).std(1) / held.mean(0)
        relative = spread / (2 * square * network.sequences**0.5)
        pairs = zip(types, square.sqrt().numpy(), relative.numpy(), strict=True)
        found.append({dtype: Seen(error, of_it) for dtype, error, of_it in pairs})
    return found
