"""The rules of a single connection with input from the test: whatever it receives, a caller gets only its own answer
(S18)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.adding import AddWaiter
from bookie.wire.apache.connection import ApacheAnswer, ExpectedAnswer, Version3Connection
from bookie.wire.apache.framing import framed
from bookie.wire.apache.stream import ConnectionLostError
from bookie.wire.port import AddReply, Status
from tests.contract.scripted_apache_bookie import LEDGER, batch


class RecordingWaiter:
    """A waiter that records its notifications."""

    def __init__(self) -> None:
        self.answers: list[ApacheAnswer] = []
        self.losses: list[str] = []

    def answered(self, answer: ApacheAnswer) -> None:
        self.answers.append(answer)

    def lost(self, error: ConnectionLostError) -> None:
        self.losses.append(str(error))


def response(txn_id: int, operation: int, status: int, part: str, ledger_id: int, entry_id: int) -> bytes:
    answer = pb.Response(status=status)  # type: ignore[arg-type]
    answer.header.CopyFrom(pb.BKPacketHeader(version=3, operation=operation, txnId=txn_id))  # type: ignore[arg-type]
    if part:
        content = getattr(answer, part)
        content.status, content.ledgerId, content.entryId = status, ledger_id, entry_id
    return answer.SerializeToString()


UNKNOWN_FIELD = b"\xf8\x3f\x01"
"""A future version: 1023, as a number."""

small = st.integers(1, 4)
plausible = st.builds(
    response,
    small,
    st.sampled_from([pb.ADD_ENTRY, pb.READ_ENTRY, pb.READ_LAC]),
    st.sampled_from([pb.EOK, pb.EIO, pb.EUA, pb.EBADREQ]),
    st.sampled_from(["", "addResponse", "readResponse"]),
    st.sampled_from([7, 8]),
    small,
)
bodies = st.lists(st.one_of(plausible, st.binary(min_size=1, max_size=60)), max_size=12)


@given(bodies)
def test_each_request_is_answered_once_and_only_with_its_own_entry(bodies: list[bytes]) -> None:
    connection, reported = Version3Connection(), {}
    for entry_id in range(1, 4):
        waiter = RecordingWaiter()
        txn_id, _ = connection.prepare(pb.Request(), ExpectedAnswer(pb.ADD_ENTRY, 7, entry_id, waiter))
        reported[txn_id] = waiter
    for body in bodies:
        connection.data_received(framed(body))
    connection.connection_lost(None)
    for txn_id, waiter in reported.items():
        assert len(waiter.answers) + len(waiter.losses) == 1
        for answer in waiter.answers:
            if answer.content is not None:
                assert (answer.content.ledgerId, answer.content.entryId) == (7, txn_id)
            else:
                assert answer.status in (Status.IO_ERROR, Status.BAD_REQUEST)


class Sink(asyncio.Transport):
    """A sink that accepts everything."""

    def writelines(self, list_of_data: object) -> None:
        pass


@pytest.mark.parametrize("is_as_expected", [True, False])
async def test_answered_adds_leave_no_state_whatever_the_bytes_of_the_answer(is_as_expected: bool) -> None:
    connection = Version3Connection()
    connection.connection_made(Sink())
    adding = AddWaiter(batch(1, 2, 3))
    await adding.submit(connection)
    for txn_id in (1, 2, 3):
        answer = response(txn_id, pb.ADD_ENTRY, pb.EOK, "addResponse", LEDGER, txn_id)
        connection.data_received(framed(answer if is_as_expected else answer + UNKNOWN_FIELD))
    assert await adding.reply == AddReply(Status.OK)
    adding.forget(connection)
    assert connection._stored == {}


async def test_requests_beyond_the_limit_wait_for_answers() -> None:
    connection = Version3Connection(in_flight_max=2)
    txn_ids = [
        connection.prepare(pb.Request(), ExpectedAnswer(pb.ADD_ENTRY, 7, n, RecordingWaiter()))[0] for n in range(2)
    ]
    waiting = asyncio.create_task(connection.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.data_received(framed(response(txn_ids[0], pb.ADD_ENTRY, pb.EOK, "addResponse", 7, 0)))
    await waiting


async def test_requests_wait_while_the_socket_is_full() -> None:
    connection = Version3Connection()
    connection.pause_writing()
    waiting = asyncio.create_task(connection.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.resume_writing()
    await waiting


async def test_a_caller_waiting_for_room_gets_the_error_when_the_connection_ends() -> None:
    connection = Version3Connection(in_flight_max=0)
    waiting = asyncio.create_task(connection.ready())
    await asyncio.sleep(0)
    connection.end("it is over")
    with pytest.raises(ConnectionLostError, match="it is over"):
        await waiting
    with pytest.raises(ConnectionLostError, match="it is over"):
        await connection.ready()


async def test_transaction_ids_are_never_used_twice() -> None:
    connection = Version3Connection()
    used = set()
    for _ in range(1000):
        txn_id, _ = connection.prepare(pb.Request(), ExpectedAnswer(pb.ADD_ENTRY, 7, 0, RecordingWaiter()))
        connection.forget([txn_id])
        used.add(txn_id)
    assert len(used) == 1000
