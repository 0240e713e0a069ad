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
    """Collects the owners of ledgers. Not shared between threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, bytes], ...], OwnerNames] = {}
        self._rows: list[OwnerNames] = []
        self._is_any = False

    def add(self, custom: _Custom) -> None:
        """Take the custom metadata of the next ledger."""
        if not custom:
            self._rows.append(NO_OWNER)
            return
        key = tuple(custom)
        names = self._known.get(key)
        if names is None:
            names = self._decoded(key)
        self._is_any = self._is_any or names is not NO_OWNER
        self._rows.append(names)

    def take(self) -> list[pa.Array]:
        """Return the columns of what was added since the last call."""
        rows, self._rows = self._rows, []
        if not self._is_any:
            return [pa.nulls(len(rows), pa.string()) for _ in OWNER_COLUMNS]
        self._is_any = False
        return [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]

    def _decoded(self, custom: tuple[tuple[str, bytes], ...]) -> OwnerNames:
        names = owner_names(owner_of(custom))
        if sum(len(key) + len(value) for key, value in custom) <= _KNOWN_BYTES_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[custom] = names
        return names
