"""How a worker process begins; it imports no array library, which would read these settings."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from memcurse_cli.theory.threads import THREAD_SETTINGS


def begin(threads: int) -> None:
    """Share the cores, leave interrupts to the parent, and end when the parent does.

    Args:
        threads: of linear algebra in this process, where the environment does not say.
    """
    for name in THREAD_SETTINGS:
        os.environ.setdefault(name, str(threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        # A parent that was killed says nothing, and its workers would wait for work for ever.
        threading.Thread(target=follow, daemon=True).start()
