"""Rows of ``bk_references``: their columns, for Spark (DDL) and for Arrow, and their claims.

A test keeps the two equal. Importable without Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from bookie.metadata.pulsar.decoding import Copy, LedgerReference


class Claim(enum.IntEnum):
    """What a reference implies for its ledger. Of several references, the one with the smallest number counts."""

    ENTRIES = 0
    """It has entries, which are in BookKeeper alone."""
    EMPTY = 1
    """It ended without entries, and need not exist."""
    ALSO_ELSEWHERE = 2
    """Its entries are also in another storage."""
    OFFLOADED = 3
    """Its entries are only in another storage."""


REFERENCE_DDL: Final = """
    root string, kind string, name string, cursor string,
    ledgers array<struct<ledger_id: bigint, claim: tinyint>>, position_in bigint, error string,
    tenant string, namespace string, topic string
"""
"""One row per node with references, and per node that leaves one unknown. Such a node has either an ``error``, the
reason why it cannot be decoded, or a ``position_in``: the ledger with the reference to the topic's compacted ledger,
which was not read. Only such a node has the last three columns; they are null if its name is not that of a topic."""
LEDGERS: Final = "ledgers"
_REFERENCE_TYPE: Final = pa.struct([pa.field("ledger_id", pa.int64()), pa.field("claim", pa.int8())])
_LEDGERS_TYPE: Final = pa.list_(pa.field("element", _REFERENCE_TYPE))
REFERENCE_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("root", "kind", "name", "cursor")),
        (LEDGERS, _LEDGERS_TYPE),
        ("position_in", pa.int64()),
        *((name, pa.string()) for name in ("error", "tenant", "namespace", "topic")),
    ]
)


def claim_of(reference: LedgerReference) -> Claim:
    """Return the implication of a reference for its ledger."""
    if reference.copy is Copy.BOOKKEEPER:
        return Claim.EMPTY if reference.is_empty else Claim.ENTRIES
    return Claim.OFFLOADED if reference.copy is Copy.OFFLOADED else Claim.ALSO_ELSEWHERE


def ledgers_column(ledgers: Sequence[Sequence[LedgerReference]]) -> pa.Array:
    """Return the column ``ledgers`` of nodes with these references."""
    offsets = [0]
    for some in ledgers:
        offsets.append(offsets[-1] + len(some))
    ids = pa.array([each.ledger_id for some in ledgers for each in some], pa.int64())
    claims = pa.array([claim_of(each) for some in ledgers for each in some], pa.int8())
    structs = pa.StructArray.from_arrays([ids, claims], fields=list(_REFERENCE_TYPE))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=_LEDGERS_TYPE)
