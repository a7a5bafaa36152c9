"""The rates and the optimizer's kind, out of what the libraries themselves save."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.checkpoints.optimizer import adam_state, open_optimizer
from memcurse_cli.checkpoints.recorded_rates import RecordedRates, recorded_rates
from memcurse_cli.errors import CheckpointError

Optimizer = torch.optim.Optimizer


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))


def train(model: torch.nn.Module, optimizer: Optimizer, scheduler: Any = None) -> dict[str, Any]:
    """A checkpoint after two steps."""

    def loss() -> float:
        optimizer.zero_grad()
        value = model(torch.ones(4, 3)).square().mean()
        value.backward()
        return float(value)

    for _ in range(2):
        optimizer.step(loss)
        if scheduler is not None:
            scheduler.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def recorded_at(path: Path) -> RecordedRates | None:
    with open_checkpoint(path) as store:
        return recorded_rates(store)


def found(content: Any, folder: Path) -> RecordedRates | None:
    torch.save(content, folder / "model.pt")
    return recorded_at(folder / "model.pt")


@pytest.mark.parametrize(
    ("make", "name", "adaptive"),
    [
        (torch.optim.Adam, "Adam", True),
        (torch.optim.AdamW, "AdamW", True),
        (torch.optim.NAdam, "NAdam", True),
        (torch.optim.RAdam, "RAdam", True),
        (torch.optim.Adamax, "", True),
        (torch.optim.RMSprop, "RMSprop", True),
        (torch.optim.SGD, "SGD", False),
        (torch.optim.Adagrad, "Adagrad", False),
        (torch.optim.Adadelta, "Adadelta", False),
        (torch.optim.Adafactor, "Adafactor", False),
        (torch.optim.LBFGS, "LBFGS", False),
        (torch.optim.Rprop, "", None),
    ],
)
def test_the_keys_of_a_parameter_group_tell_the_optimizer(
    make: Callable[..., Optimizer], name: str, adaptive: bool | None, tmp_path: Path
) -> None:
    model = network()
    rates = found(train(model, make(model.parameters(), lr=2e-3)), tmp_path)
    source = f"{name or 'the optimizer'}'s lr"
    assert rates == RecordedRates(name, adaptive, 2e-3, 2e-3, {}, source)


def test_several_optimizers_and_those_of_earlier_versions_are_told_as_far_as_they_tell(
    tmp_path: Path,
) -> None:
    model = network()
    matrices = [one for one in model.parameters() if one.ndim == 2]
    vectors = [one for one in model.parameters() if one.ndim == 1]
    content = train(model, torch.optim.Muon(matrices, lr=2e-2))
    assert found(content, tmp_path).optimizer == "Muon"
    content["adam"] = torch.optim.AdamW(vectors, lr=1e-3).state_dict()
    rates = found(content, tmp_path)
    assert (rates.optimizer, rates.adaptive, rates.largest) == ("AdamW and Muon", False, 2e-2)
    del content["optimizer"]
    del content["adam"]["param_groups"][0]["decoupled_weight_decay"]  # as before torch 2.7
    rates = found(content, tmp_path)
    assert (rates.optimizer, rates.adaptive) == ("Adam(W)", True)
    content["other"] = {"state": {}, "param_groups": [{"lr": 2e-3, "params": [0]}]}
    rates = found(content, tmp_path)
    assert (rates.optimizer, rates.adaptive) == ("", None)
    assert rates.source == "the optimizer's lr, the largest of its groups"
    # Adafactor moves by the rate as Trainer sets it.
    group = {"lr": 1e-3, "scale_parameter": False, "relative_step": False, "params": [0]}
    content = {"w": torch.ones(2), "optimizer": {"state": {}, "param_groups": [group]}}
    assert found(content, tmp_path).adaptive is True
    group["scale_parameter"] = True
    assert found(content, tmp_path).adaptive is False


def test_a_scheduler_leaves_the_rate_that_it_began_with_or_its_largest(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    content = train(model, optimizer, scheduler) | {"hyper_parameters": {"lr": 0.5}}
    rates = found(content, tmp_path)
    assert (rates.largest, rates.source) == (2e-3, "AdamW's initial_lr")
    assert rates.current == pytest.approx(2e-5)
    for group in content["optimizer"]["param_groups"]:
        del group["initial_lr"]
    content["lr_schedulers"] = [scheduler.state_dict()]
    rates = found(content, tmp_path)
    assert (rates.largest, rates.source) == (2e-3, "the scheduler's base_lrs")
    adam = torch.optim.Adam(model.parameters(), lr=1e-5)
    cycle = torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=4e-3, total_steps=100)
    rates = found(train(model, adam, cycle), tmp_path)
    assert (rates.largest, rates.source) == (4e-3, "Adam's max_lr")
    assert 1e-4 < rates.current < 4e-4


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("named", [False, True])
def test_a_weight_has_the_rate_of_its_group(
    make: Callable[..., Optimizer], named: bool, tmp_path: Path
) -> None:
    model = network()
    parts = [list(one.named_parameters(f"{name}")) for name, one in model.named_children()]
    groups = [
        {"params": part if named else [one for _, one in part], "lr": rate}
        for part, rate in zip(parts, (1e-4, 3e-3), strict=True)
    ]
    optimizer = make(groups)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    content = train(model, optimizer, scheduler)
    rates = found(content, tmp_path)
    both = {"0.weight": 1e-4, "0.bias": 1e-4, "1.weight": 3e-3, "1.bias": 3e-3}
    assert (rates.largest, rates.groups) == (3e-3, both)
    assert rates.current == pytest.approx(3e-5)
    assert recorded_rates(MemoryStore(content)).groups == both
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"] = 1e-3
    content["optimizer"] = optimizer.state_dict()
    assert found(content, tmp_path).groups == {}


@pytest.mark.parametrize("settings", [{"lr": 3e-3}, argparse.Namespace(learning_rate=3e-3)])
def test_settings_tell_the_rate_where_no_scheduler_does(settings: Any, tmp_path: Path) -> None:
    weights = network().state_dict()
    rates = found({"state_dict": weights, "hyper_parameters": settings}, tmp_path)
    assert rates == RecordedRates("", None, 3e-3, None, {}, "hyper_parameters")
    assert found({"state_dict": weights, "hyper_parameters": {"lr": "3e-3"}}, tmp_path) is None


def test_lightning_keeps_schedulers_beside_its_optimizers(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.rnn = torch.nn.LSTM(2, 3)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            out: torch.Tensor = self.rnn(batch[0])[0].square().mean()
            return out

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))
    trainer = lightning.Trainer(
        max_steps=3, logger=False, enable_checkpointing=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Module(2e-3), data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    rates = recorded_at(tmp_path / "last.ckpt")
    assert rates == RecordedRates("AdamW", True, 2e-3, 2e-3 / 8, {}, "AdamW's initial_lr")


def trained(folder: Path, optimizer: dict[str, Any] | None, log: str) -> RecordedRates | None:
    """What is recorded beside a model.safetensors."""
    save_file(network().state_dict(), folder / "model.safetensors")
    (folder / "trainer_state.json").write_text(log)
    if optimizer is not None:
        torch.save(optimizer, folder / "optimizer.pt")
    return recorded_at(folder)


def test_trainer_writes_its_log_and_its_optimizer_beside_the_weights(tmp_path: Path) -> None:
    # Trainer writes the gradient of a run that diverged as NaN.
    entries = [{"learning_rate": rate, "grad_norm": float("nan")} for rate in (1e-4, 5e-4, 2e-5)]
    log = json.dumps({"global_step": 3, "log_history": [*entries, {"eval_loss": 1.0}]})
    rates = trained(tmp_path, None, log)
    assert rates == RecordedRates("", None, 5e-4, 2e-5, {}, "trainer_state.json")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    rates = trained(tmp_path, train(model, optimizer)["optimizer"], log)
    assert rates == RecordedRates("AdamW", True, 5e-4, 1e-5, {}, "trainer_state.json")
    # Without momentum there is no tensor in it.
    rates = trained(tmp_path, torch.optim.SGD(model.parameters(), 1e-3).state_dict(), "{}")
    assert rates == RecordedRates("SGD", False, 1e-3, 1e-3, {}, "SGD's lr")
    # A file that is asked for comes before those beside the weights.
    other = tmp_path / "other.pt"
    torch.save(train(model, torch.optim.RMSprop(model.parameters(), 2e-3))["optimizer"], other)
    with open_checkpoint(tmp_path) as store, open_optimizer(other) as source:
        rates = recorded_rates(store, source)
    assert rates == RecordedRates("RMSprop", True, 2e-3, 2e-3, {}, "RMSprop's lr")


@pytest.mark.parametrize("ending", [".keras", ".h5", ".weights.h5"])
def test_keras_keeps_its_optimizer(ending: str, tmp_path: Path) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")

    def saved(optimizer: Any) -> RecordedRates | None:
        model = keras.Sequential([keras.layers.Input((3, 2)), keras.layers.GRU(3)])
        model.compile(optimizer, "mse")
        model.fit(np.ones((2, 3, 2)), np.ones((2, 3)), verbose=0)
        path = tmp_path / f"a{ending}"
        model.save_weights(path) if ending == ".weights.h5" else model.save(path)
        with open_checkpoint(path) as store:
            state = adam_state(store)
            assert bool(state.slots) == isinstance(optimizer, keras.optimizers.Adam)
            return recorded_rates(store)

    decay = keras.optimizers.schedules.CosineDecay
    rates = saved(keras.optimizers.AdamW(3e-3))
    assert rates == RecordedRates("AdamW", True, 3e-3, 3e-3, {}, "Keras's optimizer")
    rates = saved(keras.optimizers.SGD(decay(1e-4, 9, warmup_target=2e-3, warmup_steps=3)))
    assert (rates.optimizer, rates.adaptive) == ("SGD", False)
    if ending != ".weights.h5":  # which has no settings
        assert (rates.largest, rates.current) == (2e-3, None)


def jax_tree(transformation: Any) -> dict[str, Any]:
    """Weights and the state of an optax transformation after a step, of NumPy's arrays."""
    jax = pytest.importorskip("jax")
    params = {"rnn": {"nu": np.ones(3, "f"), "theta": np.ones(2, "f")}, "out": np.ones((3, 2), "f")}
    _, state = transformation.update(params, transformation.init(params), params)
    leaves = jax.tree_util.tree_map(np.asarray, state)
    return {"params": params, "opt_state": leaves}


