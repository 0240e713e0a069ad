"""The tab in a real Spark UI, used over HTTP by a browser, a program and an attacker."""

from __future__ import annotations

import html
import http.client
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from pyspark.sql import SparkSession

from bookie.model.run import RunKind
from spark_jobs.ui.handler import TabHandler
from spark_jobs.ui.port import ActionOutcome, ActionResult, Fact, TabState
from spark_jobs.ui.settings import TabSettings
from spark_jobs.ui.tab import AttachedTab, attach_tab
from tests.deadlines import STATE_S
from tests.spark.ui_twin import ENDLESS, AuditorTwin

pytestmark = pytest.mark.spark

OPEN = TabSettings(
    is_trigger_enabled=True,
    is_anonymous_allowed=True,
    snapshot_deadline_s=STATE_S,
    action_deadline_s=STATE_S,
)
RUNS = "/auditor/api/v1/runs"
STATUS = "/auditor/api/v1/status"

USER_FILTER = """
package bkheal.test;
import java.io.IOException;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.FilterConfig;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;

public class UserFilter implements Filter {
    public void init(FilterConfig config) {}
    public void destroy() {}
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        chain.doFilter(new Named((HttpServletRequest) request), response);
    }
    static class Named extends HttpServletRequestWrapper {
        Named(HttpServletRequest request) { super(request); }
        public String getRemoteUser() { return getHeader("X-Test-User"); }
    }
}
"""
"""A filter that represents any login filter; it trusts a header."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: str


def connect(spark: SparkSession) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(spark.sparkContext.uiWebUrl or "").netloc, timeout=STATE_S)


@contextmanager
def crowd(spark: SparkSession, size: int) -> Iterator[list[http.client.HTTPConnection]]:
    """Open connections, and receive a first answer on each of them.

    Spark's server queues only one or two new connections. If many arrive at once, Linux may reset some of them.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connect(spark))) for _ in range(size)]
        for connection in connections:
            assert exchange(connection, STATUS).status == 200
        yield connections


def ask(spark: SparkSession, path: str, *, method: str = "GET", body: Any = None, **headers: str) -> Reply:
    """Send one request on a separate connection."""
    with closing(connect(spark)) as connection:
        return exchange(connection, path, method=method, body=body, **headers)


def exchange(
    connection: http.client.HTTPConnection, path: str, *, method: str = "GET", body: Any = None, **headers: str
) -> Reply:
    """Send one request, and follow no redirects. Underscores in header names stand for hyphens."""
    is_chunked = not isinstance(body, str | bytes | None)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names, encode_chunked=is_chunked)
    response = connection.getresponse()
    return Reply(response.status, dict(response.getheaders()), response.read().decode())


def press(spark: SparkSession, path: str = RUNS, *, token: str | None = None, **headers: str) -> Reply:
    """Post the form of a button. Without ``token``, the token of the page is used."""
    if token is None:
        token = json.loads(ask(spark, "/auditor/api/v1/token").body).get("csrf_token", "")
    with closing(connect(spark)) as connection:
        return press_on(connection, path, token=token, **headers)


def press_on(connection: http.client.HTTPConnection, path: str = RUNS, *, token: str, **headers: str) -> Reply:
    """Post the form of a button on an existing connection."""
    form = urlencode({"token": token, "kind": "bookies"})
    headers["Content_Type"] = "application/x-www-form-urlencoded"
    return exchange(connection, path, method="POST", body=form, **headers)


@contextmanager
def attached(spark: SparkSession, actions: Any, settings: TabSettings = OPEN) -> Iterator[AttachedTab]:
    tab = attach_tab(spark, actions, settings)
    assert tab.url, tab.why_not
    try:
        yield tab
    finally:
        tab.detach()


@pytest.fixture
def twin(spark: SparkSession) -> Iterator[AuditorTwin]:
    """An auditor whose runs end at the end of the test."""
    made = AuditorTwin(spark)
    yield made
    for run in made.snapshot().runs:
        made.cancel(run.record.run_id, "", "")
    for thread in made.threads:
        thread.join(STATE_S)


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + STATE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def states(spark: SparkSession) -> list[str]:
    return [run["state"] for run in json.loads(ask(spark, STATUS).body)["runs"]]


