"""The shape of a new ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.metadata import DigestType


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
    """The longest time for which a last add confirmed may wait for an entry to carry it, before it is sent to the
    bookies on its own for readers tailing the ledger. None: it is never sent on its own."""
    ensemble_changes_max: int | None = None
    """The maximum number of ensemble changes by this writer; the next failure closes it.

    None: no limit.
    """


NO_OPTIONS: Final = WriterOptions()


class InvalidQuorumError(PermanentError):
    """An impossible combination of ensemble size, write quorum and ack quorum."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Shape of a new ledger: each entry goes to ``write_quorum`` of ``ensemble_size`` bookies, in turn.

    ``LedgerOptions(3, 3, 2)`` keeps three copies of each entry, acknowledges it when two are durable, and so loses
    nothing acknowledged with any one bookie. ``LedgerOptions(5, 2, 2)`` spreads two copies over five bookies.
    """

    ensemble_size: int = 3
    """Bookies in the ensemble, E: the entries are spread over them."""
    write_quorum: int = 2
    """Copies of each entry, Qw."""
    ack_quorum: int = 2
    """Durable copies before an append returns, Qa."""
    digest_type: DigestType = DigestType.CRC32C
    """How entries are protected; HMAC also against parties without the password."""

    def check(self) -> None:
        """Refuse impossible options.

        Raises:
            InvalidQuorumError: unless ``E >= Qw >= Qa >= 1``.
        """
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise InvalidQuorumError(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum {self.ack_quorum}: "
                "need ensemble size >= write quorum >= ack quorum >= 1"
            )
