"""The column of the bookie groups requested by a ledger: null, or a JSON text. Pure.

``{"primary": ["red"], "secondary": []}``, or ``{"problem": "..."}`` if they cannot be read. Equal groups have equal
texts. The column is a text because Spark groups and joins by texts faster than by structs.
"""

from __future__ import annotations

import json

from bookie.model.isolation import Isolation


def groups_text(wish: Isolation | str) -> str:
    """Return the value of the column for groups, or for the reason why they cannot be read."""
    if isinstance(wish, str):
        return json.dumps({"problem": wish})
    return json.dumps({"primary": sorted(wish.primary), "secondary": sorted(wish.secondary)})


def parse_groups_text(text: str) -> tuple[Isolation | None, str]:
    """Return the groups in a value of the column, and why they cannot be read. An empty text counts as null."""
    if not text:
        return None, ""
    value = json.loads(text)
    if (problem := value.get("problem")) is not None:
        return None, problem
    return Isolation(frozenset(value["primary"]), frozenset(value["secondary"])), ""
