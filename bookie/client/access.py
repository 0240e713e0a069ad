"""Access to one ledger: its digest and the key checked by bookies, from the metadata and a password."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from bookie.client.errors import WrongPasswordError
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.digest import Digest, digest_for, master_key
from bookie.model.metadata import DigestType, LedgerMetadata


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """Digest and master key of one ledger."""

    digest: Digest
    key: bytes = field(repr=False)


def ledger_access(ledger: Versioned, password: bytes | None) -> LedgerAccess:
    """Return the access with ``password``, or with the stored password for None (administration).

    Metadata of format 1 stores neither a password nor a digest type. The digest type is then CRC32, and the password is
    empty unless it is given.

    Raises:
        WrongPasswordError: the password is not the ledger's.
    """
    stored = ledger.metadata.password
    if password is not None and stored is not None and not hmac.compare_digest(password, stored):
        raise WrongPasswordError(f"wrong password for ledger {ledger.ledger_id}")
    chosen = (stored if password is None else password) or b""
    return LedgerAccess(digest_for(ledger.metadata.digest_type or DigestType.CRC32, chosen), master_key(chosen))


def recorded_digest(metadata: LedgerMetadata) -> Digest | None:
    """Return the digest for the type and password in the metadata; None if it has neither (format 1)."""
    if metadata.digest_type is None or metadata.password is None:
        return None
    return digest_for(metadata.digest_type, metadata.password)


def stored_digest(ledger: Versioned) -> Digest:
    """Return the digest for the type and password in the metadata; for format 1, CRC32 and an empty password."""
    metadata = ledger.metadata
    return digest_for(metadata.digest_type or DigestType.CRC32, metadata.password or b"")
