"""The commands for the directories of a stopped bookie, on the real engine."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.main import app
from bookie.metadata.bookies.cookies import Cookie, encode_cookie
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, VERSION_FILE
from bookie.server.joining.formatting import FormatRefusedError
from bookie.storage.disks.directory_lock import DirectoryInUseError, lock_directory
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE, log_path
from bookie.wire.port import Status
from tests.contract.test_rebuilt_index import lose_index, store_in
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, L3, add, collect
from tests.worlds.entries import raw_entry

RECORD = RECORD_HEADER_SIZE + len(raw_entry(1, 0))


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A bookie with entries in entry logs, one ledger in limbo, one deleted, and one only in the journal."""
    async with store_in(tmp_path) as store:
        await add(store, L1, *range(10), *range(20, 25))
        await add(store, L2, 0)
        await store.checkpoint()
        await collect(store, L2)
        await store.set_limbo([L3])
        await store.checkpoint()
        await add(store, LedgerId(4), 7)
        assert (await store.fence(LedgerId(4), KEY)).status is Status.OK
        await store.abort()
    for name in ("journal", "ledgers"):
        cookie = Cookie(BookieId("bk1:3181"), ("/j",), ("/l",))
        (tmp_path / name / CURRENT / VERSION_FILE).write_bytes(encode_cookie(cookie))
        (tmp_path / name / CURRENT / INCARNATION_FILE).write_text("uuid")
    return tmp_path


def call(home: Path, *words: str) -> Result:
    places = ["--journal-dir", str(home / "journal"), "--ledger-dir", str(home / "ledgers")]
    return CliRunner().invoke(app, ["bookie", *words, *places])


def document(home: Path, *words: str, exit_code: ExitCode = ExitCode.OK) -> dict[str, Any]:
    result = call(home, *words, "-o", "json")
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def files(home: Path) -> dict[str, bytes]:
    """Return all files except those of the index, whose database creates new ones at each opening."""
    found = [path for path in home.rglob("*") if path.is_file() and "index" not in path.parts]
    return {str(path): path.read_bytes() for path in found if not path.name.startswith(".")}


def test_the_status_shows_the_bookie_and_its_contents(home: Path) -> None:
    before = files(home)
    found = document(home, "status")
    assert (found["bookie_id"], found["incarnation"], found["limbo_pending"]) == ("bk1:3181", "uuid", False)
    assert (found["ledgers"], found["entry_logs"]) == (4, 1)
    assert found["journal_records"] >= 3
    assert 0 < found["dead_bytes"] < found["entry_log_bytes"]
    assert "bk1:3181" in call(home, "status").stdout
    assert files(home) == before


def test_lists_of_ledgers_include_those_that_are_only_in_the_journal(home: Path) -> None:
    rows = document(home, "ledgers")["items"]
    assert [(row["ledger_id"], row["entries"], row["last_entry_id"]) for row in rows] == [
        (1, 15, 24),
        (3, 0, None),
        (4, 1, 7),
    ]
    assert [(row["fenced"], row["limbo"]) for row in rows] == [(False, False), (True, True), (True, False)]
    page = document(home, "ledgers", "--limit", "1", "--after", "1")
    assert ([row["ledger_id"] for row in page["items"]], page["next_after"]) == ([3], 3)
    assert [row["ledger_id"] for row in document(home, "ledgers", "--limbo")["items"]] == [3]
    assert call(home, "ledgers").stdout.splitlines()[1].split() == ["1", "15", "24", "no", "no"]


def test_the_read_only_mode_of_a_stopped_bookie_is_requested_shown_and_ended(home: Path) -> None:
    assert document(home, "readonly")["read_only"] is False
    before_s = int(time.time())
    document(home, "readonly", "set")
    shown = document(home, "readonly")
    assert (shown["read_only"], shown["read_only_reasons"]) == (True, ["operator"])
    assert before_s <= datetime.fromisoformat(shown["read_only_asked_at"]).timestamp() <= time.time()
    assert shown["read_only_asked_by"] in call(home, "readonly").stdout
    for _ in range(2):
        assert document(home, "readonly", "clear")["read_only"] is False
    assert document(home, "readonly")["read_only_asked_by"] is None


