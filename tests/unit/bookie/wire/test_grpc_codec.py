"""Messages to values and back: nothing is lost, and an invalid message is never taken for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.availability import EntryRuns, finished
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import PACKET_BYTES_MAX
from bookie.wire import bookie_pb2 as pb
from bookie.wire.grpc.channel import MESSAGE_BYTES_MAX
from bookie.wire.grpc.codec import (
    CHUNK_BYTES,
    MalformedAnswerError,
    ack_from_wire,
    ack_to_wire,
    add_from_wire,
    add_to_wire,
    copied_from_wire,
    copied_to_wire,
    copy_from_wire,
    copy_to_wire,
    entries_from_wire,
    fence_from_wire,
    fence_to_wire,
    info_from_wire,
    info_to_wire,
    lac_from_wire,
    lac_to_wire,
    list_from_wire,
    list_to_wire,
    read_last_to_wire,
    read_to_wire,
    status_from_wire,
    write_lac_from_wire,
    write_lac_to_wire,
)
from bookie.wire.port import (
    AddBatch,
    AddReply,
    BookieInfo,
    CopyReply,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    Status,
)
from bookie.wire.requests import Copy

ENTRY_BYTES_MAX = PACKET_BYTES_MAX
WIRE_STATUSES = [status for status in Status if status < 100]
ids = st.integers(0, (1 << 63) - 1)
statuses = st.sampled_from(WIRE_STATUSES)


@st.composite
def results(draw: st.DrawFn) -> EntryResult:
    status = draw(statuses)
    packet = draw(st.binary(max_size=50)) if status is Status.OK else b""
    return EntryResult(EntryId(draw(ids)), status, packet)


def joined(messages: Sequence[pb.EntryBatch]) -> ReadReply:
    found = tuple(result for message in messages for result in entries_from_wire(message))
    return ReadReply(status_from_wire(messages[-1].status), found, messages[-1].detail)


def test_wire_statuses_are_the_statuses_below_100() -> None:
    on_the_wire = {name.removeprefix("STATUS_"): number for name, number in pb.Status.items()}
    assert on_the_wire == {status.name: int(status) for status in WIRE_STATUSES}


@pytest.mark.parametrize("status", [status for status in Status if status >= 100])
def test_statuses_that_only_clients_use_are_not_sent(status: Status) -> None:
    with pytest.raises(KeyError):
        ack_to_wire(pb.AddBatch(), AddReply(status))


@pytest.mark.parametrize("number", [-1, 13, 99, 100, 101, 102, 2**31 - 1])
def test_unknown_status_numbers_mean_a_failure(number: int) -> None:
    assert status_from_wire(number) is Status.IO_ERROR


@given(ids, st.binary(max_size=20), st.lists(st.binary(max_size=50)), st.booleans())
def test_add_batches_survive_the_wire(ledger_id: int, key: bytes, entries: list[bytes], is_recovery: bool) -> None:
    batch = AddBatch(LedgerId(ledger_id), key, entries, is_recovery)
    message = pb.AddBatch.FromString(add_to_wire(7, batch).SerializeToString())
    assert (add_from_wire(message), message.request_id) == (batch, 7)


@given(statuses, st.text(max_size=50))
def test_acks_survive_the_wire_and_name_their_request(status: Status, detail: str) -> None:
    message = pb.AddBatch(request_id=9, ledger_id=4)
    ack = pb.AddAck.FromString(ack_to_wire(message, AddReply(status, detail)).SerializeToString())
    assert (ack_from_wire(ack), ack.request_id, ack.ledger_id) == (AddReply(status, detail), 9, 4)


@given(st.lists(results(), max_size=20), statuses, st.text(max_size=50))
def test_read_answers_survive_the_wire(found: list[EntryResult], status: Status, detail: str) -> None:
    reply = ReadReply(status, tuple(found), detail)
    messages = list(read_to_wire(reply))
    assert joined(messages) == reply
    assert [message.is_last for message in messages] == [False] * (len(messages) - 1) + [True]


@given(st.lists(st.sampled_from([0, 10, CHUNK_BYTES - 1, CHUNK_BYTES, ENTRY_BYTES_MAX]), max_size=6))
def test_read_answers_are_split_into_messages_that_fit(sizes: list[int]) -> None:
    reply = ReadReply(Status.OK, tuple(EntryResult(EntryId(n), Status.OK, bytes(size)) for n, size in enumerate(sizes)))
    messages = list(read_to_wire(reply))
    assert joined(messages) == reply
    assert all(message.ByteSize() <= MESSAGE_BYTES_MAX for message in messages)


def test_a_huge_last_entry_is_answered_in_one_message() -> None:
    reply = ReadReply(Status.OK, (EntryResult(EntryId(3), Status.OK, bytes(ENTRY_BYTES_MAX)),))
    assert joined([read_last_to_wire(reply)]) == reply


def test_a_packet_with_an_error_status_is_ignored() -> None:
    message = pb.EntryBatch(entry_ids=[1], packets=[b"stale"])
    message.statuses.append(pb.STATUS_CORRUPT)
    assert entries_from_wire(message) == [EntryResult(EntryId(1), Status.CORRUPT, b"")]


@pytest.mark.parametrize(
    "message",
    [
        pb.EntryBatch(entry_ids=[1, 2], packets=[b"x"]),
        pb.EntryBatch(entry_ids=[1], packets=[b"x", b"y"]),
        pb.EntryBatch(entry_ids=[1, 2], packets=[b"x", b"y"], statuses=[pb.STATUS_OK]),
    ],
)
def test_lists_of_different_lengths_are_malformed(message: pb.EntryBatch) -> None:
    with pytest.raises(MalformedAnswerError):
        entries_from_wire(message)


@given(statuses, st.one_of(st.none(), results()), st.text(max_size=50))
def test_fence_answers_survive_the_wire(status: Status, last: EntryResult | None, detail: str) -> None:
    reply = FenceReply(status, last, detail)
    assert fence_from_wire(pb.FenceResponse.FromString(fence_to_wire(reply).SerializeToString())) == reply


@given(
    statuses,
    st.binary(max_size=40),
    st.one_of(st.none(), results()),
    st.one_of(st.none(), ids),
    st.text(max_size=50),
)
def test_lac_answers_survive_the_round_trip(
    status: Status, explicit: bytes, last: EntryResult | None, beyond: int | None, detail: str
) -> None:
    entry = None if beyond is None else EntryResult(EntryId(beyond), Status.OK, b"packet")
    reply = LacReply(status, explicit, last, entry, detail)
    message = pb.LacResponse.FromString(lac_to_wire(reply).SerializeToString())
    assert lac_from_wire(message, None if beyond is None else EntryId(beyond)) == reply


@pytest.mark.parametrize("expected", [None, EntryId(4), EntryId(6)])
def test_another_entry_than_the_awaited_one_is_malformed(expected: EntryId | None) -> None:
    reply = LacReply(Status.OK, entry=EntryResult(EntryId(5), Status.OK, b"packet"))
    with pytest.raises(MalformedAnswerError):
        lac_from_wire(lac_to_wire(reply), expected)


def test_a_lac_answer_with_a_damaged_entry_is_malformed() -> None:
    reply = LacReply(Status.OK, entry=EntryResult(EntryId(5), Status.CORRUPT))
    with pytest.raises(MalformedAnswerError):
        lac_from_wire(lac_to_wire(reply), EntryId(5))


def test_a_lac_answer_with_two_entries_of_the_largest_size_fits_in_one_message() -> None:
    largest = EntryResult(EntryId(5), Status.OK, bytes(ENTRY_BYTES_MAX))
    assert lac_to_wire(LacReply(Status.OK, bytes(64), largest, largest)).ByteSize() < MESSAGE_BYTES_MAX


@given(statuses, st.text(max_size=50))
def test_answers_to_an_explicit_lac_survive_the_wire(status: Status, detail: str) -> None:
    message = pb.WriteLacResponse.FromString(write_lac_to_wire(AddReply(status, detail)).SerializeToString())
    assert write_lac_from_wire(message) == AddReply(status, detail)


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_listings_of_any_size_survive_the_round_trip(count: int) -> None:
    reply = ListReply(Status.OK, EntryRuns(tuple((n * 3, n * 3 + 1) for n in range(count))), "detail")
    *pieces, last = list_to_wire(reply)
    assert finished(list_from_wire([piece.availability for piece in pieces], last)) == reply
    assert all(piece.ByteSize() < MESSAGE_BYTES_MAX and not piece.is_last for piece in pieces)


@pytest.mark.parametrize("entries", [EntryRuns(()), EntryRuns(((0, 5),))])
@pytest.mark.parametrize("status", [Status.LIMBO, Status.NO_LEDGER, Status.IO_ERROR])
def test_a_listing_that_is_not_ok_may_have_entries(status: Status, entries: EntryRuns) -> None:
    reply = ListReply(status, entries, "lost a disk")
    *pieces, last = list_to_wire(reply)
    assert finished(list_from_wire([piece.availability for piece in pieces], last)) == reply


@given(st.lists(ids, unique=True, min_size=1, max_size=6).map(sorted), st.sampled_from(DigestType), st.binary())
def test_a_copy_request_survives_the_round_trip(entry_ids: list[int], digest_type: DigestType, key: bytes) -> None:
    copy = Copy(LedgerId(7), [EntryId(n) for n in entry_ids], BookieId("b:1"), key, digest_type, key, "uuid")
    assert copy_from_wire(pb.CopyRequest.FromString(copy_to_wire(copy, "uuid").SerializeToString())) == copy


def test_an_unknown_digest_type_is_read_as_dummy() -> None:
    message = copy_to_wire(Copy(LedgerId(7), [EntryId(0)], BookieId("b"), b"", DigestType.CRC32), "")
    message.digest = 99  # type: ignore[assignment]
    assert copy_from_wire(message).digest_type is DigestType.DUMMY


@pytest.mark.parametrize("source", [*WIRE_STATUSES, Status.UNREACHABLE, Status.TIMEOUT, Status.UNRESOLVED])
def test_the_answer_to_a_copy_survives_the_wire(source: Status) -> None:
    refusals = [EntryResult(EntryId(3), Status.CORRUPT, detail="flipped"), EntryResult(EntryId(4), Status.NO_ENTRY)]
    for status in WIRE_STATUSES:
        reply = CopyReply(status, 3, 1 << 20, refusals, source, "why", 0.25, "because")
        message = pb.CopyResponse.FromString(copied_to_wire(reply).SerializeToString())
        assert copied_from_wire(message, [EntryId(n) for n in (1, 3, 4, 5)]) == reply


@pytest.mark.parametrize(
    "reply",
    [
        CopyReply(Status.OK, 3),
        CopyReply(Status.OK, 0),
        CopyReply(Status.OK, 1, refusals=[EntryResult(EntryId(2), Status.NO_ENTRY)]),
        CopyReply(Status.OK, 2, refusals=[EntryResult(EntryId(9), Status.NO_ENTRY)]),
        CopyReply(Status.OK, 2, refusals=[EntryResult(EntryId(1), Status.OK)]),
        CopyReply(Status.OK, 2, refusals=[EntryResult(EntryId(1), Status.NO_ENTRY)] * 2),
    ],
    ids=["more than asked", "nothing", "not covered", "not asked", "one refused, one good", "twice"],
)
def test_an_answer_that_does_not_match_the_copy_is_malformed(reply: CopyReply) -> None:
    with pytest.raises(MalformedAnswerError):
        copied_from_wire(copied_to_wire(reply), [EntryId(1), EntryId(2)])


def test_an_unknown_reason_of_an_unanswered_source_means_unreachable() -> None:
    message = copied_to_wire(CopyReply(Status.OK))
    message.source_silence = 99  # type: ignore[assignment]
    assert copied_from_wire(message, [EntryId(1)]).source is Status.UNREACHABLE


def test_info_survives_the_wire() -> None:
    info = BookieInfo("uuid", "1.2", is_read_only=True, disk_total_bytes=1 << 50, disk_free_bytes=5, ledger_count=9)
    for reply in (InfoReply(Status.OK, info), InfoReply(Status.SHUTTING_DOWN, None, "stopping")):
        assert info_from_wire(pb.InfoResponse.FromString(info_to_wire(reply).SerializeToString())) == reply
