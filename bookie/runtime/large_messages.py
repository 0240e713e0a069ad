"""Memory settings for processes with many large messages: bookies and replicators.

They affect only when memory is reused, never what a program does. They cost memory: up to ``_KEPT_BYTES`` of free heap
is kept, and garbage in reference cycles is freed slightly later.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of ``mallopt(3)``."""
_KEPT_BYTES: Final = 64 << 20
_MAPPED_BYTES_MIN: Final = 32 << 20
"""The largest value accepted by glibc."""
_GC_THRESHOLDS: Final = (10_000, 20, 20)


def prepare_for_large_messages() -> None:
    """Keep free memory in the process, and run the garbage collector less often. Call this after the imports.

    Copying entries allocates and frees a few MiB for each message. By default, glibc returns this memory to the
    system each time, and every page of the next message causes a page fault. By default, the collector looks for cycles
    after each 700 objects, several times per message, although entries are never part of a cycle.

    Without glibc, only the settings of the collector change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
