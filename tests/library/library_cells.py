"""torchrecurrent's cells, as they are stored and as they step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

torchrecurrent = pytest.importorskip("torchrecurrent")

INPUTS, H = 3, 4
Cell = torch.nn.Module


def cell_of(name: str, seed: int = 6, **arguments: Any) -> Cell:
    """A cell with random parameters in double precision, biases too."""
    made = getattr(torchrecurrent, f"{name}Cell")(INPUTS, H, dtype=torch.float64, **arguments)
    made = made.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def arrays_of(cell: Cell, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Its state dict, as its layer stores it under ``prefix``."""
    held = {name: value.detach().numpy().copy() for name, value in cell.state_dict().items()}
    return {f"{prefix}{name}": value for name, value in held.items()}


def blinded(cell: Cell, *weights: str) -> Cell:
    """The cell without its hidden weights: what is left of its memory is each unit's own."""
    with torch.no_grad():
        for weight in weights or ("weight_hh",):
            getattr(cell, weight).zero_()
    return cell


def step_of(cell: Cell, *, double: bool = False, state: int = 0) -> Callable[..., torch.Tensor]:
    """The next state as a function of the state at zero input, of one of two where there are."""
    nothing = torch.zeros(INPUTS, dtype=torch.float64)
    rest = torch.zeros(H, dtype=torch.float64)

    def step(h: torch.Tensor) -> torch.Tensor:
        if not double:
            return cell(nothing, h)
        states = (h, rest) if state == 0 else (rest, h)
        return cell(nothing, states)[state]

    return step


def jacobian(cell: Cell, *, double: bool = False, state: int = 0) -> NDArray[Any]:
    """Of one step at zero input and zero state, by autodiff."""
    rest = torch.zeros(H, dtype=torch.float64)
    step = step_of(cell, double=double, state=state)
    return torch.autograd.functional.jacobian(step, rest).detach().numpy()


def whole_jacobian(cell: Cell) -> NDArray[Any]:
    """Of one step of both states of a cell at zero input and zero state, by autodiff."""
    nothing = torch.zeros(INPUTS, dtype=torch.float64)

    def step(states: torch.Tensor) -> torch.Tensor:
        return torch.cat(cell(nothing, (states[:H], states[H:])))

    rest = torch.zeros(2 * H, dtype=torch.float64)
    return torch.autograd.functional.jacobian(step, rest).detach().numpy()


def kick(
    cell: Cell, rows: slice, *, bias: str = "bias_ih", double: bool = False, state: int = 0
) -> NDArray[Any]:
    """dh'/dn at zero input and zero state, n being what some rows of a bias add to; diagonal."""
    step = step_of(cell, double=double, state=state)
    parameters = dict(cell.named_parameters())
    held = parameters[bias]
    rest = torch.zeros(H, dtype=torch.float64)
    moved = [
        torch.autograd.grad(step(rest)[unit], held, allow_unused=True)[0][rows][unit]
        for unit in range(H)
    ]
    return torch.stack(moved).numpy()
