"""What types of fewer bits do to the state: by the theory, with moving gates, and as it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.answer import SHORT_TYPES
from memcurse_cli.reports.console import NAME, TITLE
from memcurse_cli.reports.grid import Cell, Column, name_column
from memcurse_cli.reports.numbers import number, percent
from memcurse_cli.reports.ranking import Shared, endless
from memcurse_cli.reports.terminal.layers import LEAST_ERROR, SIMULATED_STATE
from memcurse_cli.reports.terminal.structure import gate_notes
from memcurse_cli.reports.terminal.tables import (
    GUTTER_COLUMN,
    Page,
    SharedTable,
    explained,
    figure,
)
from memcurse_cli.schema.layer import StoredState
from memcurse_cli.schema.report import LayerReport, worst_state


def _small(share: float) -> str:
    return percent(share, 2) if share >= LEAST_ERROR or share == 0 else "<0.01 %"


def _held(one: Shared) -> str:
    worst = one.first.held_open
    return "" if worst is None else _small(worst)


def _overflow(one: Shared) -> str:
    step = one.first.overflow
    return "" if step is None else number(step, 2)


ORDER = ("float8_e5m2", "float8_e4m3fn", "int8", "float32", "float16", "bfloat16")


def _rank(one: StoredState) -> tuple[int, float]:
    """The types that there is a choice between come first, of each the worst."""
    known = ORDER.index(one.dtype) if one.dtype in ORDER else -1
    return known, endless(one.error.max)


def _state_table(
    title: str,
    parts: Callable[[LayerReport], Sequence[StoredState]],
    notes: Callable[[Page], Iterable[str]] = lambda _: (),
) -> SharedTable:
    return SharedTable(
        title,
        explained(
            {
                "median": "median, worst, random: the error of the state at the horizon, when it "
                "is rounded to the type at every step; random: the worst, rounded at random.",
                "too far": "too far: heads or states whose error is above --state-error.",
                "held": "held: the worst, were its gates to stay where they are at 95 % of the "
                "steps.",
                "frozen": "frozen: steps whose change of a state is lost.",
                "stopped": "stopped: heads or states whose decay alone is lost.",
                "overflow": "overflow: the step at which 5 standard deviations leave the type.",
            },
            GUTTER_COLUMN,
            name_column(
                "state in",
                lambda one: Cell(SHORT_TYPES.get(one.first.dtype, one.first.dtype), NAME),
            ),
            name_column("worst in", lambda one: one.layer, leaves=8, optional=True),
            figure("median", "first.error.p50", 4, _small),
            figure("worst", "first.error.max", write=_small),
            figure("random", "first.stochastic", 2, _small),
            Column("held", _held, optional=True),
            figure("too far", "first.above", write=str),
            figure("frozen", "first.frozen", 3, _small),
            figure("stopped", "first.stopped", 6, str),
            Column("overflow", _overflow, leaves=5, optional=True),
        ),
        parts=parts,
        rank=_rank,
        more="type",
        together=worst_state,
        key=lambda one: one.dtype,
        notes=notes,
    )


STATE = _state_table(
    "State in fewer bits", lambda layer: layer.storage.types if layer.storage else ()
)
MOVING_STATE = _state_table(
    "State in fewer bits, gates moving",
    lambda layer: layer.gates.storage if layer.gates else (),
    gate_notes,
)


def state_lines(page: Page) -> Iterator[Text]:
    """What types of fewer bits do to the states, at zero input, with moving gates and as run."""
    begun = False
    for table in (STATE, MOVING_STATE, SIMULATED_STATE):
        lines = [*table.lines(page)]
        if begun and lines:
            yield Text(table.title, TITLE)
        yield from lines
        begun = begun or bool(lines)
