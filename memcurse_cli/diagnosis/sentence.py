"""The sentence that a report leads with: what, how much, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from memcurse_cli.diagnosis.findings.sensitivity import CONSEQUENCE, REMEDY
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.usable_rate import advised, rate_verdict, smallest_rate
from memcurse_cli.diagnosis.wording import count, duration, number, percent, rounded_down
from memcurse_cli.schema.figures import ORDER, Verdict, diverges, parameter_rank
from memcurse_cli.schema.report import LayerReport


def sentence(layers: Sequence[LayerReport], settings: Settings) -> str:
    """What the worst parameter group of the worst layer does to the state in one step."""
    ranked = [(layer, parameter) for layer in layers for parameter in layer.parameters]
    if not ranked:
        return (
            f"{count(len(layers), 'layer')} without a recurrent parameter of its own: nothing "
            "that an optimizer step could be too large for"
        )
    layer, parameter = max(ranked, key=lambda pair: parameter_rank(pair[1]))
    memory = _memory(layer)
    if parameter.step_effect is None and not diverges(parameter):
        return f"the sensitivity of {layer.name} to `{parameter.name}` is not computed; {memory}"
    if parameter.step_effect is None:
        endless = settings.horizon is None
        return (
            f"the state of {layer.name} is infinitely sensitive to `{parameter.name}`"
            + (" over an infinite sequence" if endless else "")
            + f"; {memory}; "
            + ("give --horizon T, or " if endless else "")
            + REMEDY[parameter.direction]
        )
    if parameter.step_effect == 0:
        return f"no step on `{parameter.name}` changes the state of {layer.name}; {memory}"
    text = (
        f"one Adam step{'' if layer.dense is None else ' of independent signs'} at "
        f"{number(settings.learning_rate)} on `{parameter.name}` moves the state "
        f"of {layer.name} by {percent(parameter.step_effect)}"
    )
    if parameter.verdict == "ok":
        if parameter.step_effect > settings.watch_limit:
            text += " by turning its angle, which is judged by the output"
        rate = smallest_rate(layers)
        room = "" if rate is None else f"; training should bear a rate of about {number(rate)}"
        return f"at worst, {text}; {memory}{room}"
    text += f" {CONSEQUENCE[parameter.direction]}; {memory}; "
    if layer.dense is not None:
        text += "make the recurrence diagonal"
    else:
        text += REMEDY[parameter.direction]
    target = _advised(layers, parameter.verdict, settings)
    if target is not None:
        text += f", or stay below {rounded_down(target)}"
    return text


def _advised(layers: Sequence[LayerReport], verdict: Verdict, settings: Settings) -> float | None:
    """The lowest of the rates that layers and groups of a verdict, or of a worse one, ask for."""
    rates = [
        advised(parameter, layer.usable_rate, settings)
        for layer in layers
        for parameter in layer.parameters
        if parameter.verdict == verdict
    ]
    rates += [
        usable.rate
        for layer in layers
        if (usable := layer.usable_rate) is not None
        and ORDER.index(rate_verdict(usable, settings)) >= ORDER.index(verdict)
    ]
    return min((rate for rate in rates if rate is not None), default=None)


def _memory(layer: LayerReport) -> str:
    longest = layer.eigenvalues.time_constant.max
    if longest is None:
        unstable = layer.eigenvalues.unstable
        return (
            f"{count(unstable, 'eigenvalue')} of it never {'decays' if unstable == 1 else 'decay'}"
        )
    if layer.dense is not None and layer.dense.memory is not None:
        return f"its memory is {duration(layer.dense.memory)}"
    aside = ", hidden weights aside," if layer.hidden_feedback else ""
    return f"its longest time constant{aside} is {duration(longest)}"
