"""The ledger client's front door: create, open, delete and list ledgers.

async with await connect("zk+hierarchical://localhost:2181/ledgers") as client:
    async with await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2) as ledger:
        entry_id = await ledger.append(b"hello")
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from bookie.client.errors import NotEnoughBookiesError, WrongPasswordError
from bookie.client.placement import choose_ensemble
from bookie.client.ports import ClientPorts
from bookie.client.reader import LedgerReader
from bookie.client.writer import LedgerWriter
from bookie.metadata.ledgers import Versioned
from bookie.model.digest import Digest, digest_for
from bookie.model.errors import PermanentError
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata

_log: Final = logging.getLogger(__name__)


class InvalidQuorumError(PermanentError):
    """Ensemble, write quorum and ack quorum that no ledger can have."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Shape of a new ledger: each entry goes to ``write_quorum`` of ``ensemble_size`` bookies, in turn."""

    ensemble_size: int = 3
    write_quorum: int = 2
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C

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


class BookKeeper:
    """A client of one cluster, on the ports it is handed. ``connect`` makes one for a real cluster."""

    def __init__(self, ports: ClientPorts) -> None:
        self.ports = ports

    async def create_ledger(
        self,
        options: LedgerOptions = LedgerOptions(),
        *,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
    ) -> LedgerWriter:
        """Create a ledger on randomly chosen writable bookies and return its writer.

        Raises:
            InvalidQuorumError: impossible options.
            NotEnoughBookiesError: fewer than ``ensemble_size`` writable bookies; nothing was created.
            StoreUnavailableError: no answer from the metadata store.
        """
        options.check()
        writable = (await self.ports.registrations.list()).writable
        members = choose_ensemble(writable, options.ensemble_size, self.ports.rng)
        if members is None:
            raise NotEnoughBookiesError(
                f"the ledger needs {options.ensemble_size} bookies and {len(writable)} are registered writable; "
                "start more bookies or ask for a smaller ensemble"
            )
        metadata = LedgerMetadata(
            ensemble_size=options.ensemble_size,
            write_quorum=options.write_quorum,
            ack_quorum=options.ack_quorum,
            fragments=(Fragment(EntryId(0), members),),
            digest_type=options.digest_type,
            password=password,
            ctime_ms=self.ports.clock.epoch_ms(),
            custom=tuple(sorted((custom or {}).items())),
        )
        ledger = await self.ports.ledgers.create(await self.ports.ledgers.new_id(), metadata)
        return LedgerWriter(self.ports, ledger, digest_for(options.digest_type, password), password)

    async def open_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> LedgerReader:
        """Open a ledger for reading, without recovery. Without a password the stored one is used (administration).

        Raises:
            NoSuchLedgerError: there is none.
            WrongPasswordError: the password is not the ledger's.
            UnreadableMetadataError: its metadata cannot be decoded.
        """
        ledger = await self.ports.ledgers.read(ledger_id)
        stored = ledger.metadata.password
        if password is not None and stored is not None and not hmac.compare_digest(password, stored):
            raise WrongPasswordError(f"wrong password for ledger {ledger_id}")
        return LedgerReader(self.ports, ledger, stored_digest(ledger))

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's metadata. Idempotent. Its entries stay on the bookies until they collect garbage."""
        await self.ports.ledgers.delete(ledger_id)

    async def ledgers(self) -> AsyncIterator[LedgerId]:
        """Ids of all ledgers."""
        async for ledger_id in self.ports.ledgers.ids():
            yield ledger_id


def stored_digest(ledger: Versioned) -> Digest:
    """Digest by the type and password in the metadata; format 1 has neither, and means CRC32 and an empty one."""
    metadata = ledger.metadata
    return digest_for(metadata.digest_type or DigestType.CRC32, metadata.password or b"")


def readable_entries(metadata: LedgerMetadata) -> int:
    """How many entries a closed ledger holds; 0 where the end is not known."""
    return (metadata.last_entry_id if metadata.last_entry_id is not None else NO_ENTRY) + 1
