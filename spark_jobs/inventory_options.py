"""Options of the inventory of bookies, the same for the service and for a one-shot audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from bookie.model.option import Option

INVENTORY_GRACE_S: Final = 2 * 3600.0
"""Bookies of bkheal collect once an hour, and Apache's more often."""
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
