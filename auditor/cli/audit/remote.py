"""A client of a running auditor service's HTTP API, for commands: start a run and wait for it, list, cancel.

Each request has a connection of its own: if several processes share one address, the next connection may reach the
leader. Redirects and proxies of the environment are not followed, so the token is sent only to the given address.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from auditor.cli.output import API_VERSION, OutputFormat, print_json, print_line, print_note
from auditor.cli.running import OutputOption
from bookie.model.errors import ConflictError, PermanentError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.hosts import is_host
from bookie.model.run import RunKind, RunState
from bookie.runtime.access.tokens import (
    Role,
    TokenFileError,
    TokensFileError,
    is_valid_token,
    make_token,
    read_token_file,
)
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.connection_problem import connection_problem
from bookie.runtime.listening import is_loopback

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE: Final = "BKHEAL_TOKEN"  # noqa: S105  # a name
RUNS_MAX: Final = 200
"""Largest number of runs in a service's list."""
_EXPIRES_H_MAX: Final = 3650 * 24
_APACHE: Final = "/api/v1/autorecovery/"
"""Path below which answers have Apache's form."""
_ANSWER_BYTES_MAX: Final = 64 << 20
_NOT_LEADER: Final = "urn:bkheal:problem:not-leader"
_STILL_WORKING: Final = "urn:bkheal:problem:still-working"
_RUN_POLL_S: Final = 1.0
"""The pause between two requests for the state of a run."""
_WORK_POLL_S: Final = 2.0
_RUN_BUSY: Final = "urn:bkheal:problem:run-busy"


class RemoteUnavailableError(TransientError):
    """The service cannot be reached, or cannot answer now."""


class RemoteNotLeaderError(RemoteUnavailableError):
    """No process that answers is the leader, or the leader changes repeatedly."""


class RemoteStillWorkingError(RemoteUnavailableError):
    """The service is reading all metadata for the answer; the same request receives the answer later."""


