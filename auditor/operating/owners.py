"""The owners of ledgers in Pulsar, for lists of ledgers. They are read in bulk, from the metadata of a page."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.operating.client import Document
from bookie.metadata.ledgers.ledgers import LedgerStore, Versioned
from bookie.model.ids import LedgerId
from bookie.model.ownership import NO_OWNER, OWNER_COLUMNS, OwnerNames, owner_names, owner_of


def owner_fields(names: OwnerNames) -> Document:
    """Return the fields of a document."""
    return dict(zip(OWNER_COLUMNS, names, strict=True))


async def with_owners(ledgers: LedgerStore, rows: Sequence[Document]) -> list[Document]:
    """Return rows, each with a ``ledger_id``, with the fields of their owners. A deleted ledger has no owner.

    Raises:
        StoreUnavailableError: no answer.
    """
    found = await ledgers.read_many_permitted([LedgerId(row["ledger_id"]) for row in rows]) if rows else []
    return [
        {**row, **owner_fields(owner_names(owner_of(one.metadata.custom)) if isinstance(one, Versioned) else NO_OWNER)}
        for row, one in zip(rows, found, strict=True)
    ]


def owner_text(row: Document) -> str:
    """Return the owner for a column of a table: the topic, and its component unless the ledger holds messages."""
    if row["topic"] is None:
        return "-"
    what = "" if row["component"] == "managed-ledger" else f" ({row['component']})"
    return f"{row['topic']}{what}"
