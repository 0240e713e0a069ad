"""The listener of Apache's protocol on real sockets: many, invalid and incomplete requests, slow clients, shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie.runtime.listening import AddressInUseError
from bookie.server.apache import listener
from bookie.server.apache.connection import ApacheConnection
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.listener import ApacheListener
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import framed
from tests.contract.apache_listener_world import DEADLINE_S, listening
from tests.worlds.apache_listener import KEY, LEDGER, add, entry, long_poll, read, request


def numbered(message: pb.Request, txn: int) -> pb.Request:
    message.header.txnId = txn
    return message


async def test_pipelined_requests_are_all_answered_and_adds_of_one_ledger_are_batched() -> None:
    count = 2000
    async with listening() as world:
        client = await world.connect()
        client.send(*(numbered(add(entry(number)), number) for number in range(count)))
        answers = await client.answers(count)
        assert {answer.header.txnId: answer.status for answer in answers} == dict.fromkeys(range(count), pb.EOK)
        assert len(world.service.batches) < count / 10
        client.send(*(numbered(read(number), number) for number in range(count)))
        found = {answer.header.txnId: answer.readResponse.body for answer in await client.answers(count)}
        assert found == {number: entry(number) for number in range(count)}


async def test_adds_are_passed_on_in_order() -> None:
    async with listening() as world:
        client = await world.connect()
        for number in range(50):
            client.send(add(entry(number)))
            await client.writer.drain()
        await client.answers(50)
        packets = [packet for batch in world.service.batches for packet in batch.entries]
        assert packets == [entry(number) for number in range(50)]


async def test_a_request_may_come_byte_by_byte() -> None:
    async with listening() as world:
        client = await world.connect()
        for byte in framed(add(entry(0)).SerializeToString()):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.answer()).status == pb.EOK


async def test_the_version_is_detected_for_each_connection_and_version_2_is_permanent() -> None:
    async with listening() as world:
        client = await world.connect()
        assert (await client.ask(add(entry(0)))).status == pb.EOK
        client.send(v2.encode_request(v2.ReadV2(LEDGER, 0)))
        assert v2.decode_response(await client.body()) == v2.EntryV2(0, LEDGER, 0, entry(0))
        client.send(read(0))
        assert await client.is_closed()
        another = await world.connect()
        assert (await another.ask(read(0))).status == pb.EOK


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x7f\xff\xff\xff", "2147483651"),
        (b"\xff\xff\xff\xff", "means nothing"),
        (b"\x00\x00\x00\x00", "means nothing"),
        (framed(b"\x09\x09\x09\x09\x09"), "not a request"),
        (framed(b"GET / HTTP/1.1\r\n\r\n"), "not a request"),
        (framed(bytes.fromhex("02010000") + KEY), "opcode 1"),
    ],
)
async def test_a_malformed_request_closes_only_its_connection_and_logs_one_line(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as world:
        healthy, broken = await world.connect(), await world.connect()
        broken.writer.write(sent)
        assert await broken.is_closed()
        assert (await healthy.ask(add(entry(0)))).status == pb.EOK
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert reason in line.__dict__["reason"]
    assert "127.0.0.1" in line.__dict__["peer"]


async def test_an_incomplete_frame_ends_with_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as world:
        client = await world.connect()
        client.writer.write(framed(add(entry(0)).SerializeToString())[:-5])
        client.writer.write_eof()
        assert await client.is_closed()
        assert (await (await world.connect()).ask(read(0))).status == pb.ENOLEDGER
    assert [record.__dict__["reason"] for record in caplog.records] == [
        "the client closed the connection in the middle of a frame"
    ]


async def test_idle_connections_are_closed() -> None:
    async with listening(ListenerLimits(silent_s=0.05)) as world:
        assert await (await world.connect()).is_closed()


async def test_a_client_that_needs_no_handshake_may_stay_idle_longer() -> None:
    async with listening(ListenerLimits(first_request_s=0.0)) as world:
        early, other = await world.connect(), await world.connect()
        assert (await other.ask(read(0))).status == pb.ENOLEDGER
        assert (await early.ask(read(0))).status == pb.ENOLEDGER


async def test_a_further_connection_replaces_the_oldest_one_without_a_request() -> None:
    async with listening(ListenerLimits(connections_max=3)) as world:
        busy = await world.connect()
        assert (await busy.ask(read(0))).status == pb.ENOLEDGER
        silent, later = await world.connect(), await world.connect()
        for number in range(2):
            newer = await world.connect()
            assert (await newer.ask(read(0))).status == pb.ENOLEDGER
            assert await (silent, later)[number].is_closed()
        assert (await busy.ask(read(0))).status == pb.ENOLEDGER
        assert await (await world.connect()).is_closed()


async def test_connections_are_bounded_and_a_closed_one_makes_room() -> None:
    async with listening(ListenerLimits(connections_max=2)) as world:
        one, other = await world.connect(), await world.connect()
        for client in (one, other):
            assert (await client.ask(read(0))).status == pb.ENOLEDGER
        assert await (await world.connect()).is_closed()
        one.close()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                client = await world.connect()
                client.send(read(0))
                if await client.reader.read(1):
                    break


async def test_the_kernel_ends_the_connection_of_a_client_that_has_vanished_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it is idle, or has answers on the way."""
    accepted = asyncio.get_running_loop().create_future()
    made = ApacheConnection.connection_made

    def connection_made(connection: ApacheConnection, transport: asyncio.BaseTransport) -> None:
        made(connection, transport)
        accepted.set_result(transport.get_extra_info("socket"))

    monkeypatch.setattr(ApacheConnection, "connection_made", connection_made)
    async with listening() as world:
        await world.connect()
        option = (await accepted).getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, interval_s, count, unanswered_ms = (
            option(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        )
        assert idle_s + count * interval_s <= 60
        assert 0 < unanswered_ms <= 60_000


async def test_requests_in_flight_are_bounded_and_continue_when_there_is_room() -> None:
    count = 400
    async with listening(ListenerLimits(add_bytes_max=64 << 10)) as world:
        world.service.may_go.clear()
        client = await world.connect()
        client.send(*(numbered(add(entry(number, size=4096)), number) for number in range(count)))
        await world.service.has_begun.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        held = sum(len(batch.entries) for batch in world.service.batches)
        assert held < count
        world.service.may_go.set()
        assert {answer.header.txnId for answer in await client.answers(count)} == set(range(count))


async def test_a_client_that_reads_no_answers_is_slowed_down_and_does_no_harm() -> None:
    count, size = 128, 256 << 10
    async with listening(ListenerLimits(unsent_bytes_max=64 << 10, reads_max=1)) as world:
        writer = await world.connect()
        assert (await writer.ask(add(entry(0, size=size)))).status == pb.EOK
        slow = socket.create_connection(("127.0.0.1", world.port))
        slow.sendall(framed(read(0).SerializeToString()) * count)
        assert (await writer.ask(read(0))).status == pb.EOK  # the others are served, and later the slow one as well
        slow.settimeout(DEADLINE_S)
        received = await asyncio.to_thread(drained, slow, count * size)
        assert received >= count * size
        slow.close()


def drained(slow: socket.socket, wanted: int) -> int:
    received = 0
    while received < wanted and (data := slow.recv(1 << 20)):
        received += len(data)
    return received


async def test_a_long_poll_blocks_no_other_request_and_ends_with_its_client() -> None:
    async with listening(ListenerLimits(reads_max=1)) as world:
        client = await world.connect()
        client.send(numbered(long_poll(0, 20_000), 1), numbered(add(entry(0)), 2), numbered(read(0), 3))
        assert {answer.header.txnId for answer in await client.answers(2)} == {2, 3}
        assert (await client.ask(numbered(add(entry(2, lac=1)), 4))).header.txnId in (1, 4)
        leaving = await world.connect()
        leaving.send(long_poll(50, 20_000))
        leaving.close()


async def test_long_polls_beyond_the_bound_are_answered_at_once() -> None:
    async with listening(ListenerLimits(polls_max=2, reads_max=1)) as world:
        client = await world.connect()
        assert (await client.ask(add(entry(0)))).status == pb.EOK
        client.send(*(numbered(long_poll(0, 25_000), number) for number in (1, 2, 3, 4)))
        assert {answer.header.txnId for answer in await client.answers(2)} == {3, 4}
        client.send(numbered(add(entry(2, lac=1)), 5))
        assert {answer.header.txnId for answer in await client.answers(3)} == {1, 2, 5}


async def test_stop_sends_pending_answers_and_closes() -> None:
    async with listening() as world:
        world.service.may_go.clear()
        client, idle = await world.connect(), await world.connect()
        assert (await idle.ask(read(0))).status == pb.ENOLEDGER
        client.send(add(entry(0)))
        await world.service.has_begun.wait()
        polling = await world.connect()
        polling.send(long_poll(0, 20_000))
        end = asyncio.create_task(world.listener.stop())
        world.service.may_go.set()
        assert (await client.answer()).status == pb.EOK
        await end
        assert [await other.is_closed() for other in (client, idle, polling)] == [True] * 3
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", world.port)
        await world.listener.stop()


async def test_stop_does_not_wait_for_a_client_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_FLUSH_DEADLINE_S", 0.05)
    size, count = 1 << 20, 64
    async with listening(ListenerLimits(unsent_bytes_max=64 << 10)) as world:
        writer = await world.connect()
        await writer.ask(add(entry(0, size=size)))
        stuck = await world.connect()
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.send(*([read(0)] * count))
        await writer.ask(read(0))
        await world.listener.stop()
        stuck.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await stuck.received() < size * count, "the client did not receive all of its answers"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", world.port)


async def test_a_port_in_use_is_an_error_that_names_the_option_to_change() -> None:
    async with listening() as world:
        with pytest.raises(AddressInUseError, match="--apache-port"):
            ApacheListener().bind("127.0.0.1", world.port, None)
    never_started = ApacheListener()
    never_started.bind("127.0.0.1", 0, None)
    await never_started.stop()


_FRAMES = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=80).map(framed),
    st.binary(max_size=60).map(lambda rest: framed(b"\x02\x07\x00\x00" + rest)),
    st.builds(
        lambda operation, txn, rest: framed(request(operation).SerializeToString() + rest),
        st.sampled_from(list(pb.OperationType.values())),
        st.integers(0, 10),
        st.binary(max_size=60),
    ),
    st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(
        lambda ids: framed(read(ids[0], ledger=ids[1], fence_key=KEY).SerializeToString())
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(chunks=st.lists(_FRAMES, max_size=8))
def test_arbitrary_bytes_do_not_harm_the_bookie(chunks: list[bytes]) -> None:
    async def scenario() -> None:
        async with listening() as world:
            client = await world.connect()
            for chunk in chunks:
                client.writer.write(chunk)
            client.writer.write_eof()
            assert await client.is_closed()
            assert (await (await world.connect()).ask(add(entry(0, ledger=1000)))).status == pb.EOK

    asyncio.run(scenario())
