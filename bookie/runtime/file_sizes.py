"""The limit of the size of the files that this process writes (``ulimit -f``).

A write beyond it fails with "File too large". Python ignores the signal that the kernel sends in addition.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

UNLIMITED_BYTES: Final = 1 << 62
"""The limit that is returned if there is none."""

_log = logging.getLogger(__name__)


def raise_file_size_limit() -> int:
    """Raise the soft limit of this process to its hard limit, and return the limit in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            _log.warning("limit of the size of files stays", extra={"soft": soft, "hard": hard, "error": str(error)})
    return UNLIMITED_BYTES if soft == resource.RLIM_INFINITY else soft
