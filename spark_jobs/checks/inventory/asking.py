"""Ask bookies for their ledgers and their known damage. Runs inside a Spark task.

A bookie is asked page by page, so a task keeps only one page in memory. The last row for each bookie contains the
result of the request. If a request fails, ledgers not listed so far are unknown; the rows before the failure remain
valid.

The token for bookies comes from a file on the executor. The file is read again before the requests to each bookie, so a
new token takes effect for the next bookie. Neither the plan nor any value sent by Spark contains the token.

Apache's bookies offer no such list: their protocol lists the entries of a given ledger, and their HTTP interface the
ledgers of the whole cluster.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bookie.client.resolve import RegistrationResolver
from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.uri import parse_uri
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from bookie.runtime.access.tokens import TokenFileError, read_token_file
from bookie.runtime.clock import Clock, SystemClock
from bookie.wire import administration_pb2 as pb
from bookie.wire.grpc.administration import (
    Administration,
    AdministrationAnswerError,
    AdministrationMissingError,
    AdministrationRefusedError,
    AdministrationUnavailableError,
    AdministrationUnknownError,
    PlaintextTokenError,
)
from bookie.wire.resolver import GRPC_PROTOCOL, Resolver
from bookie.wire.security import SecurityFiles, SecurityFilesError
from bookie.wire.tls import TlsFilesError
from spark_jobs.connect import connected

HELD_DDL: Final = """
    bookie_id string, ledger_id bigint, first_entry_id bigint, last_entry_id bigint, damaged array<bigint>,
    answer struct<state: string, detail: string, ledgers: bigint, damaged: bigint, scrub: string,
                  scrub_finished_ms: bigint, collection_finished_ms: bigint>
"""
"""Three kinds of rows: a ledger with entries on a bookie; a ledger with ``damaged`` entries reported by the bookie; and
the ``answer`` of a bookie, which is its last row.
"""
_ANSWER: Final = pa.struct(
    [
        ("state", pa.string()),
        ("detail", pa.string()),
        ("ledgers", pa.int64()),
        ("damaged", pa.int64()),
        ("scrub", pa.string()),
        ("scrub_finished_ms", pa.int64()),
        ("collection_finished_ms", pa.int64()),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        ("bookie_id", pa.string()),
        ("ledger_id", pa.int64()),
        ("first_entry_id", pa.int64()),
        ("last_entry_id", pa.int64()),
        ("damaged", pa.list_(pa.int64())),
        ("answer", _ANSWER),
    ]
)
_BATCH_ROWS: Final = 10_000
ATTEMPTS_MAX: Final = 5
"""Largest number of consecutive failed calls that return no further ledger."""
BOOKIE_S_MAX: Final = 3600.0
"""Largest duration of all calls to one bookie, seconds."""
_BACKOFF_S: Final = 0.5
_DETAIL_MAX: Final = 200
_PHASES: Final = {number: name.lower() for name, number in pb.ScrubState.Phase.items()}
_HINT: Final = "give the audit a token of this bookie's tokens file (inventory_token_file)"
_UNUSABLE_CREDENTIALS_ERRORS: Final = (TokenFileError, PlaintextTokenError, SecurityFilesError, TlsFilesError)
_LATER: Final = (AdministrationUnavailableError, AdministrationUnknownError)

Row = dict[str, Any]


class InventoryState(enum.Enum):
    """The result of asking a bookie for its ledgers."""

    LISTED = "listed"
    """All of its ledgers are known."""
    NOT_OFFERED = "not offered"
    """A bookie of Apache's or of an earlier version: its ledgers are unknown."""
    REFUSED = "refused"
    """The bookie requires a token or a certificate, or rejects the token."""
    NOT_ASKED = "not asked"
    """A file with a token or a certificate cannot be used, or the token would be sent unencrypted."""
    NO_ANSWER = "no answer"
    BAD_ANSWER = "bad answer"
    """The answer cannot be read, or contradicts itself."""

    @property
    def is_failure(self) -> bool:
        """Whether the bookie supports listing its ledgers, but did not list them."""
        return self not in (InventoryState.LISTED, InventoryState.NOT_OFFERED)


@dataclass(frozen=True, slots=True)
class InventoryTasks:
    """The function that Spark calls with indexes into ``bookies``; it yields rows of ``HELD_DDL``."""

    metadata_uri: str
    connect_timeout_s: float
    access: ZooKeeperAccess
    security: SecurityFiles
    """The files must be present on every executor."""
    bookies: tuple[BookieId, ...]
    token_file: Path | None = None
    """The file must be present on every executor. None: bookies are asked without a token."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one Spark task."""
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        with asyncio.Runner() as runner:
            stack, clock = AsyncExitStack(), SystemClock()
            resolver: Resolver | None = None
            try:
                for number in numbers:
                    if resolver is None:
                        opening = connected(parse_uri(self.metadata_uri), self.connect_timeout_s, self.access)
                        connection = runner.run(stack.enter_async_context(opening))
                        resolver = RegistrationResolver(Registrations(connection.store, connection.cluster), clock)
                    rows = inventory(self.bookies[number], resolver, self.security, clock, self.token_file)
                    while part := runner.run(_some(rows)):
                        yield pa.RecordBatch.from_pylist(part, schema=_SCHEMA)
            finally:
                runner.run(stack.aclose())


