"""Defaults of options: the environment, then a settings file, then what the command itself says.

``--some-option`` has a variable ``MEMCURSE_SOME_OPTION``, and for one command, which comes first,
``MEMCURSE_INSPECT_SOME_OPTION``. In a file ``some-option = …`` stands at the top or in its table.
"""

from __future__ import annotations

import os
import sys
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import starmap
from pathlib import Path
from types import NoneType
from typing import Any

import typer

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands import COMMANDS, build, load
from memcurse_cli.commands.options import flag, option
from memcurse_cli.diagnosis.settings import SettingsFile, find_settings, read_settings
from memcurse_cli.errors import MemcurseError
from memcurse_cli.reports.console import say

# Commands that only list something, and those whose options describe one network.
UNCONFIGURABLE = ("rule", "families", "formats", "schema", "settings", "train", "init")
OWN_TABLE = "check"  # the command whose table holds limits
FORMAT = "format"  # which means something else in each command: only its own table sets it
PER_RUN = frozenset(
    {"help", "json", "output", "html", "config", "verbose", "baseline", "plot", "debug", "watch"}
    | {"until", "clip-modulus", "fold-gain", "torch", "optax"}
)
"""Options that say what one call does."""

FOUND_MAY_SET = frozenset(
    # What is read, and of what input and optimizer.
    {"family", "layer", "assume", "array", "device", "rho", "horizon", "readout", "lr"}
    | {"step-limit", "state-error", "modulus", "time-constant", "angle", "from", "from-angle"}
    | {"level", "parametrization", "normalization", "step-size", "ring", "as", "normalize"}
    | {"lags", "centred", "padding", "estimator", "spectra", "gates", "simulate", "input-scale"}
    # What is shown of it.
    | {"learning-rates", "correlation", "values", "all", FORMAT, "quiet", "no-cache", "interval"}
    | {"full", "section", "explain"}
)
"""The options that a settings file may set that was found and not named.

It may be a stranger's, of a repository that was cloned. What reaches the network (a Dask scheduler
may run code here), writes, names a file, keeps the machine busy (processes, a regular expression)
or lets a check pass regardless is not here, and neither is an option that nobody has thought about.
The limits are not either, as `diagnosis.policy` reads their table.
"""

# Of these only the one from the higher place counts; from the same place they still clash.
EXCLUSIVE = (("rho", "autocorrelation"), ("jobs", "executor"))
TYPED = "COMMANDLINE"
PLACES = ("", "DEFAULT", "DEFAULT_MAP", "ENVIRONMENT", TYPED)  # from the lowest to the highest
PREFIX = "MEMCURSE"
FILE, LINES = "memcurse.settings", "memcurse.lines"  # of a context: its file, ``FILE:LINE`` of each


def origin(context: Any, name: str) -> str:
    """The place that sets an option below the command line; empty where none does."""
    known = options_of(context.command).get(name)
    if known is None or source(context, known.name) == TYPED:
        return ""
    return variable_set(context.command.name, name) or context.meta.get(LINES, {}).get(name, "")


def source(context: Any, parameter: str) -> str:
    """What set a parameter of a call, one of `PLACES`."""
    found = context.get_parameter_source(parameter)
    return "" if found is None else str(found.name)


def settings_of(context: Any) -> SettingsFile | None:
    """The settings file that a command's context was made with."""
    file: SettingsFile | None = context.meta.get(FILE)
    return file


def option_name(parameter: Any) -> str:
    """``some-option`` of an option; empty for an argument."""
    return next((opt[2:] for opt in parameter.opts if opt.startswith("--")), "")


def options_of(command: Any) -> dict[str, Any]:
    """The options of a command that something other than the command line may set."""
    if command.name in UNCONFIGURABLE:
        return {}
    named = {option_name(parameter): parameter for parameter in command.params}
    return {name: known for name, known in named.items() if name and name not in PER_RUN}


@cache
def everything() -> dict[str, dict[str, Any]]:
    """The options of every command that settings may set, by command and name."""
    return {name: options_of(build(name)) for name in COMMANDS if name not in UNCONFIGURABLE}


def variables(command: str, name: str) -> list[str]:
    """The environment variables of an option, the first one that is set counts."""
    own = f"{PREFIX}_{command}_{name}".upper().replace("-", "_")
    return [own] if name == FORMAT else [own, f"{PREFIX}_{name}".upper().replace("-", "_")]


def variable_set(command: str, name: str) -> str:
    """The variable that sets an option; empty where none does."""
    return next((one for one in variables(command, name) if os.environ.get(one)), "")


def configure(context: typer.Context, config: Path | None) -> None:
    """Make the settings file the context's defaults; a wrong one raises `UsageError`."""
    if context.resilient_parsing:  # a shell asks for completions
        return
    file = find_settings() if config is None else read_settings(config)
    context.meta[FILE], context.meta[LINES], context.default_map = file, {}, {}
    if file is not None:
        command, options = str(context.command.name), options_of(context.command)
        types = typing.get_type_hints(load(command))
        for name, keys, value in entries(file, command, options):
            parameter = options[name].name
            kind = bare_type(types.get(parameter, str))
            context.default_map[parameter] = checked(file, keys, value, kind)
            context.meta[LINES][name] = file.place(*keys)


def _choose(context: Any) -> None:
    """Let options be as if not given that one from a higher place excludes."""
    options = options_of(context.command)

    def rank(name: str) -> int:
        return PLACES.index(source(context, options[name].name))

    for pair in EXCLUSIVE:
        if all(name in options for name in pair):
            lower, higher = sorted(pair, key=rank)
            if rank(lower) < rank(higher):
                context.params[options[lower].name] = None
    if FORMAT in options and source(context, "as_json") == TYPED != PLACES[rank(FORMAT)]:
        context.params[options[FORMAT].name] = None


