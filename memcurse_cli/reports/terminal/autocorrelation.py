"""What `memcurse autocorrelation` prints: the mixture, how well it fits, a plot, or JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from memcurse_cli.reports.console import TITLE, Screen
from memcurse_cli.reports.grid import Column, cells, draw, facts, parted
from memcurse_cli.reports.numbers import ABSENT, count, number, percent
from memcurse_cli.reports.plots import Axis, Curve, plot
from memcurse_cli.schema.figures import Component
from memcurse_cli.schema.theory import AutocorrelationDocument

LEAST_SHOWN = 1e-3  # the plot leaves out what is below this share of R(0)

AXIS = Axis(
    "lag Δ in steps, by the logarithm of 1+Δ",
    [(math.log10(1 + lag), str(lag)) for lag in (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)],
)


def lines(estimate: AutocorrelationDocument, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    parts = estimate.components
    oscillates = any(part.frequency > 0 for part in parts)
    formula = "R(Δ) = Σ weight·ρ^|Δ|" + "·cos(ωΔ)" * oscillates
    columns = _columns(math.fsum(part.weight for part in parts))
    table = draw(screen, columns, [cells(columns, part) for part in parts], gutter=0)
    return parted(
        facts(screen, _facts(estimate)),
        plot(screen, AXIS, _curves(estimate, oscillates=oscillates)),
        [Text(screen.clean(formula), TITLE), *table.lines],
        facts(screen, _meaning(estimate, oscillates=oscillates)),
    )


def _facts(estimate: AutocorrelationDocument) -> Iterator[tuple[str, str]]:
    data = estimate.data
    shape = f"{count(data.sequences, 'sequence')} of {count(data.steps, 'step')}"
    masked = f"; {count(data.masked, 'sample')} masked" if data.masked else ""
    yield "data", f"{data.source}: {shape}, {count(data.features, 'feature')}{masked}"
    divisor = {
        "unbiased": "the number of products, unbiased",
        "biased": "the number of samples: biased by the factor 1-Δ/T, which the fit allows for",
    }[estimate.estimator]
    yield "lags", f"0 to {len(estimate.empirical.values) - 1}; divided by {divisor}"
    mean = "nothing subtracted: a mean is the part of ρ = 1"
    if estimate.centred:
        mean = "each feature's own subtracted, which lowers every lag by about "
        mean += number(estimate.centring_bias)
    yield "mean", mean


def _columns(total: float) -> list[Column]:
    return [
        Column("weight", lambda part: number(part.weight)),
        Column("ρ", lambda part: f"{part.rho:.6g}"),
        Column("τ", _time_constant),
        Column(
            "ω", lambda part: f"{part.frequency:.6g}" if part.frequency else ABSENT, optional=True
        ),
        Column(
            "period",
            lambda part: number(2 * math.pi / part.frequency) if part.frequency else ABSENT,
            optional=True,
        ),
        Column("share", lambda part: percent(part.weight / total)),
    ]


def _time_constant(part: Component) -> str:
    if part.rho == 0:
        return "white"
    if part.rho == 1:
        return "undamped" if part.frequency else "constant"
    return number(-1 / math.log(part.rho))


def _meaning(estimate: AutocorrelationDocument, *, oscillates: bool) -> Iterator[tuple[str, str]]:
    values, errors = estimate.empirical.values, estimate.empirical.standard_errors
    fit = (
        f"off by {percent(estimate.fit.relative_rms, 2)} of R(0) in the root mean square and by "
        f"{percent(estimate.fit.relative_max, 2)} at worst (lag {estimate.fit.worst_lag})"
    )
    yield "fit", fit
    if estimate.states:
        yield "states", _states(estimate)
    source = {
        "sequences": "from the spread between sequences",
        "gaussian": "as if one sequence were Gaussian and its features independent",
    }[estimate.empirical.standard_error_method]
    last = len(values) - 1
    chance = (
        f"the standard error of R is {percent(errors[0] / values[0], 2)} of R(0) at lag 0 and "
        f"{percent(errors[last] / values[0], 2)} at lag {last}, {source}; decays that move no lag "
        "by more than two of them are left out, and cosines that move none by four"
    )
    yield "chance", chance
    below = [lag for lag, value in enumerate(values) if value < -3 * errors[lag]]
    if below and not oscillates:
        note = (
            f"R is negative beyond chance at {count(len(below), 'lag')}, first at {below[0]}: it "
            "oscillates too little to tell a frequency, or was centred over short sequences, and "
            "no mixture of decays is negative"
        )
        yield "note", note
    yield "use", "write it with --json --output FILE, then give --autocorrelation FILE"


def _states(estimate: AutocorrelationDocument) -> str:
    """How far the figures of states are off, where the mixture stands for R."""
    each = []
    for state in estimate.states:
        pairs = (
            (state.fitted_second_moment, state.second_moment),
            (state.fitted_sensitivity, state.sensitivity),
        )
        second, sensitivity = (
            percent(abs(fitted / direct - 1), 2) if direct > 0 else ABSENT
            for fitted, direct in pairs
        )
        each.append(f"{second} and {sensitivity} at τ = {number(state.time_constant)}")
    return (
        "E h² and E (dh/dλ)² from the mixture are off those from R itself, lag by lag, by "
        + ", ".join(each)
    )


def _curves(estimate: AutocorrelationDocument, *, oscillates: bool) -> list[Curve]:
    empirical = estimate.empirical
    curves = {"empirical R(Δ)": empirical.values, "the mixture": empirical.fitted}
    if oscillates:  # either side of zero on one logarithmic axis
        curves = {"empirical |R(Δ)|": empirical.values, "|the mixture|": empirical.fitted}
    drawn = []
    for name, values in curves.items():
        heights = map(abs, values) if oscillates else values
        points = [
            (math.log10(1 + lag), math.log10(height))
            for lag, height in enumerate(heights)
            if height > LEAST_SHOWN * empirical.values[0]
        ]
        drawn.append(Curve(name, points))
    return drawn
