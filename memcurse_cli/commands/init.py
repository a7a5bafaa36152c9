"""`memcurse init`: initial recurrent parameters, as a file or as code."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import typer

from memcurse_cli.commands.options import (
    JSON,
    argument,
    choose_format,
    emit,
    option,
    require_writable,
    show,
    write_tensors,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.console import line_for


def init(
    family: str = argument("FAMILY", "lru, s4d, lstm, gru, rg_lru or mamba."),
    memory: str = option(
        "LO:HI", "The shortest and the longest memory that the task needs, in steps.", default=...
    ),
    horizon: int = option("T", "Steps of a sequence.", default=..., min=1),
    method: str | None = option(
        "NAME",
        "lin or inv of s4d; chrono or critical of lstm and gru. By default the first of these.",
    ),
    max_phase: float | None = option("θ", "The largest angle of an lru's λ; 2π by default."),
    units: int = typer.Option(64, min=1, max=2048, help="Units, or channels of s4d and mamba."),
    seed: int = typer.Option(0, min=0, max=2**32 - 1, help="Of what is drawn."),
    code: str | None = option(
        "torch|flax|keras", "Print code that draws and sets the same parameters instead."
    ),
    as_json: bool = JSON,
    output: Path | None = option(
        "FILE", "Write the tensors into a safetensors file too.", "--output", "-o"
    ),
) -> None:
    """Draw initial parameters for the memory that a task needs.

    Example: memcurse init lru --memory 10:1000 --horizon 1000
    """
    from memcurse_cli.cures.initialization import FRAMEWORKS, recipe
    from memcurse_cli.diagnosis.settings import require_known

    if code is not None:
        require_known(code, FRAMEWORKS, "--code", f"give {', '.join(FRAMEWORKS)}")
        if as_json:
            remedy = "give one of them"
            raise UsageError("--json and --code contradict", where="--json", remedy=remedy)
    if output is not None:
        require_writable(output)
    made = recipe(family, _range(memory), units, seed=seed, method=method, max_phase=max_phase)
    if output is not None:
        told = {"family": family, "method": made.method, "memory": memory, "seed": str(seed)}
        metadata = {f"memcurse.{name}": value for name, value in told.items()}
        metadata["memcurse.horizon"] = str(horizon)
        write_tensors(output, made.tensors(), metadata)
    if code is not None:
        emit("\n".join(line_for(line, sys.stdout) for line in made.code(code).splitlines()), None)
    else:
        show(made.inspected(horizon), "initialization", choose_format(as_json=as_json), None)


def _range(text: str) -> tuple[float, float]:
    """LO and HI; what they may be is the family's."""
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low = high = math.nan
    if not 0 < low < high < math.inf:
        raise UsageError(
            f"'{text[:60]}' is not LO:HI with 0 < LO < HI",
            where="--memory",
            remedy="give two numbers of steps, as 10:1000",
        )
    return low, high
