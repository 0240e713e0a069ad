"""Copies being made: ``/bkheal/reservations/<ledgers root>/<ledger id>``.

A repair makes a reservation before it lists the entries of the target or copies to it. The write of the target into the
ensemble checks that the reservation still exists. For a collector, a bookie with a reservation counts as a member. So a
bookie never deletes a copy after a worker has found it and before the metadata names it, even if locks are lost.

A ledger has at most one node, owned by the worker with the ledger's lock. It has one empty child, named after the
token. A transaction checks that this child exists. The version of the node itself does not suffice, because it begins
at 0 again after each release, and an old worker must not mistake a later reservation for its own.

A reservation also records the progress of its copy, so the next worker can continue the copy (R44). The progress is a
hint: only the target's own list of entries counts.

Source: S16, docs/failure-model.md#reservations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.metadata.nodes import (
    WRITE_ATTEMPTS_MAX,
    child_names,
    ensure_path,
    find,
    ledger_ids,
    reread,
)
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Node,
    NoNodeError,
    Operation,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_FIRST_ENTRY_ID: Final = EntryId(0)
_TOKEN_VERSION: Final = 0
"""Version of a token's node, which is never written again."""


class UnreadableReservationError(PermanentError):
    """The reservation of a ledger is damaged: it may name any bookie."""


class ReservationRefusedError(ConflictError):
    """A condition of the reservation has changed: usually the lock no longer exists."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """One copy being made: to ``target`` for ``position`` of the fragment beginning at ``first_entry_id``."""

    first_entry_id: EntryId
    position: int
    target: BookieId
    incarnation: str
    """Storage incarnation of the target."""
    end_entry_id: EntryId = _FIRST_ENTRY_ID
    """Exclusive end: the target acknowledged every earlier entry of the position. 0 if unknown."""

    @property
    def has_progress(self) -> bool:
        """Whether a part of the copy is recorded."""
        return self.end_entry_id > self.first_entry_id


@dataclass(frozen=True, slots=True)
class _Record:
    """The content of a ledger's node."""

    token: str
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class LedgerReservations:
    """The reservations of a ledger as written or read. ``Check(path, version)`` succeeds while they exist."""

    ledger_id: LedgerId
    token: str
    reservations: tuple[Reservation, ...]
    version: int
    path: str
    czxid: int | None = field(default=None, compare=False)
    """The transaction that created the node; None if unknown."""

    def names(self, bookie: BookieId) -> bool:
        """Whether a copy to this bookie is being made."""
        return any(reservation.target == bookie for reservation in self.reservations)

    def has_progress(self, bookie: BookieId) -> bool:
        """Whether a part of a copy to this bookie is recorded."""
        return any(each.target == bookie and each.has_progress for each in self.reservations)


