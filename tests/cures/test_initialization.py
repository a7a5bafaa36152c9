"""Initial parameters: memories, sizes and code, against closed forms and networks that run."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import kstest

from memcurse_cli import inspect
from memcurse_cli.cures.initialization import CRITICAL, FAMILIES, Recipe, cell, lru, mamba, recipe
from memcurse_cli.errors import UsageError

LOW, HIGH = 10.0, 200.0
METHODS = [(family, method) for family, known in FAMILIES.items() for method in known.methods]
each_method = pytest.mark.parametrize(("family", "method"), METHODS)


def drawn(family: str, method: str, units: int = 16) -> Recipe:
    return recipe(family, (LOW, HIGH), units, seed=1, method=method)


@each_method
def test_memories_are_where_they_were_asked_for(family: str, method: str) -> None:
    made = drawn(family, method, 64).inspected(300)
    (layer,) = made.report.layers
    found = layer.eigenvalues.time_constant
    assert layer.family == family
    if method == CRITICAL:
        assert 0.9 * HIGH < made.report.memory < 1.4 * HIGH  # of weights that stay the same
        return
    fastest = 16 if family == "mamba" else 1  # A = -16
    # A gate that keeps 1 - 1/T remembers T - 1/2 steps.
    assert (LOW - 0.5) / fastest <= found.min * 1.00001 < 2 * LOW / fastest + 5
    assert 0.6 * HIGH < found.max <= HIGH * 1.00001


def test_a_ring_has_the_states_that_its_area_gives() -> None:
    of = lru(np.random.default_rng(0), 100_000, LOW, HIGH, np.pi)
    inner, outer = (math.exp(-2 / steps) for steps in (LOW, HIGH))
    blown_up = math.log((1 - inner) / (1 - outer)) / (outer - inner)  # Orvieto et al., prop. 3
    assert np.mean(np.exp(-2 * of["gamma_log"])) == pytest.approx(blown_up, rel=0.02)
    assert kstest(np.exp(of["theta_log"]), "uniform", (0, np.pi)).pvalue > 0.01


def test_the_states_of_an_lru_are_as_large_as_they_are_when_run() -> None:
    made, horizon = drawn("lru", "ring"), 30
    nu, theta, gamma = (made.tensors()[f"{name}_log"] for name in ("nu", "theta", "gamma"))
    inputs, h = np.random.default_rng(0).standard_normal((horizon, 20_000, 1)), 0.0
    for x in inputs:
        h = np.exp(-np.exp(nu) + 1j * np.exp(theta)) * h + np.exp(gamma) * x
    size = made.inspected(horizon).report.layers[0].state.second_moment
    seen = np.mean(np.abs(h) ** 2, axis=0)
    assert [seen.min(), seen.max()] == pytest.approx([size.min, size.max], rel=0.04)


def test_gates_keep_what_their_papers_say() -> None:
    of = drawn("rg_lru", "log", 4000).tensors()
    decay = 8 * np.log1p(np.exp(of["a_param"].astype(float))) * expit(of["a_gate.b"])
    ends = math.log(LOW), math.log(HIGH / LOW)
    assert kstest(-np.log(decay), "uniform", ends).pvalue > 0.01
    step = np.log1p(np.exp(mamba(np.random.default_rng(0), 4000, LOW, HIGH)["dt_proj.bias"]))
    assert kstest(-np.log(step), "uniform", ends).pvalue > 0.01
    bias = cell(np.random.default_rng(0), 600, LOW, HIGH, 1, "ifgo", None)["bias_ih_l0"]
    shut, keep, *rest = bias.reshape(4, -1)
    assert kstest(1 / (1 - expit(keep)), "uniform", (LOW, HIGH - LOW)).pvalue > 0.01
    np.testing.assert_array_equal(shut, -keep)
    assert not np.any(rest)


@pytest.mark.parametrize("family", ["lstm", "gru"])
def test_a_small_change_fades_at_the_critical_bias_as_fast_as_asked(family: str) -> None:
    """In a network of 500 units whose weights are drawn anew at every step, as theory has it."""
    keep, size = recipe(family, (5, 40), 64, method=CRITICAL).arguments["keep"], 500
    random = np.random.default_rng(0)
    h, c = np.zeros((2, size, 2))
    changes = []
    for step in range(120):
        if step == 50:
            h[:, 1] += 1e-6 * random.standard_normal(size)
        w = random.standard_normal((4 if family == "lstm" else 3, size, size)) / math.sqrt(3 * size)
        fed, given = w @ h, random.standard_normal((len(w), size, 1)) / math.sqrt(3)
        if family == "lstm":
            i, f, g, o = fed + given
            c = expit(f + keep) * c + expit(i - keep) * np.tanh(g)
            h = expit(o) * np.tanh(c)
        else:
            r, z = expit(fed[0] + given[0]), expit(fed[1] + given[1] + keep)
            h = z * h + (1 - z) * np.tanh(given[2] + r * fed[2])
        changes.append(np.sum((h[:, 0] - h[:, 1]) ** 2))
    rate = math.log(changes[119] / changes[60]) / 59
    assert rate == pytest.approx(-2 / 40, rel=0.1)


def run_torch(made: Recipe, tensors: dict[str, Any]) -> dict[str, Any]:
    import torch

    code, layer = made.code("torch"), torch.nn.Module()
    if "gates" in made.arguments:
        layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[made.family](16, 16)
    for name, values in tensors.items() if not [*layer.parameters()] else ():
        *outer, last = name.split(".")
        module = layer
        for each in outer:
            module.add_module(each, torch.nn.Module())
            module = module.get_submodule(each)
        module.register_parameter(last, torch.nn.Parameter(torch.zeros(values.shape)))
    exec(code, {"layer": layer})
    return layer.state_dict()


def run_flax(made: Recipe, tensors: dict[str, Any]) -> dict[str, Any]:
    import jax
    from flax import linen
    from flax.traverse_util import flatten_dict, unflatten_dict

    params = unflatten_dict({name: np.zeros(of.shape) for name, of in tensors.items()}, sep=".")
    names = {"params": params}
    exec(made.code("flax"), names)
    if "gates" in made.arguments:
        kind = {"lstm": linen.OptimizedLSTMCell, "gru": linen.GRUCell}[made.family](16)
        x = np.zeros((1, 16))
        known = kind.init(jax.random.key(0), kind.initialize_carry(jax.random.key(0), x.shape), x)
        shapes = jax.tree.map(np.shape, names["params"])
        assert shapes == jax.tree.map(np.shape, known["params"])
    return flatten_dict(names["params"], sep=".")


def run_keras(made: Recipe, tensors: dict[str, Any]) -> dict[str, Any]:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    class Holder(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            for name, values in tensors.items():
                outer, _, last = name.rpartition(".")
                holder = self
                if outer:
                    holder = keras.layers.Layer(name=outer)
                    setattr(self, outer, holder)
                holder.add_weight(values.shape, name=last)

    layer = Holder()
    if "gates" in made.arguments:
        layer = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[made.family](16)
    layer.build((None, None, 16))
    exec(made.code("keras"), {"layer": layer})
    inner = f"{layer.name}/", f"{made.family}_cell/"
    return {
        one.path.removeprefix(inner[0]).removeprefix(inner[1]).replace("/", "."): one.numpy()
        for one in layer.weights
    }


@pytest.mark.parametrize("framework", [run_torch, run_flax, run_keras])
@pytest.mark.parametrize(("family", "method"), [one for one in METHODS if CRITICAL not in one])
def test_code_sets_what_was_inspected(family: str, method: str, framework: Any) -> None:
    made = drawn(family, method)
    tensors = made.tensors()
    names = ("B_re", "B_im", "C_re", "C_im", "C")
    recurrent = {name: values for name, values in tensors.items() if name not in names}
    one, other = (
        inspect(of, horizon=50, spectra=True, simulate=False).layers[0]
        for of in (tensors, framework(made, recurrent))
    )
    assert other.eigenvalues.time_constant == one.eigenvalues.time_constant
    radii = [{of.name: of.spectral_radius for of in layer.hidden_spectra} for layer in (one, other)]
    assert radii[1] == pytest.approx(radii[0], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("s5", (1, 2)), "FAMILY"),
        (("lru", (1, 2), "chrono"), "--method"),
        (("gru", (0.5, 2)), "--memory"),
        (("mamba", (10, 1e8)), "float32"),
        (("s4d", (1, 2), None, 3.0), "--max-phase"),
        (("lru", (1, 2), None, 7.0), "--max-phase"),
    ],
)
def test_what_is_not_there_is_refused(arguments: Any, word: str) -> None:
    family, memory, method, phase = (*arguments, None, None)[:4]
    with pytest.raises(UsageError, match=word):
        recipe(family, memory, 8, method=method, max_phase=phase)
