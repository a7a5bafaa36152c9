"""What `memcurse predict` prints: tables or a plot, and what the longest memory costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter

from rich.text import Text

from memcurse_cli.diagnosis.prediction import (
    Prediction,
    PredictionRow,
    beyond_horizon,
    chrono_biases,
)
from memcurse_cli.reports.answer import describe_horizon, describe_input
from memcurse_cli.reports.console import NAME, SPECTRUM, TITLE, Screen
from memcurse_cli.reports.grid import (
    Cell,
    Column,
    RenderedTable,
    cells,
    draw,
    facts,
    paragraph,
    parted,
)
from memcurse_cli.reports.numbers import DIVERGENT, number, percent, setting, span
from memcurse_cli.reports.plots import Axis, Curve, Point, plot
from memcurse_cli.reports.ranking import grouped
from memcurse_cli.schema.figures import Component

STEP = 1e-3  # the step of an adaptive optimizer that the closing sentence is told for
CURSED = 1.0
HARMLESS = 0.1

SPELLED_OUT_BELOW = 0.9995  # a modulus closer to 1 is written as 1 minus something
BAR = 12  # the cells of the longest bar

AXIS = Axis(
    "|λ|, by the logarithm of 1-|λ|",
    [
        *((-math.log10(1 - modulus), f"{modulus:g}") for modulus in (0, 0.5, 0.9, 0.99, 0.999)),
        *((n, f"1-1e-{n}") for n in range(4, 16)),
    ],
)

GAINS = {
    "none": "γ = 1",
    "lru": "γ = √(1-|λ|²)",
    "coupled": "γ = √(1-|λ|²), computed from λ",
    "gru": "γ = 1-λ",
    "zoh": "γ = (e^(ΔA)-1)/A, zero-order hold",
}
MAPS = {
    "real-imaginary": "λ = lambda_re + i lambda_im",
    "polar": "λ = nu e^(i theta)",
    "lru": "λ = exp(-exp(nu_log) + i exp(theta_log))",
    "optimal": "|λ| = tanh(omega_nu), angle = omega_theta (1-|λ|²) / (|λ| √(1+|λ|²))",
    "s4": "λ = exp(Δ A), Δ = exp(log_dt), A = -exp(log_A_real) + i A_imag",
    "sigmoid-gate": "λ = sigmoid(bias)",
}

Rows = Sequence[PredictionRow]


def lines(prediction: Prediction, screen: Screen, *, with_plot: bool = False) -> Iterator[Text]:
    """The page line by line."""
    groups = _groups(prediction)
    costs = (screen.sentence(said, NAME) for said in _costs(prediction, groups))
    parts = [_plots(screen, groups)] if with_plot else _tables(screen, groups)
    return parted(facts(screen, _assumed(prediction)), *parts, paragraph(screen, *costs))


def _assumed(prediction: Prediction) -> Iterator[tuple[str, str]]:
    assumed = prediction.settings
    gain = GAINS[assumed.normalization]
    if assumed.normalization == "lru":
        owned = assumed.parametrization != "optimal"
        gain += ", learnt as exp(gamma_log)" if owned else ", tied to omega_nu"
    yield "state", f"h[t+1] = λ h[t] + γ x[t+1], {gain}"
    size = assumed.step_size
    step = "" if size is None else f"; step size Δ = {setting(size)}"
    yield "lambda", MAPS[assumed.parametrization] + step
    rhos = dict.fromkeys(row.rho for row in prediction.rows)
    inputs = (assumed.autocorrelation or (Component(1.0, rho or 0.0),) for rho in rhos)
    yield "input", "; ".join(map(describe_input, inputs))
    yield "horizon", describe_horizon(assumed.horizon, assumed.readout)
    angles = dict.fromkeys(row.angle for row in prediction.rows)
    yield "angle", f"{', '.join(map(setting, angles))} rad"


def _groups(prediction: Prediction) -> dict[str, list[PredictionRow]]:
    """The rows of each input and angle, under what tells them from the others."""
    several_inputs = len({row.rho for row in prediction.rows}) > 1
    several_angles = len({row.angle for row in prediction.rows}) > 1

    def told_apart(row: PredictionRow) -> str:
        said = [f"ρ = {setting(row.rho)}"] if several_inputs and row.rho is not None else []
        said += [f"angle {setting(row.angle)}"] if several_angles else []
        return ", ".join(said)

    return grouped((told_apart(row), row) for row in prediction.rows)


def _costs(prediction: Prediction, groups: Mapping[str, Rows]) -> Iterator[str]:
    """What the memories of each group cost, and all that is not of one of them."""
    for heading, rows in groups.items():
        prefix = f"{heading}: " if heading else ""
        yield from (prefix + sentence for sentence in _meaning(rows))
        yield from (prefix + sentence for sentence in _cut_off(prediction, rows))
    horizon, ring = prediction.settings.horizon, prediction.ring
    if ring is not None:
        inner, outer = (f"{radius:.6g}" for radius in (ring.inner_modulus, ring.outer_modulus))
        after = "" if horizon is None else "at this horizon "
        yield (
            f"Of λ drawn uniformly by area from the ring {inner} ≤ |λ| ≤ {outer}, all angles "
            f"alike, E|h|² is {after}{_figure(ring.second_moment)} on average and E|dh/dλ|² "
            f"{_figure(ring.sensitivity)}, whatever the input's autocorrelation."
        )
    chrono = chrono_biases(prediction)
    if chrono:
        taus, steps, biases, printed = map(span, zip(*chrono, strict=True))
        yield (
            f"Chrono initialisation for τ = {taus} steps: a bias of log(T - 1) = {biases}, with "
            f"T = 1/(1-λ) = {steps} drawn uniformly, gives these λ; log T = {printed}, as often "
            "printed, gives λ = T/(1+T)."
        )
    if any(row.sensitivity is None for row in prediction.rows):
        if horizon is None and any(row.time_constant is None for row in prediction.rows):
            yield (
                "divergent: with |λ| ≥ 1 an infinite sequence has no stationary state; "
                "--horizon T gives the moments after T steps."
            )
        else:
            within = "" if horizon is None else "within this horizon "
            yield f"divergent: {within}the state or its derivative leaves the range of a float."


def _meaning(rows: Rows) -> Iterator[str]:
    finite = sorted(
        (row for row in rows if row.sensitivity is not None),
        key=lambda row: (row.modulus, row.time_constant or math.inf),
    )
    if not finite:
        return
    shortest, longest = finite[0], finite[-1]
    state = _ratio(longest.second_moment, shortest.second_moment)
    derivative = _ratio(longest.sensitivity, shortest.sensitivity)
    if shortest is not longest and state is not None and derivative is not None:
        yield (
            f"From |λ| = {_modulus(shortest)} to {_modulus(longest)}, E|h|² changes "
            f"by a factor of {number(state)} and E|dh/dλ|² by {number(derivative)}."
        )
    effects = {
        name: STEP * math.sqrt(found.relative_sensitivity)
        for name, found in longest.parameters.items()
        if found.relative_sensitivity is not None
    }
    if effects:
        yield _cost(longest, effects)


def _cost(row: PredictionRow, effects: Mapping[str, float]) -> str:
    same = grouped((percent(effect), name) for name, effect in effects.items())
    said = ", ".join(f"{effect} through {' or '.join(names)}" for effect, names in same.items())
    memory = f" (τ = {_figure(row.time_constant)} steps)" if row.time_constant else ""
    worst = max(effects.values())
    if worst <= HARMLESS:
        verdict = "Memory this long can be learnt with such a step."
    else:
        bound = f"steps below {number(STEP * HARMLESS / worst, 2)} keep that under 10 %"
        verdict = (
            f"This is the curse of memory: one step replaces the state; {bound}."
            if worst > CURSED
            else f"Memory this long needs care: {bound}."
        )
    return (
        f"At |λ| = {_modulus(row)}{memory}, one optimizer step of {setting(STEP)} moves the "
        f"state by {said}. {verdict}"
    )


def _cut_off(prediction: Prediction, rows: Rows) -> Iterator[str]:
    """That the horizon ends before the longest memory of these rows, and what that hides."""
    found, settings = beyond_horizon(prediction, rows), prediction.settings
    if found is None:
        return
    of = "one time constant" if found.count == 1 else f"{found.count} time constants"
    which = "every step" if settings.readout == "every" else "the last step"
    said = (
        f"The horizon matters: it cuts off {of} beyond {settings.horizon} steps, and the figures "
        f"are those of {which} of such a sequence."
    )
    if found.factor is not None:
        said += (
            f" Over an infinite one E|dh/dλ|² would be {number(found.factor)} times as large for "
            f"the longest (τ = {number(found.time_constant)} steps)."
        )
    yield said


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def _gap(row: PredictionRow) -> float:
    """1 - |λ| from τ, which knows more of it than |λ| does."""
    return -math.expm1(-1 / row.time_constant) if row.time_constant else 1.0


def _modulus(row: PredictionRow) -> str:
    """|λ|, or 1 minus what is left where six digits would round it away."""
    if row.time_constant is None or row.modulus < SPELLED_OUT_BELOW:
        return f"{row.modulus:.6g}"
    return f"1-{number(_gap(row))}"


_figure = partial(number, absent=DIVERGENT)
Value = Callable[[PredictionRow], "float | None"]


def _derivatives(rows: Rows) -> dict[str, str]:
    """The parameters whose numbers differ, and the names of those that share them."""
    alike = grouped(
        (tuple(row.parameters[name] for row in rows), name) for name in rows[0].parameters
    )
    return {names[0]: ", ".join(names) for names in alike.values()}


def _parameter(name: str, figure: str) -> Value:
    return lambda row: getattr(row.parameters[name], figure)


def _column(heading: str, value: Value, above: str = "") -> Column:
    return Column(heading, lambda row: _figure(value(row)), leaves=1, above=above)


def _tables(screen: Screen, groups: Mapping[str, Rows]) -> Iterator[Sequence[Text]]:
    """The tables of each group, the first below its heading."""
    for heading, rows in groups.items():
        first, *others = _tables_of(screen, rows)
        yield [Text(screen.clean(heading), TITLE), *first.lines] if heading else first.lines
        yield from (table.lines for table in others)


def _tables_of(screen: Screen, rows: Rows) -> Iterator[RenderedTable]:
    """One table where everything fits, otherwise several, each of them led by |λ|."""
    blocks = [
        [
            _column("τ", attrgetter("time_constant")),
            _column("E|h|²", attrgetter("second_moment")),
            _column("E|dh/dλ|²", attrgetter("sensitivity")),
        ]
    ]
    for name, names in _derivatives(rows).items():
        derivative = _column("E|dh/dω|²", _parameter(name, "sensitivity"), names)
        blocks.append([derivative, _column("κ", _parameter(name, "relative_sensitivity"))])

    def table(columns: Sequence[Column]) -> RenderedTable:
        return draw(screen, columns, [cells(columns, row) for row in rows], gutter=0)

    tables: list[list[Column]] = []
    for block in blocks:
        if not tables or table([*tables[-1], *block]).left_out:
            tables.append([Column("|λ|", _modulus)])
        tables[-1] += block
    tables[0].append(_bars(screen, rows))
    return map(table, tables)


def _bars(screen: Screen, rows: Rows) -> Column:
    """The logarithm of E|dh/dλ|², from its least to its largest value, as bars."""
    exponents = [math.log10(row.sensitivity) for row in rows if row.sensitivity]
    low, high = min(exponents, default=0.0), max(exponents, default=0.0)
    block = "#" if screen.ascii_only else "▇"

    def bar(row: PredictionRow) -> Cell | str:
        if not row.sensitivity or low == high:
            return ""
        share = (math.log10(row.sensitivity) - low) / (high - low)
        return Cell(block * (1 + round(share * (BAR - 1))), SPECTRUM)

    return Column("", bar, align="left", leaves=2, optional=True)


def _plots(screen: Screen, groups: Mapping[str, Rows]) -> Iterator[Text]:
    """All quantities of one input in one plot, or one plot per quantity for several inputs."""
    if not any(len(_points(rows, attrgetter("sensitivity"))) > 1 for rows in groups.values()):
        yield from paragraph(screen, Text("A plot needs two moduli below 1 with finite moments."))
        return
    quantities = _quantities([row for rows in groups.values() for row in rows])
    panels = {
        label: {heading: _points(rows, value) for heading, rows in groups.items()}
        for label, value in quantities.items()
    }
    zero = [label for label, found in panels.items() if not any(found.values())]
    for label in zero:
        del panels[label]
    if len(groups) == 1:
        panels = {"": {label: found[""] for label, found in panels.items()}}
    else:
        panels.pop(next(iter(quantities)), None)  # E|h|², which says least
    drawn = []
    for title, found in panels.items():
        curves = [Curve(name, points) for name, points in found.items()]
        heading = [Text(screen.clean(title), TITLE)] if title else []
        drawn.append([*heading, *plot(screen, AXIS, curves)])
    yield from parted(*drawn)
    yield from paragraph(screen, *(screen.sentence(f"{one} is 0 and not drawn.") for one in zero))


def _quantities(rows: Rows) -> dict[str, Value]:
    """What is worth a curve, by its label; parameters that repeat a curve share its label."""
    values: dict[str, Value] = {
        "E|h|²": attrgetter("second_moment"),
        "E|dh/dλ|²": attrgetter("sensitivity"),
    }
    for name, names in _derivatives(rows).items():
        values[f"E|dh/dω|² of {names}"] = _parameter(name, "sensitivity")
    alike = grouped((tuple(map(value, rows)), label) for label, value in values.items())
    return {" = ".join(labels): values[labels[0]] for labels in alike.values()}


def _points(rows: Rows, value: Value) -> list[Point]:
    return sorted(
        (-math.log10(_gap(row)), math.log10(found))
        for row in rows
        if row.time_constant is not None and (found := value(row))
    )
