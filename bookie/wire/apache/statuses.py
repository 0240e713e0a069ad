"""The conversion between Apache's status numbers and ours, for both versions of the protocol.

From Apache's numbers to ours, rule S6 holds: only their two "no such" codes are absent, and an unknown number is an I/O
error. It also holds for Apache's clients: statuses that they do not know become an I/O error, after which they ask the
next bookie of the ensemble.

Source: docs/formats.md#status-codes, #version-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.port import Status

EOK_V2: Final = 0
ENOLEDGER_V2: Final = 1
ENOENTRY_V2: Final = 2
EBADREQ_V2: Final = 100
EIO_V2: Final = 101
EUA_V2: Final = 102
EBADVERSION_V2: Final = 103
EFENCED_V2: Final = 104
EREADONLY_V2: Final = 105
ETOOMANYREQUESTS_V2: Final = 106

_STATUS_OF_CODE: Final[Mapping[int, Status]] = {
    pb.EOK: Status.OK,
    pb.ENOLEDGER: Status.NO_LEDGER,
    pb.ENOENTRY: Status.NO_ENTRY,
    pb.EBADREQ: Status.BAD_REQUEST,
    pb.EIO: Status.IO_ERROR,
    pb.EUA: Status.UNAUTHORIZED,
    pb.EBADVERSION: Status.BAD_REQUEST,
    pb.EFENCED: Status.FENCED,
    pb.EREADONLY: Status.READ_ONLY,
    pb.ETOOMANYREQUESTS: Status.TOO_MANY_REQUESTS,
    pb.EUNKNOWNLEDGERSTATE: Status.LIMBO,
}
_CODE_OF_STATUS: Final[Mapping[Status, pb.StatusCode]] = {
    Status.OK: pb.EOK,
    Status.NO_ENTRY: pb.ENOENTRY,
    Status.NO_LEDGER: pb.ENOLEDGER,
    Status.LIMBO: pb.EUNKNOWNLEDGERSTATE,
    Status.FENCED: pb.EFENCED,
    Status.UNAUTHORIZED: pb.EUA,
    Status.READ_ONLY: pb.EREADONLY,
    Status.TOO_MANY_REQUESTS: pb.ETOOMANYREQUESTS,
    Status.BAD_REQUEST: pb.EBADREQ,
}
_V2_OF_STATUS: Final[Mapping[Status, int]] = {
    Status.OK: EOK_V2,
    Status.NO_ENTRY: ENOENTRY_V2,
    Status.NO_LEDGER: ENOLEDGER_V2,
    Status.FENCED: EFENCED_V2,
    Status.UNAUTHORIZED: EUA_V2,
    Status.READ_ONLY: EREADONLY_V2,
    Status.TOO_MANY_REQUESTS: ETOOMANYREQUESTS_V2,
    Status.BAD_REQUEST: EBADREQ_V2,
}


def status_of_code(code: int) -> Status:
    """Return the status for a ``StatusCode`` of version 3; IO_ERROR for an unknown one."""
    return _STATUS_OF_CODE.get(code, Status.IO_ERROR)


def code_of_status(status: Status) -> pb.StatusCode:
    """Return the code of version 3 for a status; EIO if there is none."""
    return _CODE_OF_STATUS.get(status, pb.EIO)


def v2_of_status(status: Status) -> int:
    """Return the code of version 2 for a status; an I/O error if there is none.

    LIMBO also becomes an I/O error, although it has a code: Apache's version 2 clients would close the connection.
    """
    return _V2_OF_STATUS.get(status, EIO_V2)
