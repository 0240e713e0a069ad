"""Bookies being drained: ``/bkheal/drains/<ledgers root>/<bookieId>``, with the requesting operator and the time.

A node is an operator's request and stays until it is withdrawn. While it exists, the bookie accepts no new entries and
is not chosen as a target. Its entries are copied elsewhere, from the bookie itself as well. An unreadable node counts
as well: its name is enough for safety.

The parent's data version grows with every start and end. The verdict "no work for a drain" on a ledger is committed
together with a check of this version, so a drain begun at the same time is not overlooked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, ensure_path, reread
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    Check,
    Children,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    NoNodeError,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

DRAINS_PER_REQUEST_MAX: Final = 400
"""Maximum number of drains recorded together. They fit in one ``multi``, with the check and the write of the parent."""


class DrainsChangedError(ConflictError):
    """Another drain began or ended after the listing on which a decision is based; nothing was recorded."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One bookie being drained."""

    bookie: BookieId
    by: str = ""
    """The requesting operator, for display; empty if the node is unreadable."""
    since_ms: int = 0
    """Start, epoch milliseconds; 0 if the node is unreadable."""


@dataclass(frozen=True, slots=True)
class DrainListing:
    """The bookies being drained, as listed."""

    bookies: frozenset[BookieId] = frozenset()
    check: Check | None = None
    """Valid until a drain begins or ends; None if there never was one."""


@dataclass(frozen=True, slots=True)
class SeenDrains:
    """The bookies being drained, as seen, to wait for a change."""

    bookies: frozenset[BookieId]
    listing: Children | None
    """None if the parent does not exist."""


class Drains:
    """The drains of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("drains", ledgers_root)

    async def start(self, *drains: Drain, seen: DrainListing | None = None) -> bool:
        """Record drains, all or none; False if each bookie has one already. The first record stays. Durable on return.

        Args:
            drains: ``DRAINS_PER_REQUEST_MAX`` at most.
            seen: if given, the drains are recorded only if no other one has begun or ended since this listing.

        Raises:
            DrainsChangedError: another one has begun or ended since ``seen``; nothing was changed.
            StoreUnavailableError: no answer; nothing was changed.
            WriteOutcomeUnknownError: the outcome of every attempt is unknown; starting again is safe.
        """
        creates = {drain.bookie: self._create(drain) for drain in drains}
        known: frozenset[BookieId] = frozenset()
        guards: list[Check] = []
        if seen is not None:
            known = seen.bookies
            guards.append(seen.check or Check(self._parent, 0))  # 0: no drain has begun since the parent was created
        for _ in range(WRITE_ATTEMPTS_MAX):
            missing = [create for bookie, create in creates.items() if bookie not in known]
            if not missing and not guards:
                return False
            await ensure_path(self._store, self._parent)
            try:
                await self._store.multi([*guards, *missing, *([SetData(self._parent, b"")] if missing else ())])
                return bool(missing)
            except MultiFailedError as error:
                if error.index < len(guards):
                    raise DrainsChangedError("another drain began or ended at the same time") from error
                known = (await self.current()).bookies
            except WriteOutcomeUnknownError:
                for create in missing:
                    node = await reread(self._store, create.path)
                    if node is not None and node.data == create.data:
                        return True
        names = ", ".join(creates)
        raise WriteOutcomeUnknownError(
            f"recording the drain of {names}: the outcome of every attempt is unknown; try again"
        )

    async def stop(self, bookie: BookieId) -> bool:
        """Withdraw a drain; False if there is none. Idempotent.

        Raises:
            StoreUnavailableError: no answer; nothing was changed.
            WriteOutcomeUnknownError: the outcome of every attempt is unknown; stopping again is safe.
        """
        is_unknown = False
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                await self._store.multi([Delete(self._path(bookie)), SetData(self._parent, b"")])
                return True
            except MultiFailedError as error:
                if isinstance(error.cause, NoNodeError):
                    return is_unknown
            except WriteOutcomeUnknownError:
                is_unknown = True
        raise WriteOutcomeUnknownError(f"cancelling the drain of {bookie}: every answer was lost; try again")

    async def read(self) -> Mapping[BookieId, Drain]:
        """Return every drain, by bookie.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self._parent)
        names = sorted((await self.see()).bookies)
        found = await self._store.get_many_data([self._path(bookie) for bookie in names])
        return {name: _decode(name, data) for name, data in zip(names, found, strict=True) if data is not None}

    async def draining(self) -> DrainListing:
        """Return the bookies being drained, with a check for later changes.

        Raises:
            StoreUnavailableError: no answer.
        """
        stat = await self._store.stat(self._parent)
        if stat is None:
            return DrainListing()
        return DrainListing((await self.see()).bookies, Check(self._parent, stat.version))

    async def current(self) -> DrainListing:
        """As ``draining``, but the result is no older than this call.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self._parent)
        return await self.draining()

    async def see(self) -> SeenDrains:
        """Return the bookies being drained, as this session's server sees them, to wait for a change.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            listing = await self._store.children(self._parent)
        except NoNodeError:
            return SeenDrains(frozenset(), None)
        return SeenDrains(frozenset(map(BookieId, listing.names)), listing)

    async def newest_zxid(self) -> int:
        """Return the transaction that last began or ended a drain; 0: there never was one.

        Raises:
            StoreUnavailableError: no answer.
        """
        stat = await self._store.stat(self._parent)
        return 0 if stat is None else stat.children_zxid

    async def begun(self, bookies: Iterable[BookieId]) -> Mapping[BookieId, int | None]:
        """Return the transaction that began the drain of each of these bookies; None: it is not being drained.

        The answer is that of this session's server, which may lag.

        Raises:
            StoreUnavailableError: no answer.
        """
        names = sorted(bookies)
        nodes = await self._store.get_many([self._path(bookie) for bookie in names])
        return {name: None if node is None else node.stat.czxid for name, node in zip(names, nodes, strict=True)}

    async def wait_changed(self, seen: SeenDrains) -> SeenDrains:
        """Wait until a drain begins or ends after ``seen``, and return the new listing.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        if seen.listing is None:
            await self._store.wait_node_changed(self._parent, None)
        else:
            await self._store.wait_children_changed(self._parent, seen.listing)
        return await self.see()

    def _create(self, drain: Drain) -> Create:
        return Create(self._path(drain.bookie), encode_record(drain, without=["bookie"]))

    def _path(self, bookie: BookieId) -> str:
        return f"{self._parent}/{bookie}"


def _decode(bookie: BookieId, data: bytes) -> Drain:
    try:
        return decode_record(data, Drain, bookie=bookie)
    except UnreadableRecordError as error:
        _log.warning("record of a drain cannot be read", extra={"bookie_id": bookie, "error": str(error)})
        return Drain(bookie)
