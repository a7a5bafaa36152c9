"""What a diagnosis is taken under: the input, the horizon, the optimizer's step, the limits.

Options say it, and the nearest `memcurse.toml`, or `pyproject.toml` with `[tool.memcurse]`, from
the working directory up to a repository's root. As anyone may have written that file, commands
take from it only what `memcurse_cli.commands.defaults.FOUND_MAY_SET` lists.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import Components, components_of
from memcurse_cli.schema.report import InputAssumption
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.finite_sums import Readout
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import Moments, moments

if TYPE_CHECKING:
    from memcurse_cli.families.rewriting import Rewriting

FILE = "memcurse.toml"
PROJECT = "pyproject.toml"
PREFIX = ("tool", "memcurse")
MAX_BYTES = 1 << 20
TABLE = re.compile(r"^\s*(?P<array>\[)?\[(?P<name>[^\[\]]+)\]\]?\s*(?:#.*)?$")
ENTRY = re.compile(r"^\s*(?P<name>(?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[\w\"'-]+)*)\s*=")
KeyPath = tuple[str | int, ...]

LARGEST_RATE = 1e9  # beyond any rate that trains, and far below where a step effect overflows


class Settings(Struct, frozen=True):
    """The assumptions behind a report.

    A ``readout`` of ``last`` reads states and loss at step T, ``every`` averages both over
    t = 1..T. None reads states at the last step and the loss at every one, as training does.
    """

    autocorrelation: Autocorrelation = WHITE  # R(Δ) of the drive of each state
    horizon: int | None = None  # T in steps; None for an infinite sequence
    horizon_source: str | None = None  # ``option``, ``checkpoint`` or ``assumed``
    readout: Readout | None = None
    learning_rate: float = 1e-3  # what one step of an adaptive optimizer changes a parameter by
    learning_rate_source: str | None = None  # ``option``, ``assumed``, or where it is recorded
    rates: Mapping[str, float] = {}  # of tensors with one of their own
    current_learning_rate: float | None = None  # that of the checkpoint's last step
    optimizer: str | None = None  # its name
    adaptive: bool | None = None  # whether it moves parameters by about their rate
    step_limit: float = 0.1  # the step effect above which a group is told
    state_error: float = 0.01  # of a state, above which a type is not good enough to keep it in
    values: bool = False  # every eigenvalue goes into the report
    spectra: bool = False  # the spectra of gated layers' hidden weights do
    what_if: tuple[Rewriting, ...] = ()  # other parameters that every layer is reported under
    learning_rates: bool = False  # those of the recurrent groups are derived
    gates: bool = False  # input-dependent gates are reported as they move
    # Every layer is run, or none; None runs those that have no closed form, where that is cheap.
    simulate: bool | None = None
    inputs: Floats | None = None  # (N, T, F) to run them on, in place of drawn ones
    work: float = 2e9  # multiplications that running a layer may take
    input_scale: float = 1.0  # the RMS of a component of their input; normalised inputs have 1

    @classmethod
    def asked(
        cls,
        rho: float | None,
        autocorrelation: Autocorrelation | str | None,
        horizon: float | None,
        readout: str | None,
        **others: Any,
    ) -> Settings:
        """The settings of a call; raises `UsageError` where an option is outside its domain.

        A ``horizon`` of infinity, as of None, is a sequence without end.
        """
        steps = None if horizon == math.inf else horizon
        if steps is not None and steps % 1 != 0:
            what = f"a horizon of {horizon:g} steps is not whole"
            remedy = "give a number of steps, or inf for a sequence without end"
            raise UsageError(what, where="--horizon", remedy=remedy)
        return cls(
            autocorrelation=choose_autocorrelation(rho, autocorrelation),
            horizon=None if steps is None else int(steps),
            horizon_source=None if horizon is None else "option",
            readout=check_readout(readout),
            **others,
        )

    def rate_of(self, tensor: str) -> float:
        """The learning rate of a tensor."""
        return self.rates.get(tensor, self.learning_rate)

    def of_layer(self, tensors: Iterable[str]) -> Settings:
        """The settings for a layer with these recurrent tensors; see `rate`."""
        rates = {tensor: self.rate_of(tensor) for tensor in tensors}
        return replace(self, rates=rates)

    @property
    def rate(self) -> float:
        """The largest rate at which the layer's recurrent tensors are trained."""
        return max(self.rates.values(), default=self.learning_rate)

    @property
    def of_states(self) -> tuple[Autocorrelation, int | None, Readout]:
        """R(Δ), the horizon, and where states and their sensitivities are read."""
        return self.autocorrelation, self.horizon, self.readout or "last"

    @property
    def of_loss(self) -> tuple[Autocorrelation, int | None, Readout]:
        """R(Δ), the horizon, and where the loss that a Hessian belongs to is read."""
        return self.autocorrelation, self.horizon, self.readout or "every"

    def moments_of(self, log_eigenvalues: Complexes) -> Moments:
        """The moments of states with these log λ, at γ = 1."""
        return moments(log_eigenvalues, *self.of_states)

    @property
    def input(self) -> InputAssumption:
        """What a report says that was assumed."""
        assumed = {name: getattr(self, name) for name in InputAssumption.__struct_fields__}
        assumed["autocorrelation"] = components_of(self.autocorrelation)
        if not self.gates:
            del assumed["input_scale"]
        return InputAssumption(**assumed)

    def check_readout_has_horizon(self) -> None:
        """Raise `UsageError` for a place to read at in a sequence without end."""
        if self.readout is not None and self.horizon is None:
            what = "an infinite sequence has no last step and no first"
            raise UsageError(what, where="--readout", remedy="give --horizon T")

    def __post_init__(self) -> None:
        rate, scale, horizon = self.learning_rate, self.input_scale, self.horizon
        if not 0 < rate <= LARGEST_RATE:
            what = f"a learning rate of {rate:g} is outside (0, {LARGEST_RATE:g}]"
            remedy = "give the optimizer's rate, for example 1e-3"
            raise UsageError(what, where="--lr", remedy=remedy)
        if not 0 < self.step_limit < math.inf:
            what = f"a step effect of {self.step_limit:g} is not positive"
            remedy = "give a fraction of the state, for example 0.1"
            raise UsageError(what, where="--step-limit", remedy=remedy)
        if not 0 < self.state_error < 1:
            what = f"an error of the state of {self.state_error:g} is outside (0, 1)"
            remedy = "give a fraction of the state, for example 0.01"
            raise UsageError(what, where="--state-error", remedy=remedy)
        if not 0 <= scale < math.inf:
            what = f"an input scale of {scale:g} is not a finite number of at least 0"
            remedy = "give the RMS of a component of the gates' input; 1 if it is normalised"
            raise UsageError(what, where="--input-scale", remedy=remedy)
        if horizon is not None and horizon < 1:
            what = f"a horizon of {horizon} steps is too short"
            raise UsageError(what, where="--horizon", remedy="give one step or more")
        if horizon is not None and horizon >= 2**63:
            what = "the horizon does not fit into 64 bits"
            raise UsageError(what, where="--horizon", remedy="give inf for a sequence without end")


