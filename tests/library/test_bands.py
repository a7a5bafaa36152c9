"""Bands of the gates of torchrecurrent's cells against the library's own run on random inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families.simulated_gates import check_bands, gates_of
from library.library_cells import arrays_of, torchrecurrent

INPUTS, UNITS, STEPS, BURN_IN = 40, 96, 2000, 300
# The rows of the gate in the weights of x and of h, whether it keeps, and the cell's states.
CELLS: dict[str, tuple[int, int | None, bool, bool]] = {
    "LiGRU": (0, 0, True, False),
    "UGRNN": (1, 1, True, False),
    "JANET": (0, 0, True, True),
    "MUT1": (0, None, False, False),
    "MUT2": (0, 0, False, False),
    "LightRU": (1, 0, False, False),
}


def rows(tensor: torch.Tensor, block: int) -> torch.Tensor:
    return tensor[block * UNITS : (block + 1) * UNITS]


def wide(name: str, **arguments: Any) -> torch.nn.Module:
    torch.manual_seed(4)
    cell = getattr(torchrecurrent, f"{name}Cell")(INPUTS, UNITS, **arguments).double()
    with torch.no_grad():
        for weight, scale in (("weight_ih", 0.7), ("weight_hh", 0.5)):
            held = getattr(cell, weight)
            held.copy_(scale * torch.randn(held.shape, dtype=torch.float64) / held.shape[1] ** 0.5)
        cell.bias_ih.copy_(0.5 * torch.randn(cell.bias_ih.shape, dtype=torch.float64))
    return cell


@pytest.mark.parametrize("name", CELLS)
def test_the_band_is_that_of_the_cell(name: str) -> None:
    of_input, of_state, keeps, double = CELLS[name]
    cell = wide(name)
    h = torch.zeros(UNITS, dtype=torch.float64)
    gates = []
    with torch.no_grad():
        driven = torch.randn(STEPS, INPUTS, dtype=torch.float64)
        moved = driven @ rows(cell.weight_ih, of_input).T + rows(cell.bias_ih, of_input)
        for x, z in zip(driven, moved, strict=True):
            if of_state is not None:
                z = z + rows(cell.weight_hh, of_state) @ h + rows(cell.bias_hh, of_state)
            gates.append(torch.sigmoid(z if keeps else -z).numpy())
            h = cell(x, (h, h))[0] if double else cell(x, h)
    found = gates_of(arrays_of(cell, f"{name}.cells.0."))
    check_bands(found, np.array(gates[BURN_IN:]))


def test_the_band_of_a_fast_grnn_with_a_sigmoid() -> None:
    cell = wide("FastGRNN", nonlinearity="sigmoid")
    h = torch.zeros(UNITS, dtype=torch.float64)
    gates = []
    with torch.no_grad():
        for x in torch.randn(STEPS, INPUTS, dtype=torch.float64):
            z = cell.weight_ih @ x + cell.weight_hh @ h + rows(cell.bias_ih + cell.bias_hh, 0)
            gates.append(torch.sigmoid(z).numpy())
            h = cell(x, h)
    found = gates_of(arrays_of(cell), assume={"gate_activation": "sigmoid"})
    check_bands(found, np.array(gates[BURN_IN:]))


def test_the_bands_of_a_long_expressive_memory() -> None:
    cell = wide("LEM")
    states = [torch.zeros(UNITS, dtype=torch.float64) for _ in range(2)]
    gates = []
    with torch.no_grad():
        for x in torch.randn(STEPS, INPUTS, dtype=torch.float64):
            z = (cell.weight_ih @ x + cell.bias_ih)[: 2 * UNITS]
            z += (cell.weight_hh @ states[0] + cell.bias_hh)[: 2 * UNITS]
            gates.append(torch.sigmoid(-z).numpy())
            states = list(cell(x, tuple(states)))
    check_bands(gates_of(arrays_of(cell)), np.array(gates[BURN_IN:]))
