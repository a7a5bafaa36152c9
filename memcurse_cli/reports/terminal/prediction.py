"""What `memcurse predict` prints: tables, what they mean, a plot, or JSON.

A prediction in words: what the longest memory costs, and numbers as they are said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from memcurse_cli.diagnosis.prediction import (
    ChronoBias,
    Prediction,
    PredictionRow,
    RingPrediction,
    beyond_horizon,
    chrono_biases,
)
from memcurse_cli.reports.console import LABEL, NAME, SPECTRUM, TITLE, Screen, text_of
from memcurse_cli.reports.grid import facts, paragraph
from memcurse_cli.reports.numbers import (
    DIVERGENT,
    count,
    decay_words,
    number,
    percent,
    setting,
)
from memcurse_cli.reports.plots import Axis, Curve, plot

STEP = 1e-3
"""The step of an adaptive optimizer that the closing sentence is told for."""

CURSED = 1.0
HARMLESS = 0.1

SPELLED_OUT_BELOW = 0.9995
"""A modulus closer to 1 is written as 1 minus something."""


def meaning(rows: Sequence[PredictionRow]) -> list[str]:
    """What the longest memory of these rows costs, in a sentence or two."""
    finite = sorted(
        (row for row in rows if row.sensitivity is not None),
        key=lambda row: (row.modulus, row.time_constant or math.inf),
    )
    if not finite:
        return []
    shortest, longest = finite[0], finite[-1]
    sentences = []
    state = _ratio(longest.second_moment, shortest.second_moment)
    derivative = _ratio(longest.sensitivity, shortest.sensitivity)
    if shortest is not longest and state is not None and derivative is not None:
        sentences.append(
            f"From |λ| = {modulus_figure(shortest)} to {modulus_figure(longest)}, E|h|² changes "
            f"by a factor of {number(state)} and E|dh/dλ|² by {number(derivative)}."
        )
    effects = {
        name: STEP * math.sqrt(found.relative_sensitivity)
        for name, found in longest.parameters.items()
        if found.relative_sensitivity is not None
    }
    if effects:
        sentences.append(_cost(longest, effects))
    return sentences


def cut_off(prediction: Prediction, rows: Sequence[PredictionRow]) -> list[str]:
    """That the horizon ends before the longest memory of these rows, and what that hides."""
    found = beyond_horizon(prediction, rows)
    if found is None:
        return []
    of = "one time constant" if found.count == 1 else f"{found.count} time constants"
    which = "every step" if prediction.readout == "every" else "the last step"
    said = (
        f"The horizon matters: it cuts off {of} beyond {prediction.horizon} steps, and the figures "
        f"are those of {which} of such a sequence."
    )
    if found.factor is not None:
        said += (
            f" Over an infinite one E|dh/dλ|² would be {number(found.factor)} times as large for "
            f"the longest (τ = {number(found.time_constant)} steps)."
        )
    return [said]


def _cost(row: PredictionRow, effects: Mapping[str, float]) -> str:
    """What one optimizer step does to the state at one eigenvalue."""
    same: dict[str, list[str]] = {}
    for name, effect in effects.items():
        same.setdefault(percent(effect), []).append(name)
    said = ", ".join(f"{effect} through {' or '.join(names)}" for effect, names in same.items())
    memory = f" (τ = {figure(row.time_constant)} steps)" if row.time_constant else ""
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
        f"At |λ| = {modulus_figure(row)}{memory}, one optimizer step of {setting(STEP)} moves the "
        f"state by {said}. {verdict}"
    )


def ring_average(ring: RingPrediction, horizon: int | None) -> str:
    """What eigenvalues of a ring cost on average."""
    inner, outer = (f"{radius:.6g}" for radius in (ring.inner_modulus, ring.outer_modulus))
    after = "" if horizon is None else "at this horizon "
    return (
        f"Of λ drawn uniformly by area from the ring {inner} ≤ |λ| ≤ {outer}, all angles alike, "
        f"E|h|² is {after}{figure(ring.second_moment)} on average and E|dh/dλ|² "
        f"{figure(ring.sensitivity)}, whatever the input's autocorrelation."
    )


def initialisation(low: ChronoBias, high: ChronoBias) -> str:
    """How to start gates from one memory to another, by either convention."""
    if low == high:
        return (
            f"Chrono initialisation for τ = {number(high.time_constant)} steps: a bias of "
            f"log(T - 1) = {number(high.bias)} with T = 1/(1-λ) = {number(high.steps)} gives this "
            f"λ; log T = {number(high.printed)}, as often printed, gives λ = T/(1+T)."
        )
    return (
        f"Chrono initialisation for τ from {number(low.time_constant)} to "
        f"{number(high.time_constant)} steps: biases of log(T - 1), T = 1/(1-λ) uniform from "
        f"{number(low.steps)} to {number(high.steps)}, give these λ: {number(low.bias)} to "
        f"{number(high.bias)}; log T, as often printed, gives λ = T/(1+T): {number(low.printed)} "
        f"to {number(high.printed)}."
    )


def divergence(prediction: Prediction) -> str:
    """Why some rows have no number, and what gives them one."""
    unstable = any(row.time_constant is None for row in prediction.rows)
    if prediction.horizon is None and unstable:
        return (
            "divergent: with |λ| ≥ 1 an infinite sequence has no stationary state; "
            "--horizon T gives the moments after T steps."
        )
    within = "" if prediction.horizon is None else "within this horizon "
    return f"divergent: {within}the state or its derivative leaves the range of a float."


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def gap(row: PredictionRow) -> float:
    """1 - |λ| from τ, which knows more of it than |λ| does."""
    return -math.expm1(-1 / row.time_constant) if row.time_constant else 1.0


def modulus_figure(row: PredictionRow) -> str:
    """|λ|, or 1 minus what is left where six digits would round it away."""
    if row.time_constant is None or row.modulus < SPELLED_OUT_BELOW:
        return f"{row.modulus:.6g}"
    return f"1-{number(gap(row))}"


def figure(value: float | None) -> str:
    """A number, or that there is none."""
    return DIVERGENT if value is None else number(value)


LEAST_BAR, MOST_BAR = 6, 24

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

Group = tuple[str, list[PredictionRow]]
"""A heading and the rows of one input and angle."""


def to_text(
    prediction: Prediction,
    *,
    with_plot: bool = False,
    file: Path | None = None,
    width: int | None = None,
) -> str:
    """The prediction as text for standard output, or for a file: without colour, 80 cells wide."""
    return text_of(partial(lines, prediction, with_plot), file, width=width)


def lines(prediction: Prediction, with_plot: bool, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    groups = _groups(prediction)
    yield from _header(screen, prediction)
    if with_plot:
        yield from _plots(screen, groups)
    else:
        for heading, rows in groups:
            yield Text()
            if len(groups) > 1:
                yield Text(screen.clean(heading), TITLE)
            yield from _tables(screen, rows)
    yield Text()
    for heading, rows in groups:
        for sentence in [*meaning(rows), *cut_off(prediction, rows)]:
            prefix = f"{heading}: " if len(groups) > 1 else ""
            yield from paragraph(screen, screen.sentence(prefix + sentence, NAME))
    if prediction.ring is not None:
        said = ring_average(prediction.ring, prediction.horizon)
        yield from paragraph(screen, screen.sentence(said, NAME))
    chrono = chrono_biases(prediction)
    if chrono:
        yield from paragraph(screen, screen.sentence(initialisation(*chrono), NAME))
    if any(row.sensitivity is None for row in prediction.rows):
        yield from paragraph(screen, screen.sentence(divergence(prediction)))


def _header(screen: Screen, prediction: Prediction) -> Iterator[Text]:
    gain = GAINS[prediction.normalization]
    if prediction.normalization == "lru":
        owned = prediction.parametrization != "optimal"
        gain += ", learnt as exp(gamma_log)" if owned else ", tied to omega_nu"
    eigenvalue = MAPS[prediction.parametrization]
    if prediction.step_size is not None:
        eigenvalue += f"; step size Δ = {setting(prediction.step_size)}"
    steps = "infinitely many steps"
    if prediction.horizon is not None:
        steps = f"{count(prediction.horizon, 'step')} from a zero state"
        if prediction.readout == "every":
            steps += ", the mean over every step"
    inputs = list(dict.fromkeys(row.rho for row in prediction.rows))
    angles = list(dict.fromkeys(row.angle for row in prediction.rows))
    said = {
        "state": f"h[t+1] = λ h[t] + γ x[t+1], {gain}",
        "lambda": eigenvalue,
        "input": "; ".join(_describe_input(prediction, rho) for rho in inputs),
        "horizon": steps,
        "angle": f"{', '.join(map(setting, angles))} rad",
    }
    yield from facts(screen, said)


def _describe_input(prediction: Prediction, rho: float | None) -> str:
    if rho is None:
        components = prediction.autocorrelation or ()
        parts = [f"{setting(weight)}·{decay_words(*of)}" for weight, *of in components]
        return f"R(Δ) = {' + '.join(parts)}"
    if rho in (0, 1):
        return f"{'constant' if rho else 'white noise'}, R(Δ) = {decay_words(rho)}"
    return f"R(Δ) = {decay_words(rho)}"


def _groups(prediction: Prediction) -> list[Group]:
    grouped: dict[tuple[float | None, float], list[PredictionRow]] = {}
    for row in prediction.rows:
        grouped.setdefault((row.rho, row.angle), []).append(row)
    several_angles = len({angle for _, angle in grouped}) > 1
    several_inputs = len({rho for rho, _ in grouped}) > 1
    groups = []
    for (rho, angle), rows in grouped.items():
        said = [f"ρ = {setting(rho)}"] if several_inputs and rho is not None else []
        said += [f"angle {setting(angle)}"] if several_angles else []
        groups.append((", ".join(said), rows))
    return groups


def _alike(rows: Sequence[PredictionRow]) -> list[list[str]]:
    """The parameters' names, those with the same numbers in every row together."""
    together: dict[tuple[object, ...], list[str]] = {}
    for name in rows[0].parameters:
        together.setdefault(tuple(row.parameters[name] for row in rows), []).append(name)
    return list(together.values())