async def _some(rows: AsyncGenerator[Row, None]) -> list[Row]:
    """Return the next rows; empty at the end."""
    found: list[Row] = []
    async for row in rows:
        found.append(row)
        if len(found) >= _BATCH_ROWS:
            break
    return found


@dataclass(slots=True)
class _Progress:
    """The progress through the list of one bookie."""

    after: int = -1
    ledgers: int = 0


async def inventory(
    bookie: BookieId, resolver: Resolver, security: SecurityFiles, clock: Clock, token_file: Path | None = None
) -> AsyncGenerator[Row, None]:
    """Yield the rows of one bookie, the result last. An error of the bookie becomes the result and is not raised.

    Args:
        bookie: the bookie to ask.
        resolver: finds its address.
        security: for the connection to bookies.
        clock: for the pauses between attempts.
        token_file: contains the token for bookies, and is read now; None: no token is sent.
    """
    progress, status = _Progress(), pb.NodeStatus()
    state, detail = InventoryState.LISTED, ""
    try:
        address = await resolver.resolve(bookie)
        if address is None:
            state, detail = InventoryState.NO_ANSWER, "its address could not be found"
        elif address.protocol != GRPC_PROTOCOL:
            state, detail = InventoryState.NOT_OFFERED, "it speaks only the protocol of Apache's bookies"
        else:
            token = None if token_file is None else read_token_file(token_file)
            async with Administration(address, security.load(), token, _HINT) as client:
                status = await _status(client, clock)
                for ledger in status.scrub.unrepaired:
                    yield {"bookie_id": bookie, "ledger_id": ledger.ledger_id, "damaged": list(ledger.entry_ids)}
                async with aclosing(_listed(bookie, client, progress, clock)) as rows:
                    async for row in rows:
                        yield row
    except BkhealError as error:
        state, detail = state_of(error), str(error)
    yield {"bookie_id": bookie, "answer": _answer(state, detail, progress, status)}


def state_of(error: BkhealError) -> InventoryState:
    """Return the state of a bookie after a call that failed with this error."""
    if isinstance(error, AdministrationMissingError):
        return InventoryState.NOT_OFFERED
    if isinstance(error, AdministrationRefusedError):
        return InventoryState.REFUSED
    if isinstance(error, _UNUSABLE_CREDENTIALS_ERRORS):
        return InventoryState.NOT_ASKED
    return InventoryState.BAD_ANSWER if isinstance(error, AdministrationAnswerError) else InventoryState.NO_ANSWER


async def _status(client: Administration, clock: Clock) -> pb.NodeStatus:
    attempt = 1
    while True:
        try:
            return await client.status()
        except _LATER:
            if attempt == ATTEMPTS_MAX:
                raise
        await clock.sleep(_BACKOFF_S * 2**attempt)
        attempt += 1


async def _listed(
    bookie: BookieId, client: Administration, progress: _Progress, clock: Clock
) -> AsyncGenerator[Row, None]:
    """Yield all rows. After a temporary failure of a call, continue after the last ledger."""
    end_s = clock.monotonic_s() + BOOKIE_S_MAX
    attempt = 1
    while True:
        begun = progress.after
        try:
            async for row in _rows(bookie, client, progress):
                yield row
                if clock.monotonic_s() >= end_s:
                    raise AdministrationUnavailableError(f"its list took longer than {BOOKIE_S_MAX:g} s")
            return
        except AdministrationAnswerError:
            raise
        except _LATER:
            attempt = 1 if progress.after > begun else attempt + 1
            if attempt > ATTEMPTS_MAX or clock.monotonic_s() >= end_s:
                raise
        await clock.sleep(_BACKOFF_S * 2**attempt)


async def _rows(bookie: BookieId, client: Administration, progress: _Progress) -> AsyncIterator[Row]:
    async for held in client.ends(progress.after):
        progress.after, progress.ledgers = held.ledger_id, progress.ledgers + 1
        if held.first_entry_id is not None:  # a ledger without entries is only a record, such as that of a fence
            yield {
                "bookie_id": bookie,
                "ledger_id": held.ledger_id,
                "first_entry_id": held.first_entry_id,
                "last_entry_id": held.last_entry_id,
            }


def _answer(state: InventoryState, detail: str, progress: _Progress, status: pb.NodeStatus) -> Row:
    is_known = bool(status.bookie_id)
    return {
        "state": state.value,
        "detail": detail[:_DETAIL_MAX],
        "ledgers": progress.ledgers,
        "damaged": status.scrub.unrepaired_count,
        "scrub": _PHASES.get(status.scrub.phase, "unknown") if is_known else "",
        "scrub_finished_ms": status.scrub.finished_ms,
        "collection_finished_ms": status.collection.finished_ms,
    }
