"""What would fail on this cluster, and what to do: permissions, layout, clocks, bookies.

Permissions are tested by transactions that are refused for certain: each begins with the write in question and ends
with a check of a version that the cluster's root never has. ZooKeeper judges the operations in their order and applies
none of them, so the error shows whether the write would be allowed, and nothing is changed.

The clock is compared by one node of our own (``/bkheal/doctor``): ZooKeeper shows its time only in what it writes.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from auditor.operating.client import ClusterClient, Document
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import COOKIES, UNDERREPLICATION, available_path
from bookie.metadata.nodes import find, parent_of, put
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    AccessDeniedError,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
)
from bookie.model.errors import BkhealError, PermanentError
from bookie.model.ids import BookieId
from bookie.runtime.human import duration
from bookie.wire.port import Status
from bookie.wire.requests import Info

CLOCK_WARN_MS: Final = 1_000
"""A difference that matters: delays, boosts and pauses compare times of several machines."""
CLOCK_FAIL_MS: Final = 60_000
_PROBE: Final = "bkheal-doctor-probe"
_NEVER: Final = (1 << 31) - 1
"""A version that the root of a cluster never reaches."""
_INFO_TIMEOUT_S: Final = 5.0
_INFO_AT_ONCE: Final = 16
_DISK_FREE_SHARE_MIN: Final = 0.05


class State(enum.StrEnum):
    """The result of one check, worst last."""

    OK = "ok"
    WARNING = "warning"
    """It works now; a person should look at it."""
    UNKNOWN = "unknown"
    """It could not be checked."""
    FAILED = "failed"
    """Something that bkheal does would fail."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check."""

    check: str
    """What kind of check, such as ``permission``."""
    target: str
    """What was checked: a path, a bookie, an address."""
    state: State
    detail: str
    advice: str = ""
    """What to do; empty if nothing is to be done."""

    def row(self) -> Document:
        """The check as a document."""
        return {
            "check": self.check,
            "target": self.target,
            "state": self.state.value,
            "detail": self.detail,
            "advice": self.advice or None,
        }


def worst(checks: Sequence[Checked]) -> State:
    """The worst state of all."""
    order = list(State)
    return max((each.state for each in checks), key=order.index, default=State.OK)


async def examine(client: ClusterClient) -> AsyncIterator[Checked]:
    """Check everything, one result after the other.

    Raises:
        StoreUnavailableError: the store stopped answering.
    """
    yield layout_check(client.cluster)
    for check in await permission_checks(client.store, client.cluster):
        yield check
    yield await ledger_permission(client)
    yield await clock_check(client)
    async for check in bookie_checks(client):
        yield check
    yield await recovery_check(client)


def layout_check(cluster: Cluster) -> Checked:
    """The layout that was read when the cluster was opened; one that is not supported cannot be opened."""
    return Checked("cluster", cluster.root, State.OK, f"layout {cluster.kind.value}, instance {cluster.instance_id}")


async def permission_checks(store: MetadataStore, cluster: Cluster) -> list[Checked]:
    """Whether nodes may be created and deleted where bkheal does so."""
    root = cluster.root
    wanted = (
        (f"{root}/{UNDERREPLICATION}", "marks, locks and switches: nothing would be marked or repaired"),
        (own_path("parked", root), "bkheal's own records: neither auditors nor replicators would start"),
        (f"{root}/{COOKIES}", "records of bookies: `bkheal bookie` and `bkheal decommission` would fail"),
        (available_path(root, is_read_only=False), "registrations: `bkheal bookie` would not start"),
        (available_path(root, is_read_only=True), "registrations of read-only bookies: drains would fail"),
    )
    return [await _may_create(store, root, path, purpose) for path, purpose in wanted]


async def ledger_permission(client: ClusterClient) -> Checked:
    """Whether the metadata of a ledger may be changed, tried with one ledger."""
    store, root = client.store, client.cluster.root
    name = "permission"
    for parent, _ in await client.ports.ledgers.leaf_parents():
        ids = (await client.ports.ledgers.ids_under_many([parent]))[0]
        for ledger_id in ids[:1]:
            path = client.ports.ledgers.path(ledger_id)
            try:
                node = await find(store, path)
            except AccessDeniedError as error:
                return _denied(name, path, "metadata of ledgers: audits could not read it", error)
            if node is not None:
                write = SetData(path, node.data, node.stat.version)
                return await _tried(store, root, name, path, "metadata of ledgers: repairs would fail", write)
    return Checked(name, f"{root}/<ledgers>", State.UNKNOWN, "there is no ledger to try it with")


