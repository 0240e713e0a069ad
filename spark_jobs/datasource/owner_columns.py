"""The columns that name the owner of a ledger, at no cost for ledgers without custom metadata.

Ledgers of one topic have the same custom metadata, so each different one is decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from bookie.model.ownership import NO_OWNER, OWNER_COLUMNS, OwnerNames, owner_names, owner_of

_KNOWN_MAX: Final = 50_000
"""Different custom metadata that is remembered; a task that meets more decodes some of it again."""
_KNOWN_BYTES_MAX: Final = 1024
"""Longer custom metadata is decoded each time. So what is remembered stays below 50 MB."""
_Custom = Sequence[tuple[str, bytes]]


class OwnerColumns:
    """Collects the owners of ledgers with custom metadata. Not shared between threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, bytes], ...], OwnerNames] = {}
        self._owners: dict[int, OwnerNames] = {}
        """By the number of the row."""

    def add(self, row: int, custom: _Custom) -> None:
        """Take the custom metadata of the ledger in this row of the next batch."""
        key = tuple(custom)
        names = self._known.get(key)
        if names is None:
            names = self._decoded(key)
        if names is not NO_OWNER:
            self._owners[row] = names

    def take(self, rows: int) -> list[pa.Array]:
        """Return the columns of a batch of so many rows."""
        owners, self._owners = self._owners, {}
        if not owners:
            return [pa.nulls(rows, pa.string()) for _ in OWNER_COLUMNS]
        found = [owners.get(row, NO_OWNER) for row in range(rows)]
        return [pa.array(values, pa.string()) for values in zip(*found, strict=True)]

    def _decoded(self, custom: tuple[tuple[str, bytes], ...]) -> OwnerNames:
        names = owner_names(owner_of(custom))
        if sum(len(key) + len(value) for key, value in custom) <= _KNOWN_BYTES_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[custom] = names
        return names
