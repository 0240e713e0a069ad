"""Entries on the command line: where payloads come from, and how they are printed."""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import typer

from bookie.model.metadata import DigestType


class EntryFormat(enum.StrEnum):
    """Values of ``--format``."""

    TEXT = "text"
    """The payload and a line break."""
    HEX = "hex"
    """The position and a hex dump."""
    JSON = "json"
    """One JSON object a line, the payload in base64, and as text where it is UTF-8."""
    RAW = "raw"
    """The payloads, nothing between them."""


def formatted(place: dict[str, object], payload: bytes, form: EntryFormat) -> bytes:
    """One entry as it is printed; ``place`` are the fields that say where it is."""
    match form:
        case EntryFormat.TEXT:
            return payload + b"\n"
        case EntryFormat.RAW:
            return payload
        case EntryFormat.JSON:
            return json.dumps({**place, "length": len(payload), **_payload_fields(payload)}).encode() + b"\n"
        case EntryFormat.HEX:
            head = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in place.items())
            lines = [f"{head}, {len(payload)} bytes", *(_hex_line(payload, at) for at in range(0, len(payload), 16))]
            return "\n".join(lines).encode() + b"\n"


def payloads_from(file: Path | None, entries: int, entry_bytes: int) -> AsyncIterator[bytes]:
    """Random entries where a number is given; else the lines of a file (``-`` or None: standard input)."""
    if entries:
        return _random_payloads(entries, entry_bytes)
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            sys.stderr.write("Type entries, one a line; end with Ctrl-D.\n")
        return _lines(None)
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}")
    return _lines(file)


def digest_named(name: str) -> DigestType:
    """The digest type of that name, in any case.

    Raises:
        typer.BadParameter: there is none.
    """
    if name.upper() not in DigestType.__members__:
        raise typer.BadParameter(f"{name!r} is no digest type; use one of {', '.join(DigestType.__members__)}")
    return DigestType[name.upper()]


def custom_pairs(pairs: list[str]) -> dict[str, bytes]:
    """Custom metadata from ``key=value`` arguments.

    Raises:
        typer.BadParameter: one has no ``=`` or no key.
    """
    for pair in pairs:
        if "=" not in pair[1:]:
            raise typer.BadParameter(f"{pair!r} is not key=value")
    return {key: value.encode() for key, _, value in (pair.partition("=") for pair in pairs)}


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> tuple[int, int, int]:
    """The three as one value.

    Raises:
        typer.BadParameter: no ledger can have them.
    """
    if not ensemble_size >= write_quorum >= ack_quorum:
        raise typer.BadParameter("need ensemble size >= write quorum >= ack quorum")
    return ensemble_size, write_quorum, ack_quorum


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
    source = sys.stdin.buffer if file is None else file.open("rb")
    try:
        while line := await asyncio.to_thread(source.readline):
            yield line.removesuffix(b"\n")
    finally:
        if file is not None:
            source.close()


async def _random_payloads(count: int, entry_bytes: int) -> AsyncIterator[bytes]:
    import random

    rng = random.Random()
    for _ in range(count):
        yield rng.randbytes(entry_bytes)
