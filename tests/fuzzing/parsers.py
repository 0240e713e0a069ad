"""The target of each parser. A function counts as a parser by its name and if it has an argument of bytes.

A test searches the product for such functions and compares them with this table, so that no parser is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("auditor", "bookie", "replicator", "spark_jobs")
_GENERATED: Final = re.compile(r".*_pb2(_grpc)?")
_PARSER: Final = re.compile(
    r"def _?(?:(?:decode|decoding|parse|pars|unpack)\w*|read(?:_\w+)?|\w+_of|refusal)\((?:(?!->).)*?: bytes\b"
    r"|def \w+_from_wire\((?:(?!->).)*?: pb\."
    r"|async def [A-Z]\w*\((?:(?!->).)*?request: pb\.",
    re.DOTALL,
)
"""Matches the head of such a function, up to the type of its argument of bytes. Methods of servicers count too."""

TARGET_OF: Final[Mapping[str, str]] = {
    "bookie.metadata.bookies.collections": "records",
    "bookie.metadata.bookies.cookies": "cookie",
    "bookie.metadata.bookies.drains": "records",
    "bookie.metadata.bookies.first_seen_down": "records",
    "bookie.metadata.bookies.incarnations": "records",
    "bookie.metadata.bookies.maintenance": "records",
    "bookie.metadata.bookies.returned": "records",
    "bookie.metadata.bookies.service_info": "registration",
    "bookie.metadata.bookies.topology": "small-nodes",
    "bookie.metadata.cluster": "small-nodes",
    "bookie.metadata.ledgers.ledgers": "ledger-metadata",
    "bookie.metadata.ledgers.partial": "partial-metadata",
    "bookie.metadata.ledgers.serde": "ledger-metadata",
    "bookie.metadata.ledgers.serde_v1": "ledger-metadata",
    "bookie.metadata.logs.log_list": "records",
    "bookie.metadata.migration": "records",
    "bookie.metadata.own_state": "records",
    "bookie.metadata.proto.text": "task",
    "bookie.metadata.pulsar.decoding": "managed-ledger",
    "bookie.metadata.pulsar.referrers": "managed-ledger",
    "bookie.metadata.runs.check_times": "small-nodes",
    "bookie.metadata.runs.election": "small-nodes",
    "bookie.metadata.runs.pulsar_leader": "small-nodes",
    "bookie.metadata.store.jute": "zookeeper-data",
    "bookie.metadata.tasks.boosts": "records",
    "bookie.metadata.tasks.changes": "records",
    "bookie.metadata.tasks.damage_notes": "records",
    "bookie.metadata.tasks.debts": "records",
    "bookie.metadata.tasks.decisions": "records",
    "bookie.metadata.tasks.doubts": "records",
    "bookie.metadata.tasks.failures": "records",
    "bookie.metadata.tasks.format": "task",
    "bookie.metadata.tasks.moves": "records",
    "bookie.metadata.tasks.parked": "records",
    "bookie.metadata.tasks.reservations": "records",
    "bookie.model.availability": "availability",
    "bookie.model.isolation": "small-nodes",
    "bookie.model.packet": "packet",
    "bookie.model.records": "records",
    "bookie.model.run": "run",
    "bookie.server.administration.servicer": "administration-requests",
    "bookie.server.apache.dialect_v2": "request-v2",
    "bookie.server.apache.dialect_v3": "request-v3",
    "bookie.server.apache.incoming": "request-v3",
    "bookie.server.apache.requests": "request-v3",
    "bookie.server.grpc.servicer": "grpc-requests",
    "bookie.storage.disks.index_format": "checkpoint-mark",
    "bookie.storage.entry_logs.entry_log": "entry-log-records",
    "bookie.storage.journal.format": "journal",
    "bookie.storage.journal.mark": "small-nodes",
    "bookie.storage.journal.place": "small-nodes",
    "bookie.wire.apache.sasl": "login",
    "bookie.wire.apache.too_long": "long-answer-v3",
    "bookie.wire.apache.v2": "response-v2",
    "bookie.wire.grpc.codec": "grpc-answers",
    "spark_jobs.datasource.usual_metadata": "usual-metadata",
    "spark_jobs.snapshot.files": "snapshot",
}
"""For each module, one of the targets of its parsers. Parsers of whole files take no bytes: the search misses them."""
NO_TARGET: Final[Mapping[str, str]] = {
    "auditor.api.grpc.servicer": "its requests and what it refuses are in tests/unit/auditor/api/test_api_grpc.py",
    "auditor.bench.versus_apache.processes": "the output of a program that the benchmark itself starts",
    "auditor.cli.ledgers.entries": "the password of a ledger",
    "bookie.client.log.log": "the password of a ledger",
    "bookie.client.sync": "the password of a ledger",
    "spark_jobs.checks.inventory.second_look": "metadata of ledgers, which it gives to the decoder that has a target",
    "spark_jobs.runs.findings": "what a task of the same Spark job has packed",
}
"""Modules with such functions that get no input from a disk or the network, each with the reason."""


def parsing_modules(root: Path) -> Iterator[str]:
    """Yield the modules of the product with a parser."""
    for package in _PACKAGES:
        for path in (root / package).rglob("*.py"):
            if not _GENERATED.fullmatch(path.stem) and _PARSER.search(path.read_text()):
                yield ".".join(path.relative_to(root).with_suffix("").parts)
