"""The client of the operators' functions, the requester of a change, and their common refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from bookie.client.ports import ClientPorts
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.changes import Changes
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId

Document: TypeAlias = dict[str, Any]


class RefusedError(ConflictError):
    """The cluster's state does not allow the change; nothing was changed. Contains the reason and the next step."""


class NoSuchObjectError(PermanentError):
    """There is no such ledger, bookie or task."""


class ClusterClient(Protocol):
    """A client of one cluster, such as ``ConnectedBookKeeper``."""

    @property
    def ports(self) -> ClientPorts:
        """Registrations, ledgers, tasks and bookies."""
        ...

    @property
    def store(self) -> MetadataStore:
        """Its session."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Its cluster."""
        ...

    @property
    def parked(self) -> ParkedTasks:
        """Its parked tasks."""
        ...


@dataclass(frozen=True, slots=True)
class Actor:
    """The requester of a change, and the interface used."""

    name: str
    via: str

    async def record(self, client: ClusterClient, action: str, detail: str = "") -> None:
        """Record a change before it is made.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; do not change anything.
        """
        await changes_of(client).record(self.name, self.via, action, detail)


def changes_of(client: ClusterClient) -> Changes:
    """The record of changes of the client's cluster."""
    return Changes(client.store, client.cluster.root, client.ports.clock)


async def check_names(client: ClusterClient, names: Sequence[BookieId]) -> None:
    """Refuse names that are not bookies of the cluster: most likely they are misspelt.

    Raises:
        NoSuchObjectError: names them.
        StoreUnavailableError: no answer.
    """
    registrations = client.ports.registrations
    known = await registrations.known() | (await registrations.list()).registered
    if strangers := [name for name in names if name not in known]:
        raise NoSuchObjectError(f"no bookie of this cluster: {', '.join(strangers)}; `bkheal bookies` lists them")
