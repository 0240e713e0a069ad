"""A fast parser for metadata of the form that nearly every ledger has.

The reference decoder spends most of its time on building model objects. A scan needs only columns. So this module
parses a message of format 3, checks it by the same rules (docs/formats.md#metadata-rules), and returns it unchanged.
Every other message is left to the reference decoder, which also reports what is wrong with it. Property tests keep the
two equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat

_KNOWN_MAX: Final = 100_000
"""Number of distinct fragments that are remembered, about 30 MB. If a cluster has more, some are parsed again."""
_SEGMENT: Final = LedgerMetadataFormat.Segment
_HEADER_BYTES: Final = len(b"BookieMetadataFormatVersion\t3\n")

# A varint of 64 bits; a negative number has ten bytes.
_LONG: Final = rb"(?:[\x80-\xff]{0,8}[\x00-\x7f]|[\x80-\xff]{9}\x01)"
_SHORT: Final = rb"([\x00-\x7f]|[\x80-\xff][\x00-\x7f])"
# The size of the message, then write quorum, ensemble size, length, last entry, state, and size of the first fragment.
_HEAD: Final = re.compile(
    rb"BookieMetadataFormatVersion\t3\n" + _SHORT + rb"\x08([\x01-\x7f])\x10([\x01-\x7f])"
    rb"\x18" + _LONG + rb"\x20" + _LONG + rb"\x28([\x01-\x03])\x32" + _SHORT
)
# No second fragment. Digest type, password, ack quorum, the optional creation time, then a token or custom metadata.
_TAIL: Final = re.compile(
    rb"\x38[\x01-\x04]\x42([\x00-\x7f])(.*?)\x48([\x00-\x7f])(?:\x50" + _LONG + rb")?(?:\x60" + _LONG + rb"|(\x5a.*))?",
    re.DOTALL,
)
_TOKEN: Final = re.compile(rb"\x60" + _LONG)
_MEMBER, _FIRST_ENTRY_0, _CUSTOM, _KEY, _VALUE = 0x0A, b"\x10\x00", 0x5A, 0x0A, 0x12


class HealthyMetadataRecognizer:
    """Recognizes valid ledgers of one fragment on live bookies, with a cache of fragments.

    Not shared between threads.
    """

    def __init__(self, live: frozenset[str]) -> None:
        """Prepare; ``live`` are valid ids of bookies."""
        self._live = live
        self._names = {bytes((_MEMBER, len(name))) + name: text for text in live if len(name := text.encode()) <= 0x7F}
        """The live bookies, by the bytes of their field in a fragment."""
        self._members: dict[bytes, tuple[str, ...] | None] = {}
        """The members, by the bytes of the fragment; None: the fragment is left to the reference decoder."""
        self._keys: set[bytes] = set()
        """Keys of custom metadata that are known to be UTF-8."""

    def recognize(self, data: bytes) -> tuple[int, int, int, tuple[str, ...]] | None:
        """Return state, write quorum, ack quorum and ensemble of the ledger.

        None: it is not a valid ledger of one fragment with only live bookies.
        """
        head = _HEAD.match(data)
        if head is None:
            return None
        size, write_quorum, ensemble_size, state, fragment_size = head.groups()
        start = head.end()
        end = start + _number(fragment_size)
        fragment = data[start:end]
        members = self._members[fragment] if fragment in self._members else self._cache_members(fragment)
        if members is None:
            return None
        tail = _TAIL.fullmatch(data, end)
        if tail is None:
            return None
        password_size, password, ack_quorum, custom = tail.groups()
        is_sound = (
            _number(size) == len(data) - _HEADER_BYTES - len(size)
            and ensemble_size[0] == len(members)
            and ensemble_size >= write_quorum >= ack_quorum
            and password_size[0] == len(password)
            and (custom is None or self._is_sound(custom))
        )
        return (state[0], write_quorum[0], ack_quorum[0], members) if is_sound else None

    def _cache_members(self, fragment: bytes) -> tuple[str, ...] | None:
        members = self._usual_members(fragment) or self._parsed(fragment)
        if len(self._members) < _KNOWN_MAX:
            self._members[fragment] = members
        return members

    def _usual_members(self, fragment: bytes) -> tuple[str, ...] | None:
        """Return the members of a fragment at entry 0; None: a member is not live, or protobuf must parse it."""
        members, at, end = [], 0, len(fragment) - len(_FIRST_ENTRY_0)
        while 0 <= at < end:
            after = at + 2 + fragment[at + 1]
            name = self._names.get(fragment[at:after])
            if name is None:
                return None
            members.append(name)
            at = after
        return tuple(members) if at == end and fragment.endswith(_FIRST_ENTRY_0) else None

    def _parsed(self, fragment: bytes) -> tuple[str, ...] | None:
        try:
            segment = _SEGMENT.FromString(fragment)
        except DecodeError:
            return None
        members = tuple(segment.ensembleMember)
        is_sound = segment.IsInitialized() and segment.firstEntryId >= 0 and self._live.issuperset(members)
        return members if is_sound else None

    def _is_sound(self, rest: bytes) -> bool:
        """Return whether the rest of a message is custom metadata (each a key in UTF-8 and a value) and a token."""
        at, end = 0, len(rest)
        try:
            while at < end:
                if rest[at] != _CUSTOM:
                    return _TOKEN.fullmatch(rest, at) is not None
                size, key_at = _short(rest, at + 1)
                key_size, key = _short(rest, key_at + 1)
                value_at = key + key_size
                value_size, value = _short(rest, value_at + 1)
                at = value + value_size
                if rest[key_at] != _KEY or rest[value_at] != _VALUE or at != key_at + size:
                    return False
                if rest[key:value_at] not in self._keys and not self._is_text(rest[key:value_at]):
                    return False
        except IndexError:  # the message is truncated
            return False
        return at == end

    def _is_text(self, key: bytes) -> bool:
        try:
            key.decode()
        except UnicodeDecodeError:
            return False
        if len(self._keys) < _KNOWN_MAX:
            self._keys.add(key)
        return True


def _short(data: bytes, at: int) -> tuple[int, int]:
    """Return the size stored at ``at``, and the position after it. A size of three bytes would exceed the message."""
    size = data[at]
    return (size, at + 1) if size <= 0x7F else (size & 0x7F | data[at + 1] << 7, at + 2)


def _number(varint: bytes) -> int:
    return varint[0] if len(varint) == 1 else varint[0] & 0x7F | varint[1] << 7


_HEADER: Final = b"BookieMetadataFormatVersion\t3\n"
_BODY: Final = len(_HEADER) + 1
_parse: Final[Callable[[bytes], LedgerMetadataFormat]] = LedgerMetadataFormat.FromString


def usual_message(data: bytes) -> LedgerMetadataFormat | None:
    """Return the message in ``data``, or None if the reference decoder must decode it.

    The returned message has every field written by Apache and this project, and sane quorums. Its fragments are not
    checked yet.
    """
    if not data.startswith(_HEADER) or len(data) < _BODY + 1:
        return None
    size, start = data[_BODY - 1], _BODY
    if size > 0x7F:
        size, start = size & 0x7F | data[_BODY] << 7, _BODY + 1
    # Two bytes hold a size below 16 KiB. If the size needs a third byte, this value exceeds 0x3FFF.
    if size > 0x3FFF or start + size != len(data):
        return None
    try:
        message = _parse(data[start:])
    except DecodeError:
        return None
    has, write_quorum = message.HasField, message.quorumSize
    if (
        message.IsInitialized()
        and has("lastEntryId")
        and has("password")
        and has("digestType")
        and has("ackQuorumSize")
        and message.ensembleSize >= write_quorum >= message.ackQuorumSize >= 0
        and write_quorum >= 1
        # protobuf returns a key as bytes if it is not UTF-8.
        and (not message.customMetadata or all(isinstance(entry.key, str) for entry in message.customMetadata))
    ):
        return message
    return None
