"""Numbers in protobuf's encoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.model.varint import varint
from bookie.wire.apache import protocol_pb2 as pb


@given(st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 16383, 16384, 2097151, 2097152]))
def test_numbers_have_their_shortest_encoding(value: int) -> None:
    written = varint(value)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(written)) == value
    assert all(byte & 0x80 for byte in written[:-1])
    assert not written[-1] & 0x80
    assert len(written) == max(1, -(-value.bit_length() // 7))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_numbers_are_encoded_as_in_protobuf(value: int) -> None:
    assert b"\x08" + varint(value) == pb.ForceLedgerRequest(ledgerId=value).SerializeToString()
