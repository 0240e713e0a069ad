"""Stores of reports: a folder, and an S3 server on loopback."""

from __future__ import annotations

import errno
import http.server
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from pyarrow import fs
from typer.testing import CliRunner

from auditor.api.http.report_routes import ReportRoutes, list_reports
from auditor.cli.main import app
from auditor.service.fetched_reports import FetchedReports
from bookie.model.errors import TransientError
from spark_jobs.kept import Kept
from spark_jobs.report import store_runs
from spark_jobs.report.files import FINDINGS, INDEX, PAGE, SUMMARY, ReportDirError
from spark_jobs.report.history import find, reports
from spark_jobs.report.store import ReportStore, ReportStoreError
from spark_jobs.report.store_runs import (
    UnreadableReportError,
    fetch_missing,
    fetch_run,
    note_removed,
    remove_runs,
    send_run,
    send_unsent,
    stored_runs,
)
from spark_jobs.report.tables.sql import ask
from spark_jobs.runs.run import _exchange
from spark_jobs.runs.run_report import RunReport
from spark_jobs.settings import AuditSettings
from spark_jobs.store_address import StoreAddressError, parse_address
from tests.loopback_s3 import CREDENTIALS, KEY_ID, SECRET, s3_server
from tests.worlds.clocks import ManualClock
from tests.worlds.report_tables import HISTORY, run, write, write_findings, write_history

RUNS = [summary.run_id for summary, _ in HISTORY]
_BUCKET = "audit-reports"


@pytest.fixture(scope="module")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "requests.log") as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


_S3 = (pytest.mark.needs("moto"), pytest.mark.long)


