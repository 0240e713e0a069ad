"""The creation of a ledger: refuse impossible options, choose bookies, create the metadata, start the writer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

from bookie.client.options import LedgerOptions, WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import LedgerExistsError, Versioned
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.isolation import allowed_bookies
from bookie.model.metadata import Fragment, LedgerMetadata

IDS_MAX: Final = 1000
"""Maximum number of ids tried for one ledger. Ids are taken if applications have chosen them (Apache's clients can), or
if the counter of ids was lost and began again at 0."""


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """A ledger to be created: everything is decided, and nothing but its id is taken yet."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    incarnations: Mapping[BookieId, str]
    """Disks of the members, looked up before the metadata names them."""


async def plan_ledger(
    ports: ClientPorts, options: LedgerOptions, password: bytes, custom: Mapping[str, bytes]
) -> PlannedLedger:
    """Plan a new ledger.

    Raises:
        InvalidQuorumError: impossible options.
        NotEnoughBookiesError: the placement finds no ensemble among the writable bookies.
        ReadOnlyLayoutError: the cluster has the flat layout.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer from the metadata store.
    """
    options.check()
    writable = (await ports.registrations.list()).writable
    usable = writable - ports.placement.draining
    writable -= usable - allowed_bookies(custom.items(), ports.placement.topology.groups, usable, options.ensemble_size)
    gone: set[BookieId] = set()
    while True:  # the loop ends, because each round has at least one candidate fewer
        members = ports.placement.ensemble(
            writable, options.ensemble_size, options.write_quorum, options.ack_quorum, gone, ports.rng
        )
        incarnations = await ports.registrations.incarnations(members)
        if len(incarnations) == len(members):
            break
        gone |= set(members) - incarnations.keys()
    metadata = LedgerMetadata(
        ensemble_size=options.ensemble_size,
        write_quorum=options.write_quorum,
        ack_quorum=options.ack_quorum,
        fragments=(Fragment(EntryId(0), members),),
        digest_type=options.digest_type,
        password=password,
        ctime_ms=ports.clock.epoch_ms(),
        custom=tuple(sorted(custom.items())),
    )
    return PlannedLedger(await ports.ledgers.new_id(), metadata, incarnations)


async def create_planned(ports: ClientPorts, plan: PlannedLedger) -> tuple[PlannedLedger, Versioned]:
    """Create the metadata of a planned ledger, under another id if the planned one is taken.

    Returns:
        The plan with the id that was used, and the ledger.

    Raises:
        LedgerExistsError: ``IDS_MAX`` ids in a row are taken; the next call tries the ids after them.
        StoreUnavailableError: no answer; nothing was created.
        WriteOutcomeUnknownError: a ledger without entries may have been created.
    """
    for left in range(IDS_MAX - 1, -1, -1):
        try:
            return plan, await ports.ledgers.create(plan.ledger_id, plan.metadata)
        except LedgerExistsError:
            if not left:
                raise
            plan = replace(plan, ledger_id=await ports.ledgers.new_id())
    raise AssertionError("unreachable: the loop returns or raises")


def start_writer(
    ports: ClientPorts, plan: PlannedLedger, ledger: Versioned, password: bytes, options: WriterOptions
) -> LedgerWriter:
    """Return the writer of a planned ledger whose metadata was created as ``ledger``."""
    digest = digest_for(plan.metadata.digest_type or LedgerOptions().digest_type, password)
    return LedgerWriter(ports, ledger, digest, password, options=options, incarnations=plan.incarnations)


class LedgerCreation:
    """A ledger being created: await it for its writer, or use it as an async context that closes the ledger.

    Example::

        ledger = await client.create_ledger()           # close it yourself: await ledger.close()

        async with client.create_ledger() as ledger:    # closed at the end of the block
            await ledger.append(b"hello")
    """

    def __init__(self, create: Callable[[], Coroutine[Any, Any, LedgerWriter]]) -> None:
        self._create = create
        self._writer: LedgerWriter | None = None

    def __await__(self) -> Generator[Any, None, LedgerWriter]:
        return self._create().__await__()

    async def __aenter__(self) -> LedgerWriter:
        self._writer = await self._create()
        return self._writer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writer is not None, "left before it was entered"
        await self._writer.__aexit__(kind, error, trace)