def test_the_read_only_mode_of_a_running_bookie_is_not_changed_in_its_directories(home: Path) -> None:
    lock = lock_directory(home / "ledgers" / CURRENT)
    try:
        assert isinstance(call(home, "readonly", "set").exception, DirectoryInUseError)
    finally:
        os.close(lock)
    assert document(home, "readonly")["read_only"] is False


def test_entries_are_listed_as_ranges(home: Path) -> None:
    found = document(home, "entries", "1")
    assert found["ranges"] == [{"first": 0, "last": 9}, {"first": 20, "last": 24}]
    assert found["next_after"] is None
    assert document(home, "entries", "1", "--after", "21")["ranges"] == [{"first": 22, "last": 24}]
    assert call(home, "entries", "4").stdout == "ledger 4: 1 entry, fenced\n7\n"


def test_the_entries_of_a_ledger_that_a_bookie_does_not_know_are_refused(home: Path) -> None:
    for output in ("table", "json"):
        result = call(home, "entries", "77", "-o", output)
        assert result.exit_code == ExitCode.FAILED
        assert "this bookie has nothing of ledger 77" in result.stderr
    assert json.loads(result.stdout)["ranges"] == []


def test_an_entry_is_shown_or_written_as_it_is_stored(home: Path) -> None:
    found = document(home, "read", "1", "3")
    assert (found["status"], found["last_add_confirmed"], found["bytes"]) == ("ok", 2, len(raw_entry(1, 3)))
    assert call(home, "read", "1", "3", "--raw").stdout_bytes == raw_entry(1, 3)
    for words, status in ((("1", "15"), "no_entry"), (("3", "0"), "limbo"), (("9", "0"), "no_ledger")):
        assert document(home, "read", *words, exit_code=ExitCode.FAILED)["status"] == status


def damage(home: Path, *records: int) -> None:
    path = home / "ledgers" / CURRENT / log_path(1)
    content = bytearray(path.read_bytes())
    for record in records:
        content[HEADER_SIZE + record * RECORD + RECORD_HEADER_SIZE + 35] ^= 1
    path.write_bytes(content)


def test_a_scrub_finds_every_damaged_entry_and_changes_nothing(home: Path) -> None:
    clean = document(home, "scrub")
    assert (clean["entries"], clean["damaged_count"], clean["next_after"]) == (15, 0, None)
    assert clean["bytes"] == 15 * len(raw_entry(1, 0))
    damage(home, 3, 12)
    before = files(home)
    found = document(home, "scrub", exit_code=ExitCode.FAILED)
    assert [(row["ledger_id"], row["entry_id"]) for row in found["damaged"]] == [(1, 3), (1, 22)]
    assert document(home, "read", "1", "3", exit_code=ExitCode.FAILED)["status"] == "corrupt"
    assert files(home) == before
    assert "damaged: ledger 1 entry 3, entries/" in call(home, "scrub").stdout
    rest = document(home, "scrub", "--after", "1:3", exit_code=ExitCode.FAILED)
    assert (rest["entries"], [row["entry_id"] for row in rest["damaged"]]) == (11, [22])
    assert document(home, "scrub", "--after", "1:22")["entries"] == 2


def test_a_partial_scrub_continues_where_the_last_one_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.scrubbing._STEP_BYTES", 100)
    damage(home, 3, 12)
    words: list[str] = []
    entries, found, parts = 0, [], 0
    while True:
        result = call(home, "scrub", "--bytes-max", "150", *words, "-o", "json")
        part = json.loads(result.stdout)
        entries, parts = entries + part["entries"], parts + 1
        found += [row["entry_id"] for row in part["damaged"]]
        if part["next_after"] is None:
            break
        words = ["--after", part["next_after"]]
    assert (entries, found) == (15, [3, 22])
    assert parts > 3


def test_a_missing_entry_log_is_reported_as_damage(home: Path) -> None:
    (home / "ledgers" / CURRENT / log_path(1)).unlink()
    found = document(home, "scrub", exit_code=ExitCode.FAILED)
    assert found["damaged_count"] == 15
    assert {row["what"] for row in found["damaged"]} == {"its entry log is missing"}


