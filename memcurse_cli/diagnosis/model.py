"""What is said of a model: verdict, memory, the type of its state, the sentence, what to do."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from memcurse_cli.diagnosis.findings import finding_of
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.family import setting
from memcurse_cli.schema.figures import ORDER, ParameterSummary, Verdict, effect_rank
from memcurse_cli.schema.layer import StoredState, jacobian_of
from memcurse_cli.schema.report import (
    Action,
    Cure,
    Finding,
    LayerReport,
    Severity,
    StateType,
    by_rate,
    groups_when_run,
    longest_memory,
    served,
    simulated_group,
    states_by_type,
    step_effects,
    unit_of,
)
from memcurse_cli.schema.simulation import TOO_LARGE, SimulatedGroup
from memcurse_cli.theory.rounding import Dtype
from memcurse_cli.theory.stored_state import STATE_TYPES
from memcurse_cli.wording import about, count, number, percent

# The horizon over the memory from which the model is to be watched, and is at fault.
SHORT, FAR_TOO_SHORT = 10, 100
# Where attention layers can carry what the recurrence forgets.
MILDER: dict[Severity, Severity] = {"error": "warning", "warning": "info"}
# What a config.json calls the type of the state: Nemotron-H and vLLM, Qwen3.5 and SGLang.
CONFIGURED = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
FORMS = {"lru": "exp(-exp(ν) + iθ)", "polar": "ν exp(iθ)"}
_NAMES: Mapping[str, Dtype] = {
    **{name: name for name in STATE_TYPES},
    "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
    "float": "float32", "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip


def unseen_memory(layer: LayerReport) -> bool:
    """Whether hidden weights, which were not looked at, can hold a longer memory than is known."""
    looked = layer.simulation is not None or jacobian_of(layer.hidden_spectra) is not None
    return layer.hidden_feedback and not looked


def _short_memory(layers: Sequence[LayerReport], settings: Settings) -> tuple[float, int] | None:
    """The longest memory and the horizon, where that is known and the memory far below it."""
    memory, horizon = longest_memory(layer.memory for layer in layers), settings.horizon
    if memory is None or horizon is None or settings.horizon_source == "assumed":
        return None
    return (memory, horizon) if memory * SHORT < horizon else None


def model_findings(
    layers: Sequence[LayerReport], settings: Settings, *, attention: bool, whole: bool
) -> tuple[Finding, ...]:
    """A memory that is too short for a known horizon, MC107.

    Where every layer of the model was read, as ``whole`` says, and nothing hides a longer one.
    """
    short = _short_memory(layers, settings)
    if short is None or not whole or any(map(unseen_memory, layers)):
        return ()
    memory, horizon = short
    severity: Severity = "error" if memory * FAR_TOO_SHORT < horizon else "warning"
    longest = "the longest memory" if len(layers) > 1 else "its memory"
    said = f"{longest} is {about(memory)} of {count(horizon, 'step')}"
    if attention:
        severity = MILDER[severity]
        said += ": attention has to carry the rest"
    advice = f"initialise |λ| closer to 1, up to exp(-1/{horizon})"
    if all(layer.hidden_feedback for layer in layers):
        advice = "start the gate that keeps the state more open, as an LSTM's forget bias at 2"
    return (finding_of("MC107", severity, said, advice),)


def state_type(
    layers: Sequence[LayerReport], settings: Settings, config: Mapping[str, Any]
) -> StateType | None:
    """The smallest type that keeps the state of every layer with input-dependent decay.

    None where no such layer is known.
    """
    losses = {name: _loss(one, settings) for name, one in states_by_type(layers).items()}
    if not losses:
        return None
    smallest = next((one for one, loss in losses.items() if loss <= settings.state_error), None)
    asked = (str(setting(config, key)).removeprefix("torch.").lower() for key in CONFIGURED)
    configured = next((_NAMES[name] for name in asked if name in _NAMES), None)
    return StateType(
        smallest,
        None if smallest is None else losses[smallest],
        configured,
        None if configured is None else losses[configured],
    )


def _loss(state: StoredState, settings: Settings) -> float:
    """The largest error of any layer; all is lost where one overflows within the horizon."""
    overflow = state.overflow
    if overflow is not None and (settings.horizon is None or overflow <= settings.horizon):
        return 1.0
    return state.error.max or 0.0


def configured_type(
    chosen: StateType | None, layers: Sequence[LayerReport], settings: Settings
) -> Iterator[Finding]:
    """That the configuration asks for a type which loses too much, MC405."""
    if chosen is None or (chosen.configured_error or 0.0) <= settings.state_error:
        return
    told, state = served(layers), states_by_type(layers)[chosen.configured or ""]
    total = count(sum(layer.eigenvalues.count for layer in told), unit_of(told))
    limit, loss = percent(settings.state_error), percent(state.error.max or 0)
    costs = f"costs {state.above} of {total} more than {limit}, up to {loss}"
    if state.overflow is not None and chosen.configured_error == 1:
        costs = f"overflows after {about(state.overflow)} steps"
    said = f"config.json keeps the state in {chosen.configured}, which {costs}"
    kept = f"keep the state in {chosen.smallest}: {CONFIGURED[0]}={chosen.smallest}"
    yield finding_of("MC405", "warning", said, "" if chosen.smallest is None else kept)


def model_verdict(
    layers: Sequence[LayerReport], findings: Sequence[Finding], *, skipped: int
) -> Verdict:
    """That of the worst layer; to be watched at least where the memory is too short.

    Ok only if every recurrent layer was judged, so not where some were ``skipped``.
    """
    verdicts: list[Verdict] = [layer.verdict for layer in layers]
    verdicts += ["watch" for one in findings if one.severity != "info"]
    verdicts += ["not_judged"] * skipped
    return max(verdicts, key=ORDER.index)


def sentence(
    layers: Sequence[LayerReport], findings: Sequence[Finding], settings: Settings, *, skipped: int
) -> str:
    """The verdict in words: what a step does, the rate that training bears, what is not judged."""
    said = [*_rate_words(layers, settings), *_memory_words(layers, findings, settings)]
    said += _open_words(layers, settings)
    if skipped:
        said.append(f"{count(skipped, 'layer')} could not be read.")
    return " ".join(said)


def _step_words(
    settings: Settings,
    group: ParameterSummary | SimulatedGroup,
    changed: str,
    effect: float,
    start: str = "One",
) -> str:
    """A step, of the checkpoint's optimizer where that is told and of Adam's kin, in words."""
    stepper = (settings.adaptive and settings.optimizer) or "Adam"
    step = f"{start} {stepper} step at {number(group.learning_rate)} on {group.name}"
    return f"{step} changes {changed} {percent(effect)}."


def _rate_words(layers: Sequence[LayerReport], settings: Settings) -> Iterator[str]:
    judged = by_rate(layers)
    if not judged:
        if all(layer.verdict == "ok" for layer in layers):
            yield "Nothing of the recurrence is trained: no step is too large for it."
        return
    ratio, layer, usable = judged[0]
    rate, known = number(layer.learning_rate), layer.usable_rate
    effects = [(effect, group) for group, effect in step_effects(layer) if effect is not None]
    effect, group = max(effects, key=itemgetter(0), default=(math.inf, None))
    if layer.verdict != "ok" and group is not None and math.isfinite(effect):
        where = "the state" if len(layers) == 1 else f"the state of {layer.name}"
        yield _step_words(settings, group, f"{where} by", effect)
    recorded = settings.learning_rate_source not in (None, "option", "assumed")
    largest = layer.learning_rate == settings.learning_rate
    source = f" ({settings.learning_rate_source if largest else 'of its group'})" * recorded
    yours = f"yours, {rate}{source}, is "
    yours += {"cursed": f"{about(ratio)} times that", "watch": "within that range"}.get(
        layer.verdict, f"{about(1 / ratio)} times smaller"
    )
    # Where layers have rates of their own, the worst need not be the one that bears the least.
    smallest = usable == min(one.usable for one in judged)
    ends = "" if known is None else f" ({about(known.low or 0)} to {about(known.high or 0)})"
    subject = "Training" if smallest else layer.name
    yield f"{subject} bears a rate of about {about(usable)}{ends}; {yours}."


def _memory_words(
    layers: Sequence[LayerReport], findings: Sequence[Finding], settings: Settings
) -> Iterator[str]:
    """How much of a known horizon is remembered, where that is little or was simulated."""
    for finding in findings:
        yield f"{finding.message[0].upper()}{finding.message[1:]}."
    short = _short_memory(layers, settings)
    if short is not None and any(map(unseen_memory, layers)):
        yield f"The gates alone keep {about(short[0])} of {count(short[1], 'step')}."
    run = [layer for layer in layers if groups_when_run(layer)]
    if not run or findings:
        return
    if chaotic := sum(layer.simulation.chaotic for layer in run if layer.simulation):
        which = "it is" if len(layers) == 1 else f"{count(chaotic, 'layer')} are"
        yield f"Run on drawn inputs {which} chaotic: what perturbs the state grows."
        return
    memory = longest_memory(layer.memory for layer in layers)
    if memory is not None:
        of = "" if settings.horizon is None else f" of {count(settings.horizon, 'step')}"
        it = "it" if len(layers) == 1 else "the model"
        yield f"Run on drawn inputs {it} remembers about {about(memory)}{of or ' steps'}."


def _open_words(layers: Sequence[LayerReport], settings: Settings) -> Iterator[str]:
    """What is known of layers that were not judged, and why they were not."""
    unjudged = [layer for layer in layers if layer.verdict == "not_judged"]
    if not unjudged:
        return
    simulated = simulated_group(unjudged)
    groups = [group for layer in unjudged for group in layer.parameters if group.step_effect]
    if simulated is not None and settings.adaptive is not False:
        _, group = simulated
        yield _step_words(settings, group, "its state by", group.step_effect.value)
    elif groups and settings.adaptive is not False:
        gated = all(layer.input_dependent or layer.hidden_feedback for layer in unjudged)
        worst = max(groups, key=effect_rank)
        which = "the state by" if len(unjudged) == 1 else "a state by up to"
        start = "At zero input one" if gated else "One"
        yield _step_words(settings, worst, which, worst.step_effect or 0.0, start)
    some = f"{len(unjudged)} of {count(len(layers), 'layer')}"
    which = f"{some} {'was' if len(unjudged) == 1 else 'were'} not judged"
    if len(unjudged) == len(layers):
        which = "The layer was not judged" if len(layers) == 1 else "No layer was judged"
    reasons = dict.fromkeys(layer.not_judged for layer in unjudged if layer.not_judged)
    yield f"{which}: {'; '.join(reasons)}."


def _cure_words(layer: LayerReport, cure: Cure, *, several: bool) -> tuple[str, str, str]:
    """What to make of a layer, and the options and the name of the command that makes it."""
    of, form = f" of {layer.name}" if several else "", cure.parametrization
    what = f"write λ{of} as {FORMS[form]}"
    if layer.dense is not None:
        what = f"make the recurrence{of} diagonal"
    if cure.clip_modulus is not None:
        what += f" and its |λ| at most {cure.clip_modulus}"
    text = f"{what}: that bears {about(cure.usable_rate.rate or 0)}"
    if cure.reason is not None:
        return text, f"--as {form}" + " --normalize own" * (form == "lru"), "inspect"
    command, usual = ("reparametrize", "lru") if layer.dense is None else ("diagonalize", "polar")
    options = "" if form == usual else f"--parametrization {form} "
    options += "" if cure.clip_modulus is None else f"--clip-modulus {cure.clip_modulus} "
    return text, f"{options}--output cured.safetensors", command


def actions(
    layers: Sequence[LayerReport], findings: Sequence[Finding], path: str | None
) -> Iterator[Action]:
    """What to do, the most urgent first; without a ``path`` there is no command to repeat."""

    def action(text: str, options: str = "", command: str = "inspect") -> Action:
        line = f"memcurse {command} {shlex.quote(path)} {options}" if path and options else ""
        return Action(text, line)

    judged, instead = by_rate(layers), ""
    if judged and (cure := judged[0].layer.cure) is not None:
        yield action(*_cure_words(judged[0].layer, cure, several=len(layers) > 1))
        instead = "or "
    faster = [one for one in judged if one.ratio > 1]
    if faster:
        names = ", ".join(dict.fromkeys(group.name for group, _ in step_effects(faster[0].layer)))
        if len(layers) > 1:
            names += f" of {faster[0].layer.name}"
        if len(faster) > 1:
            names = f"the recurrent parameters of {len(faster)} layers"
        smallest = about(min(one.usable for one in faster))
        yield action(f"{instead}train {names} at {smallest} or less", "--torch", "groups")
    for finding in findings:
        if finding.severity != "info":
            yield action(finding.advice)
    of_layers = [finding for layer in layers for finding in layer.findings]
    for finding in of_layers:
        if finding.code.startswith("MC4") and finding.severity == "warning":
            yield action(finding.advice)
            break
    if any(layer.not_simulated == TOO_LARGE for layer in layers):
        yield action("run it: its memory and what a step does", "--simulate")
    elif any(finding.code == "MC503" and finding.advice for finding in of_layers):
        yield action("look at the memory of the hidden weights", "--spectra")
    if any(layer.input_dependent and layer.gates is None for layer in layers):
        yield action("look at how far inputs move the gates", "--gates")
