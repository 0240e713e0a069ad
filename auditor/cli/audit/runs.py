"""``bkheal audit list, show, cancel, pause, resume``: recorded runs, and those of a running service."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from auditor.cli.audit import options as opt
from auditor.cli.changing import connected, refuse, whoami
from auditor.cli.output import OutputFormat, StreamFormat, print_error, print_json, print_line, print_note
from auditor.cli.paging import print_note_at_limit, print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, StreamOutputOption, metadata_uri
from auditor.cli.running import run as run_to_end
from bookie.model.exit_codes import ExitCode
from bookie.model.run import PAUSE_S, RunCause, RunKind, RunRecord, RunState
from bookie.model.times import rfc3339
from bookie.runtime.clock import SystemClock
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.human import counted, printable, size

if TYPE_CHECKING:
    from auditor.cli.audit.remote import Remote, RemoteRun

T = TypeVar("T")

_LIMIT_MAX: Final = 500
_RECORDS_MAX: Final = 500
"""Largest number of runs that are read in a search for those of one kind."""


def list_runs(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    limit: Annotated[int, typer.Option(min=1, max=_LIMIT_MAX, help="Most rows to list.")] = 20,
    kind: Annotated[RunKind | None, typer.Option(help="Only this check.", show_default=False)] = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    at: opt.AtOption = None,
    token_file: opt.TokenFileOption = None,
    ca: opt.CaOption = None,
    client_cert: opt.ClientCertOption = None,
    client_key: opt.ClientKeyOption = None,
) -> None:
    """List the newest runs of all processes, as recorded in ZooKeeper. A service lists at most 200."""
    if at:
        remotes = services(at, token_file, ca, client_cert, client_key)
        documents = [dict(each.fields) for each in first_answer(remotes, lambda remote: remote.runs(limit, kind))]
    else:
        documents = [each.to_json() for each in run_to_end(_list(metadata_uri(uri, config), limit, kind))]
    print_page(
        output,
        "AuditRunList",
        {"items": documents},
        ("RUN", "KIND", "STATE", "VERDICT", "LEDGERS", "NEW MARKS", "CAUSE", "OWNER"),
        lambda each: (
            *(each["run_id"], _kind(each), _state(each), each["verdict"] or "-", each["ledgers"]),
            *(each["tasks_changed"], *(printable(text or "-") for text in _cause_and_owner(each))),
        ),
        right=(4, 5),
        nothing="no run is on record",
        member="run",
    )
    print_note_at_limit(output, len(documents), limit, _LIMIT_MAX)


def _cause_and_owner(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return cause and owner as text. After a loss, the field names the lost bookies; the owner is the auditor."""
    cause, owner = run.get("cause", ""), run.get("owner", "")
    return (f"loss of {owner}", run.get("process", "")) if cause == RunCause.BOOKIE_LOSS.value else (cause, owner)


def _kind(run: Mapping[str, Any]) -> str:
    notes = [*(["dry run"] if run["dry_run"] else []), *([] if run.get("every_ledger", True) else ["part"])]
    return f"{run['kind']} ({', '.join(notes)})" if notes else str(run["kind"])


def _state(run: Mapping[str, Any]) -> str:
    return f"{run['state']} until {run['paused_until']}" if run["paused_until"] else str(run["state"])


def show(
    run_id: opt.RunIdArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    at: opt.AtOption = None,
    token_file: opt.TokenFileOption = None,
    ca: opt.CaOption = None,
    client_cert: opt.ClientCertOption = None,
    client_key: opt.ClientKeyOption = None,
) -> None:
    """Show one run: its owner and cause, progress, findings and report."""
    if at:
        remotes = services(at, token_file, ca, client_cert, client_key)
        fields = dict(first_answer(remotes, lambda remote: remote.run(run_id)).fields)
    else:
        record = run_to_end(_get(metadata_uri(uri, config), run_id))
        if record is None:
            _refuse_unknown(run_id)
        fields = record.to_json()
    if output is OutputFormat.JSON:
        print_json("AuditRun", run=fields)
        return
    _print_fields(fields)


