"""``bkheal exporter``: metrics of a cluster that no auditor of bkheal leads. Its options are those of its settings."""

from __future__ import annotations

from typing import Any

import typer

from auditor.cli.configuration.settings import exporter_settings
from auditor.cli.configuration.settings_options import with_options
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run
from auditor.exporter.settings import ExporterSettings


@with_options(ExporterSettings)
def exporter(
    context: typer.Context, uri: MetadataUriOption = None, config: ConfigOption = None, **options: Any
) -> None:
    """Export the metrics of the cluster until SIGTERM: bookies, backlog, runs, switches, brake. It changes nothing.

    A leading `bkheal auditor` exports the same figures under the same names, and the alert rules work with either. Run
    an exporter if no auditor of bkheal leads: audits run by cron or from CronJobs (`bkheal audit run`), or Apache's
    auditor leads, as in a migration. It needs no Spark, takes no part in the election, and reads only ZooKeeper: the
    lists of bookies and runs every 15 seconds, the marked ledgers every --backlog-interval-s, less often if there are
    many. One is enough; a second one, or an additional auditor, does no harm, because the rules take the maximum.

    Give it the audits' values of --critical-delay-s, --rack-outage-delay-s, --flapping-delay-s, --missing-share-max and
    --topology-file. It then shows the same reasons and times for ledgers not marked yet.

    Open http://127.0.0.1:8002/metrics. Liveness is /livez, readiness /readyz (a session with ZooKeeper, and the cluster
    was read within a minute). While it is not ready, figures are absent instead of stale.

    Exit codes: 0 stopped on request, 2 wrong usage, 78 wrong configuration, an address in use, or no BookKeeper cluster
    there. An outage of ZooKeeper does not end the exporter: it waits and continues by itself.
    """
    from auditor.exporter.main import run_exporter

    raise typer.Exit(run(run_exporter(exporter_settings(metadata_uri(uri, config), options))))
