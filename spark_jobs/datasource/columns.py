"""Decode ledger metadata directly into Arrow columns: the inner loop of every scan.

``bookie.metadata.ledgers.serde`` is the reference. The usual form of metadata is decoded by a faster path into the same
columns (see ``usual_metadata``), and property tests keep the two equal. Unreadable bytes become a row with an error:
one damaged ledger never stops a scan.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final

import pyarrow as pa

from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.model.ids import is_bookie_id
from bookie.model.metadata import DigestType, LedgerMetadata, LedgerState
from spark_jobs.datasource.counts import ScanCounts
from spark_jobs.datasource.ledger_schema import FRAGMENT_TYPE, LEDGER_FIELDS, SUMMARY_FIELD
from spark_jobs.datasource.owner_columns import OwnerColumns
from spark_jobs.datasource.usual_metadata import HealthyMetadataRecognizer, usual_message
from spark_jobs.image.part import ImagePart

_KNOWN_MEMBERS_MAX: Final = 100_000
"""Far more bookies than any cluster has. The bound protects memory from metadata that names a new bookie each time."""
_STATES: Final = {state.value: state.name for state in LedgerState}
_DIGESTS: Final = {digest.value: digest.name for digest in DigestType}
_CLOSED: Final = LedgerState.CLOSED.value

_Row = tuple[
    int, str | None, int | None, int | None, int | None, int | None, int | None, str | None, int | None, int | None
]
"""The values of the columns before ``fragments``, in order."""


class MetadataColumns(abc.ABC):
    """Collects metadata, counts it, and keeps rows of ledgers until they are taken. Not shared between threads."""

    def __init__(
        self,
        fields: Sequence[pa.Field],
        live_bookies: frozenset[str] | None = None,
        *,
        is_summarized: bool = False,
        image: ImagePart | None = None,
    ) -> None:
        """Prepare.

        Args:
            fields: the columns before the summary.
            live_bookies: readable ledgers that name only these bookies are counted and left out; None: all are kept.
            is_summarized: whether ``take_summary`` will be called at the end.
            image: also receives every readable ledger; the row of counts lists its files.
        """
        self._image = image
        self.counts = ScanCounts()
        self.is_summarized = is_summarized
        self._live = None if live_bookies is None else frozenset(filter(is_bookie_id, live_bookies))
        self._healthy = None if self._live is None else HealthyMetadataRecognizer(self._live)
        self._fields = fields
        self.schema = pa.schema([*fields, SUMMARY_FIELD] if is_summarized else fields)
        """The schema of each batch."""
        self._known_members: set[str] = set()
        """Names that the reference decoder has accepted. A fragment on only live bookies needs no check."""

    @property
    def has_image(self) -> bool:
        """Whether an image receives the ledgers."""
        return self._image is not None

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of rows not taken yet."""

    @abc.abstractmethod
    def _keep_usual(
        self, ledger_id: int, message: LedgerMetadataFormat, starts: Sequence[int], ensembles: Sequence[Sequence[str]]
    ) -> None: ...

    @abc.abstractmethod
    def _keep(self, ledger_id: int, metadata: LedgerMetadata) -> None: ...

    @abc.abstractmethod
    def _keep_unreadable(self, ledger_id: int, reason: str) -> None: ...

    @abc.abstractmethod
    def _take(self) -> list[pa.Array]:
        """Return the columns of all rows, and drop the rows."""

    def add(self, ledger_id: int, data: bytes) -> None:
        """Add one ledger's metadata. Unreadable bytes become a row with an error."""
        if self._healthy is not None and (healthy := self._healthy.recognize(data)) is not None:
            state, write_quorum, ack_quorum, members = healthy
            self.counts.add(state, (members,))
            if self._image is not None:
                self._image.add(ledger_id, state, len(members), write_quorum, ack_quorum, members, is_live=True)
            return
        message = usual_message(data)
        if message is None or not self._add_usual(ledger_id, message):
            self._add_with_reference_decoder(ledger_id, data)

    def add_unreadable(self, ledger_id: int, reason: str) -> None:
        """Add one ledger with unavailable metadata, as a row with an error."""
        self.counts.unreadable += 1
        self._keep_unreadable(ledger_id, reason)

    def take_batch(self) -> pa.RecordBatch:
        """Return the rows added since the last call, possibly none, as one batch."""
        rows = len(self)
        self.counts.returned += rows
        return self._batch(self._take(), rows)

    def take_summary(self) -> pa.RecordBatch:
        """Return the row of counts at the end of a partition; nothing may be added after it."""
        nulls = [pa.nulls(1, field.type) for field in self._fields]
        image = None if self._image is None else self._image.finish()
        summary = {**self.counts.summary(), "image": image}
        return self._batch([*nulls, pa.array([summary], SUMMARY_FIELD.type)], 1)

    def _add_usual(self, ledger_id: int, message: LedgerMetadataFormat) -> bool:
        """Add a message if its fragments are valid, too; otherwise change nothing and return False."""
        size, known, live = message.ensembleSize, self._known_members, self._live
        starts: list[int] = []
        ensembles: list[Sequence[str]] = []
        previous = -1
        is_returned = False
        for segment in message.segment:
            start, members = segment.firstEntryId, tuple(segment.ensembleMember)
            if start <= previous or len(members) != size:
                return False
            if live is None or not live.issuperset(members):
                if not known.issuperset(members):
                    return False
                is_returned = True
            starts.append(start)
            ensembles.append(members)
            previous = start
        if not starts:
            return False
        state = message.state
        shape = (state, size, message.quorumSize, message.ackQuorumSize)
        self._count(ledger_id, shape, ensembles, is_live=live is not None and not is_returned)
        if is_returned:
            self._keep_usual(ledger_id, message, starts, ensembles)
        return True

    def _add_with_reference_decoder(self, ledger_id: int, data: bytes) -> None:
        try:
            metadata = decode(data)
        except UnreadableMetadataError as error:
            self.add_unreadable(ledger_id, str(error))
            return
        if len(self._known_members) > _KNOWN_MEMBERS_MAX:
            self._known_members.clear()
        self._known_members |= metadata.members()
        ensembles = [fragment.members for fragment in metadata.fragments]
        shape = (metadata.state.value, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        is_live = self._live is not None and metadata.members() <= self._live
        self._count(ledger_id, shape, ensembles, is_live=is_live)
        if not is_live:
            self._keep(ledger_id, metadata)

    def _count(
        self, ledger_id: int, shape: tuple[int, int, int, int], ensembles: Sequence[Sequence[str]], *, is_live: bool
    ) -> None:
        """Count a ledger with this state, ensemble size, write quorum and ack quorum."""
        self.counts.add(shape[0], ensembles)
        if self._image is not None:
            members = ensembles[0] if len(ensembles) == 1 else tuple(chain.from_iterable(ensembles))
            self._image.add(ledger_id, *shape, members, is_live=is_live)

    def _batch(self, arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
        missing = [pa.nulls(rows, field.type) for field in list(self.schema)[len(arrays) :]]
        cast = [
            array.cast(field.type) for array, field in zip([*arrays, *missing], self.schema, strict=True)
        ]  # list types differ only in the name of their element
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


class LedgerColumns(MetadataColumns):
    """All columns of ``bk_ledgers``."""

    def __init__(
        self,
        live_bookies: frozenset[str] | None = None,
        *,
        is_summarized: bool = False,
        image: ImagePart | None = None,
    ) -> None:
        """Start without rows; the arguments are those of ``MetadataColumns``."""
        super().__init__(LEDGER_FIELDS, live_bookies, is_summarized=is_summarized, image=image)
        self._owners = OwnerColumns()
        self._clear()

    def __len__(self) -> int:
        return len(self._rows)

    def _take(self) -> list[pa.Array]:
        values = [*zip(*self._rows, strict=True)] or [()] * 10
        arrays = [pa.array(column, field.type) for column, field in zip(values, LEDGER_FIELDS, strict=False)]
        arrays += [self._fragments(), pa.array(self._errors, pa.string()), *self._owners.take(len(self))]
        self._clear()
        return arrays

    def _keep_usual(
        self, ledger_id: int, message: LedgerMetadataFormat, starts: Sequence[int], ensembles: Sequence[Sequence[str]]
    ) -> None:
        state = message.state
        last_entry_id, length = (message.lastEntryId, message.length) if state == _CLOSED else (None, None)
        self._append(
            (
                ledger_id,
                _STATES[state],
                message.ensembleSize,
                message.quorumSize,
                message.ackQuorumSize,
                last_entry_id,
                length,
                _DIGESTS[message.digestType],
                message.ctime if message.HasField("ctime") else None,
                3,
            ),
            starts,
            ensembles,
        )
        if message.customMetadata:
            custom = [(entry.key, entry.value) for entry in message.customMetadata]
            self._owners.add(len(self._rows) - 1, custom)

    def _keep(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self._append(
            (
                ledger_id,
                metadata.state.name,
                metadata.ensemble_size,
                metadata.write_quorum,
                metadata.ack_quorum,
                metadata.last_entry_id,
                metadata.length,
                None if metadata.digest_type is None else metadata.digest_type.name,
                metadata.ctime_ms,
                metadata.format_version,
            ),
            [fragment.first_entry_id for fragment in metadata.fragments],
            [fragment.members for fragment in metadata.fragments],
        )
        if metadata.custom:
            self._owners.add(len(self._rows) - 1, metadata.custom)

    def _keep_unreadable(self, ledger_id: int, reason: str) -> None:
        self._rows.append((ledger_id, None, None, None, None, None, None, None, None, None))
        self._fragment_counts.append(0)
        self._errors.append(reason)

    def _append(self, row: _Row, starts: Sequence[int], ensembles: Sequence[Sequence[str]]) -> None:
        self._rows.append(row)
        self._errors.append(None)
        self._fragment_counts.append(len(starts))
        self._starts.extend(starts)
        self._ends.extend([start - 1 for start in starts[1:]])
        self._ends.append(row[5])
        for members in ensembles:
            self._member_counts.append(len(members))
            self._members.extend(members)

    def _fragments(self) -> pa.Array:
        members = pa.ListArray.from_arrays(_offsets(self._member_counts), pa.array(self._members, pa.string()))
        fragments = pa.StructArray.from_arrays(
            [pa.array(self._starts, pa.int64()), pa.array(self._ends, pa.int64()), members], fields=list(FRAGMENT_TYPE)
        )
        is_error = pa.array([error is not None for error in self._errors], pa.bool_())
        return pa.ListArray.from_arrays(_offsets(self._fragment_counts), fragments, mask=is_error)

    def _clear(self) -> None:
        self._rows: list[_Row] = []
        self._errors: list[str | None] = []
        self._fragment_counts: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int | None] = []
        self._member_counts: list[int] = []
        self._members: list[str] = []


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array([0, *accumulate(lengths)], pa.int32())
