"""Count the settled ledgers of a verified snapshot, and return the ids of all others.

Runs inside an executor, without a connection. A ledger is settled, and needs no second look, if its metadata is
readable, it is closed, and each of its members is live: such metadata changes only if a copy is moved. The id of every
other ledger is returned, so that it is read again from ZooKeeper: a snapshot is older than the cluster (R99).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from bookie.metadata.layout import LayoutKind, ledger_ids_under
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.model.ids import is_bookie_id
from bookie.model.metadata import LedgerState
from spark_jobs.datasource.columns import LedgerColumns
from spark_jobs.datasource.counts import ScanCounts
from spark_jobs.datasource.ledger_schema import LEDGER_DDL, LEDGER_FIELDS, SUMMARY_DDL, SUMMARY_FIELD
from spark_jobs.datasource.usual_metadata import HealthyMetadataRecognizer, usual_message
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.files import opened
from spark_jobs.snapshot.format import SnapshotStream
from spark_jobs.snapshot.index import LEAF_BYTES, SnapshotPart

NAMED_DDL: Final = f"ledger_id bigint, {SUMMARY_DDL}"
_NAMED_SCHEMA: Final = pa.schema([pa.field("ledger_id", pa.int64()), SUMMARY_FIELD])
SETTLED_DDL: Final = f"named_id bigint, {SUMMARY_DDL}, {LEDGER_DDL}"
"""The columns if the rows of settled ledgers are included; ``ledger_id`` is null in all other rows."""
_SETTLED_SCHEMA: Final = pa.schema([pa.field("named_id", pa.int64()), SUMMARY_FIELD, *LEDGER_FIELDS])
_CLOSED: Final = LedgerState.CLOSED.value
_NAME_BYTES: Final = len("L0000")


@dataclass(frozen=True, slots=True)
class SnapshotTasks:
    """The function that Spark calls with indexes into ``groups``; it yields the ids to read again, then the counts.

    With ``keeps_all``, it yields the settled ledgers as well, and all rows have the columns of ``SETTLED_DDL``.

    Raises:
        SnapshotError: the file is no longer the one that was verified.
    """

    file: Path
    kind: LayoutKind
    root: str
    live: frozenset[str]
    groups: Sequence[Sequence[SnapshotPart]]
    keeps_all: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one Spark task."""
        sieve = SettledLedgerFilter(self.live)
        settled = LedgerColumns() if self.keeps_all else None
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with opened(self.file) as source:
                    stream = SnapshotStream(source, str(self.file))
                    for part in self.groups[number]:
                        named = _named(self._part(stream, part, sieve, settled))
                        if settled is None:
                            yield named
                        else:  # a part has at most 10,000 ledgers
                            yield _with_settled_columns(named)
                            yield _settled(settled.take_batch())
        yield _counted(sieve.counts) if settled is None else _with_settled_columns(_counted(sieve.counts))

    def _part(
        self, stream: SnapshotStream, part: SnapshotPart, sieve: SettledLedgerFilter, settled: LedgerColumns | None
    ) -> list[int]:
        """Return the ids of a part that must be read again; the other ledgers are added to ``settled``."""
        ids = _PartIds(self.kind, self.root, part.parent)
        prefix = f"{part.parent}/L".encode()
        size, end, ledgers = len(part.parent.encode()) + LEAF_BYTES, part.offset + part.length, 0
        named: list[int] = []
        stream.skip_to(part.offset)
        stream.begin_part()
        for path, data in stream.nodes():
            if stream.offset >= end:
                break
            if len(path) != size or not path.startswith(prefix):
                continue
            ledgers += 1
            ledger_id = ids.of(path[-_NAME_BYTES:])
            if ledger_id is None:
                sieve.counts.skipped += 1
            elif not sieve.is_settled(data):
                named.append(ledger_id)
            elif settled is not None:
                settled.add(ledger_id, data)
        if stream.offset != end or ledgers != part.ledgers or stream.end_part() != part.checksum:
            raise SnapshotError(f"the snapshot {self.file} changed while it was read: run the audit again")
        sieve.counts.returned += len(named)
        return named


class SettledLedgerFilter:
    """Counts the settled ledgers. Not shared between threads."""

    def __init__(self, live: frozenset[str]) -> None:
        """Prepare; ``live`` are the registered bookies that are not draining."""
        self.counts = ScanCounts()
        self._live = frozenset(filter(is_bookie_id, live))
        self._healthy = HealthyMetadataRecognizer(self._live)

    def is_settled(self, data: bytes) -> bool:
        """Return whether the ledger is settled, and count it if it is."""
        if (healthy := self._healthy.recognize(data)) is not None:
            state, _, _, members = healthy
            if state != _CLOSED:
                return False
            self.counts.add(state, (members,))
            return True
        message = usual_message(data)
        if message is not None and not (message.state == _CLOSED and self._is_live(message)):
            return False
        try:
            metadata = decode(data)
        except UnreadableMetadataError:
            return False
        if metadata.state is not LedgerState.CLOSED or not metadata.members() <= self._live:
            return False
        self.counts.add(_CLOSED, [fragment.members for fragment in metadata.fragments])
        return True

    def _is_live(self, message: LedgerMetadataFormat) -> bool:
        return all(self._live.issuperset(segment.ensembleMember) for segment in message.segment)


def divide_parts(parts: Sequence[SnapshotPart], count: int) -> list[list[SnapshotPart]]:
    """Divide parts, in the order of the file, into at most ``count`` groups with about equally many ledgers.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"cannot divide into {count} groups, need at least 1")
    total, seen = sum(part.ledgers + 1 for part in parts), 0
    groups: list[list[SnapshotPart]] = [[] for _ in range(count)]
    for part in parts:
        groups[seen * count // total].append(part)
        seen += part.ledgers + 1
    return [group for group in groups if group]


class _PartIds:
    """The ids of the ledgers under one node, by the last part of their paths."""

    def __init__(self, kind: LayoutKind, root: str, parent: str) -> None:
        self._where = (kind, root, parent)
        ends = ledger_ids_under(kind, root, parent, ("L0000", "L9999"))
        self._first = ends[0] if len(ends) == len(("L0000", "L9999")) else None
        """Id of the first ledger; None: not every name is that of a ledger, so each one is parsed."""

    def of(self, name: bytes) -> int | None:
        """Return the id; None: the node is not a ledger."""
        if (number := _numbers().get(name)) is None:
            return None
        if self._first is not None:
            return self._first + number
        return next(iter(ledger_ids_under(*self._where, (name.decode(),))), None)


@cache
def _numbers() -> dict[bytes, int]:
    return {b"L%04d" % number: number for number in range(10_000)}


def _named(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.nulls(len(ids), SUMMARY_FIELD.type)], schema=_NAMED_SCHEMA)


def _counted(counts: ScanCounts) -> pa.RecordBatch:
    summary = pa.array([counts.summary()], SUMMARY_FIELD.type)
    return pa.record_batch([pa.nulls(1, pa.int64()), summary], schema=_NAMED_SCHEMA)


def _with_settled_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without a ledger, in the columns of ``SETTLED_DDL``."""
    nulls = [pa.nulls(batch.num_rows, field.type) for field in LEDGER_FIELDS]
    return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=_SETTLED_SCHEMA)


def _settled(batch: pa.RecordBatch) -> pa.RecordBatch:
    nulls = [pa.nulls(batch.num_rows, field.type) for field in _NAMED_SCHEMA]
    return pa.RecordBatch.from_arrays([*nulls, *batch.columns], schema=_SETTLED_SCHEMA)
