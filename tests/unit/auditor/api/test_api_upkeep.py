"""Operators' requests over a real socket, on a cluster in memory: what they change, and what is recorded or refused.

Bookies c and d are registered. Ledgers 7 and 8 have no live copy and are parked; 9 is marked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from auditor.operating import drains as operating_drains
from auditor.operating.client import Actor, RefusedError
from auditor.operating.drains import check_and_record, record_drains, start_drains
from auditor.operating.limits import read_limits, set_limits
from bookie.metadata.bookies.drains import Drain, DrainListing, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.copy_limits import CopyLimitsStore, CopyProfile
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339
from bookie.runtime.access.tokens import Role
from tests.unit.auditor.api.test_api_http import good
from tests.worlds.api import ApiWorld, Reply, running
from tests.worlds.clocks import EPOCH_MS
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.ledgers import make_metadata

LETTERS = "/api/v1/dead-letters"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with running(tmp_path) as made:
        yield made


async def changes(world: ApiWorld) -> list[tuple[str, str]]:
    """Return the action and the detail of each recorded change, newest first."""
    items = (await good(world, "GET", "/api/v1/changes")).json["items"]
    assert all((item["by"], item["via"]) == ("somebody-who-may-administer", "http") for item in items)
    return [(item["action"], item["detail"]) for item in items]


async def test_dead_letters_are_listed_in_pages_with_advice(world: ApiWorld) -> None:
    first = (await good(world, "GET", f"{LETTERS}?limit=1")).json
    assert [(row["ledger_id"], row["reason"], row["missing"]) for row in first["items"]] == [
        (7, "no_live_copy", ["a", "b"])
    ]
    assert "bring back a bookie" in first["items"][0]["advice"]
    second = (await good(world, "GET", f"{LETTERS}?limit=1&after={first['next_after']}")).json
    assert ([row["ledger_id"] for row in second["items"]], second["next_after"]) == ([8], None)
    assert (await good(world, "GET", f"{LETTERS}?reason=misplaced")).json["items"] == []


async def test_dead_letters_are_retried_all_or_none(world: ApiWorld) -> None:
    refused = await world.operate("POST", f"{LETTERS}/retry", json={"ledgers": [7, 9]})
    assert (refused.status, refused.problem) == (404, "not-found")
    assert await changes(world) == []
    await good(world, "POST", f"{LETTERS}/retry", json={"ledgers": [7]})
    assert [row["ledger_id"] for row in (await good(world, "GET", LETTERS)).json["items"]] == [8]
    assert await changes(world) == [("dead-letters retry", "ledgers 7")]


async def test_a_loss_is_accepted_only_if_its_ledger_ids_are_repeated(world: ApiWorld) -> None:
    asked: dict[str, Any] = {"ledgers": [7], "reason": "both disks were destroyed"}
    for confirm in ({}, {"confirm": [8]}):
        reply = await world.operate("POST", f"{LETTERS}/accept-loss", json={**asked, **confirm})
        assert (reply.status, reply.problem) == (422, "contradiction")
    dry = await good(world, "POST", f"{LETTERS}/accept-loss", json={**asked, "dry_run": True})
    assert [row["outcome"] for row in dry.json["ledgers"]] == ["accepted"]
    assert await changes(world) == []
    done = await good(world, "POST", f"{LETTERS}/accept-loss", json={**asked, "confirm": [7]})
    assert [(row["outcome"], row["lost"][0]["bookies"]) for row in done.json["ledgers"]] == [("accepted", ["a", "b"])]
    assert await world.upkeep.cluster.marked() == [8, 9]
    accepted = (await good(world, "GET", "/api/v1/accepted-losses")).json["items"]
    assert [(row["ledger_id"], row["by"]) for row in accepted] == [(7, "somebody-who-may-administer")]
    assert await changes(world) == [("dead-letters accept-loss", "ledgers 7: both disks were destroyed")]


async def test_a_dead_letter_is_dropped_and_other_ledgers_are_refused(world: ApiWorld) -> None:
    refused = await good(world, "POST", f"{LETTERS}/drop", json={"ledgers": [7, 9], "confirm": [7, 9]})
    assert [row["outcome"] for row in refused.json["ledgers"]] == ["not_tried", "refused"]
    await good(world, "POST", f"{LETTERS}/drop", json={"ledgers": [8], "confirm": [8]})
    assert await world.upkeep.cluster.marked() == [7, 9]


async def test_an_operator_may_neither_accept_losses_nor_set_the_delay(world: ApiWorld) -> None:
    token = world.tokens[Role.OPERATE].token
    body = {"ledgers": [7], "confirm": [7], "reason": "x"}
    for method, path, sent in (
        ("POST", f"{LETTERS}/accept-loss", body),
        ("POST", f"{LETTERS}/drop", body),
        ("PUT", "/api/v1/recovery", {"lost_bookie_delay_seconds": 1}),
        ("PUT", "/api/v1/recovery", {"enabled": False}),
        ("PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay", {"delay_seconds": 1}),
    ):
        assert (await world.ask(method, path, token=token, json=sent)).status == 403
    assert await changes(world) == []
    assert await world.upkeep.cluster.marked() == [7, 8, 9]


async def test_ok_to_stop_sets_the_status_code(world: ApiWorld) -> None:
    yes = await good(world, "GET", "/api/v1/ok-to-stop?bookie=c")
    assert (yes.status, yes.json["ok"], yes.json["ledgers"]) == (200, True, 3)
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c d"), quorum=(2, 2), last=9))
    no = await world.operate("GET", "/api/v1/ok-to-stop?bookie=c&bookie=d")
    assert (no.status, no.problem) == (409, "not-ok-to-stop")
    assert "1 ledger would be left with too few copies, the worst: ledger 10 from" in no.json["detail"]
    assert no.json["verdict"]["worst"][0]["ledger_id"] == 10
    assert (await world.operate("GET", "/api/v1/ok-to-stop?bookie=unknown")).status == 404
    assert (await good(world, "GET", "/api/v1/ok-to-stop?bookie=a")).json["not_registered"] == ["a"]
    assert (await world.operate("GET", "/api/v1/ok-to-stop")).status == 400


async def test_a_bookie_is_drained_and_the_drain_cancelled(world: ApiWorld) -> None:
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c"), quorum=(1, 1), last=9))
    started = (await good(world, "PUT", "/api/v1/drains/c")).json
    assert (started["ledgers"], started["bookies"]) == (1, ["c"])
    assert await world.upkeep.cluster.marked() == [7, 8, 9, 10]
    (drain,) = (await good(world, "GET", "/api/v1/drains")).json["items"]
    assert (drain["bookie_id"], drain["by"], drain["state"]) == ("c", "somebody-who-may-administer", "writable")
    left = (await good(world, "GET", "/api/v1/drain-status")).json
    assert ([row["bookie_id"] for row in left["bookies"]], left["ledgers_left"], left["moving"]) == (["c"], 1, 1)
    assert (await good(world, "GET", "/api/v1/drain-status?bookie=d")).json["ledgers_left"] == 0
    assert (await good(world, "GET", "/api/v1/drain-status?bookie=a")).json["ledgers_left"] == 3
    too_many = "&".join(["bookie=d"] * 101)
    for query, status in (("bookie=e", 404), ("bookie=c%20d", 400), ("bookies=c", 400), (too_many, 400)):
        assert (await world.operate("GET", f"/api/v1/drain-status?{query}")).status == status
    assert (await good(world, "DELETE", "/api/v1/drains/c")).json["stopped"] == ["c"]
    assert not await Drains(world.upkeep.cluster.keeper, ROOT).read()
    lost = await world.operate("PUT", "/api/v1/drains/a")
    assert (lost.status, lost.problem) == (404, "not-found")
    assert [action for action, _ in await changes(world)] == ["drain stop", "drain start"]
    for name in ("c%2Fx", "..%2Fdrains", "%00", "d%20e"):
        for method in ("PUT", "DELETE"):
            assert (await world.operate(method, f"/api/v1/drains/{name}")).status == 404


async def test_drains_of_several_bookies_begin_all_or_none(world: ApiWorld) -> None:
    path, drains = "/api/v1/drains", Drains(world.upkeep.cluster.keeper, ROOT)
    for wrong, status in (
        ({}, 400),
        ({"bookies": []}, 400),
        ({"bookies": "c"}, 400),
        ({"bookies": ["c", 7]}, 400),
        ({"bookies": ["c", "d e"]}, 400),
        ({"bookies": ["c"] * 51}, 400),
        ({"bookies": ["c"], "force": True}, 400),
        ({"bookies": ["c", "nobody"]}, 404),
    ):
        assert (await world.operate("POST", path, json=wrong)).status == status, wrong
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "d"), quorum=(1, 1), last=9))
        refused = await world.operate("POST", path, json={"bookies": ["c", "d"]})
        assert (refused.status, refused.problem) == (409, "refused")
        assert await drains.read() == {}
        assert await changes(world) == []
        await client.ports.ledgers.delete(10)
    assert (await good(world, "POST", path, json={"bookies": ["c", "d", "c"]})).json["bookies"] == ["c", "d"]
    assert await changes(world) == [("drain start", "c, d")]
    assert (await good(world, "DELETE", f"{path}/d")).json["stopped"] == ["d"]
    assert (await drains.read()).keys() == {"c"}


class Beginning:
    """A request to drain c and d, paused before one of its steps until ``go_on`` is set."""

    def __init__(self, world: ApiWorld, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        self.world = world
        self.is_there, self.go_on = asyncio.Event(), asyncio.Event()
        real = getattr(operating_drains, step)

        async def stopped(*given: Any, **options: Any) -> Any:
            self.is_there.set()
            await self.go_on.wait()
            return await real(*given, **options)

        monkeypatch.setattr(operating_drains, step, stopped)

    async def begin(self) -> asyncio.Task[Reply]:
        """Send the request, and return when it has reached the step."""
        keeper = self.world.upkeep.cluster.keeper
        registrations = Registrations(keeper, await open_cluster(keeper, ROOT))
        await registrations.register(BookieId("e"), service_info("e"), is_read_only=False, takeover_deadline_s=1)
        async with self.world.upkeep.cluster.connected("") as client:
            for ledger_id, bookie in ((10, "c"), (11, "d")):
                await client.ports.ledgers.create(ledger_id, make_metadata((0, bookie), quorum=(1, 1), last=9))
        request = self.world.operate("POST", "/api/v1/drains", json={"bookies": ["c", "d"]})
        reply = asyncio.create_task(request)
        await self.is_there.wait()
        return reply

    async def drained(self) -> list[str]:
        return sorted(await Drains(self.world.upkeep.cluster.keeper, ROOT).read())


async def test_a_drain_stopped_before_it_is_recorded_cancels_the_start_of_all(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = Beginning(world, monkeypatch, "check_startable")
    reply = await beginning.begin()
    assert (await good(world, "DELETE", "/api/v1/drains/c")).json["stopped"] == []
    assert ((await reply).status, (await reply).problem) == (409, "conflict")
    assert (await beginning.drained(), await changes(world)) == ([], [])


async def test_a_drain_stopped_while_ledgers_are_marked_does_not_stop_the_others(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = Beginning(world, monkeypatch, "holdings_of")
    reply = await beginning.begin()
    assert (await good(world, "DELETE", "/api/v1/drains/c")).json["stopped"] == ["c"]
    beginning.go_on.set()
    assert ((await reply).status, (await reply).json["bookies"]) == (200, ["d"])
    assert await beginning.drained() == ["d"]
    assert 11 in await world.upkeep.cluster.marked()


async def test_a_drain_stopped_while_it_is_recorded_ends_and_the_others_are_marked(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = Beginning(world, monkeypatch, "record_drains")
    reply = await beginning.begin()
    ask, is_asked = world.upkeep.run, asyncio.Event()

    async def noted(work: Any) -> Any:
        is_asked.set()
        return await ask(work)

    monkeypatch.setattr(world.upkeep, "run", noted)
    stopping = asyncio.create_task(good(world, "DELETE", "/api/v1/drains/c"))
    await is_asked.wait()
    beginning.go_on.set()
    assert (await stopping).json["stopped"] == ["c"]
    assert ((await reply).status, (await reply).json["bookies"]) == (200, ["d"])
    assert await beginning.drained() == ["d"]
    assert 11 in await world.upkeep.cluster.marked()


async def test_nothing_is_marked_after_all_drains_of_a_request_are_stopped(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = Beginning(world, monkeypatch, "holdings_of")
    reply = await beginning.begin()
    for bookie in ("c", "d"):
        assert (await good(world, "DELETE", f"/api/v1/drains/{bookie}")).json["stopped"] == [bookie]
    assert ((await reply).status, (await reply).problem) == (409, "conflict")
    assert await beginning.drained() == []
    assert await world.upkeep.cluster.marked() == [7, 8, 9]


async def test_an_invalid_window_is_refused_and_changes_nothing(world: ApiWorld) -> None:
    path, good_body = "/api/v1/maintenance", {"target": "c", "seconds": 60}
    for change, status in (
        ({"seconds": 0}, 400),
        ({"seconds": 3 * 86_400 + 1}, 400),
        ({"target": "c d"}, 400),
        ({"target": 7}, 400),
        ({"note": "n" * 201}, 400),
        ({"hold_critical": 1}, 400),
        ({"until": "later"}, 400),
        ({"target": "e"}, 404),
        ({"target": "readonly"}, 404),
        ({"target": "rack:;"}, 404),
        ({"target": "rack:/r9"}, 409),
    ):
        assert (await world.operate("PUT", path, json={**good_body, **change})).status == status, change
    assert (await world.operate("PUT", path, json={"seconds": 60})).status == 400
    for query, status in (("", 400), ("?target=c%20d", 400), ("?target=c&x=1", 400), ("?target=e", 200)):
        assert (await world.operate("DELETE", path + query)).status == status, query
    assert (await good(world, "GET", path)).json["items"] == []
    assert await changes(world) == []


async def test_a_drain_that_would_leave_too_few_bookies_is_refused(world: ApiWorld) -> None:
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c d"), quorum=(2, 2), last=9))
    refused = await world.operate("PUT", "/api/v1/drains/c")
    assert (refused.status, refused.problem) == (409, "refused")
    assert not await Drains(world.upkeep.cluster.keeper, ROOT).read()
    assert await changes(world) == []


async def test_two_concurrent_drains_cannot_leave_too_few_bookies(world: ApiWorld) -> None:
    async with world.upkeep.cluster.connected("") as first, world.upkeep.cluster.connected("") as second:
        for ledger_id, bookie in ((10, "c"), (11, "d")):
            await first.ports.ledgers.create(ledger_id, make_metadata((0, bookie), quorum=(1, 1), last=9))
        asked = [(first, BookieId("c")), (second, BookieId("d"))]
        actor = Actor("me", "http")
        found = await asyncio.gather(
            *(start_drains(client, actor, (bookie,)) for client, bookie in asked), return_exceptions=True
        )
        assert [type(result) for result in found].count(RefusedError) == 1
        assert len(await Drains(first.store, ROOT).read()) == 1


async def test_drains_are_refused_if_other_drains_change_during_every_check(world: ApiWorld) -> None:
    async with world.upkeep.cluster.connected("") as client:
        drains = Drains(client.store, ROOT)

        async def record(seen: DrainListing | None) -> None:
            await drains.start(Drain(BookieId("gone"), "other", 1))
            await drains.stop(BookieId("gone"))
            await record_drains(client, Actor("me", "http"), [BookieId("c")], seen)

        with pytest.raises(RefusedError, match="during every check"):
            await check_and_record(client, [BookieId("c")], record)
        assert not await drains.read()


async def test_recovery_and_the_delay_are_read_and_set(world: ApiWorld) -> None:
    switches = RecoverySwitches(world.upkeep.cluster.keeper, ROOT)
    body = {"enabled": False, "lost_bookie_delay_seconds": 60}
    set_to = (await good(world, "PUT", "/api/v1/recovery", json=body)).json
    assert (set_to["enabled"], set_to["lost_bookie_delay_seconds"]) == (False, 60)
    assert (await switches.is_disabled(), await switches.lost_bookie_delay_s()) == (True, 60)
    assert (await good(world, "PUT", "/api/v1/recovery", json={"enabled": False})).json["enabled"] is False
    assert await changes(world) == [("recovery disable", ""), ("recovery delay", "60 s, was 0")]


async def test_recovery_that_was_just_disabled_is_enabled_through_a_stale_server(world: ApiWorld) -> None:
    switches, past = RecoverySwitches(world.upkeep.cluster.keeper, ROOT), world.upkeep.cluster.copy()
    await switches.disable()
    with world.upkeep.cluster.behind(past):
        assert (await good(world, "PUT", "/api/v1/recovery", json={"enabled": True})).json["enabled"] is True
    assert not await switches.is_disabled()


async def test_copy_limits_are_set_separately_and_removed(world: ApiWorld) -> None:
    path = "/api/v1/copy-limits"
    await good(world, "PUT", path, json={"bytes_per_second": 50, "profile": "client-first"})
    await good(world, "PUT", path, json={"requests_per_second": 7})
    shown = (await good(world, "GET", path)).json
    assert (shown["bytes_per_second"], shown["requests_per_second"], shown["profile"]) == (50, 7, "client-first")
    assert shown["by"] == "somebody-who-may-administer"
    for wrong in ({}, {"bytes": 1}, {"bytes_per_second": -1}, {"profile": "fast"}):
        assert (await world.operate("PUT", path, json=wrong)).status == 400
    assert (await good(world, "DELETE", path)).json["limited"] is False
    store = CopyLimitsStore(world.upkeep.cluster.keeper, ROOT)
    assert (await store.read()).limits is None
    assert [action for action, _ in await changes(world)] == ["throttle clear", "throttle set", "throttle set"]


async def test_limits_set_by_two_operators_at_the_same_time_are_both_kept(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.upkeep.cluster.connected("") as first, world.upkeep.cluster.connected("") as second:
        await set_limits(first, Actor("a", "command"), {"profile": CopyProfile.BALANCED})
        write = first.store.set

        async def write_late(*given: Any) -> Any:
            monkeypatch.undo()
            await set_limits(second, Actor("b", "command"), {"requests_per_second": 7})
            return await write(*given)

        monkeypatch.setattr(first.store, "set", write_late)
        done = await set_limits(first, Actor("a", "command"), {"bytes_per_second": 50})
        assert (done["bytes_per_second"], done["requests_per_second"], done["profile"]) == (50, 7, "balanced")
        del done["dry_run"]
        assert await read_limits(second) == {**done, "workers": []}


async def test_a_marked_ledger_is_boosted_for_a_limited_time(world: ApiWorld) -> None:
    (row,) = (await good(world, "PUT", "/api/v1/boosts/9", json={"seconds": 60})).json["ledgers"]
    assert (row["outcome"], row["parked"]) == ("boosted", False)
    active = await Boosts(world.upkeep.cluster.keeper, ROOT).active(EPOCH_MS)
    assert [(boost.ledger_id, boost.until_ms) for boost in active] == [(9, EPOCH_MS + 60_000)]
    assert len((await good(world, "GET", "/api/v1/boosts")).json["items"]) == 1
    assert (await world.operate("PUT", "/api/v1/boosts/1", json={"seconds": 60})).status == 404
    await good(world, "DELETE", "/api/v1/boosts/9")
    assert (await good(world, "GET", "/api/v1/boosts")).json["items"] == []


async def test_a_schedule_is_paused_for_a_time_and_listed(world: ApiWorld) -> None:
    paused = (await good(world, "PUT", "/api/v1/schedules/replicas/state/paused?seconds=7200")).json
    assert paused["paused_until"] == rfc3339(EPOCH_MS + 7_200_000)
    items = {row["check"]: row for row in (await good(world, "GET", "/api/v1/schedules")).json["items"]}
    assert (items["replicas"]["paused_by"], items["bookies"]["paused"]) == ("somebody-who-may-administer", False)
    assert await changes(world) == [("schedule pause", "replicas for 7200 s")]
    for wrong in ("59", "x", "99999999"):
        path = f"/api/v1/schedules/replicas/state/paused?seconds={wrong}"
        assert (await world.operate("PUT", path)).status == 400


async def test_progress_shows_the_backlog(world: ApiWorld) -> None:
    shown = (await good(world, "GET", "/api/v1/progress")).json
    assert (shown["backlog"]["ledgers"], shown["waiting"], shown["parked"]) == (3, 1, {"no_live_copy": 2})
    assert shown["ledgers_per_second"] is None, "a rate needs two samples"


async def test_changes_by_apaches_paths_are_recorded_too(world: ApiWorld) -> None:
    await good(world, "PUT", "/api/v1/autorecovery/status?enabled=false")
    await good(world, "PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay", json={"delay_seconds": 9})
    assert await changes(world) == [("recovery delay", "9 s"), ("recovery disable", "")]


async def test_the_test_cluster_is_ready(world: ApiWorld) -> None:
    assert (await open_cluster(world.upkeep.cluster.keeper, ROOT)).root == ROOT
    async with world.upkeep.cluster.connected("") as client:
        assert (await client.ports.registrations.list()).writable == {BookieId("c"), BookieId("d")}
