"""`memcurse diagonalize` and `reparametrize`: the same function in other parameters."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands.options import (
    argument,
    emit_page,
    flag,
    option,
    require_writable,
    write_file,
)
from memcurse_cli.commands.request import Request, with_request
from memcurse_cli.errors import UsageError
from memcurse_cli.wording import count, percent

LEFT_OUT = ("step_limit", "state_error", "spectra", "simulate")
OUTPUT = option("FILE", "The safetensors file to write.", "--output", "-o", default=...)
CLIP = option("M", "Make every |λ| above M equal to M, below 1; the output is then another.")
FOLD_GAIN = flag("--fold-gain", "Fold γ into B, where lru keeps √(1-|λ|²) as gamma_log.")
MOST_STEPS, SHOWN = 1024, 3  # of a comparison; layers that are told of


def _form(default: str) -> Any:
    return option("NAME", "polar, real-imaginary, lru or real-blocks.", default=default)


@with_request(*LEFT_OUT)
def diagonalize(
    request: Request,
    checkpoint: str = argument("IN", "A checkpoint; what is in it beside such layers is kept."),
    output: Path = OUTPUT,
    parametrization: str = _form("polar"),
    fold_gain: bool = FOLD_GAIN,
    clip_modulus: float | None = CLIP,
) -> None:
    """Make dense linear layers diagonal, with the same output.

    Example: memcurse diagonalize model.safetensors --output diagonal.safetensors
    """
    _rewrite(request, checkpoint, output, parametrization, fold_gain, clip_modulus, dense=True)


@with_request(*LEFT_OUT)
def reparametrize(
    request: Request,
    checkpoint: str = argument("IN", "A checkpoint; what is in it beside such layers is kept."),
    output: Path = OUTPUT,
    parametrization: str = _form("lru"),
    fold_gain: bool = FOLD_GAIN,
    clip_modulus: float | None = CLIP,
) -> None:
    """Store diagonal linear layers in other parameters.

    Eigenvalues and output stay.

    Example: memcurse reparametrize model.safetensors --output lru.safetensors
    """
    _rewrite(request, checkpoint, output, parametrization, fold_gain, clip_modulus, dense=False)


def _rewrite(
    request: Request,
    checkpoint: str,
    output: Path,
    form: str,
    fold_gain: bool,
    largest: float | None,
    *,
    dense: bool,
) -> None:
    from memcurse_cli.cures.rewritten import Cure, cured, read_back
    from memcurse_cli.diagnosis.comparison import compare
    from memcurse_cli.families.family import ReadOptions
    from memcurse_cli.reports.numbers import listed
    from memcurse_cli.reports.terminal.comparison import lines
    from memcurse_cli.theory.devices import work_on

    cure = Cure(dense, form, form == "lru" and not fold_gain, largest)
    require_writable(output)
    if output.exists() and os.path.exists(checkpoint) and output.samefile(checkpoint):
        remedy = "name another file"
        raise UsageError("is the checkpoint itself", where=shown_place(output), remedy=remedy)
    given = request.arguments()
    options = ReadOptions(assume=given["assume"])
    with work_on(given["device"]):
        made = cured(checkpoint, cure, options, given["family"], given["layers"])
    whole = replace(request, family=None, layer=None)
    before = (request if request.family else whole).inspect(checkpoint, values=True)
    steps = int(min(before.input.horizon or MOST_STEPS, MOST_STEPS))
    apart = 0.0

    def check(written: Path) -> None:
        nonlocal apart
        apart = read_back(made, written, steps)

    write_file(output, made.content, check)
    # What IN's folder tells of its optimizer holds for OUT too.
    whole = replace(whole, horizon=before.input.horizon, learning_rate=before.input.learning_rate)
    after = whole.inspect(os.fspath(output), values=True)
    told = [f"{listed(made.told, SHOWN)}."]
    told.append(
        f"The output differs by {percent(apart)} of its RMS at most, over "
        f"{count(steps, 'step')} of white noise. Every other tensor is byte for byte what it was."
    )
    emit_page(partial(lines, compare(before, after), told=told), None)