GAP = "  "


@dataclass(frozen=True)
class _Block:
    """Columns under one title; a column is its heading and its cells."""

    title: str
    columns: Mapping[str, Sequence[str]]


def _pack(screen: Screen, leader: _Block, blocks: Sequence[_Block]) -> list[list[_Block]]:
    """Spread blocks over as few tables as fit the screen, each of them led by the same block."""
    tables: list[list[_Block]] = []
    for block in blocks:
        if not tables or _width(screen, [*tables[-1], block]) > screen.width:
            tables.append([leader])
        tables[-1].append(block)
    return tables


def _width(screen: Screen, blocks: Sequence[_Block]) -> int:
    """The cells that the widest line of a table takes."""
    return sum(map(sum, _widths(screen, blocks))) + len(GAP) * (
        sum(len(block.columns) for block in blocks) - 1
    )


def _table(screen: Screen, blocks: Sequence[_Block], bars: Sequence[str]) -> Iterator[Text]:
    """A table: titles where there are any, headings, rows, and a bar at the end of each row."""
    widths = _widths(screen, blocks)
    titles, headings = Text(no_wrap=True), Text(no_wrap=True)
    for block, cells in zip(blocks, widths, strict=True):
        room = sum(cells) + len(GAP) * (len(cells) - 1)
        titles.append(screen.clean(block.title).rjust(room) + GAP, LABEL)
        for heading, cell in zip(block.columns, cells, strict=True):
            headings.append(screen.clean(heading).rjust(cell) + GAP, LABEL)
    for line in (titles, headings):
        line.rstrip()
        if line.plain:
            yield line
    for index in range(len(next(iter(blocks[0].columns.values())))):
        line = Text(no_wrap=True)
        for block, cells in zip(blocks, widths, strict=True):
            for column, cell in zip(block.columns.values(), cells, strict=True):
                said = screen.clean(column[index])
                line.append(said.rjust(cell) + GAP, "yellow" if said == DIVERGENT else "")
        line.append(bars[index] if bars else "", SPECTRUM)
        line.rstrip()
        yield line


