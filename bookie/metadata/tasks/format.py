"""Bytes of under-replication tasks, locks and check times (docs/formats.md#under-replication-nodes, #marking)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.proto.metadata_formats_pb2 import (
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from bookie.metadata.proto.text import UnreadableTextError, parse_text, quoted
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId

NO_TIME: Final = -1
"""Stands for a missing time."""
TASKS_LAYOUT: Final = b'type: "BASIC"\nversion: 1\n'


_REPLICA: Final = re.compile(rb'replica: "([!#-&(-\[\]-~]+)"\n')
_USUAL: Final = re.compile(
    rb"(?:" + _REPLICA.pattern.replace(b"(", b"(?:", 1) + rb")+ctime: (?P<ctime>[1-9][0-9]{0,17})\n"
)
"""A task in the usual form of Apache's programs and bkheal, without escapes in names. All other forms are read by the
protobuf library, which takes more than ten times as long."""


class UnreadableTaskError(PermanentError):
    """The bytes of a task are unreadable. The task still marks its ledger."""


@dataclass(frozen=True, slots=True)
class TaskData:
    """Content of a task node."""

    missing: tuple[BookieId, ...]
    ctime_ms: int

    def merged(self, missing: Sequence[BookieId], now_ms: int) -> TaskData | None:
        """Return a copy with ``missing`` added in order and a new time; None if nothing is to be added."""
        added = tuple(dict.fromkeys(bookie for bookie in missing if bookie not in self.missing))
        return TaskData(self.missing + added, now_ms) if added else None


def encode_task(data: TaskData) -> bytes:
    """Bytes of a task node."""
    lines = [f"replica: {quoted(bookie)}\n" for bookie in data.missing]
    if data.ctime_ms != NO_TIME:
        lines.append(f"ctime: {data.ctime_ms}\n")
    return "".join(lines).encode()


def decode_task(data: bytes) -> TaskData:
    """Read a task node. Names of bookies are kept as they are: a task is a hint, and a rewrite must not lose any.

    Raises:
        UnreadableTaskError: not such text.
    """
    if (usual := _USUAL.fullmatch(data)) is not None:
        names = tuple(BookieId(name.decode()) for name in _REPLICA.findall(data))
        return TaskData(names, int(usual["ctime"]))
    message = UnderreplicatedLedgerFormat()
    try:
        parse_text(data, message)
    except UnreadableTextError as error:
        raise UnreadableTaskError(f"the task cannot be read: {error}") from error
    ctime_ms = message.ctime if message.HasField("ctime") else NO_TIME
    return TaskData(tuple(map(BookieId, message.replica)), ctime_ms)


def encode_lock(owner: str) -> bytes:
    """Bytes of a lock node: the holder's host name, for display."""
    return f"bookieId: {quoted(owner)}\n".encode() if owner else b""


def decode_lock(data: bytes) -> str:
    """Return the holder's name; empty if missing or unreadable, because nothing depends on it."""
    message = LockDataFormat()
    try:
        parse_text(data, message)
    except UnreadableTextError:
        return ""
    return message.bookieId


def is_tasks_layout(data: bytes) -> bool:
    """Return whether these bytes describe the only supported kind of tree."""
    message = LedgerRereplicationLayoutFormat()
    try:
        parse_text(data, message)
    except UnreadableTextError:
        return False
    return message.type == "BASIC" and message.version == 1
