"""Decoding and answering without protobuf gives the same requests and the same answers as protobuf."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookie.model.ids import EntryId, LedgerId
from bookie.server.apache.dialect_v2 import DialectV2
from bookie.server.apache.dialect_v3 import DialectV3
from bookie.server.apache.fast_adds import take_adds_v2, take_adds_v3
from bookie.server.apache.grouping import AddGroup, AddGroups
from bookie.server.apache.requests import Add, Dialect, Read
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import FRAME_BYTES_MAX, MalformedFrameError, framed
from bookie.wire.port import Status
from tests.unit.bookie.wire.test_apache_recorded_frames import is_v2
from tests.worlds.apache_listener import KEY, LEDGER, add, entry, read
from tests.worlds.recorded_apache import rows

V2, V3 = DialectV2(), DialectV3()
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = st.one_of(st.integers(0, 300), st.sampled_from([127, 128, 16383, 16384, (1 << 63) - 1, -1]), INT64)
ENTRIES = st.one_of(
    st.binary(max_size=20),
    st.builds(
        lambda ledger, rest: ledger.to_bytes(8, "big", signed=True) + rest,
        st.sampled_from([LEDGER, 8, -1]),
        st.binary(min_size=8, max_size=300),
    ),
)


def varint(number: int, *, padding: int = 0) -> bytes:
    """Encode a number of 64 bits; with padding, it is longer than necessary."""
    number &= (1 << 64) - 1
    low = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)] + [0] * padding
    return bytes(byte | 0x80 for byte in low[:-1]) + bytes([low[-1]])


def field(number: int, value: int | bytes, *, padding: int = 0) -> bytes:
    """Encode a field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value, padding=padding)
    return varint(number << 3 | 2) + varint(len(value), padding=padding) + value


@st.composite
def ordinary(draw: st.DrawFn) -> bytes:
    """Add requests as clients send them, some with a field that most clients omit."""
    message = add(draw(ENTRIES), draw(st.sampled_from([KEY, b"", b"k" * 20])), is_recovery=draw(st.booleans()))
    message.header.txnId = draw(st.integers(0, (1 << 64) - 1) | st.integers(0, 300))
    message.addRequest.ledgerId, message.addRequest.entryId = draw(IDS), draw(IDS)
    if draw(st.booleans()):
        message.header.priority = draw(st.integers(0, (1 << 32) - 1))
    if draw(st.integers(0, 9)) == 0:
        message.addRequest.writeFlags = draw(st.integers(0, 3))
    if draw(st.integers(0, 9)) == 0:
        message.requestContext.add(key="k", value="v")
    return message.SerializeToString()


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    """Unusual messages: any order, unknown, repeated or missing fields, and numbers with more bytes than necessary."""
    padding = draw(st.sampled_from([0, 0, 1]))
    unknown = field(90, draw(st.integers(0, 5)))
    header = [field(1, 3), field(2, 2), field(3, draw(IDS), padding=padding), field(4, 100), unknown]
    part = [
        field(1, draw(IDS), padding=draw(st.sampled_from([0, 1]))),
        field(2, draw(IDS)),
        field(3, KEY),
        field(4, draw(ENTRIES), padding=draw(st.sampled_from([0, 1]))),
        field(100, draw(st.integers(0, 2))),
        unknown,
    ]
    chosen_header = draw(st.sampled_from([header[:3], header[:4], draw(st.lists(st.sampled_from(header)))]))
    chosen_part = draw(st.sampled_from([part[:4], part[:5], draw(st.lists(st.sampled_from(part)))]))
    parts = [field(1, b"".join(chosen_header), padding=padding), field(101, b"".join(chosen_part), padding=padding)]
    return b"".join(draw(st.sampled_from([parts, parts[::-1], [*parts, unknown], [*parts, parts[0]]])))


def by_dialect(dialect: Dialect, body: bytes) -> Add | None:
    try:
        request = dialect.decode(body)
    except MalformedFrameError:
        return None
    return request if isinstance(request, Add) else None


def content(groups: Sequence[AddGroup]) -> list[tuple[object, list[bytes], list[bytes], int]]:
    return [(group.kind, group.packets, group.accepted, group.size) for group in groups]


def check(dialect: Dialect, bodies: Sequence[bytes]) -> int:
    """Check that the fast path decodes the same as the dialect, in order and by groups.

    Return the number of decoded frames.
    """
    take = take_adds_v3 if dialect is V3 else take_adds_v2
    fast, slow = AddGroups(), AddGroups()
    block = b"behind" + b"".join(map(framed, bodies))
    end = take(block, len(b"behind"), FRAME_BYTES_MAX, dialect, fast)
    taken, at = 0, len(b"behind")
    while at < end:
        one = by_dialect(dialect, bodies[taken])
        assert one is not None
        slow.add(one.kind, [one.packet], [one.accepted])
        at += len(framed(bodies[taken]))
        taken += 1
    assert at == end
    assert content(fast.groups) == content(slow.groups)
    return taken


@given(st.lists(ordinary() | odd(), min_size=1, max_size=6))
@example([add(entry(number), echo=number).SerializeToString() for number in range(5)])
def test_version_3_is_decoded_and_answered_as_by_protobuf(bodies: list[bytes]) -> None:
    for start in range(len(bodies)):
        check(V3, bodies[start:])


