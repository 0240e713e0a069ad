"""``bkheal ledger``, ``log`` and ``simpletest`` as typed by a user, on one cluster of three bookies."""

from __future__ import annotations

import array
import asyncio
import dataclasses
import fcntl
import json
import os
import shlex
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookie.client import sync
from bookie.client.access import ledger_access
from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.metadata.logs.log_store import NoSuchLogError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Read
from tests.deadlines import PROGRAM_S
from tests.integration import commands
from tests.integration.commands import command, environment, started
from tests.integration.commands import typed as bkheal

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(shared_cluster: EmbeddedCluster) -> EmbeddedCluster:
    return shared_cluster


@pytest.fixture
def uri(shared_cluster: EmbeddedCluster) -> str:
    return shared_cluster.metadata_uri


def output(uri: str, *arguments: str, stdin: bytes = b"") -> str:
    return commands.output(bkheal(uri, *arguments, stdin=stdin))


def document(uri: str, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    return commands.document(bkheal(uri, *arguments, "--output", "json", stdin=stdin))


def process(uri: str, *arguments: str, stdin: bytes = b"") -> str:
    """Return the output of a process. Each command runs once as a process; the other runs are in this process."""
    return commands.output(started(uri, *arguments, stdin=stdin))


def left_open(uri: str, count: int) -> LedgerId:
    """Create a ledger without a writer."""

    async def write() -> LedgerId:
        async with await connect(uri) as client:
            ledger = await client.create_ledger(custom={"app": b"crashed"})
            for number in range(count):
                await ledger.append(b"entry %d" % number)
            await ledger.abandon()
            return ledger.ledger_id

    return asyncio.run(write())


def test_entries_are_read_from_a_file_and_printed_in_every_format(uri: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\n\xff\xfe\nthree")
    written = document(uri, "ledger", "write", str(tmp_path / "lines"), "-e", "3", "-w", "3", "-a", "2")
    ledger = str(written["ledger_id"])
    assert written["last_entry_id"] == 2
    raw = bkheal(uri, "ledger", "read", ledger, "--format", "raw")
    assert raw.stdout == b"one\xff\xfethree"
    rows = [json.loads(line) for line in output(uri, "ledger", "read", ledger, "--format", "json").splitlines()]
    assert [row["entry_id"] for row in rows] == [0, 1, 2]
    assert rows[0]["payload"] == "one"
    assert rows[1] == {"ledger_id": written["ledger_id"], "entry_id": 1, "length": 2, "payload_base64": "//4="}
    assert "6f 6e 65" in output(uri, "ledger", "read", ledger, "--format", "hex", "--last", "0")


def test_a_ledger_whose_writer_has_died_is_recovered(uri: str) -> None:
    ledger = str(left_open(uri, 5))
    assert document(uri, "ledger", "show", ledger)["state"] == "OPEN"
    assert "5 entries" in process(uri, "ledger", "recover", ledger)
    assert document(uri, "ledger", "recover", ledger)["last_entry_id"] == 4
    assert json.loads(process(uri, "ledger", "close", ledger, "-o", "json"))["state"] == "CLOSED"
    assert output(uri, "ledger", "read", ledger) == "".join(f"entry {number}\n" for number in range(5))
    missing = bkheal(uri, "ledger", "recover", "999999")
    assert missing.returncode == 1
    assert b"999999" in missing.stderr


def test_a_wrong_password_is_reported_in_one_line(uri: str) -> None:
    written = document(uri, "ledger", "write", "--password", "right", stdin=b"x\n")
    ledger = str(written["ledger_id"])
    for verb in ("read", "recover"):
        result = bkheal(uri, "ledger", verb, ledger, "--password", "wrong")
        assert result.returncode == 1
        assert b"wrong password" in result.stderr
        assert b"Traceback" not in result.stderr
    assert output(uri, "ledger", "read", ledger, "--password", "right") == "x\n"


def test_a_password_may_contain_any_bytes(uri: str) -> None:
    password = b"\xff\xfe\x80key"

    async def write() -> LedgerId:
        async with await connect(uri) as client, client.create_ledger(password=password) as ledger:
            await ledger.append(b"x")
            return ledger.ledger_id

    typed = ("--password", os.fsdecode(password))
    ledger = str(asyncio.run(write()))
    assert output(uri, "ledger", "read", ledger, *typed) == "x\n"
    assert output(uri, "ledger", "tail", ledger, "--first", "0", *typed) == "x\n"
    assert document(uri, "ledger", "recover", ledger, *typed)["state"] == "CLOSED"
    written = str(document(uri, "ledger", "write", *typed, stdin=b"y\n")["ledger_id"])
    assert process(uri, "ledger", "read", written, *typed) == "y\n"
    output(uri, "log", "append", "secret", "--create", *typed, stdin=b"z\n")
    assert output(uri, "log", "read", "secret", *typed) == "z\n"
    assert output(uri, "log", "tail", "secret", "--from", "start", "--limit", "1", *typed) == "z\n"


def test_ledgers_are_filtered(uri: str, cluster: EmbeddedCluster) -> None:
    written = document(uri, "ledger", "write", "--custom", "app=filter", "--custom", "run=1", stdin=b"x\n")
    ledger = written["ledger_id"]
    crashed = int(left_open(uri, 1))

    def ids(*conditions: str) -> list[int]:
        return [row["ledger_id"] for row in document(uri, "ledger", "list", *conditions)["items"]]

    assert ids("--custom", "app=filter") == [ledger]
    assert ids("--custom", "app=filter", "--custom", "run") == [ledger]
    assert ids("--custom", "app=filter", "--custom", "run=2") == []
    assert crashed in ids("--state", "open")
    assert ledger not in ids("--state", "open")
    assert ids("--custom", "app=filter", "--created-after", "1h") == [ledger]
    assert ids("--custom", "app=filter", "--created-before", "1h") == []
    assert ids("--created-after", "2099-01-01") == []
    assert len(ids("--limit", "1")) == 1
    assert ledger in ids("--prefix", str(ledger)[:1])
    on = [row for bookie in cluster.bookies for row in ids("--custom", "app=filter", "--bookie", bookie.bookie_id)]
    assert set(on) == {ledger}
    for wrong in (("--state", "half"), ("--created-after", "soon")):
        assert bkheal(uri, "ledger", "list", *wrong).returncode == 2
    assert bkheal(uri, "ledger", "list", "--bookie", "misspelt:3181").returncode == 1
    empty = ("--custom", "app=nothing", "--bookie", cluster.bookies[0].bookie_id)
    assert bkheal(uri, "ledger", "list", *empty).returncode == 0


def test_a_tail_follows_a_ledger_until_it_is_closed(uri: str) -> None:
    with sync.connect(uri) as client:
        writer = client.create_ledger()
        writer.append(b"first")
        arguments = command("ledger", "tail", str(writer.ledger_id), "--first", "0")
        with subprocess.Popen(arguments, env=environment(uri), stdout=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            writer.append(b"second")
            assert tail.stdout.readline() == b"first\n"
            writer.close()
            assert tail.stdout.read() == b"second\n"
            assert tail.wait(PROGRAM_S) == 0


def test_deleting_asks_for_confirmation(uri: str) -> None:
    ledger = str(document(uri, "ledger", "write", "-n", "1")["ledger_id"])
    assert bkheal(uri, "ledger", "delete", ledger, stdin=b"n\n").returncode == 1
    assert document(uri, "ledger", "show", ledger)["state"] == "CLOSED"
    assert bkheal(uri, "ledger", "delete", ledger, stdin=b"y\n").returncode == 0
    assert bkheal(uri, "ledger", "show", ledger).returncode == 1
    assert ("ledger delete", f"ledger {ledger}") in recorded(uri)


def spoil(uri: str, ledger: int, entry_id: int) -> str:
    """Store an entry with a flipped bit on one of its bookies, and return the bookie."""

    async def store() -> str:
        async with await connect(uri) as client:
            found = await client.ports.ledgers.read(LedgerId(ledger))
            bookie = found.metadata.last_fragment.members[1]
            read = await client.ports.transport.ask(bookie, Read(found.ledger_id, [EntryId(entry_id)]), PROGRAM_S)
            packet = bytearray(read.results[0].packet)
            packet[-1] ^= 1
            batch = AddBatch(found.ledger_id, ledger_access(found, None).key, [bytes(packet)], is_recovery=True)
            assert (await client.ports.transport.add(bookie, batch, PROGRAM_S)).status is Status.OK
            return bookie

    return asyncio.run(store())


def end_task(uri: str, ledger: int) -> tuple[str, ...]:
    """Remove the task of a ledger, and return the bookies that it named."""

    async def end() -> tuple[str, ...]:
        async with await connect(uri) as client:
            held = await client.ports.tasks.locks.lock(LedgerId(ledger), "test")
            assert held is not None
            await client.ports.tasks.locks.complete(held)
            return held.task.missing

    return asyncio.run(end())


def test_bad_copies_are_found_by_verify_and_marked_on_request(uri: str) -> None:
    shape = ("-e", "3", "-w", "3", "-a", "2")
    ledger = document(uri, "ledger", "write", "-n", "5", *shape)["ledger_id"]
    good = document(uri, "ledger", "write", "-n", "5", *shape)["ledger_id"]
    (row,) = document(uri, "ledger", "verify", str(good))["ledgers"]
    assert (row["verdict"], row["entries"], [each["good"] for each in row["bookies"]]) == ("good", 5, [5, 5, 5])
    assert "every copy is good" in process(uri, "ledger", "verify", str(good))

    bookie = spoil(uri, ledger, 3)
    both = str(ledger), str(good), str(ledger)
    ended = bkheal(uri, "ledger", "verify", *both, "--bytes-per-second", "100MiB", "--output", "json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["kind"], found["marking"]) == (1, "LedgerVerification", False)
    assert {row["ledger_id"]: row["verdict"] for row in found["ledgers"]} == {ledger: "bad", good: "good"}
    assert found["ledgers"][0]["mark"] == {"outcome": "would_mark", "bookies": [bookie], "held_back": []}
    assert ("ledger verify", f"ledger {ledger}: {bookie}") not in recorded(uri)

    ended = bkheal(uri, "ledger", "verify", str(ledger), "--mark")
    lines = ended.stdout.decode().splitlines()
    assert (ended.returncode, lines[1].split()) == (
        1,
        ["BOOKIE", "STATE", "ENTRIES", "GOOD", "DAMAGED", "ABSENT", "UNKNOWN"],
    )
    assert [bookie, "writable", "5", "4", "1", "0", "0"] in [line.split() for line in lines]
    assert f"  {bookie}: damaged: 3" in lines
    assert f"  marked for repair of {bookie}: see `bkheal underreplicated list`" in lines
    assert ("ledger verify", f"ledger {ledger}: {bookie}") in recorded(uri)
    assert end_task(uri, ledger) == (bookie,)


def test_verify_refuses_invalid_requests_before_anything_is_read(uri: str) -> None:
    ledger = str(document(uri, "ledger", "write", "-n", "1")["ledger_id"])
    missing = bkheal(uri, "ledger", "verify", ledger, "999999")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert b"ledger 999999 does not exist" in missing.stderr
    assert bkheal(uri, "ledger", "verify", ledger, "--bytes-per-second", "fast").returncode == 2
    output(uri, "recovery", "disable")
    try:
        refused = bkheal(uri, "ledger", "verify", ledger, "--mark")
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert b"auto-recovery is disabled" in refused.stderr
        assert "every copy is good" in output(uri, "ledger", "verify", ledger)
    finally:
        output(uri, "recovery", "enable")


def recorded(uri: str) -> list[tuple[str, str]]:
    """Return the action and the detail of each recorded change."""
    return [(row["action"], row["detail"]) for row in document(uri, "changes")["items"]]


def test_a_log_is_created_used_and_deleted(uri: str) -> None:
    assert bkheal(uri, "log", "append", "shop/orders", stdin=b"x\n").returncode == 1  # the log does not exist yet
    process(uri, "log", "create", "shop/orders", "-e", "3", "-w", "3", "-a", "2", "--ledger-bytes", "40")
    again = bkheal(uri, "log", "create", "shop/orders")
    assert (again.returncode, b"already" in again.stderr) == (1, True)
    lines = [f"order {number:02}" for number in range(20)]
    appended = document(uri, "log", "append", "shop/orders", stdin="\n".join(lines).encode())
    assert appended["entries"] == 20
    assert "3 entries appended" in process(uri, "log", "append", "shop/orders", "-n", "3", "--size", "4")
    assert process(uri, "log", "read", "shop/orders", "--limit", "20").splitlines() == lines
    rows = [json.loads(line) for line in output(uri, "log", "read", "shop/orders", "-f", "json").splitlines()]
    assert rows[0]["position"] == appended["first"]
    assert rows[19]["position"] == appended["last"]
    from_there = output(uri, "log", "read", "shop/orders", "--from", rows[15]["position"], "--limit", "2")
    assert from_there.splitlines() == lines[15:17]

    shown = document(uri, "log", "show", "shop/orders")
    assert (shown["closed_entries"], shown["is_open"], shown["options"]["write_quorum"]) == (23, False, 3)
    assert "shop/orders" in log_names(uri)
    assert "shop/orders" in process(uri, "log", "list")
    assert "CLOSED" in process(uri, "log", "show", "shop/orders")

    cut = ("log", "truncate", "shop/orders", "--before", rows[10]["position"], "-y")
    assert "2 ledgers dropped" in process(uri, *cut)
    truncated = bkheal(uri, "log", "read", "shop/orders", "--from", rows[0]["position"])
    assert truncated.returncode == 1
    assert b"truncated" in truncated.stderr
    assert document(uri, "log", "show", "shop/orders")["first"].encode() in truncated.stderr
    assert bkheal(uri, "log", "read", "shop/orders", "--from", "nonsense").returncode == 2

    ledgers = [row["ledger_id"] for row in document(uri, "log", "show", "shop/orders")["ledgers"]]
    process(uri, "log", "delete", "shop/orders", "--yes")
    assert "shop/orders" not in log_names(uri)
    with sync.connect(uri) as client:
        assert set(ledgers) & set(client.ledgers()) == set()
    assert bkheal(uri, "log", "show", "shop/orders").returncode == 1
    kept = [action for action, detail in recorded(uri) if detail.startswith("log shop/orders")]
    assert kept == ["log delete", "log truncate", "log create"], "a refused change must not be recorded"


def log_names(uri: str) -> list[str]:
    return [row["log"] for row in document(uri, "log", "list")["items"]]


def test_a_tail_follows_a_log_across_ledgers_and_writers(uri: str) -> None:
    with sync.connect(uri) as client:
        log = client.log("tailed")
        log.create()
        arguments = command("log", "tail", "tailed", "--from", "start", "--limit", "4")
        with subprocess.Popen(arguments, env=environment(uri), stdout=subprocess.PIPE) as tail:
            with log.write() as writer:
                writer.append_all([b"a", b"b"])
                writer.roll()
                writer.append(b"c")
            with log.write() as writer:
                writer.append(b"d")
            assert tail.communicate(timeout=PROGRAM_S)[0] == b"a\nb\nc\nd\n"
            assert tail.returncode == 0
        log.delete()


def test_simpletest_checks_the_cluster_and_cleans_up(uri: str) -> None:
    with sync.connect(uri) as client:
        before = client.ledgers()
        row = document(uri, "simpletest", "-e", "3", "-w", "2", "-a", "2", "-n", "500", "--size", "200")
        assert (row["entries"], row["is_deleted"]) == (500, True)
        assert row["written_entries_per_second"] > 0
        assert "500 entries read" in process(uri, "simpletest", "-n", "500")
        assert client.ledgers() == before
    too_many = bkheal(uri, "simpletest", "-e", "9")
    assert too_many.returncode == 69
    assert b"9 bookies" in too_many.stderr
    assert bkheal(uri, "simpletest", "-e", "1").returncode == 2


def test_the_synchronous_client_has_every_operation(uri: str) -> None:
    with sync.connect(uri) as client:
        with client.create_ledger(custom={"app": b"sync"}) as ledger:
            assert ledger.append_all(b"%d" % number for number in range(700)) == list(range(700))
        reader = client.open_ledger(ledger.ledger_id)
        assert [entry.payload for entry in reader.read_range(reader.last_entry_id(), reader.last_entry_id())] == [
            b"699"
        ]
        for entry in reader.read_all():
            if entry.entry_id == 3:  # leaving the loop stops the reads ahead
                break
        assert [entry.entry_id for entry in reader.tail()] == list(range(700))
        assert client.ledgers(custom={"app": b"sync"}) == [ledger.ledger_id]
        assert [item.ledger_id for item in client.scan_ledgers(limit=1)] == client.ledgers(limit=1)
        crashed = left_open(uri, 2)
        assert client.recover_ledger(crashed).state is LedgerState.CLOSED
        assert client.open_ledger(left_open(uri, 2), recover=True).last_entry_id() == 1
        client.delete_ledger(crashed)
        assert crashed not in client.ledgers()


def interrupted_at_input(uri: str, *arguments: str, until: Callable[[], bool]) -> tuple[int, bytes]:
    """Interrupt a command that waits for a second line. Return its exit code and standard error."""
    reading, writing = os.pipe()
    running = subprocess.Popen(
        command(*arguments), env=environment(uri), stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        os.write(writing, b"one\n")
        deadline_s = time.monotonic() + PROGRAM_S
        while not (is_drained(reading) and until()):
            assert time.monotonic() < deadline_s, "the command did not read the line"
            time.sleep(0.05)  # between two attempts
        running.send_signal(signal.SIGINT)
        reported = running.communicate(timeout=PROGRAM_S)[1]
        return running.returncode, reported
    finally:
        running.kill()
        running.wait()
        os.close(writing)
        os.close(reading)


def is_drained(pipe: int) -> bool:
    """Return whether a pipe has no unread data."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] == 0


def test_ctrl_c_ends_a_command_that_waits_for_input(uri: str) -> None:
    before = ledger_ids(uri)
    code, reported = interrupted_at_input(uri, "ledger", "write", until=lambda: new_lines(uri, before) == "one\n")
    assert code == 130
    assert b"bkheal ledger show" in reported
    assert b"Traceback" not in reported
    code, _ = interrupted_at_input(
        uri, "log", "append", "interrupted", "--create", until=lambda: log_lines(uri) == "one\n"
    )
    assert code == 130
    output(uri, "log", "delete", "interrupted", "--yes")


def ledger_ids(uri: str) -> list[int]:
    with sync.connect(uri) as client:
        return list(client.ledgers())


def new_lines(uri: str, before: list[int]) -> str:
    """Return the readable entries of the new ledgers."""
    with sync.connect(uri) as client:
        readers = [client.open_ledger(one) for one in client.ledgers() if one not in before]
        return "".join(f"{entry.payload.decode()}\n" for reader in readers for entry in reader.read_all())


def log_lines(uri: str) -> str:
    with sync.connect(uri) as client:
        try:
            return "".join(f"{entry.payload.decode()}\n" for entry in client.log("interrupted").read())
        except NoSuchLogError:
            return ""


def test_lines_are_read_from_pipes_of_every_kind(uri: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        command("ledger", "write", str(tmp_path / "pipe"), "-o", "json"), env=environment(uri), stdout=subprocess.PIPE
    ) as running:
        (tmp_path / "pipe").write_bytes(b"one\n\ntwo")
        assert json.loads(running.communicate(timeout=PROGRAM_S)[0])["last_entry_id"] == 2
    assert bkheal(uri, "ledger", "write", str(tmp_path)).returncode == 2
    assert bkheal(uri, "ledger", "write", str(tmp_path / "pipe"), "-n", "2").returncode == 2


def test_a_line_too_long_for_an_entry_is_named(uri: str) -> None:
    result = bkheal(uri, "ledger", "write", stdin=b"one\n" + b"x" * ((1 << 20) + 1))
    assert result.returncode == 1
    assert b"error: line 2 is longer" in result.stderr
    assert document(uri, "ledger", "write", stdin=b"x" * (1 << 20))["length"] == 1 << 20


def test_a_read_beyond_the_end_reports_where_the_end_is(uri: str) -> None:
    ledger = str(document(uri, "ledger", "write", stdin=b"a\nb\n")["ledger_id"])
    for bounds in (("--first", "3"), ("--last", "2")):
        result = bkheal(uri, "ledger", "read", ledger, *bounds)
        assert (result.returncode, b"ends with entry 1" in result.stderr) == (1, True)
    assert output(uri, "ledger", "read", ledger, "--first", "2") == ""  # a reader that has all entries starts here
    assert bkheal(uri, "ledger", "read", ledger, "--first", "1", "--last", "0").returncode == 2
    tail = bkheal(uri, "ledger", "tail", ledger)
    assert (tail.returncode, tail.stdout, b"closed with 2 entries" in tail.stderr) == (0, b"", True)
    crashed = bkheal(uri, "ledger", "read", str(left_open(uri, 2)))
    assert (crashed.returncode, b"not closed" in crashed.stderr) == (0, True)


def test_an_append_replaced_by_another_writer_fails_with_that_reason(uri: str) -> None:
    arguments = command("log", "append", "contended", "--create")
    with subprocess.Popen(arguments, env=environment(uri), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        assert first.stdin is not None
        first.stdin.write(b"one\n")
        first.stdin.flush()
        while b"one\n" not in bkheal(uri, "log", "read", "contended").stdout:
            assert first.poll() is None
        output(uri, "log", "append", "contended", stdin=b"two\n")
        reported = first.communicate(b"three\n", timeout=PROGRAM_S)[1]
        assert first.returncode == 1
        assert b"another writer has taken" in reported
    assert output(uri, "log", "read", "contended") == "one\ntwo\n"
    output(uri, "log", "delete", "contended", "--yes")


def test_invalid_arguments_are_reported_in_one_line(uri: str) -> None:
    for arguments in (
        ("ledger", "list", "--created-after", "9999999999d"),
        ("ledger", "list", "--prefix", "x"),
        ("simpletest", "-e", "1"),
    ):
        result = bkheal(uri, *arguments)
        assert result.returncode == 2
        assert b"Traceback" not in result.stderr
    missing = bkheal(uri, "log", "append", "nowhere", stdin=b"x\n")
    assert (missing.returncode, b"--create" in missing.stderr) == (1, True)
    output(uri, "log", "create", "tab\tline\n")
    assert "tab\\tline\\n" in output(uri, "log", "list")
    output(uri, "log", "delete", "tab\tline\n", "--yes")


def test_closed_streams_cause_no_traceback(uri: str) -> None:
    for redirection in (">&-", "<&-", "2>&-"):
        line = f"{shlex.join(command('ledger', 'write', '-n', '1'))} {redirection}"
        result = subprocess.run(
            ["sh", "-c", line], env=environment(uri), capture_output=True, timeout=PROGRAM_S, check=False
        )
        assert (result.returncode, result.stderr) == (0, b"")


def test_a_ledger_is_printed_readably(uri: str) -> None:
    written = document(uri, "ledger", "write", "--custom", "app=shown", "--custom", "run=1", stdin=b"x\n")
    shown = output(uri, "ledger", "show", str(written["ledger_id"]))
    assert "custom metadata: app=shown, run=1\n" in shown
    assert "created: 20" in shown


def test_a_ledger_without_a_creation_time_is_printed_readably(cluster: EmbeddedCluster, uri: str) -> None:
    """Apache's client creates such a ledger, unless it is configured to store the time."""
    ledger = document(uri, "ledger", "write", stdin=b"x\n")["ledger_id"]

    async def forget_moment() -> None:
        async with await connect(uri) as client:
            found = await client.ports.ledgers.read(LedgerId(ledger))
            await client.ports.ledgers.write(
                LedgerId(ledger), dataclasses.replace(found.metadata, ctime_ms=None), found.version
            )

    asyncio.run(forget_moment())
    assert "created: -\n" in output(uri, "ledger", "show", str(ledger))


def test_a_closed_client_raises_closed(uri: str) -> None:
    with sync.connect(uri) as client:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        client.ledgers()
