"""The shape of a new ledger."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.model.errors import PermanentError
from bookie.model.metadata import DigestType


class InvalidQuorumError(PermanentError):
    """Ensemble, write quorum and ack quorum that no ledger can have."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Shape of a new ledger: each entry goes to ``write_quorum`` of ``ensemble_size`` bookies, in turn.

    ``LedgerOptions(3, 3, 2)`` keeps three copies of each entry, acknowledges it when two are durable, and so loses
    nothing acknowledged with any one bookie. ``LedgerOptions(5, 2, 2)`` spreads two copies over five bookies.
    """

    ensemble_size: int = 3
    """Bookies that the entries are spread over, E."""
    write_quorum: int = 2
    """Copies of each entry, Qw."""
    ack_quorum: int = 2
    """Durable copies before an append returns, Qa."""
    digest_type: DigestType = DigestType.CRC32C
    """How entries are protected; HMAC also against those who do not know the password."""

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            InvalidQuorumError: unless ``E >= Qw >= Qa >= 1``.
        """
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise InvalidQuorumError(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum {self.ack_quorum}: "
                "need ensemble size >= write quorum >= ack quorum >= 1"
            )
