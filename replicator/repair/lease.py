"""The lock of one task while this worker holds it: the permission to continue, which is checked repeatedly.

The lock ends with the store's session (S14), whether or not this process has noticed. So no change relies only on the
lock: every change is a compare-and-set (S16). In addition, this module stops work soon after it has become useless or
unwanted, and a new session never continues the work of an old one.

The first reads of a turn (``NodesReadWithTask``) are part of the request that reads the task under the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import lock_path
from bookie.metadata.port import Check, Node, Operation, SessionState
from bookie.metadata.tasks.locks import HeldTask, HeldTaskState, SeenNode
from bookie.model.errors import BkhealError, ConflictError
from bookie.model.ids import LedgerId
from bookie.runtime.clock import within
from bookie.runtime.retry import Backoff, retry_transient
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

_SUSPENDED_S_MAX: Final = 60.0
"""The longest wait for the connection. The session is usually back or lost before: ZooKeeper's largest session timeout
is 40 s by default."""
_PATIENCE: Final = Backoff(attempts=5)
"""The retries of a read, so that one lost answer of the store does not end a copy of many gigabytes."""
_RELEASE_ATTEMPTS: Final = 4
_RELEASE_PAUSE_S: Final = 0.5


class LeaseLostError(ConflictError):
    """The lock is no longer ours, so nothing may be changed that requires it."""


@dataclass(frozen=True, slots=True)
class NodesReadWithTask:
    """Nodes that are read in the same request as the task, under its lock."""

    metadata: Node | None
    reservation: Node | None
    parked: Node | None
    failure: Node | None
    decision: Node | None


def other_node_paths(ports: RepairPorts, ledger_id: LedgerId) -> list[str]:
    """Return the paths of the nodes in ``NodesReadWithTask``, in the order of its fields."""
    own = (ports.reservations, ports.parked, ports.failures, ports.decisions)
    return [ports.ledgers.path(ledger_id), *(records.path(ledger_id) for records in own)]


class Lease:
    """A lock that this worker holds. Only one task of the event loop uses it."""

    def __init__(self, ports: RepairPorts, held: HeldTask, epoch: int) -> None:
        """Take over a lock that was taken in the session numbered ``epoch``."""
        self._ports = ports
        self.held = held
        self.other_nodes = NodesReadWithTask(*held.other_nodes) if held.other_nodes else None
        """None if no other nodes were read with the lock."""
        self._epoch = epoch
        self._is_given_back = False

    @property
    def is_session_over(self) -> bool:
        """Whether the session of the lock is known to have ended."""
        session = self._ports.store.session
        return session.epoch != self._epoch or session.state is SessionState.LOST

    async def may_continue(self) -> bool:
        """Whether the next copy may start: the session is the same and connected, and repair is not disabled (S7).

        This waits while the connection is down, because the session may survive.

        Raises:
            StoreUnavailableError: the switch could not be read.
        """
        if not await self.wait_connected():
            return False
        if (known := self._ports.recent.cached_is_disabled()) is not None:  # a cached answer needs no retries
            return not known
        is_disabled = self._ports.recent.is_disabled
        return not await retry_transient(is_disabled, _PATIENCE, self._ports.clock, self._ports.rng)

    async def wait_connected(self) -> bool:
        """Wait while the connection is down; return whether it is back in the lock's session. This sends no request."""
        store = self._ports.store
        try:
            while not self.is_session_over and not store.session.is_connected:
                await within(_SUSPENDED_S_MAX, store.wait_session_changed(store.session))
        except TimeoutError:
            return False
        return not self.is_session_over

    async def ensure_ours(self) -> None:
        """Check in the store that the lock is still our node.

        Raises:
            LeaseLostError: the lock is not ours.
            StoreUnavailableError: the store does not answer.
        """
        self.ensure_session()
        stat = await self._ports.store.stat(lock_path(self._ports.cluster.root, self.held.task.ledger_id))
        if stat is None or stat.czxid != self.held.lock.czxid:
            raise self.lost()

    async def reread(self, other_nodes: Sequence[str]) -> HeldTaskState:
        """Check in the store that the lock is still our node, and read other nodes in the same request.

        Raises:
            LeaseLostError: the lock is not ours.
            StoreUnavailableError: the store does not answer.
        """
        self.ensure_session()
        state = await self._ports.tasks.locks.reread(self.held, other_nodes)
        if not state.is_ours:
            raise self.lost()
        return state

    def lost(self) -> LeaseLostError:
        """Return the error for a lock that no longer exists."""
        return LeaseLostError(
            f"the lock of ledger {self.held.task.ledger_id} no longer exists; the repair starts again later"
        )

    def ensure_session(self) -> None:
        """Check that the session of the lock is not known to have ended. Call this right before every write.

        Raises:
            LeaseLostError: the session has ended.
        """
        if self.is_session_over:
            raise LeaseLostError(f"the session that held ledger {self.held.task.ledger_id} has ended; the task stays")

    def check(self) -> Check:
        """Return a check to use right after ``reread``: it fails if there is no lock, or a program of Apache has it."""
        return self._ports.tasks.locks.check(self.held.task.ledger_id)

    def completion(self) -> list[Operation]:
        """Return operations that delete the task and the lock right after ``reread``; see ``TaskLocks.completion``."""
        return [*self._ports.tasks.locks.completion(self.held)]

    def note_completed(self) -> None:
        """Record that a transaction with ``completion`` deleted the task and the lock."""
        self._ports.tasks.locks.note_completed(self.held)
        self._is_given_back = True

    async def complete(self, checks: Sequence[Operation] = (), *, seen: Sequence[SeenNode] = ()) -> bool:
        """Delete the task as read under the lock (S5); return False if it stays. In both cases, release the lock.

        Args:
            checks: further conditions for the deletion of the task (I18), and nodes to delete with it.
            seen: nodes that must not have been created, deleted or recreated.

        Raises:
            LeaseLostError: the session has ended.
        """
        self.ensure_session()
        is_deleted = await self._ports.tasks.locks.complete(self.held, checks, seen=seen, is_pruned_later=True)
        self._is_given_back = True
        return is_deleted

    async def release(self) -> bool:
        """Release the lock; return True if it is no longer held, perhaps because its session has ended.

        Returns False if the store does not answer. The caller must then call this again, because a remaining lock would
        exclude all other workers from the ledger as long as this process lives. Raises nothing.
        """
        for _ in range(_RELEASE_ATTEMPTS):
            if self._is_given_back or self.is_session_over:
                return True
            try:
                await self._ports.tasks.locks.release(self.held.lock)
                self._is_given_back = True
            except BkhealError as error:
                fields = {"ledger_id": self.held.task.ledger_id, "error": str(error)}
                _log.warning("lock could not be released, trying again", extra=fields)
                await self._ports.clock.sleep(_RELEASE_PAUSE_S)
        return self._is_given_back or self.is_session_over
