"""The options of a new ledger and of its writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.metadata import DigestType


class InvalidWriterOptionsError(PermanentError):
    """Impossible options of a writer."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of one ``LedgerWriter``."""

    has_own_entry_ids: bool = False
    """The application assigns the entry ids (``append_at``, ``submit_at``), in any order. The ledger ends before the
    first id that is still missing when it is closed."""
    is_ensemble_change_delayed: bool = False
    """Replace failed bookies only if an entry cannot reach ``Qa`` without a replacement, or if one is read-only. Until
    then new entries have fewer than ``Qw`` copies, and the ledger is marked for repair. For rolling restarts."""
    add_quorum_timeout_s: float | None = None
    """Longest time from the admission of an entry to its acknowledgement, in seconds. After that, the entry and all
    later ones fail with ``AddQuorumTimeoutError``, and the ledger can still be closed. An entry after a missing id is
    not admitted yet. None: no limit."""
    explicit_lac_interval_s: float | None = None
    """Time after which a last add confirmed is sent to the bookies in a message of its own if no new entry carries it,
    in seconds. Readers that tail the ledger need it. None: it is sent only with entries."""
    ensemble_changes_max: int | None = None
    """Maximum number of ensemble changes by this writer; it fails if it needs another one.

    None: no limit.
    """

    def check(self) -> None:
        """Refuse impossible options.

        Raises:
            InvalidWriterOptionsError: a time that is not greater than 0, or a negative number of changes.
        """
        times = {
            "add_quorum_timeout_s": self.add_quorum_timeout_s,
            "explicit_lac_interval_s": self.explicit_lac_interval_s,
        }
        for name, seconds in times.items():
            if seconds is not None and not seconds > 0:  # or if it is not a number
                raise InvalidWriterOptionsError(f"{name} must be greater than 0 s, not {seconds:g} s")
        if self.ensemble_changes_max is not None and self.ensemble_changes_max < 0:
            raise InvalidWriterOptionsError(f"a writer cannot make {self.ensemble_changes_max} ensemble changes")


NO_OPTIONS: Final = WriterOptions()


class InvalidQuorumError(PermanentError):
    """An impossible combination of ensemble size, write quorum and ack quorum."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """The shape of a new ledger: each entry is stored on ``write_quorum`` of ``ensemble_size`` bookies, in turn.

    With ``LedgerOptions(3, 3, 2)`` each entry has three copies and is acknowledged when two are durable, so the loss of
    one bookie loses no acknowledged entry. ``LedgerOptions(5, 2, 2)`` spreads two copies over five bookies.
    """

    ensemble_size: int = 3
    """Number of bookies in the ensemble, E. The entries are spread over them."""
    write_quorum: int = 2
    """Number of copies of each entry, Qw."""
    ack_quorum: int = 2
    """Number of durable copies before an append returns, Qa."""
    digest_type: DigestType = DigestType.CRC32C
    """The protection of entries against damage; HMAC also protects against changes without the password."""

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
