"""What is still unverified of the one bookie whose files were damaged.

Until all of it is verified, no other bookie is damaged or destroyed: each acknowledged entry has at least two copies,
so one good copy remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookie.client.bookkeeper import BookKeeper
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.requests import ListEntries
from tests.deadlines import STATE_S
from tests.faults.verdict import faults_of_copies
from tests.worlds.ledgers import placed_copies

_BAD_MAX: Final = 5
"""A check ends after this many ledgers with bad copies."""


class DeniedEntryError(Exception):
    """A bookie answers "never stored" for an entry that it listed before its files were damaged."""


@dataclass(slots=True)
class Healing:
    """The ledgers that named a bookie when its files were damaged, and that are not verified since then."""

    bookie: BookieId
    listed: dict[LedgerId, set[EntryId]] = field(default_factory=dict)
    """The entries that the bookie listed before the damage. It must never deny them while it is a member."""
    unverified: set[LedgerId] = field(default_factory=set)
    bad: set[LedgerId] = field(default_factory=set)
    """The unverified ledgers with copies that are not good."""

    async def begin(self, client: BookKeeper, *, has_lists: bool) -> None:
        """Ask the bookie what it has, before its files are damaged (again).

        Args:
            client: a client of the cluster.
            has_lists: whether the bookie lists entries; some of Apache's do not answer such a request.

        Raises:
            BkhealError: the metadata cannot be read.
        """
        scanned = [one async for one in client.scan_ledgers()]
        for one in scanned:
            if not isinstance(one, Versioned) or self.bookie not in one.metadata.members():
                continue
            self.unverified.add(one.ledger_id)
            if has_lists:
                reply = await client.ports.transport.ask(self.bookie, ListEntries(one.ledger_id), STATE_S)
                self.listed.setdefault(one.ledger_id, set()).update(reply.entries)

    async def check(self, client: BookKeeper) -> None:
        """Read the unverified copies of closed ledgers, and note which are good.

        Raises:
            BkhealError: the metadata cannot be read.
            DeniedEntryError: an entry that the bookie had is denied.
            TimeoutError: the bookie did not answer.
        """
        self.bad = set()
        for ledger_id in sorted(self.unverified):
            try:
                ledger = await client.ports.ledgers.read(ledger_id)
            except NoSuchLedgerError:
                self.unverified.discard(ledger_id)
                continue
            if not ledger.metadata.is_closed:
                continue
            if await self._is_good(client, ledger):
                self.unverified.discard(ledger_id)
            else:
                self.bad.add(ledger_id)
            if len(self.bad) >= _BAD_MAX:
                return

    async def _is_good(self, client: BookKeeper, ledger: Versioned) -> bool:
        is_good = True
        for member, stored in placed_copies(ledger.metadata):
            if member != self.bookie:
                continue
            for fault in await faults_of_copies(client, ledger, member, stored):
                is_good = False
                if fault.is_denied and fault.entry_id in self.listed.get(fault.ledger_id, ()):
                    await self._denied(client, ledger, str(fault))
        return is_good

    async def _denied(self, client: BookKeeper, ledger: Versioned, fault: str) -> None:
        """Raise an error, unless the bookie may have lost its position and collected the ledger since it was read."""
        try:
            now = await client.ports.ledgers.read(ledger.ledger_id)
        except NoSuchLedgerError:
            return
        if now.version == ledger.version:
            raise DeniedEntryError(f"an entry that was listed before the files were damaged is denied: {fault}")
