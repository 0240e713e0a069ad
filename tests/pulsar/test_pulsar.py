"""bkheal on a real Pulsar: bookies, auto-recovery and a broker with Pulsar's metadata driver."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from auditor.cli.admin_requests import AdminClient, AdminLoginError
from auditor.cli.audit.remote import RemoteSettings
from auditor.cli.drains.topic_unloading import TopicUnloading, check_answers
from auditor.safety.draining import holdings_of
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheBookie
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import BookieState, state_of
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.pulsar.decoding import managed_ledger_references
from bookie.metadata.runs.election import Election, current_auditor
from bookie.metadata.runs.pulsar_leader import leader_path
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.ownership import Component, Owner, owner_of
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from tests.apache.programs import Audit, Replicator, bkheal
from tests.apache.waiting import until
from tests.apache.worlds import connect, gone
from tests.deadlines import PROGRAM_S, STATE_S
from tests.pulsar.cluster import NAMESPACE, Broker
from tests.pulsar.world import PulsarWorld, Topic, load, pulsar_client
from tests.sessions import LONG_SESSION_S, kill9
from tests.worlds.admin_api import Reply, serving

if TYPE_CHECKING:
    import pulsar

pytestmark = pytest.mark.pulsar

T = TypeVar("T")
TOPICS_MAX = 50
"""Maximum number of topics to create until the ledger of one is on a certain bookie, as every second one is."""


async def ids_of(client: ConnectedBookKeeper) -> list[LedgerId]:
    """Return the ids of all ledgers."""
    parents = [parent for parent, _ in await client.ports.ledgers.leaf_parents()]
    return [one for found in await client.ports.ledgers.ids_under_many(parents) for one in found]


async def members(client: ConnectedBookKeeper) -> dict[LedgerId, set[BookieId]]:
    """Return the bookies named by each ledger."""
    ledgers = client.ports.ledgers
    return {one: set((await ledgers.read(one)).metadata.members()) for one in await ids_of(client)}


async def owners_of(client: ConnectedBookKeeper) -> dict[LedgerId, Owner]:
    """Return the owner of each ledger; all of them have full names. A broker may delete one at any time."""
    found = {}
    for ledger in await client.ports.ledgers.read_many(await ids_of(client)):
        if ledger is not None:
            assert isinstance(ledger, Versioned)
            owner = owner_of(ledger.metadata.custom)
            assert owner is not None
            assert owner.topic is not None, owner
            found[ledger.ledger_id] = owner
    return found


async def open_topics(client: ConnectedBookKeeper, bookie: ApacheBookie) -> set[str]:
    """Return the topics with an open ledger on the bookie."""
    found, _ = await holdings_of(client.ports.ledgers, [bookie.bookie_id], lambda done: None)
    return found.open_topics


async def repaired(uri: str, directory: Path) -> None:
    """Run a replicator until no task is left."""
    replicator = await Replicator.start(uri, directory, "--once", "--open-ledger-grace", "1")
    assert await replicator.wait() == 0


async def test_a_bookie_killed_under_load_is_healed_and_every_message_is_read(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    import pulsar

    here, cluster, uri = pulsar_world, pulsar_world.cluster, pulsar_world.cluster.metadata_uri
    await here.admin("PUT", f"persistent/{NAMESPACE}/parts/partitions", 2)
    with pulsar_client(here) as messages:
        topics = [Topic.make(messages, name) for name in ("plain", "parts-partition-0", "parts-partition-1", "keyed")]
        topics.append(Topic.make(messages, "schema", schema=pulsar.schema.BytesSchema()))
        idle = Topic.make(messages, "idle")
        subscription = messages.subscribe("plain", "sub", initial_position=pulsar.InitialPosition.Earliest)
        for topic in (*topics, idle):
            await asyncio.to_thread(topic.send, 110)
        for _ in range(70):
            subscription.acknowledge(subscription.receive(timeout_millis=round(1000 * PROGRAM_S)))
        compaction = f"persistent/{NAMESPACE}/keyed/compaction"
        await here.admin("PUT", compaction)
        await until(
            lambda: here.admin("GET", compaction), lambda reported: b"SUCCESS" in reported, "compacted", PROGRAM_S
        )
        victim = cluster.bookies[1]
        with load(topics):
            before = {topic.name: len(topic.sent) for topic in topics}
            await kill9(cluster.zookeeper, victim)
            await gone(client, victim.bookie_id)
            await until(_sent_since(topics, before), bool, "producers continue", PROGRAM_S)
        assert any(victim.bookie_id in named for named in (await members(client)).values())
        await audit(uri, tmp_path)
        await repaired(uri, tmp_path / "replicator")
        assert (await audit(uri, tmp_path))["verdict"] == "clean"
        assert not any(victim.bookie_id in named for named in (await members(client)).values())
        for topic in (*topics, idle):
            await asyncio.to_thread(topic.send, 3)
            assert await asyncio.to_thread(topic.read, messages) == topic.sent, topic.name
        backlog = [subscription.receive(timeout_millis=round(1000 * PROGRAM_S)).data() for _ in topics[0].sent[70:]]
        assert backlog == topics[0].sent[70:]
    await victim.start()


@pytest.mark.long
async def test_a_broker_whose_bookies_use_bookkeepers_driver_loses_no_messages(
    native_world: PulsarWorld, audit: Audit, tmp_path: Path
) -> None:
    cluster, uri = native_world.cluster, native_world.cluster.metadata_uri
    async with await connect(uri) as ours:
        assert await ours.store.stat(f"{ours.cluster.root}/LAYOUT") is not None
        with pulsar_client(native_world) as messages:
            topic = Topic.make(messages, "native")
            await asyncio.to_thread(topic.send, 210)
            victim = cluster.bookies[0]
            await kill9(cluster.zookeeper, victim)
            await gone(ours, victim.bookie_id)
            await asyncio.to_thread(topic.send, 10)
            await audit(uri, tmp_path)
            await repaired(uri, tmp_path / "replicator")
            assert (await audit(uri, tmp_path))["verdict"] == "clean"
            assert not any(victim.bookie_id in named for named in (await members(ours)).values())
            reported = (await audit(uri, tmp_path, RunKind.REFERENCES, reference_grace_s=0))["references"]
            assert (reported["lost"], reported["unreferenced"], reported["referenced"] > 0) == (0, 0, True)
            await asyncio.to_thread(topic.send, 3)
            assert await asyncio.to_thread(topic.read, messages) == topic.sent


async def test_the_nodes_and_ledgers_of_a_broker_are_decoded_and_unreferenced_ledgers_are_found(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    import pulsar

    here, uri = pulsar_world, pulsar_world.cluster.metadata_uri
    with pulsar_client(here) as messages:
        topics = [
            Topic.make(messages, "named"),
            Topic.make(messages, "odd name+%", schema=pulsar.schema.StringSchema()),
        ]
        await asyncio.to_thread(topics[0].send, 20)
        topics[1].producer.send("text")
        subscription = messages.subscribe("named", "a/b", initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(10):
            subscription.acknowledge(subscription.receive(timeout_millis=round(1000 * PROGRAM_S)))
        wanted = {  # acknowledgements are delayed, and an unfinished cursor would outlive the unloading
            (f"persistent://{NAMESPACE}/named", Component.MANAGED_LEDGER),
            (f"persistent://{NAMESPACE}/named", Component.CURSOR),
            (f"persistent://{NAMESPACE}/odd name+%", Component.SCHEMA),
        }
        owners = await until(
            lambda: owners_of(client),
            lambda found: wanted <= {(owner.topic.name, owner.component) for owner in found.values() if owner.topic},
            "the broker has written ledgers of every kind",
        )
    names = {owner.topic.name for owner in owners.values() if owner.topic}
    assert {f"persistent://{NAMESPACE}/named", f"persistent://{NAMESPACE}/odd name+%"} <= names

    report = await audit(uri, tmp_path, RunKind.REFERENCES, reference_grace_s=0)
    reported = report["references"]
    assert (report["complete"], reported["lost"], reported["unreferenced"]) == (True, 0, 0), reported
    assert reported["referenced"] + sum(reported["not_judged"].values()) == report["counts"]["ledgers"], reported
    assert reported["referenced"] > len(topics)

    gone_topic = f"persistent://{NAMESPACE}/named"

    def of_gone(owner: Owner) -> bool:
        return owner.topic is not None and owner.topic.name == gone_topic

    await here.unload(gone_topic)
    left = await until(  # the state of an unloaded cursor is in its node
        lambda: owners_of(client),
        lambda found: all(owner.component is not Component.CURSOR for owner in found.values() if of_gone(owner)),
        "the broker has deleted the ledger of the cursor",
    )
    node = f"/managed-ledgers/{NAMESPACE}/persistent/named"
    for cursor in (await client.store.children(node)).names:
        await client.store.delete(f"{node}/{cursor}")
    await client.store.delete(node)
    file = tmp_path / "ids.txt"
    after = await audit(uri, tmp_path, RunKind.REFERENCES, reference_grace_s=0, export=file)
    ids = map(int, file.read_text().split())
    orphans = {one for one, owner in left.items() if of_gone(owner)}
    assert set(ids) == orphans != set()
    reported = after["references"]
    assert (reported["lost"], [each["namespace"] for each in reported["namespaces"]]) == (0, [NAMESPACE])


async def test_trimmed_ledgers_in_the_nodes_of_shadow_topics_are_not_lost(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    import pulsar

    here, uri, folder = pulsar_world, pulsar_world.cluster.metadata_uri, f"persistent/{NAMESPACE}"
    form = "application/vnd.partitioned-topic-metadata+json"
    shadows = {"trimmed": "shadow", "halved-partition-0": "twin-partition-0"}

    async def ledgers_of(topic: str) -> set[int]:
        node = await client.store.get(f"/managed-ledgers/{NAMESPACE}/persistent/{topic}")
        return {each.ledger_id for each in managed_ledger_references(node.data)}

    async def outdated() -> list[set[int]]:
        existing = set(await ids_of(client))
        return [await ledgers_of(shadow) - existing for shadow in shadows.values()]

    with pulsar_client(here) as messages:
        await here.admin("PUT", f"{folder}/halved/partitions", 1)
        for source in shadows:
            await asyncio.to_thread(Topic.make(messages, source).send, 250)
        of_plain, of_parts = (
            {"PULSAR.SHADOW_SOURCE": f"persistent://{NAMESPACE}/{one}"} for one in ("trimmed", "halved")
        )
        await here.admin("PUT", f"{folder}/shadow", of_plain)
        await here.admin("PUT", f"{folder}/twin/partitions", {"partitions": 1, "properties": of_parts}, form)
        for source, shadow in (("trimmed", "shadow"), ("halved", "twin")):
            await here.admin("PUT", f"{folder}/{source}/shadowTopics", [f"persistent://{NAMESPACE}/{shadow}"])
        for source, shadow in shadows.items():
            reader = messages.create_reader(shadow, pulsar.MessageId.earliest)
            first = await asyncio.to_thread(reader.read_next, round(1000 * PROGRAM_S))
            assert first.data() == f"{source}-0".encode()
            reader.close()
            await here.admin("DELETE", f"{folder}/{source}/truncate")
        await until(outdated, all, "the broker has deleted ledgers of the sources", PROGRAM_S)
        owned = await owners_of(client)
        file = tmp_path / "ids.txt"
        report = await audit(uri, tmp_path, RunKind.REFERENCES, reference_grace_s=0, export=file)
        assert all(await outdated())
    reported = report["references"]
    assert (reported["lost"], reported["undecodable"]) == (0, 0), reported
    judged = reported["referenced"] + reported["unreferenced"] + sum(reported["not_judged"].values())
    assert judged == report["counts"]["ledgers"], reported
    unreferenced = [owned[LedgerId(int(one))] for one in file.read_text().split()]
    named = {owner.topic.managed_ledger.rpartition("/")[2] for owner in unreferenced if owner.topic}
    assert named.isdisjoint({*shadows, *shadows.values()}), unreferenced


def _sent_since(topics: Sequence[Topic], before: dict[str, int]) -> Callable[[], Awaitable[bool]]:
    async def are_sent() -> bool:
        return all(len(topic.sent) > before[topic.name] + 5 for topic in topics)

    return are_sent


@asynccontextmanager
async def standing(client: ConnectedBookKeeper, name: str) -> AsyncIterator[Election]:
    root = client.cluster.root
    election = Election(client.store, root, name, SystemClock(), session_timeout_s=LONG_SESSION_S)
    running = asyncio.create_task(election.run())
    try:
        yield election
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await election.resign()


async def test_one_auditor_leads_ours_or_pulsars_whichever_came_first(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper
) -> None:
    cluster, uri, root = pulsar_world.cluster, pulsar_world.cluster.metadata_uri, client.cluster.root

    async def leader() -> str:
        return await current_auditor(client.store, root)

    theirs = await cluster.start_auto_recovery()
    await until(leader, lambda name: name == theirs.address, "Pulsar's auditor leads")
    async with await connect(uri) as second, standing(second, "ours") as election:
        await until(
            _of(lambda: election.state.leader), lambda name: name == theirs.address, "our auditor is a candidate"
        )
        assert not election.is_leader()
        assert (await bkheal("status", "--output", "json", uri=uri)).document["auditor"] == theirs.address
        await kill9(cluster.zookeeper, theirs)
        await until(_of(election.is_leader), bool, "our auditor leads after it")
        again = await cluster.start_auto_recovery()
        node = await client.store.get(leader_path(root))
        victim = cluster.bookies[2]
        await victim.stop()  # Pulsar's auditor would mark the ledgers of this bookie at once
        await gone(client, victim.bookie_id)
        assert again.running.is_running
        assert await leader() == "ours"
        assert await client.ports.tasks.list() == []
        await victim.start()
        assert (await client.store.get(leader_path(root))).stat.czxid == node.stat.czxid
        assert election.is_leader()
    await until(leader, lambda name: name == again.address, "Pulsar's auditor leads after our auditor has resigned")
    await kill9(cluster.zookeeper, again)


def _state(client: ConnectedBookKeeper, bookie: BookieId) -> Callable[[], Awaitable[BookieState]]:
    async def state() -> BookieState:
        return state_of(bookie, await client.ports.registrations.list())

    return state


def _of(look: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def looked() -> T:
        return look()

    return looked


async def test_a_bookie_that_becomes_read_only_and_writable_again_is_not_lost(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper
) -> None:
    from auditor.service.watch.changing import RegistrationChanges

    bookie, changing, clock = pulsar_world.cluster.bookies[0].bookie_id, RegistrationChanges(), SystemClock()
    lost: list[set[BookieId]] = []
    known = await client.ports.registrations.known()
    assert bookie in known

    async def watch() -> None:
        seen = await client.ports.registrations.list()
        while True:
            # time runs ten times slower, because on a busy machine a change may take longer than the rule allows
            absent = changing.observe(known, seen.registered, clock.monotonic_s() / 10)
            lost.append(set(known) - seen.registered - absent)
            seen = await client.ports.registrations.wait_changed(seen)

    watching = asyncio.create_task(watch())
    for _ in range(3):
        for is_read_only in (True, False):
            await pulsar_world.set_read_only(is_read_only=is_read_only)
            state = BookieState.READ_ONLY if is_read_only else BookieState.WRITABLE
            await until(_state(client, bookie), state.__eq__, f"the bookie is {state.value}")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert lost
    assert not any(bookie in some for some in lost)


@pytest.mark.long
async def test_an_outage_of_all_bookies_longer_than_their_sessions_does_not_make_the_cluster_lost(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    cluster, uri = pulsar_world.cluster, pulsar_world.cluster.metadata_uri
    registered = f"{client.cluster.root}/available"
    with pulsar_client(pulsar_world) as messages:
        topic = Topic.make(messages, "outage")
        await asyncio.to_thread(topic.send, 10)
        bookies = cluster.bookies
        await kill9(cluster.zookeeper, *bookies)
        for path in (f"{registered}/readonly", registered):  # created as ordinary nodes by Pulsar's set-up tool
            await client.store.delete(path)
        await asyncio.gather(*(bookie.start() for bookie in bookies))  # the driver creates container nodes
        await kill9(cluster.zookeeper, *bookies)
        await until(
            lambda: client.store.stat(registered),
            lambda found: found is None,
            "ZooKeeper has removed the empty container (it checks once a minute)",
            PROGRAM_S,
        )
        listed = await bkheal("bookies", "--output", "json", uri=uri)
        assert listed.exit_code == 0, listed.errors
        assert {each["state"] for each in listed.document["items"]} == {"lost"}
        status = await bkheal("status", "--output", "json", uri=uri)
        assert (status.exit_code, len(status.document["bookies"]["lost"])) == (0, len(bookies)), status.errors
        held = await bkheal("audit", "run", "--report-dir", str(tmp_path), uri=uri)
        assert held.exit_code == ExitCode.HELD, held.errors
        assert await client.ports.tasks.list() == []
        await asyncio.gather(*(bookie.start() for bookie in bookies))
        assert len((await client.ports.registrations.list()).registered) == len(bookies)
        await asyncio.to_thread(topic.send, 3)
        assert await asyncio.to_thread(topic.read, messages) == topic.sent


async def _busy_and_idle(messages: pulsar.Client, client: ConnectedBookKeeper, bookie: ApacheBookie) -> list[Topic]:
    """Return topics, of which the last one is idle and has an open ledger on the bookie."""
    topics, idle = [Topic.make(messages, "busy")], ""
    while idle not in await open_topics(client, bookie):  # the writer of a busy topic may replace the bookie by itself
        assert len(topics) < TOPICS_MAX
        topics.append(Topic.make(messages, f"idle-{len(topics)}"))  # only an idle topic keeps its ledger open
        await asyncio.to_thread(topics[-1].send, 20)
        idle = f"persistent://{NAMESPACE}/{topics[-1].name}"
    return topics


async def test_a_bookie_is_set_read_only_drained_under_load_by_unloading_topics_and_decommissioned(
    pulsar_world: PulsarWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    here, uri, bookie = pulsar_world, pulsar_world.cluster.metadata_uri, pulsar_world.cluster.bookies[0]
    with pulsar_client(here) as messages:
        topics = await _busy_and_idle(messages, client, bookie)
        idle = f"persistent://{NAMESPACE}/{topics[-1].name}"
        replicator = await Replicator.start(uri, tmp_path / "replicator")
        words = ("drain", "start", bookie.bookie_id, "--yes", "--wait")
        with load(topics[:1]):
            with serving(lambda asked: Reply(401)) as refusing:
                refused = await bkheal(*words, "--pulsar-admin", refusing.url, uri=uri, deadline_s=PROGRAM_S)
            assert refused.exit_code == 1
            assert f"nothing was begun: {refusing.url}/admin/v2/clusters answered 401" in refused.errors
            assert state_of(bookie.bookie_id, await client.ports.registrations.list()) is BookieState.WRITABLE
            assert await Drains(client.store, client.cluster.root).read() == {}
            printed = await bkheal(*words, "--timeout", "0", uri=uri, deadline_s=PROGRAM_S)
            assert printed.exit_code == 1
            assert state_of(bookie.bookie_id, await client.ports.registrations.list()) is BookieState.READ_ONLY
            assert f"pulsar-admin topics unload {idle}\n" in printed.errors
            seen = await bkheal("drain", "status", bookie.bookie_id, "--output", "json", uri=uri)
            assert idle in seen.document["open_topics"]
            drained = await bkheal(*words, "--pulsar-admin", here.broker.admin_url, uri=uri, deadline_s=PROGRAM_S)
            assert drained.exit_code == 0, drained.printed + drained.errors
            assert f"none names it. Stop it, then `bkheal decommission {bookie.bookie_id}`" in drained.printed
        await replicator.stop()
        await bookie.stop()
        ended = await bkheal("decommission", bookie.bookie_id, "--yes", uri=uri)
        assert ended.exit_code == 0, ended.errors
        assert bookie.bookie_id not in await client.ports.registrations.known()
        for topic in topics:
            await asyncio.to_thread(topic.send, 3)
            assert await asyncio.to_thread(topic.read, messages) == topic.sent


@pytest.mark.long
async def test_a_bookie_with_bookkeepers_driver_is_drained_under_load_and_decommissioned(
    native_world: PulsarWorld, tmp_path: Path
) -> None:
    uri, bookie = native_world.cluster.metadata_uri, native_world.cluster.bookies[0]
    async with await connect(uri) as ours:
        with pulsar_client(native_world) as messages:
            topics = await _busy_and_idle(messages, ours, bookie)
            replicator = await Replicator.start(uri, tmp_path / "replicator")
            words = ("drain", "start", bookie.bookie_id, "--yes", "--wait", "--pulsar-admin")
            with load(topics[:1]):
                drained = await bkheal(*words, native_world.broker.admin_url, uri=uri, deadline_s=PROGRAM_S)
                assert drained.exit_code == 0, drained.printed + drained.errors
            assert state_of(bookie.bookie_id, await ours.ports.registrations.list()) is BookieState.READ_ONLY
            assert not any(bookie.bookie_id in named for named in (await members(ours)).values())
            await replicator.stop()
            await bookie.stop()
            ended = await bkheal("decommission", bookie.bookie_id, "--yes", uri=uri)
            assert ended.exit_code == 0, ended.errors
            assert bookie.bookie_id not in await ours.ports.registrations.known()
            for topic in topics:
                await asyncio.to_thread(topic.send, 3)
                assert await asyncio.to_thread(topic.read, messages) == topic.sent


def _token(role: str, key: bytes) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256"}, {"sub": role})]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.new(key, signed, hashlib.sha256).digest()
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


async def test_the_check_before_a_drain_accepts_every_valid_login_and_no_other(
    pulsar_world: PulsarWorld, tmp_path: Path
) -> None:
    key, topic = b"k" * 32, f"persistent://{NAMESPACE}/any"
    (tmp_path / "key").write_bytes(key)
    rules = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": (tmp_path / "key").as_uri(),
        "superUserRoles": "admin",
    }
    broker = await Broker.start(pulsar_world.cluster, "broker-with-roles", rules)
    try:
        async with _admin(broker, _token("of no permission", key)) as admin:
            await check_answers(admin)
            notes: list[str] = []
            await TopicUnloading(admin, SystemClock(), notes.append).unload_due({topic}, frozenset(), None)
            (note,) = notes
            assert f"topic {topic} is not unloaded" in note
            assert note.endswith("; the drain continues"), "a missing permission was handled like a refused login"
        for token in (None, _token("admin", b"another key" * 3)):
            async with _admin(broker, token) as admin:
                with pytest.raises(AdminLoginError):
                    await check_answers(admin)
    finally:
        broker.process.kill9()
        await broker.process.wait(STATE_S)


def _admin(broker: Broker, token: str | None) -> AdminClient:
    return AdminClient(RemoteSettings(broker.admin_url, token, None, timeout_s=PROGRAM_S))
