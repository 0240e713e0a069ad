"""Rows of ``bk_references``: their columns, for Spark (DDL) and for Arrow, and what they say.

A test keeps the two equal. Importable without Spark.
"""

from __future__ import annotations

import enum
from typing import Final

import pyarrow as pa


class ReferenceRow(enum.StrEnum):
    """What a row says."""

    REFERENCE = "REFERENCE"
    """The node refers to the ledger."""
    IN_LEDGER = "IN_LEDGER"
    """The reference to the compacted ledger of the topic is in this ledger, and was not read."""
    UNDECODABLE = "UNDECODABLE"
    """The node cannot be decoded, or may not be read, so nothing is known about its references."""


REFERENCE_DDL: Final = """
    row string, root string, kind string, name string, cursor string, topic string, ledger_id bigint, copy string,
    is_empty boolean, error string
"""
"""``topic`` is null if the name of the node is not that of a topic. ``copy`` is a ``bookie...decoding.Copy``; it
and ``is_empty`` are those of a reference. ``error`` is why a node cannot be decoded."""
REFERENCE_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("row", "root", "kind", "name", "cursor", "topic")),
        ("ledger_id", pa.int64()),
        ("copy", pa.string()),
        ("is_empty", pa.bool_()),
        ("error", pa.string()),
    ]
)
