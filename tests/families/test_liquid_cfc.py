"""The CfC of ncps, written out in torch, with autodiff as the judge of its Jacobian."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.liquid import HEADS, CfC
from memcurse_cli.families.detect import detect

H, INPUTS, UNITS = 4, 3, 6
ACTIVATIONS = {
    "lecun_tanh": lambda x: 1.7159 * torch.tanh(0.666 * x),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


def made(layers: int, *, pure: bool = False, mask: bool = False) -> dict[str, np.ndarray]:
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


def step(
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
    zero = torch.zeros(INPUTS + H, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(arrays, s, **own), zero).numpy()
    assert recurrence.dense is not None
    assert recurrence.readin is not None
    assert_allclose(recurrence.dense.matrix, jacobian[:, INPUTS:], rtol=1e-11, atol=1e-13)
    assert_allclose(recurrence.readin.real, jacobian[:, :INPUTS], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_the_matrix_is_the_jacobian_of_the_step(layers: int, pure: bool, mask: bool) -> None:
    check(made(layers, pure=pure, mask=mask))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    check(made(2), backbone_activation=activation)


@pytest.mark.parametrize("choice", [{"cfc_mode": "no_gate"}, {"elapsed_time": "0.3"}])
def test_what_is_not_stored_can_be_given(choice: dict[str, str]) -> None:
    check(made(1), **choice)
    check(made(1, pure=True), **choice)


def test_a_wired_network_has_a_layer_for_each_of_its_cells() -> None:
    arrays = {
        name.replace("rnn_cell", f"rnn_cell.layer_{index}"): array
        for index in range(2)
        for name, array in made(0, mask=True).items()
    }
    found = [(family.name, match.layer) for family, match in detect(MemoryStore(arrays).tensors)]
    assert found == [("liquid_cfc", f"rnn_cell.layer_{index}") for index in range(2)]


def test_what_is_assumed_is_said() -> None:
    recurrence = read_layer(made(1), CfC())
    for said in ("cfc_mode=default", "backbone_activation=lecun_tanh", "the Jacobian of one step"):
        assert any(said in sentence for sentence in recurrence.assumptions)


def test_other_modules_are_not_taken() -> None:
    arrays = made(1)
    others = [{n: a for n, a in arrays.items() if "time_b" not in n}]
    others += [arrays | {"rnn_cell.ff2.weight": np.ones((H, UNITS + 1))}]
    others += [arrays | {"rnn_cell.backbone.0.weight": np.ones((UNITS + 1, INPUTS + H))}]
    others += [dict(made(0).items()) | {f"rnn_cell.{h}.weight": np.ones((H, H)) for h in HEADS}]
    for other in others:
        assert match_of(other, CfC()) == []


def test_a_bias_of_another_size_is_refused() -> None:
    with pytest.raises(TensorError, match="does not fit"):
        read_layer(made(1) | {"rnn_cell.time_a.bias": np.ones(H + 1)}, CfC())
