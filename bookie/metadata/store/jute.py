"""ZooKeeper's wire encoding of the two requests with many operations: ``multi`` and ``multiRead``.

Requests and replies are sequences of (9-byte header, operation), and end with a header that has ``done`` set. Bulk
reads and batched creates use this code, so everything is packed and unpacked by precompiled structs, in one pass, and
only the data itself is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from bookie.metadata.access import OPEN_ACL, Acl
from bookie.metadata.port import Children, Create, Delete, Node, Operation, SetData, Stat

OP_CREATE: Final = 1
OP_DELETE: Final = 2
OP_GET_DATA: Final = 4
OP_SET_DATA: Final = 5
OP_GET_CHILDREN: Final = 8
OP_CHECK: Final = 13
OP_MULTI: Final = 14
OP_MULTI_READ: Final = 22
_OP_ERROR: Final = -1

NO_NODE: Final = -101

_HEADER: Final = struct.Struct(">iBi")
_HEADER_AND_INT: Final = struct.Struct(">iBii")
_INT: Final = struct.Struct(">i")
_STAT: Final = struct.Struct(">qqqqiiiqiiq")
_END: Final = _HEADER.pack(-1, 1, -1)
READ_OVERHEAD: Final = _HEADER_AND_INT.size + 1
"""Bytes of a read in a ``multiRead``, in addition to its path."""
_PERSISTENT: Final = _INT.pack(0)
_EPHEMERAL: Final = _INT.pack(1)
"""Flags of a create, after its ACL."""

OnError = Callable[[int, int], None]
"""Called with (index, error code) of a read that failed, unless its node is missing; raises."""


class MalformedReplyError(ValueError):
    """A reply does not have the structure expected for its request."""


def encode_acl(acl: Acl) -> bytes:
    """Return the encoding of an ACL in a request."""
    parts = [_INT.pack(len(acl))]
    for entry in acl:
        parts.append(_INT.pack(entry.permissions))
        for text in (entry.scheme.encode(), entry.identity.encode()):
            parts += (_INT.pack(len(text)), text)
    return b"".join(parts)


OPEN_ACL_BYTES: Final = encode_acl(OPEN_ACL)


def multi_request(operations: Sequence[Operation], acl: bytes = OPEN_ACL_BYTES) -> bytes:
    """Body of a ``multi``; ``acl`` is the encoded ACL of the created nodes."""
    parts: list[bytes] = []
    for operation in operations:
        path = operation.path.encode()
        if isinstance(operation, Create):
            parts += (_HEADER_AND_INT.pack(OP_CREATE, 0, -1, len(path)), path, _INT.pack(len(operation.data)))
            parts += (operation.data, acl, _EPHEMERAL if operation.is_ephemeral else _PERSISTENT)
        elif isinstance(operation, SetData):
            parts += (_HEADER_AND_INT.pack(OP_SET_DATA, 0, -1, len(path)), path, _INT.pack(len(operation.data)))
            parts += (operation.data, _INT.pack(operation.version))
        else:
            kind = OP_DELETE if isinstance(operation, Delete) else OP_CHECK
            parts += (_HEADER_AND_INT.pack(kind, 0, -1, len(path)), path, _INT.pack(operation.version))
    parts.append(_END)
    return b"".join(parts)


def multi_reply(reply: bytes, offset: int) -> list[int]:
    """Error code of each operation, 0 if it was done or rolled back."""
    codes: list[int] = []
    try:
        while True:
            kind, is_done, _ = _HEADER.unpack_from(reply, offset)
            offset += _HEADER.size
            if is_done:
                return codes
            code = 0
            if kind == _OP_ERROR:
                (code,) = _INT.unpack_from(reply, offset)
                offset += _INT.size
            elif kind == OP_CREATE:
                offset += _INT.size + _length(_INT.unpack_from(reply, offset)[0])
            elif kind == OP_SET_DATA:
                offset += _STAT.size
            codes.append(code)
    except struct.error as error:
        raise MalformedReplyError(f"truncated after {len(codes)} operations") from error


def multi_read_request(opcode: int, paths: Sequence[str]) -> bytes:
    """Body of a ``multiRead`` of ``opcode`` (data or children) on each path, without watches."""
    pack = _HEADER_AND_INT.pack
    parts: list[bytes] = []
    for path in paths:
        name = path.encode()
        parts += (pack(opcode, 0, -1, len(name)), name, b"\0")
    parts.append(_END)
    return b"".join(parts)


def read_data(reply: bytes, count: int, on_error: OnError) -> list[bytes | None]:
    """Data of each node of a ``multiRead`` reply, None for a missing node."""
    result: list[bytes | None] = []
    append, unpack = result.append, _HEADER_AND_INT.unpack_from
    offset = 0
    for _ in range(count):
        kind, _, _, size = unpack(reply, offset)
        offset += 13
        if kind == OP_GET_DATA:
            end = offset + size if size > 0 else offset
            append(reply[offset:end])
            offset = end + 68
        else:
            _check_absent(kind, size, len(result), on_error)
            append(None)
    _check_end(reply, offset)
    return result


def read_nodes(reply: bytes, count: int, on_error: OnError) -> list[Node | None]:
    """Nodes of a ``multiRead`` reply, None for a missing node."""
    result: list[Node | None] = []
    append, unpack, unpack_stat = result.append, _HEADER_AND_INT.unpack_from, _STAT.unpack_from
    offset = 0
    for _ in range(count):
        kind, _, _, size = unpack(reply, offset)
        offset += 13
        if kind == OP_GET_DATA:
            end = offset + size if size > 0 else offset
            append(Node(reply[offset:end], stat_of(unpack_stat(reply, end))))
            offset = end + 68
        else:
            _check_absent(kind, size, len(result), on_error)
            append(None)
    _check_end(reply, offset)
    return result


def read_children(reply: bytes, count: int, on_error: OnError) -> list[Children | None]:
    """Listings of a ``multiRead`` reply, None for a missing node. Their versions and ``czxid`` are not known (-1)."""
    result: list[Children | None] = []
    unpack_int = _INT.unpack_from
    offset = 0
    for _ in range(count):
        kind, _, _, size = _HEADER_AND_INT.unpack_from(reply, offset)
        offset += 13
        if kind != OP_GET_CHILDREN:
            _check_absent(kind, size, len(result), on_error)
            result.append(None)
            continue
        names: list[str] = []
        for _ in range(size):
            end = offset + 4 + _length(unpack_int(reply, offset)[0])
            names.append(reply[offset + 4 : end].decode())
            offset = end
        result.append(Children(tuple(names), -1, -1))
    _check_end(reply, offset)
    return result


def stat_of(fields: Sequence[int]) -> Stat:
    """Return the port's stat from ZooKeeper's eleven fields."""
    czxid, mzxid, ctime, mtime, version, children_version, _, owner, _, children_count, children_zxid = fields
    return Stat(version, czxid, mzxid, ctime, mtime, children_count, children_version, owner, children_zxid)


def _length(size: int) -> int:
    """Return ``size``, or refuse a negative one: the parser would move backwards in the reply, perhaps forever."""
    if size < 0:
        raise MalformedReplyError(f"a name of {size} bytes")
    return size


def _check_absent(kind: int, code: int, index: int, on_error: OnError) -> None:
    if kind != _OP_ERROR:
        raise MalformedReplyError(f"answer {index} is of kind {kind}")
    if code != NO_NODE:
        on_error(index, code)


def _check_end(reply: bytes, offset: int) -> None:
    if reply[offset : offset + 9] != _END:
        raise MalformedReplyError(f"no end mark at {offset} of {len(reply)} bytes")