def _widths(screen: Screen, blocks: Sequence[_Block]) -> list[list[int]]:
    """The cells of each column; the first one of a block makes room for a long title."""
    widths = []
    for block in blocks:
        cells = [
            max(cell_len(screen.clean(said)) for said in (heading, *column))
            for heading, column in block.columns.items()
        ]
        spare = cell_len(screen.clean(block.title)) - sum(cells) - len(GAP) * (len(cells) - 1)
        cells[0] += max(spare, 0)
        widths.append(cells)
    return widths


def _tables(screen: Screen, rows: Sequence[PredictionRow]) -> Iterator[Text]:
    """One table where everything fits, otherwise several, each of them led by |λ|."""
    blocks = [
        _Block(
            "",
            {
                "τ": [figure(row.time_constant) for row in rows],
                "E|h|²": [figure(row.second_moment) for row in rows],
                "E|dh/dλ|²": [figure(row.sensitivity) for row in rows],
            },
        )
    ]
    for names in _alike(rows):
        found = [row.parameters[names[0]] for row in rows]
        columns = {
            "E|dh/dω|²": [figure(one.sensitivity) for one in found],
            "κ": [figure(one.relative_sensitivity) for one in found],
        }
        blocks.append(_Block(f"ω = {', '.join(names)}", columns))
    leader = _Block("", {"|λ|": [modulus_figure(row) for row in rows]})
    tables = _pack(screen, leader, blocks)
    for index, blocks in enumerate(tables):
        if index:
            yield Text()
        bars = _bars(screen, rows, screen.width - _width(screen, blocks)) if index == 0 else []
        yield from _table(screen, blocks, bars)


