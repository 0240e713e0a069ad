"""The limit of open files of this process; connections count as files.

Many systems start a process with a soft limit of 1,024 and a much greater hard limit. A process may raise its own soft
limit; the Java virtual machine does this at each start.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from typing import Final

_LIMIT_MAX: Final = 1 << 20
"""Largest limit that is requested, even if the hard limit is infinite: no system allows more by default."""
_CAUSES_MAX: Final = 20

_log = logging.getLogger(__name__)


def raise_open_files_limit() -> int:
    """Raise the soft limit of this process to its hard limit, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _LIMIT_MAX
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if wanted <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("limit of open files stays", extra={"soft": soft, "hard": hard, "error": str(error)})
        return soft
    return wanted


def is_open_files_limit_error(error: BaseException) -> bool:
    """Return whether ``error``, or an error that caused it, means that no more files can be opened."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if cause is None:
            break
        cause = cause.__cause__ or cause.__context__
    return False


def can_open_files(count: int) -> bool:
    """Return whether this process may open ``count`` more files at this moment."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True
