"""Checks of ``bkheal doctor``: permissions (``permissions``), layout, old state, clocks, bookies.

To compare the clocks, it writes one node (``/bkheal/doctor``), because ZooKeeper shows its time only in written nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from auditor.operating.checked import Checked, State
from auditor.operating.client import ClusterClient
from auditor.operating.old_state import old_state
from auditor.operating.permissions import permission_checks
from bookie.metadata.access import current_access
from bookie.metadata.bookies.first_seen_down import FirstSeenDown, unaudited
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import INSTANCE_ID
from bookie.metadata.nodes import put
from bookie.metadata.own_state import own_path
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted, duration
from bookie.wire.port import Status
from bookie.wire.requests import Info
from spark_jobs.runs.marking.brake import held_because

CLOCK_WARN_MS: Final = 1_000
"""The smallest relevant difference: delays, boosts and pauses compare times of several machines."""
CLOCK_FAIL_MS: Final = 60_000
_INFO_TIMEOUT_S: Final = 5.0
_INFO_AT_ONCE: Final = 16
_DISK_FREE_SHARE_MIN: Final = 0.05
_NAMED_MAX: Final = 20


async def examine(client: ClusterClient) -> AsyncIterator[Checked]:
    """Check everything, one result after the other.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: the store stopped answering.
    """
    yield layout_check(client.cluster)
    if (old := await state_check(client)) is not None:
        yield old
    for check in await permission_checks(client):
        yield check
    yield await clock_check(client)
    async for check in bookie_checks(client):
        yield check
    if (racks := await topology_check(client)) is not None:
        yield racks
    yield await recovery_check(client)
    if (delay := await delay_check(client)) is not None:
        yield delay


def layout_check(cluster: Cluster) -> Checked:
    """Return the layout of the cluster. It is supported, because a cluster with another layout cannot be opened."""
    text = f"layout {cluster.kind.value}, instance {cluster.instance_id}, own state below {current_access().state_root}"
    return Checked("cluster", cluster.root, State.OK, text)


async def state_check(client: ClusterClient) -> Checked | None:
    """Return a warning if records of bkheal are older than the cluster, so from a deleted cluster at the same root.

    Transaction ids are compared, so copying the nodes to another ZooKeeper can cause this warning as well.
    """
    root = client.cluster.root
    try:
        cluster = await client.store.stat(f"{root}/{INSTANCE_ID}")
        old = None if cluster is None else await old_state(client.store, root, cluster.czxid)
    except AccessDeniedError as error:
        return Checked("state", current_access().state_root, State.UNKNOWN, f"its age cannot be read: {error}")
    if old is None or not (old.paths or old.unread):
        return None
    unread = f"not all records were read below {', '.join(old.unread)}"
    if not old.paths:
        return Checked("state", current_access().state_root, State.UNKNOWN, f"its age is not known: {unread}")
    named = ", ".join(old.paths[:_NAMED_MAX])
    text = f"older than the cluster (its INSTANCEID node), so perhaps of a deleted cluster: {named}"
    if len(old.paths) > _NAMED_MAX:
        text += f", and {len(old.paths) - _NAMED_MAX} more (`--output json` names all)"
    if old.rewritten:
        were = agreeing(old.rewritten, "was", "were")
        text += f"; not named: {counted(old.rewritten, 'older record')} that {were} written again since"
    if old.unread:
        text += f"; {unread}: repeat this after the deletion"
    advice = (
        f"if a cluster at {root} was deleted and created again: stop every process of bkheal, run this command again, "
        "delete the nodes that it names then, each with `deleteall PATH` of zkCli.sh and no others, and start the "
        "processes (docs/operations.md, A cluster was created again); if the nodes were copied from another ZooKeeper, "
        "nothing has to be done"
    )
    return Checked("state", current_access().state_root, State.WARNING, text, advice, old.paths)


async def clock_check(client: ClusterClient) -> Checked:
    """Compare this machine's clock with ZooKeeper's, as precisely as the delay of the answer allows."""
    clock, path = client.ports.clock, own_path("doctor", client.cluster.root)
    before_ms = clock.epoch_ms()
    try:
        await put(client.store, path, b"")
    except AccessDeniedError as error:
        return Checked("clock", "zookeeper", State.UNKNOWN, f"the time of ZooKeeper shows only in a write: {error}")
    after_ms = clock.epoch_ms()
    stat = await client.store.stat(path)
    if stat is None:
        return Checked("clock", "zookeeper", State.UNKNOWN, f"{path} was deleted in the meantime")
    ahead_ms = max(before_ms - stat.mtime_ms, stat.mtime_ms - after_ms, 0)
    text = f"differs by {duration(ahead_ms)} (ZooKeeper's epoch {stat.mzxid >> 32})"
    if ahead_ms < CLOCK_WARN_MS:
        return Checked("clock", "zookeeper", State.OK, text)
    state = State.FAILED if ahead_ms >= CLOCK_FAIL_MS else State.WARNING
    advice = "correct the clocks (NTP): delays, boosts and pauses compare the times of several machines"
    return Checked("clock", "zookeeper", state, text, advice)


async def bookie_checks(client: ClusterClient) -> AsyncIterator[Checked]:
    """Check whether each registered bookie answers this machine, which are missing, the brake, and their versions.

    A bookie writes its cookie before it registers. So the registrations are read first; otherwise a bookie that is
    starting would seem to have no cookie.
    """
    registrations = client.ports.registrations
    registered, known = await registrations.list(), await registrations.known()
    lost = (known | unaudited(await FirstSeenDown(client.store, client.cluster.root).read())) - registered.registered
    slots = asyncio.Semaphore(_INFO_AT_ONCE)
    versions: set[str] = set()

    async def check_bookie(bookie: BookieId) -> Checked:
        async with slots:
            return await _bookie(client, bookie, versions)

    for each in await asyncio.gather(*(check_bookie(bookie) for bookie in sorted(registered.registered))):
        yield each
    for bookie in sorted(registered.registered - known):
        text = (
            "it is registered and has no cookie: it refuses to start again, and after a stop the repair copies its data"
        )
        advice = (
            "restore the cookie from one of its directories with Apache's shell: `bookkeeper shell cookie_create -cf "
            f"DIR/current/VERSION {bookie}`; `bkheal bookie cookie verify` compares them. If it shall be removed: "
            "`bkheal drain start`, and `bkheal decommission` after the drain"
        )
        yield Checked("cookie", bookie, State.WARNING, text, advice)
    for bookie in sorted(lost):
        advice = "start it; if it will not come back: `bkheal recover`, and `bkheal decommission` after the repair"
        yield Checked("bookie", bookie, State.WARNING, "it is known and not registered", advice)
    why = held_because(known | registered.registered, registered.registered, 0, None, MISSING_SHARE_MAX)
    if why is not None:
        advice = "start the missing bookies; until then audits with the default --missing-share-max mark nothing"
        yield Checked("bookies", "brake", State.WARNING, f"the brake holds: {why}", advice)
    if not registered.writable:
        yield Checked("bookies", "writable", State.FAILED, "no bookie is writable", "start bookies, or free disk space")
    if len(versions) > 1:
        text = f"different versions: {', '.join(sorted(versions))}"
        yield Checked("bookies", "versions", State.WARNING, text, "finish the upgrade")


async def topology_check(client: ClusterClient) -> Checked | None:
    """Return whether the topology in the store can be read; None if there is none."""
    store = TopologyStore(client.store, client.cluster)
    try:
        found = await store.read()
    except InvalidTopologyError as error:
        text = f"{error}; placement checks fail, and copies are placed by an earlier topology or regardless of racks"
        return Checked("topology", "racks", State.FAILED, text, "correct this node (docs/placement.md)")
    except AccessDeniedError as error:
        return Checked("topology", "racks", State.UNKNOWN, str(error))
    if found.path is None:
        return None
    racks = counted(len(set(found.topology.locations.values())), "rack")
    return Checked("topology", found.path, State.OK, f"{racks} for {counted(len(found.topology.locations), 'name')}")


async def recovery_check(client: ClusterClient) -> Checked:
    """Check whether recovery is enabled."""
    if await client.ports.tasks.switches.is_disabled():
        text = "recovery is disabled: nothing is marked or repaired"
        return Checked("recovery", "switch", State.WARNING, text, "`bkheal recovery enable`")
    return Checked("recovery", "switch", State.OK, "enabled")


async def delay_check(client: ClusterClient) -> Checked | None:
    """Return what is wrong with the lost-bookie delay. If it is no number, audits fail, or use an earlier delay."""
    try:
        await client.ports.tasks.switches.lost_bookie_delay_s()
    except InvalidDelayError as error:
        text = f"{error}; audits fail or use an earlier delay"
        return Checked("recovery", "lost-bookie delay", State.FAILED, text, "`bkheal recovery delay DELAY`")
    except AccessDeniedError as error:
        return Checked("recovery", "lost-bookie delay", State.UNKNOWN, str(error))
    return None


async def _bookie(client: ClusterClient, bookie: BookieId, versions: set[str]) -> Checked:
    info = await client.ports.registrations.service_info(bookie)
    if info is None or not info.endpoints:
        text = "its registration names no endpoint that can be used"
        return Checked("bookie", bookie, State.FAILED, text, "check its node under available, and its log")
    endpoint = info.endpoints[0]
    at = f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}"
    reply = await client.ports.transport.ask(bookie, Info(), _INFO_TIMEOUT_S)
    if reply.status is not Status.OK or reply.info is None:
        why = f"{reply.status.name}, {reply.detail}" if reply.detail else reply.status.name
        advice = (
            f"check whether it hangs, allow connections from this machine to {endpoint.host}:{endpoint.port}, or check "
            "the TLS and login settings"
        )
        return Checked("bookie", bookie, State.FAILED, f"{at} does not answer: {why}", advice)
    if reply.info.version:
        versions.add(reply.info.version)
    total, free = reply.info.disk_total_bytes, reply.info.disk_free_bytes
    if total > 0 and free < _DISK_FREE_SHARE_MIN * total:
        text = f"{at} answers; {max(0, free) * 100 // total} % of its disk is free"
        return Checked("bookie", bookie, State.WARNING, text, "free disk space, or add bookies")
    return Checked("bookie", bookie, State.OK, f"{at} answers")
