"""Which bookies are registered, in which state, and at which addresses (docs/formats.md#registration).

A registration is an ephemeral node, so it ends with its session (S14). Read-only bookies are registered too: they are
sources, not targets, and not "missing" (S8).
"""

from __future__ import annotations

import asyncio
import builtins
import enum
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.metadata.bookies.incarnations import Incarnations, Latest
from bookie.metadata.bookies.service_info import (
    Endpoint,
    ServiceInfo,
    UnreadableServiceInfoError,
    decode_service_info,
    encode_service_info,
)
from bookie.metadata.cluster import Cluster, NotAClusterError
from bookie.metadata.layout import COOKIES, INSTANCE_ID, READ_ONLY, available_path, bookie_path, cookie_path
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, create_with_parents, ensure_path, find, parent_of, reread
from bookie.metadata.port import (
    BadVersionError,
    Check,
    Children,
    Create,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId
from bookie.model.isolation import NO_GROUPS, BookieGroups
from bookie.runtime.waiting import all_or_first_error, first_to_end

__all__ = [
    "BookieIdInUseError",
    "Bookies",
    "DisksReplacedError",
    "Endpoint",
    "Registrations",
    "ServiceInfo",
    "decode_service_info",
    "encode_service_info",
]

_log = logging.getLogger(__name__)

MISSING_SHARE_MAX: Final = 0.5
"""Largest accepted share of missing bookies. Beyond it, ZooKeeper or the network is the cause (S12)."""
_STABLE_LISTING_ATTEMPTS: Final = 5


class BookieIdInUseError(ConflictError):
    """Another live session is registered under this bookie id."""


class DisksReplacedError(PermanentError):
    """Other disks were recorded under this bookie id, so these ones must not serve any more (R158)."""


@dataclass(frozen=True, slots=True)
class Bookies:
    """The registered bookies. The writable and the read-only set are disjoint."""

    writable: frozenset[BookieId]
    read_only: frozenset[BookieId]
    draining: frozenset[BookieId] = frozenset()
    """Read-only bookies with copies to replace; empty in a plain listing of registrations."""
    groups: BookieGroups = NO_GROUPS
    """Pulsar's groups of bookies; empty in a plain listing of registrations."""
    awaited: frozenset[BookieId] = frozenset()
    """Unregistered bookies expected to return: neither lost nor sources. Empty in a plain listing."""
    registered: frozenset[BookieId] = field(init=False, repr=False, compare=False)
    """Every registered bookie. Stored, because plans ask for it at every position."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "registered", self.writable | self.read_only if self.read_only else self.writable)

    @property
    def staying(self) -> frozenset[BookieId]:
        """Registered bookies whose copies need no replacement."""
        return self.registered - self.draining

    def with_draining(self, bookies: frozenset[BookieId]) -> Bookies:
        """Return a copy with the registered bookies of ``bookies`` as draining: sources, and no targets."""
        draining = bookies & self.registered
        return replace(self, writable=self.writable - draining, read_only=self.read_only | draining, draining=draining)

    def with_groups(self, groups: BookieGroups) -> Bookies:
        """Return a copy with these groups."""
        return self if groups is self.groups else replace(self, groups=groups)


@dataclass(frozen=True, slots=True)
class _Listing:
    bookies: Bookies
    is_stable: bool
    """Whether the read-only bookies were the same before and after the writable ones were listed."""
    writable: Children | None
    read_only: Children | None
    """None if the parent of these registrations does not exist."""


@dataclass(frozen=True, slots=True)
class ObservedRegistrations:
    """The registrations at one moment, with their version."""

    bookies: Bookies
    version: str
    """Differs after each new or ended registration; empty: the registrations changed while they were listed."""
    writable: Children | None = None
    read_only: Children | None = None
    """None: the parent of these registrations does not exist."""

    def has_unseen_changes_since(self, earlier: ObservedRegistrations) -> bool:
        """Whether there were other changes than those that a comparison of both observations shows. Pure.

        A bookie may have registered and left again in the meantime. ZooKeeper counts each new and each ended
        registration. Both observations must have a version.
        """
        pairs = ((earlier.writable, self.writable), (earlier.read_only, self.read_only))
        return any(_has_unseen_changes(before, now) for before, now in pairs)


def _has_unseen_changes(before: Children | None, now: Children | None) -> bool:
    if now is None:  # without children, ZooKeeper deletes a container node
        return before is not None and bool(before.names)
    if before is None or before.czxid != now.czxid:
        return now.version != len(now.names)
    return now.version - before.version != len(set(before.names) ^ set(now.names))


@dataclass(frozen=True, slots=True)
class Registration:
    """One registration of a bookie."""

    info: ServiceInfo
    """Its content."""
    czxid: int
    """The transaction that created it; see ``Registrations.numbers``."""


@dataclass(frozen=True, slots=True)
class BookieObservation:
    """State of some bookies, from nodes read together."""

    bookies: Bookies
    """The registered ones among them."""
    registrations: Mapping[BookieId, Registration]
    """Their registrations."""
    latest: Mapping[BookieId, Latest]
    """Current disks of each bookie with a history, registered or not."""


class Registrations:
    """Registrations of one cluster's bookies."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._root = cluster.root
        self._incarnations = Incarnations(store, cluster.root)

    async def list(self) -> Bookies:
        """Return the registered bookies, no older than this call.

        With BookKeeper's driver, a bookie changing between writable and read-only during the call is in the result: it
        is registered in both ways for a moment. A bookie in both sets counts as read-only. Pulsar's driver deletes
        before it creates, so its bookie may be missing for a moment (R85).

        Raises:
            NotAClusterError: neither the parent of all registrations nor INSTANCEID exists: there is no cluster, which
                is not the same as no bookies. With an INSTANCEID, no bookie is registered: Pulsar's driver makes
                container nodes, and ZooKeeper deletes them when they are empty (R86).
            StoreUnavailableError: no answer.
        """
        await self._store.sync(available_path(self._root, is_read_only=False))
        return (await self._list()).bookies

    async def observe(self) -> ObservedRegistrations:
        """Return what ``list`` returns, with the version of these registrations; no older than this call.

        Raises:
            NotAClusterError, StoreUnavailableError: see ``list``.
        """
        await self._store.sync(available_path(self._root, is_read_only=False))
        listing = await self._list()
        both = (listing.writable, listing.read_only)
        version = " ".join(f"{each.czxid:x}:{each.version}" if each else "-" for each in both)
        return ObservedRegistrations(listing.bookies, version if listing.is_stable else "", *both)

    async def numbers(self, bookies: Iterable[BookieId]) -> dict[BookieId, int]:
        """Return the transaction that created each bookie's current registration; no older than this call.

        The number of a bookie changes with each registration: after a restart, on other disks, or between writable and
        read-only. A bookie missing in the result is not registered.

        Raises:
            StoreUnavailableError: no answer.
        """
        asked = sorted(set(bookies))
        if not asked:
            return {}
        await self._store.sync(available_path(self._root, is_read_only=False))
        paths = [
            bookie_path(self._root, each, is_read_only=is_read_only)
            for each in asked
            for is_read_only in (True, False, True)
        ]
        nodes = await self._store.get_many(paths)
        found = {}
        for bookie, *of_it in zip(asked, nodes[::3], nodes[1::3], nodes[2::3], strict=True):
            read_only_before, writable, read_only_after = of_it
            if (node := read_only_after or read_only_before or writable) is not None:
                found[bookie] = node.stat.czxid
        return found

    async def disks(self, bookies: Sequence[BookieId]) -> dict[BookieId, int]:
        """Return the transaction that last changed each bookie's cookie, 0 without a cookie; no older than this call.

        A bookie, Apache's included, starts on other disks only after its cookie was changed or deleted. After a restart
        on the same disks, the number is the same.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(f"{self._root}/{COOKIES}")
        nodes = await self._store.get_many([cookie_path(self._root, bookie) for bookie in bookies])
        return {bookie: 0 if node is None else node.stat.mzxid for bookie, node in zip(bookies, nodes, strict=True)}

    async def known(self) -> frozenset[BookieId]:
        """Return every bookie with a cookie.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            listing = await self._store.children(f"{self._root}/{COOKIES}")
        except NoNodeError:
            return frozenset()
        return frozenset(map(BookieId, listing.names))

    async def incarnations(self, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
        """Return the storage incarnation of each registered bookie; empty if it publishes none.

        A bookie missing in the result is not registered: do not choose it. Put the incarnation into each add. After its
        disks are replaced, a bookie has the same id and none of its entries, so it must not accept an add that was
        meant for the old disks (#4812).

        Raises:
            StoreUnavailableError: no answer.
        """
        found: dict[BookieId, str] = {}

        async def look_up(bookie: BookieId) -> None:
            info = await self.service_info(bookie)
            if info is not None:
                found[bookie] = info.incarnation

        await all_or_first_error(look_up(bookie) for bookie in sorted(set(bookies)))
        return found

    async def service_info(self, bookie: BookieId) -> ServiceInfo | None:
        """Return the content of a bookie's registration, None if it is not registered.

        An unreadable registration has no endpoints: the bookie exists and is unreachable.

        Raises:
            StoreUnavailableError: no answer.
        """
        found = await self.registration(bookie)
        return None if found is None else found.info

    async def registration(self, bookie: BookieId) -> Registration | None:
        """Return a bookie's registration, None if it is not registered; see ``service_info``.

        Raises:
            StoreUnavailableError: no answer.
        """
        read_only_before, writable, read_only_after = await self._store.get_many(
            [bookie_path(self._root, bookie, is_read_only=is_read_only) for is_read_only in (True, False, True)]
        )
        node = read_only_after or read_only_before or writable
        return None if node is None else Registration(_service_info(bookie, node.data), node.stat.czxid)

    async def latest_disks(self, bookies: Sequence[BookieId]) -> dict[BookieId, Latest]:
        """Return the current disks of each bookie, registered or not; see ``Incarnations.latest``.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._incarnations.latest(bookies)

    def state_paths(self, bookies: Sequence[BookieId]) -> builtins.list[str]:
        """Return the paths to read, in this order, for ``decode_states``."""
        return [path for bookie in bookies for path in self._state_paths(bookie)]

    def decode_states(self, bookies: Sequence[BookieId], nodes: Sequence[Node | None]) -> BookieObservation:
        """Return the state of bookies in ``nodes``, read at ``state_paths``.

        The read-only registration is read before and after the writable one, so a bookie is found even if it changes
        from one to the other during the reads.
        """
        writable: set[BookieId] = set()
        read_only: set[BookieId] = set()
        registrations: dict[BookieId, Registration] = {}
        latest: dict[BookieId, Latest] = {}
        for bookie, read_only_before, in_writable, read_only_after, history in zip(
            bookies, nodes[::4], nodes[1::4], nodes[2::4], nodes[3::4], strict=True
        ):
            node = read_only_after or read_only_before or in_writable
            if node is not None:
                (writable if node is in_writable else read_only).add(bookie)
                registrations[bookie] = Registration(_service_info(bookie, node.data), node.stat.czxid)
            if (known := self._incarnations.latest_in(bookie, history)) is not None:
                latest[bookie] = known
        return BookieObservation(Bookies(frozenset(writable), frozenset(read_only)), registrations, latest)

    def check_writable(self, bookie: BookieId) -> Check:
        """Return a check that fails a transaction unless the bookie is registered as writable."""
        return Check(bookie_path(self._root, bookie, is_read_only=False))

    def _state_paths(self, bookie: BookieId) -> tuple[str, str, str, str]:
        read_only = bookie_path(self._root, bookie, is_read_only=True)
        return (
            read_only,
            bookie_path(self._root, bookie, is_read_only=False),
            read_only,
            self._incarnations.path(bookie),
        )

    async def register(
        self, bookie: BookieId, info: ServiceInfo, *, is_read_only: bool, takeover_deadline_s: float
    ) -> None:
        """Register in this store's session, or change this session's registration between read-only and writable.

        The new node is created before the other one is deleted, so the bookie never counts as lost. A node of another
        session (a killed predecessor) must disappear first; the call waits for this.

        A new node is created only if no other disks than those of ``info`` were recorded last (R158). A node that this
        session already has is not affected.

        Args:
            bookie: id to register.
            info: the content of the registration.
            is_read_only: whether to register as read-only.
            takeover_deadline_s: how long to wait for a predecessor's node; longer than its session timeout.

        Raises:
            BookieIdInUseError: another session's node still existed after the deadline.
            DisksReplacedError: other disks were recorded under this id.
            NoNodeError: the cluster's root does not exist.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer, or the session was lost during the call; the
                bookie may be registered, and registering again is safe.
        """
        path = bookie_path(self._root, bookie, is_read_only=is_read_only)
        other = bookie_path(self._root, bookie, is_read_only=not is_read_only)
        if not await self._is_ours(path) and not await self._is_ours(other):
            await self._disks_checks(bookie, info)  # before a wait for the node of the process with the other disks
        try:
            async with asyncio.timeout(takeover_deadline_s):
                await self._wait_foreign_node_gone(other)
                await self._take(bookie, info, path)
        except TimeoutError as error:
            if not self._store.session.is_connected:
                raise StoreUnavailableError(f"bookie {bookie} is not registered: no connection to the store") from error
            raise BookieIdInUseError(
                f"bookie {bookie} is registered by another session, and still was after {takeover_deadline_s:g} s: "
                "stop the other process, or give this one another bookie id"
            ) from error
        await self._drop(other)

    async def unregister(self, bookie: BookieId) -> None:
        """End this session's registration of the bookie. A registration of another session stays. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the registration ends with the session.
        """
        for is_read_only in (False, True):
            await self._drop(bookie_path(self._root, bookie, is_read_only=is_read_only))

    async def wait_changed(self, seen: Bookies) -> Bookies:
        """Return the listing once it differs from ``seen``. Changes in quick succession may be reported as one.

        Raises:
            NotAClusterError: see ``list``.
            StoreUnavailableError: the session was lost while waiting.
        """
        while True:
            listing = await self._list()
            if listing.bookies != seen:
                return listing.bookies
            if not listing.is_stable:
                continue
            read_only = available_path(self._root, is_read_only=True)
            writable = available_path(self._root, is_read_only=False)
            await first_to_end(
                self._store.wait_node_changed(writable, None)
                if listing.writable is None
                else self._store.wait_children_changed(writable, listing.writable),
                self._store.wait_node_changed(read_only, None)
                if listing.read_only is None
                else self._store.wait_children_changed(read_only, listing.read_only),
            )

    async def _list(self) -> _Listing:
        """List read-only, writable, and read-only again, so that a bookie changing either way is found."""
        before = await self._children(is_read_only=True)
        for attempt in range(1, _STABLE_LISTING_ATTEMPTS + 1):
            writable = await self._children(is_read_only=False)
            after = await self._children(is_read_only=True)
            if writable is None and await self._store.stat(f"{self._root}/{INSTANCE_ID}") is None:
                raise NotAClusterError(f"no cluster at {self._root}: it has no node for registrations")
            is_stable = (before and before.stamp) == (after and after.stamp)
            if is_stable or attempt == _STABLE_LISTING_ATTEMPTS:
                read_only = _bookies(before) | _bookies(after)
                bookies = Bookies(_bookies(writable) - read_only, read_only)
                return _Listing(bookies, is_stable, writable, after)
            before = after
        raise AssertionError("the last attempt returns")

    async def _children(self, *, is_read_only: bool) -> Children | None:
        try:
            return await self._store.children(available_path(self._root, is_read_only=is_read_only))
        except NoNodeError:
            return None

    async def _take(self, bookie: BookieId, info: ServiceInfo, path: str) -> None:
        data = encode_service_info(info)
        error: Exception | None = None
        for _ in range(WRITE_ATTEMPTS_MAX):
            if not await self._is_ours(path):
                try:
                    await self._create(bookie, info, path)
                    return
                except (NodeExistsError, BadVersionError, WriteOutcomeUnknownError) as refused:
                    error = refused
                await self._wait_foreign_node_gone(path)
            node = await reread(self._store, path)
            if node is None or not self._store.session.is_alive(node.stat.ephemeral_owner):
                continue
            try:
                if node.data != data:
                    await self._store.set(path, data, node.stat.version)
                return
            except (BadVersionError, NoNodeError, WriteOutcomeUnknownError) as refused:
                error = refused
        raise error or StoreUnavailableError(f"{path} is deleted as fast as it is made")

    async def _create(self, bookie: BookieId, info: ServiceInfo, path: str) -> None:
        """Create a registration if the disks of ``info`` are the last recorded ones, or none are recorded."""
        data, checks = encode_service_info(info), await self._disks_checks(bookie, info)
        if not checks:
            await create_with_parents(self._store, path, data, self._root, is_ephemeral=True)
            return
        try:
            await self._store.multi([Create(path, data, is_ephemeral=True), *checks])
        except MultiFailedError as error:
            if isinstance(error.cause, NoNodeError):  # the parent, or a history that was moved
                await ensure_path(self._store, parent_of(path), self._root)
                raise BadVersionError(f"create {path}: {error.cause}") from error
            raise error.cause from error

    async def _disks_checks(self, bookie: BookieId, info: ServiceInfo) -> builtins.list[Check]:
        """Return conditions that hold until other disks than those of ``info`` are recorded.

        There are none if no disks are recorded.

        Raises:
            DisksReplacedError: other disks were recorded last.
            StoreUnavailableError: no answer.
        """
        if not info.incarnation:
            return []
        latest = (await self._incarnations.latest([bookie])).get(bookie)
        if latest is None or latest.uuid != info.incarnation:  # this session's server may be behind
            path = self._incarnations.path(bookie)
            await self._store.sync(path)
            latest = self._incarnations.latest_in(bookie, await find(self._store, path))
        if latest is None:
            return []
        if latest.uuid not in ("", info.incarnation):  # a damaged history shows nothing
            raise DisksReplacedError(
                f"bookie {bookie} was started on other disks (incarnation {latest.uuid}), which replace those of "
                f"this process ({info.incarnation}): this process must not serve any more"
            )
        return [latest.check]

    async def _is_ours(self, path: str) -> bool:
        stat = await self._store.stat(path)
        return stat is not None and self._store.session.is_alive(stat.ephemeral_owner)

    async def _wait_foreign_node_gone(self, path: str) -> None:
        while True:
            stat = await self._store.stat(path)
            if stat is None or stat.ephemeral_owner == self._store.session.session_id:
                return
            await self._store.wait_node_changed(path, stat)

    async def _drop(self, path: str) -> None:
        error: Exception | None = None
        for _ in range(WRITE_ATTEMPTS_MAX):
            stat = await self._store.stat(path)
            if stat is None or not self._store.session.is_alive(stat.ephemeral_owner):
                return
            try:
                await self._store.delete(path, stat.version)
                return
            except NoNodeError:
                return
            except (BadVersionError, WriteOutcomeUnknownError) as unsettled:
                error = unsettled
                await self._store.sync(path)
        raise WriteOutcomeUnknownError(
            f"deleting {path}: the outcome of {WRITE_ATTEMPTS_MAX} attempts is unknown; try again"
        ) from error


def _service_info(bookie: BookieId, data: bytes) -> ServiceInfo:
    try:
        return decode_service_info(data, bookie)
    except UnreadableServiceInfoError as error:
        _log.warning("registration cannot be read", extra={"bookie_id": bookie, "error": str(error)})
        return ServiceInfo(())


def _bookies(listing: Children | None) -> frozenset[BookieId]:
    return frozenset(BookieId(name) for name in listing.names if name != READ_ONLY) if listing else frozenset()


class BookieState(enum.Enum):
    """Whether a bookie is registered, and how."""

    WRITABLE = "WRITABLE"
    READ_ONLY = "READ_ONLY"
    """A source of copies: not missing (S8, R17)."""
    UNREGISTERED = "UNREGISTERED"

    @property
    def label(self) -> str:
        """Its name in documents: ``writable``, ``read_only``, or ``lost``."""
        return "lost" if self is BookieState.UNREGISTERED else self.value.lower()

    @classmethod
    def of_label(cls, label: str) -> BookieState:
        """Return the state of a name in a document, which may be an upper-case name of an earlier release.

        Raises:
            ValueError: no state has this name.
        """
        return cls.UNREGISTERED if label == cls.UNREGISTERED.label else cls(label.upper())


def state_of(bookie: BookieId, bookies: Bookies) -> BookieState:
    """Return the state of ``bookie`` in a listing."""
    if bookie in bookies.writable:
        return BookieState.WRITABLE
    return BookieState.READ_ONLY if bookie in bookies.read_only else BookieState.UNREGISTERED