def require_known(name: str, known: Iterable[str], option: str, remedy: str) -> Any:
    """The name; raises `UsageError` for one that an option does not take."""
    if name not in known:
        raise UsageError(f"'{name}' is not known", where=option, remedy=remedy)
    return name


def check_readout(name: str | None) -> Readout | None:
    """The readout of this name; raises `UsageError` where there is none."""
    if name is None:
        return None
    return require_known(name, get_args(Readout), "--readout", "give last or every")


def choose_autocorrelation(
    rho: float | None, autocorrelation: Autocorrelation | str | None
) -> Autocorrelation:
    """The mixture, or that of one ρ, or white noise; raises `UsageError` where both are given."""
    if autocorrelation is None:
        return WHITE if rho is None else Autocorrelation.from_rho(rho)
    if rho is not None:
        what = "both a ρ and an autocorrelation are given"
        remedy = "give --rho for one decay or --autocorrelation for a mixture"
        raise UsageError(what, where="--rho", remedy=remedy)
    return read_autocorrelation(autocorrelation)


def read_autocorrelation(given: Autocorrelation | str | os.PathLike[str]) -> Autocorrelation:
    """What ``--autocorrelation`` means: ``"w:ρ,w:ρ:ω,…"``, or what the command of that name wrote.

    Raises `UsageError` for neither pairs nor such a file, or values outside their domain.
    """
    if isinstance(given, Autocorrelation):
        return given
    text = os.fspath(given)
    if not os.path.exists(text):
        try:
            return Autocorrelation.parse(text)
        except UsageError as error:
            if text and set(text) <= set("0123456789.:,;+-eE naif"):  # a list of pairs after all
                raise
            what = f"'{shown_place(text)}' is neither a file nor a list of pairs"
            remedy = f"{error.remedy}, or name the JSON that memcurse autocorrelation wrote"
            raise UsageError(what, where="autocorrelation", remedy=remedy) from error
    return _from_file(text)


def _from_file(path: str) -> Autocorrelation:
    from memcurse_cli.checkpoints.untrusted.names import MAX_JSON_BYTES, parse_json, printable
    from memcurse_cli.checkpoints.untrusted.source import read_bounded
    from memcurse_cli.schema.theory import AutocorrelationDocument

    def wrong(what: str) -> UsageError:
        remedy = "write one with memcurse autocorrelation DATA --json"
        return UsageError(what, where=printable(path), remedy=remedy)

    try:
        document = parse_json(read_bounded(path, MAX_JSON_BYTES))
    except ValueError as error:
        raise wrong("not the JSON of an autocorrelation") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != AutocorrelationDocument.SCHEMA:
        raise wrong(f"its schema is {str(schema)[:40]!r}, not {AutocorrelationDocument.SCHEMA!r}")
    try:
        components = msgspec.convert(document.get("components") or None, Components)
    except msgspec.ValidationError as error:
        raise wrong('its "components" are not weights and rhos') from error
    return Autocorrelation.from_components(components)