def as_pickle(tree: dict[str, Any], path: Path) -> None:
    path.write_bytes(pickle.dumps(tree))


def as_msgpack(tree: dict[str, Any], path: Path) -> None:
    flax = pytest.importorskip("flax.serialization")
    path.write_bytes(flax.msgpack_serialize(flax.to_state_dict(tree)))


def as_orbax(tree: dict[str, Any], path: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint")
    with orbax.PyTreeCheckpointer() as saver:
        saver.save(path.absolute(), tree)


@pytest.mark.parametrize("save", [as_pickle, as_msgpack, as_orbax])
def test_injected_hyperparams_are_optax_s_rates(
    save: Callable[[dict[str, Any], Path], None], tmp_path: Path
) -> None:
    optax = pytest.importorskip("optax")

    def read(transformation: Any, name: str) -> RecordedRates | None:
        save(jax_tree(transformation), tmp_path / name)
        return recorded_at(tmp_path / name)

    rates = read(optax.inject_hyperparams(optax.adamw)(3e-3), "one")
    assert rates == RecordedRates("", True, 3e-3, 3e-3, {}, "optax's hyperparams")
    adam = optax.inject_hyperparams(optax.adam)
    labels = {"rnn": "slow", "out": "fast"}
    rates = read(optax.multi_transform({"slow": adam(1e-4), "fast": adam(2e-3)}, labels), "groups")
    assert rates.largest == rates.current == pytest.approx(2e-3)
    expected = {"params/rnn/nu": 1e-4, "params/rnn/theta": 1e-4, "params/out": 2e-3}
    assert rates.groups == pytest.approx(expected)


def test_optax_without_a_rate_tells_its_kind_and_a_weight_tells_none(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")
    for make, name, adaptive in (
        (optax.adam(1e-3), "", True),
        (optax.sgd(1e-3, 0.9), "SGD", False),
        (optax.contrib.muon(1e-3), "", False),  # Adam for the vectors
    ):
        as_msgpack(jax_tree(make), tmp_path / "a")
        rates = recorded_at(tmp_path / "a")
        assert rates == RecordedRates(name, adaptive, None, None, {}, "")
    as_msgpack({"params": jax_tree(optax.adam(1e-3))["params"]}, tmp_path / "a")
    assert recorded_at(tmp_path / "a") is None


def agent(path: Path, data: Any, optimizer: Any) -> RecordedRates | None:
    """As stable_baselines3.common.save_util.save_to_zip_file writes it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", data if isinstance(data, str) else json.dumps(data))
        for name, content in (
            ("policy.pth", network().state_dict()),
            ("policy.optimizer.pth", optimizer),
        ):
            saved = io.BytesIO()
            torch.save(content, saved)
            archive.writestr(name, saved.getvalue())
    with open_checkpoint(path) as store:
        assert len(store.tensors) == 4
        state = adam_state(store)
        assert (state is not None and len(state.slots) == 4) == bool(optimizer)
        return recorded_rates(store)


def test_an_agent_keeps_its_rate_and_its_optimizer(tmp_path: Path) -> None:
    model = network()
    state = train(model, torch.optim.Adam(model.parameters(), lr=1e-5))["optimizer"]
    path = tmp_path / "agent.zip"
    rates = agent(path, {"learning_rate": 3e-4, "best": float("-inf")}, state)
    assert rates == RecordedRates("Adam", True, 3e-4, 1e-5, {}, "the agent's data")
    schedule = {":type:": "<class 'function'>", ":serialized:": "gASV"}
    rates = agent(path, {"learning_rate": schedule}, state)
    assert rates == RecordedRates("Adam", True, 1e-5, 1e-5, {}, "Adam's lr")
    assert agent(path, "[" * 100_000, {}) is None


def test_what_is_no_rate_is_not_recorded(tmp_path: Path) -> None:
    nothing = (math.nan, math.inf, 0.0, -1e-3, 1, 1.0, 30, 10**400, "1e-3", True, None, [1e-3])
    for value in nothing:
        group = {"lr": value, "initial_lr": value, "betas": (0.9, 0.999), "params": [0]}
        content = {
            "w": torch.ones(2),
            "optimizer": {"state": {}, "param_groups": [group]},
            "scheduler": {"base_lrs": [value]},
            "args": {"lr": value},
        }
        assert found(content, tmp_path) == RecordedRates("", True, None, None, {}, ""), value
    # A parameter called trace is no state of SGD.
    assert found({"model": {"trace": torch.ones(2), "rnn": torch.ones(2)}}, tmp_path) is None


HOSTILE_GROUPS: list[Any] = [
    [3, "a", None, [], {}],
    [{"lr": 1e-3, "params": "abc"}, {"lr": 2e-3, "params": [[], {}, 10**400]}],
    [{"lr": rate, "params": [0, 0, 0], "param_names": ["w"]} for rate in (1e-3, 2e-3)],
    [{"lr": 1e-3 + index * 1e-9, "params": [0]} for index in range(20_000)],
]


@pytest.mark.parametrize("groups", HOSTILE_GROUPS)
@pytest.mark.parametrize("state", [{}, {0: {"exp_avg_sq": torch.ones(2)}, "x": 3}, [1]])
def test_no_group_is_a_crash(groups: Any, state: Any, tmp_path: Path) -> None:
    rates = found(
        {"w": torch.ones(2), "optimizer": {"state": state, "param_groups": groups}}, tmp_path
    )
    assert rates is None or set(rates.groups) <= {"w"}


def test_lists_within_lists_are_not_walked_for_ever(tmp_path: Path) -> None:
    """Containers that hold one another twice have exponentially many paths, and few bytes."""
    tree: Any = {"base_lrs": [1e-3] * 200}
    for _ in range(5):
        tree = [tree] * 200
    for content in (
        {"w": torch.ones(2), "x": tree},
        {"module": {"w": torch.ones(2)}, "ds_version": "0.1", "x": tree},
    ):
        with pytest.raises(CheckpointError, match="more than 1000000 entries"):
            found(content, tmp_path)
    deep: Any = {"base_lrs": [1e-3]}
    for _ in range(40):
        deep = [deep]
    assert found({"w": torch.ones(2), "x": deep}, tmp_path) is None


def test_a_log_that_is_none_or_lies_elsewhere_says_nothing(tmp_path: Path) -> None:
    for log in ("{", "[1]", '{"log_history": 3}', "[" * 100_000, '{"log_history": [[], 1, {}]}'):
        assert trained(tmp_path, None, log) is None
    (tmp_path / "optimizer.pt").write_bytes(b"PK\3\4")
    entries = ",".join(['{"learning_rate": 1e-3}'] * 100_000)
    log = f'{{"log_history": [{entries}]}}'
    rates = trained(tmp_path, None, log)
    assert rates == RecordedRates("", None, 1e-3, 1e-3, {}, "trainer_state.json")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "trainer_state.json").symlink_to(tmp_path / "outside.json")
    assert trained(folder, None, log) is None  # it is written through the link, and not followed
