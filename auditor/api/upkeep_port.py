"""Port of the HTTP API for operators' work on a cluster: a client apart from the leader's own session and loop.

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
    """Does the operators' work on the cluster."""

    async def ask(self, work: Work[T]) -> T:
        """Do work shorter than a request's time. Raises the errors of the work, and StoreUnavailableError."""
        ...

    async def ask_long(self, key: Hashable, work: Work[Document]) -> Document:
        """Do work of any length; requests with the same key share it.

        Raises:
            StillWorkingError: the work goes on; ask again with the same key.
            OverloadedError: too much such work is under way.
            Exception: raised by the work.
        """
        ...

    async def progress(self) -> Document:
        """Return the progress of repairs, with a rate from the second call on. Raises as ``ask_long``."""
        ...

    async def cluster_status(self) -> Document:
        """Return the state of the whole cluster, as shown by ``bkheal status``. Raises as ``ask_long``."""
        ...
