"""A client of the administration of one bookie at a given address, for commands.

Refusals and missing answers become errors of the five families. A token is sent only over TLS or to this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import grpc.aio

from bookie.model.availability import EntryRuns, InvalidAvailabilityError
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.runtime.listening import is_loopback
from bookie.wire import administration_pb2 as pb
from bookie.wire import administration_pb2_grpc as rpc
from bookie.wire.grpc.channel import open_channel, reason_of
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import BookieSecurity
from bookie.wire.tls import channel_credentials

CALL_S: Final = 35.0
"""Timeout of a call, a little longer than the bookie's own deadline."""
FORCE_TIMEOUT_S: Final = 125.0
INVENTORY_TIMEOUT_S: Final = 90.0

T = TypeVar("T")

_UNKNOWN: Final = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
_LATER: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


class AdministrationRefusedError(PermanentError):
    """The bookie refused the call: a missing token or role, or a wrong request. Nothing was changed."""


class AdministrationMissingError(AdministrationRefusedError):
    """There is no such call: this is not a bookie of bkheal, or one of an earlier version."""


class AdministrationConflictError(ConflictError):
    """The bookie cannot do the operation in its present state. Nothing was changed."""


class AdministrationUnavailableError(TransientError):
    """The bookie cannot be reached, or is too busy. Nothing was changed."""


class AdministrationAnswerError(AdministrationUnavailableError):
    """The answer of an inventory is damaged, cut off, or not in order."""


class AdministrationUnknownError(OutcomeUnknownError):
    """There was no answer in time: the operation may have been done."""


class PlaintextTokenError(PermanentError):
    """A token would be sent in the clear to another machine."""


@dataclass(frozen=True, slots=True)
class HeldLedger:
    """A ledger of which a bookie has a record, and its first and last entry there."""

    ledger_id: LedgerId
    first_entry_id: int | None = None
    """None: the bookie has no entries of it, for example if it only fenced the ledger."""
    last_entry_id: int | None = None


