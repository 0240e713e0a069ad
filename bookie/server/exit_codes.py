"""The exit codes of a bookie, as in ``sysexits.h``, so that a supervisor can choose the remedy."""

from __future__ import annotations

import enum

from bookie.model.errors import BkhealError, FatalError, OutcomeUnknownError, TransientError


class ExitCode(enum.IntEnum):
    """Exit codes of a bookie process."""

    OK = 0
    """Asked to stop, and stopped cleanly."""
    UNAVAILABLE = 69
    """ZooKeeper did not answer at the start: try again."""
    STORAGE_FAILED = 74
    """A disk failed, or what is on it cannot be trusted: look at it before the next start."""
    REFUSED = 78
    """Settings, directories or cluster do not fit together: a person must change something."""


def exit_code_of(error: BkhealError) -> ExitCode:
    """The code for an error that ended the start or the run."""
    if isinstance(error, FatalError):
        return ExitCode.STORAGE_FAILED
    if isinstance(error, TransientError | OutcomeUnknownError):
        return ExitCode.UNAVAILABLE
    return ExitCode.REFUSED
