"""``bkheal drain start --bookie-http`` makes the intended bookie read-only, or none."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable

import pytest

from auditor.cli.admin_requests import AdminClient
from auditor.cli.audit.remote import RemoteSettings
from auditor.cli.drains.bookie_state import with_read_only
from auditor.cli.exit_codes import exit_code_of
from bookie.metadata.bookies.drains import Drain, Drains, DrainsChangedError
from bookie.metadata.bookies.registration import BookieState, Registrations, state_of
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, Endpoint, ServiceInfo
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from tests.worlds.admin_api import Asked, Reply, serving
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT, MemoryCluster

APACHE, OTHER = BookieId("apache:3181"), BookieId("other:3181")
INFO = ServiceInfo((Endpoint(PROTOCOL_APACHE, "h", 3181, PROTOCOL_APACHE),))


async def registrations_of(*, is_read_only: bool = False) -> Registrations:
    world = await MemoryCluster().found()
    for bookie in (APACHE, OTHER):
        await world.registrations.register(bookie, INFO, is_read_only=is_read_only, takeover_deadline_s=1)
    return world.registrations


class Bookies:
    """The behavior of a bookie's HTTP server; it answers in a thread of its own."""

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


async def nothing() -> None:
    """Do not begin a drain."""


async def asked_for(
    url: str,
    registrations: Registrations,
    begin: Callable[[], Awaitable[None]] = nothing,
    notes: list[str] | None = None,
    drains: Drains | None = None,
) -> None:
    async def begun() -> None:
        await begin()

    async with AdminClient(RemoteSettings(url, timeout_s=20)) as admin:
        note = ([] if notes is None else notes).append
        found = Drains(MemoryStore(MemoryCell()), ROOT) if drains is None else drains
        await with_read_only({APACHE: admin}, registrations, found, ManualClock(turns=2), note, begun)


def changes_of(asked: list[Asked]) -> list[bool]:
    return [json.loads(request.body)["readOnly"] for request in asked if request.method == "PUT"]


async def test_the_bookie_becomes_read_only_only_once() -> None:
    registrations = await registrations_of()
    with serving(Bookies(registrations, APACHE).reply) as api:
        for _ in range(2):
            await asked_for(api.url, registrations)
    assert state_of(APACHE, await registrations.list()) is BookieState.READ_ONLY
    assert [asked.method for asked in api.asked] == ["GET", "PUT"]


async def test_another_bookie_at_the_address_is_made_writable_again() -> None:
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


async def test_another_bookie_that_was_read_only_stays_read_only() -> None:
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
async def test_an_error_contains_the_bookie_and_the_address(reply: Reply, exit_code: int) -> None:
    registrations = await registrations_of()
    with serving(lambda asked: reply) as api:
        with pytest.raises(BkhealError, match=f"{APACHE} is not made read-only, and no drain was begun") as refused:
            await asked_for(api.url, registrations)
        assert api.url in str(refused.value)
    assert exit_code_of(refused.value) == exit_code
    assert [asked.method for asked in api.asked] == ["GET"]


@pytest.mark.parametrize("answer", [Reply(500), Reply(200, b'{"readOnly": false}'), Reply(200, b"<html>")])
async def test_a_bookie_that_became_read_only_despite_an_error_response_is_writable_again(answer: Reply) -> None:
    registrations = await registrations_of()
    bookies = Bookies(registrations, APACHE)

    def reply(asked: Asked) -> Reply:
        done = bookies.reply(asked)
        return answer if changes_of([asked]) == [True] else done

    with serving(reply) as api, pytest.raises(BkhealError, match="no drain was begun"):
        await asked_for(api.url, registrations)
    assert changes_of(api.asked) == [True, False]
    assert state_of(APACHE, await registrations.list()) is BookieState.WRITABLE


async def test_an_interruption_while_it_is_made_writable_does_not_leave_the_bookie_read_only() -> None:
    registrations, is_asked, may_go_on = await registrations_of(), asyncio.Event(), threading.Event()
    bookies = Bookies(registrations, APACHE)

    def reply(asked: Asked) -> Reply:
        if changes_of([asked]) == [False]:
            bookies.loop.call_soon_threadsafe(is_asked.set)
            assert may_go_on.wait(20)
        return bookies.reply(asked)

    async def begin() -> None:
        raise StoreUnavailableError("no answer")

    notes: list[str] = []
    with serving(reply) as api:
        starting = asyncio.ensure_future(asked_for(api.url, registrations, begin, notes))
        await is_asked.wait()
        starting.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.wait([starting])
    assert state_of(APACHE, await registrations.list()) is BookieState.WRITABLE
    assert notes[-1] == f"the bookie at {api.url} is writable again"


