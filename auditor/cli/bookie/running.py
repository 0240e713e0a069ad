"""The requests of ``bkheal bookie`` commands to a running bookie (``--at``); the answers are documents."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.configuration.security_options import bookie_security
from bookie.model.hosts import is_host, is_port
from bookie.model.ids import EntryId, LedgerId
from bookie.model.times import rfc3339_if_known

if TYPE_CHECKING:
    from bookie.model.availability import EntryRuns
    from bookie.wire import administration_pb2 as pb
    from bookie.wire.grpc.administration import Administration
    from bookie.wire.resolver import BookieAddress

_PANEL: Final = "A running bookie"
_READ_S: Final = 15.0

AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="HOST:PORT",
        help="The gRPC port of a running bookie, instead of the directories of a stopped one.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="Holds a token of the bookie's tokens file; default: $BKHEAL_TOKEN.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def address_of(text: str) -> BookieAddress:
    """Return the address in ``--at``; if it is invalid, the command ends with exit code 2."""
    from bookie.wire.resolver import BookieAddress

    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not is_host(host) or not is_port(port) or "/" in host:
        raise typer.BadParameter(f"{text!r} is not an address: write HOST:PORT", param_hint="--at")
    return BookieAddress(host, int(port))


@dataclass(frozen=True, slots=True)
class RunningBookie:
    """One running bookie and how to reach it. Every method raises the errors of ``bookie.wire.grpc.administration``."""

    address: BookieAddress
    token: str | None

    @classmethod
    def at(cls, text: str, token_file: Path | None) -> RunningBookie:
        """Return the bookie at ``HOST:PORT``."""
        from auditor.cli.audit.remote import read_token

        return cls(address_of(text), read_token(token_file, os.environ))

    def _opened(self) -> Administration:
        from bookie.wire.grpc.administration import Administration

        return Administration(self.address, bookie_security(), self.token)

    async def status(self) -> dict[str, Any]:
        """Return the document of its state."""
        async with self._opened() as bookie:
            found = await bookie.status()
        queues = found.queues
        return {
            "bookie_id": found.bookie_id,
            "incarnation": found.incarnation,
            "version": found.version,
            "uptime_s": found.uptime_ms // 1000,
            "ledgers": found.ledgers,
            **read_only_document(found.read_only),
            "disks": [
                {
                    "role": disk.role,
                    "total_bytes": disk.total_bytes,
                    "free_bytes": disk.free_bytes,
                    "path": disk.path or None,
                    "problem": disk.problem or None,
                }
                for disk in found.disks
            ],
            "queues": {
                "add_bytes": queues.add_bytes,
                "journal_bytes": queues.journal_bytes,
                "write_cache_bytes": queues.write_cache_bytes,
                "is_flushing": queues.is_flushing,
                "reads_running": queues.reads_running,
                "reads_waiting": queues.reads_waiting,
                "requests": queues.requests,
                "unsent_bytes": queues.unsent_bytes,
            },
            "scrub": scrub_document(found.scrub),
            "collection": collection_document(found.collection),
        }

    async def ledgers(self, after: int, limit: int, *, only_limbo: bool) -> AsyncIterator[dict[str, Any]]:
        """Yield the rows of its ledgers."""
        async with self._opened() as bookie:
            async for ledger, runs in bookie.inventory(after, limit, only_limbo=only_limbo):
                yield _row(ledger, runs)

    async def ledger(self, ledger_id: LedgerId) -> tuple[dict[str, Any], EntryRuns]:
        """Return the row of one ledger, and its entries."""
        async with self._opened() as bookie:
            async for ledger, runs in bookie.inventory(ledger_id=ledger_id):
                return _row(ledger, runs), runs
        raise AssertionError("an inventory of one ledger has one row")

    async def read(self, ledger_id: LedgerId, entry_id: EntryId) -> tuple[str, bytes]:
        """Return the status of an entry and its stored bytes."""
        from bookie.model.ids import BookieId
        from bookie.wire.grpc.transport import GrpcTransport
        from bookie.wire.port import Status
        from bookie.wire.requests import Read

        address, security = self.address, bookie_security()

        class _FixedAddressResolver:
            async def resolve(self, bookie: BookieId) -> BookieAddress:
                return address

        transport = GrpcTransport(_FixedAddressResolver(), tls=security.tls, is_plaintext=security.tls is None)
        try:
            reply = await transport.ask(
                BookieId(f"{address.host}:{address.port}"), Read(ledger_id, [entry_id]), _READ_S
            )
        finally:
            await transport.close()
        if reply.status is not Status.OK or not reply.results:
            from bookie.wire.grpc.administration import AdministrationUnavailableError

            why = reply.detail or reply.status.name
            raise AdministrationUnavailableError(
                f"bookie at {address.host}:{address.port}: {why}; check the port, and that the bookie runs"
            )
        return reply.results[0].status.name.lower(), reply.results[0].packet

    async def scrub(self, action: str = "SHOW", *, from_beginning: bool = False) -> dict[str, Any]:
        """Start, interrupt (``STOP``) or show its scrub."""
        from bookie.wire import administration_pb2 as pb

        request = pb.ScrubRequest(action=action, from_beginning=from_beginning)
        async with self._opened() as bookie:
            return scrub_document(await bookie.scrub(request))

    async def collect(self, action: str = "SHOW") -> dict[str, Any]:
        """Start a garbage collection (``MINOR`` or ``MAJOR``), or show the last one."""
        from bookie.wire import administration_pb2 as pb

        request = pb.CollectRequest(action=action)
        async with self._opened() as bookie:
            return collection_document(await bookie.collect(request))

    async def read_only(self, action: str = "SHOW") -> dict[str, Any]:
        """Set (``SET``), end (``CLEAR``) or show its read-only mode."""
        from bookie.wire import administration_pb2 as pb

        request = pb.SetReadOnlyRequest(action=action)
        async with self._opened() as bookie:
            return read_only_document(await bookie.set_read_only(request))

    async def force(self) -> dict[str, Any]:
        """Move everything from its journal to its entry logs."""
        async with self._opened() as bookie:
            return {"took_ms": (await bookie.force()).took_ms}


def read_only_document(state: pb.ReadOnlyState) -> dict[str, Any]:
    """Return the document of the read-only mode."""
    return {
        "read_only": state.is_read_only,
        "read_only_reasons": list(state.reasons),
        "read_only_asked_by": state.asked_by or None,
        "read_only_asked_at": rfc3339_if_known(state.asked_ms, "seconds"),
    }


def scrub_document(state: pb.ScrubState) -> dict[str, Any]:
    """Return the document of a scrub."""
    phases = type(state).Phase
    is_known = state.phase in phases.values()
    return {
        "phase": phases.Name(state.phase).lower() if is_known else f"unknown ({state.phase})",
        "begun_at": rfc3339_if_known(state.begun_ms, "seconds"),
        "finished_at": rfc3339_if_known(state.finished_ms, "seconds"),
        "position": f"{state.ledger_id}:{state.entry_id}" if state.HasField("ledger_id") else None,
        "entries": state.entries,
        "bytes": state.bytes,
        "damaged_count": state.damaged,
        "replaced_count": state.replaced,
        "unrepaired_count": state.unrepaired_count,
        "unrepaired": [{"ledger_id": each.ledger_id, "entry_ids": list(each.entry_ids)} for each in state.unrepaired],
    }


def collection_document(state: pb.CollectionState) -> dict[str, Any]:
    """Return the document of a garbage collection."""
    return {
        "running": state.is_running,
        "scheduled": state.is_scheduled,
        "level": "major" if state.is_major else "minor",
        "begun_at": rfc3339_if_known(state.begun_ms, "seconds"),
        "finished_at": rfc3339_if_known(state.finished_ms, "seconds"),
        "known": state.known,
        "suspects": state.suspects,
        "collected": state.collected,
        "kept": state.kept,
        "locked": state.locked,
        "unknown": state.unknown,
        "held": state.held,
        "stopped": state.stopped or None,
        "removed_logs": state.removed_logs,
        "freed_bytes": state.freed_bytes,
        "copied_bytes": state.copied_bytes,
        "process_begun_at": rfc3339_if_known(state.process_begun_ms),
    }


def _row(ledger: pb.InventoryLedger, runs: EntryRuns) -> dict[str, Any]:
    return {
        "ledger_id": ledger.ledger_id,
        "entries": len(runs),
        "last_entry_id": runs.groups[-1].last if runs else None,
        "fenced": ledger.is_fenced,
        "limbo": ledger.is_limbo,
        "collected": ledger.is_collected,
    }
