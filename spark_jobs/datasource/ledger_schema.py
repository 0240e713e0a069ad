"""Columns of ``bk_ledgers``, for Spark (DDL) and for Arrow; a test keeps the two equal."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from bookie.model.ownership import OWNER_COLUMNS

LEDGER_DDL: Final = """
    ledger_id bigint, state string, ensemble_size int, write_quorum int, ack_quorum int, last_entry_id bigint,
    length bigint, digest_type string, ctime_ms bigint, format_version int,
    fragments array<struct<first_entry_id: bigint, last_entry_id: bigint, members: array<string>>>,
    error string, tenant string, namespace string, topic string, component string, subscription string,
    bookie_groups string
"""
"""``bookie_groups`` is the text of ``spark_jobs.group_rows``; null if the ledger requests none."""
BRIEF_DDL: Final = "ledger_id bigint, is_closed boolean, is_pulsar boolean, topic_hash int, error string"
"""The columns compared by the references check. ``topic_hash`` is a hash of the topic, null if the topic is unknown. If
the metadata cannot be read, all columns except the id and the error are null."""
SUMMARY_DDL: Final = """
    summary struct<
        parents: array<struct<path: string, planned: bigint, listed: bigint>>,
        ledgers: bigint, fragments: bigint, unreadable: bigint, vanished: bigint, skipped: bigint, returned: bigint,
        carried: bigint, carried_problem: string,
        open: bigint, in_recovery: bigint, closed: bigint,
        bookies: array<struct<bookie_id: string, ledgers: bigint, fragments: bigint>>,
        image: struct<
            files: array<struct<name: string, rows: bigint, bytes: bigint, footer_crc32: bigint>>, problem: string>>
"""


def _list(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


def _int64_fields(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.int64()) for name in names]


FRAGMENT_TYPE: Final = pa.struct(
    [*_int64_fields("first_entry_id", "last_entry_id"), pa.field("members", _list(pa.string()))]
)
LEDGER_FIELDS: Final = [
    pa.field("ledger_id", pa.int64()),
    pa.field("state", pa.string()),
    pa.field("ensemble_size", pa.int32()),
    pa.field("write_quorum", pa.int32()),
    pa.field("ack_quorum", pa.int32()),
    *_int64_fields("last_entry_id", "length"),
    pa.field("digest_type", pa.string()),
    *_int64_fields("ctime_ms"),
    pa.field("format_version", pa.int32()),
    pa.field("fragments", _list(FRAGMENT_TYPE)),
    pa.field("error", pa.string()),
    *(pa.field(name, pa.string()) for name in OWNER_COLUMNS),
    pa.field("bookie_groups", pa.string()),
]
BRIEF_FIELDS: Final = [
    pa.field("ledger_id", pa.int64()),
    pa.field("is_closed", pa.bool_()),
    pa.field("is_pulsar", pa.bool_()),
    pa.field("topic_hash", pa.int32()),
    pa.field("error", pa.string()),
]
_PARENT_TYPE: Final = pa.struct([pa.field("path", pa.string()), *_int64_fields("planned", "listed")])
_BOOKIE_TYPE: Final = pa.struct([pa.field("bookie_id", pa.string()), *_int64_fields("ledgers", "fragments")])
_IMAGE_FILE_TYPE: Final = pa.struct([pa.field("name", pa.string()), *_int64_fields("rows", "bytes", "footer_crc32")])
_IMAGE_TYPE: Final = pa.struct([pa.field("files", _list(_IMAGE_FILE_TYPE)), pa.field("problem", pa.string())])
SUMMARY_FIELD: Final = pa.field(
    "summary",
    pa.struct(
        [
            pa.field("parents", _list(_PARENT_TYPE)),
            *_int64_fields("ledgers", "fragments", "unreadable", "vanished", "skipped", "returned"),
            *_int64_fields("carried"),
            pa.field("carried_problem", pa.string()),
            *_int64_fields("open", "in_recovery", "closed"),
            pa.field("bookies", _list(_BOOKIE_TYPE)),
            pa.field("image", _IMAGE_TYPE),
        ]
    ),
)


def ledger_ddl(*, is_summarized: bool, is_brief: bool = False) -> str:
    """Return the Spark schema of the source."""
    columns = BRIEF_DDL if is_brief else LEDGER_DDL
    return f"{columns}, {SUMMARY_DDL}" if is_summarized else columns
