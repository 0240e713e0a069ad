"""``bkheal drain start --wait``: one command from the start to the proof, and no partial changes."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.admin_requests import AdminClient
from auditor.cli.audit.remote import RemoteSettings
from auditor.cli.drains import begin as drain_begin
from auditor.cli.drains import command as drain
from auditor.cli.drains.begin import question
from auditor.cli.drains.bookie_state import http_address
from auditor.cli.drains.topic_unloading import check_answers
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, PROTOCOL_HTTP, Endpoint, ServiceInfo
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from tests.worlds.admin_api import AdminApi, Asked, Reply, serving
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata, names

APACHE = BookieId("apache")
CLUSTERS = b'["c"]'
CUSTOM = (
    ("application", b"pulsar"),
    ("component", b"managed-ledger"),
    ("pulsar/managed-ledger", b"t/n/persistent/it%27s"),
)


class Drained:
    """A cluster with an Apache bookie and its HTTP server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = CommandCluster()
        monkeypatch.setattr(drain, "connected", self._connected)
        self.status = 200
        self.is_read_only = False

    @asynccontextmanager
    async def _connected(self, uri: str, **_: Any) -> AsyncIterator[Any]:
        async with self.cluster.connected(uri) as client:
            self.loop = asyncio.get_running_loop()
            yield client

    async def fill(self, http_port: int, *, is_open: bool) -> None:
        await self.cluster.fill()
        self.port = http_port
        await self._register()
        async with self.cluster.connected("") as client:
            if is_open:
                metadata = replace(make_metadata((0, "apache c"), quorum=(2, 2), last=None), custom=CUSTOM)
                await client.ports.ledgers.create(LedgerId(20), metadata)

    async def _register(self) -> None:
        info = ServiceInfo(
            (
                Endpoint("bookie", "127.0.0.1", 3181, PROTOCOL_APACHE),
                Endpoint("httpserver", "0.0.0.0", self.port, PROTOCOL_HTTP),
            )
        )
        keeper = self.cluster.keeper
        registrations = Registrations(keeper, await open_cluster(keeper, ROOT))
        await registrations.register(APACHE, info, is_read_only=self.is_read_only, takeover_deadline_s=1)

    def http(self, asked: Asked) -> Reply:
        """Answer as the HTTP server of the bookie does."""
        if self.status != 200:
            return Reply(self.status)
        if asked.method == "PUT":
            self.is_read_only = json.loads(asked.body)["readOnly"]
            asyncio.run_coroutine_threadsafe(self._register(), self.loop).result(20)
        return Reply(200, json.dumps({"readOnly": self.is_read_only}).encode())

    def pulsar(self, asked: Asked) -> Reply:
        """Answer as a broker does; unloading the topic removes its ledger from the bookie."""
        if asked.path == "/admin/v2/clusters":
            return Reply(200, CLUSTERS)
        asyncio.run_coroutine_threadsafe(self._leave(), self.loop).result(20)
        return Reply(204)

    async def _leave(self) -> None:
        keeper = self.cluster.keeper
        ledgers = LedgerStore(keeper, await open_cluster(keeper, ROOT), random.Random(1))
        await keeper.delete(ledgers.path(LedgerId(20)))

    def drains(self) -> list[str]:
        async def read() -> list[str]:
            async with self.cluster.connected("") as client:
                return sorted(await Drains(client.store, client.cluster.root).read())

        return asyncio.run(read())


@contextmanager
def drained(monkeypatch: pytest.MonkeyPatch, *, is_open: bool = False) -> Iterator[tuple[Drained, AdminApi]]:
    world = Drained(monkeypatch)
    with serving(world.http) as http:
        asyncio.run(world.fill(urlsplit(http.url).port or 0, is_open=is_open))
        yield world, http


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["drain", "start", "apache", "--yes", *words, "--metadata-uri", "zk://h:1/ledgers"])


def test_a_bookie_is_made_read_only_through_its_registered_server_and_then_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with drained(monkeypatch) as (world, http):
        done = call("--wait")
        assert done.exit_code == 0, done.output
        assert world.is_read_only
        assert [asked.method for asked in http.asked] == ["GET", "PUT"]
        assert "of 3 ledgers, all readable, none names it. Stop it, then `bkheal decommission apache`" in done.stdout
        again = json.loads(call("--wait", "-o", "json").stdout)
        assert (again["ledgers_left"], again["ledgers_read"], again["begun"]["bookies"]) == (0, 3, ["apache"])
        assert again["bookies"][0]["state"] == "read_only"


