"""The columns of ledgers that the references check compares: numbers and booleans, no names.

Decoding the owners' names would be most of the cost of a scan of Pulsar's ledgers, and nearly all ledgers are
referenced. The few others are read again anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.ownership import OWNING_KEYS, is_written_by_pulsar
from spark_jobs.datasource.columns import MetadataColumns
from spark_jobs.datasource.ledger_schema import BRIEF_FIELDS

_CLOSED: Final = LedgerState.CLOSED.value
_Row = tuple[int, bool | None, bool | None, int | None, str | None]


class BriefColumns(MetadataColumns):
    """The columns of ``BRIEF_DDL``."""

    def __init__(self, live_bookies: frozenset[str] | None = None, *, is_summarized: bool = False) -> None:
        """Start without rows; the arguments are those of ``MetadataColumns``."""
        super().__init__(BRIEF_FIELDS, live_bookies, is_summarized=is_summarized)
        self._rows: list[_Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def _take(self) -> list[pa.Array]:
        values = [*zip(*self._rows, strict=True)] or [()] * len(BRIEF_FIELDS)
        self._rows = []
        return [pa.array(column, field.type) for column, field in zip(values, BRIEF_FIELDS, strict=True)]

    def _keep_usual(
        self, ledger_id: int, message: LedgerMetadataFormat, starts: Sequence[int], ensembles: Sequence[Sequence[str]]
    ) -> None:
        custom = {entry.key: entry.value for entry in message.customMetadata}
        self._append(ledger_id, message.state == _CLOSED, custom)

    def _keep(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self._append(ledger_id, metadata.is_closed, metadata.custom_map)

    def _keep_unreadable(self, ledger_id: int, reason: str) -> None:
        self._rows.append((ledger_id, None, None, None, reason))

    def _append(self, ledger_id: int, is_closed: bool, custom: Mapping[str, bytes]) -> None:
        named = next((custom[key] for key in OWNING_KEYS if key in custom), None)
        # Spark's int is signed.
        topic_hash = None if named is None else zlib.crc32(named) >> 1
        self._rows.append((ledger_id, is_closed, is_written_by_pulsar(custom), topic_hash, None))
