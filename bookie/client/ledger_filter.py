"""A filter for listings of ledgers: a pure predicate on metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Conditions for ledgers: all must hold. An omitted condition always holds."""

    states: frozenset[LedgerState] | None = None
    bookie: BookieId | None = None
    """A bookie that some fragment names."""
    custom: Mapping[str, bytes | None] = field(default_factory=dict)
    """Required keys of the custom metadata, with their values; None for any value."""
    created_after_ms: int | None = None
    """Created at this time (epoch milliseconds) or later; ledgers without a creation time are excluded."""
    created_before_ms: int | None = None
    """Created before this time; ledgers without a creation time are excluded."""
    id_prefix: str = ""
    """First digits of the id, in decimal."""

    @property
    def needs_metadata(self) -> bool:
        """Whether the ids are not enough to decide."""
        no_conditions = LedgerFilter(id_prefix=self.id_prefix)
        return self != no_conditions

    def matches_id(self, ledger_id: LedgerId) -> bool:
        """Whether a ledger with this id may match."""
        return str(ledger_id).startswith(self.id_prefix)

    def matches(self, metadata: LedgerMetadata) -> bool:
        """Whether a ledger with this metadata matches. The id is not checked."""
        if self.states is not None and metadata.state not in self.states:
            return False
        if self.bookie is not None and self.bookie not in metadata.members():
            return False
        custom = metadata.custom_map
        if any(key not in custom or value not in (None, custom[key]) for key, value in self.custom.items()):
            return False
        return self._matches_time(metadata.ctime_ms)

    def _matches_time(self, ctime_ms: int | None) -> bool:
        after, before = self.created_after_ms, self.created_before_ms
        if ctime_ms is None:
            return after is None and before is None
        return (after is None or ctime_ms >= after) and (before is None or ctime_ms < before)
