"""The answers of the tab in every state of its auditor, without a JVM."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from bookie.model.run import RunCause, RunKind, RunRecord
from spark_jobs.ui.handler import TabHandler
from spark_jobs.ui.port import ActionOutcome, ActionResult, Fact, RunView, TabState
from spark_jobs.ui.request import HTML, Answer, InvalidCallError, decode_request, encode_answer
from spark_jobs.ui.settings import TabSettings
from tests.worlds.clocks import ManualClock

KEY = "k" * 32
TOKEN = "t" * 32
RUN_ID = "20261120T101500Z-0a1b2c"
SETTINGS = TabSettings(is_trigger_enabled=True)
HANG_S = 30.0
"""Longer than any deadline of these tests, which never wait for it."""


class Auditor:
    """An auditor that answers at once by default, and records its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.result = ActionResult(ActionOutcome.ACCEPTED, "it began", RUN_ID)
        self.before: Callable[[], None] = lambda: None
        self.snapshots = 0

    def snapshot(self) -> TabState:
        self.snapshots += 1
        self.before()
        record = RunRecord(RUN_ID, RunKind.BOOKIES, RunCause.COMMAND, "ann", "host:1")
        return TabState(1, (Fact("Snapshot", str(self.snapshots)),), runs=(RunView(record, "/r"),))

    def run(self, kind: str, user: str, address: str) -> ActionResult:
        return self._did("run", kind, user, address)

    def cancel(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._did("cancel", run_id, user, address)

    def pause(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._did("pause", run_id, user, address)

    def resume(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._did("resume", run_id, user, address)

    def _did(self, *asked: str) -> ActionResult:
        self.before()
        self.asked.append(asked)
        return self.result


@pytest.fixture
def auditor() -> Auditor:
    return Auditor()


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """Yield a function that waits until the end of the test."""
    released = threading.Event()
    yield lambda: void(released.wait(HANG_S))
    released.set()


def void(_: object) -> None:
    return None


def handler(auditor: Auditor, settings: TabSettings = SETTINGS, clock: ManualClock | None = None) -> TabHandler:
    return TabHandler(auditor, settings, clock or ManualClock(1000.0, turns=0), key=KEY, token=TOKEN)


def facts(method: str = "GET", path: str = "/v1/status", **fields: str) -> str:
    usual = {"key": KEY, "user": "ann", "address": "192.0.2.7", "may_modify": "true", "length": "60", "base": ""}
    named = {"header.host": "driver:4040", "header.sec-fetch-site": "same-origin"}
    return urlencode({**usual, **named, "method": method, "path": path, **fields})


def post(path: str, **fields: str) -> str:
    return facts("POST", path, **{"form.token": TOKEN, **fields})


def read(answer: str) -> tuple[int, dict[str, str], str]:
    head, _, body = answer.partition("\n\n")
    status, *lines = head.split("\n")
    return int(status), dict(line.split(": ", 1) for line in lines), body


def start(handler: TabHandler, **fields: str) -> tuple[int, dict[str, str], str]:
    return read(handler.api(post("/v1/runs", **{"form.kind": "bookies", **fields})))


def test_a_button_starts_a_run_and_redirects_to_the_tab(auditor: Auditor) -> None:
    tab = handler(auditor)
    status, headers, _ = start(tab, base="/proxy/app-1")
    assert (status, headers["Location"]) == (303, "/proxy/app-1/auditor/")
    assert auditor.asked == [("run", "bookies", "ann", "192.0.2.7")]
    assert "run bookies, by ann" in tab.page(facts())


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_a_button_of_a_run_contains_its_id(auditor: Auditor, verb: str) -> None:
    assert read(handler(auditor).api(post(f"/v1/runs/{RUN_ID}/{verb}")))[0] == 303
    assert auditor.asked == [(verb, RUN_ID, "ann", "192.0.2.7")]


def test_a_program_gets_json(auditor: Auditor) -> None:
    fields = {"header.content-type": "application/json", "header.x-csrf-token": TOKEN, "body": '{"kind": "replicas"}'}
    status, headers, body = read(handler(auditor).api(facts("POST", "/v1/runs", **fields)))
    assert (status, headers["Content-Type"]) == (202, "application/json")
    assert json.loads(body) == {"outcome": "accepted", "text": "it began", "run_id": RUN_ID}
    assert auditor.asked == [("run", "replicas", "ann", "192.0.2.7")]


@pytest.mark.parametrize(
    "fields",
    [
        {"form.kind": "quick"},
        {"form.kind": ""},
        {"header.content-type": "application/json", "body": "[" * 5000},
        {"header.content-type": "application/json", "body": '["bookies"]'},
        {"header.content-type": "application/json", "body": '{"kind": ["bookies"]}'},
        {"header.content-type": "application/json; charset=utf-8", "body": "kind=bookies"},
    ],
)
def test_an_unknown_kind_of_run_is_refused(auditor: Auditor, fields: dict[str, str]) -> None:
    assert read(handler(auditor).api(post("/v1/runs", **fields)))[0] == 400
    assert auditor.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1/runs/",
        f"/v1/runs/{RUN_ID}",
        f"/v1/runs/{RUN_ID}/delete",
        f"/v1/runs/{RUN_ID}/cancel/",
        "/v1/runs/../cancel",
        "/v1/runs/a b/cancel",
        "/v1/runs/a%0Ab/cancel",
        "/v1/runs/-a/cancel",
        f"/v1/runs/{'a' * 65}/cancel",
        "/v1/runs/x\n/cancel",
    ],
)
def test_an_unknown_path_is_not_found(auditor: Auditor, path: str) -> None:
    assert read(handler(auditor).api(post(path)))[0] == 404
    assert auditor.asked == []


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (ActionOutcome.BUSY, 409),
        (ActionOutcome.REFUSED, 409),
        (ActionOutcome.UNKNOWN, 404),
        (ActionOutcome.UNAVAILABLE, 503),
    ],
)
def test_a_refusal_of_the_auditor_is_shown(auditor: Auditor, outcome: ActionOutcome, status: int) -> None:
    auditor.result = ActionResult(outcome, "because <so>")
    answered, _, body = start(handler(auditor))
    assert answered == status
    assert "because &lt;so&gt;" in body
    fields = {"header.content-type": "application/json", "header.x-csrf-token": TOKEN, "body": '{"kind": "replicas"}'}
    answered, _, body = read(handler(auditor).api(facts("POST", "/v1/runs", **fields)))
    assert (answered, json.loads(body)["error"]) == (status, "because <so>"), "a program gets the reason as well"


