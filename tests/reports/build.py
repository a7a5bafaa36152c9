"""Reports made by hand: every shape that a checkpoint can give, without a checkpoint."""

from __future__ import annotations

import bisect
import math
from dataclasses import replace

from memcurse_cli.schema.figures import (
    TIME_CONSTANT_EDGES,
    Direction,
    EigenvalueSummary,
    HessianSummary,
    ParameterSummary,
    Quantiles,
    Rounding,
    StateSummary,
    Verdict,
)
from memcurse_cli.schema.layer import (
    DenseStructure,
    DenseSummary,
    GateAtWork,
    GatedOperatingPoint,
    HiddenSpectrum,
    StateAtWork,
)
from memcurse_cli.schema.report import (
    CheckpointSummary,
    Finding,
    InputAssumption,
    LayerReport,
    NotRecurrent,
    Report,
    Severity,
    SkippedLayer,
)

LEARNING_RATE = 1e-3
CONDITIONS = Quantiles(1.0, 4.4, 31.0, 160.0, 812.0)


def quantiles(values: list[float]) -> Quantiles:
    """Nearest-rank quantiles; infinite elements are counted."""
    ordered = sorted(values)

    def at(level: float) -> float | None:
        value = ordered[round(level * (len(ordered) - 1))]
        return None if math.isinf(value) else value

    divergent = sum(map(math.isinf, ordered))
    return Quantiles(at(0), at(0.5), at(0.9), at(0.99), at(1), divergent)


def eigenvalues(time_constants: list[float], multiplicity: int = 1) -> EigenvalueSummary:
    """The summary of a spectrum with these time constants; an infinite one is unstable."""
    histogram = [0] * (len(TIME_CONSTANT_EDGES) + 1)
    for time_constant in time_constants:
        if not math.isinf(time_constant):
            histogram[bisect.bisect_right(TIME_CONSTANT_EDGES, time_constant)] += 1
    moduli = [1.01 if math.isinf(one) else math.exp(-1 / one) for one in time_constants]
    return EigenvalueSummary(
        count=len(time_constants),
        multiplicity=multiplicity,
        unstable=sum(map(math.isinf, time_constants)),
        modulus=quantiles(moduli),
        time_constant=quantiles(time_constants),
        angle=quantiles([0.1 * index for index in range(len(time_constants))]),
        time_constant_histogram=tuple(histogram),
    )


def parameter(
    name: str,
    effect: float | None,
    direction: Direction = "scaling",
    *,
    size: int = 64,
    tensor: str | None = None,
) -> ParameterSummary:
    """A group with this step effect at a learning rate of 1e-3; None diverges."""
    relative = math.inf if effect is None else (effect / LEARNING_RATE) ** 2
    verdict: Verdict = "ok"
    if effect is None or effect > 1:
        verdict = "watch" if direction == "decorrelating" else "cursed"
    elif effect > 0.1:
        verdict = "watch"
    root = math.sqrt(relative)
    errors = [None if effect is None else root * bits / math.sqrt(3) for bits in EPSILONS]
    return ParameterSummary(
        name=name,
        tensor=tensor or name,
        size=size,
        dtype="float32",
        sensitivity=quantiles([relative * 3] * size),
        relative_sensitivity=quantiles([relative] * size),
        step_effect=effect,
        max_lr=1 / root if 0 < root < math.inf else None,
        direction=direction,
        rounding=Rounding(*errors),
        verdict=verdict,
    )


def finding(code: str, message: str, severity: Severity = "warning") -> Finding:
    """With advice and a source that say no more than that they are there."""
    advice = "reparametrise it, or stay below a learning rate of 2e-4"
    return Finding(code, severity, message, advice, "Zucchet & Orvieto 2024, section 3")


EPSILONS = (2.0**-8, 2.0**-11, 2.0**-24, 1 / 254, 2.0**-4, 2.0**-3)


def layer(
    name: str,
    family: str,
    time_constants: list[float],
    parameters: list[ParameterSummary],
    findings: tuple[Finding, ...] = (),
) -> LayerReport:
    """A diagonal layer; its verdict is that of its worst group."""
    order: list[Verdict] = ["ok", "watch", "cursed"]
    return LayerReport(
        name=name,
        family=family,
        tensors=tuple(f"{name}.{one.tensor}" for one in parameters),
        input_dependent=False,
        stable_by_construction=False,
        assumptions=(),
        eigenvalues=eigenvalues(time_constants),
        state=StateSummary(quantiles([one / 2 for one in time_constants])),
        parameters=tuple(parameters),
        hessian=None,
        hessian_reason="the checkpoint has no readout of this layer",
        dense=None,
        verdict=max((one.verdict for one in parameters), key=order.index, default="ok"),
        findings=findings,
    )


def spread(count: int, low: float, high: float) -> list[float]:
    """Time constants that are evenly spread on a log scale."""
    return [low * (high / low) ** (index / (count - 1)) for index in range(count)]


