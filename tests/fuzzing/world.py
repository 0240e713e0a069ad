"""One bookie in this process and the parts of its clients, on virtual time, as targets for damaged messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio

from bookie.model.ids import LedgerId
from bookie.server.copying import Copying
from bookie.server.grpc.servicer import BookieServicer
from bookie.wire import administration_pb2 as admin_pb
from bookie.wire.apache.connection import Version3Connection
from bookie.wire.apache.exchange import Exchange
from bookie.wire.apache.framing import framed
from bookie.wire.grpc.administration import Administration
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import AddBatch, Request
from bookie.wire.resolver import BookieAddress
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import open_bookie
from tests.worlds.entries import raw_entry
from tests.worlds.virtual_time import VirtualTimeLoop

T = TypeVar("T")

PEER: Final = "ipv4:127.0.0.1:5000"
INPUTS_MAX: Final = 1000
"""The bookie is replaced after this number of inputs, because its storage is in memory and grows."""
_TURNS: Final = 20
"""The turns of the loop after which a client has sent all that it sends before its first answer."""


class AbortedError(Exception):
    """The servicer refused a call with a status of gRPC."""


class CallContext:
    """A call as a servicer sees it: all its messages are available immediately, and then it ends."""

    def __init__(self, requests: Iterable[Any] = ()) -> None:
        self._requests = list(requests)
        self._callbacks: list[Callable[[Any], None]] = []
        self.answers: list[Any] = []

    def peer(self) -> str:
        return PEER

    async def read(self) -> Any:
        return self._requests.pop(0) if self._requests else grpc.aio.EOF  # type: ignore[attr-defined]

    async def write(self, message: Any) -> None:
        self.answers.append(message.SerializeToString())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise AbortedError(f"{code.name}: {details}")


class ServedBookie:
    """A bookie with the entries 0 to 9 of ledger 7, whose master key is ``key``."""

    def __init__(self) -> None:
        self._loop = VirtualTimeLoop()
        self._left = INPUTS_MAX
        self.servicer = self._run(self._opened())

    async def _opened(self) -> BookieServicer:
        clock = VirtualClock()
        transport = MemoryTransport(_NoBookies(), MemoryNetwork())
        bookie = await open_bookie(clock, incarnation="uuid", copying=Copying(transport, clock))
        entries = [entry(number) for number in range(10)]
        await bookie.storage.add(AddBatch(LedgerId(7), b"key", entries))
        return BookieServicer(bookie.service)

    def call(self, method: str, request: Any) -> object:
        """Let the servicer answer a request. For ``Add``, it is the only message of the stream.

        Raises:
            AbortedError: it refused.
            Exception: a defect.
        """
        if not self._left:
            self.close()
            self.__init__()  # type: ignore[misc]
        self._left -= 1
        return self._run(self._answered(method, request))

    async def _answered(self, method: str, request: Any) -> object:
        context = CallContext([request])
        if method == "Add":
            await self.servicer.Add(None, context)  # type: ignore[arg-type]
            sent = sum(1 for _ in request.batches)
            assert bool(sent) == bool(context.answers), "every add has an answer"
            return context.answers
        answer = getattr(self.servicer, method)(request, context)
        if hasattr(answer, "__aiter__"):
            return [message.SerializeToString() async for message in answer]
        try:
            message = await answer
        finally:
            context.end()
            assert self.servicer.unsent.bytes == 0, "no answer of an ended call counts as unsent"
        return context.answers if message is None else message.SerializeToString()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Stop the background tasks."""
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        for _ in range(3):
            self._run(asyncio.sleep(0))
        self._loop.close()


class _NoBookies:
    """A resolver without bookies."""

    async def resolve(self, bookie: object) -> None:
        return None


class _Socket(asyncio.Transport):
    """A socket that accepts all data and sends nothing."""

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        pass

    def abort(self) -> None:
        pass


def exchanged(request: Request[Any], answers: bytes) -> object:
    """Let a client of Apache's protocol make one request, receive ``answers``, and then lose its connection.

    The frames arrive one by one, so the client sends its next request before the next answer.

    Returns:
        Its reply.

    Raises:
        ConnectionLostError: it had none, or the received bytes ended the connection.
        Exception: a defect.
    """
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(_exchanged(request, answers))
    finally:
        loop.close()


async def _exchanged(request: Request[Any], answers: bytes) -> object:
    connection = Version3Connection()
    connection.connection_made(_Socket())
    asking = asyncio.ensure_future(Exchange(connection, 1.0).ask(request, []))
    for frame in _frames_of(answers):
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        connection.data_received(frame)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return await asking


def _frames_of(data: bytes) -> Iterator[bytes]:
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        yield data[:size]
        data = data[size:]


class _Batches(AsyncIterator[admin_pb.InventoryBatch]):
    """The batches of one call. This is not a generator, because an unfinished generator would have to be closed."""

    def __init__(self, batches: list[admin_pb.InventoryBatch]) -> None:
        self._batches = batches

    async def __anext__(self) -> admin_pb.InventoryBatch:
        if not self._batches:
            raise StopAsyncIteration
        return self._batches.pop()


class _Inventories:
    """A bookie that answers every request for its inventory with the same batch."""

    def __init__(self, batch: admin_pb.InventoryBatch) -> None:
        self._batch = batch

    def Inventory(self, request: object, **options: object) -> _Batches:  # noqa: N802
        return _Batches([self._batch])


def listed_inventory(batch: admin_pb.InventoryBatch) -> object:
    """Let a client list the ledgers of a bookie which answers with this batch.

    Raises:
        BkhealError: the client refuses the answer.
        Exception: a defect.
    """
    client = object.__new__(Administration)
    client.address = BookieAddress("127.0.0.1", 5000)
    client._metadata, client._stub = (), _Inventories(batch)  # type: ignore[assignment]

    async def listed() -> object:
        return [row async for row in client.inventory()]

    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(listed())
    finally:
        loop.close()


def frames(*bodies: bytes) -> bytes:
    """Return the bytes of frames."""
    return b"".join(framed(body) for body in bodies)


def entry(number: int) -> bytes:
    """Return an entry of ledger 7."""
    return raw_entry(7, number)
