"""A bookie on a temporary directory with its administration, which operators' requests of any content are given to.

The first byte of an input selects the call, the second one the token of the caller, and the rest is the request.
"""

from __future__ import annotations

import asyncio
import atexit
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import Message

from bookie.metadata.bookies.drains import Drains
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.access.access import Access
from bookie.runtime.access.tokens import Role, make_token
from bookie.runtime.clock import SystemClock
from bookie.runtime.tasks import cancel
from bookie.server.administration.node import INVENTORY_LEDGERS_MAX, Node
from bookie.server.administration.servicer import AdministrationServicer
from bookie.server.metrics import bookie_metrics
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.settings import AdministrationAccess
from bookie.server.upkeep.collector import Collector, CollectorSettings
from bookie.server.upkeep.disk_watch import DiskWatch
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.operator_read_only import OperatorReadOnly
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.server.upkeep.scrubber import Scrubber
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire import administration_pb2 as pb
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Read
from tests.fuzzing.world import AbortedError, CallContext, entry
from tests.worlds.cluster import MemoryCluster

CALLS: Final[Mapping[str, Message]] = {
    "GetStatus": pb.GetStatusRequest(),
    "Inventory": pb.InventoryRequest(after=-1, limit=10, only_ends=True),
    "Force": pb.ForceRequest(),
    "Scrub": pb.ScrubRequest(action=pb.ScrubRequest.START, from_beginning=True),
    "Collect": pb.CollectRequest(action=pb.CollectRequest.MAJOR),
    "SetReadOnly": pb.SetReadOnlyRequest(action=pb.SetReadOnlyRequest.SET),
}
"""A request for each call of the administration."""
MORE: Final[tuple[tuple[str, Message], ...]] = (
    ("Inventory", pb.InventoryRequest(after=-1, ledger_id=7)),
    ("Inventory", pb.InventoryRequest(after=6, limit=1, only_limbo=True)),
    ("Scrub", pb.ScrubRequest(action=pb.ScrubRequest.STOP)),
    ("SetReadOnly", pb.SetReadOnlyRequest(action=pb.SetReadOnlyRequest.CLEAR)),
)
"""Requests that do something else."""
OPERATOR: Final = 0
"""The second byte for the token of an operator."""
_US: Final = BookieId("us:3181")
_KEPT, _DELETED, _LIMBO = LedgerId(7), LedgerId(8), LedgerId(9)
_KEY: Final = b"key"
_ENTRIES: Final = 10
_OPERATE, _READ = make_token("olga", Role.OPERATE), make_token("rita", Role.READ)
_TOKENS: Final = (_OPERATE.token, _READ.token, "wrong", "", "\0\n", None)


def numbered(method: str, request: Message, token: int = OPERATOR) -> bytes:
    """The input for this call."""
    return bytes([list(CALLS).index(method), token]) + request.SerializeToString()