def lru(name: str = "encoder.layers.0.lru", scale: float = 1.0) -> LayerReport:
    """Calm moduli, angles to be watched, and a Hessian."""
    made = layer(
        name,
        "lru",
        spread(64, 8, 900 * scale),
        [
            parameter("nu_log", 6.9e-4, size=64),
            parameter("theta_log", 0.43 * scale, "decorrelating", size=64),
            parameter("gamma_log", 1e-3, size=64),
        ],
        (
            finding(
                "MC202",
                f"one step at 0.001 on theta_log moves the state by {43 * scale:.3g} % by turning "
                "its angle: it scrambles what the state holds and takes no |λ| past 1",
            ),
        ),
    )
    return replace(
        made,
        stable_by_construction=True,
        assumptions=("the input of each state is normalised by gamma_log",),
        hessian=HessianSummary(128, 0.83, 4.2e5 * scale, 4.8e-6 / scale, 3.1, 1.9, 0.31),
        hessian_reason=None,
    )


def complex_diagonal(name: str = "rnn") -> LayerReport:
    """A cursed layer: nothing keeps its moduli inside the unit disk."""
    return layer(
        name,
        "complex-diagonal",
        spread(32, 20, 1000),
        [
            parameter("lambda_re", 2.24, "destabilising", size=32),
            parameter("lambda_im", 1.31, "destabilising", size=32),
        ],
        (
            finding(
                "MC201",
                "one step at 0.001 on lambda_re moves the state by 224 % and can leave the unit "
                "disk",
                "error",
            ),
            finding(
                "MC201",
                "one step at 0.001 on lambda_im moves the state by 131 % and can leave the unit "
                "disk",
                "error",
            ),
        ),
    )


def unstable(name: str = "decoder.rnn") -> LayerReport:
    """A layer whose figures diverge."""
    return layer(
        name,
        "complex-diagonal",
        [*spread(30, 3, 4e6), math.inf, math.inf],
        [parameter("lambda_re", None, "destabilising", size=32)],
        (
            finding(
                "MC101",
                "2 of 32 eigenvalues have |λ| >= 1, the largest |λ| = 1.01; over an infinite "
                "sequence the state and its sensitivities diverge",
                "error",
            ),
        ),
    )


def dense(name: str = "rnn.weight_hh_l0") -> LayerReport:
    """A dense matrix with its own scores."""
    made = layer(
        name,
        "elman",
        spread(64, 0.3, 240),
        [parameter("weight_hh_l0", 14.2, "destabilising", size=4096)],
        (
            finding(
                "MC303",
                "the matrix has eigenvectors of condition 5320 (departure from normality 34.5 %): "
                "the state can grow before it decays, and eigenvalues alone understate the "
                "sensitivity",
            ),
        ),
    )
    return replace(
        made,
        dense=DenseSummary(
            5320.0,
            0.345,
            8.4e6,
            2.1e5,
            610.0,
            "tanh",
            structure=DenseStructure(1.04, 0.023, -0.063, CONDITIONS, 34.2, 17, 8.9),
        ),
        hessian_reason="its order of 1024² is beyond the 512² that it is taken up to",
        assumptions=("the activation is tanh, linearised with slope 1",),
    )


def gru(name: str = "gru", tau: float = 40.0) -> LayerReport:
    """A calm gate."""
    made = layer(name, "gru", spread(64, 1.1, tau), [parameter("bias_hh_l0[z]", 4e-4)])
    return replace(
        made,
        input_dependent=True,
        stable_by_construction=True,
        assumptions=("the update gate stands at its bias (zero input)",),
    )


def hidden(name: str, radius: float, order: int = 64) -> HiddenSpectrum:
    """A matrix with this spectral radius."""
    time_constant = None if radius >= 1 else -1 / math.log(radius)
    return HiddenSpectrum(name, order, radius, int(radius >= 1), time_constant)


def gru_with_spectra(name: str, radius: float) -> LayerReport:
    """A gate whose hidden weights were read: the Jacobian has this spectral radius."""
    return replace(
        gru(name),
        hidden_feedback=True,
        hidden_spectra=(
            hidden("reset", 0.8),
            hidden("update", 1.87),
            hidden("new", 2.88),
            hidden("jacobian", radius),
        ),
        findings=(
            finding(
                "MC503",
                "with the hidden weights the longest time constant near the zero state is "
                f"{-1 / math.log(radius):.3g} steps, against 40 of the gates alone",
            ),
        ),
    )


def at_work(second_moment: float, growth: float, error: float | None = None) -> StateAtWork:
    """A state under random inputs."""
    gates = (GateAtWork("update", 0.49, 0.15), GateAtWork("reset", 0.53, 0.13))
    time_constant = -2 / math.log(growth) if growth < 1 else None
    return StateAtWork(second_moment, gates, growth, error, time_constant)


