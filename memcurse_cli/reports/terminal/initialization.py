"""What `memcurse init` prints: what was drawn, and what a report says of it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from memcurse_cli.reports import answer
from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, cells, draw, facts, paragraph, parted
from memcurse_cli.reports.numbers import number, setting, span
from memcurse_cli.schema.derived import Initialization
from memcurse_cli.schema.figures import Quantiles

COLUMNS = (
    Column("tensor", lambda one: Cell(one.name, NAME), align="left"),
    Column("shape", lambda one: " × ".join(map(str, one.shape))),
    Column("least", lambda one: number(one.least)),
    Column("most", lambda one: number(one.most)),
)


def lines(made: Initialization, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    closing = Text("Code: --code torch|flax|keras   File: --output FILE.safetensors", LABEL)
    head = screen.sentence(f"{made.family}, {made.method}: {made.rule}")
    return parted(
        paragraph(screen, head, margin=0),
        draw(screen, COLUMNS, [cells(COLUMNS, one) for one in made.tensors], gutter=0).lines,
        facts(screen, _facts(made)),
        paragraph(screen, closing, margin=0),
    )


def _facts(made: Initialization) -> Iterator[tuple[str, str]]:
    report = made.report
    (layer,) = report.layers
    low, high = made.wanted
    horizon = report.input.horizon or 0
    beyond = f"; HI is beyond the horizon of {horizon:,}" * (high > horizon)
    yield "wanted", f"{setting(low)} to {setting(high)} steps{beyond}"
    nominal = " (zero input)" if layer.input_dependent or layer.hidden_feedback else ""
    yield "memory", f"{_spread(layer.eigenvalues.time_constant)} steps{nominal}"
    yield "run", answer.simulated_words(report)
    size = f"{_spread(layer.state.second_moment)}{nominal}"
    if layer.simulation is not None:
        run = layer.simulation.second_moment
        size = f"{number(run.value)} ± {number(run.error, 2)}"
    elif layer.hidden_feedback:
        size = f"not known: {layer.not_simulated}"
    yield "E|h|²", f"{size}; step {horizon:,}, white input of unit variance"
    rate = report.usable_rate
    words = f"not judged: {rate.reason}"
    if rate.rate is not None:
        best, least, most = map(answer.rate_words, (rate.rate, rate.low, rate.high))
        words = f"usable up to {best} ({least} to {most})"
    yield "rate", words


def _spread(figure: Quantiles) -> str:
    """The ends and the median of a figure, or the one number that all of it is."""
    if figure.min is None or figure.max is None:
        return "divergent"
    ends = span((figure.min, figure.max)).replace(" - ", " to ")
    return ends if " to " not in ends else f"{ends}, median {number(figure.p50)}"
