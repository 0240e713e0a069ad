"""``bkheal bench``: measurements of speed, compared with a baseline from the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.ledgers.options import AckQuorumOption, EnsembleOption, WriteQuorumOption
from auditor.cli.output import OutputFormat, print_json, print_line, print_note, print_table
from auditor.cli.running import OutputOption, run
from bookie.metadata.access import use_plain_access
from bookie.metadata.tasks.copy_limits import CopyProfile

app = typer.Typer(
    help="Measure this machine: each benchmark prints ratios against a baseline of the same run.", no_args_is_help=True
)


@app.callback()
def options() -> None:
    """Every benchmark measures a cluster of its own."""
    use_plain_access()


@app.command("add")
def add(
    entries: Annotated[int, typer.Option(min=1, help="Entries to write.")] = 200_000,
    entry_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Payload bytes.")] = 1024,
    ensemble_size: EnsembleOption = 1,
    write_quorum: WriteQuorumOption = 1,
    ack_quorum: AckQuorumOption = 1,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Durable adds with one writer, compared with a plain file with fdatasync."""
    from auditor.bench.bookies.lone_writer import run as measure

    shape = (ensemble_size, write_quorum, ack_quorum)
    _show("AddBenchmark", run(measure(entries, entry_bytes, shape)), output)


