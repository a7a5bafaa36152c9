"""Adam's state as the libraries themselves save it, under the names of its weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.checkpoints.optimizer import AdamState, adam_state, open_optimizer
from memcurse_cli.checkpoints.recorded_rates import recorded_rates
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import CheckpointError


class Network(torch.nn.Module):
    """Two recurrent layers of one shape, a buffer, and a readout."""

    def __init__(self, *, buffers: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.GRU(4, 4), torch.nn.GRU(4, 4)])
        if buffers:
            self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        if hasattr(self, "norm"):
            x = self.norm(x.flatten(0, 1)).view_as(x)
        return self.head(x)


def train(
    network: Network,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    parameters: list[Any] | None = None,
    **options: Any,
) -> torch.optim.Optimizer:
    optimizer = make(parameters or network.parameters(), lr=3e-3, **options)
    torch.manual_seed(0)
    for _ in range(4):
        loss = network(torch.randn(6, 5, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


def expected(network: Network, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    return {
        name: optimizer.state[parameter]["exp_avg_sq"].numpy()
        for name, parameter in network.named_parameters()
        if parameter in optimizer.state
    }


def found(path: Path | dict[str, Any], optimizer: Path | None = None) -> AdamState | None:
    store: TensorStore = MemoryStore(path) if isinstance(path, dict) else open_checkpoint(path)
    return adam_state(store, None if optimizer is None else open_optimizer(optimizer))


def both(network: Network, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": network.state_dict(), "optimizer": optimizer.state_dict()}


def check(state: AdamState, moments: dict[str, np.ndarray]) -> None:
    assert state.reason is None
    assert set(state.slots) == set(moments)
    for name, moment in moments.items():
        assert np.array_equal(state.slots[name].second_moment.load(), moment.astype(float)), name


@pytest.mark.parametrize("container", ["plain", "lightning", "memory", "legacy"])
def test_torch_numbers_are_the_weights_in_their_order(container: str, tmp_path: Path) -> None:
    network = Network()
    optimizer = train(network, torch.optim.AdamW, betas=(0.9, 0.95))
    content = both(network, optimizer)
    if container == "lightning":
        content = {"state_dict": content["model"], "optimizer_states": [content["optimizer"]]}
    path = tmp_path / "step.pt"
    torch.save(content, path, _use_new_zipfile_serialization=container != "legacy")
    state = found(content if container == "memory" else path)
    check(state, expected(network, optimizer))
    slot = state.slots["layers.1.weight_hh_l0"]
    assert (slot.step, slot.learning_rate, slot.beta2, slot.epsilon) == (4, 3e-3, 0.95, 1e-8)


def test_a_buffer_or_a_group_of_the_same_shape_makes_that_shape_ambiguous() -> None:
    network = Network(buffers=True)
    optimizer = train(network)
    state = found(both(network, optimizer))
    moments = expected(network, optimizer)
    assert "layers.0.weight_hh_l0" in state.slots
    for name, slot in state.slots.items():
        assert np.array_equal(slot.second_moment.load(), moments[name].astype(float)), name
    norm = ("weight", "bias", "running_mean", "running_var")
    assert set(state.refused) == {f"norm.{name}" for name in norm}
    assert "2 states of its shape and the file 4" in state.refused["norm.weight"]
    network = Network()
    first = list(network.layers[0].parameters())
    rest = [*network.layers[1].parameters(), *network.head.parameters()]
    optimizer = train(
        network, amsgrad=True, parameters=[{"params": rest}, {"params": first, "lr": 1e-4}]
    )
    state = found(both(network, optimizer))
    assert set(state.slots) == {"head.weight", "head.bias"}
    assert "in several groups" in state.refused["layers.0.weight_hh_l0"]
    # AMSGrad divides by the largest second moment.
    largest = optimizer.state[network.head.weight]["max_exp_avg_sq"].double().numpy()
    assert np.array_equal(state.slots["head.weight"].second_moment.load(), largest)


def test_names_settle_every_order_and_what_has_no_gradient_has_no_state() -> None:
    network = Network()
    network.layers[0].weight_hh_l0.requires_grad_(False)
    named = dict(network.named_parameters())
    backwards = [(f"module.{name}", named[name]) for name in reversed(named)]
    for parameters in (None, backwards):
        optimizer = train(network, parameters=parameters)
        state = found(both(network, optimizer))
        check(state, expected(network, optimizer))
        assert "layers.0.weight_hh_l0" not in state.slots


def test_safetensors_beside_an_optimiser_keep_the_order_of_a_module_list_alone(
    tmp_path: Path,
) -> None:
    network = Network()
    optimizer = train(network, torch.optim.AdamW)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    moments = expected(network, optimizer)
    for place in (tmp_path / "optimizer.pt", tmp_path):
        state = found(tmp_path / "model.safetensors", place)
        # weight_ih and weight_hh have one shape here, and so have the two biases.
        assert set(state.slots) == {"head.weight", "head.bias"}
        assert "does not keep their order" in state.refused["layers.0.weight_hh_l0"]
    for name, slot in state.slots.items():
        assert np.array_equal(slot.second_moment.load(), moments[name].astype(float))


def test_a_module_list_is_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    network = torch.nn.ModuleList([torch.nn.Linear(3, 2, bias=False) for _ in range(12)])
    optimizer = torch.optim.Adam(network.parameters())
    sum((index + 1) * layer.weight.sum() for index, layer in enumerate(network)).backward()
    optimizer.step()
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    state = found(tmp_path / "model.safetensors", tmp_path / "optimizer.pt")
    moments = {
        f"{index}.weight": optimizer.state[layer.weight]["exp_avg_sq"].numpy()
        for index, layer in enumerate(network)
    }
    check(state, moments)


def test_an_optimiser_without_a_second_moment_or_of_another_model_is_told() -> None:
    network = Network()
    optimizer = train(network, torch.optim.SGD, momentum=0.9)
    state = found(both(network, optimizer))
    assert state.slots == {}
    assert "momentum_buffer" in state.reason
    assert adam_state(MemoryStore(network.state_dict())) is None
    state = found(both(network, train(Network(buffers=True))))
    assert state.slots == {}
    assert "the optimiser has 12 parameters and the file 10" in state.refused["head.weight"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_names_its_states_and_tells_the_kind(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    network = Network()
    optimizer = train(network, torch.optim.AdamW)
    model_state, optimizer_state = get_state_dict(network, optimizer)
    dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=tmp_path / "step")
    state = found(tmp_path / "step")
    check(state, expected(network, optimizer))
    assert state.slots["head.bias"].step == 4
    with open_checkpoint(tmp_path / "step") as store:
        rates = recorded_rates(store)
    assert (rates.adaptive, rates.largest) == (True, None)


TORCH_KEYS = ("state", "param_groups", "params", "param_names", "exp_avg_sq", "step", "lr", "betas")
KEYS = st.sampled_from(
    [*TORCH_KEYS, "mu", "nu", "count", "hyperparams", "learning_rate", "a", "b", 0, 1]
)
ARRAYS = [np.ones(2), np.ones((2, 2)), np.float32(1), np.array([1 + 1j, 2]), 10**400, OrderedDict()]
LEAVES = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(ARRAYS)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.builds(
            lambda state, groups: {"state": state, "param_groups": groups},
            st.dictionaries(st.integers(0, 2), inner, max_size=3),
            st.lists(st.dictionaries(KEYS, inner, max_size=4), max_size=2),
        )
    ),
    max_leaves=20,
)


@given(TREES)
@example({"state": {0: None}, "param_groups": ["a", {"params": 3}]})
@example({"state": {0: {"step": 10**400}}, "param_groups": [{"params": [0], "lr": 10**400}]})
@settings(max_examples=150)
def test_no_tree_is_a_crash(content: Any) -> None:
    """Whatever a file holds, each weight has a state of its own shape, a reason, or neither."""
    weights = {"a": np.ones(2), "b": np.ones((2, 2))}
    try:
        store = MemoryStore({"params": weights, "opt_state": content})
    except CheckpointError:
        return
    state = adam_state(store)
    if state is None:
        return
    for name, slot in state.slots.items():
        assert slot.second_moment.spec.shape == store.tensors[name].shape
    assert not set(state.slots) & set(state.refused)
