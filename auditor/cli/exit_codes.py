"""The exit code of each error of a command."""

from __future__ import annotations

from bookie.client.errors import EntryLostError, LedgerDeletedError, LedgerFencedError, WrongPasswordError
from bookie.client.log.values import LogDeposedError
from bookie.metadata.access import ZooKeeperAccessError
from bookie.metadata.bookies.cookies import ForeignClusterError
from bookie.metadata.bookies.topology import InvalidTopologyError
from bookie.metadata.cluster import NotAClusterError
from bookie.metadata.migration import MigratedError
from bookie.metadata.own_state import StateRootError
from bookie.metadata.port import AccessDeniedError, MultiFailedError, StoreUnavailableError
from bookie.metadata.uri import InvalidUriError
from bookie.model.errors import BkhealError, ConflictError, FatalError, OutcomeUnknownError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import InvalidIdError
from bookie.model.topology import InvalidLocationError
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.listening import AddressInUseError
from bookie.wire.security import SecurityFilesError


def exit_code_of(error: BkhealError) -> ExitCode:
    """Return the exit code for ``error``, by which a script distinguishes kinds of failures."""
    match error:
        case StoreUnavailableError():
            return ExitCode.STORE_UNREACHABLE
        case EntryLostError():
            return ExitCode.DATA_LOSS
        case (
            InvalidUriError()
            | NotAClusterError()
            | InvalidTopologyError()
            | MigratedError()
            | StateRootError()
            | ForeignClusterError()
            | ConfigurationError()
            | AccessDeniedError()
            | MultiFailedError(cause=AccessDeniedError())
            | ZooKeeperAccessError()
            | SecurityFilesError()
            | AddressInUseError()
        ):
            return ExitCode.CONFIGURATION
        case InvalidIdError() | InvalidLocationError():
            return ExitCode.USAGE  # a word of the command line: a stored one is another error
        case WrongPasswordError() | ConflictError():
            return ExitCode.FAILED
        case LogDeposedError() | LedgerFencedError() | LedgerDeletedError():
            return ExitCode.FAILED  # another client has taken over or deleted it; a retry would not help
        case TransientError() | OutcomeUnknownError():
            return ExitCode.UNAVAILABLE
        case FatalError():
            return ExitCode.INTERNAL
        case _:
            return ExitCode.FAILED
