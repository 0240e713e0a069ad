"""START_TLS on one connection, with a handshake whose order of events the test controls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from bookie.server.apache.connection import ApacheConnection
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.room import SharedRoom
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import FrameSplitter, framed
from tests.worlds.apache_listener import ProtocolWorld, add, entry, read, request
from tests.worlds.virtual_time import in_virtual_time


class Wire(asyncio.Transport):
    """Record what the bookie sends over one transport."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.is_over = b"", False

    def answers(self) -> list[tuple[int, int]]:
        """Return the operation and status of each answer."""
        responses = [pb.Response.FromString(body) for body in FrameSplitter().feed(self.sent)]
        return [(response.header.operation, response.status) for response in responses]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, *_: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True


class Upgrading:
    """A connection whose client requested START_TLS; ``during`` runs before the end of the handshake is noticed."""

    def __init__(self, world: ProtocolWorld, during: Callable[[ApacheConnection], None]) -> None:
        self.during = during
        self.clear, self.encrypted = Wire(), Wire()
        self.has_left = False
        limits, tls = ListenerLimits(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.connection = ApacheConnection(
            world.answering, limits, SharedRoom.within(limits), tls, lambda _: True, self._left
        )

    async def complete_handshake(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(asyncio.get_running_loop(), "start_tls", self._start_tls)
        self.connection.connection_made(self.clear)
        self.receive(request(pb.START_TLS))
        await asyncio.sleep(0.1)

    def receive(self, *messages: pb.Request) -> None:
        self.connection.data_received(b"".join(framed(message.SerializeToString()) for message in messages))

    async def _start_tls(self, *_: object, **__: object) -> asyncio.Transport:
        self.during(self.connection)
        return self.encrypted

    def _left(self, _: ApacheConnection) -> None:
        self.has_left = True


@in_virtual_time
async def test_requests_that_arrive_before_the_handshake_is_complete_are_served_encrypted() -> None:
    world = await ProtocolWorld.create()
    frames = b"".join(framed(message.SerializeToString()) for message in (add(entry(0)), read(0)))

    def arrive(connection: ApacheConnection) -> None:
        connection.data_received(frames[:40])
        connection.data_received(frames[40:])

    upgrading = Upgrading(world, arrive)
    with pytest.MonkeyPatch.context() as patch:
        await upgrading.complete_handshake(patch)
    assert upgrading.clear.answers() == [(pb.START_TLS, pb.EOK)]
    assert dict(upgrading.encrypted.answers())[pb.ADD_ENTRY] == pb.EOK
    assert len(upgrading.encrypted.answers()) == 2
    upgrading.receive(request(pb.START_TLS))
    await asyncio.sleep(0.1)
    assert upgrading.encrypted.answers()[2:] == [(pb.START_TLS, pb.EBADREQ)]
    await world.close()


@in_virtual_time
async def test_a_client_that_disconnects_right_after_the_handshake_gets_no_answer() -> None:
    world = await ProtocolWorld.create()
    frame = framed(read(0).SerializeToString())

    def leave(connection: ApacheConnection) -> None:
        connection.data_received(frame)
        connection.connection_lost(None)

    upgrading = Upgrading(world, leave)
    with pytest.MonkeyPatch.context() as patch:
        await upgrading.complete_handshake(patch)
    assert (upgrading.encrypted.sent, upgrading.has_left) == (b"", True)
    await world.close()
