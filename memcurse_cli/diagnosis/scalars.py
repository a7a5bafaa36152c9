"""The figures of a report as a flat dictionary, which every experiment logger takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from memcurse_cli.diagnosis.report import LayerReport, Report
from memcurse_cli.diagnosis.verdicts import ORDER, parameter_rank


def scalars(report: Report, prefix: str = "memcurse/") -> dict[str, float]:
    """Names and numbers: a few of the whole report, then those of each layer and group.

    A verdict is 0 for ok, 1 for watch, 2 for cursed. A figure that diverges or does not exist is
    left out, and so is the worst of several where one of them diverges. Of the whole report:
    ``verdict``, ``unstable`` (eigenvalues with |λ| >= 1), ``time_constant`` (the longest, in
    steps), ``step_effect`` (the worst), ``usable_lr`` (the smallest). Of each layer the same under
    ``<layer>/``, with ``step_effect/<parameter>`` and ``relative_sensitivity/<parameter>`` (κ,
    p99), and ``adam_residual``, ``sharpness``, ``output_step_effect`` where there is a Hessian.

    Args:
        report: what to flatten.
        prefix: stands before every name.
    """
    layers = [(f"{layer.name}/", dict(_layer(layer))) for layer in report.layers]
    found = {
        "verdict": float(ORDER.index(report.verdict)),
        "unstable": sum(numbers["unstable"] for _, numbers in layers),
    }
    for name, choose in (("time_constant", max), ("step_effect", max), ("usable_lr", min)):
        known = [numbers[name] for _, numbers in layers if name in numbers]
        if known:
            found[name] = choose(known)
    for layer, numbers in layers:
        found |= {layer + name: number for name, number in numbers.items()}
    return {prefix + name: number for name, number in found.items() if math.isfinite(number)}


def _layer(layer: LayerReport) -> Iterator[tuple[str, float]]:
    spectrum = layer.eigenvalues
    yield "verdict", float(ORDER.index(layer.verdict))
    yield "unstable", float(spectrum.unstable)
    yield from _known("modulus", spectrum.modulus.max)
    longest = spectrum.time_constant
    yield from _known("time_constant", math.inf if longest.divergent else longest.max)
    yield from _known("time_constant/p50", spectrum.time_constant.p50)
    if layer.usable_rate is not None:
        yield from _known("usable_lr", layer.usable_rate.rate)
    effects = [parameter_rank(one)[1] for one in layer.parameters]
    if max(effects, default=-1.0) >= 0:
        yield "step_effect", max(effects)
    for parameter in layer.parameters:
        yield from _known(f"step_effect/{parameter.name}", parameter.step_effect)
        kappa = parameter.relative_sensitivity.p99
        yield from _known(f"relative_sensitivity/{parameter.name}", kappa)
    if layer.hessian is not None:
        yield "adam_residual", layer.hessian.adam_residual
        yield "sharpness", layer.hessian.sharpness
        yield from _known("output_step_effect", layer.hessian.output_step_effect)


def _known(name: str, number: float | None) -> Iterator[tuple[str, float]]:
    if number is not None:
        yield name, number
