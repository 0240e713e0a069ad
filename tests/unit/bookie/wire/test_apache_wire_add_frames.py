"""Adds and their successful answers as bytes: exactly equal to protobuf's output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.add_frames import AddFrames
from bookie.wire.apache.framing import framed

IDS = st.integers(0, LEDGER_ID_MAX) | st.sampled_from([0, 127, 128, 16383, 16384, 2097151, 2097152])


@given(
    ledger_id=IDS,
    entry_id=IDS,
    txn_id=IDS,
    master_key=st.binary(max_size=300),
    entry=st.binary(max_size=40) | st.integers(0, 40_000).map(bytes),
    priority=st.none() | st.integers(0, 300),
    is_recovery=st.booleans(),
)
def test_frames_and_answers_are_those_of_protobuf(
    ledger_id: int, entry_id: int, txn_id: int, master_key: bytes, entry: bytes, priority: int | None, is_recovery: bool
) -> None:
    frames = AddFrames(LedgerId(ledger_id), master_key, priority, is_recovery=is_recovery)
    head, tail, stored = frames.around(txn_id, entry_id, len(entry))

    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=txn_id)
    response = pb.Response(header=header, status=pb.EOK)
    response.addResponse.status = pb.EOK
    response.addResponse.ledgerId, response.addResponse.entryId = ledger_id, entry_id
    assert stored == response.SerializeToString()

    if priority is not None:
        header.priority = priority
    request = pb.Request(header=header)
    add = request.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body = ledger_id, entry_id, master_key, entry
    if is_recovery:
        add.flag = pb.AddRequest.RECOVERY_ADD
    assert head + entry + tail == framed(request.SerializeToString())
