"""The column of the bookie groups that a ledger asks for: null, the groups, or only why they cannot be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from bookie.model.isolation import Isolation

GROUPS_DDL: Final = "bookie_groups struct<primary: array<string>, secondary: array<string>, problem: string>"
_NAMES: Final = pa.list_(pa.field("element", pa.string()))
GROUPS_TYPE: Final = pa.struct(
    [pa.field("primary", _NAMES), pa.field("secondary", _NAMES), pa.field("problem", pa.string())]
)


def groups_row(wish: Isolation | str) -> Mapping[str, object]:
    """The value for groups, or for the reason why they cannot be read."""
    if isinstance(wish, str):
        return {"primary": None, "secondary": None, "problem": wish}
    return {"primary": sorted(wish.primary), "secondary": sorted(wish.secondary), "problem": None}


def wish_of(row: Mapping[str, Any] | None) -> tuple[Isolation | None, str]:
    """The groups in a value, and why they cannot be read."""
    if row is None:
        return None, ""
    if row["problem"] is not None:
        return None, row["problem"]
    return Isolation(frozenset(row["primary"]), frozenset(row["secondary"])), ""
