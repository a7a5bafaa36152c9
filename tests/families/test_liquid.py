"""The cells of ncps against their own equations, written out in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, read_layer
from families.oracles import jacobian
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.cells.liquid import HEADS, LTC, CfC
from memcurse_cli.families.detect import detect

H, INPUTS, UNITS = 4, 3, 6


def ltc(*, full: bool = True) -> dict[str, np.ndarray]:
    """What ncps.torch.LTC saves."""
    generator = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"gleak": (H,), "vleak": (H,), "cm": (H,)}
    for side, sources in (("", H), ("sensory_", INPUTS)):
        shapes |= {f"{side}{name}": (sources, H) for name in ("sigma", "mu", "w", "erev")}
    arrays = {name: generator.uniform(0.1, 1.0, size=shape) for name, shape in shapes.items()}
    if full:
        arrays["sparsity_mask"] = generator.integers(0, 2, size=(H, H)).astype(float)
        arrays["sensory_sparsity_mask"] = generator.integers(0, 2, size=(INPUTS, H)).astype(float)
        arrays["input_w"], arrays["input_b"] = np.ones(INPUTS), generator.normal(size=INPUTS)
    return {f"rnn_cell.{name}": array for name, array in arrays.items()}


def ltc_step(
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


@pytest.mark.parametrize(("full", "positive"), [(True, True), (False, True), (True, False)])
def test_the_state_decays_as_the_report_says(full: bool, positive: bool) -> None:
    arrays = ltc(full=full)
    choice = {} if positive else {"implicit_constraints": "no"}
    recurrence = read_layer(arrays, LTC(), **choice)
    assert recurrence.stable_by_construction is positive
    still, kicked = (torch.full((H,), value, dtype=torch.float64) for value in (0.0, 1.0))
    for _ in range(2):
        still, kicked = (ltc_step(arrays, state, positive) for state in (still, kicked))
    expected = np.exp(2 * recurrence.log_eigenvalues.real)
    assert_allclose((kicked - still).numpy(), expected, rtol=1e-11, atol=1e-15)


def test_the_gain_is_that_of_a_current() -> None:
    arrays = ltc()
    recurrence = read_layer(arrays, LTC(), elapsed_time="0.5")
    zero = torch.zeros(H, dtype=torch.float64)
    more = arrays | {"rnn_cell.vleak": arrays["rnn_cell.vleak"] + 1}
    moved = ltc_step(more, zero, time=0.5) - ltc_step(arrays, zero, time=0.5)
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


ACTIVATIONS = {
    "lecun_tanh": lambda x: 1.7159 * torch.tanh(0.666 * x),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


def cfc(layers: int, *, pure: bool = False, mask: bool = False) -> dict[str, np.ndarray]:
    """What ncps.torch.CfC saves; the backbone's linears have an activation between them."""
    generator = np.random.default_rng(11)
    shapes: dict[str, tuple[int, ...]] = {}
    width = INPUTS + H
    for layer in range(layers):
        shapes |= {f"backbone.{2 * layer}.weight": (UNITS, width)}
        shapes |= {f"backbone.{2 * layer}.bias": (UNITS,)}
        width = UNITS
    for head in HEADS[:1] if pure else HEADS:
        shapes |= {f"{head}.weight": (H, width), f"{head}.bias": (H,)}
    if pure:
        shapes |= {"w_tau": (1, H), "A": (1, H)}
    arrays = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    if mask:
        arrays["sparsity_mask"] = generator.integers(0, 2, size=(H, width)).astype(float)
    return {f"rnn_cell.{name}": array for name, array in arrays.items()}


def cfc_step(
    arrays: dict[str, np.ndarray],
    state: torch.Tensor,
    activation: str = "lecun_tanh",
    mode: str = "default",
    time: float = 1.0,
) -> torch.Tensor:
    """CfCCell.forward of [x, h]."""
    kept = {name.removeprefix("rnn_cell."): torch.tensor(array) for name, array in arrays.items()}
    z = state
    for index in range(0, 8, 2):
        if f"backbone.{index}.weight" in kept:
            rows = kept[f"backbone.{index}.weight"] @ z + kept[f"backbone.{index}.bias"]
            z = ACTIVATIONS[activation](rows)

    def head(name: str) -> torch.Tensor:
        weight = kept[f"{name}.weight"]
        if name.startswith("ff"):
            weight = weight * kept.get("sparsity_mask", torch.tensor(1.0))
        return weight @ z + kept[f"{name}.bias"]

    if "w_tau" in kept:
        rate, level = kept["w_tau"][0], kept["A"][0]
        decayed = torch.exp(-time * (rate.abs() + head("ff1").abs()))
        return -level * decayed * head("ff1") + level
    first, second = torch.tanh(head("ff1")), torch.tanh(head("ff2"))
    gate = torch.sigmoid(head("time_a") * time + head("time_b"))
    if mode == "no_gate":
        return first + gate * second
    return first * (1 - gate) + gate * second


def check(arrays: dict[str, np.ndarray], **choices: str) -> None:
    recurrence = read_layer(arrays, CfC(), **choices)
    own = {
        "activation": choices.get("backbone_activation", "lecun_tanh"),
        "mode": choices.get("cfc_mode", "default"),
        "time": float(choices.get("elapsed_time", "1")),
    }
    whole = jacobian(lambda s: cfc_step(arrays, s, **own), INPUTS + H)
    assert_allclose(recurrence.dense.matrix, whole[:, INPUTS:], rtol=1e-11, atol=1e-13)
    assert_allclose(recurrence.readin.real, whole[:, :INPUTS], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "choice",
    [
        *({"backbone_activation": name} for name in ACTIVATIONS),
        *({"cfc_mode": "no_gate"}, {"elapsed_time": "0.3"}),
    ],
)
@pytest.mark.parametrize("pure", [False, True])
def test_the_matrix_is_the_jacobian_of_the_step(pure: bool, choice: dict[str, str]) -> None:
    for layers in (0, 1, 2):
        check(cfc(layers, pure=pure, mask=layers < 2), **choice)


def test_every_cell_is_a_layer_and_says_what_is_assumed() -> None:
    arrays = {
        name.replace("rnn_cell", f"rnn_cell.layer_{index}"): array
        for index, cell in enumerate((cfc(1, mask=True), cfc(0), ltc()))
        for name, array in cell.items()
    }
    found = [(family.name, match.layer) for family, match in detect(MemoryStore(arrays).tensors)]
    cfcs = [("liquid_cfc", f"rnn_cell.layer_{index}") for index in range(2)]
    assert found == [*cfcs, ("liquid_ltc", "rnn_cell.layer_2")]
    recurrence = read_layer(arrays, CfC())
    for said in ("cfc_mode=default", "backbone_activation=lecun_tanh", "the Jacobian of one step"):
        assert any(said in sentence for sentence in recurrence.assumptions)
