"""The client of the operators' functions, the requester of a change, and their common refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from auditor.safety.scan import Advance, count, scan
from bookie.client.ports import ClientPorts
from bookie.metadata.bookies.first_seen_down import FirstSeenDown, unaudited
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata

Document: TypeAlias = dict[str, Any]


class RefusedError(ConflictError):
    """The cluster's state does not allow the change; nothing was changed. The message has reason and next step."""


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
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the caller must not make the change.
        """
        await changes_of(client).record(self.name, self.via, action, detail)


def changes_of(client: ClusterClient) -> ChangeRecords:
    """Return the record of changes of the client's cluster."""
    return ChangeRecords(client.store, client.cluster.root, client.ports.clock)


async def known_bookies(client: ClusterClient) -> frozenset[BookieId]:
    """Return the bookies with a cookie, the registered ones, and those that are lost without a cookie (R142).

    Raises:
        StoreUnavailableError: no answer.
    """
    registrations = client.ports.registrations
    noted = await FirstSeenDown(client.store, client.cluster.root).read()
    return await registrations.known() | (await registrations.list()).registered | unaudited(noted)


async def check_names(client: ClusterClient, names: Sequence[BookieId]) -> None:
    """Refuse names that are not bookies of the cluster, because they are most likely misspelt.

    Raises:
        NoSuchObjectError: some names are not bookies; the message has these names.
        StoreUnavailableError: no answer.
    """
    known = await known_bookies(client)
    _refuse([name for name in names if name not in known])


async def check_names_or_in_ledgers(
    client: ClusterClient,
    names: Sequence[BookieId],
    counting: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda done: None),
) -> None:
    """Refuse names as ``check_names`` does, but accept also a bookie with a recorded loss, or one that a ledger names.

    The cookie of such a bookie may have been deleted before its ledgers were repaired. All ledgers are read only if a
    name is not known otherwise.

    Args:
        client: of the cluster.
        names: the bookies.
        counting: shows the progress for a number of ledgers.

    Raises:
        NoSuchObjectError: some names are unknown, and no readable ledger has them; the message has these names.
        StoreUnavailableError, NotAClusterError: see ``scan``.
    """
    known = await known_bookies(client)
    unknown_names = [name for name in names if name not in known]
    if unknown_names:
        noted = await FirstSeenDown(client.store, client.cluster.root).read()
        unknown_names = [name for name in unknown_names if name not in noted]
    if not unknown_names:
        return
    named: set[BookieId] = set()

    def visit(_: LedgerId, metadata: LedgerMetadata) -> None:
        named.update(metadata.members().intersection(unknown_names))

    with counting(await count(client.ports.ledgers)) as advance:
        await scan(client.ports.ledgers, unknown_names, visit, advance)
    _refuse([name for name in unknown_names if name not in named])


def _refuse(unknown_names: Sequence[BookieId]) -> None:
    if unknown_names:
        raise NoSuchObjectError(f"no bookie of this cluster: {', '.join(unknown_names)}; `bkheal bookies` lists them")
