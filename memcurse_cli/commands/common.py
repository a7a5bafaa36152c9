"""What every command has beside its own options: --config, --verbose, --debug, and its defaults."""

from __future__ import annotations

import os
import sys
import time
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands.defaults import (
    EVERYTHING,
    UNCONFIGURABLE,
    Defaults,
    Everything,
    configurable,
    configure,
    give_variables,
)
from memcurse_cli.errors import MemcurseError
from memcurse_cli.reports.console import say

CONFIG = "config"
VERBOSE = "verbose"


def prepare(
    name: str,
    command: Any,
    function: Callable[..., Any],
    arguments: Sequence[str],
    everything: Everything,
) -> None:
    """Give a command the common options, and its own options their defaults from elsewhere.

    Args:
        name: the command's name.
        command: as Typer built it from its function.
        function: the function.
        arguments: those of this call.
        everything: the options of every configurable command.
    """
    options = configurable(name, command.params)
    give_variables(name, options)
    defaults = Defaults(name, tuple(arguments), options, typing.get_type_hints(function))
    common = _common_options(defaults, everything)
    if name in UNCONFIGURABLE:
        common = [option for option in common if option.name != CONFIG]
    command.params.extend(common)
    command.invoke = _narrated(command.invoke, defaults, everything)


def _declaration(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings, instead of the nearest memcurse.toml or pyproject.toml.",
            envvar="MEMCURSE_CONFIG",
            show_envvar=False,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Say on standard error where options come from and what was used.",
            envvar="MEMCURSE_VERBOSE",
            show_envvar=False,
            expose_value=False,
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", expose_value=False)
    ] = False,
) -> None:
    """Declare the options of every command; Typer makes its own objects of them."""


def _common_options(defaults: Defaults, everything: Everything) -> list[Any]:
    """The common options, of which --config makes the defaults of all others."""

    def read(context: Any, option: Any, config: Path | None) -> None:
        if not context.resilient_parsing:  # else a shell asks for completions
            configure(context, defaults, config, everything)

    def remember(context: Any, option: Any, verbose: bool) -> None:
        context.meta[VERBOSE] = verbose

    maker = typer.Typer(add_completion=False)
    maker.command()(_declaration)
    made = {option.name: option for option in typer.main.get_command(maker).params}
    made[CONFIG].callback = read
    made[VERBOSE].callback = remember
    return [option for name, option in made.items() if name != "help"]


def _narrated(
    invoke: Callable[[Any], Any], defaults: Defaults, everything: Everything
) -> Callable[[Any], Any]:
    """A command that says on standard error what it went by, where that is asked for."""

    def located(context: Any) -> Any:
        """An error about an option names what set it, where that is not the command line."""
        context.meta[EVERYTHING] = everything
        try:
            return invoke(context)
        except MemcurseError as error:
            origin = defaults.origin(error.where.removeprefix("--"))
            if origin:
                error.where = f"{origin}: {error.where}"
            raise
        except BrokenPipeError:
            # Here rather than above, since Typer would end with 1, which means a violation.
            discard_output()
            return None

    def run(context: Any) -> Any:
        if not context.meta.get(VERBOSE):
            return located(context)
        if defaults.file is not None:
            say(f"memcurse: settings are read from {defaults.file.path}")
        for name, option in defaults.options.items():
            origin = defaults.origin(name)
            if origin:
                say(f"memcurse: {name} = {shown(context.params.get(option.name))} ({origin})")
        started = time.perf_counter()
        try:
            return located(context)
        finally:
            say(f"memcurse: {time.perf_counter() - started:.2f} s{_memory()}")

    return run


def discard_output() -> None:
    """Let what standard output still holds go nowhere: its reader (head, less) has seen enough.

    Python would complain again while it flushes at its end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def shown(value: Any) -> str:
    """A value as a settings file would have it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {shown(one)}' for key, one in value.items())} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return shown_place(value)
    return "none" if value is None else f"{value}"


def _memory() -> str:
    try:
        import resource
    except ImportError:  # there is none on Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    in_bytes = peak if sys.platform == "darwin" else peak * 1024
    return f", {in_bytes / 1e6:.0f} MB of memory at most"
