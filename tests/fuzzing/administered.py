"""A bookie in a temporary directory with its administration, for operators' requests with any content.

The first byte of an input selects the call, the second one the token of the caller, and the rest is the request.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import Message

from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.tasks import cancel
from bookie.server.administration.node import INVENTORY_LEDGERS_MAX
from bookie.server.settings import AdministrationAccess
from bookie.wire import administration_pb2 as pb
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Read
from tests.fuzzing.world import AbortedError, CallContext, entry
from tests.worlds.administered import OPERATE, READ, US, open_administered

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
"""More requests for some calls, with different effects."""
OPERATOR: Final = 0
"""The value of the second byte that selects the token of an operator."""
_KEPT, _DELETED, _LIMBO = LedgerId(7), LedgerId(8), LedgerId(9)
_KEY: Final = b"key"
_ENTRIES: Final = 10
_TOKENS: Final = (OPERATE.token, READ.token, "wrong", "", "\0\n", None)


def numbered(method: str, request: Message, token: int = OPERATOR) -> bytes:
    """Return the input for this call."""
    return bytes([list(CALLS).index(method), token]) + request.SerializeToString()


class _Context(CallContext):
    """A call with a token. It fails if the servicer reports an unknown error."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("authorization", f"Bearer {self._token}"),)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        assert code is not grpc.StatusCode.INTERNAL, details
        await super().abort(code, details)


class AdministeredBookie:
    """A bookie that scrubs and collects, with ten entries of a ledger that must not be lost."""

    def __init__(self) -> None:
        self._home = TemporaryDirectory(prefix="bkheal-fuzzing-")
        self._loop = asyncio.new_event_loop()
        self._background: list[asyncio.Task[None]] = []
        self._loop.run_until_complete(self._open(Path(self._home.name)))

    async def _open(self, home: Path) -> None:
        tokens = home / "tokens"
        tokens.write_text(f"{OPERATE.line}\n{READ.line}\n")
        access = AdministrationAccess(
            tokens, allow_anonymous_read=True, allow_anonymous_write=False, requests_per_second=1e9
        )
        self._cluster, self._servicer, node, self._keeper = await open_administered(home, access, port=1)
        self._storage, self._service, self._read_only = node.storage, node.service, node.read_only
        await self._cluster.ledgers.create(_KEPT, LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (US,)),)))
        for ledger_id in (_KEPT, _DELETED):
            entries = [ledger_id.to_bytes(8, "big") + entry(number)[8:] for number in range(_ENTRIES)]
            assert (await self._storage.add(AddBatch(ledger_id, _KEY, entries))).status is Status.OK
        await self._storage.set_limbo([_LIMBO])
        assert node.scrubber is not None
        self._background = [asyncio.ensure_future(work) for work in (node.collector.run(), node.scrubber.run())]

    def call(self, method: str, token: str | None, request: Any) -> object:
        """Let the servicer answer a request, and check that the bookie serves as before.

        Raises:
            AbortedError: it refused, with a status that gives the reason.
            Exception: a defect.
        """
        return self._loop.run_until_complete(self._called(method, token, request))

    async def _called(self, method: str, token: str | None, request: Any) -> object:
        wish, context, is_refused = self._read_only.wish, _Context(token), False
        try:
            answer = await getattr(self._servicer, method)(request, context)
        except AbortedError:
            is_refused = True
            raise
        finally:
            if is_refused or method != "SetReadOnly" or token != OPERATE.token:
                assert self._read_only.wish == wish, "only an accepted request of an operator changes the bookie"
            await self._check()
        if method == "Inventory":
            return _checked_inventory(request, context.answers)
        assert answer is not None
        return answer.SerializeToString()

    def close(self) -> None:
        """Stop the background tasks, and remove the directory."""
        self._loop.run_until_complete(self._close())
        self._loop.close()
        self._home.cleanup()

    async def _close(self) -> None:
        for task in self._background:
            await cancel(task)
        await self._keeper.stop(deadline_s=5)
        await self._storage.abort()
        await self._cluster.close()

    async def _check(self) -> None:
        """Check that every entry is served, adds are refused only in the read-only mode, and background tasks run."""
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
    """Pass a request to the administration of a real bookie, as gRPC does if it can be parsed."""
    number, token = (data + bytes(2))[:2]
    method, prototype = list(CALLS.items())[number % len(CALLS)]
    request = type(prototype)()
    request.ParseFromString(data[2:])
    return _bookie().call(method, _TOKENS[token % len(_TOKENS)], request)
