"""Rows of ``bk_references``: their columns, for Spark (DDL) and for Arrow, and what they claim about ledgers.

A test keeps the two kinds of columns equal. Importable without Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from bookie.metadata.pulsar.decoding import EntriesLocation, LedgerReference


class Claim(enum.IntEnum):
    """What a reference implies for its ledger. If there are several references, the smallest value counts."""

    ENTRIES = 0
    """The ledger has entries, which are only in BookKeeper."""
    EMPTY = 1
    """The ledger ended without entries, and need not exist."""
    ALSO_ELSEWHERE = 2
    """The ledger's entries are also in another storage."""
    OFFLOADED = 3
    """The ledger's entries are only in another storage."""


REFERENCE_DDL: Final = """
    root string, kind string, name string, cursor string,
    ledgers array<struct<ledger_id: bigint, claim: tinyint>>, position_in bigint, error string,
    tenant string, namespace string, topic string
"""
"""One row per node with references, and one per node with an unknown reference. A node with an unknown reference has
either an ``error``, which is the reason why it cannot be decoded, or a ``position_in``. The latter is the ledger that
stores the reference to the topic's compacted ledger, and was not read. Only for such a node are the last three columns
set; they are null if its name is not that of a topic."""
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
    """Return what a reference implies for its ledger."""
    if reference.copy is EntriesLocation.BOOKKEEPER:
        return Claim.EMPTY if reference.is_empty else Claim.ENTRIES
    return Claim.OFFLOADED if reference.copy is EntriesLocation.OFFLOADED else Claim.ALSO_ELSEWHERE


def ledgers_column(ledgers: Sequence[Sequence[LedgerReference]]) -> pa.Array:
    """Return the column ``ledgers`` of nodes with these references."""
    offsets = [0]
    for some in ledgers:
        offsets.append(offsets[-1] + len(some))
    ids = pa.array([each.ledger_id for some in ledgers for each in some], pa.int64())
    claims = pa.array([claim_of(each) for some in ledgers for each in some], pa.int8())
    structs = pa.StructArray.from_arrays([ids, claims], fields=list(_REFERENCE_TYPE))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=_LEDGERS_TYPE)