def cancel(
    run_id: opt.RunIdArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    at: opt.AtOption = None,
    token_file: opt.TokenFileOption = None,
    ca: opt.CaOption = None,
    client_cert: opt.ClientCertOption = None,
    client_key: opt.ClientKeyOption = None,
) -> None:
    """End a run within seconds, between two batches of marking. Its marks stay.

    Without --at the request is left in ZooKeeper for the process of the run, a service or a command.
    """
    if at:
        _change(services(at, token_file, ca, client_cert, client_key), run_id, RunState.CANCELLED)
        return
    record = run_to_end(_request_cancel(metadata_uri(uri, config), run_id))
    if record is None:
        _refuse_unknown(run_id)
    if record.state.is_final:
        print_error(f"run {run_id} has ended: it is {record.state.value}")
        raise typer.Exit(ExitCode.FAILED)
    print_line(f"{record.process} is asked to end run {run_id}")


def _refuse_unknown(run_id: str) -> NoReturn:
    refuse(f"no run {run_id!r} is on record; `bkheal audit list` lists those that are")


def pause(
    run_id: opt.OptionalRunIdArgument = None,
    kind: opt.ScheduleOption = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    span: opt.PauseSpanOption = "",
    at: opt.AtOption = None,
    token_file: opt.TokenFileOption = None,
    ca: opt.CaOption = None,
    client_cert: opt.ClientCertOption = None,
    client_key: opt.ClientKeyOption = None,
) -> None:
    """Hold a run of a service between two chunks, or with --kind the schedule of a check, for a limited time.

    The pause of a run ends by itself after the time of the auditor's option --pause-s, an hour by default; the pause of
    a schedule after --for, or after the same time. Another pause extends it. The audit after the loss of a bookie is
    never paused. A schedule can be paused without --at: the auditors read the pause from ZooKeeper.
    """
    remotes = services(at, token_file, ca, client_cert, client_key)
    _change_run_or_schedule(remotes, run_id, kind, RunState.PAUSED, uri, config, _span_s(span))


def resume(
    run_id: opt.OptionalRunIdArgument = None,
    kind: opt.ScheduleOption = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    at: opt.AtOption = None,
    token_file: opt.TokenFileOption = None,
    ca: opt.CaOption = None,
    client_cert: opt.ClientCertOption = None,
    client_key: opt.ClientKeyOption = None,
) -> None:
    """Let a paused run of a service continue, or with --kind the paused schedule of a check."""
    remotes = services(at, token_file, ca, client_cert, client_key)
    _change_run_or_schedule(remotes, run_id, kind, RunState.RUNNING, uri, config, None)


def services(
    urls: Sequence[str] | None,
    token_file: Path | None,
    ca: Path | None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
) -> list[Remote]:
    """Return clients of the auditors at ``urls``.

    Raises:
        ConfigurationError: a URL, the token or a file cannot be used.
    """
    from auditor.cli.audit.remote import Remote, RemoteSettings, read_token

    if (client_cert is None) != (client_key is None):
        raise ConfigurationError(["--client-cert and --client-key go together: give both"])
    token = read_token(token_file, os.environ)
    return [Remote(RemoteSettings(url, token, ca, client_cert, client_key)) for url in urls or ()]


def start(
    remotes: Sequence[Remote],
    kind: RunKind,
    *,
    is_dry_run: bool,
    options: Mapping[str, bool | int | float],
    wait_s: float,
    is_json: bool,
) -> int:
    """Start a run at the first available auditor, and return the exit code: the run's, if the command waits for it."""
    from auditor.cli.audit.remote import RemoteBusyError

    key = uuid.uuid4().hex  # one key for all auditors, so that only one run begins
    try:
        remote, run = first_answer(
            remotes, lambda remote: (remote, remote.start(kind, is_dry_run=is_dry_run, options=options, key=key))
        )
    except RemoteBusyError as error:
        print_error(str(error))
        return ExitCode.BUSY
    if wait_s > 0:
        run = remote.wait(run.run_id, _say, deadline_s=wait_s)
    if is_json:
        print_json("AuditRun", run=dict(run.fields))
    else:
        _print_fields(run.fields)
    return run.exit_code if run.state.is_final else ExitCode.OK


def _span_s(span: str) -> int | None:
    """Return the seconds of a time span; None for an empty text."""
    from auditor.operating.runs import PAUSE_S_MIN, SPAN_S_MAX

    if not span:
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", span)
    seconds = int(match[1]) * {"m": 60, "h": 3600, "d": 86400}[match[2]] if match else 0
    if not PAUSE_S_MIN <= seconds <= SPAN_S_MAX:
        raise typer.BadParameter(f"{span!r} is not a time span up to {SPAN_S_MAX // 86400}d: write 30m, 2h or 1d")
    return seconds


