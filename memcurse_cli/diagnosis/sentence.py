"""The sentence that a report leads with: what, how much, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from memcurse_cli.diagnosis.findings.sensitivity import CONSEQUENCE, REMEDY
from memcurse_cli.diagnosis.report import LayerReport
from memcurse_cli.diagnosis.report_figures import ParameterSummary
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.usable_rate import advised
from memcurse_cli.diagnosis.verdicts import ORDER, diverges
from memcurse_cli.diagnosis.wording import count, number, percent, rounded_down


def sentence(layers: Sequence[LayerReport], settings: Settings) -> str:
    """What the worst parameter group of the worst layer does to the state in one step."""
    ranked = [(layer, parameter) for layer in layers for parameter in layer.parameters]
    if not ranked:
        return (
            f"{count(len(layers), 'layer')} without a recurrent parameter of its own: nothing "
            "that an optimizer step could be too large for"
        )
    layer, parameter = max(ranked, key=lambda pair: _severity(pair[1]))
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
    text = (
        f"one Adam step at {number(settings.learning_rate)} on `{parameter.name}` moves the state "
        f"of {layer.name} by {percent(parameter.step_effect)}"
    )
    if parameter.verdict == "ok":
        if parameter.step_effect > settings.watch_limit:
            text += " by turning its angle, which is judged by the output"
        return f"at worst, {text}; {memory}{_room(layer)}"
    text += f" {CONSEQUENCE[parameter.direction]}; {memory}; "
    if layer.dense is not None:
        text += "make the recurrence diagonal"
    else:
        text += REMEDY[parameter.direction]
    target = advised(parameter, layer.usable_rate, settings)
    if target is not None:
        text += f", or stay below {rounded_down(target)}"
    return text


def _severity(parameter: ParameterSummary) -> tuple[int, float]:
    effect = parameter.step_effect
    if effect is None:
        effect = float("inf") if diverges(parameter) else -1.0
    return ORDER.index(parameter.verdict), effect


def _room(layer: LayerReport) -> str:
    """The rate that training should bear, where it is known."""
    if layer.usable_rate is None or layer.usable_rate.rate is None:
        return ""
    return f"; training should bear a rate of about {number(layer.usable_rate.rate)}"


def _memory(layer: LayerReport) -> str:
    longest = layer.eigenvalues.time_constant.max
    if longest is None:
        return f"{count(layer.eigenvalues.unstable, 'eigenvalue')} of it never decay"
    aside = ", hidden weights aside," if layer.hidden_feedback else ""
    return f"its longest time constant{aside} is {number(longest)} steps"
