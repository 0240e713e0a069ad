"""What the HTTP face needs to look after a cluster: a client that is not the leader's own session and loop.

Listing marks or reading all metadata takes seconds on a large cluster. On the leader's loop this would end its
leadership, so the work has a thread, a loop and a session of its own (``auditor.service.upkeep``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias, TypeVar

from auditor.operating.client import ClusterClient, Document
from bookie.model.errors import TransientError

T = TypeVar("T")
Work: TypeAlias = Callable[[ClusterClient], Coroutine[Any, Any, T]]


class StillWorkingError(TransientError):
    """The work takes longer than a request may. It goes on, and the same request receives its result later."""


class Upkeep(Protocol):
    """Does operators' work on the cluster."""

    async def ask(self, work: Work[T]) -> T:
        """Do work of less than a request's time. Raises what it raises, and StoreUnavailableError."""
        ...

    async def ask_long(self, key: Hashable, work: Work[Document]) -> Document:
        """Do work of any length; requests with the same key share it.

        Raises:
            StillWorkingError: it goes on; ask again with the same key.
            OverloadedError: too much such work is under way.
            Exception: what the work raises.
        """
        ...

    async def progress(self) -> Document:
        """How far repairs are, with a rate once there were two looks. Raises as ``ask_long``."""
        ...

    async def cluster_status(self) -> Document:
        """One look at the whole cluster, as ``bkheal status`` shows it. Raises as ``ask_long``."""
        ...
