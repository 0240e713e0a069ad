"""The columns decoded from custom metadata: the owner, and the bookie groups. Ledgers without it cost nothing.

Ledgers of one topic have the same custom metadata, so each distinct value is decoded only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from bookie.model.isolation import UnreadableIsolationError, isolation_of
from bookie.model.ownership import NO_OWNER, OWNER_COLUMNS, OwnerNames, owner_names, owner_of
from spark_jobs.group_rows import groups_text

_KNOWN_MAX: Final = 50_000
"""Number of distinct values that a task remembers; if there are more, the task decodes some of them again."""
_KNOWN_BYTES_MAX: Final = 1024
"""Longer custom metadata is decoded each time, so the remembered values stay below 50 MB."""
_Custom = Sequence[tuple[str, bytes]]
_Decoded = tuple[OwnerNames, str | None]
"""The names of the owner, and the text of the bookie groups."""


class OwnerColumns:
    """Collects the owners in the custom metadata of ledgers. Not shared between threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, bytes], ...], _Decoded] = {}
        self._owners: dict[int, OwnerNames] = {}
        """The owners, by row number."""
        self._groups: dict[int, str] = {}

    def add(self, row: int, custom: _Custom) -> None:
        """Add the custom metadata of the ledger in this row of the next batch."""
        key = tuple(custom)
        decoded = self._known.get(key)
        names, groups = self._decoded(key) if decoded is None else decoded
        if names is not NO_OWNER:
            self._owners[row] = names
        if groups is not None:
            self._groups[row] = groups

    def take(self, rows: int) -> list[pa.Array]:
        """Return the columns of a batch with ``rows`` rows: those of ``OWNER_COLUMNS``, and ``bookie_groups``."""
        return [*self._take_owners(rows), self._take_groups(rows)]

    def _take_owners(self, rows: int) -> list[pa.Array]:
        owners, self._owners = self._owners, {}
        if not owners:
            return [pa.nulls(rows, pa.string()) for _ in OWNER_COLUMNS]
        found = [owners.get(row, NO_OWNER) for row in range(rows)]
        return [pa.array(values, pa.string()) for values in zip(*found, strict=True)]

    def _take_groups(self, rows: int) -> pa.Array:
        groups, self._groups = self._groups, {}
        if not groups:
            return pa.nulls(rows, pa.string())
        return pa.array([groups.get(row) for row in range(rows)], pa.string())

    def _decoded(self, custom: tuple[tuple[str, bytes], ...]) -> _Decoded:
        decoded = owner_names(owner_of(custom)), _groups_of(custom)
        if sum(len(key) + len(value) for key, value in custom) <= _KNOWN_BYTES_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[custom] = decoded
        return decoded


def _groups_of(custom: _Custom) -> str | None:
    try:
        wish = isolation_of(custom)
    except UnreadableIsolationError as error:
        return groups_text(str(error))
    return None if wish is None else groups_text(wish)