@pytest.mark.parametrize("is_drained", [False, True])
async def test_an_interruption_during_the_request_makes_the_bookie_writable_again_unless_it_is_drained(
    is_drained: bool,
) -> None:
    registrations, drains = await registrations_of(), Drains(MemoryStore(MemoryCell()), ROOT)
    bookies, is_asked, may_go_on = Bookies(registrations, APACHE), asyncio.Event(), threading.Event()

    def reply(asked: Asked) -> Reply:
        if changes_of([asked]) == [True]:
            bookies.loop.call_soon_threadsafe(is_asked.set)
            assert may_go_on.wait(20)
        return bookies.reply(asked)

    notes: list[str] = []
    with serving(reply) as api:
        starting = asyncio.ensure_future(asked_for(api.url, registrations, notes=notes, drains=drains))
        await is_asked.wait()
        if is_drained:
            await drains.start(Drain(APACHE, "other", 1))
        for _ in range(2):
            starting.cancel()
            await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert changes_of(api.asked) == ([True] if is_drained else [True, False])
    state = BookieState.READ_ONLY if is_drained else BookieState.WRITABLE
    assert state_of(APACHE, await registrations.list()) is state
    kept, undone = (
        f"a drain of {APACHE} is recorded, so it stays read-only",
        f"the bookie at {api.url} is writable again",
    )
    assert notes[-1] == (kept if is_drained else undone)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (StoreUnavailableError("no answer"), BookieState.WRITABLE),
        (RuntimeError("a defect"), BookieState.WRITABLE),
        (WriteOutcomeUnknownError("no answer"), BookieState.READ_ONLY),
    ],
)
async def test_a_bookie_stays_read_only_only_if_its_drain_may_have_begun(error: Exception, state: BookieState) -> None:
    registrations = await registrations_of()

    async def begin() -> None:
        raise error

    notes: list[str] = []
    with serving(Bookies(registrations, APACHE).reply) as api, pytest.raises(type(error)):
        await asked_for(api.url, registrations, begin, notes)
    assert state_of(APACHE, await registrations.list()) is state
    assert any("start again" in note for note in notes) is (state is BookieState.READ_ONLY)


@pytest.mark.parametrize(("drained", "state"), [(APACHE, BookieState.READ_ONLY), (OTHER, BookieState.WRITABLE)])
async def test_a_bookie_that_another_command_drains_in_the_meantime_stays_read_only(
    drained: BookieId, state: BookieState
) -> None:
    registrations, drains = await registrations_of(), Drains(MemoryStore(MemoryCell()), ROOT)

    async def begin() -> None:
        await drains.start(Drain(drained, "other", 1))
        raise DrainsChangedError("another drain began")

    notes: list[str] = []
    with serving(Bookies(registrations, APACHE).reply) as api, pytest.raises(DrainsChangedError):
        await asked_for(api.url, registrations, begin, notes, drains)
    assert state_of(APACHE, await registrations.list()) is state
    kept = f"a drain of {APACHE} is recorded, so it stays read-only"
    assert (notes == [kept]) is (state is BookieState.READ_ONLY)


async def test_another_bookie_at_a_wrong_address_does_not_stay_read_only_for_the_drain() -> None:
    registrations, drains = await registrations_of(), Drains(MemoryStore(MemoryCell()), ROOT)
    await drains.start(Drain(APACHE, "other", 1))
    with serving(Bookies(registrations, OTHER).reply) as api, pytest.raises(BkhealError, match="another bookie"):
        await asked_for(api.url, registrations, drains=drains)
    assert state_of(OTHER, await registrations.list()) is BookieState.WRITABLE


async def test_if_the_drains_cannot_be_read_the_bookie_stays_read_only() -> None:
    async def refuse(operation: str, path: str) -> Fault | None:
        raise StoreUnavailableError("no answer")

    async def begin() -> None:
        raise StoreUnavailableError("the session ended")

    registrations, notes = await registrations_of(), list[str]()
    drains = Drains(MemoryStore(MemoryCell(), fault_hook=refuse), ROOT)
    with (
        serving(Bookies(registrations, APACHE).reply) as api,
        pytest.raises(StoreUnavailableError, match="the session ended"),
    ):
        await asked_for(api.url, registrations, begin, notes, drains)
    assert changes_of(api.asked) == [True]
    assert notes == [
        f"no drain was begun; the drains cannot be read, so {APACHE} may stay read-only: start again (no answer)"
    ]


async def test_an_interruption_while_the_drain_is_recorded_does_not_make_the_bookie_writable() -> None:
    registrations = await registrations_of()
    is_recording, is_recorded = asyncio.Event(), asyncio.Event()

    async def begin() -> None:
        is_recording.set()
        await is_recorded.wait()

    with serving(Bookies(registrations, APACHE).reply) as api:
        starting = asyncio.ensure_future(asked_for(api.url, registrations, begin))
        await is_recording.wait()
        starting.cancel()
        await asyncio.sleep(0)
        is_recorded.set()
        await asyncio.wait([starting])
    assert changes_of(api.asked) == [True]
    assert state_of(APACHE, await registrations.list()) is BookieState.READ_ONLY


async def test_a_closed_terminal_does_not_keep_the_bookie_read_only() -> None:
    registrations = await registrations_of()

    def note(text: str) -> None:
        raise OSError(5, "the terminal is closed")

    async def begin() -> None:
        raise StoreUnavailableError("no answer")

    with serving(Bookies(registrations, APACHE).reply) as api:
        async with AdminClient(RemoteSettings(api.url, timeout_s=20)) as admin:
            drains = Drains(MemoryStore(MemoryCell()), ROOT)
            with pytest.raises(StoreUnavailableError):
                await with_read_only({APACHE: admin}, registrations, drains, ManualClock(turns=2), note, begin)
    assert state_of(APACHE, await registrations.list()) is BookieState.WRITABLE
