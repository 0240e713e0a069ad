"""``bkheal auditor``: the long-lived service. Its options are those of its settings."""

from __future__ import annotations

from typing import Any

import typer

from auditor.cli.configuration.reloading import config_source
from auditor.cli.configuration.settings import auditor_settings
from auditor.cli.configuration.settings_options import with_options
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run
from auditor.service.settings import ServiceSettings


@with_options(ServiceSettings)
def auditor(context: typer.Context, uri: MetadataUriOption = None, config: ConfigOption = None, **options: Any) -> None:
    """Run the auditor until SIGTERM: audit by schedule, and whenever a bookie is lost.

    Start two or more; one leads, and another one takes over within seconds (Apache's auditors vote in the same
    election). The leader watches the bookies. If one is missing and does not return within the delay for lost bookies
    (`lostBookieRecoveryDelay`, 0 by default), every ledger with a missing copy is marked, and replicators repair it. If
    more than --missing-share-max of the bookies are missing, nothing is marked, and the status reports it.

    Open http://127.0.0.1:8080/status, start a run with `curl -X POST`, or use the tab Auditor in Spark's UI. Liveness
    is /livez, readiness /readyz, metrics /metrics.

    Exit codes: 0 stopped on request, 2 wrong usage, 70 Spark is dead or does not start (restart the process), 78 wrong
    configuration, an address in use, or no BookKeeper cluster there. An outage of ZooKeeper does not end the auditor:
    it waits and continues by itself.
    """
    from auditor.service.main import run_auditor

    settings = auditor_settings(metadata_uri(uri, config), options)
    raise typer.Exit(run(run_auditor(settings, config_source(context, auditor_settings))))
