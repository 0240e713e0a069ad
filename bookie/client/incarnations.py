"""Which disks the members of an ensemble have, looked up before the metadata names them.

A member whose disks are replaced afterwards is another witness under the same name: adds meant for the old disks must
never be counted there (#4812). So the writer puts what it learns here into each of its adds.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie.client.ports import ClientPorts
from bookie.model.ids import BookieId
from bookie.runtime.waiting import all_or_first_error


async def look_up_incarnations(ports: ClientPorts, members: Iterable[BookieId]) -> dict[BookieId, str]:
    """Storage incarnations of the members that are registered; empty for one that does not say.

    A member that is missing in the answer is not registered (any more): do not choose it.

    Raises:
        StoreUnavailableError: no answer.
    """
    found: dict[BookieId, str] = {}

    async def look_up(bookie: BookieId) -> None:
        info = await ports.registrations.service_info(bookie)
        if info is not None:
            found[bookie] = info.incarnation

    await all_or_first_error(look_up(bookie) for bookie in sorted(set(members)))
    return found
