"""Our command line on Apache's bookies: its output and its effects, checked by Apache's own client."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bookie.embedded.apache import ApacheCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.ids import BookieId, LedgerId
from tests.apache.driver import JavaDriver, JavaError, expected
from tests.apache.programs import bkheal
from tests.apache.worlds import connect
from tests.deadlines import STATE_S

pytestmark = pytest.mark.apache

LINES = [b"one", b"", b"\xff\xfe", b"x" * 3000, b"five"]
UNAVAILABLE_NAME = "nowhere:3181"


async def printed(uri: str, *arguments: str) -> str:
    """Return the output of a command, which must succeed."""
    ended = await bkheal(*arguments, uri=uri)
    assert ended.exit_code == 0, (arguments, ended.errors)
    return ended.printed


async def document(uri: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON output of a command, which must succeed."""
    found: dict[str, Any] = json.loads(await printed(uri, *arguments, "--output", "json"))
    return found


async def test_what_ledger_write_wrote_is_read_by_apache_until_ledger_delete(
    apache_cluster: ApacheCluster, java: JavaDriver, tmp_path: Path
) -> None:
    uri = apache_cluster.metadata_uri
    (tmp_path / "lines").write_bytes(b"\n".join(LINES))
    shape = ("-e", "4", "-w", "3", "-a", "2", "--digest", "HMAC", "--password", "secret", "--custom", "app=shop")
    written = await document(uri, "ledger", "write", str(tmp_path / "lines"), *shape)
    ledger, ledger_id = str(written["ledger_id"]), int(written["ledger_id"])
    for wire in ("v2", "v3"):
        read = await java.read_all(ledger_id, digest="MAC", password=b"secret", client=wire)
        assert read == expected(LINES)
    theirs = await java.call("metadata", ledger=ledger_id)

    shown, text, rows, listed, found = await asyncio.gather(
        document(uri, "ledger", "show", ledger),
        printed(uri, "ledger", "show", ledger),
        printed(uri, "ledger", "read", ledger, "--first", "3", "--format", "json"),
        document(uri, "ledger", "list", "--custom", "app=shop"),
        document(uri, "ledger", "close", ledger),
    )
    assert {key: shown[key] for key in written} == written == found | {"kind": written["kind"]}
    assert [fragment["members"] for fragment in shown["fragments"]] == list(theirs["ensembles"].values())
    assert (shown["state"], shown["last_entry_id"], shown["length"]) == ("CLOSED", 4, sum(map(len, LINES)))
    assert "secret" not in text
    assert [json.loads(row)["payload"] for row in rows.splitlines()] == [LINES[3].decode(), "five"]
    assert ledger_id in [row["ledger_id"] for row in listed["items"]]

    assert ledger in await printed(uri, "ledger", "delete", ledger, "--yes")
    with pytest.raises(JavaError) as refused:
        await java.read_all(ledger_id, digest="MAC", password=b"secret")
    assert "NoSuchLedger" in refused.value.kind
    again = await bkheal("ledger", "delete", ledger, "--yes", uri=uri)
    assert (again.exit_code, again.errors.count("\n")) == (1, 1)


async def test_ledger_tail_follows_apaches_writer_and_ledger_recover_closes_the_ledger_of_a_dead_one(
    apache_cluster: ApacheCluster, java: JavaDriver, tmp_path: Path
) -> None:
    uri = apache_cluster.metadata_uri
    followed = await java.create(3, 3, 2)
    for _ in range(2):  # the first entry is known to be confirmed from the second
        await followed.write(1)
    words = ("ledger", "tail", str(followed.ledger_id), "--first", "0", "--format", "json", "--metadata-uri", uri)
    command = [sys.executable, "-m", "auditor.cli.main", *words]
    tail = ManagedProcess.start("tail", command, log_path=tmp_path / "tail.txt")

    await java.new_client("dies")
    left = await java.create(3, 3, 2, client="dies")
    state = await left.write(7, seed="left", sizes=(100,))
    await java.drop_client("dies")
    recovered = await document(uri, "ledger", "recover", str(left.ledger_id))
    assert (recovered["state"], recovered["last_entry_id"]) == ("CLOSED", state.last_add_confirmed)
    handle = await java.open(left.ledger_id)
    assert (await handle.state()).is_closed
    assert len(await handle.read(0, 6)) == 7

    await tail.wait_for_line(r'"entry_id": 0\b', STATE_S)
    await followed.write(3)
    await followed.close()
    assert await tail.wait(STATE_S) == 0
    rows = [json.loads(line) for line in tail.log_path.read_text().splitlines() if line.startswith("{")]
    assert [row["entry_id"] for row in rows] == list(range(5))