def test_without_pulsar_the_unload_commands_are_printed_before_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained(monkeypatch, is_open=True) as (world, _):
        done = call("--wait", "--timeout", "0")
        assert done.exit_code == 1
        assert """pulsar-admin topics unload 'persistent://t/n/it'"'"'s'""" in done.stderr
        assert world.drains() == ["apache"]


def test_only_the_topics_of_open_ledgers_are_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained(monkeypatch, is_open=True) as (world, _), serving(world.pulsar) as pulsar:
        done = call("--wait", "--pulsar-admin", pulsar.url)
        assert done.exit_code == 0, done.output
        assert "pulsar-admin" not in done.stderr
        assert [(asked.method, asked.path) for asked in pulsar.asked] == [
            ("GET", "/admin/v2/clusters"),
            ("PUT", "/admin/v2/persistent/t/n/it%27s/unload"),
        ]


@pytest.mark.parametrize(
    ("answer", "exit_code"),
    [
        (Reply(401), 1),
        (Reply(403), 1),
        (Reply(404), 1),
        (Reply(503), 69),
        (Reply(200, b"<html>"), 1),
        (Reply(200, b"{}"), 1),
    ],
)
def test_nothing_is_changed_if_pulsar_refuses(monkeypatch: pytest.MonkeyPatch, answer: Reply, exit_code: int) -> None:
    with drained(monkeypatch) as (world, http), serving(lambda asked: answer) as pulsar:
        done = call("--wait", "--pulsar-admin", pulsar.url)
        assert isinstance(done.exception, BkhealError)
        assert exit_code_of(done.exception) == exit_code
        assert f"nothing was begun: {pulsar.url}/admin/v2/clusters answered" in str(done.exception)
        assert (world.drains(), world.is_read_only, http.asked) == ([], False, [])


def test_nothing_is_changed_if_the_bookies_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained(monkeypatch) as (world, http):
        world.status = 500
        done = call("--wait")
        assert isinstance(done.exception, BkhealError)
        assert f"apache is not made read-only, and no drain was begun: {http.url}" in str(done.exception)
        assert (world.drains(), world.is_read_only) == ([], False)


def test_if_one_of_two_bookies_cannot_be_made_read_only_the_other_is_made_writable_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with drained(monkeypatch) as (world, http), socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the port stays taken, and connections to it are refused
        info = ServiceInfo(
            (
                Endpoint("bookie", "127.0.0.1", 3181, PROTOCOL_APACHE),
                Endpoint("httpserver", "", silent.getsockname()[1], PROTOCOL_HTTP),
            )
        )

        async def register() -> None:
            keeper = world.cluster.keeper
            registrations = Registrations(keeper, await open_cluster(keeper, ROOT))
            await registrations.register(BookieId("second"), info, is_read_only=False, takeover_deadline_s=1)

        asyncio.run(register())
        done = call("second", "--wait", "--force")
        assert isinstance(done.exception, BkhealError)
        assert [json.loads(asked.body)["readOnly"] for asked in http.asked if asked.method == "PUT"] == [True, False]
        assert f"note: the bookie at {http.url} is writable again" in done.stderr
        assert (world.drains(), world.is_read_only) == ([], False)


def test_a_refused_drain_does_not_make_the_bookie_of_another_drain_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained(monkeypatch, is_open=True) as (world, http):
        register, other = world._register, BookieId("e")
        is_begun = False

        async def add_another() -> None:
            keeper = world.cluster.keeper
            registrations = Registrations(keeper, await open_cluster(keeper, ROOT))
            await registrations.register(other, service_info("e"), is_read_only=False, takeover_deadline_s=1)

        async def begin_another() -> None:  # two of the four bookies, so a third one is refused
            nonlocal is_begun
            await register()
            if not is_begun:
                is_begun = True
                drains = Drains(world.cluster.keeper, ROOT)
                await drains.start(Drain(APACHE, "other", 1), Drain(other, "other", 1))

        asyncio.run(add_another())
        monkeypatch.setattr(world, "_register", begin_another)
        done = call("d", "--wait", "--timeout", "0")
        assert done.exit_code == 1
        assert "there would be too few bookies" in done.stderr
        assert "note: a drain of apache is recorded, so it stays read-only" in done.stderr
        assert (world.drains(), world.is_read_only) == (["apache", "e"], True)
        assert [asked.method for asked in http.asked] == ["GET", "PUT"]


