"""Recurrent layers and stacks of them as pure functions of their checkpoint tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.calibration.setups import NETWORKS as LINEAR
from memcurse_cli.experiments.training import (
    InitialValues,
    LinearNetwork,
    Parameters,
    causal_convolution,
    ring_eigenvalues,
)

MODES = 8
"""How many complex modes a channel of S4D has."""


@dataclass(frozen=True)
class Start:
    """How hidden matrices and gates begin.

    Attributes:
        orthogonal: hidden matrices are, and biases zero; else all is uniform in ±1/√n as in torch.
        forget_bias: what the gate that keeps the state gets as its bias; None leaves it as it is.
        gain: what hidden matrices are multiplied by.
        modulus: the smallest |λ| of an LRU.
    """

    orthogonal: bool = False
    forget_bias: float | None = None
    gain: float = 1.0
    modulus: float = 0.9


class RecurrentLayer(ABC):
    """``h[t] = F(h[t-1], x[t])`` from a zero state, and what is read from it."""

    diagonal = False  # whether no unit sees another
    prefixed = True  # whether its tensors' names are those of a module; else torch's with _l0

    @abstractmethod
    def initialise(
        self, random: np.random.Generator, width: int, units: int, start: Start
    ) -> InitialValues:
        """Initial values by the names within the layer."""

    @abstractmethod
    def begin(self, parameters: Parameters, batch: int) -> Array:
        """(batch, order) zeros."""

    @abstractmethod
    def project(self, parameters: Parameters, inputs: Array) -> Array:
        """What (..., width) inputs give a step."""

    @abstractmethod
    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        """The next state."""

    def shown(self, state: Array) -> Array:
        """The part of the state that the layer puts out."""
        return state

    def read(self, parameters: Parameters, shown: Array, inputs: Array) -> Array:
        """The layer's output."""
        return shown

    def recurrent(self, names: Mapping[str, Any]) -> list[str]:
        """The tensors that move the recurrence, which are all of a gated one."""
        return list(names)

    def states(self, parameters: Parameters, inputs: Array) -> Array:
        """(batch, T, n) what is shown at every step of (batch, T, width) inputs."""
        given = jnp.moveaxis(self.project(parameters, inputs), 1, 0)

        def advance(state: Array, now: Array) -> tuple[Array, Array]:
            state = self.step(parameters, state, now)
            return state, self.shown(state)

        _, shown = jax.lax.scan(advance, self.begin(parameters, len(inputs)), given)
        return jnp.moveaxis(shown, 0, 1)


class TorchCell(RecurrentLayer):
    """weight_ih (g n, width), weight_hh (g n, n) and both biases (g n,) of `torch.nn`."""

    prefixed = False
    gates: int
    keeping: int | None = None  # which of the gates keeps the state

    def initialise(
        self, random: np.random.Generator, width: int, units: int, start: Start
    ) -> InitialValues:
        limit = 1 / np.sqrt(units)
        rows = self.gates * units
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, width),
            "weight_hh": (rows, units),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
        }
        drawn = {name: random.uniform(-limit, limit, shape) for name, shape in shapes.items()}
        if start.orthogonal:
            square = random.standard_normal((self.gates, units, units))
            drawn["weight_hh"] = np.linalg.qr(square)[0].reshape(rows, units)
            drawn["bias_ih"], drawn["bias_hh"] = np.zeros(rows), np.zeros(rows)
        drawn["weight_hh"] *= start.gain
        if start.forget_bias is not None and self.keeping is not None:
            keeping = slice(self.keeping * units, (self.keeping + 1) * units)
            drawn["bias_ih"][keeping], drawn["bias_hh"][keeping] = start.forget_bias, 0.0
        return drawn

    def begin(self, parameters: Parameters, batch: int) -> Array:
        hidden = parameters["weight_hh"]
        return jnp.zeros((batch, hidden.shape[1]), hidden.dtype)

    def project(self, parameters: Parameters, inputs: Array) -> Array:
        return inputs @ parameters["weight_ih"].T + parameters["bias_ih"]

    def _from_state(self, parameters: Parameters, state: Array) -> Array:
        return state @ parameters["weight_hh"].T + parameters["bias_hh"]


@dataclass(frozen=True)
class TanhRNN(TorchCell):
    """`torch.nn.RNN`."""

    gates = 1

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        return jnp.tanh(given + self._from_state(parameters, state))


@dataclass(frozen=True)
class GRU(TorchCell):
    """`torch.nn.GRU`, rows r, z, n; z keeps."""

    gates, keeping = 3, 1

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        units = state.shape[1]
        fed_back = self._from_state(parameters, state)
        gates = jax.nn.sigmoid(given[:, : 2 * units] + fed_back[:, : 2 * units])
        reset, update = gates[:, :units], gates[:, units:]
        candidate = jnp.tanh(given[:, 2 * units :] + reset * fed_back[:, 2 * units :])
        return (1 - update) * candidate + update * state


