"""What a writer may be asked to do differently. With everything off nothing is paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of one ``LedgerWriter``."""

    has_own_entry_ids: bool = False
    """The application numbers the entries (``append_at``, ``submit_at``), in any order and without gaps in the end."""
    is_ensemble_change_delayed: bool = False
    """Replace failed bookies only when an entry cannot reach ``Qa`` without, or when one is read-only. Until then new
    entries have fewer than ``Qw`` copies, and the ledger is marked for repair. For rolling restarts."""
    add_quorum_timeout_s: float | None = None
    """How long an entry may wait for its acknowledgement once its turn has come, before the writer gives up: it fails
    with ``AddQuorumTimeoutError`` as everything after it, and the ledger can be closed. None: as long as it takes."""
    explicit_lac_interval_s: float | None = None
    """How long a last add confirmed may go without travelling on an entry, before bookies are told about it on its own,
    for the sake of readers that follow the ledger. None: never."""
    ensemble_changes_max: int | None = None
    """Ensemble changes that this writer makes at most; the failure after them ends it. None: no limit."""


NO_OPTIONS: Final = WriterOptions()
