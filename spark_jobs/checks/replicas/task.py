"""One Spark task of the replicas check: rows of ``bk_ledgers`` in, findings and one row of counts out.

Each task has its own connections: to the metadata store, for the second look, and to the bookies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from bookie.client.resolve import RegistrationResolver
from bookie.metadata.access import PLAIN_ACCESS, ZooKeeperAccess
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.decisions import Decision, Decisions, LostFragment
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, LedgerId
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.severity import Severity
from bookie.runtime.clock import SystemClock
from bookie.wire.routing import open_transport
from bookie.wire.security import SecurityFiles
from spark_jobs.checks.findings import FindingKind
from spark_jobs.checks.replicas.asking import AcceptedEntries, Answers, Asker, losses_by_first_entry
from spark_jobs.checks.replicas.expected import SettledLedger, settled_row
from spark_jobs.checks.replicas.verdict import BIGINT_MAX, FragmentFinding
from spark_jobs.connect import connected_at_pace
from spark_jobs.pacing.budget import FREE, TaskBudget

COUNTS_DDL: Final = """
    counts struct<ledgers: bigint, requests: bigint, expected: bigint, absent: bigint, vanished: bigint,
                  unknown: array<struct<bookie_id: string, status: string, ledgers: bigint, detail: string>>,
                  sampled: array<struct<bookie_id: string, ledgers: bigint>>>
"""
"""The column of counts. It is null in rows of findings. In the last row of a task's output, all other columns are
null."""
_FINDING_FIELDS: Final = [
    ("kind", pa.string()),
    ("ledger_id", pa.int64()),
    ("fragment_index", pa.int32()),
    ("fragment_first_entry_id", pa.int64()),
    ("fragment_last_entry_id", pa.int64()),
    ("is_last_fragment", pa.bool_()),
    ("state", pa.string()),
    ("missing_positions", pa.list_(pa.int32())),
    ("missing", pa.list_(pa.string())),
    ("copies_min", pa.int32()),
    ("severity", pa.string()),
    ("severity_rank", pa.int32()),
    ("entries", pa.int64()),
    ("bytes_estimate", pa.int64()),
    ("detail", pa.string()),
    ("write_quorum", pa.int32()),
    ("ack_quorum", pa.int32()),
    *((name, pa.string()) for name in OWNER_COLUMNS),
]
_UNKNOWN: Final = pa.struct(
    [("bookie_id", pa.string()), ("status", pa.string()), ("ledgers", pa.int64()), ("detail", pa.string())]
)
_SAMPLED: Final = pa.struct([("bookie_id", pa.string()), ("ledgers", pa.int64())])
_COUNTS: Final = pa.struct(
    [
        *((name, pa.int64()) for name in ("ledgers", "requests", "expected", "absent", "vanished")),
        ("unknown", pa.list_(_UNKNOWN)),
        ("sampled", pa.list_(_SAMPLED)),
    ]
)
_SCHEMA: Final = pa.schema([*_FINDING_FIELDS, ("counts", _COUNTS)])

_LABELS: Final = {severity: severity.label for severity in Severity}
_ACCEPTED: Final = {
    "kind": FindingKind.LOSS_ACCEPTED.value,
    "severity": Severity.LOST.label,
    "severity_rank": Severity.LOST.value,
}


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of each task, which are sent to executors."""

    metadata_uri: str
    connect_timeout_s: float
    registered: frozenset[BookieId]
    """The registered bookies, listed after the metadata was read."""
    security: SecurityFiles
    """The files must be present on every executor."""
    uses_apache_lists: bool = False
    """Whether Apache's bookies are asked for complete lists."""
    access: ZooKeeperAccess = PLAIN_ACCESS
    """How the task connects to ZooKeeper; these files must be present on every executor as well."""
    accepted: Mapping[LedgerId, Decision] = field(default_factory=dict)
    """The accepted losses. A finding that they cover is reported as an accepted loss."""
    budget: TaskBudget = FREE
    """The limits on the reads of each task from ZooKeeper."""


def asking(settings: TaskSettings) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task as a function for ``mapInArrow``."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            stack = AsyncExitStack()
            try:
                asker = runner.run(_opened(settings, stack))
                for batch in batches:
                    ledgers = [settled_row(row) for row in batch.to_pylist()]
                    answers = runner.run(asker.ask_all(ledgers, settings.registered))
                    yield answer_rows(answers, settings)
            finally:
                runner.run(stack.aclose())

    return ask


