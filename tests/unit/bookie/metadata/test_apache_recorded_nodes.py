"""Our metadata codecs read every node of a real Apache cluster, and write the same bytes again."""

from __future__ import annotations

import re

import pytest

from bookie.metadata.bookies.cookies import decode_cookie, encode_cookie
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, decode_service_info, encode_service_info
from bookie.metadata.cluster import decode_layout, encode_layout
from bookie.metadata.layout import LayoutKind, ledger_id_of, ledger_path, lock_path, task_ledger_id, task_path
from bookie.metadata.ledgers.serde import decode, encode
from bookie.metadata.runs.check_times import CheckKind, decode_check_time, encode_check_time
from bookie.metadata.runs.election import decode_vote, encode_vote
from bookie.metadata.tasks.format import TASKS_LAYOUT, decode_lock, decode_task, encode_lock, encode_task
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import DigestType, LedgerState
from tests.worlds.recorded_apache import nodes

ROOT = "/ledgers"
KIND = LayoutKind.HIERARCHICAL
TASKS = f"{ROOT}/underreplication"


def matching(pattern: str) -> dict[str, bytes]:
    found = {path: data for path, data in nodes().items() if re.fullmatch(pattern, path)}
    assert found
    return found


def ledgers() -> dict[LedgerId, bytes]:
    return {
        ledger_id: data
        for path, data in nodes().items()
        if path.rpartition("/")[2].startswith("L")
        and not path.endswith("LAYOUT")
        and (ledger_id := ledger_id_of(KIND, ROOT, path)) is not None
    }


@pytest.mark.parametrize("ledger_id", sorted(ledgers()))
def test_a_ledger_is_read_and_written_again_byte_for_byte(ledger_id: LedgerId) -> None:
    data = ledgers()[ledger_id]
    assert encode(decode(data)) == data
    assert nodes()[ledger_path(KIND, ROOT, ledger_id)] == data


def test_the_recording_contains_every_kind_of_ledger() -> None:
    seen = [decode(data) for data in ledgers().values()]
    for number in (1, 2, 3):
        assert {one.state for one in seen if one.format_version == number} == set(LedgerState)
        assert any(len(one.fragments) > 1 and one.format_version == number for one in seen)
    assert {one.digest_type for one in seen} == {None, *DigestType}
    assert any(one.last_entry_id == -1 for one in seen)
    assert {bool(one.custom) for one in seen} == {True, False}
    assert {one.ctime_ms is None for one in seen} == {True, False}
    assert any(one.ctoken for one in seen)
    assert any(ledger_id > 1 << 32 for ledger_id in ledgers())


def test_the_layout_names_the_hierarchical_tree() -> None:
    data = nodes()[f"{ROOT}/LAYOUT"]
    assert decode_layout(data, ROOT) is KIND
    assert encode_layout(KIND) == data


def test_cookies() -> None:
    instance_id = nodes()[f"{ROOT}/INSTANCEID"].decode()
    for path, data in matching(f"{ROOT}/cookies/.+").items():
        cookie = decode_cookie(data)
        assert encode_cookie(cookie) == data
        assert path.endswith(f"/{cookie.bookie_id}")
        assert cookie.instance_id == instance_id


def test_registrations() -> None:
    for path, data in matching(f"{ROOT}/available/[0-9].+").items():
        bookie = BookieId(path.rpartition("/")[2])
        info = decode_service_info(data, bookie)
        assert encode_service_info(info) == data
        endpoint = info.endpoint(PROTOCOL_APACHE)
        assert endpoint is not None
        assert f"{endpoint.host}:{endpoint.port}" == bookie


def test_tasks_and_their_locks() -> None:
    tasks = matching(f"{TASKS}/ledgers/.+/urL[0-9]+")
    for path, data in tasks.items():
        assert encode_task(decode_task(data)) == data
        ledger_id = task_ledger_id(path.rpartition("/")[2])
        assert ledger_id is not None
        assert task_path(ROOT, ledger_id) == path
        assert decode_task(data).ctime_ms > 0
    assert sorted(len(decode_task(data).missing) for data in tasks.values()) == [0, 1, 2]
    for path, data in matching(f"{TASKS}/locks/.+").items():
        ledger_id = task_ledger_id(path.rpartition("/")[2])
        assert ledger_id is not None
        assert lock_path(ROOT, ledger_id) == path
        assert encode_lock(decode_lock(data)) == data
        assert decode_lock(data)


def test_the_tree_of_tasks_and_its_switches() -> None:
    assert nodes()[f"{TASKS}/LAYOUT"] == TASKS_LAYOUT
    assert nodes()[f"{TASKS}/disable"] == b""
    assert nodes()[f"{TASKS}/lostBookieRecoveryDelay"] == b"30"


def test_votes_and_the_elected_auditor() -> None:
    ((_, vote),) = matching(f"{TASKS}/auditorelection/V_[0-9]+").items()
    assert encode_vote(decode_vote(vote)) == vote
    assert nodes()[f"{TASKS}/auditorelection"] == vote


def test_times_of_checks() -> None:
    for number, kind in enumerate(CheckKind):
        data = nodes()[f"{TASKS}/{kind.value}"]
        assert decode_check_time(kind, data) == 1_700_000_000_000 + number
        assert encode_check_time(kind, 1_700_000_000_000 + number) == data
