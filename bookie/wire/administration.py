"""A client of the administration of one bookie at a given address, for commands.

Refusals and silence become the error families. A token is sent over TLS, or to this machine, and never in the clear.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import grpc.aio

from bookie.model.availability import EntryRuns, InvalidAvailabilityError
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.runtime.listening import is_loopback
from bookie.wire import administration_pb2 as pb
from bookie.wire import administration_pb2_grpc as rpc
from bookie.wire.grpc_channel import open_channel
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import BookieSecurity
from bookie.wire.tls import channel_credentials

CALL_S: Final = 35.0
"""A little more than the bookie's own deadline."""
FORCE_S: Final = 125.0
INVENTORY_S: Final = 90.0

T = TypeVar("T")

_UNKNOWN: Final = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
_LATER: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


class AdministrationRefusedError(PermanentError):
    """The bookie refused the call: a missing token or role, or a wrong request. Nothing was changed."""


class AdministrationConflictError(ConflictError):
    """The bookie cannot do it in its present state. Nothing was changed."""


class AdministrationUnavailableError(TransientError):
    """The bookie cannot be reached, or is too busy. Nothing was changed."""


class AdministrationUnknownError(OutcomeUnknownError):
    """The answer did not come in time: what was asked for may be done."""


class PlaintextTokenError(PermanentError):
    """A token would be sent in the clear to another machine."""


class Administration:
    """Calls to one bookie, within ``async with``."""

    def __init__(self, address: BookieAddress, security: BookieSecurity, token: str | None) -> None:
        """Prepare.

        Args:
            address: of the bookie's gRPC port.
            security: how bookies are reached.
            token: for calls that need one; None: none is sent.

        Raises:
            PlaintextTokenError: the token would pass a network in the clear.
            TlsFilesError: a TLS file cannot be used.
        """
        if token is not None and security.tls is None and not is_loopback(address.host):
            raise PlaintextTokenError(
                f"the token would reach {address.host} in the clear: use TLS (`bkheal --tls-ca FILE bookie ...`)"
            )
        self.address = address
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
        """The state of the bookie. Raises as every call: one of the errors of this module."""
        return await self._call(self._stub.GetStatus(pb.GetStatusRequest(), **self._options(CALL_S)))

    async def force(self) -> pb.ForceResponse:
        """Move everything from the journal to the entry logs."""
        return await self._call(self._stub.Force(pb.ForceRequest(), **self._options(FORCE_S)))

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
        """Yield the ledgers after ``after`` with their entries, in as many calls as it takes.

        Args:
            after: ledger id; -1: from the first one on.
            limit: most ledgers; 0: all.
            only_limbo: only ledgers in limbo.
            ledger_id: only this one.
        """
        count, next_after = 0, after
        while True:
            request = pb.InventoryRequest(after=next_after, only_limbo=only_limbo, ledger_id=ledger_id)
            request.limit = min(limit - count, _LIMIT) if limit else 0
            following: int | None = None
            is_whole, pieces = False, list[bytes]()
            try:
                async for batch in self._stub.Inventory(request, **self._options(INVENTORY_S)):
                    is_whole = batch.is_last
                    following = batch.next_after if batch.HasField("next_after") else None
                    for ledger in batch.ledgers:
                        pieces.append(ledger.availability)
                        if ledger.is_complete:
                            yield ledger, EntryRuns.decode(b"".join(pieces))
                            pieces.clear()
                            count += 1
            except grpc.aio.AioRpcError as error:
                raise _error(self.address, error) from error
            except InvalidAvailabilityError as error:
                raise AdministrationUnavailableError(f"the answer of the bookie cannot be read: {error}") from error
            if not is_whole:
                raise AdministrationUnavailableError("the answer of the bookie was cut off")
            if following is None or (limit and count >= limit):
                return
            if following <= next_after:
                raise AdministrationUnavailableError("the answer of the bookie does not go on")
            next_after = following

    def _options(self, timeout_s: float) -> dict[str, object]:
        return {"timeout": timeout_s, "metadata": self._metadata}

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _error(self.address, error) from error


_LIMIT: Final = 10_000
"""Ledgers of one call."""


def _error(
    address: BookieAddress, error: grpc.aio.AioRpcError
) -> (
    AdministrationRefusedError
    | AdministrationConflictError
    | AdministrationUnavailableError
    | AdministrationUnknownError
):
    code, text = error.code(), error.details() or error.code().name
    where = f"bookie at {address.host}:{address.port}: {text}"
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return AdministrationConflictError(where)
    if code in _LATER:
        return AdministrationUnavailableError(where)
    if code in _UNKNOWN:
        return AdministrationUnknownError(where)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return AdministrationRefusedError(f"{where}: this is no bookie of bkheal, or one of an earlier version")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AdministrationRefusedError(f"{where}; set $BKHEAL_TOKEN or give --token-file")
    return AdministrationRefusedError(where)