def test_the_change_is_recorded_before_the_bookie_is_made_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    with drained(monkeypatch) as (world, _):
        register = world._register

        async def look() -> None:
            changes = await ChangeRecords(world.cluster.keeper, ROOT, world.cluster.clock).newest(9)
            recorded.extend(change.action for change in changes)
            await register()

        monkeypatch.setattr(world, "_register", look)
        assert call("--wait").exit_code == 0
    assert recorded == ["drain start"]


def test_without_a_wait_no_bookie_server_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained(monkeypatch) as (world, http):
        done = call()
        assert done.exit_code == 0
        assert "apache: an Apache bookie" in done.stderr
        assert (world.drains(), http.asked) == (["apache"], [])


def answer_after(monkeypatch: pytest.MonkeyPatch, world: Drained, change: Callable[[Drains], Any]) -> list[str]:
    """Change the drains while the operator is prompted. Return the list that collects the questions."""
    asked: list[str] = []

    async def change_them() -> None:
        async with world.cluster.connected("") as client:
            await change(Drains(client.store, client.cluster.root))

    def confirm(question: str, *, is_sure: bool) -> None:
        asked.append(question)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, change_them()).result()

    monkeypatch.setattr(drain_begin, "confirm", confirm)
    return asked


def test_a_drain_that_starts_during_the_prompt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained(monkeypatch, is_open=True) as (world, http):
        answer_after(monkeypatch, world, lambda drains: drains.start(Drain(BookieId("d"), "other", 1)))
        done = call("--wait", "--timeout", "0")
        assert done.exit_code == 1
        assert "ensembles of 2 bookies (write quorum 2) are in use and 1 writable bookie would be left" in done.stderr
        assert (world.drains(), http.asked) == (["d"], [])


def test_a_drain_that_ends_during_the_prompt_causes_another_check_but_no_second_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with drained(monkeypatch) as (world, http):
        asyncio.run(Drains(world.cluster.keeper, ROOT).start(Drain(BookieId("gone"), "other", 1)))
        asked = answer_after(monkeypatch, world, lambda drains: drains.stop(BookieId("gone")))
        assert call("--wait").exit_code == 0
        assert (world.drains(), len(asked), [request.method for request in http.asked]) == (
            ["apache"],
            1,
            ["GET", "PUT"],
        )


async def test_an_unresponsive_admin_api_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with AdminClient(RemoteSettings(url, timeout_s=0.05)) as admin:
            with pytest.raises(BkhealError, match=r"nothing was begun: no answer from .* within 0.05 s") as refused:
                await check_answers(admin)
    assert exit_code_of(refused.value) == 69


@pytest.mark.parametrize(
    ("host", "own", "address"),
    [
        ("0.0.0.0", "b", "http://b:8000"),
        ("::", "fd00::1", "http://[fd00::1]:8000"),
        ("h", "b", "http://h:8000"),
        ("", "", ""),
    ],
)
def test_the_http_address_of_a_bookie(host: str, own: str, address: str) -> None:
    bookie, server = Endpoint("b", own, 3181, PROTOCOL_APACHE), Endpoint("h", host, 8000, PROTOCOL_HTTP)
    assert http_address(ServiceInfo((bookie, server))) == address
    assert http_address(ServiceInfo((bookie,))) == ""
    assert http_address(ServiceInfo((bookie, replace(server, port=0)))) == ""
    assert http_address(None) == ""


def test_the_prompt_contains_the_address() -> None:
    (bookie,) = names("apache")
    asked = question([bookie], [bookie], [], {bookie: "http://b:8000"})
    assert asked == "Drain apache? apache: Apache's, switched to read-only through http://b:8000."
