"""What a diagnosis is taken under: the input, the horizon, the optimizer's step, the limits.

They come from options, and from `memcurse.toml` or the table `[tool.memcurse]` of a
`pyproject.toml`. The nearest folder that holds one, from the working directory upwards, is the only
one that is read; in one folder `memcurse.toml` comes first. The search ends at a repository's root,
and before a folder of another user. A file that was found so may come from anyone whose repository
was cloned, so that commands take from it only what `memcurse_cli.commands.defaults.FOUND_MAY_SET`
lists.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError
from memcurse_cli.families.rewriting import Rewriting
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Moments, Readout, moments

FILE = "memcurse.toml"
PROJECT = "pyproject.toml"
PREFIX = ("tool", "memcurse")
MAX_BYTES = 1 << 20
TABLE = re.compile(r"^\s*(?P<array>\[)?\[(?P<name>[^\[\]]+)\]\]?\s*(?:#.*)?$")
ENTRY = re.compile(r"^\s*(?P<name>(?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[\w\"'-]+)*)\s*=")
KeyPath = tuple[str | int, ...]

LARGEST_RATE = 1e9
"""Beyond any rate that trains, and far below where a step effect overflows."""


@dataclass(frozen=True)
class Settings:
    """The assumptions behind a report.

    Attributes:
        autocorrelation: R(Δ) of the drive of each state; white noise by default.
        horizon: T in steps, or None for an infinite sequence.
        horizon_source: who said so: ``option`` or ``checkpoint``.
        readout: ``last`` reads states and loss at step T, ``every`` averages both over t = 1..T.
            None reads states at the last step and the loss at every one, as training does.
        learning_rate: the change that one step of an adaptive optimizer makes to a parameter.
        watch_limit: the step effect above which a group is to be watched.
        cursed_limit: the step effect above which it is cursed: at 1 a step replaces the state.
        values: whether every eigenvalue goes into the report.
        spectra: whether the spectra of gated layers' hidden weights do.
        learning_rates: whether learning rates of the recurrent groups are derived.
        what_if: other parameters that every layer is reported under, beside its own.
        gates: whether input-dependent gates are reported as they move.
        input_scale: the RMS of every component of the gates' input then; normalised inputs have 1.
    """

    autocorrelation: Autocorrelation = WHITE
    horizon: int | None = None
    horizon_source: str | None = None
    readout: Readout | None = None
    learning_rate: float = 1e-3
    watch_limit: float = 0.1
    cursed_limit: float = 1.0
    values: bool = False
    spectra: bool = False
    what_if: tuple[Rewriting, ...] = ()
    learning_rates: bool = False
    gates: bool = False
    input_scale: float = 1.0

    @property
    def state_readout(self) -> Readout:
        """Where states and their sensitivities are read."""
        return self.readout or "last"

    @property
    def loss_readout(self) -> Readout:
        """Where the loss that a Hessian belongs to is read."""
        return self.readout or "every"

    def moments_of(self, log_eigenvalues: NDArray[np.complex128]) -> Moments:
        """The moments of states with these log λ, at γ = 1."""
        return moments(log_eigenvalues, self.autocorrelation, self.horizon, self.state_readout)

    def check_readout_has_horizon(self) -> None:
        """A place to read a sequence at needs a sequence that ends.

        Raises:
            UsageError: a readout without a horizon.
        """
        if self.readout is not None and self.horizon is None:
            raise UsageError(
                "an infinite sequence has no last step and no first",
                where="--readout",
                remedy="give --horizon T",
            )

    def __post_init__(self) -> None:
        horizon = self.horizon
        for wrong, what, where, remedy in (
            (
                not 0 < self.learning_rate <= LARGEST_RATE,
                f"a learning rate of {self.learning_rate:g} is outside (0, {LARGEST_RATE:g}]",
                "--lr",
                "give the optimizer's rate, for example 1e-3",
            ),
            (
                not 0 < self.watch_limit <= self.cursed_limit < float("inf"),
                f"the limits {self.watch_limit:g} and {self.cursed_limit:g} are not in order",
                "limits",
                "give 0 < watch <= cursed",
            ),
            (
                not 0 <= self.input_scale < float("inf"),
                f"an input scale of {self.input_scale:g} is not a finite number of at least 0",
                "--input-scale",
                "give the RMS of a component of the gates' input; 1 if it is normalised",
            ),
            (
                horizon is not None and horizon < 1,
                f"a horizon of {horizon} steps is too short",
                "--horizon",
                "give one step or more",
            ),
            (
                horizon is not None and horizon >= 2**63,
                "the horizon does not fit into 64 bits",
                "--horizon",
                "leave it out for an infinite sequence",
            ),
        ):
            if wrong:
                raise UsageError(what, where=where, remedy=remedy)


def check_readout(name: str | None) -> Readout | None:
    """The readout of this name.

    Raises:
        UsageError: there is none.
    """
    if name is not None and name not in get_args(Readout):
        raise UsageError(f"'{name}' is not known", where="--readout", remedy="give last or every")
    return cast(Readout | None, name)


class ConfigurationError(UsageError):
    """A settings file that is not TOML, or holds a key or a value that does not exist."""


@dataclass(frozen=True)
class SettingsFile:
    """One settings file.

    Attributes:
        path: where it is, as a user would name it.
        values: the table of memcurse.
        text: the whole file, to find lines in.
        prefix: the table that ``values`` is, ``("tool", "memcurse")`` or nothing.
        found: whether it was found rather than named by the user.
    """

    path: str
    values: Mapping[str, Any]
    text: str
    prefix: tuple[str, ...] = ()
    found: bool = False

    def place(self, *keys: str | int) -> str:
        """``FILE:LINE`` of a key, or of the table that it would stand in."""
        line = find_line(self.text, (*self.prefix, *keys))
        return self.path if line is None else f"{self.path}:{line}"

    def wrong(self, what: str, *keys: str | int, remedy: str) -> ConfigurationError:
        """An error at a key."""
        return ConfigurationError(what, where=self.place(*keys), remedy=remedy)


def find_settings(folder: Path | None = None) -> SettingsFile | None:
    """The settings file that applies to a folder, by default the working directory.

    Raises:
        ConfigurationError: it is not TOML, or cannot be read.
    """
    start = (Path.cwd() if folder is None else folder).resolve()
    for parent in _searched(start):
        for name in (FILE, PROJECT):
            path = parent / name
            if os.path.isfile(path):
                shown = path.name if parent == start else str(path)
                settings = read_settings(path, shown=shown, optional=name == PROJECT, found=True)
                if settings is not None:
                    return replace(settings, found=True)
    return None


def _searched(start: Path) -> Iterator[Path]:
    """A folder and those above it, up to the repository's root, that are not another user's.

    The folder itself may be: where a container's root works in a checkout, its owner's count.
    """
    owners = {owner(start)} | {getattr(os, "getuid", lambda: None)()}
    for folder in (start, *start.parents):
        if owner(folder) not in owners:
            return
        yield folder
        if os.path.lexists(folder / ".git"):  # a file in a worktree or a submodule
            return


def owner(folder: Path) -> int | None:
    """The number of the user whose folder it is; None where it cannot be told."""
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def read_settings(
    path: Path, *, shown: str = "", optional: bool = False, found: bool = False
) -> SettingsFile | None:
    """A settings file; None where it is optional and has no table of memcurse.

    Args:
        path: where it is.
        shown: what to call it in messages, where that is not ``path``.
        optional: whether it may be of something else.
        found: whether it was found rather than named: then no link is followed out of its folder,
            as an error could show the keys of any file.

    Raises:
        ConfigurationError: it is missing, not TOML, too large, or has no table of memcurse.
    """
    shown = shown or shown_place(path)
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ConfigurationError(
                "this is no file", where=shown, remedy="name a TOML file with --config"
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if optional and b"memcurse" not in content:
            return None  # a project that says nothing of memcurse need not even be valid
        if found and not path.resolve().is_relative_to(path.parent):
            raise ConfigurationError(
                "this link leads out of its folder, and is not followed",
                where=shown,
                remedy=f"copy the file, or name it with --config {shown}",
            )
        if len(content) > MAX_BYTES:
            raise ConfigurationError(
                f"more than {MAX_BYTES} bytes", where=shown, remedy="keep settings short"
            )
        text = content.decode()
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror or error}",
            where=shown,
            remedy=f"give a {FILE} or a {PROJECT}",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            "not UTF-8 text", where=shown, remedy="save it as UTF-8, which TOML requires"
        ) from error
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The line stands behind the file's name, where editors look for it.
        line = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        words = (str(error)[: line.start()] if line else str(error)) or "a syntax error"
        raise ConfigurationError(
            f"not TOML: {words}",
            where=f"{shown}:{line[1]}" if line else shown,
            remedy="correct that line",
        ) from error
    except ValueError as error:  # Python's limit on the digits of a number
        raise ConfigurationError(
            "a whole number does not fit into 64 bits", where=shown, remedy="write a smaller one"
        ) from error
    if path.name != PROJECT:
        return _with_whole_numbers(SettingsFile(shown, document, text))
    tool = document.get("tool")
    table = tool.get("memcurse") if isinstance(tool, dict) else None
    if table is None and optional:
        return None
    if not isinstance(table, dict):
        raise ConfigurationError(
            "has no table [tool.memcurse]", where=shown, remedy=f"add one, or give a {FILE}"
        )
    return _with_whole_numbers(SettingsFile(shown, table, text, PREFIX))


def _with_whole_numbers(file: SettingsFile) -> SettingsFile:
    """The file, if every whole number has the 64 bits that TOML asks a reader for."""

    def check(value: object, *place: str | int) -> None:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise file.wrong(
                f"{place[-1]} does not fit into 64 bits", *place, remedy="write a smaller number"
            )
        if isinstance(value, Mapping | list):
            for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
                check(inner, *place, key)

    check(file.values)
    return file


def find_line(text: str, keys: KeyPath) -> int | None:
    """The line, from 1, at which a key or something in it stands; else the table around it.

    An integer in ``keys`` is the place in an array of tables. tomllib keeps no lines, so this reads
    headings and keys again; what it cannot follow (a key inside an inline table or a string of
    several lines) is found at what is around it.
    """
    seen: dict[tuple[str, ...], int] = {}
    table: KeyPath = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        heading = TABLE.match(line)
        here: KeyPath = ()
        if heading is not None:
            names = _split(heading["name"])
            if heading["array"]:
                seen[names] = seen.get(names, -1) + 1
            table = here = _indexed(names, seen)
        else:
            entry = ENTRY.match(line)
            if entry is not None:
                here = (*table, *_split(entry["name"]))
        shared = min(len(here), len(keys))
        if shared > (0 if best is None else best[0]) and here[:shared] == keys[:shared]:
            best = shared, number
    return None if best is None else best[1]


def _split(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _indexed(names: Sequence[str], seen: Mapping[tuple[str, ...], int]) -> KeyPath:
    """A table's name with the place of each array of tables on the way."""
    path: list[str | int] = []
    for length in range(1, len(names) + 1):
        path.append(names[length - 1])
        if tuple(names[:length]) in seen:
            path.append(seen[tuple(names[:length])])
    return tuple(path)
