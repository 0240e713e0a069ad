"""Version 2 of Apache's protocol on a bookie in memory, compared byte for byte where vectors exist.

Source: docs/formats.md#version-2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bookie.server.apache.dialect_v2 import DialectV2
from bookie.server.apache.requests import ImmediateAnswer
from bookie.wire.apache import v2
from tests.worlds.apache_listener import KEY, LEDGER, OTHER_KEY, ProtocolWorld, entry

STORED = "00000000000000070000000000000000ffffffffffffffff00000000000000059e3e717b68656c6c6f"
ADD = f"02010000850bf1071c5e3d8c24235676f8816ae0cbe2f14f{STORED}"
ADDED = "020100000000000000000000000000070000000000000000"
READ = "0202000000000000000000070000000000000000"
RECOVERY_READ = "0202000500000000000000070000000000000000850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
FOUND = f"020200000000000000000000000000070000000000000000{STORED}"


@pytest.fixture
async def world() -> AsyncIterator[ProtocolWorld]:
    world = await ProtocolWorld.create()
    yield world
    await world.close()


async def exchange(world: ProtocolWorld, frame: str) -> str:
    return (await world.answered(world.v2.decode(bytes.fromhex(frame)))).hex()


def code(answer: v2.ResponseV2) -> int:
    assert not isinstance(answer, v2.AuthV2)
    return answer.code


async def test_the_documented_frames_are_answered_as_documented(world: ProtocolWorld) -> None:
    assert await exchange(world, READ) == "02020000" + "00000001" + READ[8:]
    assert await exchange(world, ADD) == ADDED
    assert await exchange(world, READ) == FOUND
    assert await exchange(world, RECOVERY_READ) == FOUND
    assert await exchange(world, ADD) == "02010000" + "00000068" + ADDED[16:]


async def test_answers_echo_an_older_version(world: ProtocolWorld) -> None:
    assert await exchange(world, "01" + ADD[2:]) == "01" + ADDED[2:]
    assert await exchange(world, "00000002" + READ[8:]) == "00000002" + FOUND[8:]


async def test_a_newer_version_is_refused(world: ProtocolWorld) -> None:
    assert code(await world.ask_v2(v2.ReadV2(LEDGER, 0, version=3))) == 103
    assert code(await world.ask_v2(v2.AddV2(KEY, entry(0), version=9))) == 103
    assert code(await world.ask_v2(v2.BatchReadV2(LEDGER, 0, 1, 1, 100, version=4))) == 103


async def test_fences_and_keys_are_enforced(world: ProtocolWorld) -> None:
    await world.ask_v2(v2.AddV2(KEY, entry(0)))
    assert code(await world.ask_v2(v2.AddV2(OTHER_KEY, entry(1)))) == 102
    assert code(await world.ask_v2(v2.ReadV2(LEDGER, 0, OTHER_KEY, v2.DO_FENCING))) == 102
    assert code(await world.ask_v2(v2.ReadV2(LEDGER, 0, b"", v2.DO_FENCING, version=1))) == 102
    last = await world.ask_v2(v2.ReadV2(LEDGER, -1, KEY, v2.DO_FENCING))
    assert last == v2.EntryV2(0, LEDGER, -1, entry(0))
    assert code(await world.ask_v2(v2.AddV2(KEY, entry(1)))) == 104
    assert code(await world.ask_v2(v2.AddV2(KEY, entry(1), v2.RECOVERY_ADD | v2.HIGH_PRIORITY))) == 0


async def test_refusals_have_their_codes(world: ProtocolWorld) -> None:
    await world.ask_v2(v2.AddV2(KEY, entry(0)))
    assert code(await world.ask_v2(v2.ReadV2(LEDGER, 1))) == 2
    world.service.is_read_only = True
    assert code(await world.ask_v2(v2.AddV2(KEY, entry(1)))) == 105
    world.service.is_read_only = False
    await world.storage.set_limbo([LEDGER])
    assert code(await world.ask_v2(v2.AddV2(KEY, entry(1)))) == 101  # 104 (fenced) would end the writer
    assert code(await world.ask_v2(v2.ReadV2(LEDGER, 1))) == 101  # a better code exists, but Java clients fail on it
    assert code(await world.ask_v2(v2.BatchReadV2(LEDGER, 1, 1, 0, 1000))) == 101
    world.service.refuse_everything()
    assert code(await world.ask_v2(v2.ReadV2(LEDGER, 0))) == 101


async def test_no_login_is_required(world: ProtocolWorld) -> None:
    assert await world.ask_v2(v2.AuthV2("sasl", b"token")) == v2.AuthV2("AuthDisabledPlugin", b"")


async def batch(world: ProtocolWorld, first: int, count: int, size: int, key: bytes = b"") -> v2.BatchV2:
    flags = v2.DO_FENCING if key else 0
    answer = await world.ask_v2(v2.BatchReadV2(LEDGER, first, 42, count, size, key, flags))
    assert isinstance(answer, v2.BatchV2)
    assert (answer.ledger_id, answer.start_entry_id, answer.request_id) == (LEDGER, first, 42)
    return answer


async def test_a_batch_read_stops_at_a_gap_the_count_or_the_bytes(world: ProtocolWorld) -> None:
    size = len(entry(0))
    for entry_id in (*range(150), 151):
        await world.ask_v2(v2.AddV2(KEY, entry(entry_id)))
    assert [len((await batch(world, 0, count, 1 << 20)).entries) for count in (0, -3, 1, 100, 500)] == [
        150,
        150,
        1,
        100,
        150,
    ]
    three = 36 + 3 * (4 + size)
    assert [len((await batch(world, 0, 0, room)).entries) for room in (three, three - 1, 0, -1)] == [3, 2, 1, 1]
    assert (await batch(world, 149, 0, 1 << 20)).entries == (entry(149),)
    assert (await batch(world, 150, 0, 1 << 20)).code == 2
    assert (await batch(world, (1 << 63) - 1, 5, 1 << 20)).code == 2
    assert (await batch(world, -1, 5, 1 << 20)).code == 100


async def test_a_batch_read_fits_a_frame_whatever_it_requests(world: ProtocolWorld) -> None:
    for entry_id in range(8):
        await world.ask_v2(v2.AddV2(KEY, entry(entry_id, size=1 << 20)))
    answer = await batch(world, 0, 0, 1 << 40)
    assert len(answer.entries) == 4
    assert 4 + len(v2.encode_response(answer)) <= 5_242_880


async def test_a_fencing_batch_read_fences(world: ProtocolWorld) -> None:
    await world.ask_v2(v2.AddV2(KEY, entry(0)))
    assert (await batch(world, 0, 0, 1000, OTHER_KEY)).code == 102
    assert (await batch(world, 0, 0, 1000, KEY)).entries == (entry(0),)
    assert code(await world.ask_v2(v2.AddV2(KEY, entry(1)))) == 104


def test_a_connection_that_requires_tls_refuses_in_every_layout() -> None:
    dialect = DialectV2(may_serve=False)
    for message in (v2.ReadV2(LEDGER, 0), v2.AddV2(KEY, entry(0)), v2.BatchReadV2(LEDGER, 0, 1, 1, 1)):
        refused = dialect.decode(v2.encode_request(message))
        assert isinstance(refused, ImmediateAnswer)
        assert code(v2.decode_response(refused.answer)) == 102