class _Context(CallContext):
    """A call whose caller has a token, and which fails if the servicer met an error that it does not know."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("authorization", f"Bearer {self._token}"),)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        assert code is not grpc.StatusCode.INTERNAL, details
        await super().abort(code, details)


class AdministeredBookie:
    """A bookie that scrubs and collects, with ten entries of a ledger that must stay."""

    def __init__(self) -> None:
        self._home = TemporaryDirectory(prefix="bkheal-fuzzing-")
        self._loop = asyncio.new_event_loop()
        self._background: list[asyncio.Task[None]] = []
        self._loop.run_until_complete(self._open(Path(self._home.name)))

    async def _open(self, home: Path) -> None:
        clock, rng = SystemClock(), random.Random(1)
        cluster = await MemoryCluster(clock).found()
        await cluster.ledgers.create(_KEPT, LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (_US,)),)))
        journal, ledgers = await FileDisk.acquire(home / "journal"), await FileDisk.acquire(home / "ledgers")
        self._disks = (journal, ledgers)
        index = await RocksIndex.open(home / "ledgers" / "index")
        self._storage = await LedgerStorage.open(journal, ledgers, index, StorageSettings(), clock)
        self._service = BookieService(self._storage, ledgers, BookieIdentity("uuid", "1"))
        for ledger_id in (_KEPT, _DELETED):
            entries = [ledger_id.to_bytes(8, "big") + entry(number)[8:] for number in range(_ENTRIES)]
            assert (await self._storage.add(AddBatch(ledger_id, _KEY, entries))).status is Status.OK
        await self._storage.set_limbo([_LIMBO])
        keeper = RegistrationKeeper(
            cluster.store,
            cluster.registrations,
            _US,
            service_info("127.0.0.1", 1, "uuid"),
            clock,
            takeover_deadline_s=5,
        )
        await keeper.start(is_read_only=False)
        drain = DrainWatch(Drains(cluster.store, cluster.cluster.root), _US, clock)
        self._read_only = read_only = OperatorReadOnly(ledgers, None)
        disks = {"journal": journal, "ledgers": ledgers}
        watch = DiskWatch(
            tuple(disks.values()),
            self._storage,
            self._service,
            keeper,
            clock,
            read_only_below_bytes=0,
            is_drained=lambda: read_only.wish is not None,
        )
        pace = CollectorSettings(interval_s=0, confirm_after_s=0)
        collector = Collector(cluster.store, cluster.cluster, self._storage, _US, clock, rng, pace)
        scrubber = Scrubber(
            self._storage,
            ledgers,
            _US,
            bookie_metrics("1"),
            clock,
            interval_s=3600,
            bytes_per_s=1e9,
            service=self._service,
        )
        tokens = home / "tokens"
        tokens.write_text(f"{_OPERATE.line}\n{_READ.line}\n")
        access = AdministrationAccess(
            tokens, allow_anonymous_read=True, allow_anonymous_write=False, requests_per_second=1e9
        )
        self._servicer = AdministrationServicer(Access(access, clock))
        self._servicer.node = Node(
            _US,
            BookieIdentity("uuid", "1"),
            self._storage,
            self._service,
            disks,
            watch,
            drain,
            read_only,
            collector,
            scrubber,
            lambda: 0,
            clock,
            {"journal": home / "journal"},
            clock.monotonic_s(),
        )
        self._background = [asyncio.ensure_future(work) for work in (collector.run(), scrubber.run())]

    def call(self, method: str, token: str | None, request: Any) -> object:
        """Let the servicer answer a request, and check that the bookie serves as before.

        Raises:
            AbortedError: it refused, with a status that says why.
            Exception: a defect.
        """
        return self._loop.run_until_complete(self._called(method, token, request))

    async def _called(self, method: str, token: str | None, request: Any) -> object:
        wish, context = self._read_only.wish, _Context(token)
        try:
            answer = await getattr(self._servicer, method)(request, context)
        except AbortedError:
            assert self._read_only.wish == wish, "a refused call has changed nothing"
            raise
        finally:
            await self._check()
        if method == "Inventory":
            return _checked_inventory(request, context.answers)
        assert answer is not None
        return answer.SerializeToString()

    def close(self) -> None:
        """End what runs in the background, and remove the directory."""
        self._loop.run_until_complete(self._close())
        self._loop.close()
        self._home.cleanup()

    async def _close(self) -> None:
        for task in self._background:
            await cancel(task)
        await self._storage.abort()
        for task in asyncio.all_tasks():
            await cancel(task)
        for disk in self._disks:
            await disk.close()

    async def _check(self) -> None:
        """Every entry is served, adds are refused only in the read-only mode, and the background goes on."""
        wanted = [EntryId(number) for number in range(_ENTRIES)]
        found = (await self._service.answer("uuid", Read(_KEPT, wanted))).results
        assert [result.packet for result in found] == [entry(number) for number in wanted]
        added = await self._service.add("uuid", AddBatch(_KEPT, _KEY, [entry(_ENTRIES)]))
        assert added.status is (Status.OK if self._read_only.wish is None else Status.READ_ONLY), added
        assert not self._storage.fatal.done()
        assert not any(task.done() for task in self._background), "a task in the background has ended"


def _checked_inventory(request: pb.InventoryRequest, answers: list[bytes]) -> object:
    batches = [pb.InventoryBatch.FromString(answer) for answer in answers]
    assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + [True]
    ledgers = {ledger.ledger_id for batch in batches for ledger in batch.ledgers if ledger.is_complete}
    if request.HasField("ledger_id"):
        assert ledgers == {request.ledger_id}
    else:
        assert len(ledgers) <= (request.limit or INVENTORY_LEDGERS_MAX)
        assert all(ledger_id > request.after for ledger_id in ledgers)
    return batches


@cache
def _bookie() -> AdministeredBookie:
    bookie = AdministeredBookie()
    atexit.register(bookie.close)
    return bookie


def administration_request(data: bytes) -> object:
    """Give a request to the administration of a real bookie, as gRPC does if it can be parsed."""
    number, token = (data + bytes(2))[:2]
    method, prototype = list(CALLS.items())[number % len(CALLS)]
    request = type(prototype)()
    request.ParseFromString(data[2:])
    return _bookie().call(method, _TOKENS[token % len(_TOKENS)], request)
