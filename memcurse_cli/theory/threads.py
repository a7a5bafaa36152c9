"""How many threads linear algebra gets: no more than pay for matrices of the order at hand.

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
        limit.enter_context(_one_thread())


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for every BLAS, those too that are loaded within the block."""
    from threadpoolctl import ThreadpoolController

    before = ThreadpoolController().select(user_api="blas")
    threads = {library.filepath: library.num_threads for library in before.lib_controllers}
    # SciPy is imported when it is needed, and brings an OpenBLAS of its own, which reads it then.
    os.environ[OPENBLAS] = "1"
    try:
        with before.limit(limits=1):
            yield
    finally:
        del os.environ[OPENBLAS]
        for library in ThreadpoolController().select(user_api="blas").lib_controllers:
            if library.filepath not in threads:
                library.set_num_threads(max(threads.values(), default=1))
