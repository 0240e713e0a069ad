"""Requests as values: each list of kinds of requests is complete."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.server.metrics import OPERATION_OF
from bookie.wire import requests
from bookie.wire.port import EntryResult, InfoReply, ReadReply, Reply, Request, Status
from bookie.wire.requests import AnyRequest, Fence, Info, Read, WriteLac, with_results
from tests.worlds.requests import one_of_each

KINDS = {kind for kind in vars(requests).values() if isinstance(kind, type) and issubclass(kind, Request)} - {Request}
EACH = one_of_each(LedgerId(1), b"top secret", b"top secret")
RESULT = EntryResult(EntryId(0), Status.OK, b"entry")


def test_every_kind_of_request_is_covered() -> None:
    assert set(get_args(AnyRequest)) == set(OPERATION_OF) == {type(request) for request in EACH} == KINDS


@pytest.mark.parametrize("request_", EACH, ids=repr)
def test_a_failed_reply_has_the_type_for_its_request(request_: Request[Reply]) -> None:
    [promised] = get_args(type(request_).__orig_bases__[0])  # type: ignore[attr-defined]
    reply = request_.failed(Status.TIMEOUT, detail="late")
    assert type(reply) is promised
    assert (reply.status, reply.detail) == (Status.TIMEOUT, "late")


@pytest.mark.parametrize("request_", EACH, ids=repr)
def test_requests_cannot_change_and_show_no_secret(request_: Request[Reply]) -> None:
    assert "secret" not in repr(request_)
    assert not hasattr(request_, "__dict__")
    for field in dataclasses.fields(request_):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(request_, field.name, None)


def test_equal_requests_are_equal() -> None:
    assert Fence(LedgerId(1), b"k") == Fence(LedgerId(1), b"k") != Fence(LedgerId(1), b"l")
    assert WriteLac(LedgerId(1), b"k", b"lac") != WriteLac(LedgerId(2), b"k", b"lac")


def test_a_failed_read_keeps_the_results_before_the_failure() -> None:
    failed = Read(LedgerId(1), [EntryId(0), EntryId(1)]).failed(Status.TIMEOUT, detail="late")
    assert with_results(failed, [RESULT]) == ReadReply(Status.TIMEOUT, (RESULT,), "late")
    whole = ReadReply(Status.OK, (RESULT, RESULT))
    assert with_results(whole, [RESULT]) is whole
    other = Info().failed(Status.TIMEOUT, detail="late")
    assert with_results(other, []) == InfoReply(Status.TIMEOUT, detail="late")
