"""Port of the HTTP API for operators' work on a cluster: a client apart from the leader's own session and loop.

Listing marks or reading all metadata takes seconds on a large cluster. On the leader's loop this would end its
leadership, so the work has a thread, a loop and a session of its own (``auditor.service.upkeep``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeAlias, TypeVar

from auditor.operating.client import ClusterClient, Document
from bookie.model.errors import ConflictError, TransientError

T = TypeVar("T")
Work: TypeAlias = Callable[[ClusterClient], Coroutine[Any, Any, T]]


class StillWorkingError(TransientError):
    """The work takes longer than a request may take. It continues, and the same request receives its result later."""


class WorkCancelledError(ConflictError):
    """Another request ended the work before its end."""


class Upkeep(Protocol):
    """Does the operators' work on the cluster."""

    async def run(self, work: Work[T]) -> T:
        """Do work shorter than a request's time. Raises the errors of the work, and StoreUnavailableError."""
        ...

    async def run_long(
        self, key: Hashable, work: Work[Document], circumstances: Work[Hashable] | None = None
    ) -> Document:
        """Do work of any length; requests with the same key share it.

        Args:
            key: identifies the work.
            work: the work.
            circumstances: a short read. A result of earlier work is returned only if this read has the same result as
                at the end of that work; otherwise the work is done again.

        Raises:
            StillWorkingError: the work continues; ask again with the same key.
            WorkCancelledError: ``cancel_matching`` ended it.
            OverloadedError: too much such work is under way.
            Exception: any error of the work.
        """
        ...

    async def cancel_matching(self, is_meant: Callable[[Hashable], bool]) -> None:
        """End the work with matching keys at any point, and forget its results. Other work may call this."""
        ...

    async def progress(self) -> Document:
        """Return the progress of repairs, with a rate from the second call on. Raises the errors of ``run_long``."""
        ...

    async def cluster_status(self) -> Document:
        """Return the state of the whole cluster, as ``bkheal status`` shows it. Raises the errors of ``run_long``."""
        ...
