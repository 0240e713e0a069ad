"""The gRPC interface of the administration: permissions, deadlines, a record of each change, errors as statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, NoReturn, TypeVar

import grpc
import grpc.aio

from bookie.model.errors import BkhealError
from bookie.runtime.access.access import (
    Access,
    ForbiddenError,
    RateLimitedError,
    UnauthenticatedError,
    metadata_token,
    peer_address,
)
from bookie.runtime.access.tokens import ANONYMOUS, Role
from bookie.runtime.access.trail import RequestTrail
from bookie.server.administration.node import (
    ServingBookie,
    TemporarilyRefusedError,
    TooManyInventoriesError,
    UnacceptableRequestError,
)
from bookie.wire import administration_pb2 as pb
from bookie.wire import administration_pb2_grpc as rpc

_log = logging.getLogger(__name__)

_DEADLINE_S: Final = 30.0
"""Deadline of a call that does not stream."""
_FORCE_DEADLINE_S: Final = 120.0
"""Deadline of a force: enough to write two write caches and the index to a slow disk."""
_RECEIVE_DEADLINE_S: Final = 30.0
"""Deadline for one message of an inventory; a slower client is disconnected."""

Context = grpc.aio.ServicerContext[object, object]
InventoryContext = grpc.aio.ServicerContext[pb.InventoryRequest, pb.InventoryBatch]
T = TypeVar("T")

_CODES: Final = {
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    RateLimitedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyInventoriesError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnacceptableRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    TemporarilyRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
}


class AdministrationServicer(rpc.AdministrationServicer):
    """The servicer of ``node``. It answers UNAVAILABLE until ``node`` is set."""

    def __init__(self, access: Access) -> None:
        """Store ``access``, which decides what a caller may do."""
        self.node: ServingBookie | None = None
        self._access = access

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.NodeStatus:  # noqa: N802
        """The methods are documented in the ``.proto`` file."""
        return await self._reading(context, lambda node: node.status())

    async def Inventory(  # noqa: N802
        self, request: pb.InventoryRequest, context: InventoryContext
    ) -> None:
        """Send each batch after the client has received the previous one."""
        try:
            node = self._admitted(context, Role.READ)
            async with aclosing(node.inventory(request)) as batches:
                async for batch in batches:
                    async with asyncio.timeout(_RECEIVE_DEADLINE_S):
                        await context.write(batch)
        except Exception as error:  # noqa: BLE001  # a request's boundary
            await _refuse(context, "inventory", error)

    async def Force(self, request: pb.ForceRequest, context: Context) -> pb.ForceResponse:  # noqa: N802
        """Run a checkpoint."""
        return await self._changing(context, "force", "", lambda node, who: node.force(), _FORCE_DEADLINE_S)

    async def Scrub(self, request: pb.ScrubRequest, context: Context) -> pb.ScrubState:  # noqa: N802
        """Start or interrupt the scrub, or return its state."""

        async def work(node: ServingBookie, who: str = "") -> pb.ScrubState:
            return node.scrub(request)

        if request.action == pb.ScrubRequest.SHOW:
            return await self._reading(context, work)
        return await self._changing(context, "scrub", _name(pb.ScrubRequest.Action, request.action), work)

    async def Collect(self, request: pb.CollectRequest, context: Context) -> pb.CollectionState:  # noqa: N802
        """Start a garbage collection, or return the last one."""

        async def work(node: ServingBookie, who: str = "") -> pb.CollectionState:
            return node.collect(request)

        if request.action == pb.CollectRequest.SHOW:
            return await self._reading(context, work)
        return await self._changing(context, "collect", _name(pb.CollectRequest.Action, request.action), work)

    async def SetReadOnly(self, request: pb.SetReadOnlyRequest, context: Context) -> pb.ReadOnlyState:  # noqa: N802
        """Set, end or return the read-only mode."""

        async def work(node: ServingBookie, who: str = "") -> pb.ReadOnlyState:
            return await node.set_read_only(request, who)

        if request.action == pb.SetReadOnlyRequest.SHOW:
            return await self._reading(context, work)
        return await self._changing(context, "read_only", _name(pb.SetReadOnlyRequest.Action, request.action), work)

    def _admitted(self, context: Context | InventoryContext, needed: Role) -> ServingBookie:
        """Return the node for a caller with the permissions of ``needed``."""
        self._access.admit(peer_address(context.peer()), metadata_token(context.invocation_metadata() or ()), needed)
        return self._ready()

    def _ready(self) -> ServingBookie:
        if self.node is None:
            raise _NotReadyError
        return self.node

    async def _reading(self, context: Context, work: Callable[[ServingBookie], Awaitable[T]]) -> T:
        try:
            node = self._admitted(context, Role.READ)
            async with asyncio.timeout(_DEADLINE_S):
                return await work(node)
        except Exception as error:  # noqa: BLE001  # a request's boundary
            await _refuse(context, "read", error)

    async def _changing(
        self,
        context: Context,
        action: str,
        detail: str,
        work: Callable[[ServingBookie, str], Awaitable[T]],
        deadline_s: float = _DEADLINE_S,
    ) -> T:
        """Make a change with the role ``operate``, and record it."""
        trail = RequestTrail("bookie", action, peer_address(context.peer()), detail=detail)
        is_admitted = False
        try:
            token = metadata_token(context.invocation_metadata() or ())
            caller = self._access.admit(trail.address, token, Role.OPERATE)
            trail.who = caller.name
            who = f"{ANONYMOUS} at {caller.address}" if caller.is_anonymous else caller.name
            node, is_admitted = self._ready(), True
            async with asyncio.timeout(deadline_s):
                result = await work(node, who)
        except asyncio.CancelledError:
            if is_admitted:
                trail.record("the caller left, and the action continues", is_refused=False)
            raise
        except TimeoutError as error:
            trail.record("not done in time, and the action continues", is_refused=False)
            await _refuse(context, action, error)
        except Exception as error:  # noqa: BLE001  # a request's boundary
            if not isinstance(error, RateLimitedError):
                trail.record(str(error) or type(error).__name__, is_refused=True)
            await _refuse(context, action, error)
        trail.record("ok", is_refused=False)
        return result


class _NotReadyError(Exception):
    """The bookie is starting. Not raised outside this module."""


def _name(actions: Callable[[int], str] | object, number: int) -> str:
    """Return the name of an action as it is recorded."""
    try:
        return str(actions.Name(number)).lower()  # type: ignore[union-attr]
    except ValueError:
        return str(number)


async def _refuse(context: Context | InventoryContext, action: str, error: Exception) -> NoReturn:
    code, text = _CODES.get(type(error), grpc.StatusCode.INTERNAL), str(error)
    if isinstance(error, _NotReadyError):
        code, text = grpc.StatusCode.UNAVAILABLE, "the bookie is still starting"
    elif isinstance(error, TimeoutError):
        code, text = grpc.StatusCode.DEADLINE_EXCEEDED, "the bookie did not finish this in time"
    elif code is grpc.StatusCode.INTERNAL and not isinstance(error, BkhealError):
        _log.error("request failed", extra={"operation": action}, exc_info=error)
        text = "internal error of the bookie, see its log"
    await context.abort(code, text)
    raise AssertionError("abort raises")
