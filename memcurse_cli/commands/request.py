"""What inspect, check, compare, track and hessian are asked in common, and what they are given."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from msgspec import Struct

from memcurse_cli.checkpoints.untrusted.names import MAX_JSON_BYTES, is_url, parse_json, shown_place
from memcurse_cli.checkpoints.untrusted.source import LocalFile, matching
from memcurse_cli.commands.defaults import TYPED, source
from memcurse_cli.commands.options import (
    AUTOCORRELATION,
    ONE_RHO,
    QUIET,
    READOUT,
    flag,
    option,
    progress_line,
)
from memcurse_cli.errors import CheckpointError, UsageError
from memcurse_cli.reports.console import visible

if TYPE_CHECKING:
    from memcurse_cli.schema.report import Report

Taken = TypeVar("Taken")

STDIN = "-"
BLANK = b" \t\r\n\xef\xbb\xbf"
PEEK = 4096


def _steps(given: str | float) -> float:
    """A horizon, which a file has as a number: whole, or ``inf``, not what no float can hold."""
    try:
        steps = float(given)
    except ValueError:
        steps = math.nan
    if math.isnan(steps) or (math.isinf(steps) and str(given).strip().lower() != "inf"):
        raise typer.BadParameter("give a number of steps, or inf for a sequence without end")
    return steps


class Request(Struct, frozen=True):
    """How checkpoints are read: the options that `with_request` gives to a command."""

    rho: float | None = ONE_RHO
    autocorrelation: str | None = AUTOCORRELATION
    horizon: float | None = option(
        "T|inf",
        "Steps of a sequence that starts from zero; without it what the checkpoint "
        "says, else 1024.",
        "--horizon",
        parser=_steps,
    )
    readout: str | None = READOUT
    learning_rate: float | None = option(
        "RATE",
        "The optimizer's learning rate; without it the largest that the checkpoint "
        "records, else 0.001.",
        "--lr",
    )
    step_limit: float = option("X", "Step effect from which a group is told.", default=0.1)
    state_error: float = option(
        "X", "Error of the state up to which a type can keep it.", default=0.01
    )
    family: str | None = option("NAME", "Read as this family only.")
    layer: list[str] | None = option("GLOB", "Only layers whose name matches; repeatable.")
    assume: list[str] | None = option(
        "KEY=VALUE", "What the checkpoint does not store, as discretization=bilinear; repeatable."
    )
    device: str = option("auto|cpu|cuda[:i]", "What works on large arrays.", default="auto")
    spectra: bool = flag(
        "--spectra",
        "Take the spectra of gated layers' hidden weights, and say where GRUs and LSTMs "
        "work under random inputs.",
    )
    simulate: bool | None = flag(
        "--simulate/--no-simulate",
        "Run every layer on drawn inputs, longer than the gated ones are by default; or none.",
        default=None,
    )
    quiet: bool = QUIET
    left_out: tuple[str, ...] = ()  # the fields above that the command has no option for

    def arguments(self) -> dict[str, Any]:
        """The options as `memcurse_cli.inspect` and its like take them; raises `UsageError`."""
        given = {name: getattr(self, name) for name in OPTIONS if name not in self.left_out}
        del given["layer"], given["quiet"]
        assumed = dict(map(_assumption, self.assume or ()))
        return {**given, "layers": tuple(self.layer or ()), "assume": assumed}

    def inspect(self, path: str, **further: Any) -> Report:
        """The report on a checkpoint; ``further`` are arguments of `memcurse_cli.inspect`."""
        from memcurse_cli.diagnosis.inspection import inspect

        return self.asked_of(inspect, path, **further)

    def asked_of(self, take: Callable[..., Taken], path: str, **further: Any) -> Taken:
        """What `inspect`, or its like, says of a checkpoint; its progress is shown."""
        with progress_line(quiet=self.quiet) as show:

            def told(done: int, total: int, layer: str) -> None:
                show(visible(f"{shown_place(path)}: layer {done + 1} of {total}"))

            return take(path, **self.arguments(), progress=told, **further)

    def reports(self, path: str, context: typer.Context, *, values: bool = False) -> list[Report]:
        """The reports that a JSON file or standard input holds, or that of a checkpoint.

        Raises UsageError: an option of reading beside a report; MemcurseError: what cannot be read.
        """
        text = _stdin() if path == STDIN else report_text(path)
        if text is None:
            return [self.inspect(path, values=values)]
        where = "standard input" if path == STDIN else shown_place(path)
        for parameter in context.command.params:
            typed = source(context, parameter.name or "") == TYPED
            if typed and parameter.name in OPTIONS and parameter.name != "quiet":
                raise UsageError(
                    f"{where} is a report, whose figures are taken already",
                    where=parameter.opts[0],
                    remedy="give the option to memcurse inspect, or name the checkpoint itself",
                )
        return load_reports(text, where)


OPTIONS = tuple(name for name in Request.__struct_fields__ if name != "left_out")


def with_request(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `Request` in place of its parameter ``request``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = inspect.signature(Request, eval_str=True).parameters
        offered = [name for name in OPTIONS if name not in left_out]
        parameters = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            own = [shared[name] for name in offered] if parameter.name == "request" else [parameter]
            parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]

        @functools.wraps(command)
        def asked(**given: Any) -> None:
            named = {name: given.pop(name, shared[name].default.default) for name in OPTIONS}
            command(request=Request(**named, left_out=left_out), **given)

        vars(asked)["__signature__"] = inspect.Signature(parameters)
        asked.__annotations__ = {one.name: one.annotation for one in parameters}
        return asked

    return decorate


def expanded(paths: Sequence[str]) -> list[str]:
    """The paths that a command was given, a pattern replaced by what it matches, each once."""
    found: dict[str, None] = {}
    for path in paths:
        named = matching(path)
        if not named:
            raise UsageError(
                "no file matches",
                where=shown_place(path),
                remedy="check the pattern and the folder that it starts from; ** crosses folders",
            )
        found |= dict.fromkeys(named)
    return list(found)


def _assumption(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator and value):
        raise UsageError(
            f"{text!r} is not KEY=VALUE",
            where="--assume",
            remedy="for example --assume discretization=bilinear; see memcurse families",
        )
    return key.strip(), value.strip()


def load_reports(text: bytes, where: str) -> list[Report]:
    """The reports of a JSON text, at least one.

    Raises UsageError: another schema or version, or no report; MemcurseError: not JSON, or not as
    the schema says.
    """
    from memcurse_cli.schema.json_codec import from_json, not_a_report

    try:
        document = parse_json(text)
    except ValueError as error:
        raise not_a_report(f"not JSON: {error}", where) from error
    several = document if isinstance(document, list) else [document]
    reports = [from_json(one, where=where) for one in several]
    if not reports:
        raise UsageError(
            "holds no report", where=where, remedy="write one with memcurse inspect --json"
        )
    return reports


def _stdin() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "standard input is a terminal",
            where=STDIN,
            remedy="pipe a report in: memcurse inspect model.safetensors --json | memcurse check -",
        )
    text = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
    if not text.strip(BLANK):
        raise UsageError(
            "nothing was piped in",
            where="standard input",
            remedy="pipe the JSON of memcurse inspect --json; did that command fail?",
        )
    if text.lstrip(BLANK)[:1] not in (b"{", b"["):
        raise UsageError(
            "not JSON",
            where="standard input",
            remedy="pipe the output of memcurse inspect --json; a checkpoint is given by its path",
        )
    return text


def report_text(path: str) -> bytes | None:
    """The text of a file whose content is a report's; None for whatever else it is."""
    if is_url(path):
        return None
    try:
        with closing(LocalFile(path)) as file:
            if file.first(PEEK).lstrip(BLANK)[:1] not in (b"{", b"["):
                return None
            text = file.first(MAX_JSON_BYTES + 1)
    except CheckpointError:  # a folder, or nothing at all: inspecting it will say what is wrong
        return None
    try:
        document = parse_json(text)
    except ValueError:  # of a damaged report, the bytes are for the error that says what is wrong
        return text if path.endswith(".json") else None
    first = document[0] if isinstance(document, list) and document else document
    is_report = isinstance(first, dict) and str(first.get("schema", "")).startswith("memcurse.")
    return text if is_report or isinstance(document, list) else None
