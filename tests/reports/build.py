"""Reports to show: of small state dicts, or made by hand where a test chooses the figures."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from safetensors.numpy import load_file

from memcurse_cli import inspect
from memcurse_cli.schema.figures import (
    ORDER,
    TIME_CONSTANT_EDGES,
    Component,
    Direction,
    EigenvalueSummary,
    ParameterSummary,
    Quantiles,
    Rounding,
    StateSummary,
)
from memcurse_cli.schema.report import (
    Action,
    CheckpointSummary,
    Finding,
    InputAssumption,
    LayerReport,
    NotRecurrent,
    Report,
    SkippedLayer,
    known_rate,
    longest_memory,
    rate_verdict,
    smallest_rate,
)

SAMPLES = Path(__file__).parents[2] / "sample_checkpoints"
LEARNING_RATE = 1e-3
EPSILONS = (2.0**-8, 2.0**-11, 2.0**-24, 1 / 254, 2.0**-4, 2.0**-3)
HOSTILE = "evil\x1b[31m[bold red]\x07\r\n\u202egpj.\ud800" + "Ω漢字" * 40 + "[/]"


def quantiles(values: list[float]) -> Quantiles:
    """Nearest-rank quantiles; infinite elements are counted."""
    ordered, levels = sorted(values), (0, 0.5, 0.9, 0.99, 1)
    found = (ordered[round(level * (len(ordered) - 1))] for level in levels)
    shown = (None if math.isinf(one) else one for one in found)
    return Quantiles(*shown, divergent=sum(map(math.isinf, ordered)))


def parameter(
    name: str, effect: float | None, direction: Direction = "scaling", *, tensor: str | None = None
) -> ParameterSummary:
    """A group with this step effect at a learning rate of 1e-3; None diverges."""
    root = math.inf if effect is None else effect / LEARNING_RATE
    errors = [None if effect is None else root * bits / math.sqrt(3) for bits in EPSILONS]
    return ParameterSummary(
        name=name,
        tensor=tensor or name,
        size=64,
        dtype="float32",
        sensitivity=quantiles([3 * root**2]),
        relative_sensitivity=quantiles([root**2]),
        step_effect=effect,
        learning_rate=LEARNING_RATE,
        direction=direction,
        rounding=Rounding(*errors),
    )


def layer(
    name: str,
    family: str,
    time_constants: list[float],
    parameters: list[ParameterSummary],
    findings: tuple[Finding, ...] = (),
    *,
    usable: float | None = None,
) -> LayerReport:
    """A diagonal layer, unstable where τ is infinite, judged where its usable rate is known."""
    rate = None if usable is None else known_rate(usable, "divergence")
    count, finite = len(time_constants), [one for one in time_constants if one < math.inf]
    bins = [0, *TIME_CONSTANT_EDGES, math.inf]
    return LayerReport(
        name=name,
        family=family,
        tensors=tuple(f"{name}.{one.tensor}" for one in parameters),
        input_dependent=False,
        stable_by_construction=False,
        assumptions=(),
        eigenvalues=EigenvalueSummary(
            count=count,
            multiplicity=1,
            unstable=count - len(finite),
            modulus=quantiles(
                [math.exp(-1 / one) for one in finite] + [1.01] * (count - len(finite))
            ),
            time_constant=quantiles(time_constants),
            angle=quantiles([0.1 * index for index in range(count)]),
            time_constant_histogram=tuple(np.histogram(finite, bins)[0].tolist()),
        ),
        state=StateSummary(quantiles([one / 2 for one in time_constants])),
        parameters=tuple(parameters),
        hessian=None,
        hessian_reason="the checkpoint has no readout of this layer",
        dense=None,
        verdict=rate_verdict(rate, LEARNING_RATE),
        learning_rate=LEARNING_RATE,
        memory=longest_memory(None if one == math.inf else one for one in time_constants),
        findings=findings,
        usable_rate=rate,
        not_judged=None if rate else "its readout is not in the checkpoint",
    )


def report(*layers: LayerReport, **changes: Any) -> Report:
    """A report on some layers, with the fields given changed."""
    made = Report(
        version="0.2.0",
        checkpoint=CheckpointSummary("model.safetensors", "safetensors", 1_234_567, 34, 12_345),
        input=InputAssumption((Component(1.0, 0.0),), None, None, LEARNING_RATE),
        device="cpu",
        verdict=max((one.verdict for one in layers), key=ORDER.index, default="ok"),
        sentence="Training bears a rate of about 0.003.",
        usable_rate=smallest_rate(one.usable_rate for one in layers),
        memory=longest_memory(one.memory for one in layers),
        findings=(),
        actions=(),
        layers=layers,
    )
    return replace(made, **changes)


def lru_layers(count: int, size: int, *, shift: float = 0.0) -> dict[str, Any]:
    """The state of so many LRU layers; ``shift`` is added to every nu_log."""
    random = np.random.default_rng(0)
    ranges = {"nu_log": (-8, 0), "theta_log": (-3, 1), "gamma_log": (-3, 0)}
    return {
        f"layers.{index}.lru.{name}": random.uniform(*ends, size) + shift * (name == "nu_log")
        for index in range(count)
        for name, ends in ranges.items()
    }


def sample(name: str, prefix: str) -> dict[str, Any]:
    """The state of a sample checkpoint as a layer of this name."""
    state = load_file(SAMPLES / f"{name}.safetensors")
    return {f"{prefix}.{key}": value for key, value in state.items()}


@cache
def four_families() -> Report:
    """A calm GRU, an LRU, a complex diagonal and a dense layer."""
    names = {"dense_linear_rnn": "rnn", "complex_diagonal_rnn": "complex", "lru": "encoder.0"}
    state = sample("gru", "gru")
    for name, prefix in names.items():
        state |= sample(name, prefix)
    return inspect(state)


@cache
def divergent() -> Report:
    """Unstable eigenvalues over an infinite sequence, and a layer that could not be read."""
    state = sample("complex_diagonal_rnn", "decoder.rnn") | sample("lru", "broken")
    state["decoder.rnn.A_re"] = np.full_like(state["decoder.rnn.A_re"], 1.01)
    state["broken.nu_log"] = np.full_like(state["broken.nu_log"], np.nan)
    return inspect(state)


@cache
def hybrid() -> Report:
    """A stack of which every fourth layer is attention, and two recurrent layers forget at once."""
    placed = {}
    for name, values in lru_layers(36, 32).items():
        _, index, role = name.split(".", 2)
        placed[f"layers.{int(index) + int(index) // 3}.{role}"] = values
    for layer in (17, 29):
        placed[f"layers.{layer}.lru.nu_log"] = np.full(32, 0.5)
    attention = tuple(f"layers.{index}.self_attn" for index in range(3, 48, 4))
    made = inspect(placed, horizon=4096)
    return replace(made, not_recurrent=(NotRecurrent("attention", 12, attention),))


@cache
def many_layers() -> Report:
    """A deep model whose layers look alike, under a mixed input and a finite horizon."""
    made = inspect(lru_layers(64, 32), autocorrelation="0.332:0,0.044:0.997", horizon=2048)
    attention = NotRecurrent("attention", 8, tuple(f"layers.{64 + k}.self_attn" for k in range(3)))
    return replace(made, not_recurrent=(attention,))


def hostile() -> Report:
    """Names that try to steer the terminal or the markup."""
    kind = "[link=https://example.org]lru[/link]"
    found = Finding("MC202", "warning", f"a step on {HOSTILE}", HOSTILE, "")
    group = parameter(HOSTILE, 3.0, "destabilising")
    return report(
        layer(HOSTILE, kind, [8.0, 900.0], [group], (found,)),
        checkpoint=CheckpointSummary(f"/data/{HOSTILE}.pt", "torch", 0, 1, 0),
        skipped=(SkippedLayer(HOSTILE, "gru", f"{HOSTILE}: holds nan"),),
        not_recurrent=(NotRecurrent("attention", 1, (HOSTILE,)),),
        sentence=f"One Adam step on `{HOSTILE}` moves everything.",
        actions=(Action(f"train {HOSTILE} less", f"memcurse inspect '/data/{HOSTILE}.pt'"),),
    )
