"""Exit codes of ``bkheal``, the same in every command; documented in the README."""

from __future__ import annotations

import enum

from bookie.client.errors import EntryLostError, LedgerDeletedError, LedgerFencedError, WrongPasswordError
from bookie.client.log.values import LogDeposedError
from bookie.metadata.bookies.cookies import ForeignClusterError
from bookie.metadata.cluster import NotAClusterError
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from bookie.metadata.uri import InvalidUriError
from bookie.model.errors import BkhealError, ConflictError, FatalError, OutcomeUnknownError, TransientError
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.listening import AddressInUseError
from bookie.wire.security import SecurityFilesError


class ExitCode(enum.IntEnum):
    """What a script can rely on."""

    OK = 0
    FAILED = 1
    """The command could not do its work; or ``--fail-on`` found one of its conditions."""
    USAGE = 2
    STORE_UNREACHABLE = 3
    DATA_LOSS = 4
    PARTIAL = 5
    """A run ended without having seen everything."""
    BRAKE = 6
    """So many bookies are missing that nothing was published."""
    CANCELLED = 7
    """The run was cancelled."""
    UNAVAILABLE = 69
    """A service that the command needs did not answer, or its answer was lost; try again."""
    INTERNAL = 70
    """Spark, a child process or this program failed; the log has the cause."""
    BUSY = 75
    """Another run of the same kind is under way; nothing was done."""
    CONFIGURATION = 78
    INTERRUPTED = 130


def exit_code_of(error: BkhealError) -> ExitCode:
    """The exit code for ``error``, which shows a script the kind of failure."""
    match error:
        case StoreUnavailableError():
            return ExitCode.STORE_UNREACHABLE
        case EntryLostError():
            return ExitCode.DATA_LOSS
        case (
            InvalidUriError()
            | NotAClusterError()
            | ForeignClusterError()
            | ConfigurationError()
            | AccessDeniedError()
            | SecurityFilesError()
            | AddressInUseError()
        ):
            return ExitCode.CONFIGURATION
        case WrongPasswordError() | ConflictError():
            return ExitCode.FAILED
        case LogDeposedError() | LedgerFencedError() | LedgerDeletedError():
            return ExitCode.FAILED  # another client decided so; a retry would only fight it
        case TransientError() | OutcomeUnknownError():
            return ExitCode.UNAVAILABLE
        case FatalError():
            return ExitCode.INTERNAL
        case _:
            return ExitCode.FAILED
