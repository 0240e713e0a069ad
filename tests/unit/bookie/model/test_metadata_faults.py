"""Each kind of fault in metadata, and metadata without a fault."""

from __future__ import annotations

import pytest

from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.metadata_faults import Found, MetadataFault, faults, is_stuck
from bookie.model.varint import varint
from tests.worlds.metadata_faults import fault_of

Parts = list[tuple[int, str]]


def of(parts: Parts, *, last: int | None = 9, length: int = 100, ack_quorum: int = 2) -> list[Found]:
    fragments = tuple(Fragment(EntryId(first), tuple(map(BookieId, members))) for first, members in parts)
    metadata = LedgerMetadata(len(parts[0][1]), 2, ack_quorum, fragments)
    return list(faults(metadata if last is None else metadata.closed(EntryId(last), length)))


@pytest.mark.parametrize(
    ("parts", "last", "length"),
    [
        ([(0, "abc")], 9, 100),
        ([(0, "abc")], -1, 0),
        ([(0, "abc")], None, 0),
        ([(0, "abc"), (5, "abx")], 4, 50),  # the writer ended right after a change of the ensemble
        ([(0, "abc"), (5, "abx")], 5, 50),
    ],
)
def test_valid_metadata_has_no_fault(parts: Parts, last: int | None, length: int) -> None:
    assert of(parts, last=last, length=length) == []


def test_each_fault_of_readable_metadata_is_detected() -> None:
    assert of([(0, "abc"), (3, "aba")]) == [(MetadataFault.DUPLICATE_MEMBER, 1)]
    assert of([(2, "abc")]) == [(MetadataFault.FRAGMENT_GAP, 0)]
    assert of([(0, "abc")], ack_quorum=0) == [(MetadataFault.NO_ACK_QUORUM, None)]
    assert of([(0, "abc"), (5, "abx")], last=3) == [(MetadataFault.LAST_ENTRY_TOO_LOW, None)]
    for last, length in ((9, 0), (-1, 7), (9, -1)):
        assert of([(0, "abc")], last=last, length=length) == [(MetadataFault.LENGTH_MISMATCH, None)]
    assert of([(2, "aab")], last=-2, length=0, ack_quorum=0) == [
        (MetadataFault.DUPLICATE_MEMBER, 0),
        (MetadataFault.FRAGMENT_GAP, 0),
        (MetadataFault.NO_ACK_QUORUM, None),
        (MetadataFault.LAST_ENTRY_TOO_LOW, None),
    ]


def test_a_recovery_is_stuck_after_its_time_limit() -> None:
    assert [is_stuck(1_000, now, 60) for now in (1_000, 61_000, 61_001)] == [False, False, True]


def bytes_of(parts: Parts, *, version: bytes = b"3", write_quorum: int = 2, ack_quorum: int = 2) -> bytes:
    message = LedgerMetadataFormat(
        quorumSize=write_quorum, ensembleSize=3, length=1, state="CLOSED", lastEntryId=9, ackQuorumSize=ack_quorum
    )
    for first, members in parts:
        message.segment.add(ensembleMember=list(members), firstEntryId=first)
    body = message.SerializeToString()
    return b"BookieMetadataFormatVersion\t" + version + b"\n" + varint(len(body)) + body


def without(name: str) -> bytes:
    body = LedgerMetadataFormat(quorumSize=2, ensembleSize=3, length=1, state="CLOSED", lastEntryId=9, ackQuorumSize=2)
    body.segment.add(ensembleMember=list("abc"), firstEntryId=0)
    body.ClearField(name)
    data = body.SerializePartialToString()
    return b"BookieMetadataFormatVersion\t3\n" + varint(len(data)) + data


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (bytes_of([(0, "abc"), (0, "abx")]), MetadataFault.OVERLAPPING_FRAGMENTS),
        (bytes_of([(0, "abc"), (5, "abx"), (3, "abe")]), MetadataFault.UNSORTED_FRAGMENTS),
        (bytes_of([(-4, "abc")]), MetadataFault.UNSORTED_FRAGMENTS),
        (bytes_of([]), MetadataFault.NO_FRAGMENT),
        (bytes_of([(0, "abcd")]), MetadataFault.WRONG_ENSEMBLE_SIZE),
        (bytes_of([(0, "abc")], write_quorum=4), MetadataFault.WRONG_QUORUMS),
        (bytes_of([(0, "abc")], ack_quorum=3), MetadataFault.WRONG_QUORUMS),
        (without("lastEntryId"), MetadataFault.NO_LAST_ENTRY),
        (without("state"), MetadataFault.WRONG_FIELDS),
        (bytes_of([(0, "ab ")]), MetadataFault.WRONG_FIELDS),
        (bytes_of([(0, "abc")], version=b"4"), MetadataFault.UNKNOWN_FORMAT),
        (b"BookieMetadataFormatVersion\tx\n", MetadataFault.UNKNOWN_FORMAT),
        (bytes_of([(0, "abc")])[:-3], None),
        (b"damage", None),
    ],
)
def test_each_decoder_error_has_its_fault(data: bytes, fault: MetadataFault | None) -> None:
    with pytest.raises(UnreadableMetadataError) as refused:
        decode(data)
    assert fault_of(str(refused.value)) is fault


def test_a_denied_node_has_no_fault() -> None:
    assert fault_of("access denied: the node's ACL does not let this session read it") is None
