"""Checks of requests before they are sent, the same for the kazoo adapter and the in-memory twin.

A server closes the connection after a request larger than ``jute.maxbuffer``, which looks like an outage to all users
of the connection. It answers a malformed read with "no node", which looks like an absent node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from bookie.metadata.access import current_access
from bookie.metadata.port import (
    MULTI_OPS_MAX,
    NODE_DATA_MAX,
    OPERATION_OVERHEAD,
    Create,
    NodeTooLargeError,
    Operation,
    RequestRefusedError,
    SetData,
)

_OPERATIONS_WITH_DATA: Final = (Create, SetData)
PATH_BYTES_MAX: Final = 4096
"""bkheal's paths are shorter. The bound keeps an overlong name from making a request too large."""

_CREATE_FIELDS_BYTES: Final = 21
"""Bytes of a create in a request, in addition to its path, data and ACL."""

_PATH_CACHE_SIZE: Final = 4096
"""Number of cached results: the repair of a ledger uses the same few paths several times."""

# ZooKeeper refuses empty and relative parts, control characters, surrogates and characters for private use. It checks
# the UTF-16 form, in which each character beyond U+FFFF is two surrogates.
_PATH: Final = re.compile(
    r"/|(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]++)+"
)


def check_path(path: str) -> None:
    """Accept an absolute path without a trailing slash.

    Raises:
        RequestRefusedError: any other text.
    """
    if not _is_path(path):
        raise RequestRefusedError(f"not a path of the metadata store: {path[:200]!r}")


@lru_cache(_PATH_CACHE_SIZE)
def _is_path(path: str) -> bool:
    return len(path) <= PATH_BYTES_MAX and _PATH.fullmatch(path) is not None


def check_data(path: str, data: bytes) -> None:
    """Check the size of data against the limit of one request.

    Raises:
        NodeTooLargeError: more than ``NODE_DATA_MAX`` bytes.
    """
    if len(data) > NODE_DATA_MAX:
        raise NodeTooLargeError(f"{len(data)} bytes for {path}: a node holds at most {NODE_DATA_MAX}")


def check_multi(operations: Sequence[Operation]) -> int:
    """Check operations against the limits of one request, and return the sum of their ``operation_size``.

    Raises:
        NodeTooLargeError: too many, or too many bytes in all.
        RequestRefusedError: a malformed path.
    """
    if len(operations) > MULTI_OPS_MAX:
        raise NodeTooLargeError(f"a multi of {len(operations)} operations: at most {MULTI_OPS_MAX} fit, split it")
    size = OPERATION_OVERHEAD * len(operations)
    longer = extra_create_bytes()
    for operation in operations:
        path = operation.path
        if not _is_path(path):
            check_path(path)
        size += len(path) if path.isascii() else len(path.encode())
        if isinstance(operation, _OPERATIONS_WITH_DATA):
            size += len(operation.data)
            if longer and isinstance(operation, Create):
                size += longer
    if size > NODE_DATA_MAX:
        raise NodeTooLargeError(f"a multi of {size} bytes: at most {NODE_DATA_MAX} fit, split it")
    return size


def operation_size(operation: Operation, extra_create: int | None = None) -> int:
    """Size of ``operation`` in bytes, counted against the limit of a ``multi``.

    Args:
        operation: the operation.
        extra_create: ``extra_create_bytes()``, for a caller with many operations; None: it is determined.
    """
    path = operation.path
    size = OPERATION_OVERHEAD + (len(path) if path.isascii() else len(path.encode()))
    if isinstance(operation, Create):
        size += extra_create_bytes() if extra_create is None else extra_create
    return size + len(operation.data) if isinstance(operation, _OPERATIONS_WITH_DATA) else size


def extra_create_bytes() -> int:
    """Bytes of a create beyond ``OPERATION_OVERHEAD``, because it contains the ACL of this process's new nodes."""
    return max(0, _CREATE_FIELDS_BYTES + current_access().acl_bytes - OPERATION_OVERHEAD)