async def _opened(settings: TaskSettings, stack: AsyncExitStack) -> Asker:
    uri, timeout_s = parse_uri(settings.metadata_uri), settings.connect_timeout_s
    opening = connected_at_pace(uri, timeout_s, settings.access, settings.budget, measures_itself=True)
    connection = await stack.enter_async_context(opening)
    clock = SystemClock()
    registrations = Registrations(connection.store, connection.cluster)
    resolver = RegistrationResolver(registrations, clock)
    transport = open_transport(resolver, settings.security.load(), uses_apache_lists=settings.uses_apache_lists)
    stack.push_async_callback(transport.close)

    async def registered() -> AbstractSet[BookieId]:
        return (await registrations.list()).registered

    ledgers = LedgerStore(connection.store, connection.cluster, random.SystemRandom())
    decisions = Decisions(connection.store, connection.cluster.root)
    entries = accepted_entries({ledger_id: decision.lost for ledger_id, decision in settings.accepted.items()})
    return Asker(transport, ledgers, registered, clock, entries, decisions.get)


def accepted_entries(accepted: Mapping[LedgerId, Iterable[LostFragment]]) -> AcceptedEntries:
    """Return the losses that name the lost entries by their ids."""
    return {ledger_id: losses_by_first_entry(lost) for ledger_id, lost in accepted.items()}


def answer_rows(answers: Answers, settings: TaskSettings) -> pa.RecordBatch:
    """Return the rows of the findings, and one row of counts."""
    return pa.RecordBatch.from_pylist([*_findings(answers, settings), _counts(answers)], schema=_SCHEMA)


def _findings(answers: Answers, settings: TaskSettings) -> Iterator[dict[str, Any]]:
    for ledger, found in answers.found:
        decision = settings.accepted.get(ledger.ledger_id)
        accepted: Sequence[LostFragment] = ()
        if decision is not None and decision.may_be_created_at(ledger.ctime_ms):
            accepted = decision.lost
        for finding in found:
            yield _row(ledger, finding) | (_ACCEPTED if is_accepted(finding, accepted) else {})


def is_accepted(finding: FragmentFinding, accepted: Iterable[LostFragment]) -> bool:
    """Return whether an operator accepted the loss of all missing copies of this fragment (R45, R148)."""
    return finding.is_accepted or any(
        loss.first_entry_id == finding.fragment.first
        and loss.covers(finding.positions, finding.missing, finding.absent)
        for loss in accepted
    )


def _row(ledger: SettledLedger, finding: FragmentFinding) -> dict[str, Any]:
    part = finding.fragment
    return {
        "kind": (FindingKind.DAMAGED_ENTRIES if finding.is_damaged else FindingKind.MISSING_ENTRIES).value,
        "ledger_id": ledger.ledger_id,
        "fragment_index": part.index,
        "fragment_first_entry_id": part.first,
        "fragment_last_entry_id": part.last,
        "is_last_fragment": part.is_last,
        "state": ledger.state,
        "missing_positions": list(finding.positions),
        "missing": list(finding.missing),
        "copies_min": finding.copies_min,
        "severity": _LABELS[finding.severity],
        "severity_rank": finding.severity.value,
        "entries": min(part.last - part.first + 1, BIGINT_MAX),
        "bytes_estimate": finding.bytes_estimate,
        "detail": finding.detail,
        "write_quorum": ledger.write_quorum,
        "ack_quorum": ledger.ack_quorum,
        **dict(zip(OWNER_COLUMNS, ledger.owner, strict=True)),
    }


def _counts(answers: Answers) -> dict[str, Any]:
    unknown = [
        {"bookie_id": bookie, "status": status, "ledgers": ledgers, "detail": answers.details.get((bookie, status), "")}
        for (bookie, status), ledgers in sorted(answers.unknown.items())
    ]
    return {
        "counts": {
            "ledgers": answers.ledgers,
            "requests": answers.requests,
            "expected": min(answers.expected, BIGINT_MAX),
            "absent": min(answers.absent, BIGINT_MAX),
            "vanished": answers.vanished,
            "unknown": unknown,
            "sampled": [{"bookie_id": bookie, "ledgers": count} for bookie, count in sorted(answers.sampled.items())],
        }
    }