class Administration:
    """Calls to one bookie, within ``async with``."""

    def __init__(
        self,
        address: BookieAddress,
        security: BookieSecurity,
        token: str | None,
        hint: str = "set $BKHEAL_TOKEN or give --token-file",
    ) -> None:
        """Prepare the calls.

        Args:
            address: the address of the bookie's gRPC port.
            security: how to connect to the bookie.
            token: the token for calls that need one; None sends none.
            hint: how the user gives a token, for the error message of a call with a missing or wrong one.

        Raises:
            PlaintextTokenError: the token would be sent over a network in the clear.
            TlsFilesError: a TLS file cannot be used.
        """
        if token is not None and security.tls is None and not is_loopback(address.host):
            raise PlaintextTokenError(
                f"the token would reach {address.host} in the clear: use TLS (`bkheal --tls-ca FILE bookie ...`)"
            )
        self.address = address
        self._hint = hint
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel = open_channel(address, None if security.tls is None else channel_credentials(security.tls))
        self._stub = rpc.AdministrationStub(self._channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(None)

    async def status(self) -> pb.NodeStatus:
        """Return the state of the bookie. Like every call, it raises one of the errors of this module."""
        return await self._call(self._stub.GetStatus(pb.GetStatusRequest(), **self._options(CALL_S)))

    async def force(self) -> pb.ForceResponse:
        """Move everything from the journal to the entry logs."""
        return await self._call(self._stub.Force(pb.ForceRequest(), **self._options(FORCE_TIMEOUT_S)))

    async def scrub(self, request: pb.ScrubRequest) -> pb.ScrubState:
        """Start, interrupt or show the scrub."""
        return await self._call(self._stub.Scrub(request, **self._options(CALL_S)))

    async def collect(self, request: pb.CollectRequest) -> pb.CollectionState:
        """Start a garbage collection, or show the last one."""
        return await self._call(self._stub.Collect(request, **self._options(CALL_S)))

    async def set_read_only(self, request: pb.SetReadOnlyRequest) -> pb.ReadOnlyState:
        """Set, end or show the read-only mode."""
        return await self._call(self._stub.SetReadOnly(request, **self._options(CALL_S)))

    async def inventory(
        self, after: int = -1, limit: int = 0, *, only_limbo: bool = False, ledger_id: int | None = None
    ) -> AsyncIterator[tuple[pb.InventoryLedger, EntryRuns]]:
        """Yield the ledgers after ``after`` with their entries, in as many calls as necessary.

        Args:
            after: ledger id, exclusive; -1 for all ledgers.
            limit: maximum number of ledgers; 0 for all.
            only_limbo: whether to yield only ledgers in limbo.
            ledger_id: the only ledger to yield; None for all.
        """
        count, pieces, size = 0, list[bytes](), 0
        async for message in self._inventory(after, limit, only_limbo=only_limbo, ledger_id=ledger_id):
            pieces.append(message.availability)
            size += len(message.availability)
            if size > _LIST_BYTES_MAX:
                raise AdministrationAnswerError(f"{self._where}: the list of ledger {message.ledger_id} is too long")
            if message.is_complete:
                try:
                    runs = EntryRuns.decode(b"".join(pieces))
                except InvalidAvailabilityError as error:
                    raise AdministrationAnswerError(f"{self._where}: the answer cannot be read: {error}") from error
                pieces, size, count = [], 0, count + 1
                yield message, runs

    async def ends(self, after: int = -1) -> AsyncIterator[HeldLedger]:
        """Yield the ledgers after ``after``, ascending, each with its first and its last entry.

        Memory is bounded by a message of the bookie; a bookie of an earlier version sends whole lists, one at a time.
        """
        pieces, size = list[bytes](), 0
        async for message in self._inventory(after, 0, only_ends=True):
            pieces.append(message.availability)
            size += len(message.availability)
            if size > _LIST_BYTES_MAX:
                raise AdministrationAnswerError(f"{self._where}: the list of ledger {message.ledger_id} is too long")
            if message.is_complete:
                yield self._held(message, b"".join(pieces))
                pieces, size = [], 0

    def _held(self, message: pb.InventoryLedger, availability: bytes) -> HeldLedger:
        ledger_id = LedgerId(message.ledger_id)
        if message.HasField("first_entry_id") and message.HasField("last_entry_id"):
            first, last = message.first_entry_id, message.last_entry_id
            if not 0 <= first <= last:
                raise AdministrationAnswerError(f"{self._where}: ledger {ledger_id} has the entries {first} to {last}")
            return HeldLedger(ledger_id, first, last)
        if not availability:
            return HeldLedger(ledger_id)
        try:
            runs = EntryRuns.decode(availability)
        except InvalidAvailabilityError as error:
            raise AdministrationAnswerError(f"{self._where}: the answer cannot be read: {error}") from error
        return HeldLedger(ledger_id, runs.groups[0].first, runs.groups[-1].last) if runs else HeldLedger(ledger_id)

    async def _inventory(
        self, after: int, limit: int, *, only_limbo: bool = False, ledger_id: int | None = None, only_ends: bool = False
    ) -> AsyncIterator[pb.InventoryLedger]:
        """Yield the messages of as many calls as necessary. Ledgers of a correct answer ascend, so the calls end."""
        count, reached = 0, after
        following: int | None
        while True:
            request = pb.InventoryRequest(
                after=reached, only_limbo=only_limbo, ledger_id=ledger_id, only_ends=only_ends
            )
            request.limit = min(limit - count, _LIMIT) if limit else 0
            begun, following = reached, None
            is_whole, is_between = False, True
            try:
                async for batch in self._stub.Inventory(request, **self._options(INVENTORY_TIMEOUT_S)):
                    is_whole = batch.is_last
                    following = batch.next_after if batch.HasField("next_after") else None
                    for message in batch.ledgers:
                        is_next = ledger_id is not None or reached < message.ledger_id <= LEDGER_ID_MAX
                        if not is_next if is_between else message.ledger_id != reached:
                            raise AdministrationAnswerError(f"{self._where}: the ledgers of the answer do not ascend")
                        reached, is_between = message.ledger_id, message.is_complete
                        yield message
                        count += message.is_complete
            except grpc.aio.AioRpcError as error:
                raise _error(self.address, error, self._hint) from error
            if not is_whole or not is_between:
                raise AdministrationAnswerError(f"{self._where}: the answer was cut off")
            if following is None or (limit and count >= limit):
                return
            if following < reached or following <= begun:
                raise AdministrationAnswerError(f"{self._where}: the answer makes no progress")
            reached = following

    @property
    def _where(self) -> str:
        return f"bookie at {self.address.host}:{self.address.port}"

    def _options(self, timeout_s: float) -> dict[str, object]:
        return {"timeout": timeout_s, "metadata": self._metadata}

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _error(self.address, error, self._hint) from error


_LIMIT: Final = 10_000
"""Maximum number of ledgers of one call."""
_LIST_BYTES_MAX: Final = 256 << 20
"""Maximum size of the list of one ledger."""


def _error(
    address: BookieAddress, error: grpc.aio.AioRpcError, hint: str
) -> (
    AdministrationRefusedError
    | AdministrationConflictError
    | AdministrationUnavailableError
    | AdministrationUnknownError
):
    code, text = error.code(), reason_of(error)
    where = f"bookie at {address.host}:{address.port}: {text}"
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return AdministrationConflictError(where)
    if code in _LATER:
        hint = "; check the port, and that the bookie runs" if code is grpc.StatusCode.UNAVAILABLE else ""
        return AdministrationUnavailableError(where + hint)
    if code in _UNKNOWN:
        return AdministrationUnknownError(where)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return AdministrationMissingError(f"{where}: this is not a bookie of bkheal, or one of an earlier version")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AdministrationRefusedError(f"{where}; {hint}")
    return AdministrationRefusedError(where)