def hidden_weights() -> Report:
    """Gated layers with their hidden spectra, one of them without its Jacobian."""
    large = replace(
        gru("decoder.l1"),
        hidden_feedback=True,
        hidden_spectra=(hidden("reset", 1.2, 2048),),
        hidden_spectra_reason="a Jacobian of order 2048 costs more than all gates, so those above "
        "1024 are not taken",
        operating_point=GatedOperatingPoint(
            1.0,
            at_work(0.08, 0.62),
            None,
            None,
            0.39,
            0.1,
            "layers of more than 1024 units are not simulated",
        ),
    )
    radii = {"encoder.l0": 0.99, "encoder.l1": 0.996, "decoder.l0": 0.98}
    first, *others = (gru_with_spectra(name, radius) for name, radius in radii.items())
    point = GatedOperatingPoint(
        1.0, at_work(0.08, 0.62), at_work(0.3, 1.02, 0.004), False, 0.39, 0.1
    )
    return report(replace(first, operating_point=point), *others, large)


def mamba(index: int) -> LayerReport:
    """One of many layers that look alike, each a little different."""
    effect = 0.02 + 0.003 * (index * 37 % 64)
    name = f"backbone.layers.{index}.mixer"
    findings: tuple[Finding, ...] = ()
    if effect > 0.1:
        findings = (
            finding(
                "MC203",
                f"one step at 0.001 on dt_bias moves the state by {100 * effect:.3g} % in scale",
            ),
        )
    made = layer(
        name,
        "mamba",
        spread(256, 0.4, 900 + 211 * (index * 17 % 64)),
        [parameter("A_log", effect / 3, size=256), parameter("dt_bias", effect, size=16)],
        findings,
    )
    return replace(
        made,
        input_dependent=True,
        stable_by_construction=True,
        assumptions=("Δ stands at softplus(dt_bias) (zero input)",),
    )


def report(*layers: LayerReport, **changes: object) -> Report:
    """A report on some layers, with the fields given changed."""
    order: list[Verdict] = ["ok", "watch", "cursed"]
    verdict = max((one.verdict for one in layers), key=order.index, default="ok")
    made = Report(
        version="0.1.0",
        checkpoint=CheckpointSummary(
            path="checkpoints/model.safetensors",
            format="safetensors",
            bytes=1_234_567,
            tensors=34,
            bytes_read=12_345,
        ),
        input=InputAssumption(((1.0, 0.0),), None, None, LEARNING_RATE),
        device="cpu",
        verdict=verdict,
        sentence="at worst, one Adam step at 0.001 on `nu_log` moves the state of enc by 0.0693 %; "
        "its longest time constant is 900 steps",
        layers=layers,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # the fields of Report


def four_families() -> Report:
    """A calm GRU, a watched LRU, a cursed complex diagonal and a dense layer."""
    return report(
        dense(),
        complex_diagonal(),
        lru(),
        gru(),
        sentence="one Adam step at 0.001 on `weight_hh_l0` moves the state of rnn.weight_hh_l0 by "
        "1420 % and can leave the unit disk; its longest time constant is 240 steps; make the "
        "recurrence diagonal, or stay below 7e-5",
    )


def divergent() -> Report:
    """Unstable eigenvalues over an infinite sequence, and a layer that could not be read."""
    return report(
        unstable(),
        gru(),
        skipped=(
            SkippedLayer("decoder.lru", "lru", "decoder.lru.nu_log: 3 of 64 elements are nan"),
        ),
        sentence="the state of decoder.rnn is infinitely sensitive to `lambda_re` over an infinite "
        "sequence; 2 eigenvalues of it never decay; give --horizon T, or reparametrise the "
        "modulus so that |λ| < 1 holds by construction",
    )


def many_layers(count: int = 64) -> Report:
    """A deep model whose layers look alike, under a mixed input and a finite horizon."""
    attention = [f"backbone.layers.{count + index}.self_attn" for index in range(8)]
    return report(
        *map(mamba, range(count)),
        not_recurrent=(NotRecurrent("attention", len(attention), tuple(attention[:3])),),
        checkpoint=CheckpointSummary(
            path="state-spaces/mamba-1.4b/model.safetensors.index.json",
            format="safetensors",
            bytes=2_800_000_000,
            tensors=627,
            bytes_read=14_000_000,
            notes=("lm_head.weight is tied to the embedding",),
        ),
        input=InputAssumption(((0.332, 0.0), (0.044, 0.997)), 2048, "option", LEARNING_RATE),
        sentence="one Adam step at 0.001 on `dt_bias` moves the state of backbone.layers.19.mixer "
        "by 20.9 % in scale; its longest time constant is 1750 steps; normalise the input of the "
        "state by its own memory, or stay below 4e-4",
    )


HOSTILE = "evil\x1b[31m[bold red]\x07\r\n\u202egpj.\ud800" + "Ω漢字" * 40 + "[/]"


def hostile() -> Report:
    """Names that try to steer the terminal or the markup."""
    made = replace(
        lru(HOSTILE),
        family="[link=https://example.org]lru[/link]",
        parameters=(parameter(HOSTILE, 3.0, "destabilising"),),
    )
    return report(
        made,
        checkpoint=CheckpointSummary(
            path=f"/data/{HOSTILE}.pt", format="torch", bytes=0, tensors=1, bytes_read=0
        ),
        skipped=(SkippedLayer(HOSTILE, "gru", f"{HOSTILE}: holds nan"),),
        not_recurrent=(NotRecurrent("attention", 1, (HOSTILE,)),),
        sentence=f"one Adam step on `{HOSTILE}` moves everything",
    )
