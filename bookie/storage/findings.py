"""The unusable parts that a repair of a bookie's files found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from bookie.storage.port import DiskError, DiskFile

FINDINGS_MAX: Final = 100
"""The number of findings that are kept with a description; the others are only counted."""
_PIECE_BYTES: Final = 64 << 10
"""Bytes read at a time in ranges where the device reports errors."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a file that could not be used."""

    path: str
    offset: int
    what: str


@dataclass(slots=True)
class Findings:
    """A list of findings, in order.

    Attributes:
        finding_count: the number of all findings.
        findings: the first ``FINDINGS_MAX``.
    """

    finding_count: int = 0
    findings: list[Finding] = field(default_factory=list)

    def report(self, path: str, offset: int, what: str) -> None:
        """Add a finding."""
        self.finding_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(path, offset, what))

    def extend(self, other: Findings, prefix: str) -> None:
        """Add the findings of another search, with ``prefix`` before their paths."""
        self.finding_count += other.finding_count
        room = FINDINGS_MAX - len(self.findings)
        self.findings += [replace(found, path=prefix + found.path) for found in other.findings[:room]]


async def read_with_gaps(file: DiskFile, path: str, offset: int, size: int, findings: Findings) -> bytes:
    """Return bytes of a file, with zeros in place of unreadable parts. Report each gap as a finding."""
    try:
        return (await file.read([(offset, size)]))[0]
    except DiskError:
        parts = []
        for start in range(offset, offset + size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, offset + size - start)
            try:
                parts.append((await file.read([(start, length)]))[0])
            except DiskError as error:
                findings.report(path, start, str(error))
                parts.append(bytes(length))
        return b"".join(parts)
