"""The cells of ncps against their own equations, written out in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.cells.liquid import LTC
from memcurse_cli.families.detect import detect

H, INPUTS = 4, 3


def ltc(*, mask: bool = True, affine: bool = True) -> dict[str, np.ndarray]:
    """What ncps.torch.LTC saves."""
    generator = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"gleak": (H,), "vleak": (H,), "cm": (H,)}
    for side, sources in (("", H), ("sensory_", INPUTS)):
        shapes |= {f"{side}{name}": (sources, H) for name in ("sigma", "mu", "w", "erev")}
    arrays = {name: generator.uniform(0.1, 1.0, size=shape) for name, shape in shapes.items()}
    if mask:
        arrays["sparsity_mask"] = generator.integers(0, 2, size=(H, H)).astype(float)
        arrays["sensory_sparsity_mask"] = generator.integers(0, 2, size=(INPUTS, H)).astype(float)
    if affine:
        arrays["input_w"], arrays["input_b"] = np.ones(INPUTS), generator.normal(size=INPUTS)
    return {f"rnn_cell.{name}": array for name, array in arrays.items()}


def step(
    arrays: dict[str, np.ndarray], state: torch.Tensor, positive: bool = True, time: float = 1.0
) -> torch.Tensor:
    """One step of ncps.torch.LTCCell at zero input, its synapses as at zero state."""
    kept = {name.removeprefix("rnn_cell."): torch.tensor(a) for name, a in arrays.items()}

    def conductance(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(values) if positive else values

    def synapses(side: str, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        distance = seen[:, None] - kept[f"{side}mu"]
        active = conductance(kept[f"{side}w"]) * torch.sigmoid(kept[f"{side}sigma"] * distance)
        active = active * kept.get(f"{side}sparsity_mask", torch.tensor(1.0))
        return (active * kept[f"{side}erev"]).sum(0), active.sum(0)

    inputs = kept.get("input_b", torch.zeros(INPUTS, dtype=torch.float64))
    driven, opened = synapses("sensory_", inputs)
    capacity, leak = conductance(kept["cm"]) / (time / 6), conductance(kept["gleak"])
    for _ in range(6):
        own_drive, own_opened = synapses("", torch.zeros(H, dtype=torch.float64))
        numerator = capacity * state + leak * kept["vleak"] + driven + own_drive
        state = numerator / (capacity + leak + opened + own_opened + 1e-8)
    return state


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("positive", [True, False])
def test_the_state_decays_as_the_report_says(mask: bool, affine: bool, positive: bool) -> None:
    arrays = ltc(mask=mask, affine=affine)
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("liquid_ltc", "rnn_cell")
    choice = {} if positive else {"implicit_constraints": "no"}
    recurrence = read_layer(arrays, LTC(), **choice)
    assert recurrence.stable_by_construction is positive
    still, kicked = (torch.full((H,), value, dtype=torch.float64) for value in (0.0, 1.0))
    for _ in range(2):
        still, kicked = (step(arrays, state, positive) for state in (still, kicked))
    expected = np.exp(2 * recurrence.log_eigenvalues.real)
    assert_allclose((kicked - still).numpy(), expected, rtol=1e-11, atol=1e-15)


def test_the_gain_is_that_of_a_current() -> None:
    arrays = ltc()
    recurrence = read_layer(arrays, LTC(), elapsed_time="0.5")
    zero = torch.zeros(H, dtype=torch.float64)
    more = arrays | {"rnn_cell.vleak": arrays["rnn_cell.vleak"] + 1}
    moved = step(more, zero, time=0.5) - step(arrays, zero, time=0.5)
    leak = np.logaddexp(0, arrays["rnn_cell.gleak"])
    assert_allclose(moved.numpy() / leak, np.exp(recurrence.log_gain.real), rtol=1e-12)


@pytest.mark.parametrize("choice", ["yes", "no"])
def test_derivatives(choice: str) -> None:
    # A step of the differences is half of the smallest conductance that is stored.
    arrays = {name: array + (0.5 if array.ndim == 1 else 0) for name, array in ltc().items()}
    check_derivatives(arrays, LTC(), tolerance=1e-8, implicit_constraints=choice)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ({"implicit_constraints": "no"}, TensorError, "capacity is not positive"),
        ({"ode_unfolds": "0"}, UsageError, "ode_unfolds=0 is not positive"),
        ({"elapsed_time": "inf"}, UsageError, "elapsed_time=inf is not positive"),
    ],
)
def test_what_is_no_time_constant_is_refused(
    choice: dict[str, str], error: type[Exception], message: str
) -> None:
    arrays = ltc()
    arrays["rnn_cell.cm"][1] = -0.2
    with pytest.raises(error, match=message):
        read_layer(arrays, LTC(), **choice)


def test_other_modules_are_not_taken() -> None:
    arrays = ltc()
    assert match_of({n: a for n, a in arrays.items() if "sensory_w" not in n}, LTC()) == []
    assert match_of(arrays | {"rnn_cell.w": np.ones((H, H + 1))}, LTC()) == []
