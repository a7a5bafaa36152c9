"""Where checkpoints are read, one by one: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.untrusted.names import shown_place, shown_text
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.settings import Settings, choose_autocorrelation
from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.families.detect import validate_assumptions
from memcurse_cli.schema.report import Report
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.devices import validate_device
from memcurse_cli.theory.threads import THREAD_SETTINGS, cores
from memcurse_cli.version import VERSION

DASK = "dask://"
DASK_LOGGERS = ("distributed", "distributed.client", "tornado.application", "asyncio")
DIED = "the process that read it was killed; is there enough memory?"
CONNECT_SECONDS = 10
LOOK_SECONDS = 1.0  # between two looks at whether an executor that says nothing is still there
# What `Settings` checks of the other options.
RATES = ("learning_rate", "step_limit", "state_error")


class Reading(Struct, frozen=True):
    """How every checkpoint of a run is read: the options of `inspect` that its figures hang on."""

    autocorrelation: tuple[tuple[float, ...], ...]  # the parts of the input's
    options: Mapping[str, Any]  # the others that were given, by name
    whole: bool = False  # with what names the path, which `kept` leaves out

    @classmethod
    def of(
        cls, *, rho: float | None = None, autocorrelation: str | None = None, **options: Any
    ) -> Reading:
        """The same from the arguments of `inspect`; raises `UsageError` for one out of domain."""
        validate_device(options.get("device", "auto"))
        validate_assumptions(options.get("assume") or {})
        given = {name: one for name, one in options.items() if name in RATES and one is not None}
        Settings.asked(None, None, options.get("horizon"), options.get("readout"), **given)
        return cls(tuple(choose_autocorrelation(rho, autocorrelation)), options)


class Outcome(Struct, frozen=True):
    """What became of a checkpoint."""

    report: Report | None = None
    error: str | None = None
    version: str = VERSION


def read_checkpoint(path: str, reading: Reading) -> Outcome:
    """Report on one checkpoint. It never raises, since an error must not end the others' work."""
    mixture = Autocorrelation.from_components(reading.autocorrelation)
    try:
        report = inspect(path, autocorrelation=mixture, **reading.options)
        return Outcome(report if reading.whole else kept(report))
    except MemcurseError as error:
        return failed(error)
    except Exception as error:
        return failed(error, hint="memcurse inspect --debug on this checkpoint shows where")


def failed(error: BaseException, hint: str = "") -> Outcome:
    """The outcome of an error: its message on one line."""
    said = str(error)
    if isinstance(error, MemoryError):
        said = "it needs more memory than there is"
    elif not isinstance(error, MemcurseError):
        said = f"internal error, {type(error).__name__}: {said}" + f"; {hint}" * bool(hint)
    return Outcome(error=" ".join(shown_text(said).split()))


def kept(report: Report) -> Report:
    """A report without what names a path, so that equal files have equal ones wherever they lie."""
    where = f"{report.checkpoint.path}: "
    return replace(
        report,
        checkpoint=replace(report.checkpoint, path="", notes=()),
        actions=(),
        optimizer=None,
        skipped=tuple(
            replace(one, reason=one.reason.removeprefix(where)) for one in report.skipped
        ),
    )


Outcomes = Generator[tuple[str, Outcome], None, None]
Run = Callable[[Sequence[str], Reading], Outcomes]
"""Reads checkpoints and yields each as it is done, in any order."""


def inline(paths: Sequence[str], reading: Reading) -> Outcomes:
    """One after the other, here."""
    for path in paths:
        yield path, read_checkpoint(path, reading)


def on_executor(
    executor: Executor,
    paths: Sequence[str],
    reading: Reading,
    is_lost: Callable[[], bool] = lambda: False,
) -> Outcomes:
    """As many at a time as an executor has room for; `CancelledError` where it is lost.

    A checkpoint whose work ends in an error of the executor itself has that error for its outcome.
    """
    futures: dict[Future[Outcome], str] = {
        executor.submit(read_checkpoint, path, reading): path for path in paths
    }
    done: SimpleQueue[Future[Outcome]] = SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    for _ in futures:
        while True:
            try:
                future = done.get(timeout=LOOK_SECONDS)
                break
            except Empty:
                if is_lost():
                    raise CancelledError from None
        try:
            outcome = future.result()
        except (BrokenProcessPool, CancelledError):
            raise
        except Exception as error:
            outcome = failed(error)
        yield futures[future], outcome


