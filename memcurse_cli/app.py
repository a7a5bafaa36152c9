"""The command line: one Typer app whose commands are imported when they are called."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from memcurse_cli.commands import COMMANDS, PANELS
from memcurse_cli.errors import UsageError


class LazyGroup(TyperGroup):
    """Commands that are listed from a table and imported only to be run or explained."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order that a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command that can be listed; `resolve_command` replaces it by the real one."""
        if cmd_name not in COMMANDS:
            return None
        panel = next(panel for panel, commands in PANELS.items() if cmd_name in commands)
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name], rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was called, imported now; a `UsageError` says what was meant."""
        if not (args[0] in COMMANDS or args[0].startswith("-") or ctx.resilient_parsing):
            raise _no_command(args)
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            from memcurse_cli.commands.defaults import prepare

            command = prepare(name)
        return name, command, rest


def _no_command(arguments: Sequence[str]) -> UsageError:
    """The error of a first word that is no command: a checkpoint, or a command misspelt."""
    import shlex
    from difflib import get_close_matches

    from memcurse_cli.checkpoints.untrusted.names import is_url, shown_place
    from memcurse_cli.commands.request import report_text

    name, *rest = arguments
    there = is_url(name) or os.path.lexists(name)
    near = [] if there else get_close_matches(name.lower(), COMMANDS, 1)
    if near:
        meant = [near[0], *rest]
    elif there or re.search(r"[./\\]", name):
        meant = ["inspect" if report_text(name) is None else "check", *arguments]
    else:
        return UsageError("no such command", where=shown_place(name), remedy="see memcurse --help")
    call = shlex.join(["memcurse", *map(shown_place, meant)])
    return UsageError("no such command", where=shown_place(name), remedy=f"did you mean: {call}")


app = typer.Typer(
    cls=LazyGroup,
    name="memcurse",
    help="Which recurrent parameters has a network become too sensitive to, why, "
    "and what to do about it.",
    epilog="Start with: memcurse inspect model.safetensors",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


LIBRARIES = ("numpy", "scipy", "torch", "jax", "safetensors", "typer", "rich")


def _version(show: bool) -> None:
    if show:
        import platform
        from importlib.metadata import PackageNotFoundError, version

        typer.echo(f"memcurse {version('memcurse-cli')}")
        typer.echo(f"python {platform.python_version()}")
        for library in LIBRARIES:
            try:  # its metadata, since to import torch takes a second
                typer.echo(f"{library} {version(library)}")
            except PackageNotFoundError:
                typer.echo(f"{library} is not installed")
        raise typer.Exit


@app.callback()
def memcurse(
    show_version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print versions and exit."
    ),
) -> None:
    """Which recurrent parameters has a network become too sensitive to."""