@pytest.fixture(params=["file", pytest.param("s3", marks=_S3)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    endpoint = request.getfixturevalue("s3_endpoint")
    fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True).create_dir(_BUCKET)
    return f"s3a://{_BUCKET}/{tmp_path.name}?endpoint_override={endpoint}"


@pytest.fixture
def store(address: str) -> ReportStore:
    return ReportStore(parse_address(address))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_history(tmp_path / "here")
    return tmp_path / "here"


def test_an_uploaded_report_is_the_same_on_another_machine(store: ReportStore, written: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    for run_id in RUNS:
        send_run(store, written, run_id)
        send_run(store, written, run_id)  # a repetition changes nothing

    assert stored_runs(store) == sorted(RUNS, reverse=True)
    assert fetch_missing(store, there) == sorted(RUNS)
    assert fetch_missing(store, there) == []
    assert list(reports(there)) == list(reports(written))
    for question in (
        "SELECT run_id, ledgers_critical FROM runs ORDER BY run_id",
        "SELECT run_id, ledger_id, severity FROM findings ORDER BY ALL",
        "SELECT ledger_id, unhealthy_since, first_run_id FROM ledgers_unhealthy_since ORDER BY ALL",
    ):
        here = ask(written, question, limit=1000, timeout_s=30)
        assert ask(there, question, limit=1000, timeout_s=30) == here
        assert here.rows
    assert (there / RUNS[-1] / PAGE).read_bytes() == (written / RUNS[-1] / PAGE).read_bytes()
    assert not list(there.glob(".bkheal*"))


def test_a_report_that_cannot_be_fetched_does_not_delay_others(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, bad = tmp_path / "there", min(RUNS)
    for run_id in RUNS:
        send_run(store, written, run_id)
    download = store.download

    def failing(name: str, target: Path, size: int) -> None:
        download(name, target, size + name.startswith(bad))

    with monkeypatch.context() as patch:
        patch.setattr(store, "download", failing)
        with pytest.raises(ReportStoreError, match="is not the listed"):
            fetch_missing(store, there)
    assert fetch_missing(store, there) == [bad]
    assert {row[0] for row in ask(there, "SELECT run_id FROM runs", limit=1000, timeout_s=30).rows} == set(RUNS)

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=256 << 20))
    with pytest.raises(ReportDirError, match="no room"):
        fetch_run(store, tmp_path / "small", bad)


def test_old_reports_that_cannot_be_fetched_do_not_delay_newer_ones(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(written, run(20))
    bad, newest = RUNS[:3], run(20).run_id
    for run_id in (*bad, newest):
        send_run(store, written, run_id)
    download = store.download

    def failing(name: str, target: Path, size: int) -> None:
        download(name, target, size + name.startswith(tuple(bad)))

    monkeypatch.setattr(store, "download", failing)
    with pytest.raises(ReportStoreError, match="is not the listed"):
        fetch_missing(store, tmp_path / "there")
    assert [summary.run_id for summary in reports(tmp_path / "there")] == [newest]


@pytest.mark.parametrize("position", [0, -1])
def test_reports_without_room_do_not_delay_a_smaller_one(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    write(written, run(20))
    large = sorted([*RUNS, run(20).run_id])
    small = large.pop(position)
    for run_id in large:
        (written / run_id / "data").write_bytes(bytes(1 << 20))
    for run_id in (small, *large):
        send_run(store, written, run_id)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=(256 << 20) + (1 << 20)))
    with pytest.raises(ReportDirError, match="no room"):
        fetch_missing(store, tmp_path / "there")
    assert [summary.run_id for summary in reports(tmp_path / "there")] == [small]


def test_a_fetch_killed_before_writing_the_tables_is_finished_by_the_next(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    for run_id in RUNS[:2]:
        send_run(store, written, run_id)
    with monkeypatch.context() as patch:
        patch.setattr(store_runs, "_add_to_tables", _cut)
        with pytest.raises(KeyboardInterrupt):
            fetch_missing(store, there)

    assert fetch_missing(store, there) == []
    question = "SELECT run_id FROM runs"
    assert {row[0] for row in ask(there, question, limit=1000, timeout_s=30).rows} == set(RUNS[:2])
    assert not list(there.rglob(".untabled"))


def test_a_separately_fetched_report_is_in_the_tables_after_the_next_check(
    store: ReportStore, written: Path, tmp_path: Path
) -> None:
    send_run(store, written, RUNS[0])
    assert fetch_run(store, tmp_path / "there", RUNS[0])
    assert fetch_missing(store, tmp_path / "there") == []
    assert ask(tmp_path / "there", "SELECT run_id FROM runs", limit=9, timeout_s=30).rows == [(RUNS[0],)]


def test_a_run_with_a_number_too_large_for_its_column_keeps_no_other_run_out_of_the_tables(
    store: ReportStore, written: Path, tmp_path: Path
) -> None:
    summary = written / RUNS[0] / SUMMARY
    document = json.loads(summary.read_text())
    name = next(name for name, count in document["counts"].items() if isinstance(count, int))
    document["counts"][name] = 1 << 70
    summary.write_text(json.dumps(document))
    for run_id in RUNS[:2]:
        send_run(store, written, run_id)
    there = tmp_path / "there"
    assert sorted(fetch_missing(store, there)) == RUNS[:2]
    assert fetch_missing(store, there) == []
    rows = ask(there, "SELECT run_id FROM runs", limit=9, timeout_s=30).rows
    assert (RUNS[1],) in rows


def test_the_folder_of_a_killed_fetch_is_removed_after_a_day(store: ReportStore, tmp_path: Path) -> None:
    left, new = tmp_path / ".bkheal-fetched-a", tmp_path / ".bkheal-fetched-b"
    for folder in (left, new):
        (folder / RUNS[0]).mkdir(parents=True)
        (folder / RUNS[0] / PAGE).write_text("a part")
    os.utime(left, (0, 0))

    fetch_missing(store, tmp_path)

    assert not left.exists()
    assert (new / RUNS[0] / PAGE).is_file()


def test_an_unfinished_run_is_not_a_report(store: ReportStore, written: Path, tmp_path: Path) -> None:
    store.upload(written / RUNS[0] / PAGE, f"{RUNS[0]}/{PAGE}")

    assert not fetch_run(store, tmp_path / "there", RUNS[0])
    assert fetch_missing(store, tmp_path / "there") == []
    assert not fetch_run(store, tmp_path / "there", "../here")


def test_the_summary_is_written_last_and_removed_first(
    store: ReportStore, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    upload = store.upload

    def noted(path: Path, name: str) -> None:
        names.append(name)
        upload(path, name)

    monkeypatch.setattr(store, "upload", noted)
    send_run(store, written, RUNS[1])

    assert names[-1] == f"{RUNS[1]}/{SUMMARY}"
    assert sum(name.endswith(SUMMARY) for name in names) == 1
    note_removed(written, RUNS[1:2])
    remove_runs(store, written)
    assert store.list(RUNS[1])[0] == []


def test_a_report_that_was_not_uploaded_is_uploaded_later(store: ReportStore, written: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.write_text("a file where the folder should be")
    with pytest.raises(ReportStoreError):
        send_run(ReportStore(parse_address(f"file://{closed}")), written, RUNS[0])
    send_run(store, written, RUNS[1])

    assert send_unsent(store, written) == [RUNS[0]]
    assert send_unsent(store, written) == []
    assert stored_runs(store) == sorted(RUNS[:2], reverse=True)
    assert fetch_missing(store, tmp_path / "there") == sorted(RUNS[:2])
    assert not list((tmp_path / "there").rglob(".unsent"))


def test_an_unreadable_report_delays_no_other_report(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, there, bad = tmp_path / "here", tmp_path / "there", max(RUNS)
    write(there, run(20))
    send_run(store, there, run(20).run_id)
    for run_id in RUNS:
        (here / run_id / ".unsent").touch()
    opened: Callable[..., IO[Any]] = Path.open

    def failing(path: Path, *args: Any, **options: Any) -> IO[Any]:
        if path == here / bad / PAGE:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", failing)
    _exchange(store, AuditSettings("zk://unused/ledgers", here))
    assert stored_runs(store) == sorted({*RUNS, run(20).run_id} - {bad}, reverse=True)
    assert (here / run(20).run_id / SUMMARY).is_file()
    assert (here / bad / ".unsent").is_file()
    assert [record.message for record in caplog.records] == ["a report is not sent"]


def test_a_report_with_a_damaged_file_delays_no_other_report(
    store: ReportStore, written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = max(RUNS)
    for run_id in RUNS:
        (written / run_id / ".unsent").touch()
    (written / bad / PAGE).unlink()
    (written / bad / PAGE).symlink_to("/proc/self/mem")  # it can be opened, and its first byte cannot be read

    _exchange(store, AuditSettings("zk://unused/ledgers", written))

    assert fetch_missing(store, tmp_path / "there") == sorted({*RUNS} - {bad})
    assert (written / bad / ".unsent").is_file()
    assert [record.message for record in caplog.records] == ["a report is not sent"]
    assert not [file for file in store.list(bad)[0] if PAGE in file.name], "a part of the file is in the store"


def test_a_report_with_a_folder_that_cannot_be_listed_is_not_sent_in_part(
    store: ReportStore, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, listed = written / RUNS[0] / FINDINGS, os.scandir
    assert closed.is_dir()

    def denying(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", denying)
    with pytest.raises(UnreadableReportError, match="Permission denied"):
        send_run(store, written, RUNS[0])
    assert stored_runs(store) == []
    monkeypatch.undo()
    assert send_unsent(store, written) == [RUNS[0]]


def test_reports_are_fetched_from_a_store_that_cannot_be_written(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    write(there, run(20))
    send_run(store, written, RUNS[0])
    (there / run(20).run_id / ".unsent").touch()

    def denied(path: Path, name: str) -> None:
        raise ReportStoreError(f"cannot write {name}: ACCESS_DENIED")

    monkeypatch.setattr(store, "upload", denied)
    _exchange(store, AuditSettings("zk://unused/ledgers", there))
    assert (there / RUNS[0] / SUMMARY).is_file()
    assert (there / run(20).run_id / ".unsent").is_file()


def test_a_report_whose_upload_was_interrupted_is_uploaded_again(
    store: ReportStore, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "upload", _cut)
        with pytest.raises(KeyboardInterrupt):
            send_run(store, written, RUNS[0])

    assert send_unsent(store, written) == [RUNS[0]]
    assert stored_runs(store) == RUNS[:1]


def _cut(source: Path, name: object) -> None:
    raise KeyboardInterrupt


async def test_an_auditor_without_reports_of_its_own_lists_those_in_the_store(
    address: str, store: ReportStore, written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in RUNS:
        send_run(store, written, run_id)
    there, clock = tmp_path / "there", ManualClock()

    await FetchedReports(address, there, Kept(2, None, None), clock).refresh()

    listed = [row["run_id"] for row in list_reports(there)["items"]]
    assert listed == sorted(RUNS, reverse=True)[:2]
    assert all(run_id in (there / INDEX).read_text() for run_id in listed)
    assert len(stored_runs(store)) == len(RUNS)
    assert not caplog.records

    (tmp_path / "closed").write_text("")
    failing = FetchedReports(f"file://{tmp_path}/closed", there, Kept(2, None, None), clock)
    await failing.refresh()
    await failing.refresh()
    assert [record.message for record in caplog.records] == ["reports were not fetched"]


def test_a_run_removes_from_the_store_what_it_removes_from_its_directory(
    store: ReportStore, written: Path, tmp_path: Path
) -> None:
    here = tmp_path / "elsewhere"
    for run_id in RUNS:
        send_run(store, written, run_id)
    fetch_missing(store, here, kept_max=2)
    summary = run(20)
    report = RunReport(here, summary.run_id, is_needed=True, store=store)
    write_findings(report.directory, ())

    report.finish(summary, None, Kept(2))

    assert [each.run_id for each in reports(here)] == [summary.run_id, RUNS[2]]
    assert stored_runs(store) == [summary.run_id, RUNS[2], RUNS[0]], "the oldest was never in this directory"


def test_a_later_run_removes_from_the_store_what_a_run_could_not_remove(
    store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "elsewhere"
    for run_id in RUNS:
        send_run(store, written, run_id)
    fetch_missing(store, here)

    def finish(number: int) -> str:
        summary = run(number)
        report = RunReport(here, summary.run_id, is_needed=True, store=store)
        write_findings(report.directory, ())
        report.finish(summary, None, Kept(2))
        return summary.run_id

    def fail(*_: object, **__: object) -> None:
        raise ReportStoreError("no answer")

    for number, broken in ((18, "upload"), (19, "remove_folder")):
        with monkeypatch.context() as patch:
            patch.setattr(store, broken, fail)
            finish(number)
    assert set(RUNS) < set(stored_runs(store))
    last = finish(20)
    assert stored_runs(store) == [last, run(19).run_id]
    assert not list(here.glob(".bkheal-unremoved-*"))


async def test_an_auditor_does_not_fetch_reports_that_it_would_remove_at_once(
    address: str, store: ReportStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in RUNS:
        send_run(store, written, run_id)
    there, fetched = tmp_path / "there", list[str]()
    write(there, run(20))  # not sent yet
    missing, fetch = FetchedReports(address, there, Kept(2, None, None), ManualClock()), fetch_run

    def noted(store: ReportStore, report_dir: Path, run_id: str) -> bool:
        fetched.append(run_id)
        return fetch(store, report_dir, run_id)

    monkeypatch.setattr(store_runs, "fetch_run", noted)
    for _ in range(2):
        await missing.refresh()

    assert fetched == [max(RUNS)]
    assert {summary.run_id for summary in reports(there)} == {max(RUNS), run(20).run_id}


def test_a_command_fetches_missing_reports(
    address: str, store: ReportStore, written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send_run(store, written, RUNS[1])
    caplog.set_level(logging.DEBUG)

    result = CliRunner().invoke(app, ["report", "fetch", address, "--report-dir", str(tmp_path / "there")])

    assert result.exit_code == 0, result.output
    assert RUNS[1] in result.output
    assert find(tmp_path / "there", "latest").run_id == RUNS[1]
    assert SECRET not in caplog.text + result.output
    assert SECRET not in repr(store) + repr(store.address)


async def test_the_service_serves_reports_that_only_the_store_has(
    address: str, store: ReportStore, written: Path, tmp_path: Path
) -> None:
    send_run(store, written, RUNS[1])
    routes = ReportRoutes(tmp_path / "there", report_store=address)

    await routes._fetch(RUNS[1])
    await routes._fetch(RUNS[2])

    assert await routes._found([f"{RUNS[1]}/{PAGE}"]) is not None
    assert await routes._found([f"{RUNS[2]}/{PAGE}"]) is None


@pytest.mark.long
@pytest.mark.needs("moto")
def test_a_bucket_that_does_not_exist_is_an_error_and_not_an_empty_store(s3_endpoint: str, written: Path) -> None:
    store = ReportStore(parse_address(f"s3://no-such-bucket/r?endpoint_override={s3_endpoint}"))

    with pytest.raises(ReportStoreError, match="there is no bucket no-such-bucket"):
        stored_runs(store)
    with pytest.raises(ReportStoreError, match=r"cannot write s3://no-such-bucket.*complete in") as refused:
        send_run(store, written, RUNS[0])
    assert SECRET not in str(refused.value)
    assert KEY_ID not in str(refused.value)
    assert (written / RUNS[0] / SUMMARY).is_file()


def test_a_store_that_does_not_answer_is_not_reported_as_an_absent_report(written: Path) -> None:
    with socket.socket() as silent:  # accepts connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = ReportStore(parse_address(f"s3://b/r?endpoint_override={endpoint}&region=us-east-1"), call_s=0.5)
        with pytest.raises(ReportStoreError, match="no answer within"):
            stored_runs(store)
        with pytest.raises(ReportStoreError, match="complete in"):
            send_run(store, written, RUNS[0])


class _Denying(http.server.BaseHTTPRequestHandler):
    """An S3 server that denies every request."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_POST(self) -> None:
        self.do_PUT()

    def do_GET(self) -> None:
        body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_denied_bucket_is_reported_in_one_line_and_no_report_is_lost(written: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Denying) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            store = ReportStore(parse_address(f"s3://closed/r?endpoint_override={endpoint}&region=us-east-1"))
            with pytest.raises(ReportStoreError, match="ACCESS_DENIED") as unread:
                stored_runs(store)
            with pytest.raises(
                ReportStoreError, match=r"cannot write s3://closed.*ACCESS_DENIED.*complete in"
            ) as unsent:
                send_run(store, written, RUNS[0])
        finally:
            server.shutdown()
    for refused in (unread, unsent):
        assert SECRET not in str(refused.value)
        assert KEY_ID not in str(refused.value)
        assert "\n" not in str(refused.value)
    assert find(written, RUNS[0]).run_id == RUNS[0]


@pytest.mark.long
@pytest.mark.needs("moto")
async def test_the_service_answers_that_the_store_cannot_be_read(s3_endpoint: str, tmp_path: Path) -> None:
    address = f"s3://no-such-bucket/r?endpoint_override={s3_endpoint}"
    routes = ReportRoutes(tmp_path / "there", report_store=address)

    with pytest.raises(TransientError, match="the store of reports cannot be read"):
        await routes._fetch(RUNS[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"s3://{KEY_ID}:{SECRET}@bucket/reports", "must not contain a user or a password"),
        (f"s3://{KEY_ID}@bucket/reports", "must not contain a user or a password"),
        (f"abfss://box:{SECRET}@account.dfs.core.windows.net/r", "must not contain a user or a password"),
        (f"s3://bucket/reports?secret_key={SECRET}", "other parameters"),
        ("reports", "begins with one of"),
        ("ftp://host/reports", "begins with one of"),
        ("s3:///reports", "no bucket"),
    ],
)
def test_invalid_addresses_are_refused_without_repeating_a_secret(text: str, reason: str) -> None:
    with pytest.raises(StoreAddressError, match=reason) as refused:
        parse_address(text)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["s3a://bucket/a/b", "gs://bucket/a", "abfss://box@account.dfs.core.windows.net/r", "hdfs://name:8020/r",
     "file:///mnt/reports", "s3://bucket/a?endpoint_override=http://minio:9000&region=eu-1"],
)  # fmt: skip
def test_valid_addresses_are_accepted(text: str) -> None:
    assert str(parse_address(text)) == text