@given(ordinary() | odd(), st.integers(1, 150), st.data())
def test_messages_that_differ_in_a_few_bytes_are_distinguished(body: bytes, count: int, data: st.DataObject) -> None:
    bodies = [bytearray(body) for _ in range(count)]
    for _ in range(data.draw(st.integers(0, 4))):
        changed = data.draw(st.sampled_from(bodies))
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    check(V3, [bytes(changed) for changed in bodies])


@given(
    st.lists(
        st.builds(
            v2.AddV2,
            st.sampled_from([KEY, b"k" * 20]),
            ENTRIES.map(lambda packet: packet.ljust(16, b"\0")),
            st.sampled_from([0, v2.RECOVERY_ADD, v2.HIGH_PRIORITY, v2.RECOVERY_ADD | v2.HIGH_PRIORITY, 1, 8, 0x100]),
            st.sampled_from([2, 2, 2, 1, 0]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_version_2_is_decoded_and_answered_as_by_its_dialect(adds: list[v2.AddV2]) -> None:
    for start in range(len(adds)):
        check(V2, [v2.encode_request(one) for one in adds[start:]])


@pytest.mark.parametrize("is_recovery", [False, True])
def test_adds_as_clients_send_them_all_take_the_fast_path(is_recovery: bool) -> None:
    sizes = (5, 100, 100, 100, 1024, 20_000, 20_000, 5)
    bodies = []
    for number in range(400):
        message = add(entry(number, size=sizes[number % 8]), echo=number, is_recovery=is_recovery)
        message.header.txnId = number + 100
        if is_recovery:
            message.header.priority = 100
        bodies.append(message.SerializeToString())
    assert check(V3, bodies) == len(bodies)
    flags = v2.RECOVERY_ADD if is_recovery else 0
    packets = [entry(number, size=sizes[number % 8]) for number in range(400)]
    assert check(V2, [v2.encode_request(v2.AddV2(KEY, packet, flags)) for packet in packets]) == len(packets)


def test_plain_and_recovery_adds_of_apaches_client_take_the_fast_path() -> None:
    adds = []
    for row in rows("frames"):
        body = bytes.fromhex(row["body"])
        if row["is_request"] and by_dialect(V2 if is_v2(row) else V3, body) is not None:
            adds.append((V2 if is_v2(row) else V3, body))
    taken = [check(dialect, [body]) for dialect, body in adds]
    deferred = [body for dialect, body in adds if dialect is V3 and pb.Request.FromString(body).addRequest.writeFlags]
    assert sum(taken) == len(adds) - len(deferred) >= 10


@pytest.mark.parametrize("dialect", [V2, V3])
def test_incomplete_or_oversized_frames_and_other_requests_are_not_taken(dialect: Dialect) -> None:
    take = take_adds_v3 if dialect is V3 else take_adds_v2
    one = add(entry(0)).SerializeToString() if dialect is V3 else v2.encode_request(v2.AddV2(KEY, entry(0)))
    other = read(0).SerializeToString() if dialect is V3 else v2.encode_request(v2.ReadV2(LEDGER, 0))
    size = len(framed(one))
    for behind in (framed(one)[:-1], framed(one)[:3], framed(other), b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b""):
        assert take(framed(one) + behind, 0, FRAME_BYTES_MAX, dialect, AddGroups()) == size
    assert take(framed(one), 0, size, dialect, AddGroups()) == size
    assert take(framed(one), 0, size - 1, dialect, AddGroups()) == 0


@given(
    st.integers(0, (1 << 64) - 1) | st.integers(0, 300),
    IDS,
    IDS,
    st.binary(max_size=300) | st.sampled_from([bytes(16383), bytes(1 << 20)]),
    st.none() | IDS,
)
def test_a_read_is_answered_with_the_bytes_of_protobuf(
    txn: int, ledger_id: int, entry_id: int, packet: bytes, known_lac: int | None
) -> None:
    response = pb.Response(status=pb.EOK)
    response.header.version, response.header.operation, response.header.txnId = pb.VERSION_THREE, pb.READ_ENTRY, txn
    part = response.readResponse
    part.status, part.ledgerId, part.entryId, part.body = pb.EOK, ledger_id, entry_id, packet
    if known_lac is not None:
        part.maxLAC = known_lac
    one = Read(V3, txn, LedgerId(ledger_id), EntryId(entry_id), None)
    assert b"".join(V3.was_read(one, Status.OK, packet, known_lac)) == framed(response.SerializeToString())


@pytest.mark.parametrize("status", [Status.FENCED, Status.UNAUTHORIZED, Status.LIMBO, Status.IO_ERROR])
def test_a_refusal_echoes_the_same_fields_as_a_success(status: Status) -> None:
    message = add(entry(3), echo=-5)
    message.header.txnId = (1 << 64) - 1
    one = by_dialect(V3, message.SerializeToString())
    assert one is not None
    response = pb.Response.FromString(V3.refused(one.accepted, status)[4:])
    assert (response.header.txnId, response.addResponse.entryId) == ((1 << 64) - 1, -5)
    assert response.status == response.addResponse.status != pb.EOK
    old = by_dialect(V2, v2.encode_request(v2.AddV2(KEY, entry(3), version=1)))
    assert old is not None
    answer = v2.decode_response(V2.refused(old.accepted, status)[4:])
    assert isinstance(answer, v2.AddedV2)
    assert (answer.ledger_id, answer.entry_id, answer.version) == (LEDGER, 3, 1)
    assert answer.code != 0