@app.command("several-bookies")
def several_bookies(
    bookies: Annotated[int, typer.Option(min=2, max=64, help="Bookie processes, and clients.")] = 2,
    entries: Annotated[int, typer.Option(min=64, help="Entries to write in each round.")] = 200_000,
    entry_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Payload bytes.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Pairs of rounds: one bookie, then all.")] = 3,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Durable adds to one bookie process and to several on this machine, by the same number of client processes.

    The bookies share the disks of the temporary directory. The gain is larger on a host with separate disks for each
    bookie.
    """
    from auditor.bench.bookies.several_bookies import run as measure

    _show("SeveralBookiesBenchmark", run(measure(bookies, entries, entry_bytes, rounds)), output)


@app.command("several-journals")
def several_journals(
    journal_dir: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            writable=True,
            help="Directory on a disk to measure; give two. Default: both in the temporary directory.",
        ),
    ] = None,
    entries: Annotated[int, typer.Option(min=64, help="Entries to write in each round.")] = 20_000,
    entry_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Payload bytes.")] = 1024,
    writers: Annotated[int, typer.Option(min=2, max=64, help="Writers at once, each with its own ledger.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Pairs of rounds: one journal, then two.")] = 5,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Durable adds to the storage of a bookie with one journal and with two, without a network.

    By default both journals are on one disk. Give `--journal-dir` on each of two disks to measure the gain by the
    second.
    """
    from auditor.bench.bookies.several_journals import run as measure

    if len(journal_dir or ()) not in (0, 2):
        raise typer.BadParameter("give two directories, or none", param_hint="--journal-dir")
    figures = run(measure(journal_dir or (), entries, entry_bytes, writers, rounds))
    _show("SeveralJournalsBenchmark", figures, output)


@app.command("bookie")
def bookie(
    part: Annotated[str, typer.Option(help="adds, lone, reads, storage or all.")] = "all",
    entry_bytes: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=1 << 20, help="Payload bytes; may be given several times. Default: 100, 1024, 16384 and 1048576."
        ),
    ] = None,
    writers: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1000, help="Writers at once; may be given several times. Default: 1, 10 and 100."),
    ] = None,
    megabytes: Annotated[
        float, typer.Option(min=0.01, max=100_000, help="Written in each round, and read in each case.")
    ] = 16.0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of adds; the median counts.")] = 3,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """One bookie, compared under the same load with Apache's (DbLedgerStorage), and with the bare disk.

    Adds, reads from caches and from the disk, recovery, scrub, and bytes written for each byte stored. `--megabytes 4
    --rounds 1` takes about a minute. Without Java, only `storage` is measured; without Apache's jars, only this bookie.
    """
    from auditor.bench.bookies.comparison import PAYLOADS, WRITERS, BookieBenchmark, Measurement
    from auditor.bench.bookies.comparison import run as measure
    from auditor.bench.bookies.figures import HEADINGS, NUMBERS, measured, row

    if part not in tuple(Measurement):
        raise typer.BadParameter(f"{part!r}: need one of {', '.join(Measurement)}", param_hint="--part")
    settings = BookieBenchmark(
        Measurement(part), tuple(entry_bytes or PAYLOADS), tuple(writers or WRITERS), megabytes, rounds
    )
    figures = run(measure(settings, print_note))
    if output is OutputFormat.JSON:
        print_json("BookieBenchmark", **figures)
        return
    for title in ("versions", "machine"):
        print_line(f"{title}: {_shown(figures[title])}")
    for left_out in figures["left_out"]:
        print_line(f"not measured: {left_out}")
    print_line()
    print_table(HEADINGS, [row(each) for each in measured(figures)], right=NUMBERS)


@app.command("repair")
def repair(
    entries: Annotated[
        int | None,
        typer.Option(min=0, help="Entries lost with the bookie, in all ledgers. Default: 100,000.", show_default=False),
    ] = None,
    entry_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Payload bytes.")] = 1024,
    ledgers: Annotated[int, typer.Option(min=1, max=1_000_000, help="Ledgers lost with the bookie.")] = 4,
    pull: Annotated[bool, typer.Option("--pull", help="Let copies go from bookie to bookie.")] = False,
    is_suite: Annotated[
        bool,
        typer.Option("--suite", help="Measure entries of 100 B to 128 KiB, small ledgers and empty ones, one by one."),
    ] = False,
    lost_bytes: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            min=1,
            max=100_000_000_000,
            help="Payload bytes lost with the bookie, instead of --entries; with --suite in each case that measures "
            "bytes. Default of --suite: 1 GB.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """One replicator that restores the copies of a killed bookie, compared with a plain file copy.

    Examples: `--bytes 1000000000 --entry-bytes 16384` for the cost of bytes, `--entries 20000 --ledgers 2000` for the
    cost of small ledgers, `--entries 0 --ledgers 2000` for the cost of empty ones. `--suite` takes about ten minutes
    and 5 GB of disk; `--suite --bytes 100000000` is a quick version.
    """
    from auditor.bench.repairs.one_replicator import entries_for
    from auditor.bench.repairs.one_replicator import run as measure

    if is_suite:
        _repair_suite(lost_bytes, is_pulling=pull, output=output)
        return
    if lost_bytes is not None and entries is not None:
        raise typer.BadParameter("give either --bytes or --entries", param_hint="--bytes")
    if lost_bytes is not None:
        entries = entries_for(lost_bytes, entry_bytes, ledgers)
    measured = measure(_ENTRIES if entries is None else entries, entry_bytes, ledgers, is_pulling=pull)
    _show("RepairBenchmark", run(measured), output)


_ENTRIES: Final = 100_000


def _repair_suite(lost_bytes: int | None, *, is_pulling: bool, output: OutputFormat) -> None:
    from auditor.bench.repairs.one_replicator import SUITE_BYTES, run_cases, suite

    cases = run(run_cases(suite(lost_bytes or SUITE_BYTES), print_note, is_pulling=is_pulling))
    if output is OutputFormat.JSON:
        print_json("RepairBenchmarkSuite", cases=cases)
        return
    print_line(f"copies {cases[0]['copies']}, shape {cases[0]['shape']}; baseline: {cases[0]['baseline']}")
    print_line()
    rows = [[str(each["case"]), *(_shown(each[name]) for name in _SUITE_COLUMNS)] for each in cases]
    print_table(("case", *_SUITE_COLUMNS.values()), rows, right=tuple(range(1, 1 + len(_SUITE_COLUMNS))))


_SUITE_COLUMNS: Final = {
    "ledgers_per_second": "ledgers/s",
    "running_ledgers_per_second": "when running",
    "entries_per_second": "entries/s",
    "repair_mb_per_second": "MB/s",
    "ratio_to_baseline": "of a file copy",
    "bytes_copied_per_byte_lost": "copied/lost",
    "metadata_requests_per_ledger": "requests/ledger",
    "cpu_seconds_per_gb": "CPU s/GB",
}


@app.command("scan")
def scan(
    ledgers: Annotated[int, typer.Option(min=1, help="Ledgers in the embedded ZooKeeper.")] = 200_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Reading all ledger metadata: with kazoo one by one, with our bulk reader, and in the whole Spark audit."""
    from auditor.bench.audits.scan import run as measure

    _show("ScanBenchmark", run(measure(ledgers)), output)


