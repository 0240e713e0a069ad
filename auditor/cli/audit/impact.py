"""``bkheal impact``: the namespaces and topics of Pulsar that the findings of an audit affect, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.audit.remote_reports import remote_run_id
from auditor.cli.audit.report_options import ReportDirOption, RunArgument, SeverityOption
from auditor.cli.output import StreamFormat, print_note
from auditor.cli.paging import PAGE_ROWS_MAX, print_page
from auditor.cli.running import StreamOutputOption
from bookie.model.severity import Severity
from bookie.runtime.human import agreeing, counted, printable

_LIMIT_DEFAULT = 100
_LIMIT_MAX = 100_000


@reachable
def impact(
    run: RunArgument = "latest",
    report_dir: ReportDirOption = Path("reports"),
    severity: SeverityOption = None,
    namespace: Annotated[
        str | None, typer.Option(help="Only this namespace of Pulsar, as `public/default`.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Only this topic, as `persistent://public/default/orders`.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=_LIMIT_MAX, help="Most rows to list, the worst first.")
    ] = _LIMIT_DEFAULT,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the topics of Pulsar that the findings of an audit affect, and the effect on them, worst first.

    A topic is listed once for each severity, effect, component and subscription. With --at, the report is read from
    that auditor.

    Example: `bkheal impact --namespace public/default`
    """
    named = severity.value if severity else None
    if service is None:
        page = _local_page(report_dir, run, named, namespace, topic, limit)
    else:
        query = {"severity": named, "namespace": namespace, "topic": topic, "limit": min(limit, PAGE_ROWS_MAX)}
        run = remote_run_id(service, run)
        page = service.ask("GET", f"/runs/{quote(run, safe='')}/impact", query)
    is_filtered = severity is not None or namespace is not None or topic is not None
    nothing = "no topic matches these filters" if is_filtered else "no finding names a topic of Pulsar"
    print_page(
        output,
        "TopicImpactList",
        page,
        ("SEVERITY", "STANDING", "LEDGERS", "TOPIC", "COMPONENT", "MEANING"),
        _cells,
        right=(2,),
        nothing=f"{nothing} in run {page['run_id']}",
    )
    if page["total"] > len(page["items"]):
        more = page["total"] - len(page["items"])
        print_note(f"{counted(more, 'more row')} {agreeing(more, 'is', 'are')} not listed; --limit lists more")
    if page["cut"]:
        print_note("the run found so many topics that some are not counted")
    if page["unnamed_ledgers"]:
        unnamed = page["unnamed_ledgers"]
        name = agreeing(unnamed, "names", "name")
        print_note(f"{counted(unnamed, 'ledger')} with findings {name} no topic of Pulsar")


def _cells(row: dict[str, Any]) -> Sequence[object]:
    component = row["component"] if row["subscription"] is None else f"{row['component']} of {row['subscription']}"
    topic = row["topic"] if row["system"] is None else f"{row['topic']} ({row['system']})"
    return (
        row["severity"],
        row["standing"],
        row["ledgers"],
        printable(topic),
        printable(component),
        row["meaning"],
    )


def _local_page(
    report_dir: Path, run: str, severity: str | None, namespace: str | None, topic: str | None, limit: int
) -> dict[str, Any]:
    from spark_jobs.report.history import find
    from spark_jobs.report.impact_rows import ImpactFilter, read_impact_page

    run_id = find(report_dir, run).run_id
    level = None if severity is None else Severity.of_label(severity)
    page = read_impact_page(report_dir, run_id, limit, ImpactFilter(level, namespace, topic))
    return {"run_id": run_id, **page.to_json()}
