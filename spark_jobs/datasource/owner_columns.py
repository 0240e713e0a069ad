"""The columns that custom metadata fills, at no cost for ledgers without it: the owner, and the bookie groups.

Ledgers of one topic have the same custom metadata, so each different one is decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from bookie.model.isolation import Isolation, UnreadableIsolationError, isolation_of
from bookie.model.ownership import NO_OWNER, OWNER_COLUMNS, OwnerNames, owner_names, owner_of
from spark_jobs.group_rows import GROUPS_TYPE, groups_row

_KNOWN_MAX: Final = 50_000
"""Different custom metadata that is remembered; a task that meets more decodes some of it again."""
_KNOWN_BYTES_MAX: Final = 1024
"""Longer custom metadata is decoded each time. So what is remembered stays below 50 MB."""
_Custom = Sequence[tuple[str, bytes]]
_Groups = Isolation | str | None
"""What a ledger asks for, or why that cannot be read."""
_Decoded = tuple[OwnerNames, _Groups]


class OwnerColumns:
    """Collects what the custom metadata of ledgers says. Not shared between threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, bytes], ...], _Decoded] = {}
        self._owners: dict[int, OwnerNames] = {}
        """By the number of the row."""
        self._groups: dict[int, Isolation | str] = {}

    def add(self, row: int, custom: _Custom) -> None:
        """Take the custom metadata of the ledger in this row of the next batch."""
        key = tuple(custom)
        decoded = self._known.get(key)
        names, groups = self._decoded(key) if decoded is None else decoded
        if names is not NO_OWNER:
            self._owners[row] = names
        if groups is not None:
            self._groups[row] = groups

    def take(self, rows: int) -> list[pa.Array]:
        """Return the columns of a batch of so many rows: those of ``OWNER_COLUMNS``, and ``bookie_groups``."""
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
            return pa.nulls(rows, GROUPS_TYPE)
        numbers = {wish: number for number, wish in enumerate(dict.fromkeys(groups.values()))}
        values = pa.array([groups_row(wish) for wish in numbers], GROUPS_TYPE)
        at = [numbers[groups[row]] if row in groups else None for row in range(rows)]
        return values.take(pa.array(at, pa.int32()))

    def _decoded(self, custom: tuple[tuple[str, bytes], ...]) -> _Decoded:
        decoded = owner_names(owner_of(custom)), _groups_of(custom)
        if sum(len(key) + len(value) for key, value in custom) <= _KNOWN_BYTES_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[custom] = decoded
        return decoded


def _groups_of(custom: _Custom) -> _Groups:
    try:
        return isolation_of(custom)
    except UnreadableIsolationError as error:
        return str(error)