async def test_a_log_is_created_appended_to_and_read(
    apache_cluster: ApacheCluster, java: JavaDriver, tmp_path: Path
) -> None:
    uri = apache_cluster.metadata_uri
    for name, lines in (("first", b"a\nb\n"), ("second", b"c\n")):
        (tmp_path / name).write_bytes(lines)
    await printed(uri, "log", "create", "orders", "-e", "3", "-w", "3", "-a", "2")
    first = await document(uri, "log", "append", "orders", str(tmp_path / "first"))
    second = await document(uri, "log", "append", "orders", str(tmp_path / "second"))
    assert (first["entries"], second["entries"]) == (2, 1)
    assert await printed(uri, "log", "read", "orders") == "a\nb\nc\n"
    shown = await document(uri, "log", "show", "orders")
    ledgers = [int(ledger["ledger_id"]) for ledger in shown["ledgers"]]
    by_apache = [entry for ledger_id in ledgers for entry in await java.read_all(ledger_id)]
    assert [entry.sha256 for entry in by_apache] == [entry.sha256 for entry in expected([b"a", b"b", b"c"])]
    await printed(uri, "log", "delete", "orders", "--yes")
    left = (await java.call("ledgers"))["ledgers"]
    assert not set(ledgers) & set(left)


async def test_commands_list_and_test_the_cluster_and_check_whether_a_bookie_may_be_stopped(
    apache_cluster: ApacheCluster, java: JavaDriver
) -> None:
    uri = apache_cluster.metadata_uri
    before = set((await java.call("ledgers"))["ledgers"])
    single = await java.create(1, 1, 1)
    await single.write(1, seed="single", sizes=(10,))
    await single.close()
    holder = (await java.call("metadata", ledger=single.ledger_id))["ensembles"]["0"][0]
    listed, proved, refused, unknown = await asyncio.gather(
        document(uri, "bookies"),
        document(uri, "simpletest", "-e", "5", "-w", "3", "-a", "2", "-n", "50"),
        bkheal("ok-to-stop", holder, "--worst", "1000", "--output", "json", uri=uri),
        bkheal("ok-to-stop", UNAVAILABLE_NAME, uri=uri),
    )
    states = {row["bookie_id"]: (row["state"], row["detail"]) for row in listed["items"]}
    assert states == {bookie.bookie_id: ("writable", None) for bookie in apache_cluster.bookies}
    assert all(row["disk_total_bytes"] >= row["disk_free_bytes"] > 0 for row in listed["items"])
    assert (proved["entries"], proved["is_deleted"]) == (50, True)
    assert refused.exit_code == 1
    assert single.ledger_id in [risk["ledger_id"] for risk in refused.document["worst"]]
    assert (unknown.exit_code, UNAVAILABLE_NAME in unknown.errors) == (1, True)
    assert set((await java.call("ledgers"))["ledgers"]) - before == {single.ledger_id}


async def test_apaches_marks_are_listed_and_parked_tasks_can_be_retried(
    apache_cluster: ApacheCluster, java: JavaDriver
) -> None:
    uri = apache_cluster.metadata_uri
    ledger_id, missing = 1 << 41, BookieId("bk-9.example:3181")
    await java.call("mark", ledger=ledger_id, missing=[missing])
    async with await connect(uri) as client:
        task = await client.ports.tasks.read(LedgerId(ledger_id))
        assert task is not None
        parked = ParkedTask(
            ledger_id=LedgerId(ledger_id),
            reason=ParkReason.NO_LIVE_COPY,
            detail="no copy",
            since_ms=1,
            bookies_seen=frozenset(),
            task_version=task.version,
        )
        await client.parked.park(parked)
        marked, dead, shown = await asyncio.gather(
            document(uri, "underreplicated", "list"),
            document(uri, "dead-letters", "list", "--reason", "no_live_copy"),
            document(uri, "dead-letters", "show", str(ledger_id)),
        )
        (row,) = [row for row in marked["items"] if row["ledger_id"] == ledger_id]
        assert row["missing"] == [missing]
        (row,) = [row for row in dead["items"] if row["ledger_id"] == ledger_id]
        assert {key: shown[key] for key in ("reason", "missing", "detail")} == {
            "reason": "no_live_copy",
            "missing": [missing],
            "detail": "no copy",
        }
        assert row["advice"] == shown["advice"]
        await printed(uri, "dead-letters", "retry", str(ledger_id), "--yes")
        assert ledger_id not in [record.ledger_id for record in await client.parked.list()]
        held = await client.ports.tasks.locks.lock(LedgerId(ledger_id), "here")
        assert held is not None
        assert await client.ports.tasks.locks.complete(held)
    assert ledger_id not in [row["ledger_id"] for row in (await document(uri, "underreplicated", "list"))["items"]]
