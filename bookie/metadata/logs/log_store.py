"""Logs as lists of ledgers: ``/bkheal/logs/<quoted ledgers root>/<quoted name>``.

A node holds one log as JSON with a format number, and is changed by compare-and-set only. Rules kept here:

- A change is a pure function of the node's content, and returns None if it has taken effect already. So a lost answer
  is resolved by a read: the writer's token and the ledger's id in the node identify the process's own change.
- A ledger's metadata is created and listed by one transaction: no ledger is ever listed and missing, or existing and
  unlisted.
- Ids ascend along the list, and a new id is greater than those of deleted ledgers. So positions are ordered by (ledger,
  entry).
- The same change moves a ledger from the list to ``trimming``, where it stays until its metadata is deleted: a crash
  between the two leaks nothing.
- A node is never deleted, because versions would start again. A deleted log leaves a tombstone, so a writer of the old
  log can never change a new one of the same name.

Rules T13 and S4 of docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from bookie.metadata.logs.log_list import LogConflictError, LogList, decode, encode, is_tombstone
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, create_with_parents, ensure_path, parent_of, reread
from bookie.metadata.own_state import claim_state_root, own_path
from bookie.metadata.port import (
    NODE_DATA_MAX,
    BadVersionError,
    Create,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    Stat,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError, PermanentError
from bookie.runtime.fault_points import fault_point

LIST_BYTES_MAX: Final = NODE_DATA_MAX * 9 // 10
"""Largest list after a roll-over, in bytes of its node: about 80,000 ledgers. The rest up to ``NODE_DATA_MAX`` is for
the new ledger's metadata in the same request, and for a takeover, up to ``TAKEOVER_BYTES_MAX``."""
TAKEOVER_BYTES_MAX: Final = NODE_DATA_MAX * 19 // 20
NAME_BYTES_MAX: Final = 255
_ID_BYTES_MAX: Final = 80
"""Maximum number of bytes that one more ledger adds to a node: its id, twice, and a longer token and longer numbers."""
CONFLICTS_MAX: Final = 20
"""Attempts at one change. Only truncations and takeovers cause conflicts, and there are few of them."""


class InvalidLogNameError(PermanentError):
    """No log can have this name."""


class NoSuchLogError(ConflictError):
    """There is no log of this name."""


class LogExistsError(ConflictError):
    """A log of this name exists already."""


class LogFullError(PermanentError):
    """The log's list of ledgers does not fit into its node: truncate the log, or use larger ledgers."""


@dataclass(frozen=True, slots=True)
class ListedLog:
    """A log's list as read from, or written to, its node."""

    name: str
    list: LogList
    stat: Stat | None
    """None after a write: the next change reads the node again if its version does not match."""
    version: int


Decide = Callable[[LogList], LogList | None]
"""Returns the list to store; None if nothing needs to change.

May run many times and must have no side effects.
"""


