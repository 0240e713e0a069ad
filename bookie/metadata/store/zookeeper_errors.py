"""ZooKeeper's error codes as the port's errors. The numbers are the protocol's, so no client library is needed here."""

from __future__ import annotations

from typing import Final

from bookie.metadata.access import current_access
from bookie.metadata.port import (
    AccessDeniedError,
    BadVersionError,
    EphemeralParentError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RequestRefusedError,
    StoreUnavailableError,
)
from bookie.model.errors import BkhealError, ConflictError, PermanentError

_ROLLED_BACK: Final = 0
_RUNTIME_INCONSISTENCY: Final = -2


class RequestUnknownError(RequestRefusedError):
    """The server is too old to support the request. Such a server also closes the connection."""


_ACCESS_DENIED_CODE: Final = -102
_REQUESTS: Final = ("read ", "list ", "look for ", "sync ", "create ", "change ", "delete ")
"""The first words of requests; a sentence about what was denied needs a verb before them."""
_INVALID_ACL: Final = (
    "the ACL for it is invalid (zk_acl): `creator` needs a login or a certificate, and each identity in a list must "
    "fit its scheme, such as digest:user:hash"
)
LOGIN_REFUSED: Final = (
    "ZooKeeper refused the login: check the user and the password (zk_username, zk_password_file), and for "
    "GSSAPI the ticket or keytab of this process and the principal of the server (docs/zookeeper.md)"
)

_ERRORS_BY_CODE: Final[dict[int, tuple[type[BkhealError], str]]] = {
    -101: (NoNodeError, "no such node"),
    -102: (AccessDeniedError, "its ACL does not allow this"),
    -103: (BadVersionError, "it has another version than the expected one"),
    -108: (EphemeralParentError, "its parent is ephemeral and cannot have children"),
    -110: (NodeExistsError, "it exists already"),
    -111: (NotEmptyError, "it has children"),
    -113: (RequestRefusedError, "invalid callback"),
    -114: (AccessDeniedError, _INVALID_ACL),
    -115: (AccessDeniedError, LOGIN_REFUSED),
    -118: (StoreUnavailableError, "the session moved to another server; the request was not carried out"),
    -119: (StoreUnavailableError, "the server is read-only (it has lost its quorum)"),
    -124: (AccessDeniedError, "the server demands a login by SASL, give one (zk_login)"),
    -125: (RequestRefusedError, "a quota is used up"),
    -127: (StoreUnavailableError, "the server is overloaded and did not carry it out"),
    -8: (RequestRefusedError, "the server calls the request malformed"),
    -6: (RequestUnknownError, "the server does not know this request"),
    -5: (RequestRefusedError, "the server could not read the request"),
    -120: (RequestRefusedError, "an ephemeral node in a local session"),
}


def answer_error(code: int | None, what: str) -> BkhealError | None:
    """Return the error of a definite answer, or None if the code is not a definite answer."""
    found = None if code is None else _ERRORS_BY_CODE.get(code)
    if found is None:
        return None
    kind, why = found
    if kind is AccessDeniedError and what.startswith(_REQUESTS):
        what = f"cannot {what}"
    if code == _ACCESS_DENIED_CODE:
        why += f"; the permission is needed for {current_access().identity} (docs/zookeeper.md)"
    return kind(f"{what}: {why}")


def multi_error(codes: list[int], paths: list[str]) -> BkhealError | None:
    """Return the error of a ``multi`` with these codes, or None after a success.

    The server reports operations before the failed one as rolled back, later ones as "runtime inconsistency".
    """
    if not any(codes):
        return None
    index = next((i for i, code in enumerate(codes) if code not in (_ROLLED_BACK, _RUNTIME_INCONSISTENCY)), 0)
    cause = answer_error(codes[index], f"change {paths[index]}")
    if isinstance(cause, ConflictError | PermanentError):
        return MultiFailedError(index, cause)
    return cause or StoreUnavailableError(f"multi refused at {paths[index]} with code {codes[index]}; nothing was done")