@app.command("executors")
def executors(
    ledgers: Annotated[int, typer.Option(min=1, max=10_000_000, help="Ledgers in the embedded ZooKeeper.")] = 80_000,
    bytes_per_s: Annotated[
        int, typer.Option(min=10_000, help="Bytes per second that ZooKeeper sends to each connection.")
    ] = 1_000_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The audit with one, two and four Spark executors, of a ZooKeeper with slow answers.

    Each executor is a process of about 1 GiB.
    """
    from auditor.bench.audits.executors import run as measure

    _show("ExecutorBenchmark", run(measure(ledgers, bytes_per_s)), output)


@app.command("budget")
def budget(
    ledgers: Annotated[int, typer.Option(min=100, max=1_000_000, help="Ledgers in the embedded ZooKeeper.")] = 100_000,
    bytes_per_s: Annotated[
        int, typer.Option(min=100_000, help="Bytes per second that the slow server sends to all clients together.")
    ] = 20_000_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Audits of each kind.")] = 3,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Latency of another client of the same ZooKeeper: alone, and during audits without and with the budget.

    It is measured with ZooKeeper as it is, with ZooKeeper and the other client on a core of their own (on Linux), and
    with a slow server.
    """
    from auditor.bench.audits.budget import run as measure

    _show("BudgetBenchmark", run(measure(ledgers, bytes_per_s, rounds)), output)


@app.command("audit")
def audit(
    ledgers: Annotated[int, typer.Option(min=100, max=10_000_000, help="Ledgers in the embedded ZooKeeper.")] = 100_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The audit after the loss of one of 20 bookies: the first and the last mark, with the image and without it.

    The same loss is audited both ways, and the tasks must be the same. Before that, 1 % of the ledgers change, and an
    incremental audit and an audit of all ledgers are measured.
    """
    from auditor.bench.audits.loss import run as measure

    _show("LossBenchmark", run(measure(ledgers)), output)


@app.command("references")
def references(
    topics: Annotated[int, typer.Option(min=1, help="Topics of Pulsar, with ten ledgers each.")] = 20_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The audit of Pulsar's references, compared with the audit of bookies on the same ledgers: seconds and memory.

    100,000 topics take about ten minutes and 6 GiB of memory.
    """
    from auditor.bench.audits.references import run as measure

    _show("ReferenceBenchmark", run(measure(topics)), output)


@app.command("everything")
def everything(
    ledgers: Annotated[int, typer.Option(min=1, max=1_000_000, help="Ledgers.")] = 100_000,
    warm_runs: Annotated[int, typer.Option(min=1, max=20, help="Runs of each kind after the first.")] = 3,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """A run of everything, compared with the bookie check and the placement check: seconds, requests to ZooKeeper."""
    from auditor.bench.audits.everything import run as measure

    _show("EverythingBenchmark", run(measure(ledgers, warm_runs)), output)


@app.command("inventory")
def inventory(
    ledgers: Annotated[int, typer.Option(min=100, max=1_000_000, help="Ledgers on one bookie.")] = 100_000,
    warm_runs: Annotated[int, typer.Option(min=1, max=20, help="Runs of each way after the first.")] = 3,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The inventory of a bookie: its list alone, and a run of everything with it and without it."""
    from auditor.bench.audits.inventory import run as measure

    _show("InventoryBenchmark", run(measure(ledgers, warm_runs)), output)


@app.command("cluster")
def cluster(
    bookies: Annotated[int, typer.Option(min=5, max=100, help="Bookies, each a process.")] = 20,
    lost: Annotated[int, typer.Option(min=1, max=2, help="Bookies that are killed at once.")] = 2,
    ledgers: Annotated[int, typer.Option(min=1, max=1_000_000, help="Ledgers, of 3/3/2 and 4/4/3 copies.")] = 20_000,
    replicators: Annotated[int, typer.Option(min=1, max=16, help="Replicator processes.")] = 2,
    profile: Annotated[
        CopyProfile, typer.Option(help="What the replicators do if a bookie becomes slow; see `bkheal throttle set`.")
    ] = CopyProfile.RECOVERY_FIRST,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """A cluster that loses two bookies: the order of repair, and appends during repair compared with appends when idle.

    Needs about 100 MiB of memory for each bookie; 20 bookies with 20,000 ledgers take some minutes. Every copy of every
    repaired ledger is compared with the written entries.
    """
    from auditor.bench.repairs.cluster import COPIES_MAX, ClusterSettings
    from auditor.bench.repairs.cluster import run as measure

    if bookies - lost < COPIES_MAX:
        hint = f"{bookies} bookies without {lost} cannot hold {COPIES_MAX} copies"
        raise typer.BadParameter(hint, param_hint="--bookies")
    settings = ClusterSettings(bookies, lost, ledgers, replicators=replicators, profile=profile)
    _show("ClusterBenchmark", run(measure(settings, print_note)), output)


@app.command("versus-apache")
def versus_apache(
    part: Annotated[str, typer.Option(help="audit, repair, add or all.")] = "all",
    ledgers: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Ledgers to audit; may be given several times. Default: 10^4, 10^5 and 10^6."),
    ] = None,
    megabytes: Annotated[
        float,
        typer.Option(min=0.01, max=100_000, help="Lost for each contestant and shape; written in each add round."),
    ] = 32.0,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Ledgers to repair, as E/Qw/Qa; may be given several times. Default: 3/3/2, 3/2/2, 5/2/2."),
    ] = None,
    entry_bytes: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=1 << 20, help="Payload bytes of entries to repair; may be given several times. Default: 1024."
        ),
    ] = None,
    small_ledgers: Annotated[
        int, typer.Option(min=0, help="Ledgers of about 10 entries to repair as well, for each shape.")
    ] = 0,
    empty_ledgers: Annotated[int, typer.Option(min=0, help="Empty ledgers to repair as well, for each shape.")] = 0,
    apache_lib: Annotated[
        Path | None,
        typer.Option(
            help="Folder with Apache's jars. Default: $BKHEAL_APACHE_LIB, then the cache.", show_default=False
        ),
    ] = None,
    is_tuned: Annotated[
        bool, typer.Option("--tuned/--no-tuned", help="Also run Apache with its best documented settings.")
    ] = True,
    raw: Annotated[
        Path | None, typer.Option(help="Write all figures to this file, as JSON.", show_default=False)
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """A real Apache BookKeeper compared with this project: audit, repair, adds. Needs its jars and a JDK; is slow."""
    from auditor.bench.versus_apache import comparison as bench
    from auditor.bench.versus_apache.repairs import ENTRY_BYTES, SHAPES

    if part not in tuple(bench.ComparisonPart):
        raise typer.BadParameter(f"{part!r}: need one of {', '.join(bench.ComparisonPart)}", param_hint="--part")
    try:
        shapes = tuple(map(bench.parse_shape, shape or ())) or SHAPES
    except bench.InvalidShapeError as error:
        raise typer.BadParameter(str(error), param_hint="--shape") from None
    settings = bench.VersusSettings(
        bench.ComparisonPart(part),
        tuple(ledgers or bench.LEDGERS),
        megabytes,
        shapes,
        tuple(entry_bytes or ENTRY_BYTES),
        small_ledgers,
        empty_ledgers,
        apache_lib,
        is_tuned,
    )
    figures = run(bench.run(settings, print_note))
    if raw is not None:
        raw.write_text(json.dumps(figures, indent=2) + "\n")
    if output is OutputFormat.JSON:
        print_json("VersusApacheBenchmark", **figures)
        return
    _show_comparisons(figures)


def _show_comparisons(figures: dict[str, Any]) -> None:
    from auditor.bench.versus_apache.figures import HEADINGS, NUMBERS, comparisons, row

    for title in ("versions", "machine"):
        print_line(f"{title}: {_shown(figures[title])}")
    for name, settings in figures["settings"].items():
        print_line(f"settings of {name}: {_shown(settings) or 'as they come'}")
    print_line()
    print_table(HEADINGS, [row(each) for each in comparisons(figures)], right=NUMBERS)


def _show(kind: str, figures: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(kind, **figures)
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print_line(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)
