"""Lookups of host names: a slow one does not delay the others, and there is at most one for each server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bookie.metadata.store import lookup
from bookie.metadata.store.lookup import LATE_ANSWER_AGE_S_MAX, NameLookup
from tests.deadlines import STATE_S

SLOW, FAST, ABSENT = ("slow", 2181), ("fast", 2182), ("absent", 2183)


class Names:
    """A name service and the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_released = threading.Event()
        self.asked: list[str] = []
        self.threads: list[threading.Thread] = []
        self.failures: list[tuple[str, str]] = []
        self.lookup = NameLookup(lambda host, why: self.failures.append((host, str(why))), lambda: self.now_s)

    def answer(self, host: str, port: int, *_: Any) -> list[Any]:
        self.asked.append(host)
        self.threads.append(threading.current_thread())
        if host == "absent":
            raise socket.gaierror(-2, "Name or service not known")
        if host == "slow":
            assert self.is_released.wait(STATE_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"address of {host}", port))]

    def release(self) -> None:
        """Answer the slow lookup, and return after its thread has ended."""
        self.is_released.set()
        for thread in set(self.threads) - {threading.current_thread()}:
            thread.join(STATE_S)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.answer)
    monkeypatch.setattr(lookup, "LOOK_UP_TIMEOUT_S", 0.2)
    yield made
    made.release()


def test_a_slow_lookup_does_not_delay_the_others(names: Names) -> None:
    assert names.lookup.find([SLOW, FAST]) == [("fast", "address of fast", 2182)]
    assert names.failures == [("slow", "no answer within 0.2 s")]
    assert all(thread.daemon for thread in names.threads)


def test_a_slow_lookup_runs_once_and_its_answer_is_used_by_the_next_attempt(names: Names) -> None:
    for _ in range(3):
        assert names.lookup.find([SLOW, FAST]) == [("fast", "address of fast", 2182)]
    assert names.asked.count("slow") == 1
    names.release()
    assert names.lookup.find([SLOW, FAST]) == [("slow", "address of slow", 2181), ("fast", "address of fast", 2182)]
    assert names.asked.count("slow") == 1
    names.lookup.find([SLOW])
    assert names.asked.count("slow") == 2


def test_an_old_late_answer_is_not_used(names: Names) -> None:
    assert names.lookup.find([SLOW]) == []
    names.release()
    names.now_s += LATE_ANSWER_AGE_S_MAX + 1
    assert names.lookup.find([SLOW]) == [("slow", "address of slow", 2181)]
    assert names.asked == ["slow", "slow"]


def test_a_name_without_an_address_is_left_out_with_its_reason(names: Names) -> None:
    assert names.lookup.find([ABSENT, FAST]) == [("fast", "address of fast", 2182)]
    assert names.failures == [("absent", "[Errno -2] Name or service not known")]


def test_names_are_looked_up_if_no_thread_can_be_started(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert names.lookup.find([ABSENT, FAST]) == [("fast", "address of fast", 2182)]
