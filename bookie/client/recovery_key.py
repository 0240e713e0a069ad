"""Trying a key that nothing vouches for, before a recovery changes anything."""

from __future__ import annotations

from bookie.client.access import LedgerAccess
from bookie.client.errors import WrongPasswordError
from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.metadata import LedgerState
from bookie.wire.port import Status


async def try_key(ports: ClientPorts, ledger: Versioned, access: LedgerAccess) -> None:
    """Have a bookie check the key of an open ledger whose metadata keeps no password (format 1); else do nothing.

    Bookies compare keys when they add or fence (formats 4.4), and one that has nothing of the ledger takes any key for
    the right one from then on. So the first member of the last fragment that holds an entry is fenced, and nobody else.
    With a wrong key that changes nothing. With the right one its writer is refused a moment before the metadata says
    why, which loses nothing; recovery relies on no fence from before it took the ledger over, and fences this bookie
    again.

    A wrong key is not found out where no member that answers holds an entry, nor by a bookie that forgot the key when
    it was restarted, as Apache's do with some kinds of storage.

    Raises:
        WrongPasswordError: the bookie knows the ledger by another key; nothing was changed anywhere.
    """
    if ledger.metadata.state is not LedgerState.OPEN or ledger.metadata.password is not None:
        return
    timeout_s, ledger_id = ports.settings.read_timeout_s, ledger.ledger_id
    for bookie in ledger.metadata.last_fragment.members:
        last = await ports.transport.read_last(bookie, ledger_id, timeout_s)
        if not any(result.status is Status.OK for result in last.results):
            continue
        if (await ports.transport.fence(bookie, ledger_id, access.key, timeout_s)).status is Status.UNAUTHORIZED:
            raise WrongPasswordError(f"ledger {ledger_id}: bookie {bookie} knows it by another password")
        return
