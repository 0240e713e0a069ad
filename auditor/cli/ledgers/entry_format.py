"""Entries on the command line: the sources of payloads, and the forms of output."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import typer

from auditor.cli.changing import require_utf8_text
from bookie.client.errors import EntryTooLargeError
from bookie.model.packet import ENTRY_PAYLOAD_MAX
from bookie.runtime.human import counted

_CHUNK_BYTES: Final = 1 << 16


class EntryFormat(enum.StrEnum):
    """Values of ``--format``."""

    TEXT = "text"
    """The payload and a line break."""
    HEX = "hex"
    """The position and a hex dump."""
    JSON = "json"
    """One JSON object per line, with the payload in base64, and also as text if it is UTF-8."""
    RAW = "raw"
    """The payloads without anything between them."""


def formatted(place: dict[str, object], payload: bytes, form: EntryFormat) -> bytes:
    """Return one entry in its printed form; ``place`` has the fields of its position."""
    match form:
        case EntryFormat.TEXT:
            return payload + b"\n"
        case EntryFormat.RAW:
            return payload
        case EntryFormat.JSON:
            return json.dumps({**place, "length": len(payload), **_payload_fields(payload)}).encode() + b"\n"
        case EntryFormat.HEX:
            head = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in place.items())
            lines = [
                f"{head}, {counted(len(payload), 'byte')}",
                *(_hex_line(payload, at) for at in range(0, len(payload), 16)),
            ]
            return "\n".join(lines).encode() + b"\n"


def payloads_from(file: Path | None, entries: int, entry_bytes: int) -> AsyncIterator[bytes]:
    """Yield random entries if a number is given, else the lines of a file (``-`` or None: standard input).

    Raises:
        typer.BadParameter: there is no such file, or both are given.
    """
    if entries and file is not None:
        raise typer.BadParameter(f"write the lines of {file}, or {counted(entries, 'random entry')}, not both")
    if entries:
        return _random_payloads(entries, entry_bytes)
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            sys.stderr.write("Type entries, one a line; end with Ctrl-D.\n")
        return _lines(None)
    if not file.exists():
        raise typer.BadParameter(f"there is no file {file}")
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a directory")
    return _lines(file)


def custom_pairs(pairs: list[str]) -> dict[str, bytes]:
    """Return custom metadata from ``key=value`` arguments.

    Raises:
        typer.BadParameter: one has no ``=`` or no key, its key is not UTF-8, or two have the same key.
    """
    for pair in pairs:
        if "=" not in pair[1:]:
            raise typer.BadParameter(f"{pair!r} is not key=value")
    return {key: value or b"" for key, value in custom_conditions(pairs).items()}


def custom_conditions(texts: list[str]) -> dict[str, bytes | None]:
    """Return keys of custom metadata and their values; see ``custom_condition``.

    Raises:
        typer.BadParameter: a key is not UTF-8, or two are the same.
    """
    found: dict[str, bytes | None] = {}
    for key, value in map(custom_condition, texts):
        if key in found:
            raise typer.BadParameter(f"the key {key!r} is given twice", param_hint="--custom")
        found[key] = value
    return found


def custom_condition(text: str) -> tuple[str, bytes | None]:
    """Return a key of custom metadata and its value, from ``key=value`` or ``key``; None: any value.

    Raises:
        typer.BadParameter: the key is not UTF-8.
    """
    key, equals, value = text.partition("=")
    return require_utf8_text(key), os.fsencode(value) if equals else None


def _payload_fields(payload: bytes) -> dict[str, str]:
    fields = {"payload_base64": base64.b64encode(payload).decode()}
    try:
        return {"payload": payload.decode(), **fields}
    except UnicodeDecodeError:
        return fields


def _hex_line(payload: bytes, at: int) -> str:
    part = payload[at : at + 16]
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"  {at:08x}  {part.hex(' '):<47}  {text}"


async def _lines(file: Path | None) -> AsyncIterator[bytes]:
    descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
    number, rest = 0, b""
    while chunk := await _read_some(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number += 1
            yield _checked(line, number)
        _checked(rest, number + 1)  # now, because the end of the line may never come
    if rest:
        yield rest
    if file is not None:
        os.close(descriptor)  # only at the end, because before that a thread may still read from it


def _checked(line: bytes, number: int) -> bytes:
    if len(line) > ENTRY_PAYLOAD_MAX:
        raise EntryTooLargeError(
            f"line {number} is longer than the largest entry, {ENTRY_PAYLOAD_MAX} bytes; write shorter lines"
        )
    return line


async def _read_some(descriptor: int) -> bytes:
    """Read the available bytes; b"" at the end. A cancelled call returns at once, and abandons the reading thread."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def settle(chunk: bytes, error: OSError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(chunk)
        else:
            answer.set_exception(error)

    def read() -> None:
        chunk, error = b"", None
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except OSError as failed:
            error = failed
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command has ended
            loop.call_soon_threadsafe(settle, chunk, error)

    threading.Thread(target=read, name="read lines", daemon=True).start()
    return await answer


async def _random_payloads(count: int, entry_bytes: int) -> AsyncIterator[bytes]:
    import random

    rng = random.Random()
    for _ in range(count):
        yield rng.randbytes(entry_bytes)
