"""The log of a process while ZooKeeper is down: the first failure, fewer lines later, new reasons, and the return."""

from __future__ import annotations

import itertools
import logging

import pytest

from bookie.metadata.store.outage import INTERVAL_S_MAX, REASONS_MAX, Outage, OutageLog

REFUSED = "socket connection error: Connection refused"


class KazooThread:
    """A stand-in for kazoo's thread."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 1000.0
        self._caplog = caplog
        self._logger = logging.getLogger("kazoo.client")
        caplog.set_level(logging.DEBUG, "kazoo.client")
        self.log = OutageLog(self._logger, "zk1:2181,zk2:2181", lambda: self.now_s)

    def fails(self, reason: object = REFUSED, times: int = 1) -> None:
        for _ in range(times):
            self.log.warning("Connection dropped: %s", reason)
            self.now_s += 2

    @property
    def reported(self) -> list[tuple[str, float]]:
        return [(record.message, getattr(record, "away_s", -1.0)) for record in self._caplog.records]


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> KazooThread:
    return KazooThread(caplog)


def test_a_day_without_zookeeper_is_logged_at_growing_intervals(world: KazooThread) -> None:
    world.fails(times=43_200)
    times = [away_s for _, away_s in world.reported]
    assert times[:6] == [0, 16, 46, 106, 226, 466]
    assert len(times) < 86_400 / INTERVAL_S_MAX + 10
    assert max(late - early for early, late in itertools.pairwise(times)) <= INTERVAL_S_MAX + 2


def test_the_first_failure_and_the_return_are_logged_with_server_reason_and_duration(
    world: KazooThread, caplog: pytest.LogCaptureFixture
) -> None:
    world.fails(times=3)
    world.log.connected()
    first, back = caplog.records
    assert (first.levelname, back.levelname) == ("WARNING", "WARNING")
    assert (first.__dict__["reason"], first.__dict__["hosts"]) == (
        f"Connection dropped: {REFUSED}",
        "zk1:2181,zk2:2181",
    )
    assert (back.message, back.__dict__["away_s"], back.__dict__["attempts"]) == ("ZooKeeper reachable again", 6, 3)


def test_the_next_outage_is_logged_at_once_again(world: KazooThread) -> None:
    for _ in range(2):
        world.fails(times=5)
        world.log.connected()
    assert [message for message, _ in world.reported] == [
        "ZooKeeper unreachable, retrying",
        "ZooKeeper reachable again",
    ] * 2
    world.log.connected()
    assert len(world.reported) == 4, "a connection is not logged if there was no outage"


def test_a_new_reason_is_logged_at_once_and_their_number_is_bounded(world: KazooThread) -> None:
    world.fails()
    world.log.warning("Cannot resolve %s: %s", "zk1", "no such name")
    world.log.warning("Connection time-out: %s", "late")
    world.fails()
    assert len(world.reported) == 3
    outage = Outage()
    assert sum(outage.failed(str(number), 0.0) is not None for number in range(100)) == REASONS_MAX


def test_other_log_records_of_kazoo_pass(world: KazooThread, caplog: pytest.LogCaptureFixture) -> None:
    world.fails()
    world.log.warning("Transition to CONNECTING")
    try:
        raise ValueError
    except ValueError:
        world.log.exception("Unhandled exception in connection loop")
    world.log.warning("Session has expired")
    world.log.warning("AUTH_FAILED closing: %s", "why")
    world.log.info("Zookeeper session closed, state: %s", "CLOSED")
    world.log.log(5, "Read response %s", "secret")
    passed = [(record.levelname, record.message) for record in caplog.records[1:]]
    assert passed == [
        ("ERROR", "Unhandled exception in connection loop"),
        ("WARNING", "Session has expired"),
        ("WARNING", "AUTH_FAILED closing: why"),
        ("INFO", "Zookeeper session closed, state: CLOSED"),
    ]
    assert caplog.records[1].exc_info is not None
