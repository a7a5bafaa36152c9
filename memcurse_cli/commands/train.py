"""`memcurse train`: a small network, trained on the teacher-student task and saved."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import convert
from msgspec.structs import asdict

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands.options import (
    QUIET,
    option,
    progress_line,
    require_writable,
    write_tensors,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.experiments.settings import RECIPES, NetworkName, Precision, TrainingSettings
from memcurse_cli.reports.console import line_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEP = "{step}"
"""Stands for the number of steps in the name of a file that is written at several."""


def train(
    context: typer.Context,
    network: NetworkName = typer.Argument(help="The student.", show_default=False),
    output: Path = option("FILE", "The safetensors file to write.", "--output", "-o", default=...),
    units: int = typer.Option(64, min=1, help="Hidden units of the student."),
    teacher_units: int = typer.Option(10, min=1, help="Hidden units of the teacher."),
    modulus: float = option("ν", "The teacher's smallest |λ|, in [0, 1).", default=0.99),
    initial_modulus: float | None = option(
        "ν₀", "The student's smallest |λ| before training.", show_default="the teacher's"
    ),
    horizon: int = typer.Option(300, min=1, help="Steps of a sequence."),
    steps: int | None = typer.Option(
        None, min=1, help="Optimizer steps.", show_default="as the samples"
    ),
    batch: int | None = typer.Option(
        None, min=1, help="Sequences per step.", show_default="as the samples"
    ),
    learning_rate: float | None = typer.Option(
        None,
        help="Adam's rate at the start; a cosine takes it to zero.",
        show_default="as the samples",
    ),
    seed: int = typer.Option(
        0, min=0, max=2**32 - 1, help="Of the teacher, the initial student and the inputs."
    ),
    dtype: Precision = typer.Option(Precision.FLOAT32, help="Trained and stored in."),
    save_every: int | None = option(
        "N", "Write the student every N steps, at 0 and at the end; FILE then holds {step}.", min=1
    ),
    quiet: bool = QUIET,
) -> None:
    """Train a small network on a linear task, to try memcurse on.

    Example: memcurse train lru --output lru.safetensors
    """
    defaults = {"initial_modulus": modulus, **asdict(RECIPES[network])}
    given = {name: one for name, one in context.params.items() if one is not None}
    settings = convert({**defaults, **given}, TrainingSettings)
    if (save_every is not None) != (STEP in output.name):
        raise UsageError(
            f"a file for each of several steps needs {STEP} in its name, and only then",
            where="--save-every",
            remedy="for example --save-every 100 --output 'run/step_{step}.safetensors'",
        )
    require_writable(output)

    try:
        from memcurse_cli.experiments.training import teacher_power
        from memcurse_cli.experiments.training import train as train_student
    except ImportError as error:
        raise UsageError(
            "JAX and Optax, which train, are not installed",
            where="memcurse train",
            remedy="install them with: pip install 'memcurse-cli[jax]'",
        ) from error

    def keep(step: int, parameters: Mapping[str, NDArray[Any]]) -> None:
        at_step = output.with_name(output.name.replace(STEP, str(step)))
        write_tensors(at_step, parameters, {**settings.metadata(), "step": str(step)})

    with progress_line(quiet=quiet, patience=0) as show:

        def report(done: int, loss: float) -> None:
            show(f"{settings.network}: step {done} of {settings.steps}, loss {loss:.3g}")

        if save_every is not None:
            result = train_student(settings, report, keep, save_every)
        else:
            result = train_student(settings, report)
            losses = {
                "memcurse.loss_before": str(result.loss_before),
                "memcurse.loss_after": str(result.loss_after),
            }
            write_tensors(output, result.parameters, {**settings.metadata(), **losses})
    said = (
        f"{shown_place(output)}: loss {result.loss_before:.4g} before, "
        f"{result.loss_after:.4g} after {settings.steps} steps in {result.seconds:.0f} s "
        f"(a student that says nothing: {teacher_power(settings):.4g})"
    )
    typer.echo(line_for(said, sys.stdout))
