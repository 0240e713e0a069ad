"""The bookies of a rack, for requests that name a rack."""

from __future__ import annotations

from auditor.operating.client import ClusterClient, RefusedError, known_bookies
from bookie.metadata.bookies.topology import TopologyStore
from bookie.model.ids import BookieId
from bookie.model.topology import Topology


async def bookies_of_rack(client: ClusterClient, topology: Topology | None, rack: str) -> tuple[BookieId, ...]:
    """Return every known bookie in a rack by id, registered or not.

    Args:
        client: of the cluster.
        topology: the locations of bookies; None: those in ZooKeeper.
        rack: the whole location, such as ``/r1``.

    Raises:
        RefusedError: the rack has no bookies; the message lists the racks with bookies.
        InvalidTopologyError: the topology cannot be read.
        StoreUnavailableError: no answer.
    """
    if topology is None:
        topology = (await TopologyStore(client.store, client.cluster).read()).topology
    known = await known_bookies(client)
    bookies = tuple(sorted(bookie for bookie in known if topology.known(bookie) == rack))
    if not bookies:
        racks = sorted({where for bookie in known if (where := topology.known(bookie)) is not None})
        known_racks = f"racks with bookies: {', '.join(racks)}" if racks else "no bookie has a rack in the topology"
        raise RefusedError(f"no bookie is in rack {rack}; {known_racks}")
    return bookies
