"""What a user can ask for: one function per command, imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer

PANELS = {
    "Look": {
        "inspect": "Report on every recurrent layer of a checkpoint.",
        "compare": "Compare two checkpoints layer by layer: what moved.",
        "track": "Follow a training run, checkpoint by checkpoint.",
        "simulate": "Run every layer: memory and step effects, beside theory.",
        "hessian": "Which parameters the loss couples, and what Adam can mend.",
    },
    "Decide": {"check": "Hold checkpoints to limits; exit with 1 if one is broken."},
    "Cure": {
        "diagonalize": "Make dense linear layers diagonal, with the same output.",
        "reparametrize": "Store diagonal linear layers in other parameters.",
        "groups": "Code for an optimizer with the rates that layers bear.",
        "init": "Draw initial parameters for the memory that a task needs.",
    },
    "Understand": {
        "rule": "Explain a finding by its code, and what to change.",
        "predict": "What memory costs at one eigenvalue; no checkpoint needed.",
        "landscape": "How narrow the loss is around one eigenvalue.",
        "autocorrelation": "Fit the autocorrelation of an input, for --autocorrelation.",
        "train": "Train a small network on a linear task, to try memcurse on.",
    },
    "About": {
        "families": "List the recurrent families that are recognised.",
        "formats": "List the checkpoint formats that are read.",
        "schema": "Print the JSON Schema of what memcurse writes with --json.",
        "settings": "Show every default in force, and where it comes from.",
    },
}
"""The first line of every command's help, by the panel of `memcurse --help` that it stands in."""

COMMANDS = {name: line for commands in PANELS.values() for name, line in commands.items()}

HOMES = {
    **dict.fromkeys(("predict", "landscape", "autocorrelation", "rule"), "without_checkpoint"),
    **dict.fromkeys(("families", "formats", "schema", "settings"), "without_checkpoint"),
    **dict.fromkeys(("hessian", "compare", "simulate"), "inspect"),
    **dict.fromkeys(("diagonalize", "reparametrize"), "rewrite"),
}
"""The modules of the commands that have none of their own name."""


def load(name: str) -> Callable[..., Any]:
    """The function of a command, which bears its name."""
    home = importlib.import_module(f"memcurse_cli.commands.{HOMES.get(name, name)}")
    function: Callable[..., Any] = getattr(home, name)
    return function


def build(name: str) -> Any:
    """A command as Typer makes it of its function."""
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    single.command(name=name, no_args_is_help=False)(load(name))
    return typer.main.get_command(single)