def _change_run_or_schedule(
    remotes: Sequence[Remote],
    run_id: str | None,
    kind: RunKind | None,
    state: RunState,
    uri: str | None,
    config: Path | None,
    span_s: int | None,
) -> None:
    if (run_id is None) == (kind is None):
        raise typer.BadParameter("give either the id of a run or --kind")
    if run_id is not None:
        _change(remotes, run_id, state)
    elif kind is not None:
        if not remotes:
            seconds = None if state is RunState.RUNNING else span_s or PAUSE_S
            schedule: Mapping[str, Any] = run_to_end(_pause_kind(metadata_uri(uri, config), kind, seconds))
        else:
            schedule = first_answer(remotes, lambda remote: remote.change_schedule(kind, state, span_s))
        until = f" until {schedule['paused_until']}" if schedule.get("paused_until") else ""
        print_line(f"the schedule of {kind.value} runs {_paused_text(state, schedule)}{until}")


def _paused_text(state: RunState, schedule: Mapping[str, Any]) -> str:
    if state is RunState.PAUSED:
        return "is paused"
    was_paused = schedule.get("was_paused")
    if was_paused is None:  # the answer of an auditor does not contain it
        return "is not paused"
    return "is no longer paused" if was_paused else "was not paused, so nothing was changed"


def _change(remotes: Sequence[Remote], run_id: str, state: RunState) -> None:
    if not remotes:
        raise typer.BadParameter("--at URL is needed: only the service that runs it can do that")
    run = first_answer(remotes, lambda remote: remote.change(run_id, state))
    print_line(run.progress())


def first_answer(remotes: Sequence[Remote], ask: Callable[[Remote], T]) -> T:
    """Return the answer of the first service that can give one; raise the last error if none can."""
    from auditor.cli.audit.remote import RemoteUnavailableError

    for remote in remotes[:-1]:
        try:
            return ask(remote)
        except RemoteUnavailableError as error:
            print_note(f"{error}; trying the next one")
    return ask(remotes[-1])


def _say(run: RemoteRun) -> None:
    sys.stderr.write(f"{run.progress()}\n")


def run_lines(fields: Mapping[str, Any]) -> list[str]:
    """A run for people, with the words and units of the other commands. Facts that are not known are left out. Pure."""
    fields = {**fields, **dict(zip(("cause", "owner"), _cause_and_owner(fields), strict=True))}
    known = {name: _words(name, value) for name, value in fields.items() if value not in (None, "", {})}
    shown = {name: text for name, text in known.items() if text}
    if shown.get("total") is None:
        shown.pop("done", None)  # a phase without a known size does not count
    labels = {"tasks_changed": "new marks"}
    return [f"{labels.get(name, name.replace('_', ' ')):<14}{printable(text)}" for name, text in shown.items()]


def _words(name: str, value: Any) -> str:
    if name == "image":
        return ", ".join(_image_words(value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _image_words(image: Mapping[str, int]) -> Iterator[str]:
    if image.get("marked"):
        yield f"{counted(image['marked'], 'ledger')} marked by the earlier one"
    if image.get("written_from_ms"):
        written = f"{counted(image['written_ledgers'], 'ledger')}, {size(image['written_bytes'])}"
        yield f"one written of {written}, read from {rfc3339(image['written_from_ms'])} on"


def _print_fields(fields: Mapping[str, Any]) -> None:
    for line in run_lines(fields):
        print_line(line)


async def _list(uri: str, limit: int, kind: RunKind | None) -> Sequence[RunRecord]:
    from spark_jobs.connect import opened_runs

    async with opened_runs(uri) as runs:
        found = await runs.list(limit if kind is None else _RECORDS_MAX, SystemClock().epoch_ms())
    return [each for each in found if kind in (None, each.kind)][:limit]


async def _get(uri: str, run_id: str) -> RunRecord | None:
    from spark_jobs.connect import opened_runs

    async with opened_runs(uri) as runs:
        return await runs.get(run_id)


async def _request_cancel(uri: str, run_id: str) -> RunRecord | None:
    from auditor.operating.client import Actor
    from auditor.operating.runs import request_end

    async with connected(uri) as client:
        return await request_end(client, Actor(whoami(), "command"), run_id)


async def _pause_kind(uri: str, kind: RunKind, span_s: int | None) -> dict[str, Any]:
    """Pause the schedule of a kind, or resume it if ``span_s`` is None."""
    from auditor.operating.client import Actor
    from auditor.operating.runs import pause_schedule, resume_schedule

    actor = Actor(whoami(), "command")
    async with connected(uri) as client:
        if span_s is None:
            return await resume_schedule(client, actor, kind)
        return await pause_schedule(client, actor, kind, span_s)
