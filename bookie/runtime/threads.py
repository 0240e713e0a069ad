"""Threads for blocking calls, all started in advance.

An executor of the standard library starts a thread when work arrives and none is idle. The system may refuse this at
any time: the limit of processes counts the threads of all processes of a user (``ulimit -u``) or of a container.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_START_S: Final = 30.0
"""Longest time to start the threads, in seconds."""


def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return an executor with ``count`` running threads, whose names begin with ``name``.

    Raises:
        OSError: the threads cannot be started.
    """
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    all_run = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            threads.submit(all_run.wait)
        all_run.wait(_START_S)
    except (RuntimeError, threading.BrokenBarrierError) as error:
        all_run.abort()
        threads.shutdown(wait=False)
        raise OSError(f"{count} threads cannot be started: raise the limit of processes (ulimit -u, pids)") from error
    return threads
