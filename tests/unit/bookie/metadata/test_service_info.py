"""Payloads of registrations: both directions, Apache's empty payload, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.service_info import (
    PROPERTY_INCARNATION,
    Endpoint,
    ServiceInfo,
    UnreadableServiceInfoError,
    decode_service_info,
    encode_service_info,
)
from bookie.model.ids import BookieId

BK = BookieId("bk1:3181")
text = st.text(max_size=12)
texts = st.lists(text, max_size=3).map(tuple)
endpoints = st.builds(Endpoint, text, text, st.integers(0, 65535), text, texts, texts)
infos = st.builds(
    ServiceInfo,
    st.lists(endpoints, max_size=3).map(tuple),
    st.dictionaries(text, text, max_size=3).map(lambda d: tuple(sorted(d.items()))),
)


@given(infos)
def test_info_is_read_back_as_written(info: ServiceInfo) -> None:
    assert decode_service_info(encode_service_info(info), BK) == info or info == ServiceInfo(())


def test_fields_have_the_numbers_of_apache() -> None:
    info = ServiceInfo((Endpoint("b", "h", 1, "p", ("a",), ("x",)),), (("k", "v"),))
    assert encode_service_info(info).hex() == "3211" + "0a0162" + "1001" + "1a0168" + "220170" + "2a0161" + "320178" + (
        "3a06" + "0a016b" + "120176"
    )


def test_empty_payload_means_apaches_protocol_at_the_address_in_the_id() -> None:
    assert decode_service_info(b"", BK) == ServiceInfo((Endpoint("bk1:3181", "bk1", 3181, "bookie-rpc"),))


@pytest.mark.parametrize("bookie", ["bk1", "bk1:", ":3181", "bk1:port", "bk1:0", "bk1:65536", "bk1:99999999999"])
def test_empty_payload_of_an_id_without_an_address_is_unreadable(bookie: str) -> None:
    with pytest.raises(UnreadableServiceInfoError, match=bookie):
        decode_service_info(b"", BookieId(bookie))


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x32\x05", b"\x32\x00", b"\x32\x0b\x0a\x01\xff\x10\x01\x1a\x01h\x22\x01p", b"\x3a\x03\x0a\x01\xff"],
)
def test_damaged_info_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableServiceInfoError, match=BK):
        decode_service_info(data, BK)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_unreadable(data: bytes) -> None:
    try:
        decode_service_info(data, BK)
    except UnreadableServiceInfoError:
        return


def test_incarnation_and_endpoints_are_looked_up_by_name() -> None:
    info = ServiceInfo(
        (Endpoint("a", "h", 1, "http"), Endpoint("b", "h", 2, "bookie-grpc")), ((PROPERTY_INCARNATION, "u"),)
    )
    assert info.incarnation == "u"
    assert info.endpoint("bookie-grpc") == info.endpoints[1]
    assert info.endpoint("bookie-rpc") is None
    assert ServiceInfo(()).incarnation == ""
