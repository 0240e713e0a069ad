"""The prerequisites of each kind of run: a topology, ledgers of Pulsar, a readable snapshot, writable output files.

A run started by an operator is refused before it is recorded. The run of a schedule fails instead, so its record shows
that the schedule is useless.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bookie.metadata.bookies.topology import TopologyStore, parse_topology, topology_text
from bookie.metadata.cluster import Cluster
from bookie.metadata.nodes import parent_of
from bookie.metadata.port import MetadataStore
from bookie.metadata.pulsar.tree import PulsarTree
from bookie.model.errors import PermanentError
from bookie.model.run import RunKind
from bookie.model.topology import Topology
from bookie.runtime.output_files import require_replaceable
from spark_jobs.report.files import require_writable
from spark_jobs.runs.outcome import is_for_report
from spark_jobs.settings import AuditSettings


class NoTopologyError(PermanentError):
    """No location of any bookie is known, so no ensemble can be judged."""


class NoPulsarError(PermanentError):
    """A root has no managed ledgers of Pulsar below it, so no comparison is possible."""


class ExportError(PermanentError):
    """The file of ids cannot be written."""


async def check_run_prerequisites(
    kind: RunKind, settings: AuditSettings, store: MetadataStore, cluster: Cluster
) -> None:
    """Refuse a run that could only fail.

    Raises:
        NoTopologyError, InvalidTopologyError: a placement check without a readable topology.
        NoPulsarError: a references check without managed ledgers.
        ExportError: the file for the ids cannot be made.
        SnapshotError: the snapshot is none, or the cluster has a layout for which none can be used.
        ReportDirError: the report is the purpose of the run, and its directory cannot be written.
        StoreUnavailableError, AccessDeniedError: see ``MetadataStore``.
    """
    if kind is RunKind.PLACEMENT:
        text = topology_text(settings.topology_file)
        stored = TopologyStore(store, cluster)
        require_locations((await stored.read()).topology if text is None else parse_topology(text))
    elif kind is RunKind.REFERENCES:
        roots = roots_in(settings.pulsar_roots, cluster.root)
        require_pulsar([root for root in roots if not await PulsarTree(store, root).exists()])
        if settings.export is not None:
            require_export(settings.export)
    if settings.is_from_snapshot:
        _require_snapshot(settings.snapshot, cluster)
    if is_for_report(kind, is_dry_run=settings.is_dry_run):  # every other run marks, even without a report (R52)
        require_writable(settings.report_dir)


def _require_snapshot(file: Path | None, cluster: Cluster) -> None:
    """Read the beginning of a snapshot file. The run reads the rest, which shows the cluster and any damage."""
    from spark_jobs.snapshot.files import opened  # these import pyarrow, which few runs need before Java has started
    from spark_jobs.snapshot.format import SnapshotStream
    from spark_jobs.snapshot.index import check_layout

    check_layout(cluster)
    if file is not None:
        with opened(file) as source:
            SnapshotStream(source, str(file)).begin()


def require_locations(topology: Topology) -> None:
    """Refuse a topology that names no bookie.

    Raises:
        NoTopologyError: it names none.
    """
    if not topology.locations:
        raise NoTopologyError(
            "there is no topology, so no placement can be judged: write a topology file and pass it with "
            "--topology-file, or store the topology in ZooKeeper"
        )


def require_pulsar(missing: Sequence[str]) -> None:
    """Refuse roots without managed ledgers of Pulsar.

    Raises:
        NoPulsarError: there is such a root.
    """
    if missing:
        raise NoPulsarError(
            f"there are no managed ledgers of Pulsar below {' and '.join(root or '/' for root in missing)}: name "
            "the roots of the brokers' metadata with --pulsar-roots"
        )


def require_export(file: Path) -> None:
    """Refuse an unwritable file for ids, so a run of hours does not fail at its end.

    Raises:
        ExportError: it cannot be made.
    """
    try:
        require_replaceable(file)
    except OSError as error:
        raise ExportError(
            f"cannot write the ids of unreferenced ledgers to {file}: {error.strerror}; name another file with --export"
        ) from error


def roots_in(text: str, ledgers_root: str) -> tuple[str, ...]:
    """Return the roots named by an option, without a slash at the end; an empty root is the root of ZooKeeper."""
    named = [root.strip() for root in text.split(",") if root.strip()]
    return tuple(dict.fromkeys(root.rstrip("/") for root in named or [parent_of(ledgers_root)]))
