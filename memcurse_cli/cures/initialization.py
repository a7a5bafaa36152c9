"""Initial recurrent parameters for the memory that a task needs, and the code that draws them.

Each family has one function that draws its tensors in its library's names, and the code to paste is
the source of that function: what a user runs is what was inspected.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.diagnosis.inspection import inspect as report_on
from memcurse_cli.diagnosis.settings import require_known
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import DrawnTensor, Initialization
from memcurse_cli.theory.mean_field import GRU_GATES, LSTM_GATES, GatedNetwork, gated_mean_field
from memcurse_cli.version import VERSION

Tensors = dict[str, NDArray[Any]]

SHORTEST, LONGEST = 0.1, 2**24
"""Memories in steps beyond which |λ| is nothing, or 1 in single precision."""

SHUT, OPEN = -10.0, 20.0
"""Biases of the gate that keeps the state, between which the critical one is looked for."""


def lru(
    random: np.random.Generator, units: int, low: float, high: float, max_phase: float
) -> dict[str, np.ndarray]:
    """The ring of Orvieto et al. (2023): λ uniform by area, exp(-1/low) <= |λ| <= exp(-1/high)."""
    lost, least = -np.expm1(-2 / low), -np.expm1(-2 / high)  # 1 - |λ|²
    share = random.uniform(size=units)
    decay = -0.5 * np.log1p(-(share * least + (1 - share) * lost))
    return {
        "nu_log": np.log(decay),
        "theta_log": np.log(max_phase * (1 - random.uniform(size=units))),
        "gamma_log": 0.5 * np.log(-np.expm1(-2 * decay)),  # γ = √(1-|λ|²)
    }


def s4d(
    random: np.random.Generator, units: int, low: float, high: float, inverse: bool
) -> dict[str, np.ndarray]:
    """S4D-Lin or S4D-Inv of Gu et al. (2022): A = -1/2 + iω, a memory of 2/Δ."""
    modes = np.arange(32)  # of 64 states in conjugate pairs
    omega = 64 / np.pi * (64 / (2 * modes + 1) - 1) if inverse else np.pi * modes
    memory = np.exp(random.uniform(np.log(low), np.log(high), units))
    return {
        "log_dt": np.log(2 / memory),
        "log_A_real": np.full((units, modes.size), np.log(0.5)),
        "A_imag": np.tile(omega, (units, 1)),
    }


def rg_lru(
    random: np.random.Generator, units: int, low: float, high: float
) -> dict[str, np.ndarray]:
    """λ = exp(-8 softplus(a_param) σ(a_gate.b)) of De et al. (2024), its gates half open."""
    memory = np.exp(random.uniform(np.log(low), np.log(high), units))
    return {
        "a_param": np.log(np.expm1(1 / (4 * memory))),  # softplus(a_param) = 1/(8 σ(0) memory)
        "a_gate.b": np.zeros(units),
        "input_gate.b": np.zeros(units),
    }


def mamba(
    random: np.random.Generator, units: int, low: float, high: float
) -> dict[str, np.ndarray]:
    """A = -1 … -16 of Gu & Dao (2023), and Δ = softplus(dt_proj.bias) = 1/memory of A = -1."""
    step = np.exp(-random.uniform(np.log(low), np.log(high), units))
    return {
        "A_log": np.log(np.tile(np.arange(1.0, 17.0), (units, 1))),
        "dt_proj.bias": step + np.log(-np.expm1(-step)),
    }


def cell(
    random: np.random.Generator,
    units: int,
    low: float,
    high: float,
    inputs: int,
    gates: str,
    keep: float | None,
) -> dict[str, np.ndarray]:
    """Chrono of Tallec & Ollivier (2018), f = 1 - 1/T; or one bias for all. Rows as in torch.

    b = log U(low - 1, high - 1) for the gate that keeps the state, -b for an LSTM's input gate.
    """
    chrono = np.log(random.uniform(low - 1, high - 1, units))
    bias = chrono if keep is None else np.full(units, keep)
    biases = {"f": bias, "i": -bias, "z": bias}
    reach, rows = 1 / np.sqrt(units), len(gates) * units
    return {
        "weight_ih_l0": random.uniform(-reach, reach, (rows, inputs)),
        "weight_hh_l0": random.uniform(-reach, reach, (rows, units)),
        "bias_ih_l0": np.concatenate([biases.get(gate, np.zeros(units)) for gate in gates]),
        "bias_hh_l0": np.zeros(rows),
    }


def _lru_matrices(random: np.random.Generator, units: int) -> Tensors:
    """B and C as Orvieto et al. draw them."""
    readin, readout = random.standard_normal((2, 2, units, units)) / math.sqrt(units)
    names = ("B_re", "B_im", "C_re", "C_im")
    return dict(zip(names, (*(readin / math.sqrt(2)), *readout), strict=True))


def _s4d_matrices(random: np.random.Generator, units: int) -> Tensors:
    """C as Gu et al. draw it; B is 1."""
    return {"C": random.standard_normal((units, 32, 2)) * math.sqrt(0.5)}


class Family(Struct, frozen=True):
    """How the layers of a family begin."""

    draw: Callable[..., Tensors]
    methods: Mapping[str, str]  # what each draws, in words, the default first
    shortest: float = SHORTEST
    matrices: Callable[[np.random.Generator, int], Tensors] | None = None


CHRONO, CRITICAL, INVERSE = "chrono", "critical", "inv"
GATED = {
    CHRONO: "gates open by f = 1 - 1/T, T uniform from LO to HI (Chrono)",
    CRITICAL: "every unit has the bias at which the mean field remembers HI steps",
}
_OF_DT = "a mode's memory 2/Δ log-uniform from LO to HI"
FAMILIES = {
    "lru": Family(
        lru,
        {"ring": "|λ| uniform by area from exp(-1/LO) to exp(-1/HI), γ = √(1-|λ|²)"},
        matrices=_lru_matrices,
    ),
    "s4d": Family(
        s4d, {"lin": f"S4D-Lin, {_OF_DT}", INVERSE: f"S4D-Inv, {_OF_DT}"}, matrices=_s4d_matrices
    ),
    "lstm": Family(cell, GATED, shortest=1),
    "gru": Family(cell, GATED, shortest=1),
    "rg_lru": Family(rg_lru, {"log": "memory at half-open gates log-uniform from LO to HI"}),
    "mamba": Family(
        mamba, {"log": "memory 1/Δ of A = -1 log-uniform from LO to HI; of A = -n, 1/n of that"}
    ),
}
ROWS = {"lstm": "ifgo", "gru": "rzn"}


class Recipe(Struct, frozen=True):
    """What is drawn."""

    family: str
    method: str
    seed: int
    arguments: Mapping[str, Any]  # of the family's function, beside the generator

    def tensors(self) -> Tensors:
        """The layer in single precision, with B and C where its usable rate rests on them."""
        family, random = FAMILIES[self.family], np.random.default_rng(self.seed)
        drawn = family.draw(random, **self.arguments)
        if family.matrices is not None:
            drawn |= family.matrices(random, self.arguments["units"])
        return {name: values.astype(np.float32) for name, values in drawn.items()}

    def code(self, framework: str) -> str:
        """Code that draws the recurrent parameters and sets them; of `FRAMEWORKS`."""
        draw = FAMILIES[self.family].draw
        arguments = [f"{name}={value!r}" for name, value in self.arguments.items()]
        call = f"{draw.__name__}(np.random.default_rng({self.seed}), {', '.join(arguments)})"
        imports, *lines = FRAMEWORKS[framework]
        if (framework, self.family) in CELLS:
            imports, lines = "", [*CELLS[framework, self.family]]
        head = ("import numpy as np", imports, "", inspect.getsource(draw), "", f"drawn = {call}")
        return "\n".join([*head, *lines])

    def inspected(self, horizon: int) -> Initialization:
        """The layer, and what `memcurse inspect` says of it at white noise of unit variance."""
        tensors = self.tensors()
        drawn = (
            DrawnTensor(name, values.shape, float(values.min()), float(values.max()))
            for name, values in tensors.items()
        )
        return Initialization(
            VERSION,
            self.family,
            self.method,
            FAMILIES[self.family].methods[self.method],
            (self.arguments["low"], self.arguments["high"]),
            self.seed,
            tuple(drawn),
            report_on(tensors, horizon=horizon, family=self.family),
        )


def recipe(
    family: str,
    memory: tuple[float, float],
    units: int,
    *,
    seed: int = 0,
    method: str | None = None,
    max_phase: float | None = None,
) -> Recipe:
    """What gives the units of a layer memories from LO to HI steps, -1/log|λ| each.

    Args:
        family: one of `FAMILIES`.
        memory: LO and HI.
        units: n; of an S4D channels of 32 modes, of a Mamba channels of 16 states.
        seed: of NumPy's generator.
        method: one of the family's, its first by default.
        max_phase: the largest angle of an LRU's λ in radians, 2π by default.

    Raises UsageError: an argument outside its domain.
    """
    known = FAMILIES[_known(family, FAMILIES, "FAMILY")]
    chosen = next(iter(known.methods)) if method is None else method
    _known(chosen, known.methods, "--method")
    low, high = memory
    if not known.shortest <= low < high <= LONGEST:
        raise UsageError(
            f"{family} has no memories from {low:g} to {high:g} steps",
            where="--memory",
            remedy=f"give LO:HI with {known.shortest:g} <= LO < HI <= {LONGEST:,}, beyond which "
            "|λ| is 1 in float32",
        )
    arguments: dict[str, Any] = {"units": units, "low": low, "high": high}
    if max_phase is not None and (family != "lru" or not 0 < max_phase <= 2 * math.pi):
        remedy = "give radians above 0, up to 2π, for lru"
        raise UsageError("out of range", where="--max-phase", remedy=remedy)
    if family == "lru":
        arguments["max_phase"] = 2 * math.pi if max_phase is None else max_phase
    elif family == "s4d":
        arguments["inverse"] = chosen == INVERSE
    elif family in ROWS:
        arguments |= {"inputs": units, "gates": ROWS[family], "keep": None}
        if chosen == CRITICAL:
            arguments["keep"] = _critical_bias(seed, arguments)
    return Recipe(family, chosen, seed, arguments)


def _known(name: str, known: Mapping[str, object], where: str) -> str:
    return str(require_known(name, known, where, f"give {' or '.join(known)}"))


def _critical_bias(seed: int, arguments: Mapping[str, Any]) -> float:
    """b at which the mean field's χ is exp(-2/HI): a change of the state fades in HI steps.

    χ is that of squares (Gilboa et al. 2019), and the weights are those that are drawn: with the
    gate shut they remember less than a step, so that there is one for every HI above 1.
    """
    from scipy.optimize import brentq

    gates = LSTM_GATES if arguments["gates"] == ROWS["lstm"] else GRU_GATES

    def excess(bias: float) -> float:
        drawn = cell(np.random.default_rng(seed), **{**arguments, "keep": bias})
        w, u, b, inner = (
            dict(zip(gates, np.split(values, len(gates)), strict=True)) for values in drawn.values()
        )
        field = gated_mean_field(GatedNetwork(u, w, b, inner.get("new")))
        assert field is not None, "what tanh bounds settles"
        return math.log(field.growth) + 2 / arguments["high"]

    return round(float(brentq(excess, SHUT, OPEN, xtol=1e-4)), 4)


# What is imported, and how what was drawn is set.
FRAMEWORKS = {
    "torch": (
        "import torch\n",
        "with torch.no_grad():  # layer: your module",
        "    for name, values in drawn.items():",
        "        parameter = layer.get_parameter(name)",
        "        parameter.copy_(torch.from_numpy(values).view_as(parameter))",
    ),
    "flax": (
        "from flax.traverse_util import flatten_dict, unflatten_dict\n",
        'flat = flatten_dict(params, sep=".")  # params: those of your module',
        "for name, values in drawn.items():",
        "    flat[name] = values.astype(np.float32).reshape(flat[name].shape)",
        'params = unflatten_dict(flat, sep=".")',
    ),
    "keras": (
        "",
        "for name, values in drawn.items():  # layer: your layer, built",
        '    end = "/" + name.replace(".", "/")',
        '    weight = next(one for one in layer.weights if f"/{one.path}".endswith(end))',
        "    weight.assign(values.reshape(weight.shape))",
    ),
}
_SPLIT = "shares = (np.split(values.astype(np.float32), {}) for values in drawn.values())"
CELLS = {
    ("flax", "lstm"): (
        "params = {}  # those of flax.linen.OptimizedLSTMCell",
        _SPLIT.format(4),
        'for gate, w, u, b, inner in zip("ifgo", *shares):',
        '    params[f"i{gate}"] = {"kernel": w.T}',
        '    params[f"h{gate}"] = {"kernel": u.T, "bias": b + inner}',
    ),
    ("flax", "gru"): (
        "params = {}  # those of flax.linen.GRUCell",
        _SPLIT.format(3),
        'for gate, w, u, b, inner in zip("rzn", *shares):',
        '    params[f"i{gate}"] = {"kernel": w.T, "bias": b}',
        '    params[f"h{gate}"] = {"kernel": u.T}',
        'params["hn"]["bias"] = inner',
    ),
    ("keras", "lstm"): (
        "w, u, b, inner = drawn.values()  # layer: your keras.layers.LSTM, built",
        "layer.set_weights([w.T, u.T, b + inner])",
    ),
    ("keras", "gru"): (
        "order = [1, 0, 2]  # Keras has z, r, n; layer: your keras.layers.GRU, built",
        "shares = (np.split(values, 3) for values in drawn.values())",
        "w, u, b, inner = (np.concatenate([share[row] for row in order]) for share in shares)",
        "layer.set_weights([w.T, u.T, np.stack([b, inner])])",
    ),
}
