"""Port of the HTTP API to the cluster itself: marks, bookies, switches. ``auditor.api.control.Control`` has the runs.

Every process answers these requests, whether it leads or not.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookie.metadata.bookies.registration import BookieState
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.tasks.underreplication import UnreadableTask
from bookie.model.ids import BookieId, LedgerId
from bookie.model.ownership import NO_OWNER, OwnerNames


class TaskState(enum.StrEnum):
    """The state of the repair of a marked ledger."""

    WAITING = "waiting"
    IN_PROGRESS = "in_progress"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class TaskView:
    """A marked ledger, judged by its metadata and the bookies registered now."""

    ledger_id: LedgerId
    missing: Sequence[BookieId]
    """The missing bookies that its mark names; none if the mark cannot be read."""
    marked_ms: int
    """When it was marked, epoch milliseconds; 0: not known."""
    state: TaskState
    condition: str
    """Name of its worst severity in lower case. ``healthy``: every bookie that it names is registered; ``unreadable``:
    its metadata or its mark cannot be read; ``gone``: its metadata was deleted."""
    copies_min: int | None = None
    """Copies left of the entry with the fewest copies; None if nothing is missing, or if the number is unknown."""
    ledger_bytes: int | None = None
    """Payload of the whole ledger, in bytes; None unless it is closed."""
    park_reason: ParkReason | None = None
    detail: str = ""
    """Why it is parked, or what is wrong with its metadata or its mark."""
    owner: OwnerNames = NO_OWNER
    """The Pulsar object that the ledger belongs to."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some marked ledgers, by ledger id."""

    tasks: Sequence[TaskView]
    next_after: LedgerId | None
    """The next page begins after this ledger; None: this is the last page. Any page may be short or empty."""


@dataclass(frozen=True, slots=True)
class MarkPage:
    """Some marks, by ledger id."""

    tasks: Sequence[Task | UnreadableTask]
    next_after: LedgerId | None
    """As in ``TaskPage``."""


@dataclass(frozen=True, slots=True)
class MarkFilter:
    """A filter of listed marks."""

    missing: str = ""
    """Only marks with a missing copy on this bookie; empty: all."""
    not_missing: str = ""
    """Only marks without a missing copy on this bookie; empty: all."""

    def matches(self, task: Task | UnreadableTask) -> bool:
        """Return whether to list a mark. One that cannot be read is always listed: its bookies are unknown."""
        if isinstance(task, UnreadableTask):
            return True
        is_wanted = not self.missing or self.missing in task.missing
        return is_wanted and (not self.not_missing or self.not_missing not in task.missing)


ALL_MARKS: Final = MarkFilter()
MARKS_EXAMINED_MAX: Final = 20_000
"""Marks that one request reads in a search for matches of its filter: some dozen requests to the store."""


@dataclass(frozen=True, slots=True)
class BookieView:
    """A known bookie. Its figures are None if it reported none."""

    bookie_id: BookieId
    state: BookieState
    host: str = ""
    port: int = 0
    protocol: str = ""
    """The protocol of its first endpoint; empty: it is not registered, or its registration cannot be read."""
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    ledger_count: int | None = None


class Operations(Protocol):
    """The cluster's state for the API. Answers may be some seconds old, except after a change by this process."""

    async def list_tasks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> TaskPage:
        """Return marked ledgers in the order of their ids. The cost does not depend on the number of marked ledgers.

        Args:
            limit: largest number of ledgers, at least 1.
            after: start after this ledger; None: at the first.
            wanted: which marks to list; at most ``MARKS_EXAMINED_MAX`` are read in the search.

        Raises:
            StoreUnavailableError: no answer.
            NotAClusterError: the cluster was deleted.
        """
        ...

    async def list_marks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> MarkPage:
        """Return the marks without the metadata of their ledgers; otherwise as ``list_tasks``.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def is_any_marked(self) -> bool:
        """Return whether any ledger is marked.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def bookies(self) -> Sequence[BookieView]:
        """Return every known bookie, by id.

        Raises:
            StoreUnavailableError: no answer from the store. If a bookie does not answer, it has no figures.
            NotAClusterError: the cluster was deleted.
        """
        ...

    async def is_recovery_enabled(self) -> bool:
        """Return whether repair is on in the whole cluster.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def set_recovery(self, *, is_on: bool) -> None:
        """Turn repair on or off for the whole cluster, for Apache's workers as well. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; setting it again is safe.
        """
        ...

    async def lost_bookie_delay_s(self) -> int:
        """Return the seconds for which a bookie may be missing before its ledgers are marked.

        Raises:
            InvalidDelayError: the stored value is not a number of seconds.
            StoreUnavailableError: no answer.
        """
        ...

    async def set_lost_bookie_delay_s(self, seconds: int) -> None:
        """Set the delay. Setting the present value again makes Apache's auditor start an audit.

        Raises:
            InvalidDelayError: it is not a valid delay.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; setting it again is safe.
        """
        ...