@pytest.mark.parametrize("words", [("status",), ("scrub",)])
def test_unusable_directories_are_refused_and_nothing_is_created(home: Path, words: tuple[str, ...]) -> None:
    descriptor = lock_directory(home / "journal" / CURRENT)
    assert isinstance(call(home, *words).exception, DirectoryInUseError)
    os.close(descriptor)
    lose_index(home)
    assert "rebuild-index" in str(call(home, *words).exception)
    assert not (home / "ledgers" / CURRENT / "index").exists()
    other = home / "other"
    for name in ("journal", "ledgers"):
        (other / name).mkdir(parents=True)
    assert "is not that of a bookie" in str(call(other, *words).exception)
    assert not list((other / "journal").iterdir())


def test_a_salvage_reports_what_it_kept_and_what_is_damaged(home: Path) -> None:
    assert "can be used" in str(call(home, "salvage-journal").exception)
    journals = sorted((home / "journal" / CURRENT / "journal").glob("*.journal"))
    data = bytearray(journals[0].read_bytes())
    data[-10] ^= 1
    journals[0].write_bytes(data)
    for word in ("status", "ledgers", "scrub"):
        assert "bkheal bookie salvage-journal" in str(call(home, word).exception)
    done = call(home, "salvage-journal")
    assert done.exit_code == ExitCode.OK
    assert "1 record of the journal is in the entry logs; " in done.stdout
    assert f"damaged: journal/{journals[0].name} offset " in done.stdout
    assert "start the bookie" in done.stdout
    assert call(home, "status").exit_code == ExitCode.OK
    shutil.rmtree(home / "journal")
    (home / "journal").mkdir()
    found = document(home, "salvage-journal", "--lost")
    assert (found["records"], found["finding_count"], found["findings"]) == (0, 0, [])
    found = document(home, "status")
    assert (found["bookie_id"], found["limbo_pending"]) == ("bk1:3181", True)
    assert "limbo" in call(home, "status").stdout


@pytest.mark.parametrize("position", ["1", "1:", ":1", "1:-1", "a:b", f"1:{1 << 63}"])
def test_an_invalid_position_is_wrong_usage(tmp_path: Path, position: str) -> None:
    for name in ("journal", "ledgers"):
        (tmp_path / name).mkdir()
    assert call(tmp_path, "scrub", "--after", position).exit_code == ExitCode.USAGE


def test_cookies_are_printed_readably_and_a_missing_one_is_a_failure(home: Path) -> None:
    shown = call(home, "cookie", "show")
    assert shown.exit_code == ExitCode.OK
    assert shown.stdout.count("  bookie id: bk1:3181\n") == 2
    (home / "journal" / CURRENT / VERSION_FILE).unlink()
    first, second = document(home, "cookie", "show", exit_code=ExitCode.FAILED)["items"]
    assert (first["problem"], second["problem"]) == ("there is no file VERSION", None)


@pytest.mark.parametrize("option", ["--dry-run", "--yes"])
def test_a_format_with_an_unavailable_ledger_directory_is_refused(home: Path, option: str) -> None:
    before = files(home)
    uri = ("--metadata-uri", "zk+hierarchical://127.0.0.1:1/ledgers")
    unmounted = f"{home / 'ledgers'},{home / 'unmounted'}"
    places = ["--journal-dir", str(home / "journal"), "--ledger-dir", unmounted]
    refused = CliRunner().invoke(app, ["bookie", "format", option, *uri, *places])
    assert isinstance(refused.exception, FormatRefusedError), refused.output
    assert "cannot be opened" in str(refused.exception)
    assert files(home) == before


def test_a_dry_run_of_a_format_prints_what_would_be_lost(home: Path) -> None:
    before = files(home)
    tried = call(home, "format", "--dry-run", "--metadata-uri", "zk+hierarchical://127.0.0.1:1/ledgers")
    assert tried.exit_code == ExitCode.OK
    assert "bookie bk1:3181" in tried.stderr
    assert tried.stdout == "nothing was changed\n"
    assert files(home) == before