def entries(
    file: SettingsFile, command: str, options: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """(option, key path, value) of what a file says of a command; its own table comes last.

    Raises `UsageError` for a key that is no option, or that only a named file may set.
    """
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in file.values.items():
        if not isinstance(value, dict):
            found.append(((key,), value))
        elif key not in (command, OWN_TABLE) and key not in everything():
            raise _unknown(file, (key,), everything())
    table = file.values.get(command, {})
    if command != OWN_TABLE and isinstance(table, dict):
        found += [((command, key), value) for key, value in table.items()]
    at_the_top = _at_the_top(command, options)
    for keys, value in found:
        name, in_table = keys[-1], len(keys) > 1
        own = set(options) if in_table else at_the_top
        if name not in own:
            others = () if in_table else starmap(_at_the_top, everything().items())
            known = own.union(*others)
            if name not in known:
                raise _unknown(file, keys, known)
        if file.found and name not in FOUND_MAY_SET:
            raise file.wrong(
                f"{name} is not taken from a settings file that was found, only from one that is "
                "named",
                *keys,
                remedy=f"give --{name}, {variables(command, name)[-1]} or --config {file.path}",
            )
        if name in own:
            yield name, keys, value


def _at_the_top(command: str, options: Mapping[str, Any]) -> set[str]:
    """The options of a command that can be set for all commands at once."""
    names = set(options) - {FORMAT}
    if command == OWN_TABLE:
        from memcurse_cli.diagnosis.policy import KEYS

        names -= set(KEYS)
    return names


def _unknown(file: SettingsFile, keys: tuple[str, ...], known: typing.Iterable[str]) -> Exception:
    from memcurse_cli.diagnosis.policy import KEYS, unknown_key

    name = keys[-1].replace("_", "-")
    if name in KEYS:
        remedy = f"write it below [{'.'.join((*file.prefix, OWN_TABLE))}]"
        return file.wrong(f"{name} stands outside its table", *keys, remedy=remedy)
    return unknown_key(file, keys, sorted(known))


def bare_type(hint: Any) -> Any:
    """The type of an option in the command's signature, without None."""
    kinds = typing.get_args(hint)
    return next(kind for kind in kinds if kind is not NoneType) if NoneType in kinds else hint


def checked(file: SettingsFile, keys: tuple[str, ...], value: Any, kind: Any) -> Any:
    """A value, if it has the type of its option; one of a list may stand for a list of one."""
    if typing.get_origin(kind) is list:
        (inner,) = typing.get_args(kind)
        several = value if isinstance(value, list) else [value]
        return [checked(file, keys, one, inner) for one in several]
    accepted, words, example = {
        bool: ((bool,), "true or false", "true"),
        int: ((int,), "a whole number", "300"),
        float: ((int, float), "a number", "0.001"),
    }.get(kind, ((str,), "a text", '"…"'))
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        remedy = f"write {keys[-1]} = {example}"
        raise file.wrong(f"{keys[-1]} is not {words}", *keys, remedy=remedy)
    return value


def _declaration(
    config: Path | None = option(
        "FILE",
        "Settings, instead of the nearest memcurse.toml or pyproject.toml.",
        envvar="MEMCURSE_CONFIG",
        show_envvar=False,
        is_eager=True,
        expose_value=False,
        callback=configure,
    ),
    verbose: bool = flag(
        "--verbose",
        "Say on standard error where options come from and what was used.",
        envvar="MEMCURSE_VERBOSE",
        show_envvar=False,
    ),
    debug: bool = flag("--debug", "Show the traceback of an error.", expose_value=False),
) -> None:
    """Declare the options of every command; Typer makes its own objects of them."""


def prepare(name: str) -> Any:
    """A command with the common options, and its own options' defaults from elsewhere."""
    command = build(name)
    for one, known in options_of(command).items():
        known.envvar, known.show_envvar = variables(name, one), False
    maker = typer.Typer(add_completion=False)
    maker.command()(_declaration)
    # `settings` has no options of its own to set, and is about the file.
    lacks_config = name in UNCONFIGURABLE and name != "settings"
    left_out = ("help", "config") if lacks_config else ("help",)
    common = typer.main.get_command(maker).params
    command.params += [one for one in common if one.name not in left_out]
    command.invoke = _narrated(command.invoke)
    return command


def _narrated(invoke: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A command that says on standard error what it went by, where that is asked for.

    An error about an option names what set it, where that is not the command line.
    """

    def run(context: Any) -> Any:
        verbose = context.params.pop("verbose")  # which no command has a parameter for
        _choose(context)
        if verbose:
            _tell(context)
        started = time.perf_counter()
        try:
            return invoke(context)
        except MemcurseError as error:
            place = origin(context, error.where.removeprefix("--"))
            if place:
                error.where = f"{place}: {error.where}"
            raise
        finally:
            if verbose:
                say(f"memcurse: {time.perf_counter() - started:.2f} s{_memory()}")

    return run


def _tell(context: Any) -> None:
    """Say where options come from that are not on the command line."""
    file = settings_of(context)
    if file is not None:
        say(f"memcurse: settings are read from {file.path}")
    for name, known in options_of(context.command).items():
        place, value = origin(context, name), context.params.get(known.name)
        if place and value is not None:
            say(f"memcurse: {name} = {shown(value)} ({place})")


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
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return "none" if value is None else f"{value}"


def _memory() -> str:
    try:
        import resource
    except ImportError:  # there is none on Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    in_bytes = peak if sys.platform == "darwin" else peak * 1024
    return f", {in_bytes / 1e6:.0f} MB of memory at most"
