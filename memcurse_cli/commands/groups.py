"""`memcurse groups`: what to give the optimizer."""

from __future__ import annotations

from pathlib import Path

from memcurse_cli.commands.options import JSON, OUTPUT, argument, emit, flag
from memcurse_cli.commands.request import Request, with_request
from memcurse_cli.errors import UsageError


@with_request("step_limit", "state_error", "spectra")
def groups(
    request: Request,
    path: str = argument("PATH", "A checkpoint: a file, directory or URL."),
    torch: bool = flag("--torch", "Print code for torch.optim, as by default."),
    optax: bool = flag("--optax", "Print code for optax."),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Code for an optimizer with the rates that layers bear.

    Recurrent parameters get the usable rate of their layer, or --lr where that
    is smaller, and no weight decay; all others --lr.

    Example: memcurse groups model.safetensors --lr 3e-3 --optax
    """
    if torch + optax + as_json > 1:
        raise UsageError(
            "--torch, --optax and --json exclude one another",
            where="groups",
            remedy="give one of them",
        )
    from memcurse_cli.reports.code import optax_code, torch_code
    from memcurse_cli.schema.derived import parameter_groups
    from memcurse_cli.schema.json_codec import to_text

    write = to_text if as_json else optax_code if optax else torch_code
    emit(write(parameter_groups(request.inspect(path))), output)