def test_the_tab_is_in_the_navigation_bar_of_every_page(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        for path in ("/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/auditor/"):
            page = ask(spark, path)
            assert page.status == 200
            assert re.search(r'<a class="nav-link" href="/auditor/">\s*Auditor\s*</a>', page.body) or re.search(
                r'<a href="/auditor/"[^>]*>\s*Auditor\s*</a>', page.body
            )
        assert "bookie-3:3181" in ask(spark, "/auditor/").body
    assert "/auditor/" not in ask(spark, "/jobs/").body


def test_a_click_starts_a_run_that_is_shown_until_its_end(spark: SparkSession, twin: AuditorTwin) -> None:
    twin.may_end.clear()
    with attached(spark, twin):
        reply = press(spark)
        assert (reply.status, reply.headers["Location"]) == (303, "/auditor/")
        assert "20261120T101500Z-0a1b2c" in ask(spark, "/auditor/").body
        assert press(spark).status == 409
        twin.may_end.set()
        eventually(lambda: states(spark) == ["done"])
        assert "clean" in ask(spark, "/auditor/").body


def test_a_run_can_be_paused_resumed_and_cancelled(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        run_id = twin.run(ENDLESS.value, "", "").run_id
        for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
            assert press(spark, f"{RUNS}/{run_id}/{verb}").status == 303
            assert states(spark) == [state]
        assert press(spark, f"{RUNS}/{run_id}/cancel").status == 409
        assert press(spark, f"{RUNS}/20261120T101599Z-ffffff/cancel").status == 404


def test_the_api_accepts_and_returns_json(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        token = json.loads(ask(spark, "/auditor/api/v1/token").body)["csrf_token"]
        assert re.fullmatch("[0-9a-f]{32}", token)
        headers = {"Content-Type": "application/json", "X-CSRF-Token": token}
        reply = ask(spark, RUNS, method="POST", body='{"kind": "placement"}', **headers)
        assert (reply.status, json.loads(reply.body)["run_id"]) == (202, "20261120T101500Z-0a1b2c")
        refused = ask(spark, RUNS, method="POST", body='{"kind": "all"}', **headers)
        assert (refused.status, "kind must be" in json.loads(refused.body)["error"]) == (400, True)


def test_invalid_requests_are_refused_over_http(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            reply = ask(spark, f"{RUNS}?kind=bookies", method=method)
            assert (reply.status, reply.headers["Allow"]) == (405, "POST")
        assert press(spark, token="").status == 403
        assert press(spark, token="0" * 32).status == 403
        assert press(spark, Origin="http://evil.example.com").status == 403
        assert press(spark, Origin="null").status == 403
        assert press(spark, Sec_Fetch_Site="cross-site").status == 403
        assert press(spark, Sec_Purpose="prefetch").status == 403
        assert press(spark, Host="rebound.example.com").status == 403
        assert press(spark, f"{RUNS}/..%2f..%2fjobs/cancel").status in (400, 404)
        assert press(spark, "/auditor/api/v1/nothing").status == 404
        assert states(spark) == []


def test_bodies_are_bounded(spark: SparkSession, twin: AuditorTwin) -> None:
    form, plain = "application/x-www-form-urlencoded", "application/json"
    with attached(spark, twin):
        for type_, bytes_, expected in (
            (form, 5_000, {413}),
            (form, 1_000_000, {400, 413, 500}),  # Jetty's own limit applies first
            (plain, 1_000_000, {413}),
        ):
            reply = ask(spark, RUNS, method="POST", body="kind=bookies&pad=" + "x" * bytes_, Content_Type=type_)
            assert reply.status in expected
        chunks = iter([b'{"kind": "bookies"}'])
        assert ask(spark, RUNS, method="POST", body=chunks, Transfer_Encoding="chunked").status == 411
        assert states(spark) == []


def test_anonymous_users_are_refused_unless_allowed_whatever_name_they_send(
    spark: SparkSession, twin: AuditorTwin, caplog: pytest.LogCaptureFixture
) -> None:
    with attached(spark, twin, replace(OPEN, is_anonymous_allowed=False)):
        page = ask(spark, "/auditor/?doAs=alice").body
        assert "<form" not in page
        assert "ui_allow_anonymous" in page
        assert ask(spark, "/auditor/api/v1/token?doAs=alice").status == 403
        assert press(spark, f"{RUNS}?doAs=alice", token="").status == 403
        assert states(spark) == []
    assert [vars(line)["user"] for line in caplog.records if line.name == "bkheal.audit"] == ["anonymous"]


def test_logged_in_users_may_act_if_sparks_access_lists_allow_it(spark: SparkSession, twin: AuditorTwin) -> None:
    jvm: Any = spark.sparkContext._jvm
    ui = spark.sparkContext._jsc.sc().ui().get()
    thread = jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(USER_FILTER)
    nobody = jvm.PythonUtils.toSeq([])
    everybody = jvm.PythonUtils.toSeq(["*"])
    ui.conf().set("spark.ui.filters", "bkheal.test.UserFilter")
    thread.setContextClassLoader(compiler.getClassLoader())
    try:
        with attached(spark, twin, replace(OPEN, is_anonymous_allowed=False)):
            reply = ask(spark, "/auditor/api/v1/token", X_Test_User="ann")
            token = json.loads(reply.body)["csrf_token"]
            assert press(spark, token=token).status == 403
            assert press(spark, token=token, X_Test_User="ann").status == 303
            assert twin.snapshot().runs[0].record.owner == "ann"

            manager = ui.securityManager()
            manager.setViewAcls("ann", everybody)
            manager.setModifyAcls(nobody.toSet(), jvm.PythonUtils.toSeq(["bob"]))
            manager.setAcls(True)
            assert "spark.modify.acls" in press(spark, token=token, X_Test_User="ann").body
            assert "<form" not in ask(spark, "/auditor/", X_Test_User="ann").body
            assert "<form" in ask(spark, "/auditor/", X_Test_User="bob").body
    finally:
        ui.securityManager().setAcls(False)
        ui.conf().remove("spark.ui.filters")
        thread.setContextClassLoader(loader)


def test_user_names_are_accepted_only_from_the_address_of_a_trusted_proxy(
    spark: SparkSession, twin: AuditorTwin
) -> None:
    named = replace(OPEN, is_anonymous_allowed=False, user_header="X-Forwarded-User")
    with attached(spark, twin, replace(named, trusted_proxies=("10.0.0.7", "127.0.0.1"))):
        token = json.loads(ask(spark, "/auditor/api/v1/token", X_Forwarded_User="ann").body)["csrf_token"]
        assert press(spark, token=token).status == 403
        assert press(spark, token=token, X_Forwarded_User=" ").status == 403
        assert press(spark, token=token, X_Remote_User="ann").status == 403
        with closing(connect(spark)) as connection:  # a proxy that appends to a header that the client has sent
            connection.putrequest("GET", "/auditor/api/v1/token")
            connection.putheader("X-Forwarded-User", "admin")
            connection.putheader("X-Forwarded-User", "ann")
            connection.endheaders()
            assert connection.getresponse().status == 403
        assert states(spark) == []
        assert press(spark, token=token, X_Forwarded_User="ann").status == 303
        assert twin.snapshot().runs[0].record.owner == "ann"
    with attached(spark, twin, replace(named, trusted_proxies=("10.0.0.7", "::1"))):
        headers = {"X_Forwarded_User": "ann", "X_Forwarded_For": "10.0.0.7", "Forwarded": "for=10.0.0.7"}
        assert ask(spark, "/auditor/api/v1/token", **headers).status == 403
        assert "<form" not in ask(spark, "/auditor/", **headers).body


def test_a_read_only_tab_has_no_buttons(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin, TabSettings()):
        page = ask(spark, "/auditor/").body
        assert "ui_trigger_enabled" in page
        assert "<form" not in page
        assert press(spark, token="").status == 403


def test_links_and_redirects_begin_with_the_prefix_sent_by_a_proxy(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        page = ask(spark, "/auditor/", X_Forwarded_Context="/gateway/ui").body
        assert 'href="/gateway/ui/auditor/"' in page
        assert f'action="/gateway/ui{RUNS}"' in page
        assert "url=/gateway/ui/auditor/" in page
        reply = press(spark, X_Forwarded_Context="/gateway/ui")
        assert (reply.status, reply.headers["Location"]) == (303, "/gateway/ui/auditor/")


def test_a_configured_proxy_base_is_used_for_sparks_links_too(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin, replace(OPEN, proxy_base="/front/spark/")):
        page = ask(spark, "/auditor/").body
        assert 'href="/front/spark/jobs/"' in page
        assert f'action="/front/spark{RUNS}"' in page
    assert 'href="/stages/"' in ask(spark, "/jobs/").body


class Hostile(AuditorTwin):
    """An auditor of a cluster with malicious names."""

    def snapshot(self) -> TabState:
        return replace(super().snapshot(), facts=(Fact("Bookie", "</ul><script>alert('x')</script>"),))


def test_markup_in_names_is_shown_as_text(spark: SparkSession) -> None:
    with attached(spark, Hostile(spark)):
        page = ask(spark, "/auditor/").body
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(" in page
        assert "<script>alert('x')" in html.unescape(page)


def test_pages_cannot_be_framed_by_other_sites_or_cached(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        for path in ("/auditor/", STATUS, RUNS):
            headers = ask(spark, path).headers
            assert headers["X-Frame-Options"] == "SAMEORIGIN"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "no-store" in headers["Cache-Control"]


class Broken(AuditorTwin):
    """An auditor whose methods all fail."""

    def snapshot(self) -> TabState:
        raise RuntimeError("no state today")

    def run(self, kind: str, user: str, address: str) -> ActionResult:
        raise KeyError(kind)


def test_an_auditor_that_fails_breaks_no_page_of_spark(spark: SparkSession) -> None:
    with attached(spark, Broken(spark)):
        page = ask(spark, "/auditor/")
        assert (page.status, "no state today" in page.body) == (200, True)
        assert press(spark).status == 503
        assert ask(spark, "/jobs/").status == 200
    assert spark.range(3).count() == 3


class Slow(AuditorTwin):
    """An auditor that answers only after the test permits it."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.may_answer = threading.Event()

    def snapshot(self) -> TabState:
        self.may_answer.wait(STATE_S)
        return super().snapshot()

    def run(self, kind: str, user: str, address: str) -> ActionResult:
        self.may_answer.wait(STATE_S)
        return ActionResult(ActionOutcome.REFUSED, "too late")


def test_an_auditor_that_hangs_holds_up_no_page_of_spark(spark: SparkSession) -> None:
    slow = Slow(spark)
    with attached(spark, slow, replace(OPEN, snapshot_deadline_s=0.05, action_deadline_s=0.05)):
        assert press(spark).status == 504
        page = ask(spark, "/auditor/")
        assert (page.status, "has not answered yet" in page.body) == (200, True)
        assert ask(spark, "/jobs/").status == 200
        slow.may_answer.set()
        eventually(lambda: "bookie-3" in ask(spark, "/auditor/").body)


def test_a_callback_that_fails_breaks_no_page_of_spark(
    spark: SparkSession, twin: AuditorTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: TabHandler, facts: str) -> str:
        raise RuntimeError("lost")

    monkeypatch.setattr(TabHandler, "page", fail)
    monkeypatch.setattr(TabHandler, "api", fail)
    with attached(spark, twin):
        page = ask(spark, "/auditor/")
        assert (page.status, "does not answer" in page.body) == (200, True)
        assert ask(spark, STATUS).status == 503


def test_five_hundred_concurrent_requests_are_answered(spark: SparkSession, twin: AuditorTwin) -> None:
    paths = ["/auditor/", STATUS, "/auditor/", "/auditor/api/v1/token"] * 4

    def visit(connection: http.client.HTTPConnection) -> list[Reply]:
        return [exchange(connection, path) for path in paths]

    with attached(spark, twin), crowd(spark, 32) as connections, ThreadPoolExecutor(32) as threads:
        visits = list(threads.map(visit, connections))
    for replies in visits:
        assert {reply.status for reply in replies} == {200}
        assert all("bookie-3" in reply.body for reply, path in zip(replies, paths, strict=True) if "token" not in path)


def test_many_concurrent_clicks_start_one_run(spark: SparkSession, twin: AuditorTwin) -> None:
    twin.may_end.clear()
    with attached(spark, twin), crowd(spark, 8) as connections, ThreadPoolExecutor(8) as threads:
        token = json.loads(ask(spark, "/auditor/api/v1/token").body)["csrf_token"]
        replies = list(threads.map(lambda connection: press_on(connection, token=token), connections))
        assert sorted(reply.status for reply in replies) == [303] + [409] * 7
        assert len(twin.snapshot().runs) == 1


def test_a_second_tab_is_refused_with_one_warning(
    spark: SparkSession, twin: AuditorTwin, caplog: pytest.LogCaptureFixture
) -> None:
    with attached(spark, twin):
        second = attach_tab(spark, twin, OPEN)
        assert (second.url, "exists already" in second.why_not) == ("", True)
        second.detach()
        assert ask(spark, STATUS).status == 200
    warnings = [line for line in caplog.records if line.levelno >= logging.WARNING]
    assert [line.getMessage() for line in warnings] == ["no auditor tab in the Spark UI"]


def test_a_tab_can_be_attached_and_detached_repeatedly(spark: SparkSession, twin: AuditorTwin) -> None:
    for _ in range(3):
        with attached(spark, twin) as tab:
            assert ask(spark, STATUS).headers["Content-Type"] == "application/json"
            tab.detach()
            tab.detach()
            assert tab.url == ""
        assert ask(spark, STATUS).headers.get("Content-Type") != "application/json"
        assert ask(spark, RUNS, method="POST", body="kind=bookies").status >= 300


def test_the_page_lists_the_kinds_of_the_model(spark: SparkSession, twin: AuditorTwin) -> None:
    with attached(spark, twin):
        assert [row["kind"] for row in json.loads(ask(spark, STATUS).body)["kinds"]] == [kind.value for kind in RunKind]