class Reservations:
    """The reservations of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("reservations", ledgers_root)
        self._creating_parent = asyncio.Lock()
        self._parents_created = 0

    def path(self, ledger_id: LedgerId) -> str:
        """Path of the node with a ledger's reservations."""
        return f"{self._parent}/{ledger_id}"

    async def read(self, ledger_id: LedgerId) -> LedgerReservations | None:
        """Return the reservations of a ledger, as this session's server sees them; None if there are none.

        Raises:
            UnreadableReservationError: damaged.
            StoreUnavailableError: no answer.
        """
        return self.decode(ledger_id, await find(self._store, self.path(ledger_id)))

    def decode(self, ledger_id: LedgerId, node: Node | None) -> LedgerReservations | None:
        """Return the reservations in a node read by the caller; None without a node.

        Raises:
            UnreadableReservationError: damaged.
        """
        return None if node is None else replace(self._decode(ledger_id, node.data), czxid=node.stat.czxid)

    async def ensure_parent(self) -> None:
        """Create the parent of reservations, for callers that reserve in their own transaction. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; calling again is safe.
        """
        await ensure_path(self._store, self._parent)

    async def reserve(
        self,
        ledger_id: LedgerId,
        token: str,
        reservations: Sequence[Reservation],
        *,
        is_first: bool = False,
        checks: Sequence[Check] = (),
    ) -> LedgerReservations:
        """Replace all reservations of a ledger; durable on return.

        Only the holder of the ledger's lock may call this.

        Existing reservations belong to a worker that died or has lost the lock. ``token`` is unique for each set of
        reservations; the same token for the same set is a retry. ``is_first``: the caller has just read that there is
        no reservation. This saves a request, and an existing reservation is not replaced. ``checks`` are part of the
        transaction.

        Raises:
            ReservationRefusedError: one of ``checks`` does not hold, or another reservation exists although
                ``is_first`` is set; nothing was changed.
            WriteOutcomeUnknownError: the answer was lost and the node cannot be read; release it or reserve again.
            StoreUnavailableError: no answer; nothing was changed.
        """
        if not self._parents_created:
            await self._create_parent(0)
        data = _encode(token, reservations)
        reserved = LedgerReservations(
            ledger_id, token, tuple(reservations), _TOKEN_VERSION, self._token_path(ledger_id, token)
        )
        is_unknown = False
        for attempt in range(WRITE_ATTEMPTS_MAX):
            is_read = attempt > 0 or not is_first
            parents_created = self._parents_created
            node = await self._current(ledger_id, is_unknown=is_unknown) if is_read else None
            if node is not None and node.data == data:
                return reserved
            if node is not None and is_first:
                raise ReservationRefusedError(f"ledger {ledger_id} has another reservation")
            try:
                changes = await self._replace_operations(ledger_id, node, data)
                await self._store.multi([*changes, Create(reserved.path), *checks])
                return reserved
            except (MultiFailedError, NoNodeError) as error:  # another worker may have reserved or released
                if isinstance(error, MultiFailedError) and error.index > len(changes):
                    raise ReservationRefusedError(f"reserving ledger {ledger_id}: {error.cause}") from error
                if isinstance(error, MultiFailedError) and node is None and isinstance(error.cause, NoNodeError):
                    await self._create_parent(parents_created)
            except WriteOutcomeUnknownError:
                is_unknown = True
        raise WriteOutcomeUnknownError(
            f"reserving ledger {ledger_id}: the outcome of every attempt is unknown; try again"
        )

    async def release(self, reserved: LedgerReservations) -> bool:
        """Delete the reservations if they are unchanged; False if they were deleted or replaced.

        Idempotent.

        Raises:
            WriteOutcomeUnknownError: the answer was lost and the node cannot be read; releasing again is safe.
            StoreUnavailableError: no answer; nothing was changed.
        """
        is_unknown = False
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                await self._store.multi(self.deletes(reserved))
                return True
            except MultiFailedError:
                return is_unknown and await self._is_gone(reserved)
            except WriteOutcomeUnknownError:
                is_unknown = True
                if await self._is_gone(reserved):
                    return True
        raise WriteOutcomeUnknownError(f"releasing ledger {reserved.ledger_id}: every answer was lost; try again")

    async def note_progress(self, reserved: LedgerReservations, reservations: Sequence[Reservation]) -> bool:
        """Record the progress of the copies of ``reserved``. False if the reservation was deleted or replaced.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the record is correct with or without the write.
        """
        data = _encode(reserved.token, reservations)
        check = Check(reserved.path, reserved.version)
        try:
            await self._store.multi([check, SetData(self.path(reserved.ledger_id), data)])
        except MultiFailedError:
            return False
        return True

    async def ledgers(self) -> frozenset[LedgerId]:
        """Return the ledgers with reservations.

        Raises:
            StoreUnavailableError: no answer.
        """
        return frozenset(ledger_ids(await child_names(self._store, self._parent)))

    async def discard(self, ledger_id: LedgerId) -> None:
        """Delete the reservations of a ledger, of any worker. Writes that depend on them are then refused. Idempotent.

        Raises:
            UnreadableReservationError: damaged; the next repair of the ledger replaces it.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        reserved = await self.read(ledger_id)
        if reserved is not None:
            await self.release(reserved)

    def deletes(self, reserved: LedgerReservations) -> list[Operation]:
        """Return operations to release ``reserved`` in a transaction; it fails unless the reservations still exist."""
        return [Delete(reserved.path, reserved.version), Delete(self.path(reserved.ledger_id))]

    async def _create_parent(self, created_before: int) -> None:
        """Create the parent of all reservations, once for all concurrent callers."""
        async with self._creating_parent:
            if self._parents_created == created_before:
                await self.ensure_parent()
                self._parents_created += 1

    async def _current(self, ledger_id: LedgerId, *, is_unknown: bool) -> Node | None:
        if is_unknown:
            return await reread(self._store, self.path(ledger_id))
        return await find(self._store, self.path(ledger_id))

    async def _replace_operations(self, ledger_id: LedgerId, node: Node | None, data: bytes) -> list[Operation]:
        """Return operations to replace ``node`` by ``data`` and delete the existing tokens."""
        path = self.path(ledger_id)
        if node is None:
            return [Create(path, data)]
        tokens = sorted((await self._store.children(path)).names)
        return [SetData(path, data, node.stat.version), *(Delete(f"{path}/{token}") for token in tokens)]

    async def _is_gone(self, reserved: LedgerReservations) -> bool:
        node = await reread(self._store, self.path(reserved.ledger_id))
        return node is None or self._decode(reserved.ledger_id, node.data).token != reserved.token

    def _token_path(self, ledger_id: LedgerId, token: str) -> str:
        return f"{self.path(ledger_id)}/{token}"

    def _decode(self, ledger_id: LedgerId, data: bytes) -> LedgerReservations:
        try:
            record = decode_record(data, _Record)
        except UnreadableRecordError as error:
            raise UnreadableReservationError(
                f"the reservation at {self.path(ledger_id)} is damaged: the next repair of the ledger replaces it"
            ) from error
        path = self._token_path(ledger_id, record.token)
        return LedgerReservations(ledger_id, record.token, record.reservations, _TOKEN_VERSION, path)


def _encode(token: str, reservations: Sequence[Reservation]) -> bytes:
    return encode_record(_Record(token, tuple(reservations)))
