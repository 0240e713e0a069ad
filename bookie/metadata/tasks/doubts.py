"""Members of unclosed ledgers that lost entries which they had acknowledged, or may have.

For a recovery, "no such entry" from a member is evidence that an entry was never acknowledged. From a member that lost
its disks it is not (S6). What shows the loss can disappear before the recovery: a copy in place fills the member up,
and a recovery that fails half-way has written entries to it. So the loss is recorded here before either of them
begins, for every worker and across restarts, until the ledger is closed or nothing of it is missing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import Final

from bookie.metadata.layout import own_path
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, create_with_parents
from bookie.metadata.port import BadVersionError, MetadataStore, NodeExistsError, NoNodeError, StoreUnavailableError
from bookie.model.ids import BookieId, LedgerId

_log = logging.getLogger(__name__)

_MEMBERS: Final = "members"


class DoubtedMembers:
    """Records of doubted members, one per ledger, for the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("doubts", ledgers_root)

    async def get(self, ledger_id: LedgerId) -> frozenset[BookieId] | None:
        """Return the doubted members of a ledger, no older than this call.

        None: the record is damaged, so every member of the ledger must be doubted.

        Raises:
            StoreUnavailableError: no answer.
        """
        path = self.path(ledger_id)
        try:
            await self._store.sync(path)
            return _decode(path, (await self._store.get(path)).data)
        except NoNodeError:
            return frozenset()

    async def add(self, ledger_id: LedgerId, members: Collection[BookieId]) -> None:
        """Record doubted members beside those recorded before. A damaged record is left as it is.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; adding again is safe.
        """
        path = self.path(ledger_id)
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                await self._store.sync(path)
                node = await self._store.get(path)
                known = _decode(path, node.data)
                if known is not None and not known.issuperset(members):
                    await self._store.set(path, _encode(known.union(members)), node.stat.version)
                return
            except NoNodeError:
                try:
                    await create_with_parents(self._store, path, _encode(members), "/")
                except NodeExistsError:
                    continue
                return
            except BadVersionError:
                continue
        raise StoreUnavailableError(f"{path} changes faster than it can be written")

    async def forget(self, ledger_id: LedgerId) -> None:
        """Delete the record of a ledger. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; forgetting again is safe.
        """
        try:
            await self._store.delete(self.path(ledger_id))
        except NoNodeError:
            return

    async def ledgers(self) -> frozenset[LedgerId]:
        """Return the ledgers that have a record.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            names = (await self._store.children(self._parent)).names
        except NoNodeError:
            return frozenset()
        return frozenset(LedgerId(int(name)) for name in names if name.isascii() and name.isdigit())

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's record."""
        return f"{self._parent}/{ledger_id}"


def _encode(members: Collection[BookieId]) -> bytes:
    return json.dumps({_MEMBERS: sorted(members)}).encode()


def _decode(path: str, data: bytes) -> frozenset[BookieId] | None:
    try:
        members = json.loads(data)[_MEMBERS]
        if not isinstance(members, list):
            raise TypeError(f"{_MEMBERS} is no list")
        return frozenset(BookieId(str(member)) for member in members)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("record of doubted members cannot be decoded", extra={"path": path, "error": repr(error)})
        return None