def _bars(screen: Screen, rows: Sequence[PredictionRow], room: int) -> list[str]:
    """The logarithm of E|dh/dλ|², from its least to its largest value, as bars."""
    cells = min(room - len(GAP), MOST_BAR)
    exponents = [_exponent(row.sensitivity) for row in rows]
    finite = [exponent for exponent in exponents if exponent is not None]
    if cells < LEAST_BAR or len(finite) < 2 or min(finite) == max(finite):
        return []
    unit = (cells - 1) / (max(finite) - min(finite))
    block = "#" if screen.ascii_only else "▇"
    return [
        "" if exponent is None else block * (1 + round((exponent - min(finite)) * unit))
        for exponent in exponents
    ]


def _plots(screen: Screen, groups: Sequence[Group]) -> Iterator[Text]:
    """All quantities of one input in one plot, or one plot per quantity for several inputs."""
    if not any(len(_curve(rows, "sensitivity")) > 1 for _, rows in groups):
        yield Text()
        yield from paragraph(
            screen, screen.sentence("A plot needs two moduli below 1 with finite moments.")
        )
        return
    quantities = _quantities([row for _, rows in groups for row in rows])
    zero = [key for key in quantities if not any(_curve(rows, key) for _, rows in groups)]
    labels = {key: label for key, label in quantities.items() if key not in zero}
    if len(groups) == 1:
        rows = groups[0][1]
        panels = {"": [Curve(label, _curve(rows, key)) for key, label in labels.items()]}
    else:
        panels = {
            label: [Curve(heading, _curve(rows, key)) for heading, rows in groups]
            for key, label in labels.items()
            if key != "second_moment"
        }
    for title, curves in panels.items():
        yield Text()
        if title:
            yield Text(screen.clean(title), TITLE)
        yield from plot(screen, AXIS, curves)
    for key in zero:
        yield from paragraph(screen, screen.sentence(f"{quantities[key]} is 0 and not drawn."))


def _quantities(rows: Sequence[PredictionRow]) -> dict[str, str]:
    """What is worth a curve, and its label; parameters that repeat a curve share its label."""
    labels = {"second_moment": "E|h|²", "sensitivity": "E|dh/dλ|²"}
    for names in _alike(rows):
        said = f"E|dh/dω|² of {', '.join(names)}"
        for key in ("second_moment", "sensitivity"):
            if all(row.parameters[names[0]].sensitivity == getattr(row, key) for row in rows):
                labels[key] += f" = {said}"
                break
        else:
            labels[names[0]] = said
    return labels


def _curve(rows: Sequence[PredictionRow], key: str) -> list[tuple[float, float]]:
    points = []
    for row in rows:
        value = row.parameters[key].sensitivity if key in row.parameters else getattr(row, key)
        exponent = _exponent(value)
        if row.time_constant is not None and exponent is not None:
            points.append((-math.log10(gap(row)), exponent))
    return sorted(points)


def _exponent(value: float | None) -> float | None:
    return math.log10(value) if value else None
