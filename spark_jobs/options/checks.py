"""Single checks: the inventory of bookies, the metadata lint, and the references check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from bookie.model.option import Option

INVENTORY_GRACE_S: Final = 2 * 3600.0
"""Bookies of bkheal collect once an hour, and Apache's more often."""
RECOVERY_AGE_MAX_S: Final = 3600.0
"""A recovery reads and writes the end of one ledger, which takes seconds, or minutes if bookies are slow."""
REFERENCE_GRACE_S: Final = 72 * 3600.0
"""A compaction may take many hours, and refers to its ledger only at its end."""
REFERENCES: Final = "References check"
_INVENTORY: Final = "Inventory of bookies"

WithInventory = Annotated[
    bool,
    Option("A run of everything asks bookies for their ledgers and their known damage.", heading=_INVENTORY),
]
InventoryGrace = Annotated[
    float,
    Option(
        "Do not judge copies that became superfluous within the last seconds: their bookies collect them.",
        minimum=0,
        maximum=365 * 86_400,
        heading=_INVENTORY,
    ),
]
InventoryTokenFile = Annotated[
    Path | None,
    Option(
        "Holds a token for bookies of bkheal that list their ledgers only for callers with one.",
        is_file=True,
        heading=_INVENTORY,
    ),
]
"""The file must have the same path on each executor, which reads it before a request to a bookie. The role read is
sufficient."""

RecoveryAgeMax = Annotated[
    float,
    Option(
        "The metadata lint reports ledgers in recovery for longer than this, in seconds.",
        minimum=1,
        maximum=365 * 86_400,
        heading="Metadata lint",
    ),
]

PulsarRoots = Annotated[
    str,
    Option(
        "Paths of the brokers' metadata in the same ZooKeeper, separated by commas: of every Pulsar cluster that uses "
        "these bookies.",
        default_text="the parent of the ledgers' root",
        heading=REFERENCES,
    ),
]
ReferenceGrace = Annotated[
    float,
    Option(
        "Do not judge ledgers younger than this, in seconds.",
        minimum=0,
        maximum=365 * 86_400,
        heading=REFERENCES,
    ),
]
