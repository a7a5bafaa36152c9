"""`memcurse track`: a training run as a time series."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from memcurse_cli.commands.options import (
    EXECUTOR,
    JSON,
    OUTPUT,
    argument,
    choose_format,
    flag,
    option,
    progress_line,
    show,
)
from memcurse_cli.commands.request import Request, with_request
from memcurse_cli.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from memcurse_cli.schema.derived import Tracking
    from memcurse_cli.tracking.track import Tracker

FORMATS = ("terminal", "json", "csv", "html")
BAR = 30  # cells of a full progress bar


@with_request("spectra")
def track(
    request: Request,
    paths: list[str] = argument(
        "PATH",
        "The run's checkpoints: files, quoted globs, or a directory of files or of directories.",
    ),
    step_pattern: str | None = option(
        "REGEX", "Where a path says its step, as 'update(\\d+)'; it overrides what files hold."
    ),
    jobs: int | None = option("N", "Processes; one per core by default.", "--jobs", "-j", min=1),
    executor: str | None = EXECUTOR,
    cache: Path | None = option("DIR", "Keep what was read here, not in the user's cache."),
    no_cache: bool = flag("--no-cache", "Read all anew, and keep nothing."),
    watch: bool = flag("--watch", "Follow a run in progress until Ctrl-C or --until."),
    interval: float = option("SECONDS", "Between looks, to --watch.", default=10.0, min=0.05),
    until: int | None = option("STEP", "Stop to --watch once this step is read."),
    show_all: bool = flag("--all", "A row for every checkpoint, however many."),
    output_format: str | None = option("|".join(FORMATS), "What to print.", "--format"),
    as_json: bool = JSON,
    output: Path | None = OUTPUT,
) -> None:
    """Follow a training run, checkpoint by checkpoint.

    Example: memcurse track 'run/step_*.safetensors' --format csv --output run.csv
    """
    from memcurse_cli.tracking.cache import Cache, default_directory
    from memcurse_cli.tracking.discovery import compile_pattern
    from memcurse_cli.tracking.executors import Reading, open_executor
    from memcurse_cli.tracking.track import Tracker

    chosen = choose_format(output_format, FORMATS, as_json=as_json)
    _check_watch(watch, until, chosen, output)
    reading = Reading.of(**request.arguments())
    pattern = compile_pattern(step_pattern)
    kept = Cache(cache or default_directory(), required=cache is not None)

    def write(tracking: Tracking) -> None:
        show(tracking, "tracking", chosen, output, every=show_all)

    with open_executor(executor, jobs) as run:
        tracker = Tracker(paths, reading, pattern, run, None if no_cache else kept, waiting=watch)
        if watch:
            _watch(tracker, write, interval, until, output, quiet=request.quiet)
            return
        tracking = _update(tracker, quiet=request.quiet)
    write(tracking)
    check_failed(tracking)


def check_failed(tracking: Tracking) -> None:
    """Raise `CheckpointError`, after all others have been shown, if some could not be read."""
    if tracking.failed:
        step = next(one for one in tracking.steps if one.error is not None)
        raise CheckpointError(
            f"{tracking.failed} of {len(tracking.steps)} checkpoints could not be read, "
            f"the first at step {step.step}: {step.error}"
        )


def _check_watch(watch: bool, until: int | None, chosen: str, output: Path | None) -> None:
    if until is not None and not watch:
        raise UsageError("there is nothing to stop", where="--until", remedy="give --watch too")
    if watch and output is None and chosen != "terminal":
        raise UsageError(
            f"{chosen} cannot grow on standard output",
            where="--watch",
            remedy="name a file with --output, which is written anew with each step",
        )


def _update(tracker: Tracker, *, quiet: bool) -> Tracking:
    with progress_line(quiet=quiet) as show_line:

        def draw(done: int, total: int) -> None:
            full = BAR * done // max(total, 1)
            show_line(f"[{'#' * full}{'.' * (BAR - full)}] {done} of {total} checkpoints")

        return tracker.update(draw)


def _watch(
    tracker: Tracker,
    write: Callable[[Tracking], None],
    interval: float,
    until: int | None,
    output: Path | None,
    *,
    quiet: bool,
) -> None:
    """Look again and again, and show what is new, until an interrupt or a step."""
    from memcurse_cli.reports.terminal.tracking import live, step_line

    printed: set[int] = set()

    def print_lines(tracking: Tracking) -> None:
        for step in tracking.steps:
            if step.report is not None and step.step not in printed:
                printed.add(step.step)
                sys.stdout.write(f"{step_line(step)}\n")
        sys.stdout.flush()

    on_terminal = output is None and sys.stdout.isatty()
    before: Tracking | None = None
    try:
        with live() if on_terminal else nullcontext(print_lines) as tell:
            while True:
                tracking = _update(tracker, quiet=quiet or on_terminal)
                if tracking != before:
                    before = tracking
                    (tell if output is None else write)(tracking)
                read = [one.step for one in tracking.steps if one.report is not None]
                if until is not None and any(step >= until for step in read):
                    break
                time.sleep(interval)
    except KeyboardInterrupt:
        return
    check_failed(tracking)