def test_the_allowed_methods_are_returned(auditor: Auditor) -> None:
    tab = handler(auditor)
    for method in ("GET", "HEAD", "PUT"):
        status, headers, _ = read(tab.api(facts(method, "/v1/runs", **{"form.token": TOKEN, "form.kind": "bookies"})))
        assert (status, headers["Allow"]) == (405, "POST")
    status, headers, _ = read(tab.api(post("/v1/status")))
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert auditor.asked == []


def test_a_read_only_tab_has_no_buttons_and_no_token(auditor: Auditor) -> None:
    tab = handler(auditor, TabSettings())
    assert TOKEN not in tab.page(facts())
    assert "<form" not in tab.page(facts())
    assert read(tab.api(facts(path="/v1/token")))[0] == 403
    assert start(tab)[0] == 403
    assert auditor.asked == []


def test_only_authorized_users_get_the_token(auditor: Auditor) -> None:
    tab = handler(auditor)
    assert json.loads(read(tab.api(facts(path="/v1/token")))[2]) == {"csrf_token": TOKEN}
    assert read(tab.api(facts(path="/v1/token", user="")))[0] == 403
    assert TOKEN not in tab.page(facts(user=""))


def test_the_state_is_available_as_json(auditor: Auditor) -> None:
    status, headers, body = read(handler(auditor).api(facts()))
    values = json.loads(body)
    assert (status, headers["Content-Type"], values["trouble"]) == (200, "application/json", None)
    assert values["runs"][0]["run_id"] == RUN_ID
    assert values["runs"][0]["report_url"] == "/r"


def test_too_many_actions_are_refused_for_a_while(auditor: Auditor) -> None:
    clock = ManualClock(1000.0, turns=0)
    tab = handler(auditor, clock=clock)
    answers = [start(tab)[0] for _ in range(11)]
    assert answers == [303] * 10 + [429]
    clock.now_s += 2.0
    assert start(tab)[0] == 303
    assert start(tab)[1]["Retry-After"] == "5"


def test_one_action_at_a_time(auditor: Auditor, hang: Callable[[], None]) -> None:
    auditor.before = hang
    tab = handler(auditor, replace(SETTINGS, action_deadline_s=0.01))
    status, _, body = start(tab)
    assert status == 504
    assert "No answer yet" in body
    assert start(tab)[0] == 409