async def clock_check(client: ClusterClient) -> Checked:
    """The difference between this machine's clock and ZooKeeper's, as far as the answer's delay allows."""
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
    """Whether each registered bookie answers this machine, which bookies are missing, and their versions."""
    registrations = client.ports.registrations
    registered, known = await registrations.list(), await registrations.known()
    slots = asyncio.Semaphore(_INFO_AT_ONCE)
    versions: set[str] = set()

    async def look(bookie: BookieId) -> Checked:
        async with slots:
            return await _bookie(client, bookie, versions)

    for each in await asyncio.gather(*(look(bookie) for bookie in sorted(registered.registered))):
        yield each
    for bookie in sorted(known - registered.registered):
        advice = "start it; if it will not come back: `bkheal recover`, and `bkheal decommission` after the repair"
        yield Checked("bookie", bookie, State.WARNING, "it is known and not registered", advice)
    if not registered.writable:
        yield Checked("bookies", "writable", State.FAILED, "no bookie is writable", "start bookies, or free disk space")
    if len(versions) > 1:
        text = f"different versions: {', '.join(sorted(versions))}"
        yield Checked("bookies", "versions", State.WARNING, text, "finish the upgrade")


async def recovery_check(client: ClusterClient) -> Checked:
    """Whether recovery is enabled."""
    if await client.ports.tasks.switches.is_disabled():
        text = "recovery is disabled: nothing is marked or repaired"
        return Checked("recovery", "switch", State.WARNING, text, "`bkheal recovery enable`")
    return Checked("recovery", "switch", State.OK, "enabled")


async def _bookie(client: ClusterClient, bookie: BookieId, versions: set[str]) -> Checked:
    info = await client.ports.registrations.service_info(bookie)
    if info is None or not info.endpoints:
        text = "its registration names no endpoint that can be used"
        return Checked("bookie", bookie, State.FAILED, text, "look at its node under available, and at its log")
    endpoint = info.endpoints[0]
    at = f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}"
    reply = await client.ports.transport.ask(bookie, Info(), _INFO_TIMEOUT_S)
    if reply.status is not Status.OK or reply.info is None:
        why = f"{reply.status.name}, {reply.detail}" if reply.detail else reply.status.name
        advice = f"open the way from this machine to {endpoint.host}:{endpoint.port}, or look at TLS and login settings"
        return Checked("bookie", bookie, State.FAILED, f"{at} does not answer: {why}", advice)
    if reply.info.version:
        versions.add(reply.info.version)
    total, free = reply.info.disk_total_bytes, reply.info.disk_free_bytes
    if total > 0 and free < _DISK_FREE_SHARE_MIN * total:
        text = f"{at} answers; {max(0, free) * 100 // total} % of its disk is free"
        return Checked("bookie", bookie, State.WARNING, text, "free disk space, or add bookies")
    return Checked("bookie", bookie, State.OK, f"{at} answers")


async def _may_create(store: MetadataStore, root: str, path: str, purpose: str) -> Checked:
    above = path
    try:
        while above != "/" and await store.stat(above) is None:
            above = parent_of(above) or "/"
    except AccessDeniedError as error:
        return _denied("permission", above, purpose, error)
    probe = f"{above.rstrip('/')}/{_PROBE}"
    return await _tried(store, root, "permission", path, purpose, Create(probe, b""), Delete(probe))


async def _tried(
    store: MetadataStore, root: str, check: str, path: str, purpose: str, *operations: Operation
) -> Checked:
    """Have ZooKeeper judge writes in a transaction that is refused in any case."""
    try:
        await store.multi([*operations, Check(root, _NEVER)])
    except MultiFailedError as error:
        return _judged(check, path, purpose, error.cause, is_last=error.index == len(operations))
    except (AccessDeniedError, PermanentError) as error:
        return _denied(check, path, purpose, error)
    raise AssertionError("unreachable: the root of a cluster does not have this version")


def _judged(check: str, path: str, purpose: str, cause: BkhealError, *, is_last: bool) -> Checked:
    if is_last and isinstance(cause, BadVersionError):
        return Checked(check, path, State.OK, "allowed")
    if isinstance(cause, AccessDeniedError):
        return _denied(check, path, purpose, cause)
    if isinstance(cause, NodeExistsError | NoNodeError | BadVersionError):
        return Checked(check, path, State.UNKNOWN, f"it changed at the same time: {cause}", "run this again")
    return Checked(check, path, State.FAILED, f"{purpose} ({cause})")


def _denied(check: str, path: str, purpose: str, error: BkhealError) -> Checked:
    advice = (
        f"allow this identity to create, read, write and delete below {path} (setAcl), or use the identity that may"
    )
    return Checked(check, path, State.FAILED, f"{purpose} ({error})", advice)
