"""Protobuf's text form as Apache stores it: exact when written, tolerant when read.

This project's own code writes the text, because stored text must not change with the protobuf release. It is read by
the library, which accepts every escape, comment and spacing of any Apache release.

Source: docs/formats.md#text-form, #under-replication-nodes.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import text_format
from google.protobuf.message import Message

from bookie.model.errors import PermanentError

_NAMED: Final = {ord(char): f"\\{name}" for char, name in zip("\"'\\\a\b\t\n\v\f\r", "\"'\\abtnvfr", strict=True)}
_ESCAPES: Final = tuple(_NAMED.get(byte, chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}") for byte in range(256))


class UnreadableTextError(PermanentError):
    """The bytes are not the text form of the expected message."""


def quoted(value: str | bytes) -> str:
    """Return ``value`` as a quoted text-format literal: printable ASCII as it is, the rest escaped."""
    data = value.encode() if isinstance(value, str) else value
    return '"' + "".join([_ESCAPES[byte] for byte in data]) + '"'


def parse_text(data: bytes, into: Message) -> None:
    """Fill ``into`` from text.

    Raises:
        UnreadableTextError: not text of this message, or a required field is missing.
    """
    try:
        text_format.Parse(data.decode(), into, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise UnreadableTextError(f"not a text {type(into).__name__}: {error}") from error
    if not into.IsInitialized():
        raise UnreadableTextError(f"{type(into).__name__} lacks a required field")