@dataclass(frozen=True)
class LSTM(TorchCell):
    """`torch.nn.LSTM`, rows i, f, g, o; the state is h and c side by side."""

    gates, keeping = 4, 1

    def begin(self, parameters: Parameters, batch: int) -> Array:
        hidden = parameters["weight_hh"]
        return jnp.zeros((batch, 2 * hidden.shape[1]), hidden.dtype)

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        hidden, cell = jnp.split(state, 2, axis=1)
        raw = given + self._from_state(parameters, hidden)
        units = hidden.shape[1]
        write, keep = jnp.split(jax.nn.sigmoid(raw[:, : 2 * units]), 2, axis=1)
        cell = keep * cell + write * jnp.tanh(raw[:, 2 * units : 3 * units])
        hidden = jax.nn.sigmoid(raw[:, 3 * units :]) * jnp.tanh(cell)
        return jnp.concatenate([hidden, cell], axis=1)

    def shown(self, state: Array) -> Array:
        return state[:, : state.shape[1] // 2]


@dataclass(frozen=True)
class MinGRU(RecurrentLayer):
    """``h[t] = (1 - z) h[t-1] + z (W_h x + b_h)``, ``z = σ(W_z x + b_z)``; Feng et al. 2024."""

    diagonal = True

    def initialise(
        self, random: np.random.Generator, width: int, units: int, start: Start
    ) -> InitialValues:
        limit = 1 / np.sqrt(width)
        drawn = {}
        for gate in ("linear_z", "linear_h"):
            drawn[f"{gate}.weight"] = random.uniform(-limit, limit, (units, width))
            drawn[f"{gate}.bias"] = random.uniform(-limit, limit, units)
        if start.forget_bias is not None:
            drawn["linear_z.bias"][:] = -start.forget_bias
        drawn["linear_z.weight"] *= start.gain
        return drawn

    def begin(self, parameters: Parameters, batch: int) -> Array:
        bias = parameters["linear_z.bias"]
        return jnp.zeros((batch, *bias.shape), bias.dtype)

    def project(self, parameters: Parameters, inputs: Array) -> Array:
        gates = (
            inputs @ parameters[f"{gate}.weight"].T + parameters[f"{gate}.bias"]
            for gate in ("linear_z", "linear_h")
        )
        return jnp.concatenate([*gates], axis=-1)

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        raw, candidate = jnp.split(given, 2, axis=1)
        write = jax.nn.sigmoid(raw)
        return (1 - write) * state + write * candidate


@dataclass(frozen=True)
class LRU(RecurrentLayer):
    """minimal-LRU: ``h[t] = λ h[t-1] + γ B x[t]``, ``y = Re[C h] + D x``."""

    diagonal = True

    def initialise(
        self, random: np.random.Generator, width: int, units: int, start: Start
    ) -> InitialValues:
        eigenvalues = ring_eigenvalues(random, units, start.modulus)
        decay = -np.log(np.abs(eigenvalues))
        return {
            "nu_log": np.log(decay),
            "theta_log": np.log(np.angle(eigenvalues)),
            "gamma_log": 0.5 * np.log(-np.expm1(-2 * decay)),
            "B_re": random.standard_normal((units, width)) / np.sqrt(2 * width),
            "B_im": random.standard_normal((units, width)) / np.sqrt(2 * width),
            "C_re": random.standard_normal((width, units)) / np.sqrt(units),
            "C_im": random.standard_normal((width, units)) / np.sqrt(units),
            "D": random.standard_normal(width),
        }

    def begin(self, parameters: Parameters, batch: int) -> Array:
        return jnp.zeros((batch, *parameters["nu_log"].shape), jnp.complex64)

    def project(self, parameters: Parameters, inputs: Array) -> Array:
        gain = jnp.exp(parameters["gamma_log"])
        real, imag = (inputs @ parameters[name].T * gain for name in ("B_re", "B_im"))
        return jax.lax.complex(real, imag)

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        decay, angle = jnp.exp(parameters["nu_log"]), jnp.exp(parameters["theta_log"])
        return jnp.exp(-decay + 1j * angle) * state + given

    def read(self, parameters: Parameters, shown: Array, inputs: Array) -> Array:
        heard = shown.real @ parameters["C_re"].T - shown.imag @ parameters["C_im"].T
        return heard + parameters["D"] * inputs

    def recurrent(self, names: Mapping[str, Any]) -> list[str]:
        return [name for name in names if name.endswith("_log")]


@dataclass(frozen=True)
class S4D(RecurrentLayer):
    """The minimal S4D of state-spaces/s4: a system of `MODES` for every channel, zero-order hold.

    ``units`` are channels; inputs and outputs are as wide.
    """

    diagonal = True

    def initialise(
        self, random: np.random.Generator, width: int, units: int, start: Start
    ) -> InitialValues:
        assert width == units
        return {
            "log_dt": random.uniform(np.log(1e-3), np.log(1e-1), units),
            "log_A_real": np.full((units, MODES), np.log(0.5)),
            "A_imag": np.tile(np.pi * np.arange(MODES), (units, 1)),
            "C": random.standard_normal((units, MODES, 2)) * np.sqrt(0.5),
            "D": random.standard_normal(units),
        }

    def _logarithms(self, parameters: Parameters) -> tuple[Array, Array]:
        """log λ and A, each (channels, modes)."""
        rate = -jnp.exp(parameters["log_A_real"]) + 1j * parameters["A_imag"]
        return jnp.exp(parameters["log_dt"])[:, None] * rate, rate

    def begin(self, parameters: Parameters, batch: int) -> Array:
        return jnp.zeros((batch, parameters["A_imag"].size), jnp.complex64)

    def project(self, parameters: Parameters, inputs: Array) -> Array:
        logarithm, rate = self._logarithms(parameters)
        driven = inputs[..., None] * ((jnp.exp(logarithm) - 1) / rate)
        return driven.reshape(*inputs.shape[:-1], rate.size)

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        return jnp.exp(self._logarithms(parameters)[0]).ravel() * state + given

    def read(self, parameters: Parameters, shown: Array, inputs: Array) -> Array:
        """The convolution with ``2 Re Σ C λ^t B̄``, which trains faster than states do."""
        logarithm, rate = self._logarithms(parameters)
        read = jax.lax.complex(parameters["C"][..., 0], parameters["C"][..., 1])
        weights = read * (jnp.exp(logarithm) - 1) / rate
        powers = jnp.exp(logarithm[..., None] * jnp.arange(inputs.shape[1]))
        kernel = 2 * jnp.einsum("cm,cmt->ct", weights, powers).real
        heard = jax.vmap(causal_convolution, (0, -1), -1)(kernel, inputs)
        return heard + parameters["D"] * inputs

    def recurrent(self, names: Mapping[str, Any]) -> list[str]:
        return ["log_dt", "log_A_real", "A_imag"]


@dataclass(frozen=True)
class LinearStudent(RecurrentLayer):
    """A single-channel student of the linear sweep, run step by step; its output is the network's.

    It trains as the impulse response that `LinearNetwork` has, which is faster.
    """

    kind: str

    @property
    def network(self) -> LinearNetwork:
        """What it is trained as."""
        return LINEAR[self.kind]  # type: ignore[return-value]

    @property
    def diagonal(self) -> bool:  # type: ignore[override]
        """As `RecurrentLayer` has it."""
        return self.kind in ("complex diagonal", "LRU", "S4D")

    def initialise(
        self, random: np.random.Generator, width: int, units: int, start: Start
    ) -> InitialValues:
        return self.network.initialise(random, units, start.modulus)

    def begin(self, parameters: Parameters, batch: int) -> Array:
        _, readin, readout = self.network.system(parameters)
        return jnp.zeros((batch, readin.size), jnp.result_type(readin, readout))

    def project(self, parameters: Parameters, inputs: Array) -> Array:
        return inputs * self.network.system(parameters)[1]

    def step(self, parameters: Parameters, state: Array, given: Array) -> Array:
        transition = self.network.system(parameters)[0]
        if transition.ndim == 1:
            return transition * state + given
        if transition.ndim == 2:
            return state @ transition.T + given
        apart = state.reshape(len(state), *transition.shape[:2])
        return jnp.einsum("hij,bhj->bhi", transition, apart).reshape(state.shape) + given

    def read(self, parameters: Parameters, shown: Array, inputs: Array) -> Array:
        readout = self.network.system(parameters)[2]
        return (shown @ readout).real[..., None] + parameters["D"].ravel()[0] * inputs

    def recurrent(self, names: Mapping[str, Any]) -> list[str]:
        return [name for name in names if name.partition("_")[0] not in "BCD"]


LAYERS: dict[str, RecurrentLayer] = {
    "tanh": TanhRNN(),
    "GRU": GRU(),
    "LSTM": LSTM(),
    "minGRU": MinGRU(),
    "LRU stack": LRU(),
    "S4D stack": S4D(),
    **{kind: LinearStudent(kind) for kind in LINEAR},
}


@dataclass(frozen=True)
class Stack:
    """Recurrent layers on one another, and a linear head.

    Attributes:
        layer: the kind of all of them.
        layers: how many.
        units: of each, and of what lies between them.
        in_features: how wide the task's inputs are.
        out_features: how wide its outputs.
        block: which of ``norm``, ``glu`` and ``skip`` stand around each layer, behind a linear
            encoder.
        start: how it begins.
    """

    layer: RecurrentLayer
    layers: int
    units: int
    in_features: int
    out_features: int
    block: tuple[str, ...] = ()
    start: Start = field(default_factory=Start)

    @property
    def encoded(self) -> bool:
        """Whether the first layer sees an encoding."""
        return bool(self.block) or isinstance(self.layer, (LRU, S4D))

    def width(self, index: int) -> int:
        """How wide the inputs of a layer are."""
        return self.units if index or self.encoded else self.in_features

    @property
    def headed(self) -> bool:
        """Whether a linear head reads the last layer."""
        return not isinstance(self.layer, LinearStudent)

    def _affixes(self, index: int) -> tuple[str, str]:
        """What stands before and after a tensor's name within its layer."""
        apart = self.encoded or (self.layers > 1 and self.layer.prefixed)
        module = f"layers.{index}.rnn." if apart else ""
        return module, "" if self.layer.prefixed else f"_l{0 if apart else index}"

    def names(self, index: int, parameters: Mapping[str, Any]) -> dict[str, str]:
        """What the tensors of a layer are called in the checkpoint, by their names within it."""
        before, after = self._affixes(index)
        return {
            name.removeprefix(before).removesuffix(after): name
            for name in parameters
            if name.startswith(before) and name.endswith(after) and not name.startswith("head.")
        }

    def of_layer(self, index: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a layer by their names within it."""
        return {name: parameters[full] for name, full in self.names(index, parameters).items()}

    def recurrent(self, parameters: Mapping[str, Any]) -> list[str]:
        """What the recurrent tensors of all layers are called in the checkpoint."""
        of_layers = (self.names(index, parameters) for index in range(self.layers))
        return [names[name] for names in of_layers for name in self.layer.recurrent(names)]

    def initialise(self, random: np.random.Generator) -> InitialValues:
        """Initial values by their names in the checkpoint."""

        def linear(name: str, rows: int, columns: int) -> InitialValues:
            limit = 1 / np.sqrt(columns)
            return {
                f"{name}.weight": random.uniform(-limit, limit, (rows, columns)),
                f"{name}.bias": random.uniform(-limit, limit, rows),
            }

        drawn = linear("encoder", self.units, self.in_features) if self.encoded else {}
        for index in range(self.layers):
            before, after = self._affixes(index)
            own = self.layer.initialise(random, self.width(index), self.units, self.start)
            drawn |= {before + name + after: value for name, value in own.items()}
            if "norm" in self.block:
                drawn[f"layers.{index}.norm.weight"] = np.ones(self.units)
                drawn[f"layers.{index}.norm.bias"] = np.zeros(self.units)
            if "glu" in self.block:
                drawn |= linear(f"layers.{index}.glu", 2 * self.units, self.units)
        return drawn | (linear("head", self.out_features, self.units) if self.headed else {})

    def run(self, parameters: Parameters, inputs: Array) -> tuple[Array, list[Array]]:
        """(batch, T, outputs) of (batch, T, inputs), and what every layer's state shows."""
        states = []
        passed = _linear(parameters, "encoder", inputs) if self.encoded else inputs
        for index in range(self.layers):
            own, given = self.of_layer(index, parameters), passed
            if "norm" in self.block:
                away = given - given.mean(axis=-1, keepdims=True)
                given = away * jax.lax.rsqrt(jnp.mean(away**2, axis=-1, keepdims=True) + 1e-5)
                name = f"layers.{index}.norm"
                given = given * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]
            states.append(self.layer.states(own, given))
            put_out = self.layer.read(own, states[-1], given)
            if "glu" in self.block:
                halves = _linear(parameters, f"layers.{index}.glu", jax.nn.gelu(put_out))
                value, gate = jnp.split(halves, 2, axis=-1)
                put_out = value * jax.nn.sigmoid(gate)
            elif isinstance(self.layer, (LRU, S4D)):
                put_out = jax.nn.gelu(put_out)  # what would otherwise be linear from end to end
            passed = passed + put_out if "skip" in self.block else put_out
        return _linear(parameters, "head", passed) if self.headed else passed, states

    def outputs(self, parameters: Parameters, inputs: Array) -> Array:
        """(batch, T, outputs) of (batch, T, inputs)."""
        return self.run(parameters, inputs)[0]


def _linear(parameters: Parameters, name: str, inputs: Array) -> Array:
    return inputs @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