class LogLists:
    """The logs of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._root = ledgers_root
        self._parent = own_path("logs", ledgers_root)

    def path(self, name: str) -> str:
        """Path of a log's node.

        Raises:
            InvalidLogNameError: empty, ``.``, ``..``, or longer than ``NAME_BYTES_MAX`` bytes when quoted.
        """
        try:
            quoted = quote(name, safe="")
        except UnicodeEncodeError:
            quoted = ""
        if quoted in ("", ".", "..") or len(quoted) > NAME_BYTES_MAX:
            raise InvalidLogNameError(
                f"{name[:40]!r} is not a log name: 1 to {NAME_BYTES_MAX} bytes (quoted as in a URL), not '.' or '..'"
            )
        return f"{self._parent}/{quoted}"

    async def names(self) -> Sequence[str]:
        """Names of all logs, sorted.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            quoted = sorted((await self._store.children(self._parent)).names)
        except NoNodeError:
            return []
        found = await self._store.get_many_data([f"{self._parent}/{name}" for name in quoted])
        pairs = zip(quoted, found, strict=True)
        return sorted(unquote(name) for name, data in pairs if data is not None and not is_tombstone(data))

    async def read(self, name: str, *, is_newest: bool = False, is_tombstone_ok: bool = False) -> ListedLog:
        """Read a log's list.

        Args:
            name: the log's.
            is_newest: include every write before this call, at the cost of a round trip.
            is_tombstone_ok: accept the tombstone of a deleted log.

        Raises:
            NoSuchLogError: it does not exist.
            InvalidLogNameError: no log can have this name.
            UnreadableLogError: its node is damaged, or of a newer format.
            StoreUnavailableError: no answer.
        """
        path = self.path(name)
        if is_newest or fault_point("log.read_newest"):
            await self._store.sync(path)
        try:
            listed = listed_log(name, await self._store.get(path))
        except NoNodeError as error:
            raise NoSuchLogError(f"there is no log {name!r}") from error
        if listed.list.is_deleted and not is_tombstone_ok:
            raise NoSuchLogError(f"there is no log {name!r}")
        return listed

    def has_room(self, listed: ListedLog) -> bool:
        """Whether another ledger certainly fits into the list, so ``change`` does not refuse it as too large."""
        return len(encode(listed.list)) + _ID_BYTES_MAX <= LIST_BYTES_MAX and not fault_point("log.list_full")

    async def create(self, name: str, options: Mapping[str, Any], ctime_ms: int, token: str) -> ListedLog:
        """Create an empty log. Durable on return.

        Args:
            name: the log's.
            options: how its ledgers are made.
            ctime_ms: now, epoch milliseconds.
            token: unique per call; identifies this call's own creation after a lost answer.

        Raises:
            LogExistsError: there is one already.
            InvalidLogNameError: no log can have this name.
            UnreadableLogError: there is something else in its place.
            WriteOutcomeUnknownError: every answer was lost.
            StoreUnavailableError: no answer; nothing was changed.
            StateRootError: the cluster's other processes keep their state below another root; nothing was changed.
        """
        await claim_state_root(self._store, self._root)
        new = LogList(options=options, ctime_ms=ctime_ms, writer=token)
        path = self.path(name)
        for _ in range(WRITE_ATTEMPTS_MAX):
            node = await reread(self._store, path)
            old = None if node is None else listed_log(name, node)
            if old is not None and not old.list.is_deleted:
                if old.list.writer == token:
                    return old
                raise LogExistsError(f"there is a log {name!r} already")
            try:
                if old is None:
                    await create_with_parents(self._store, path, encode(new), "/")
                    return ListedLog(name, new, None, 0)
                new = replace(new, trimming=old.list.trimming, last_listed=old.list.last_listed)
                new = replace(new, truncated_through=old.list.last_listed)
                stat = await self._store.set(path, encode(new), old.version)
                return ListedLog(name, new, stat, stat.version)
            except (NodeExistsError, BadVersionError, NoNodeError, WriteOutcomeUnknownError):
                continue
        raise WriteOutcomeUnknownError(f"creating log {name!r}: every answer was lost; check whether it exists")

    async def change(
        self, seen: ListedLog, decide: Decide, *, create: Create | None = None, bytes_max: int = LIST_BYTES_MAX
    ) -> ListedLog:
        """Apply ``decide`` to the newest list, by compare-and-set.

        Args:
            seen: the list as known; if it is outdated, it is read again.
            decide: see ``Decide``; its exceptions pass through, and nothing was changed then.
            create: a ledger's metadata to create in the same transaction.
            bytes_max: largest node size to which this change may *grow* the list.

        Returns:
            The list after the change.

        Raises:
            LogFullError: the list would be too large.
            NoSuchLogError: its node does not exist. (``decide`` must refuse a deleted log.)
            LogConflictError: the list kept changing, or the ledger to create exists.
            UnreadableLogError: its node is damaged.
            WriteOutcomeUnknownError: every answer was lost.
            StoreUnavailableError: no answer; nothing was changed.
        """
        path, is_unknown = self.path(seen.name), False
        if fault_point("log.change_from_fresh"):
            seen = await self._reread(seen.name)
        for _ in range(CONFLICTS_MAX):
            wanted = decide(seen.list)
            if wanted is None:
                return seen
            data = encode(wanted)
            if len(data) > bytes_max and len(wanted.ledgers) > len(seen.list.ledgers):
                raise LogFullError(
                    f"log {seen.name!r} lists {len(seen.list.ledgers)} ledgers, as many as fit into its node: "
                    "truncate it (`bkheal log truncate`), or let ledgers grow larger before the log rolls over"
                )
            operations: list[Operation] = [SetData(path, data, seen.version)]
            try:
                if create is None:
                    stat = await self._store.set(path, data, seen.version)
                    return ListedLog(seen.name, wanted, stat, stat.version)
                await self._store.multi([create, *operations])
                return ListedLog(seen.name, wanted, None, seen.version + 1)
            except MultiFailedError as error:
                await self._create_missing_parents(error, create)
            except WriteOutcomeUnknownError:
                is_unknown = True
            except (BadVersionError, NoNodeError):
                pass
            seen = await self._reread(seen.name)
        if is_unknown:
            raise WriteOutcomeUnknownError(f"changing log {seen.name!r}: answers were lost; read it")
        raise LogConflictError(f"log {seen.name!r} kept changing; try again")

    async def wait_changed(self, seen: ListedLog) -> None:
        """Return once the log's node differs from ``seen``.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        if seen.stat is not None:
            await self._store.wait_node_changed(self.path(seen.name), seen.stat)

    async def _reread(self, name: str) -> ListedLog:
        node = await reread(self._store, self.path(name))
        listed = None if node is None else listed_log(name, node)
        if listed is None:
            raise NoSuchLogError(f"there is no log {name!r} any more")
        return listed

    async def _create_missing_parents(self, error: MultiFailedError, create: Create | None) -> None:
        """Create the ledger's missing parents after a refused transaction.

        Any other conflict is left to the next read. Other errors are raised.
        """
        if create is not None and error.index == 0 and isinstance(error.cause, NoNodeError):
            await ensure_path(self._store, parent_of(create.path), self._root)
        elif not isinstance(error.cause, BadVersionError | NodeExistsError | NoNodeError):
            raise error


def listed_log(name: str, node: Node) -> ListedLog:
    """The list in a node.

    Raises:
        UnreadableLogError: it is damaged, or of another format.
    """
    return ListedLog(name, decode(name, node.data), node.stat, node.stat.version)
