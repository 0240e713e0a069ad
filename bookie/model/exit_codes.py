"""The exit codes of every command and process; docs/commands.md explains them to operators."""

from __future__ import annotations

import enum

from bookie.model.errors import BkhealError, FatalError, OutcomeUnknownError, PermanentError, TransientError


class ExitCode(enum.IntEnum):
    """The exit code, from which a script or a supervisor chooses its next step. From 64 on as in ``sysexits.h``."""

    OK = 0
    """The work is done, or a service stopped cleanly on request."""
    FAILED = 1
    """The command could not do its work."""
    FINDINGS = 1
    """An audit has findings named by ``--fail-on``."""
    USAGE = 2
    STORE_UNREACHABLE = 3
    """ZooKeeper did not answer, or the session was lost: try again."""
    DATA_LOSS = 4
    PARTIAL = 5
    """A run ended before it was complete. Its findings are published."""
    HELD = 6
    """Nothing was marked because too many bookies are missing: an operator must decide."""
    CANCELLED = 7
    """The run was cancelled. Marks already written remain."""
    UNAVAILABLE = 69
    """A necessary server did not answer, or its answer was lost: try again."""
    INTERNAL = 70
    """Spark, a child process or this program failed; the log contains the cause."""
    STORAGE_FAILED = 74
    """A disk of a bookie failed, or its content cannot be trusted: inspect it before the next start."""
    BUSY = 75
    """Another run of the same kind is under way, or some work cannot be done now: try again later."""
    CONFIGURATION = 78
    """Settings, directories or cluster do not fit together: a person must change something."""
    INTERRUPTED = 130


def audit_exit_code(error: Exception) -> ExitCode:
    """Return the exit code of an audit ended by ``error``."""
    match error:
        case TransientError() | OutcomeUnknownError():
            return ExitCode.STORE_UNREACHABLE
        case PermanentError():
            return ExitCode.CONFIGURATION
        case _:
            return ExitCode.INTERNAL


def bookie_exit_code(error: BkhealError) -> ExitCode:
    """Return the exit code of a bookie whose start or run was ended by ``error``."""
    match error:
        case FatalError():
            return ExitCode.STORAGE_FAILED
        case TransientError() | OutcomeUnknownError():
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.CONFIGURATION