class RemoteRefusedError(PermanentError):
    """The service refused the request; ``status`` is the HTTP status."""

    def __init__(self, text: str, status: int, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.problem = problem or {}
        """The whole problem document of the service."""


class RemoteBusyError(ConflictError):
    """A run of this kind is active; ``run_id`` is its id, empty if unknown."""

    def __init__(self, text: str, run_id: str) -> None:
        super().__init__(text)
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How to reach a service."""

    url: str
    """``http://host:8080`` or ``https://host:8080``; a path before ``/api`` may follow."""
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    """PEM file of the authority for the service's certificate; None: the system's authorities."""
    cert: Path | None = None
    """Client certificate, if the service requires one; ``key`` belongs to it."""
    key: Path | None = None
    allow_plaintext_token: bool = False
    """Send the token over http even to another machine. Anyone with access to the traffic can then use it."""
    timeout_s: float = 35.0
    """Deadline of one answer; a little more than the service's own deadline."""
    leader_attempts: int = 10
    """Connections that are tried for a request to the leader, one per second."""
    work_patience_s: float = 1800.0
    """How long a request is repeated while the service prepares the answer: as long as a reading of all metadata of a
    large cluster takes."""
    patience_s: float = 60.0
    """How long ``wait`` continues if the service cannot be reached: a change of leader takes some seconds."""


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run in the service's document."""

    fields: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        """Its id."""
        return str(self.fields["run_id"])

    @property
    def state(self) -> RunState:
        """Its state."""
        return RunState(self.fields["state"])

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command after waiting for the run."""
        code = self.fields.get("exit_code")
        if isinstance(code, int):
            return code
        return ExitCode.CANCELLED if self.state is RunState.CANCELLED else int(ExitCode.INTERNAL)

    def progress(self) -> str:
        """One line of text with the progress."""
        run = self.fields
        amount = f" {run['done']}/{run['total']}" if run.get("total") else ""
        eta = f", done at {run['eta']}" if run.get("eta") else ""
        until = f" until {run['paused_until']}" if run.get("paused_until") else ""
        return (
            f"{run['kind']} run {self.run_id} is {self.state.value}{until}: {run.get('phase') or 'begins'}{amount}{eta}"
        )


class Remote:
    """One service."""

    def __init__(
        self,
        settings: RemoteSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the TLS files; nothing is sent.

        Raises:
            ConfigurationError: the URL or the token is invalid, a file cannot be used, or the token would be sent in
                the clear.
        """
        self._settings = settings
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._base = base_url(settings)
        self._tls = tls_context(settings, self._base)

    @property
    def base(self) -> str:
        """The first part of the addresses of its requests."""
        return self._base

    def status(self) -> Mapping[str, Any]:
        """Return the service's status document. Raises the errors of ``run``."""
        return self._ask("GET", "/api/v1/status")

    def runs(self, limit: int = 50, kind: RunKind | None = None) -> Sequence[RemoteRun]:
        """Return at most ``RUNS_MAX`` runs, the newest first; None: of every kind. Raises the errors of ``run``."""
        wanted = "" if kind is None else f"&kind={kind.value}"
        items = self._ask("GET", f"/api/v1/runs?limit={min(limit, RUNS_MAX)}{wanted}").get("items")
        if not isinstance(items, list):
            raise self._not_an_auditor_error()
        return [self._one({"run": item}) for item in items]

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the document that answers a request; the request is repeated while the service prepares the answer.

        Raises:
            RemoteUnavailableError: no answer, or the service cannot answer now.
            RemoteRefusedError: the service refused it.
        """
        started_s = self._monotonic_s()
        while True:
            try:
                found = self._ask(method, path, body)
                if found.get("apiVersion") != API_VERSION and not path.startswith(_APACHE):
                    raise RemoteRefusedError(
                        f"{self._settings.url} answered 200 with an unknown document: is it an auditor of bkheal?", 200
                    )
                return found
            except RemoteStillWorkingError:
                if self._monotonic_s() - started_s > self._settings.work_patience_s:
                    raise
                self._sleep(_WORK_POLL_S)

    def run(self, run_id: str) -> RemoteRun:
        """Return one run.

        Raises:
            RemoteUnavailableError: no answer, or the service cannot answer now.
            RemoteRefusedError: there is no such run, or the token is missing, is unknown, or has too small a role.
        """
        return self._one(self._ask("GET", f"/api/v1/runs/{quote(run_id, safe='')}"))

    def start(
        self, kind: RunKind, *, is_dry_run: bool = False, options: Mapping[str, bool | int | float] = {}, key: str
    ) -> RemoteRun:
        """Begin a run.

        Args:
            kind: which check.
            is_dry_run: report only.
            options: of this run (``auditor.api.http.queries.RUN_OPTIONS``).
            key: a new one for each intent. A request that is repeated with the same key does not begin a second run.

        Raises:
            RemoteBusyError: a run of this kind is under way.
            RemoteNotLeaderError, RemoteUnavailableError, RemoteRefusedError: see their documentation.
        """
        body = {"kind": kind.value, "dry_run": is_dry_run, **options}
        return self._one(self._ask_leader("POST", "/api/v1/runs", body, {"Idempotency-Key": key}))

    def change(self, run_id: str, state: RunState) -> RemoteRun:
        """Change a run to ``paused``, ``running`` or ``cancelled``. Raises the errors of ``start``."""
        path = f"/api/v1/runs/{quote(run_id, safe='')}/state/{state.value}"
        return self._one(self._ask_leader("PUT", path))

    def change_schedule(self, kind: RunKind, state: RunState, span_s: int | None = None) -> Mapping[str, Any]:
        """Change the schedule of a kind to ``paused`` or ``running``; return its document. Raises as ``run``.

        Args:
            kind: the kind.
            state: the new state.
            span_s: how long a pause lasts; None: the length in the service's options.
        """
        query = "" if span_s is None else f"?seconds={span_s}"
        return self._ask("PUT", f"/api/v1/schedules/{kind.value}/state/{state.value}{query}")

    def wait(
        self,
        run_id: str,
        on_change: Callable[[RemoteRun], None] = lambda run: None,
        *,
        deadline_s: float | None = None,
    ) -> RemoteRun:
        """Wait for the end of a run, and return it.

        Args:
            run_id: the run.
            on_change: called with the run at first, and after each visible change.
            deadline_s: how long to wait; None: as long as it takes.

        Raises:
            RemoteUnavailableError: no answer for longer than ``patience_s``, or the deadline passed; the run continues.
            RemoteRefusedError: see ``run``.
        """
        started_s = reached_s = self._monotonic_s()
        seen: RemoteRun | None = None
        while True:
            try:
                found = self.run(run_id)
                reached_s = self._monotonic_s()
            except RemoteUnavailableError:
                if self._monotonic_s() - reached_s > self._settings.patience_s:
                    raise
            else:
                if found != seen:
                    on_change(found)
                    seen = found
                if found.state.is_final:
                    return found
            if deadline_s is not None and self._monotonic_s() - started_s >= deadline_s:
                raise RemoteUnavailableError(f"run {run_id} did not end within {deadline_s:g} s; it continues")
            self._sleep(_RUN_POLL_S)

    def _one(self, document: Mapping[str, Any]) -> RemoteRun:
        fields = document.get("run")
        try:
            if isinstance(fields, dict) and fields["run_id"] and RunState(fields["state"]) and RunKind(fields["kind"]):
                return RemoteRun(fields)
        except (KeyError, ValueError):
            pass
        raise self._not_an_auditor_error()

    def _not_an_auditor_error(self) -> RemoteRefusedError:
        return RemoteRefusedError(f"{self._settings.url} did not answer with a run: is it an auditor of bkheal?", 200)

    def _ask_leader(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> Mapping[str, Any]:
        attempts = self._settings.leader_attempts
        for attempt in range(1, attempts + 1):
            try:
                return self._ask(method, path, body, headers)
            except RemoteNotLeaderError:
                if attempt == attempts:
                    raise
                self._sleep(1.0)
        raise RemoteNotLeaderError(f"{self._settings.url}: no attempt was allowed (leader_attempts is {attempts})")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> Mapping[str, Any]:
        import httpx  # takes a tenth of a second, and only commands with --at need it

        # The bound counts received bytes, and a compressed answer could become much larger.
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        if self._settings.token:
            sent["Authorization"] = f"Bearer {self._settings.token}"
        end_s = time.monotonic() + self._settings.timeout_s  # real time, because it bounds a wait of this thread
        try:
            with (
                httpx.Client(verify=self._tls, timeout=self._settings.timeout_s, trust_env=False) as client,
                client.stream(method, self._base + path, headers=sent, json=body) as response,
            ):
                return self._understand(response.status_code, self._read(response, end_s))
        except httpx.RequestError as error:
            why = connection_problem(error)
            hint = "; --ca names the file of its authority" if "certificate is not accepted" in why else ""
            raise RemoteUnavailableError(f"no answer from {self._settings.url}: {why}{hint}") from error

    def _read(self, response: httpx.Response, end_s: float) -> bytes:
        """Read the body, within bounds of time and size: a service may send it slowly, or endlessly."""
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > _ANSWER_BYTES_MAX:
                raise RemoteRefusedError(
                    f"{self._settings.url} answered {response.status_code} with more than {_ANSWER_BYTES_MAX} bytes: "
                    "is it an auditor?",
                    response.status_code,
                )
            if time.monotonic() > end_s:
                raise RemoteUnavailableError(
                    f"no answer from {self._settings.url}: it was not complete after {self._settings.timeout_s:g} s"
                )
        return bytes(data)

    def _understand(self, status: int, data: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RemoteRefusedError(
                f"{self._settings.url} answered {status} with something that is not JSON: is it an auditor?", status
            ) from error
        if not isinstance(found, dict):
            raise RemoteRefusedError(
                f"{self._settings.url} answered {status} with no document: is it an auditor?", status
            )
        if status < 300:
            return found
        raise self._refusal(status, found)

    def _refusal(self, status: int, problem: Mapping[str, Any]) -> Exception:
        reason = problem.get("detail") or problem.get("title")
        if not reason and status == HTTPStatus.NOT_FOUND:
            return RemoteRefusedError(
                f"{self._settings.url} answered {status} with no reason: is it an auditor?", status
            )
        text = f"{self._settings.url}: {reason or f'status {status}'}"
        kind = problem.get("type")
        if kind == _NOT_LEADER:
            return RemoteNotLeaderError(text)
        if kind == _STILL_WORKING:
            return RemoteStillWorkingError(text)
        if kind == _RUN_BUSY:
            return RemoteBusyError(text, str(problem.get("run_id") or ""))
        if status in (429, 502, 503, 504):
            return RemoteUnavailableError(text)
        if status == 401:
            text += f"; set ${TOKEN_VARIABLE} or give --token-file"
        return RemoteRefusedError(text, status, problem)


def read_token(token_file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token to send: from the file, else from ``$BKHEAL_TOKEN``, else none.

    Raises:
        ConfigurationError: the file cannot be read, or the text found is not a token.
    """
    if token_file is not None:
        try:
            return read_token_file(token_file)
        except TokenFileError as error:
            raise ConfigurationError([str(error)]) from error
    token = environment.get(TOKEN_VARIABLE, "").strip()
    if not is_valid_token(token):
        raise ConfigurationError([f"${TOKEN_VARIABLE} is not a valid token: it must be one word of ASCII characters"])
    return token or None


def auditor_token(
    name: Annotated[
        str, typer.Argument(help="Name of the person or program that uses the token; shown in the audit log.")
    ],
    role: Annotated[
        Role,
        typer.Option(
            help="read; operate: also start and cancel runs, drain, limit copying; administer: also disable recovery, "
            "set the delay, accept losses."
        ),
    ] = Role.READ,
    expires: Annotated[
        str,
        typer.Option("--expires", help="When it expires: 12h, 90d; at most 3650d. Default: never.", show_default=False),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make an API token: the secret for its user, and the line for the service's tokens file.

    The secret goes to standard output and the line to standard error, so each can be redirected to its file:

        bkheal auditor-token alice --role operate >alice.token 2>>tokens

    The service reads the file again after a change. Before you replace the token of a name, remove its line: if a name
    has two lines, or any line is invalid, no token is admitted. The user passes the secret in $BKHEAL_TOKEN or
    --token-file.
    """
    try:
        made = make_token(name, role, _expiry_ms(expires))
    except TokensFileError as error:
        raise typer.BadParameter(str(error), param_hint="'NAME'") from error
    if output is OutputFormat.JSON:
        print_json("Token", token=made.token, line=made.line)
        return
    print_line(made.token)
    if sys.stderr.isatty():
        print_note("the token above is shown only this once; add this line to the service's tokens file:")
    sys.stderr.write(f"{made.line}\n")


def _expiry_ms(expires: str) -> int:
    """Return the end of a time span that begins now, epoch milliseconds; 0 for an empty text."""
    if not expires:
        return 0
    match = re.fullmatch(r"([1-9]\d{0,4})([hd])", expires)
    hours = int(match[1]) * (24 if match[2] == "d" else 1) if match else 0
    if not 0 < hours <= _EXPIRES_H_MAX:
        raise typer.BadParameter(
            f"{expires!r} is not a time span up to 3650d: write 12h or 90d", param_hint="--expires"
        )
    return int(time.time() * 1000) + hours * 3_600_000


def base_url(settings: RemoteSettings) -> str:
    """Return the first part of the addresses of requests: the URL without a user name, a query and a fragment.

    Raises:
        ConfigurationError: the URL or the token is invalid, or the token would be sent in the clear.
    """
    import httpx

    try:
        parts = urlsplit(settings.url)
        base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        url = httpx.URL(base)
        is_address = url.scheme in ("http", "https") and is_host(url.host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_address = False
    if not is_address:
        raise ConfigurationError([f"not the URL of a service: {settings.url!r}; such as https://host:8080"])
    if settings.token and not is_valid_token(settings.token):
        raise ConfigurationError([f"the token for {settings.url} is invalid: it must be one word of ASCII characters"])
    is_open = url.scheme == "http" and not is_loopback(url.host)
    if settings.token and is_open and not settings.allow_plaintext_token:
        raise ConfigurationError(
            [f"the token would be sent to {url.host} in the clear: use https, or allow a plaintext token"]
        )
    return base


def tls_context(settings: RemoteSettings, base: str) -> ssl.SSLContext:
    """Return the TLS context to verify the server at ``base``.

    Raises:
        ConfigurationError: a TLS file cannot be used.
    """
    if base.startswith("http:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used; it trusts no authority
    try:
        context = ssl.create_default_context(cafile=settings.ca)
    except (OSError, ValueError) as error:
        raise _unusable(f"the file {settings.ca} of the authority", error) from error
    try:
        if settings.cert is not None:
            context.load_cert_chain(settings.cert, settings.key)
    except (OSError, ValueError) as error:
        raise _unusable(f"the client certificate {settings.cert} with the key {settings.key}", error) from error
    return context


def _unusable(files: str, error: Exception) -> ConfigurationError:
    if isinstance(error, ssl.SSLError):
        why = error.reason.lower().replace("_", " ") if error.reason else "it is not in PEM format"
    else:
        why = getattr(error, "strerror", None) or str(error)
    return ConfigurationError([f"cannot use {files}: {why}"])
