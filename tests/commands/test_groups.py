"""`memcurse groups`: its code builds optimizers that move every parameter by its rate."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import numpy as np
import pytest
import torch
from end_to_end.command import SAMPLES, assert_refused, memcurse
from reports import build
from safetensors.numpy import load_file

from memcurse_cli import Report, inspect
from memcurse_cli.reports.code import optax_code, torch_code
from memcurse_cli.schema.derived import parameter_groups

CURSED, LRU = (SAMPLES / f"{name}.safetensors" for name in ("dense_linear_rnn", "lru"))
RATE = 3e-3
DECAY = {"torch": 1e-2, "optax": 1e-4}  # the defaults of AdamW


@pytest.fixture(scope="module")
def stack() -> torch.nn.Module:
    """A layer above its usable rate, one below it, one that is not judged, and a head."""
    of_layers = (("slow", CURSED), ("fine", LRU))
    layers: dict[str, torch.nn.Module] = {
        name: torch.nn.ParameterDict(
            {key: torch.tensor(one) for key, one in load_file(path).items()}
        )
        for name, path in of_layers
    }
    layers |= {"gated": torch.nn.GRU(3, 4), "head": torch.nn.Linear(4, 1)}
    return torch.nn.ModuleDict(layers)


@pytest.fixture(scope="module")
def report(stack: torch.nn.Module) -> Report:
    return inspect(stack.state_dict(), learning_rate=RATE, simulate=False)


def test_an_optimizer_of_torch_moves_every_parameter_by_its_rate(
    stack: torch.nn.Module, report: Report
) -> None:
    names: dict[str, Any] = {"model": stack}
    exec(torch_code(parameter_groups(report)), names)
    before = {name: one.detach().clone() for name, one in stack.named_parameters()}
    for parameter in stack.parameters():
        parameter.grad = torch.ones_like(parameter)
    names["optimizer"].step()
    rates = {"slow.A": report.usable_rate.rate, "fine.nu_log": RATE, "gated.bias_hh_l0": RATE}
    for name, parameter in stack.named_parameters():
        decay = DECAY["torch"] * before[name] if name[:4] == "head" or name[-1] in "BCD" else 0
        if name in rates or torch.is_tensor(decay):
            expected = rates.get(name, RATE) * (1 + decay) + torch.zeros_like(parameter)
            torch.testing.assert_close(
                before[name] - parameter.detach(), expected, rtol=5e-3, atol=1e-7
            )
    assert rates["slow.A"] < RATE / 5


def test_a_layer_that_was_not_judged_is_named(report: Report) -> None:
    made = parameter_groups(report)
    assert [one.layer for one in made.not_judged] == ["gated.l0"]
    for write in (torch_code, optax_code):
        assert "# Not judged, so at your rate: 'gated.l0', " in write(made)
        assert max(map(len, write(made).splitlines())) < 80


class Diagonal(nn.Module):
    """A matrix by its name."""

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        for name, value in load_file(CURSED).items():
            self.param(name, lambda _, value=value: jax.numpy.asarray(value))
        return inputs


class Network(nn.Module):
    """It between two layers."""

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        return nn.Dense(1)(Diagonal()(nn.Dense(3)(inputs)))


def updates_of(code: str, params: Any) -> Any:
    """What the optimizer does on gradients of one."""
    names: dict[str, Any] = {"params": params}
    exec(code, names)
    gradient = jax.tree.map(jax.numpy.ones_like, params)
    optimizer = names["optimizer"]
    return optimizer.update(gradient, optimizer.init(params), params)[0]


@pytest.mark.parametrize("whole", [False, True])
def test_an_optimizer_of_optax_moves_every_leaf_of_a_flax_model_by_its_rate(
    tmp_path: Path, whole: bool
) -> None:
    variables = Network().init(jax.random.key(0), np.ones((1, 2)))
    path = tmp_path / "model.msgpack"
    path.write_bytes(flax.serialization.to_bytes(variables))
    done = memcurse("groups", path, "--lr", RATE, "--optax")
    assert (done.returncode, done.stderr) == (0, "")
    moved = updates_of(done.stdout, variables if whole else variables["params"])
    moved, given = moved["params"] if whole else moved, variables["params"]
    usable = inspect(path).usable_rate.rate
    assert np.asarray(moved["Diagonal_0"]["A"]) == pytest.approx(-usable, rel=5e-3)
    for module, name in (("Diagonal_0", "B"), ("Dense_0", "kernel")):
        expected = -RATE * (1 + DECAY["optax"] * np.asarray(given[module][name]))
        assert np.asarray(moved[module][name]) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(AssertionError, match="not those of the checkpoint"):
        updates_of(done.stdout, {"module": given})


def test_a_plain_tree_with_a_list_is_labelled_by_its_paths() -> None:
    params = {"layers": [load_file(CURSED), load_file(LRU)], "head": np.ones(2)}
    found = inspect(params, learning_rate=RATE)
    moved = updates_of(optax_code(parameter_groups(found)), params)
    rate = -(found.usable_rate.rate or np.nan)
    assert np.asarray(moved["layers"][0]["A"]) == pytest.approx(rate, rel=5e-3)
    assert np.asarray(moved["layers"][1]["nu_log"]) == pytest.approx(-RATE, rel=1e-4)
    assert moved["head"] == pytest.approx(-RATE * (1 + DECAY["optax"]), rel=1e-4)


def test_json_has_the_groups_of_python_and_two_at_once_are_refused() -> None:
    made = json.loads(memcurse("groups", CURSED, "--lr", RATE, "--json").stdout)
    found = inspect(CURSED, learning_rate=RATE).groups()
    assert [*made["groups"], {"params": [], "lr": made["learning_rate"]}] == found
    assert_refused(memcurse("groups", CURSED, "--torch", "--json"), "exclude one another")


@pytest.mark.parametrize("write", [torch_code, optax_code])
@pytest.mark.parametrize(
    "prefix",
    [
        *('a\'\n"""\nraise SystemExit(1)\n#', "a\\", "λ\u2028\u202e", "{recurrent}"),
        *("##[error]b", "\n::error::a", "\x1b[31m\r", "a b " * 40, build.HOSTILE),
    ],
)
def test_a_name_of_a_checkpoint_is_only_ever_a_name(write: Any, prefix: str) -> None:
    def state(prefix: str) -> dict[str, Any]:
        gated = torch.nn.GRU(2, 3).state_dict()
        found = {f"{prefix}x.{name}": value for name, value in gated.items()}
        return found | {f"{prefix}.{name}": np.full(3, -9.0) for name in ("nu_log", "theta_log")}

    made = parameter_groups(inspect(state(prefix), learning_rate=0.9, simulate=False))
    code = write(made)
    assert made.not_judged
    assert all(" " <= character <= "~" for character in code.replace("\n", ""))
    assert "##" not in code
    plain = write(parameter_groups(inspect(state("a"), learning_rate=0.9, simulate=False)))
    ours, theirs = (ast.parse(text).body for text in (code, plain))
    (at,) = (at for at, one in enumerate(theirs) if "recurrent = " in ast.unparse(one)[:12])
    written = ast.literal_eval(ours.pop(at).value)  # type: ignore[attr-defined]
    theirs.pop(at)
    assert [*map(ast.dump, ours)] == [*map(ast.dump, theirs)]
    names = [name.replace("/", ".") for one in made.groups for name in one.params]
    assert [name.replace("/", ".") for one in written for name in one["params"]] == names
