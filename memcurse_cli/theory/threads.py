"""How many threads work gets: no more than pay for the matrices at hand, nor than there are cores.

A BLAS asks for a thread per core whatever the order. On two cores eigenvectors, a Schur form and an
inverse take 268, 468 and 12 ms by one thread and 338, 1591 and 21 by two at n = 512; at n = 1024
they take 1168, 1805 and 76 by one, and 1053, 1284 and 48 by two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

THREADED_ORDER = 1024  # from this order on all threads pay, by the times above
AT_ONCE = 4  # pieces of work on threads of their own, each of which holds what it computes with

OPENBLAS = "OPENBLAS_NUM_THREADS"
THREAD_SETTINGS = ("OMP_NUM_THREADS", OPENBLAS, "MKL_NUM_THREADS")
"""The variables by which a user says how many; then nothing is changed here."""

_scope: ContextVar[ExitStack | None] = ContextVar("scope", default=None)


@contextmanager
def threads_by_order() -> Iterator[None]:
    """A block in which each call of `use_threads_for` holds, for the whole process, to the next."""
    with ExitStack() as limit:
        token = _scope.set(limit)
        try:
            yield
        finally:
            _scope.reset(token)


def use_threads_for(order: int) -> None:
    """Let the linear algebra that follows have the threads that pay for matrices of an order.

    Nothing is done outside `threads_by_order`, and where the environment says how many.
    """
    limit = _scope.get()
    if limit is None:
        return
    if order >= THREADED_ORDER:
        limit.close()
    elif not any(map(os.environ.get, THREAD_SETTINGS)):  # nor is the limit there already
        limit.enter_context(_limited(1))


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def side_by_side(pieces: int) -> Iterator[int]:
    """A block in which as many pieces of work as it says run at once, each on its thread.

    They share the cores, or as many threads as the environment says, with every BLAS.
    """
    told = [value for value in map(os.environ.get, THREAD_SETTINGS) if value and value.isdecimal()]
    threads = min([cores(), *map(int, told)])
    count = max(1, min(pieces, threads, AT_ONCE))
    if count == 1:
        yield 1
        return
    token = _scope.set(None)
    try:
        with _limited(threads // count):
            yield count
    finally:
        _scope.reset(token)


@contextmanager
def _limited(count: int) -> Iterator[None]:
    """So many threads for every BLAS, those too that are loaded within the block."""
    from threadpoolctl import ThreadpoolController

    before = ThreadpoolController().select(user_api="blas")
    threads = {library.filepath: library.num_threads for library in before.lib_controllers}
    # SciPy is imported when it is needed, and brings an OpenBLAS of its own, which reads it then.
    told = os.environ.get(OPENBLAS)
    os.environ[OPENBLAS] = str(count)
    try:
        with before.limit(limits=count):
            yield
    finally:
        del os.environ[OPENBLAS]
        if told is not None:
            os.environ[OPENBLAS] = told
        for library in ThreadpoolController().select(user_api="blas").lib_controllers:
            if library.filepath not in threads:
                library.set_num_threads(max(threads.values(), default=1))