class SettingsFile(Struct, frozen=True):
    """One settings file."""

    path: str  # as a user would name it
    values: Mapping[str, Any]  # the table of memcurse
    text: str  # the whole file, to find lines in
    prefix: tuple[str, ...] = ()  # the table that ``values`` is: nothing or ("tool", "memcurse")
    found: bool = False  # rather than named by the user

    def place(self, *keys: str | int) -> str:
        """``FILE:LINE`` of a key, or of the table that it would stand in."""
        line = find_line(self.text, (*self.prefix, *keys))
        return self.path if line is None else f"{self.path}:{line}"

    def wrong(self, what: str, *keys: str | int, remedy: str) -> UsageError:
        """An error at a key."""
        return UsageError(what, where=self.place(*keys), remedy=remedy)


def find_settings(folder: Path | None = None) -> SettingsFile | None:
    """The settings file of the working directory, or of a folder; errors of `read_settings`."""
    start = (folder or Path.cwd()).resolve()
    for parent in _searched(start):
        for name in (FILE, PROJECT):
            path = parent / name
            if os.path.isfile(path):
                shown = path.name if parent == start else str(path)
                settings = read_settings(path, shown=shown, found=True)
                if settings is not None:
                    return settings
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


def read_settings(path: Path, *, shown: str = "", found: bool = False) -> SettingsFile | None:
    """A settings file; None where it was found, is a `PROJECT`, and has no table of memcurse.

    Messages call it ``shown``. Of one that was ``found`` rather than named no link is followed out
    of its folder, as an error could show the keys of any file. Raises `UsageError` for one that is
    missing, not TOML, too large, or has no table of memcurse.
    """
    shown = shown or shown_place(path)
    optional = found and path.name == PROJECT

    def wrong(what: str, remedy: str, line: str = "") -> UsageError:
        return UsageError(what, where=f"{shown}{line}", remedy=remedy)

    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise wrong("this is no file", "name a TOML file with --config")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if optional and b"memcurse" not in content:
            return None  # a project that says nothing of memcurse need not even be valid
        if found and not path.resolve().is_relative_to(path.parent):
            raise wrong(
                "this link leads out of its folder, and is not followed",
                f"copy the file, or name it with --config {shown}",
            )
        if len(content) > MAX_BYTES:
            raise wrong(f"more than {MAX_BYTES} bytes", "keep settings short")
        text = content.decode()
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise wrong(what, f"give a {FILE} or a {PROJECT}") from error
    except UnicodeDecodeError as error:
        raise wrong("not UTF-8 text", "save it as UTF-8, which TOML requires") from error
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The line stands behind the file's name, where editors look for it.
        words, _, place = str(error).partition(" (at line ")
        line = f":{place.partition(',')[0]}" if place else ""
        raise wrong(f"not TOML: {words or 'a syntax error'}", "correct that line", line) from error
    except ValueError as error:  # Python's limit on the digits of a number
        raise wrong("a whole number does not fit into 64 bits", "write a smaller one") from error
    file = SettingsFile(shown, document, text, found=found)
    if path.name == PROJECT:
        tool = document.get("tool")
        table = tool.get("memcurse") if isinstance(tool, dict) else None
        if table is None and optional:
            return None
        if not isinstance(table, dict):
            raise wrong("has no table [tool.memcurse]", f"add one, or give a {FILE}")
        file = replace(file, values=table, prefix=PREFIX)
    _check_whole_numbers(file, file.values)
    return file


def _check_whole_numbers(file: SettingsFile, value: object, *place: str | int) -> None:
    """Refuse a whole number beyond the 64 bits that TOML asks a reader for."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        what = f"{place[-1]} does not fit into 64 bits"
        raise file.wrong(what, *place, remedy="write a smaller number")
    if isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_whole_numbers(file, inner, *place, key)


def find_line(text: str, keys: KeyPath) -> int | None:
    """The line, from 1, at which a key or something in it stands; else the table around it.

    An integer in ``keys`` is the place in an array of tables. tomllib keeps no lines, so this reads
    headings and keys again; what it cannot follow (a key inside an inline table or a string of
    several lines) is found at what is around it.
    """
    seen: dict[tuple[str, ...], int] = {}
    table: KeyPath = ()
    shared, best = 0, None
    for number, line in enumerate(text.split("\n"), 1):
        heading, entry = TABLE.match(line), ENTRY.match(line)
        here: KeyPath = ()
        if heading is not None:
            names = _split(heading["name"])
            if heading["array"]:
                seen[names] = seen.get(names, -1) + 1
            table = here = _indexed(names, seen)
        elif entry is not None:
            here = (*table, *_split(entry["name"]))
        length = min(len(here), len(keys))
        if length > shared and here[:length] == keys[:length]:
            shared, best = length, number
    return best


def _split(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _indexed(names: tuple[str, ...], seen: Mapping[tuple[str, ...], int]) -> KeyPath:
    """A table's name with the place of each array of tables on the way."""
    path: list[str | int] = []
    for length, name in enumerate(names, 1):
        path.append(name)
        if names[:length] in seen:
            path.append(seen[names[:length]])
    return tuple(path)