def test_a_failing_auditor_does_not_break_the_page(auditor: Auditor) -> None:
    def fail() -> None:
        raise RuntimeError("it <b>broke")

    tab = handler(auditor)
    auditor.before = fail
    assert "it &lt;b&gt;broke" in tab.page(facts())
    status, _, body = read(tab.api(facts()))
    assert (status, json.loads(body)["trouble"]) == (503, "The state of the auditor is unknown: it <b>broke")
    assert start(tab)[0] == 503
    auditor.before = lambda: None
    assert "Snapshot" in tab.page(facts())


def test_with_a_hanging_auditor_the_last_known_state_is_shown(auditor: Auditor, hang: Callable[[], None]) -> None:
    clock = ManualClock(1000.0, turns=0)
    tab = handler(auditor, replace(SETTINGS, snapshot_deadline_s=0.01), clock)
    while "<span>1</span>" not in tab.page(facts()):  # a loaded machine may need longer than the deadline
        pass
    auditor.before = hang
    clock.now_s += 60
    for _ in range(3):
        page = tab.page(facts())
        assert "has not answered yet" in page
        assert "<span>1</span>" in page
    assert auditor.snapshots == 2


def test_the_tab_works_again_once_a_thread_can_be_started(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tab = handler(auditor)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert "start new thread" in tab.page(facts())
        assert start(tab)[0] == 503
    assert "Snapshot" in tab.page(facts())
    assert (start(tab)[0], len(auditor.asked)) == (303, 1)


def test_many_viewers_share_one_snapshot(auditor: Auditor) -> None:
    clock = ManualClock(1000.0, turns=0)
    tab = handler(auditor, clock=clock)
    with ThreadPoolExecutor(16) as viewers:
        pages = list(viewers.map(lambda _: tab.page(facts()), range(200)))
    assert all("<span>1</span>" in page for page in pages)
    clock.now_s += 1.0
    assert "<span>2</span>" in tab.page(facts())


def test_the_effect_of_an_action_is_shown_at_once(auditor: Auditor) -> None:
    tab = handler(auditor)
    tab.page(facts())
    start(tab)
    assert "<span>2</span>" in tab.page(facts())


def test_a_call_without_the_key_is_refused(auditor: Auditor) -> None:
    tab = handler(auditor)
    for key in ("", "x" * 32, "ü"):
        assert read(tab.api(post("/v1/runs", key=key, **{"form.kind": "bookies"})))[0] == 403
        assert RUN_ID not in tab.page(facts(key=key))
    assert (auditor.asked, auditor.snapshots) == ([], 0)


@pytest.mark.parametrize("text", ["", "key", "\x00", f"key={KEY}", f"key={KEY}&method=GET&length=x", "a=1&" * 500])
def test_a_garbled_call_is_refused(text: str, auditor: Auditor) -> None:
    with pytest.raises(InvalidCallError):
        decode_request(text, KEY)
    assert read(handler(auditor).api(text))[0] == 403


def test_line_breaks_cannot_get_into_a_header(auditor: Auditor) -> None:
    text = encode_answer(Answer(303, "x", headers=(("Location", "/a\r\nSet-Cookie: b=c\n\nbody"),)))
    assert read(text) == (303, {"Content-Type": HTML, "Location": "/a Set-Cookie: b=c body"}, "x")
    status, headers, _ = start(handler(auditor, replace(SETTINGS, proxy_base="/a\nSet-Cookie: b=c")))
    assert (status, headers["Location"]) == (303, "/auditor/")
    assert "Set-Cookie" not in headers


def test_actions_are_logged_with_their_user_and_never_with_the_token(
    auditor: Auditor, caplog: pytest.LogCaptureFixture
) -> None:
    tab = handler(auditor)
    with caplog.at_level(logging.INFO, "bkheal.audit"):
        start(tab, **{"header.x-forwarded-for": "203.0.113.9"})
        start(tab, user="")
        start(tab, **{"form.token": "x" * 32})
    done, *refused = (vars(record) for record in caplog.records if record.name == "bkheal.audit")
    expected: dict[str, Any] = {
        "user": "ann",
        "address": "192.0.2.7",
        "forwarded_for": "203.0.113.9",
        "action": "run",
        "target": "bookies",
        "outcome": "accepted",
        "run_id": RUN_ID,
    }
    assert {name: done[name] for name in expected} == expected
    assert [(line["user"], line["status"]) for line in refused] == [("anonymous", 403), ("ann", 403)]
    assert not [line for line in (done, *refused) if TOKEN in str(line) or "x" * 32 in str(line)]


def test_the_logging_of_refusals_is_limited(auditor: Auditor, caplog: pytest.LogCaptureFixture) -> None:
    tab = handler(auditor, TabSettings())
    for _ in range(500):
        start(tab)
    assert len([record for record in caplog.records if record.name == "bkheal.audit"]) == 60
