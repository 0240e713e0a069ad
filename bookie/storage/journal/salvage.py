"""The reading of a damaged journal, as far as possible (rule R107).

A batch is used under three conditions: its checksum matches, it is in the file and at the offset that it names, and its
sequence is greater than those of all batches before it. Bytes between such batches are a finding. It cannot be
determined whether anything after the last batch was lost. So the caller must treat the journal as incomplete even
without a finding.

The code here only reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from bookie.runtime.human import agreeing, counted
from bookie.storage.errors import DamagedJournalError
from bookie.storage.findings import Findings, read_with_gaps
from bookie.storage.journal.format import (
    FILE_HEADER_SIZE,
    BatchHeader,
    Record,
    decode_batch_header,
    decode_file_header,
    decode_records,
    find_batch_header,
    used_size,
)
from bookie.storage.journal.replay import file_numbers, file_path
from bookie.storage.port import Disk, DiskError


@dataclass(slots=True)
class JournalSalvage:
    """One pass over the files of a damaged journal.

    Attributes:
        disk: the disk of the journal.
        reached: the greatest sequence used so far; initially the sequence of the checkpoint.
        epoch: the greatest epoch found.
        findings: the unreadable parts.
        record_count: the number of records yielded.
    """

    disk: Disk
    reached: int
    epoch: int = 0
    findings: Findings = field(default_factory=Findings)
    record_count: int = 0

    async def batches(self) -> AsyncIterator[list[Record]]:
        """Yield the readable records after ``reached``, batch by batch, in the order of the journal.

        Raises:
            UnsupportedFormatError: a file was written by a newer version.
            DiskError: the directory cannot be read.
        """
        for number in await file_numbers(self.disk):
            path = file_path(number)
            data = await self._content(path)
            for batch, records in self._scan(path, number, data):
                if batch.sequence > self.reached:
                    self.reached = batch.sequence
                    self.record_count += len(records)
                    yield records

    def _scan(self, path: str, number: int, data: bytes) -> Iterator[tuple[BatchHeader, list[Record]]]:
        header = decode_file_header(data)
        if header is None:
            self.findings.report(path, 0, "its header is damaged")
        elif header.number != number or header.epoch < self.epoch:
            self.findings.report(path, 0, f"it is file {header.number} of epoch {header.epoch} by its header: not used")
            return
        epoch = None if header is None else header.epoch
        offset, used = FILE_HEADER_SIZE, used_size(data)
        while offset < used:
            batch = decode_batch_header(data, offset, epoch)
            if batch is not None and batch.epoch >= self.epoch:
                self.epoch = epoch = batch.epoch
                if (records := self._records(path, data, batch)) is not None:
                    yield batch, records
                offset = batch.end  # trust the size in an intact header: the content may look like a batch
                continue
            found = find_batch_header(data, offset + 1, epoch)
            end = used if found is None else found.offset
            are = agreeing(end - offset, "is", "are")
            self.findings.report(path, offset, f"{counted(end - offset, 'byte')} {are} not an intact batch")
            offset = end
        self.epoch = max(self.epoch, epoch or 0)

    def _records(self, path: str, data: bytes, batch: BatchHeader) -> list[Record] | None:
        try:
            records, problem = decode_records(data, batch), "its checksum does not match, or its end is missing"
        except DamagedJournalError as error:
            records, problem = None, str(error)
        if records is None:
            what = f"batch {batch.sequence} with {counted(batch.record_count, 'record')} is damaged: {problem}"
            self.findings.report(path, batch.offset, what)
        return records

    async def _content(self, path: str) -> bytes:
        """Return the bytes of a file, with zeros in place of unreadable parts."""
        try:
            file = await self.disk.open(path)
        except (DiskError, FileNotFoundError) as error:
            self.findings.report(path, 0, f"it cannot be opened: {error}")
            return b""
        try:
            return await read_with_gaps(file, path, 0, await file.size(), self.findings)
        except DiskError as error:
            self.findings.report(path, 0, str(error))
            return b""
        finally:
            await file.close()