def in_processes(jobs: int, paths: Sequence[str], reading: Reading) -> Outcomes:
    """In several processes of this machine.

    When one is killed, as for too much memory, its pool is lost: what is not done is then read
    again one at a time, so that only the guilty checkpoint fails.
    """
    left = list(paths)
    try:
        with _pool(min(jobs, len(left))) as executor:
            for path, outcome in on_executor(executor, paths, reading):
                left.remove(path)
                yield path, outcome
    except BrokenProcessPool:
        while left:
            with _pool(1) as executor:
                try:
                    while left:
                        outcome = executor.submit(read_checkpoint, left[0], reading).result()
                        yield left.pop(0), outcome
                except BrokenProcessPool:
                    yield left.pop(0), Outcome(error=DIED)


class _DeafPool(ProcessPoolExecutor):
    """Processes that no interrupt reaches from their first instruction on: it is the parent's.

    A terminal sends it to all of them, and a worker that still imports would show a traceback.
    """

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """Submit work, which may start a process; that inherits what signals are blocked."""
        if not hasattr(signal, "pthread_sigmask"):  # there is none on Windows
            return super().submit(*arguments, **named)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(*arguments, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Leave interrupts to the parent, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        # A parent that was killed says nothing, and its workers would wait for work for ever.
        threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes that share the cores and do not outlive the block, however it is left."""
    threads = str(max(1, cores() // jobs))  # where the environment does not say
    settings = {name: threads for name in THREAD_SETTINGS if name not in os.environ}
    os.environ.update(settings)  # a process reads them as it imports its array libraries
    before = set(multiprocessing.active_children())
    # A fork would copy the locks of threads that hold them.
    spawn = multiprocessing.get_context("spawn")
    executor = _DeafPool(jobs, mp_context=spawn, initializer=_begin)
    try:
        yield executor
    except BaseException:
        # Work in hand is not waited for; without its processes the executor drops the rest.
        processes = set(multiprocessing.active_children()) - before
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        raise
    finally:
        executor.shutdown()
        for name in settings:
            os.environ.pop(name, None)


def open_executor(address: str | None, jobs: int | None) -> AbstractContextManager[Run]:
    """What ``--executor`` (None is this machine) and ``--jobs`` (None is one a core) ask for.

    Raises `UsageError` where that is no ``dask://HOST:PORT``, and without Dask or a scheduler.
    """
    if address is None:
        count = cores() if jobs is None else jobs
        return nullcontext(inline if count == 1 else partial(in_processes, count))
    if jobs is not None:
        raise UsageError(
            "a cluster has as many workers as it has",
            where="--jobs",
            remedy="leave it out with --executor",
        )
    host, separator, port = address.removeprefix(DASK).rpartition(":")
    shown = shown_place(address)
    known = address.startswith(DASK) and shown == address
    if not known or not (host and separator and port.isdecimal()):
        raise UsageError(
            f"{shown!r} is not the address of a Dask scheduler",
            where="--executor",
            remedy="give dask://HOST:PORT, and no name or password",
        )
    return _on_dask(f"tcp://{host}:{port}")


@contextmanager
def _on_dask(address: str) -> Iterator[Run]:
    """The executor of a Dask cluster, whose workers see the same files and have memcurse.

    The scheduler gives the work of a lost worker to another one; nothing replaces the scheduler.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "Dask is not installed",
            where="--executor",
            remedy="install it with: pip install 'memcurse-cli[dask]'",
        ) from error
    for name in DASK_LOGGERS:  # it shows tracebacks there of what it raises too
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address}",
            where="--executor",
            remedy="start one with: dask scheduler, and workers with: dask worker HOST:PORT",
        ) from error
    try:
        # pure=False: a path whose content has changed is work that has not been done.
        executor = client.get_executor(pure=False)
        yield partial(on_executor, executor, is_lost=lambda: client.status != "running")
    except Exception as error:
        lost = isinstance(error, CancelledError) or client.status != "running"
        if isinstance(error, MemcurseError) or not lost:
            raise
        raise UsageError(
            f"the Dask scheduler at {address} was lost",
            where="--executor",
            remedy="start it again and repeat the command",
        ) from error
    finally:
        client.close()
