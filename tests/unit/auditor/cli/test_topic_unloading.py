"""Unloading topics through an admin API that answers correctly, incorrectly, slowly or with a redirect."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from auditor.cli.admin_requests import ANSWER_BYTES_MAX, REDIRECTS_MAX, AdminClient, redirected
from auditor.cli.audit.remote import RemoteSettings
from auditor.cli.drains.topic_unloading import NOTES_MAX, TopicUnloading
from auditor.cli.exit_codes import exit_code_of
from auditor.safety.holdings import HeldLedgers
from auditor.safety.unloading import AT_ONCE, FAILURES_MAX, UNLOAD_INTERVAL_S_MIN
from bookie.model.errors import BkhealError
from bookie.model.ids import LedgerId
from bookie.runtime.configuration.settings import ConfigurationError
from tests.worlds.admin_api import AdminApi, Asked, Reply, serving
from tests.worlds.clocks import ManualClock

TOPIC, OTHER = "persistent://public/default/orders", "persistent://public/default/users"
PATH = "/admin/v2/persistent/public/default/orders/unload"
TOKEN = "s3cret-t0ken"


@dataclass
class Drain:
    """A wait for a drain that proceeds only when the test calls ``unload_due``."""

    unloading: TopicUnloading
    clock: ManualClock
    notes: list[str] = field(default_factory=list)
    topics: set[str] = field(default_factory=lambda: {TOPIC})

    async def unload_due(self, **options: object) -> None:
        await self.unloading.unload_due(self.topics, frozenset(), None)

    async def until_over(self) -> BkhealError:
        """Repeat ``unload_due`` until waiting longer is useless."""
        for _ in range(FAILURES_MAX + 1):
            await self.unload_due()
            if (found := self.failure()) is not None:
                return found
            self.clock.now_s += UNLOAD_INTERVAL_S_MIN
        pytest.fail("the wait does not end")

    def failure(self) -> BkhealError | None:
        holdings = HeldLedgers({LedgerId(1): ()}, {LedgerId(1)}, self.topics)
        return self.unloading.failure(holdings)


@asynccontextmanager
async def drain(url: str, token: str | None = None, timeout_s: float = 20.0) -> AsyncIterator[Drain]:
    clock, notes = ManualClock(), list[str]()
    async with AdminClient(RemoteSettings(url, token, timeout_s=timeout_s)) as admin:
        yield Drain(TopicUnloading(admin, clock, notes.append), clock, notes)


async def test_topics_are_unloaded_once_with_the_token() -> None:
    with serving() as api:
        async with drain(f"{api.url.replace('://', '://user:password@')}/", TOKEN) as waiting:
            waiting.topics = {TOPIC, "persistent://public/default/ä b%2F+*", "persistent://public/../x"}
            await waiting.unload_due()
            await waiting.unload_due()
            assert waiting.unloading.unloaded == 2
            assert sorted(asked.path for asked in api.asked) == [
                "/admin/v2/persistent/public/default/%C3%A4+b%252F%2B*/unload",
                PATH,
            ]
            assert {(asked.method, asked.headers["Authorization"]) for asked in api.asked} == {
                ("PUT", f"Bearer {TOKEN}")
            }
            assert (waiting.notes, waiting.failure()) == ([], None)


async def test_concurrent_unloads_are_bounded() -> None:
    under_way = most = 0
    lock, full = threading.Lock(), threading.Event()

    def reply(asked: Asked) -> Reply:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
            if under_way == AT_ONCE:
                full.set()
        full.wait(20)
        with lock:
            under_way -= 1
        return Reply()

    with serving(reply) as api:
        async with drain(api.url) as waiting:
            waiting.topics = {f"persistent://t/n/{number}" for number in range(3 * AT_ONCE)}
            await waiting.unload_due()
    assert (len(api.asked), most) == (3 * AT_ONCE, AT_ONCE)


async def test_nothing_is_unloaded_while_the_bookie_is_writable() -> None:
    with serving() as api:
        async with drain(api.url) as waiting:
            for _ in range(3):
                await waiting.unloading.unload_due({TOPIC}, {"b:3181"}, None)
            assert api.asked == []
            assert len(waiting.notes) == 1
            await waiting.unload_due()
            assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("status", "requests", "exit_code"),
    [
        (400, 1, 1),
        (401, 2, 1),
        (403, 1, 1),
        (404, 1, 1),
        (405, 1, 1),
        (409, FAILURES_MAX, 1),
        (412, 1, 1),
        (500, FAILURES_MAX, 69),
        (503, FAILURES_MAX, 69),
        (200, 1, 1),
        (302, 1, 1),
    ],
)
async def test_a_wait_ends_after_error_responses_with_topic_and_address(
    status: int, requests: int, exit_code: int
) -> None:
    body = b'{"reason": "no\\u001b[31m ' + TOKEN.encode() + b'"}'
    with serving(lambda asked: Reply(status, body)) as api:
        async with drain(api.url, TOKEN) as waiting:
            error = await waiting.until_over()
            await waiting.unload_due()
            assert len(api.asked) == requests
    text = str(error)
    assert TOPIC in text
    assert f"{api.url}{PATH} answered {status}" in text
    assert exit_code_of(error) == exit_code
    for reported in (text, *waiting.notes):
        assert TOKEN not in reported
        assert "\x1b" not in reported


async def test_one_refused_topic_does_not_prevent_the_unloading_of_others() -> None:
    with serving(lambda asked: Reply(404 if asked.path == PATH else 204)) as api:
        async with drain(api.url) as waiting:
            waiting.topics = {TOPIC, OTHER}
            await waiting.unload_due()
            assert waiting.unloading.unloaded == 1
            assert waiting.failure() is None
            assert len(waiting.notes) == 1
            waiting.topics = {TOPIC}
            assert TOPIC in str(waiting.failure())
            busy = HeldLedgers({LedgerId(1): (), LedgerId(2): ()}, {LedgerId(1)}, {TOPIC})
            assert waiting.unloading.failure(busy) is None  # replicators have tasks left


@pytest.mark.parametrize(("clusters", "exit_code"), [(Reply(200, b'["c"]'), None), (Reply(503), None), (Reply(401), 1)])
async def test_a_missing_permission_for_a_topic_is_not_a_refused_login(clusters: Reply, exit_code: int | None) -> None:
    """A broker answers 401 in both cases."""

    def reply(asked: Asked) -> Reply:
        if asked.method == "GET":
            return clusters
        return Reply(401 if asked.path == PATH else 204)

    with serving(reply) as api:
        async with drain(api.url, TOKEN) as waiting:
            waiting.topics = {TOPIC, OTHER}
            await waiting.unload_due()
            error = waiting.failure()
            assert (None if error is None else exit_code_of(error)) == exit_code
            assert len(waiting.notes) == (exit_code is None)
            waiting.topics = {TOPIC}
            if clusters.status == 200:
                assert f"{PATH} answered 401" in str(waiting.failure())


async def test_a_refused_token_is_not_sent_for_every_topic() -> None:
    with serving(lambda asked: Reply(401)) as api:
        async with drain(api.url, TOKEN) as waiting:
            waiting.topics = {f"persistent://t/n/{number}" for number in range(100)}
            await waiting.until_over()
            for _ in range(3):
                waiting.clock.now_s += UNLOAD_INTERVAL_S_MIN
                await waiting.unload_due()
            assert len(api.asked) <= 2 * AT_ONCE, (
                "one request for the topic, and one to see whether the login is refused"
            )


async def test_notes_are_bounded() -> None:
    with serving(lambda asked: Reply(404)) as api:
        async with drain(api.url) as waiting:
            waiting.topics = {f"persistent://t/n/{number}" for number in range(40)}
            for _ in range(4):
                await waiting.unload_due()
            assert len(api.asked) == 40
            assert len(waiting.notes) == NOTES_MAX + 1


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{", b"x" * (ANSWER_BYTES_MAX + 1), b"[" * 60_000])
async def test_a_server_that_is_not_a_pulsar_broker_is_recognised(body: bytes) -> None:
    with serving(lambda asked: Reply(200, body)) as api:
        async with drain(api.url) as waiting:
            error = await waiting.until_over()
            assert "is the address right?" in str(error)
            assert len(str(error)) < 1000
            assert len(api.asked) == 1


async def test_an_unresponsive_server_ends_the_wait_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with drain(url, timeout_s=0.05) as waiting:
            error = await waiting.until_over()
            assert f"no answer from {url}{PATH} within 0.05 s" in str(error)
            assert exit_code_of(error) == 69


async def test_a_response_that_trickles_in_times_out() -> None:
    is_over = threading.Event()
    with serving(lambda asked: Reply() if is_over.wait(20) else Reply(500)) as api:
        async with drain(api.url) as waiting:
            async with asyncio.timeout(15):
                await waiting.unloading.unload_due({TOPIC}, frozenset(), 0.1)  # the deadline of the command has passed
            is_over.set()
            assert waiting.unloading.unloaded == 0
            await waiting.unload_due()
            assert len(api.asked) <= 1  # the topic may have been unloaded, so its next unload waits


async def test_a_refused_connection_is_unavailable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the port stays taken, and connections to it are refused
        async with drain(f"http://127.0.0.1:{silent.getsockname()[1]}") as waiting:
            error = await waiting.until_over()
            assert f"topic {TOPIC} is not unloaded: no answer from http://127.0.0.1" in str(error)
            assert "the connection was refused" in str(error)
            assert exit_code_of(error) == 69


def moved(to: Callable[[], AdminApi], status: int = 307) -> Callable[[Asked], Reply]:
    """Answer as a broker that does not serve the topic."""
    return lambda asked: Reply(status, headers={"Location": f"{to().url}{asked.path}?authoritative=true"})


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_to_the_broker_of_the_topic_is_followed(status: int) -> None:
    with serving() as owner, serving(moved(lambda: owner, status)) as api:
        async with drain(api.url, TOKEN) as waiting:
            await waiting.unload_due()
            assert waiting.unloading.unloaded == 1
    (asked,) = owner.asked
    assert (asked.method, asked.path) == ("PUT", f"{PATH}?authoritative=true")
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"


async def test_redirects_are_bounded() -> None:
    with serving() as api:
        api.reply = lambda asked: Reply(307, headers={"Location": f"{api.url}{PATH}"})
        async with drain(api.url) as waiting:
            error = await waiting.until_over()
            assert f"{api.url}{PATH} redirects more than {REDIRECTS_MAX} times" in str(error)
            assert (len(api.asked), exit_code_of(error)) == (REDIRECTS_MAX + 1, 1)


@pytest.mark.parametrize(
    "location", ["", "/admin/v2/brokers/health", f"http://192.0.2.1{PATH}", "http://127.0.0.1:0/", "/\xe9"]
)
async def test_a_redirect_to_another_path_or_host_is_not_followed(location: str) -> None:
    with serving(lambda asked: Reply(307, headers={"Location": location})) as api:
        async with drain(api.url, TOKEN) as waiting:
            error = await waiting.until_over()
            assert "this is not followed" in str(error)
            assert (len(api.asked), exit_code_of(error)) == (1, 1)


async def test_a_redirect_to_an_invalid_address_ends_in_an_error() -> None:
    with serving(lambda asked: Reply(307, headers={"Location": "http://[::1"})) as api:
        async with drain(api.url) as waiting:
            error = await waiting.until_over()
            assert f"topic {TOPIC} is not unloaded: no complete answer from {api.url}{PATH}" in str(error)
            assert exit_code_of(error) == 69


@pytest.mark.parametrize(
    ("at", "location", "has_token", "target"),
    [
        ("https://a", "https://b:8443/p/x/unload?q=1", True, "https://b:8443/p/x/unload?q=1"),
        ("https://a", "/x/unload", True, "https://a/x/unload"),
        ("https://a", "//b/x/unload", True, "https://b/x/unload"),
        ("https://a", "https://user:password@b/x/unload#f", True, "https://b/x/unload"),
        ("https://a", "http://a/x/unload", False, None),
        ("https://a", "http://127.0.0.1/x/unload", True, None),
        ("http://127.0.0.1", "https://b/x/unload", True, "https://b/x/unload"),
        ("http://127.0.0.1", "http://localhost:1/x/unload", True, "http://localhost:1/x/unload"),
        ("http://127.0.0.1", "http://b/x/unload", True, None),
        ("http://a", "http://b/x/unload", False, "http://b/x/unload"),
        ("http://a", "ftp://b/x/unload", False, None),
        ("http://a", "http://:80/x/unload", False, None),
        ("http://a", "http://b..c/x/unload", False, None),
        ("http://a", "http://[::1/x/unload", False, None),
        ("http://a", "http://b:99999/x/unload", False, None),
        ("http://a", "http://b/y?/x/unload", False, None),
        ("http://a", "", False, None),
    ],
)
def test_redirect_targets_are_checked(at: str, location: str, has_token: bool, target: str | None) -> None:
    try:
        found = redirected(f"{at}/x/unload", location, "/x/unload", has_token=has_token)
    except ValueError:
        found = None
    assert found == target


async def test_tokens_are_neither_logged_nor_printed(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("", "httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, name or None)
    with serving(lambda asked: Reply(307, headers={"Location": f"http://b/{TOKEN}"})) as api:
        async with AdminClient(settings := RemoteSettings(api.url, TOKEN)) as admin:
            with pytest.raises(BkhealError) as refused:
                await admin.ask("PUT", PATH, "nothing is done")
    assert "httpcore" in caplog.text
    for text in (str(refused.value), repr(refused.value), repr(admin), repr(settings)):
        assert TOKEN not in text
    assert f"Bearer {TOKEN}" not in caplog.text


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ConfigurationError, match="in the clear"):
        AdminClient(RemoteSettings("http://pulsar:8080", TOKEN))
    AdminClient(RemoteSettings("http://pulsar:8080"))


def test_an_unusable_ca_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot use the file .*: No such file or directory"):
        AdminClient(RemoteSettings("https://pulsar:8443", None, tmp_path / "none.pem"))
