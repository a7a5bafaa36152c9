"""The command line: one Typer app whose commands are imported when they are called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "inspect": "Report on every recurrent layer of a checkpoint.",
    "predict": "The theory alone: what memory costs under a parametrisation, no checkpoint needed.",
    "landscape": "How narrow the loss is around an eigenvalue, and how parametrisations widen it.",
    "check": "Hold checkpoints or reports to limits; exit with 1 where one is broken.",
    "compare": "Compare two checkpoints layer by layer: what moved towards the unit circle.",
    "track": "Follow a training run: spectrum, sensitivity and verdict, checkpoint by checkpoint.",
    "rule": "Explain a finding by its code: what, why, the equation, what to change.",
    "autocorrelation": "Estimate an input's autocorrelation and fit a mixture of decays to it.",
    "hessian": "The curvature of the loss: which parameters couple, and what Adam can mend.",
    "families": "List the recurrent families that are recognised, and by what.",
    "formats": "List the checkpoint formats that are read, and by what each is recognised.",
    "schema": "Print the JSON Schema of what memcurse writes with --json.",
    "settings": "Show every default that is in force, and where it comes from.",
    "train": "Train a small network on the linear teacher-student task and save it.",
}

HOMES = {
    **dict.fromkeys(("predict", "landscape", "autocorrelation", "rule"), "without_checkpoint"),
    **dict.fromkeys(("families", "formats", "schema", "settings"), "without_checkpoint"),
    **dict.fromkeys(("hessian", "compare"), "inspect"),
}
"""The modules of the commands that have none of their own name."""


def load(name: str) -> Callable[..., Any]:
    """The function of a command, which bears its name."""
    home = importlib.import_module(f"memcurse_cli.commands.{HOMES.get(name, name)}")
    function: Callable[..., Any] = getattr(home, name)
    return function


class LazyGroup(TyperGroup):
    """Commands that are listed from a table and imported only to be run or explained."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order that a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command that can be listed; `resolve_command` replaces it by the real one."""
        if cmd_name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name=cmd_name, help=COMMANDS[cmd_name])(_listed)
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was called, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            from memcurse_cli.commands.defaults import prepare

            command = build(name)
            prepare(name, command, load(name), rest, all_options)
        return name, command, rest


def build(name: str) -> Any:
    """A command as Typer makes it of its function."""
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    single.command(name=name, no_args_is_help=False)(load(name))
    return typer.main.get_command(single)


def all_options() -> dict[str, dict[str, Any]]:
    """The options of every command that settings may set, by command and name."""
    from memcurse_cli.commands.defaults import UNCONFIGURABLE, configurable

    names = [name for name in COMMANDS if name not in UNCONFIGURABLE]
    return {name: configurable(name, build(name).params) for name in names}


def _listed() -> None:
    """Stand in for a command in the list of commands."""


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
