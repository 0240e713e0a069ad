"""``bkheal drain start --bookie-http``: the intended bookie becomes read-only, or none does."""

from __future__ import annotations

import asyncio
import json

import pytest

from auditor.cli.audit.remote import RemoteSettings
from auditor.cli.cluster.admin_requests import AdminClient
from auditor.cli.cluster.bookie_state import make_read_only
from auditor.cli.exit_codes import exit_code_of
from bookie.metadata.bookies.registration import BookieState, Registrations, state_of
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, Endpoint, ServiceInfo
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from tests.worlds.admin_api import Asked, Reply, serving
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import MemoryCluster

APACHE, OTHER = BookieId("apache:3181"), BookieId("other:3181")
INFO = ServiceInfo((Endpoint(PROTOCOL_APACHE, "h", 3181, PROTOCOL_APACHE),))


async def registrations_of(*, is_read_only: bool = False) -> Registrations:
    world = await MemoryCluster().found()
    for bookie in (APACHE, OTHER):
        await world.registrations.register(bookie, INFO, is_read_only=is_read_only, takeover_deadline_s=1)
    return world.registrations


class Bookies:
    """The behaviour of a bookie's HTTP server, from its answering thread."""

    def __init__(self, registrations: Registrations, bookie: BookieId, *, is_read_only: bool = False) -> None:
        self.registrations, self.bookie, self.is_read_only = registrations, bookie, is_read_only
        self.loop = asyncio.get_running_loop()

    def reply(self, asked: Asked) -> Reply:
        assert asked.path == "/api/v1/bookie/state/readonly"
        if asked.method == "PUT":
            self.is_read_only = json.loads(asked.body)["readOnly"]
            asyncio.run_coroutine_threadsafe(self._register(), self.loop).result(20)
        return Reply(200, json.dumps({"readOnly": self.is_read_only}).encode())

    async def _register(self) -> None:
        await self.registrations.register(self.bookie, INFO, is_read_only=self.is_read_only, takeover_deadline_s=1)


async def asked_for(url: str, registrations: Registrations) -> None:
    async with AdminClient(RemoteSettings(url, timeout_s=20)) as admin:
        await make_read_only(admin, APACHE, registrations, ManualClock(turns=2))


async def test_the_bookie_becomes_read_only_once() -> None:
    registrations = await registrations_of()
    with serving(Bookies(registrations, APACHE).reply) as api:
        for _ in range(2):
            await asked_for(api.url, registrations)
    assert state_of(APACHE, await registrations.list()) is BookieState.READ_ONLY
    assert [asked.method for asked in api.asked] == ["GET", "PUT"]


async def test_the_address_of_another_bookie_takes_that_bookie_not_away() -> None:
    registrations = await registrations_of()
    with (
        serving(Bookies(registrations, OTHER).reply) as api,
        pytest.raises(BkhealError, match=f"{APACHE} is not made read-only") as refused,
    ):
        await asked_for(api.url, registrations)
    assert api.url in str(refused.value)
    found = await registrations.list()
    assert {state_of(bookie, found) for bookie in (APACHE, OTHER)} == {BookieState.WRITABLE}
    assert exit_code_of(refused.value) == 1


async def test_another_bookie_that_was_read_only_stays_so() -> None:
    registrations = await registrations_of()
    with (
        serving(Bookies(registrations, OTHER, is_read_only=True).reply) as api,
        pytest.raises(BkhealError, match="another one"),
    ):
        await asked_for(api.url, registrations)
    assert [asked.method for asked in api.asked] == ["GET"]


@pytest.mark.parametrize(
    ("reply", "exit_code"),
    [
        (Reply(404), 1),
        (Reply(401), 1),
        (Reply(400, b"not supported"), 1),
        (Reply(500), 69),
        (Reply(200, b"<html>"), 1),
        (Reply(200, b'{"readOnly": "yes"}'), 1),
        (Reply(307, headers={"Location": "http://192.0.2.1/"}), 1),
        (Reply(204), 1),
    ],
)
async def test_a_bad_answer_names_the_bookie_and_the_address(reply: Reply, exit_code: int) -> None:
    registrations = await registrations_of()
    with serving(lambda asked: reply) as api:
        with pytest.raises(BkhealError, match=f"{APACHE} is not made read-only, and no drain was begun") as refused:
            await asked_for(api.url, registrations)
        assert api.url in str(refused.value)
    assert exit_code_of(refused.value) == exit_code
    assert [asked.method for asked in api.asked] == ["GET"]
