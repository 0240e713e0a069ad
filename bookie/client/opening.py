"""Opening a ledger for reading: check what the caller says about it against the metadata."""

from __future__ import annotations

from bookie.client.access import access_to
from bookie.client.errors import WrongDigestTypeError
from bookie.client.ports import ClientPorts
from bookie.client.reader.reader import LedgerReader
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.digest import Digest, digest_for
from bookie.model.metadata import DigestType


def open_reader(
    ports: ClientPorts, ledger: Versioned, password: bytes | None, digest_type: DigestType | None = None
) -> LedgerReader:
    """A reader of ``ledger``; None for what the caller leaves to the metadata.

    Raises:
        WrongPasswordError: the password is not the ledger's.
        WrongDigestTypeError: it has another digest type.
    """
    digest = access_to(ledger, password).digest
    if digest_type is not None and digest_type is not digest.type:
        raise WrongDigestTypeError(
            f"ledger {ledger.ledger_id} has the digest type {digest.type.name}, not {digest_type.name}"
        )
    return LedgerReader(ports, ledger, digest)


def stored_digest(ledger: Versioned) -> Digest:
    """Digest by the type and password in the metadata; format 1 has neither, and means CRC32 and an empty one."""
    metadata = ledger.metadata
    return digest_for(metadata.digest_type or DigestType.CRC32, metadata.password or b"")
